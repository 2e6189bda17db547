"""Which notes leave a worker with a beat, and how many."""

from __future__ import annotations

from trio_envserve.core import messages
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.terms import NOTE_BYTES, Status
from trio_envserve.core.worker import (
    BEAT_MESSAGES,
    MESSAGE_BYTES,
    BeatDue,
    NoteMade,
    OutcomeMade,
    UnsentNotes,
    WorkerCore,
)

from .helpers import decoded
from .test_worker import hear, running


def beat(core: WorkerCore, *, has_left: bool = True) -> list[dict[int, bytes]]:
    """The notes that leave with a beat, of each message; the beat itself comes last."""
    effects = core.take(BeatDue({}, has_left))
    *told, last = (decoded(e.frames[1:]) for e in effects)  # type: ignore[union-attr]  # else it raises
    assert isinstance(last, messages.Beat)
    found = []
    for each in told:
        assert isinstance(each, messages.WorkerNotes)
        numbers = Ranges.from_flat(each.numbers)
        found.append(dict(zip(numbers, each.notes, strict=True)))
    return found


def test_the_last_note_leaves_with_the_next_beat_once():
    core = running(0, 1)
    assert core.take(NoteMade(0, b"one")) == []
    core.take(NoteMade(0, b"two"))
    core.take(NoteMade(1, b"other"))
    assert beat(core) == [{0: b"two", 1: b"other"}]
    assert beat(core) == []
    core.take(NoteMade(1, b"more"))
    assert beat(core) == [{1: b"more"}]


def test_nothing_is_noted_of_what_has_ended_or_is_to_stop():
    core = running(0, 1)
    core.take(NoteMade(0, b"one"))
    core.take(OutcomeMade(0, Status.RESULT, b"outcome", 1.0))
    core.take(NoteMade(0, b"late"))
    hear(core, messages.Stop([1, 2]))
    core.take(NoteMade(1, b"one"))
    assert beat(core) == []


def test_g8_no_notes_leave_before_earlier_messages_have():
    core = running(0)
    for number in range(1000):
        core.take(NoteMade(0, b"%d" % number))
    assert beat(core, has_left=False) == []
    assert beat(core) == [{0: b"999"}]


def test_g8_no_more_leaves_with_one_beat_than_64_kib_and_the_rest_with_later_ones():
    core = running(*range(200))
    for number in range(200):
        core.take(NoteMade(number, bytes(NOTE_BYTES)))
    seen: set[int] = set()
    while told := beat(core):
        assert len(told) <= BEAT_MESSAGES
        for each in told:
            assert sum(map(len, each.values())) <= MESSAGE_BYTES
            assert not seen & set(each)
            seen |= set(each)
        for number in range(10):  # what changes all the time does not push the others back
            core.take(NoteMade(number, bytes(NOTE_BYTES)))
        if seen == set(range(200)):
            return
        seen -= set(range(10))
    raise AssertionError("some notes never left")


def test_many_short_notes_make_a_header_that_is_taken():
    unsent = UnsentNotes()
    for number in range(0, 5000, 2):
        unsent.keep(number, b"")
    for each in unsent.take():
        header = messages.encode(each)
        assert messages.decode(header, most_bytes=32 * 1024) == each
