"""The worker's side of its link to the router."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core import worker as worker_core
from trio_envserve.core.limits import PROTOCOL_VERSION, ServerLimits
from trio_envserve.core.messages import Dispatch
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.terms import NOTE_BYTES, RequestId, Status, Verdict, whole
from trio_envserve.core.worker import (
    BEAT_MESSAGES,
    DELTA_BYTES,
    DELTA_RECORD_BYTES,
    DELTAS_BYTES,
    ENDED,
    MESSAGE_BYTES,
    NUMBERS_MOST,
    BeatDue,
    BeginRun,
    ClaimMade,
    DeltaMade,
    EnvironmentReady,
    Exit,
    NoteMade,
    OutcomeMade,
    OutcomeParked,
    Park,
    ResourceWanted,
    RouterMessage,
    SaveEnded,
    SaveMade,
    ToRouter,
    UnsentNotes,
    WorkerCore,
    WorkerEffect,
    frames_to_router,
    never_began,
)

from .helpers import FIRST, REPLACEMENT, Pair, decoded, identifier

LIFE, OTHER_LIFE, SESSION = identifier(1), identifier(2), identifier(3)
ENDS = (Status.RESULT, b"outcome", 1.5)


def worker() -> WorkerCore:
    return WorkerCore(LIFE)


def hear(core: WorkerCore, message: messages.Message, *body: bytes, life: bytes = LIFE) -> Any:
    return core.take(RouterMessage((life, messages.encode(message), *body)))


def dispatch(core: WorkerCore, number: int, *, life: bytes = LIFE) -> Any:
    return hear(core, messages.Dispatch(SESSION, 100 + number, number, "me"), b"body", life=life)


def beat(core: WorkerCore) -> messages.Message:
    """The beat that the clock asks for now."""
    return said_by(core.take(BeatDue({}))[-1])


def said(effect: ToRouter) -> messages.Message:
    assert effect.frames[0] == LIFE
    return decoded(effect.frames[2:] if len(effect.frames) == 4 else effect.frames[1:])


def said_by(effect: WorkerEffect) -> messages.Message:
    assert isinstance(effect, ToRouter)
    return said(effect)


def test_g5_a_dispatch_for_another_incarnation_is_not_run():
    core = worker()
    assert dispatch(core, 0, life=OTHER_LIFE) == []
    assert core.take(RouterMessage(())) == []
    assert (core.fenced, core.received, core.running) == (2, 0, {})


@pytest.mark.parametrize("is_over", [False, True])
def test_g5_a_dispatch_that_came_twice_began_twice(is_over: bool):
    core = running(0, 2)
    if is_over:
        core.take(OutcomeMade(2, Status.RESULT, b"", 1.0))
    assert dispatch(core, 2) == [Exit()]
    assert core.malformed == 1
    assert [type(each) for each in dispatch(core, 1)] == [BeginRun]


def test_g8_a_worker_remembers_so_many_gaps_between_its_dispatches(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(worker_core, "NUMBERS_MOST", 2)
    core = running(0, 2, 4, 6)
    assert core._seen.span_count() == 2
    assert dispatch(core, 3) == [Exit()]
    assert [type(each) for each in dispatch(core, 5)] == [BeginRun]


@pytest.mark.parametrize(
    "frames",
    [
        (LIFE,), (LIFE, b"\xff"), (LIFE, messages.encode(messages.Retire()), b"body"),
        (LIFE, messages.encode(messages.Dispatch(SESSION, 1, 1, ""))),
        (LIFE, messages.encode(messages.Goodbye(SESSION))),
    ],
)  # fmt: skip
def test_what_is_malformed_changes_nothing(frames):
    core = worker()
    assert core.take(RouterMessage(frames)) == []
    assert (core.malformed, core.running) == (1, {})


def test_an_outcome_has_exactly_five_frames_with_the_workers_id():
    core = worker()
    dispatch(core, 0)
    (effect,) = core.take(OutcomeMade(0, *ENDS))
    assert isinstance(effect, ToRouter)
    life, client, header, payload = effect.frames
    assert (life, client, payload) == (LIFE, b"me", b"outcome")
    assert decoded((header,)) == messages.WorkerOutcome(SESSION, 100, 0, 0, 1.5)
    with pytest.raises(KeyError):
        core.take(OutcomeMade(0, *ENDS))


def test_g1_a_beat_names_what_is_live_and_counts_the_messages_of_both_before_it():
    core = worker()
    assert beat(core) == messages.Beat(b"", 0, 0, [], {})
    dispatch(core, 0), dispatch(core, 2)
    hear(core, messages.Stop([0, 1]))
    dispatch(core, 3, life=OTHER_LIFE)
    assert beat(core) == messages.Beat(b"", 3, 0, [0, 1, 2, 3], {})
    core.take(OutcomeMade(0, *ENDS))
    core.take(OutcomeMade(2, *LARGE))
    assert beat(core) == messages.Beat(b"", 3, 2, [2, 3], {})


def test_what_was_cancelled_before_its_code_began_did_not_run():
    info = never_began(RequestId(SESSION, 3))
    assert (info.code, info.verdict) == ("cancelled", Verdict.DID_NOT_RUN)


def test_a_stop_of_what_has_ended_changes_nothing():
    core = worker()
    dispatch(core, 0)
    core.take(OutcomeMade(0, *ENDS))
    assert hear(core, messages.Stop([0, 2])) == []


def test_another_router_is_told_once_what_the_one_before_may_not_have_known():
    core = announcing()
    ready = EnvironmentReady(7, "an environment", True, 3)
    assert hear(core, messages.RouterChanged(OTHER_LIFE)) == []  # nothing was said yet
    hello = messages.WorkerHello(PROTOCOL_VERSION, *ready, b"")
    assert [said_by(each) for each in core.take(ready)] == [hello]
    dispatch(core, 1)
    core.take(SaveMade(1, b"one"))
    for claim in (0, 1):
        core.take(ClaimMade(1, claim, "name", 2, None))
    hear(core, messages.Granted([1, 2], None))
    core.take(ResourceWanted(1, 5, "kind", "module:destroy"))
    again = [said_by(each) for each in hear(core, messages.RouterChanged(OTHER_LIFE))]
    made = messages.Claim(1, 0, "name", 2, None)
    assert again == [
        hello._replace(epoch=OTHER_LIFE),
        ANNOUNCEMENT,
        messages.WorkerSave(SESSION, 101, 1, 1),
        made,
        made._replace(claim=1, held=1),
        messages.ResourceIntended(1, 5, "kind", "module:destroy"),
        messages.Beat(OTHER_LIFE, 0, 6, [0, 2], {}),
    ]
    hear(core, messages.Stop([1, 2]))
    assert beat(core) == messages.Beat(OTHER_LIFE, 1, 6, [0, 2], {})


@pytest.mark.parametrize(
    "message",
    [
        messages.Stop([0, NUMBERS_MOST + 1]),
        messages.Stop([4, 1 << 61]),
        messages.Fetch([0, NUMBERS_MOST + 1], []),
        messages.Fetch([], [4, NUMBERS_MOST + 5]),
    ],
)
def test_g8_more_dispatches_named_at_once_than_a_router_can_have_live_change_nothing(message):
    """A worker that was told to stop the dispatches 4 to 2e18 remembered each of them, and its
    memory ended before the list did (found by libFuzzer)."""
    core = worker()
    dispatch(core, 0)
    assert hear(core, message) == []
    assert (core.malformed, list(core.running)) == (1, [0])
    hear(core, messages.Stop([0, NUMBERS_MOST]))
    assert core.malformed == 1


# -- announced outcomes ---------------------------------------------------------

ANNOUNCE_BYTES = ServerLimits().announce_bytes
LARGE = (Status.RESULT, bytes(ANNOUNCE_BYTES + 1), 1.5)
ANNOUNCEMENT = messages.Announced(SESSION, 100, 0, ANNOUNCE_BYTES + 1)
OUTCOME = messages.WorkerOutcome(SESSION, 100, 0, 0, 1.5)


def announcing() -> WorkerCore:
    core = worker()
    dispatch(core, 0)
    assert [said_by(each) for each in core.take(OutcomeMade(0, *LARGE))] == [ANNOUNCEMENT]
    return core


def fetch(core: WorkerCore, numbers: list[int], unwanted: list[int]) -> Any:
    return [said_by(each) for each in hear(core, messages.Fetch(numbers, unwanted))]


def test_g8_a_large_outcome_is_announced_and_sent_when_it_is_asked_for_once():
    core = announcing()
    assert fetch(core, [0, 9], []) == [OUTCOME]
    assert fetch(core, [0, 9], []) == []
    assert not core._held


def test_g7_an_announced_outcome_that_nobody_wants_is_dropped():
    core = announcing()
    assert fetch(core, [1, 2], [0, 1]) == []
    assert beat(core) == messages.Beat(b"", 2, 1, [], {})
    assert fetch(core, [0, 1], []) == []


# -- parked outcomes -------------------------------------------------------------


def holding(count: int) -> tuple[WorkerCore, list[Any]]:
    """A worker that may hold two of the large outcomes; what it says of each."""
    core = WorkerCore(LIFE, limits=ServerLimits(announce_bytes=10, worker_held_bytes=40))
    said = []
    for number in range(count):
        dispatch(core, number)
        said.append(core.take(OutcomeMade(number, Status.RESULT, bytes(20), 1.5))[1:])
    return core, said


def test_g8_outcomes_that_wait_for_room_took_memory_without_bound():
    core, said = holding(4)
    assert said == [[], [], [Park(2, bytes(20))], [Park(3, bytes(20))]]
    core.take(OutcomeParked(2, memoryview(bytes(20))))
    core.take(OutcomeParked(3, memoryview(bytes(20))))
    assert core.held_bytes == 40
    (sent,) = hear(core, messages.Fetch([2, 3], []))
    assert type(sent.frames[-1]) is memoryview
    assert fetch(core, [], [0, 4]) == []
    assert core.held_bytes == 0


def test_an_outcome_that_cannot_be_parked_stays_where_it_is():
    core, _ = holding(3)
    (sent,) = hear(core, messages.Fetch([2, 3], []))
    assert sent.frames[-1] == bytes(20)
    assert core.held_bytes == 40
    fetch(core, [], [0, 3])
    assert core.held_bytes == 0
    core.take(OutcomeParked(2, b"it is forgotten already"))
    assert core.held_bytes == 0


# -- failures that servers of this kind are known for ----------------------------


def test_failure_01_request_delivered_to_the_replacement_is_dispatched_again():
    """A dispatch that outlived its worker in some socket reaches the replacement,
    beside the new dispatch of the same request: two starts.

    Here a worker's id, and so its address, is of one life only; and should it arrive
    all the same, the replacement runs no dispatch of another incarnation (G5).
    """
    pair = Pair(rerun=True)
    for _ in range(3):  # so that the numbers of the two dispatches differ
        call = pair.submit()
        pair.end()
        pair.receive(call)
    pair.runs.clear()
    left: list[messages.Message] = []
    pair.lose = lambda message: isinstance(message, Dispatch) and not left.append(message)  # type: ignore[func-returns-value]  # that is nothing
    call = pair.submit(b"once")
    in_a_socket = RouterMessage(
        (pair.workers[FIRST].incarnation, messages.encode(left[0]), b"once")
    )
    pair.lose = lambda message: False

    pair.die(FIRST)
    assert REPLACEMENT in pair.workers
    pair.work(REPLACEMENT, pair.workers[REPLACEMENT].take(in_a_socket))
    pair.settle()

    assert [(worker, run.body) for worker, run in pair.runs] == [(REPLACEMENT, b"once")]
    pair.end()
    assert pair.result(call) == b"outcome"


def test_what_is_said_of_one_client_shares_batches_and_keeps_its_order():
    def outcome(number: int, client: str) -> ToRouter:
        said = messages.WorkerOutcome(b"s" * 16, number, number, 0, None)
        return ToRouter(LIFE, said, b"%d" % number, client)

    beat = ToRouter(LIFE, messages.Beat(b"", 1, 0, [], {}))
    said = [outcome(0, "a"), outcome(1, "a"), beat, outcome(2, "a"), outcome(3, "b")]
    frames = list(frames_to_router(said))
    assert [each[:-2] for each in frames if len(each) == 4] == [
        (LIFE, b"a"), (LIFE, b"a"), (LIFE, b"b")
    ]  # fmt: skip
    assert frames[1] == beat.frames == (LIFE, messages.encode(beat.message))
    assert frames[2:] == [said[3].frames, said[4].frames]
    assert [body for _, body in messages.read([*map(whole, frames[0][2:])], most_bytes=1000)] == [
        b"0",
        b"1",
    ]
    assert list(frames_to_router([])) == []


# -- What a worker sends of its executions before their outcomes ---------------


def running(*numbers: int) -> WorkerCore:
    """A worker at these dispatches."""
    core = worker()
    for number in numbers:
        dispatch(core, number)
    return core


def deltas_of(core: WorkerCore, number: int, piece: bytes = b"piece") -> list[int]:
    """The numbers of the deltas that are sent."""
    found = []
    for effect in core.take(DeltaMade(number, piece)):
        life, client, header, body = effect.frames  # type: ignore[union-attr]  # else it raises
        message = decoded((header,))
        assert isinstance(message, messages.WorkerDelta)
        assert (life, client, body) == (LIFE, b"me", piece)
        assert message[:3] == (SESSION, 100 + number, number)
        found.append(message.delta)
    return found


def test_deltas_are_numbered_for_each_dispatch_those_that_were_dropped_before_too():
    core = running(0, 1)
    assert [deltas_of(core, number) for number in (0, 0, 1, 0)] == [[0], [1], [0], [2]]
    assert len(core.take(DeltaMade(0, b"after three others", skipped=3))) == 1
    assert [deltas_of(core, number) for number in (0, 1)] == [[7], [1]]


def test_what_an_execution_has_said_is_forgotten_with_its_outcome_and_not_before():
    core = running(0, 1)
    for number in (0, 1):
        deltas_of(core, number)
        core.take(NoteMade(number, b"note"))
    core.take(OutcomeMade(0, Status.RESULT, b"outcome", 1.0))
    assert ([*core._deltas], [*core._notes._last], core._stateful) == ([1], [1], {1})
    core.take(OutcomeMade(1, Status.RESULT, b"outcome", 1.0))
    assert (core._deltas, core._notes._last, core._stateful) == ({}, {}, set())


def test_nothing_is_said_of_what_has_ended_or_is_to_stop():
    core = running(0, 1)
    core.take(OutcomeMade(0, Status.RESULT, b"outcome", 1.0))
    hear(core, messages.Stop([1, 2]))
    assert [deltas_of(core, number) for number in (0, 1, 2)] == [[], [], []]
    assert core._deltas == {}


def test_what_is_too_large_is_not_sent_and_takes_its_number():
    core = running(0)
    assert deltas_of(core, 0, bytes(DELTA_BYTES)) == [0]
    assert deltas_of(core, 0, bytes(DELTA_BYTES + 1)) == []
    assert deltas_of(core, 0) == [2]


def test_g8_no_more_is_sent_than_leaves_the_process():
    core = running(0, 1)
    size_bytes = DELTA_BYTES // 2
    most = DELTAS_BYTES // (size_bytes + DELTA_RECORD_BYTES)
    sent = sum(len(deltas_of(core, number % 2, bytes(size_bytes))) for number in range(2 * most))
    assert sent == most
    core.take(BeatDue({}, has_left=False))
    assert deltas_of(core, 0, bytes(size_bytes)) == []
    core.take(BeatDue({}))
    assert deltas_of(core, 0, bytes(size_bytes)) == [most + 1]


def test_g8_empty_deltas_that_were_said_by_the_million_were_all_sent():
    core = running(0)
    most = DELTAS_BYTES // DELTA_RECORD_BYTES
    assert sum(len(deltas_of(core, 0, b"")) for _ in range(most + 100)) == most


# -- which notes leave with a beat, and how many ----------------------------------------


def notes_of_beat(core: WorkerCore, *, has_left: bool = True) -> list[dict[int, bytes]]:
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
    assert notes_of_beat(core) == [{0: b"two", 1: b"other"}]
    assert notes_of_beat(core) == []
    core.take(NoteMade(1, b"more"))
    assert notes_of_beat(core) == [{1: b"more"}]


def test_nothing_is_noted_of_what_has_ended_or_is_to_stop():
    core = running(0, 1)
    core.take(NoteMade(0, b"one"))
    core.take(OutcomeMade(0, Status.RESULT, b"outcome", 1.0))
    core.take(NoteMade(0, b"late"))
    hear(core, messages.Stop([1, 2]))
    core.take(NoteMade(1, b"one"))
    assert notes_of_beat(core) == []


def test_g8_no_notes_leave_before_earlier_messages_have():
    core = running(0)
    for number in range(1000):
        core.take(NoteMade(0, b"%d" % number))
    assert notes_of_beat(core, has_left=False) == []
    assert notes_of_beat(core) == [{0: b"999"}]


def test_g8_no_more_leaves_with_one_beat_than_64_kib_and_the_rest_with_later_ones():
    core = running(*range(200))
    for number in range(200):
        core.take(NoteMade(number, bytes(NOTE_BYTES)))
    seen: set[int] = set()
    while told := notes_of_beat(core):
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


# -- saves: one at a time ---------------------------------------------------------------

SAVE = messages.WorkerSave(SESSION, 100, 0, 1)


def test_saves_of_a_dispatch_are_numbered_from_1_and_end_with_their_answers():
    core = worker()
    for number in (0, 1):
        dispatch(core, number)
    assert [said_by(each) for each in core.take(SaveMade(0, b"one"))] == [SAVE]
    assert hear(core, messages.SaveAnswer(0, 1, "")) == [SaveEnded(0, "")]
    (sent,) = core.take(SaveMade(0, b"two"))
    assert said_by(sent) == SAVE._replace(save=2)
    assert sent.frames[-1] == b"two"  # type: ignore[union-attr]  # said_by has looked
    (other,) = core.take(SaveMade(1, b"one"))
    assert said_by(other) == messages.WorkerSave(SESSION, 101, 1, 1)
    assert hear(core, messages.SaveAnswer(0, 2, "why")) == [SaveEnded(0, "why")]


def test_a_save_of_what_has_ended_or_is_to_stop_is_refused_at_once():
    core = worker()
    assert core.take(SaveMade(0, b"one")) == [SaveEnded(0, ENDED)]
    dispatch(core, 0)
    hear(core, messages.Stop([0, 1]))
    assert core.take(SaveMade(0, b"one")) == [SaveEnded(0, ENDED)]


def test_an_outcome_ends_its_saves():
    core = worker()
    dispatch(core, 0)
    core.take(SaveMade(0, b"one"))
    core.take(OutcomeMade(0, Status.RESULT, b"", 0.0))
    assert hear(core, messages.SaveAnswer(0, 1, "")) == []


@pytest.mark.parametrize(
    ("saved_bytes", "body", "saved"),
    [(None, b"body", None), (0, b"body", b""), (3, b"b", b"ody"), (99, b"", b"body")],
)
def test_a_dispatch_has_the_state_at_its_end(
    saved_bytes: int | None, body: bytes, saved: bytes | None
):
    core = worker()
    message = messages.Dispatch(SESSION, 100, 0, "me", saved_bytes=saved_bytes)
    (run,) = hear(core, message, b"body")
    assert isinstance(run, BeginRun)
    assert (run.body, run.saved) == (body, saved)
