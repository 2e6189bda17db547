"""What keys take of their bounds: once for all that hold it."""

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
