"""What keys take of their bounds: once for all that hold it, and of each namespace its share."""

import pytest

from trio_envserve.core.key_records import NOBODY, Generation, KeyName, Usage, WorkState
from trio_envserve.core.key_room import KeyRoom
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.terms import RequestId

NAME = KeyName(b"default", b"key")


def generation_of(name: KeyName) -> Generation:
    return Generation(0, name, b"", 0, None, 0, WorkState.RUNNING, None, 10, {}, NOBODY, 0.0)


def test_who_is_answered_after_the_key_was_forgotten_has_the_outcome_counted_again():
    room = KeyRoom(KeyLimits())
    generation = generation_of(NAME)
    room.add(generation)
    payload = room.bring(NAME.namespace, 1000)
    assert room.all == Usage(1, 10, 1000)
    assert room.all.size_bytes == 1010
    room.drop(generation)
    room.let_go(payload)
    assert (room.all, room.of_namespace) == (Usage(), {})
    room.hold(payload)  # its turn to be answered comes now
    room.hold(payload)
    assert room.of(b"default") == room.all == Usage(0, 0, 1000)
    room.let_go(payload)
    room.let_go(payload)
    assert (room.all, room.of_namespace) == (Usage(), {})


def test_nobody_can_be_added_to_those_who_wait_where_nobody_does():
    """All of them have the same: whoever came there would wait for all of them."""
    with pytest.raises(TypeError, match="shared"):
        NOBODY[RequestId(b"session", 0)] = b"caller"


def open_one(room: KeyRoom, namespace: bytes) -> None:
    room.add(generation_of(KeyName(namespace, b"key")))


def takes_all_it_may(room: KeyRoom, namespace: bytes, size_bytes: int) -> int:
    """It asks, never forgets, and asks again: how many of its outcomes are retained then."""
    brought = 0
    while room.may_open(namespace, 10) and room.may_retain(namespace):
        open_one(room, namespace)
        room.bring(namespace, size_bytes)
        brought += 1
    return brought


def test_a_namespace_that_passes_the_bound_by_what_was_running_leaves_the_others_their_part():
    """Sixty large outcomes came at once: keys of all other namespaces were not run."""
    room = KeyRoom(KeyLimits(generations=1000, retained_bytes=10_000, namespaces=10))
    for _ in range(60):
        open_one(room, b"large")
        room.bring(b"large", 1000)
    assert not room.may_retain(b"large")
    assert room.may_retain(b"small")
    assert room.may_open(b"small", 10)
    # Its part are 1000 bytes, of which each takes 250.
    assert takes_all_it_may(room, b"small", 240) == 4
    assert room.may_retain(b"another")


def test_generations_past_their_bound_leave_the_others_their_part():
    room = KeyRoom(KeyLimits(generations=100, namespaces=10))
    for _ in range(100):
        open_one(room, b"many")
    assert not room.may_open(b"many", 10)
    assert takes_all_it_may(room, b"few", 10) == 8


def test_the_parts_of_all_namespaces_together_are_no_more_than_the_bound():
    """Callers choose namespaces: there may be more of them than the limit says."""
    limits = KeyLimits(generations=10_000, retained_bytes=10_000, namespaces=10)
    room = KeyRoom(limits)
    open_one(room, b"large")
    room.bring(b"large", 10_000)
    brought = [takes_all_it_may(room, b"%d" % number, 1) for number in range(100)]
    assert brought[0] > brought[9] > brought[30] > 0
    assert brought[-1] == 0
    assert room.all.size_bytes <= 2 * limits.retained_bytes + 100 * 11


def test_a_namespace_that_has_gone_gives_its_part_back():
    room = KeyRoom(KeyLimits(generations=1000, retained_bytes=10_000, namespaces=2))
    open_one(room, b"large")
    room.bring(b"large", 10_000)
    for _ in range(100):
        payload = room.bring(b"small", 10)
        room.let_go(payload)
    assert takes_all_it_may(room, b"small", 10) == 125
