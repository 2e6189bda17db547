"""What keys take of their bounds: once for all that hold it, and of each namespace its share."""

from trio_envserve.core.key_records import Generation, GenerationState, KeyName, Usage
from trio_envserve.core.key_room import KeyRoom
from trio_envserve.core.limits import KeyLimits

NAME = KeyName(b"default", b"key")


def test_who_is_answered_after_the_key_was_forgotten_has_the_outcome_counted_again():
    room = KeyRoom(KeyLimits())
    generation = Generation(0, NAME, b"", 0, None, 0, GenerationState.RUNNING, None, 10)
    room.charge(generation, +1)
    payload = room.bring(NAME.namespace, 1000)
    assert room.all == Usage(1, 10, 1000)
    assert room.all.size_bytes == 1010
    room.charge(generation, -1)
    room.let_go(payload)
    assert (room.all, room.of_namespace) == (Usage(), {})
    room.hold(payload)  # its turn to be answered comes now
    room.hold(payload)
    assert room.of(b"default") == room.all == Usage(0, 0, 1000)
    room.let_go(payload)
    room.let_go(payload)
    assert (room.all, room.of_namespace) == (Usage(), {})


def open_one(room: KeyRoom, namespace: bytes) -> None:
    generation = Generation(
        0, KeyName(namespace, b"key"), b"", 0, None, 0, GenerationState.RUNNING, None, 10
    )
    room.charge(generation, +1)


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
