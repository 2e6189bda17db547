"""The router's side of the worker link, against real worker cores."""

from __future__ import annotations

from itertools import product
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages
from trio_envserve.core.client import Answer
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.messages import KINDS, Dispatch, WorkerHello, WorkerOutcome
from trio_envserve.core.pool import Phase
from trio_envserve.core.router_inputs import (
    CloseAsked,
    Exited,
    HeartbeatReceived,
    HolderFound,
    WorkerMessage,
)
from trio_envserve.core.terms import RequestId, Status, Verdict
from trio_envserve.core.worker import BeatDue, OutcomeMade, SetUpFailed, ToRouter
from trio_envserve.core.workforce import DIFFERENCE_BYTES, DIFFERS, UNREAD_BEATS

from .helpers import Pair, identifier, kinds

WORKER = b"w0-1"


def worker_outcome(pair: Pair, **changed: Any) -> messages.WorkerOutcome:
    return messages.WorkerOutcome(pair.session.id, 0, 0, 0, 1.0)._replace(**changed)


# -- G5: fenced ---------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        messages.WorkerHello(2, 1, "other", True, 256), messages.Beat(b"", 1, 0, [], {"a": 1}),
        messages.WorkerBroken({"message": "x"}),
        messages.WorkerOutcome(identifier(1), 0, 0, 0, 1.0),
    ],
    ids=lambda message: type(message).__name__,
)  # fmt: skip
def test_g5_another_incarnation_changes_nothing(message):
    pair = Pair.asked()
    before = pair.router.stats()
    body = (b"lie",) if isinstance(message, messages.WorkerOutcome) else ()
    for worker, life in ((WORKER, identifier(555)), (b"nobody", identifier(1))):
        pair.from_worker(message, *body, worker=worker, incarnation=life)
    assert pair.answers == []
    assert pair.router.stats() == {**before, "fenced": 2}


def test_g5_the_old_life_of_a_slot_cannot_speak_for_the_new_one():
    pair = Pair.asked()
    old = pair.workers[WORKER]
    run = pair.runs[0][1]
    pair.die()
    pair.advance(1.0)
    for effect in old.take(OutcomeMade(run.number, Status.RESULT, b"late", 1.0)):
        pair.give(WorkerMessage((WORKER, *effect.frames), pair.now_s))  # type: ignore[union-attr]
        pair.give(WorkerMessage((b"w0-2", *effect.frames), pair.now_s))  # type: ignore[union-attr]
    pair.settle()
    assert pair.failure().code == "worker-lost"
    assert (len(pair.answers), pair.router.workforce.fenced) == (1, 2)


def test_an_outcome_before_any_hello_is_fenced():
    pair = Pair(hello=False)
    pair.from_worker(messages.WorkerOutcome(identifier(1), 0, 0, 0, None), b"payload")
    pair.from_worker(messages.Beat(b"", 1, 0, [], {}))
    pair.from_worker(messages.Announced(identifier(1), 0, 0, 10))
    assert pair.router.workforce.fenced == 2
    assert not pair.router.workforce.workers


# -- batches -------------------------------------------------------------------


def test_a_row_that_says_what_cannot_be_harms_no_other():
    pair = Pair()
    for body in (b"a", b"b", b"c"):
        pair.submit(body)
    session = pair.session.id
    rows: list[messages.MessageRow] = [
        (WorkerOutcome(session, number, number, 0, 1.0), b"%d" % number) for number in range(3)
    ]
    rows[1] = (WorkerOutcome(session, 7, 1, 0, 1.0), b"of another request")
    rows.append((WorkerOutcome(session, 2, 9, 0, 1.0), b"of no dispatch"))
    rows.append((WorkerOutcome(identifier(9), 2, 8, 0, 1.0), b"of no session"))
    rows.append((WorkerOutcome(session, 1, 1, 3, 1.0), b"of a status that nobody knows"))
    ((header, bodies),) = messages.in_batches(rows)
    frames = (WORKER, pair.workers[WORKER].incarnation, b"test", header, bodies)
    pair.router_takes(WorkerMessage(frames, pair.now_s))
    answers = [each for each in pair.answers if isinstance(each, Answer)]
    assert [(each.call, bytes(each.body)) for each in answers] == [(0, b"0"), (2, b"2")]
    assert (pair.router.malformed, pair.router.workforce.strays) == (2, 2)
    assert [*pair.router.workforce.workers[WORKER].live] == [1]
    texts = [each.text for each in pair.reports]
    assert sum("is of another request" in text for text in texts) == 2  # and why it is ended


# -- malformed ----------------------------------------------------------------
# A rollout changed a library in its worker, whose headers were junk from then on.  The router
# counted them, the worker stayed ready, and its callers, and all that were sent to it later,
# waited for ever.


def junk(pair: Pair) -> dict[str, tuple[bytes, ...]]:
    """What is no message, under a worker's name, by what is wrong with it."""
    life, outcome = pair.workers[WORKER].incarnation, messages.encode(worker_outcome(pair))
    beat = messages.encode(messages.Beat(b"", 1, 0, [], {}))

    def of(**changed: Any) -> tuple[bytes, ...]:
        return (WORKER, life, b"c", messages.encode(worker_outcome(pair, **changed)), b"p")

    return {
        "nothing": (WORKER,),
        "no header": (WORKER, life),
        "another name of it": (WORKER, b"junk", beat),
        "a spoilt header": (WORKER, life, b"\xff"),
        "a header cut short": (WORKER, life, beat[:-1]),
        "an unknown kind": (WORKER, life, cbor2.dumps([PROTOCOL_VERSION, 200, 1])),
        "an outcome without a body": (WORKER, life, outcome),
        "a beat with a body": (WORKER, life, b"c", beat, b"body"),
        "a set-up that failed": (WORKER, life, messages.encode(messages.WorkerBroken({}))),
        "a client's message": (WORKER, life, messages.encode(messages.Goodbye(identifier(1)))),
        "another request of the session": of(sequence=9),
        "another session": of(session=identifier(9)),
        "an unknown status": of(status=9),
        "notes of other dispatches": (
            WORKER, life, messages.encode(messages.WorkerNotes([0, 2], [b"\xa0"]))
        ),
    }  # fmt: skip


JUNK = tuple(junk(Pair.asked()))


@pytest.mark.parametrize("kind", JUNK)
def test_g9_a_worker_whose_messages_are_malformed_is_ended_and_nobody_waits(kind: str):
    pair = Pair.asked()
    pair.router_takes(WorkerMessage(junk(pair)[kind], pair.now_s))
    assert pair.router.malformed == 1
    [kill] = pair.kills
    assert (kill.worker, kill.why.startswith("it sent a malformed message")) == (WORKER, True)
    assert pair.answers == []  # a kill is no proof (G1)
    pair.submit()
    assert len(pair.runs) == 1  # nothing goes to who is about to die
    pair.die(WORKER)
    assert pair.verdict() == ("worker-lost", Verdict.MAY_HAVE_RUN)
    pair.end()
    assert pair.last().call == 1


def test_a_worker_that_speaks_junk_on_is_killed_once():
    pair = Pair.asked()
    for frames in junk(pair).values():
        pair.give(WorkerMessage(frames, pair.now_s))
    pair.settle()
    assert (pair.router.malformed, len(pair.kills)) == (len(JUNK), 1)
    pair.end()  # what it had said well before it is reaped counts (G4)
    assert len(pair.answers) == 1


def test_a_worker_that_said_again_and_again_that_its_set_up_failed_filled_the_log():
    pair = Pair(hello=False)
    for _ in range(1000):
        pair.from_worker(messages.WorkerBroken({"message": "no descriptors left"}))
    assert sum("failed to set up" in each.text for each in pair.reports) == 1
    assert pair.kills == []  # it exits by itself, or is killed as one that does not start


def test_junk_before_the_hello_counts_as_a_start_that_failed():
    pair = Pair(hello=False, server={"broken_after": 1, "restart_pause_max_s": 0.1})
    call = pair.submit()
    frames = (WORKER, pair.workers[WORKER].incarnation, b"junk")
    pair.router_takes(WorkerMessage(frames, pair.now_s))
    pair.die(WORKER)
    assert "malformed message" in pair.failure().message
    assert pair.last().call == call


# -- mute -----------------------------------------------------------------------
# A rollout changed the name under which its worker speaks: 16 other bytes.  What it said was
# fenced, as that of an earlier incarnation is, so that it was neither heard nor ended: its calls
# waited, and it was given more as it had room.


def heartbeats(pair: Pair, seconds: float, *, lag_s: float = 0.0) -> None:
    for _ in range(int(seconds * 4)):
        pair.give(HeartbeatReceived(WORKER, pair.now_s, lag_s, 1 << 20, "somewhere"))
        pair.advance(0.25)


def under_another_name(pair: Pair) -> tuple[bytes, ...]:
    return (WORKER, identifier(99), messages.encode(messages.Beat(b"", 1, 0, [], {})))


@pytest.mark.parametrize("speaks", [True, False])
def test_g9_a_worker_that_speaks_under_another_incarnation_was_fed_for_ever(speaks: bool):
    pair = Pair.asked()
    for _ in range(60):
        if speaks:
            pair.give(WorkerMessage(under_another_name(pair), pair.now_s))
        heartbeats(pair, 1)
    fed = len(pair.runs)
    pair.submit()
    assert len(pair.runs) == fed  # nothing goes to who says nothing
    heartbeats(pair, 5)
    [kill] = pair.kills
    assert kill.why.startswith("it sent no message for 6")
    [report] = [each.text for each in pair.reports if "has sent no message" in each.text]
    assert "has sent no message for 5.0 s although its event loop runs" in report
    assert pair.answers == []  # a kill is no proof (G1)
    pair.die(WORKER)
    assert pair.verdict() == ("worker-lost", Verdict.MAY_HAVE_RUN)
    pair.advance(1.0)
    pair.end()
    assert pair.last().call == 1


def test_g5_an_earlier_incarnation_does_not_end_the_present_one():
    pair = Pair.asked()
    for _ in range(100):
        pair.give(WorkerMessage(under_another_name(pair), pair.now_s))
        pair.beat()
        heartbeats(pair, 1)
    assert (pair.kills, pair.router.workforce.fenced) == ([], 100)


def test_g9_a_blocked_or_stopped_worker_is_not_taken_for_mute():
    pair = Pair.asked(server={"silence_kill_s": 20.0})
    heartbeats(pair, 300, lag_s=3.0)
    pair.advance(19.0)  # stopped, nearly for too long
    heartbeats(pair, 9)  # and its loop is on time before it is heard
    assert pair.kills == []


def test_g9_a_worker_was_killed_as_mute_whose_loop_was_late_and_not_yet_blocked():
    pair = Pair.asked(server={"silence_kill_s": 20.0, "blocked_report_s": 100.0})
    for lag_s in range(99):
        heartbeats(pair, 1, lag_s=float(lag_s))
    assert pair.kills == []


def test_g9_a_worker_that_is_heard_again_gets_work_again():
    pair = Pair.asked()
    heartbeats(pair, 50)
    pair.submit()
    before = len(pair.runs)
    pair.beat()
    heartbeats(pair, 50)
    assert (len(pair.runs), pair.kills) == (before + 1, [])


spoilt = st.builds(
    lambda message, at, bits: (
        lambda whole: whole[: at % len(whole)] + bytes([bits]) + whole[at % len(whole) + 1 :]
    )(messages.encode(message)),
    st.sampled_from([
        messages.Beat(b"", 1, 1, [0, 1], {"running": 1}),
        messages.WorkerHello(2, 1, "env", False, 256), messages.Announced(identifier(1), 0, 0, 5),
        WorkerOutcome(identifier(1), 0, 0, 0, 1.0), messages.WorkerNotes([0, 1], [b"\xa0"]),
    ]),
    st.integers(0, 1000), st.integers(0, 255),
)  # fmt: skip
frame = st.binary(max_size=40) | spoilt


@given(st.lists(st.lists(frame, max_size=4), min_size=1, max_size=4))
def test_g9_no_junk_of_a_worker_leaves_a_call_waiting(said: list[list[bytes]]):
    """Whatever it says, it is ended, or the router has understood it and it goes on."""
    pair = Pair(rerun=True)
    pair.submit(b"neighbour", max_executions=2)
    life = pair.workers[WORKER].incarnation
    for frames in said:
        pair.give(WorkerMessage((WORKER, life, *frames), pair.now_s))
    pair.settle()
    assert bool(pair.kills) == bool(pair.router.malformed)
    if pair.kills:
        pair.die(WORKER)
        pair.advance(1.0)
    pair.submit(b"later")
    for run in list(pair.runs):
        if run[0] in pair.workers:
            pair.end(run)
    pair.beat()
    assert {each.call for each in pair.answers} == {0, 1}


# -- differences ---------------------------------------------------------------


@pytest.mark.parametrize(
    "beat",
    [
        messages.Beat(b"", 1, 1, [], {}),  # a dispatch is lost
        messages.Beat(b"", 1, 1, [0, 2], {}),  # one that was never sent runs
        messages.Beat(b"", 0, 1, [0, 1], {}),  # or one that has not arrived
        messages.Beat(b"", 2, 1, [0, 1], {}),  # more was heard than said
        messages.Beat(b"", 1, 2, [0, 1], {}),  # something was said, and has not come
        messages.Beat(b"", 1, 0, [0, 1], {}),  # or has come, and was not said
        messages.Beat(b"e" * 16, 1, 1, [0, 1], {}),  # from another router
        messages.Beat(b"", 1, 1, [0, 2**62], {}),
    ],
    ids=[
        "lost",
        "unknown",
        "early",
        "too many",
        "unheard",
        "unsaid",
        "another router",
        "hostile",
    ],
)
def test_g1_a_worker_whose_beat_differs_is_killed(beat: messages.Beat):
    pair = Pair.asked()
    pair.beat()
    assert pair.kills == []
    pair.from_worker(beat)
    pair.settle()
    [kill] = pair.kills
    assert kill.why.startswith(DIFFERS)
    assert len(kill.why) <= DIFFERENCE_BYTES
    assert pair.router.stats()["differences"] == 1
    [report] = [each.text for each in pair.reports if DIFFERS in each.text]
    assert "and should have Ranges" in report
    pair.from_worker(beat)
    assert pair.router.stats()["differences"] == 1, "it is about to die"
    assert pair.answers == []  # a kill is no proof (G1)
    pair.die(WORKER)
    assert pair.verdict() == ("worker-lost", Verdict.MAY_HAVE_RUN)


def test_g1_a_beat_that_crosses_a_dispatch_and_an_outcome_does_not_differ():
    pair = Pair.asked()
    core = pair.workers[WORKER]
    before = core.take(BeatDue({}))
    pair.submit()
    pair.work(WORKER, before)
    outcome = core.take(OutcomeMade(0, Status.RESULT, b"outcome", 1.0))
    pair.work(WORKER, [*outcome, *core.take(BeatDue({}))])
    pair.settle()
    assert pair.kills == []


def test_g9_a_message_that_never_arrives_ends_its_worker():
    """The last one: no later one shows that it is missing."""
    pair = Pair.asked()
    life = pair.router.pool.lives[WORKER]
    for life.under_way in (*[False] * (UNREAD_BEATS - 1), True, *[False] * UNREAD_BEATS):
        assert pair.kills == []
        pair.now_s += 1.0
        pair.from_worker(messages.Beat(b"", 0, 1, [], {}))
    assert "0 of 1 messages have come there" in pair.kills[0].why


def test_g10_beats_that_a_stopped_server_finds_together_say_nothing_of_what_it_sends_now():
    """Sixty of them, behind an outcome that freed its worker for the next dispatch, killed it."""
    pair = Pair(server={"worker_capacity": 1})
    pair.submit(), pair.submit()
    pair.beat()
    core = pair.workers[WORKER]
    waiting = core.take(OutcomeMade(0, Status.RESULT, b"outcome", 1.0))
    waiting += [each for _ in range(2 * UNREAD_BEATS) for each in core.take(BeatDue({}))]
    pair.now_s += 2 * UNREAD_BEATS
    for each in waiting:
        assert isinstance(each, ToRouter)
        pair.give(WorkerMessage((WORKER, *each.frames), pair.now_s))
    pair.settle()
    assert (len(pair.runs), pair.kills) == (2, [])


def test_g1_a_beat_that_hears_less_than_the_one_before_differs():
    pair = Pair.asked()
    pair.beat()
    pair.end()
    pair.from_worker(messages.Beat(b"", 0, 2, [], {}))
    assert len(pair.kills) == 1


# -- outcomes ------------------------------------------------------------------


def test_work_was_dispatched_at_the_hello_to_a_host_that_may_not_hear():
    """Until the next tick: it waited there until the host was lost."""
    pair = Pair(hello=False)
    life = pair.router.pool.lives[WORKER]
    life.held = True
    pair.from_worker(messages.WorkerHello(2, 5, "env", True, 256))
    pair.submit()
    assert pair.runs == []
    life.held = False
    pair.advance(0.5)
    assert len(pair.runs) == 1


def test_a_hello_of_a_life_that_ends_gets_no_work():
    pair = Pair(hello=False)
    pair.give(CloseAsked(pair.now_s, ClosingStage.KILLING))
    pair.from_worker(messages.WorkerHello(2, 5, "env", True, 256))
    assert not pair.router.workforce.workers


# -- time ---------------------------------------------------------------------


def test_a_worker_that_ignores_a_cancel_gets_no_new_work_and_is_killed_with_nothing_else_left():
    pair = Pair(server={"cancel_grace_s": 2.0, "cancel_kill_s": 9.0}, workers=1)
    pair.submit(b"stubborn")
    pair.submit(b"honest")
    pair.cancel(0)
    pair.advance(3.0)
    pair.submit(b"waits")
    assert [run.body for _, run in pair.runs] == [b"stubborn", b"honest"]
    assert pair.kills == []
    pair.end(pair.runs[1])
    pair.advance(0.5)
    assert [kill.worker for kill in pair.kills] == [WORKER]
    pair.die(WORKER)
    pair.advance(2.0)
    assert [(w, run.body) for w, run in pair.runs][2:] == [(b"w0-2", b"waits")]


def test_g9_a_worker_was_killed_for_a_cancel_of_which_its_host_could_not_hear():
    """And what else ran there was lost with it."""
    pair = Pair.asked(server={"cancel_grace_s": 2.0, "cancel_kill_s": 9.0})
    pair.submit()
    life = pair.router.pool.lives[WORKER]
    life.held = True
    pair.cancel(0)
    pair.advance(60.0)
    life.held = False
    pair.advance(8.0)
    assert pair.kills == []
    pair.advance(1.5)
    assert len(pair.kills) == 1


def test_a_worker_is_replaced_after_so_many_executions_once_it_has_none():
    pair = Pair.asked(server={"recycle_executions": 2})
    pair.submit()
    pair.advance(0.5)
    assert pair.router.pool.lives[WORKER].phase is Phase.RETIRING
    pair.end(pair.runs[0])
    pair.advance(0.5)
    assert pair.exits == []
    pair.end(pair.runs[1])
    pair.advance(0.5)
    assert pair.exits == [WORKER]
    assert b"w0-2" in pair.workers
    assert [r.text for r in pair.reports if "retires" in r.text]


def test_g1_executions_are_lost_only_with_a_reaped_process():
    pair = Pair.asked()
    pair.router.workforce.turnover.kill_all(pair.now_s)
    pair.advance(1.0)
    assert pair.answers == []
    pair.router_takes(Exited(WORKER, pair.now_s, "signal 9"))
    assert pair.answers == []
    pair.advance(0.5, step_s=0.1)
    assert pair.failure().verdict is Verdict.MAY_HAVE_RUN


def test_g2_workers_that_die_together_cost_a_request_one_execution():
    """All its executions went to workers that were dead, and whose ends were not told yet."""
    pair = Pair.asked(workers=6, rerun=True)
    first = pair.runs[0][0]
    dead = sorted(pair.workers, key=lambda each: each != first)
    for worker in dead:
        pair.router_takes(Exited(worker, pair.now_s, "signal 9"))
    pair.advance(0.5, step_s=0.1)
    assert [worker in dead for worker, _ in pair.runs] == [True, False]
    pair.end()
    assert pair.last().body == b"outcome"  # type: ignore[union-attr]


def test_what_a_dead_process_had_already_sent_is_taken_in():
    pair = Pair.asked()
    pair.give(Exited(WORKER, pair.now_s, "signal 9"))
    pair.end(payload=b"sent before")
    pair.advance(0.5, step_s=0.1)
    assert pair.last().body == b"sent before"  # type: ignore[union-attr]
    assert len(pair.answers) == 1


def test_stop_retires_the_ready_and_kills_the_starting():
    pair = Pair.asked(workers=2)
    life = pair.router.pool.lives[b"w1-1"]
    life.phase = Phase.STARTING
    pair.close()
    assert [kill.worker for kill in pair.kills] == [b"w1-1"]
    pair.give(CloseAsked(pair.now_s, ClosingStage.KILLING))
    assert pair.router.pool.lives[WORKER].phase is Phase.ENDING
    pair.router_takes(Exited(WORKER, pair.now_s, "signal 9"))
    pair.give(CloseAsked(pair.now_s, ClosingStage.KILLING))  # of the dead, nothing
    assert not [e for e in pair.said() if getattr(e, "worker", b"") == WORKER]


def test_what_a_worker_said_of_itself_goes_with_it():
    pair = Pair.asked()
    pair.work(WORKER, pair.workers[WORKER].take(BeatDue({"running": 3})))
    assert pair.router.workforce.history.stats == {WORKER: {"running": 3}}
    pair.die(WORKER)
    assert WORKER not in pair.router.workforce.history.stats


@pytest.mark.parametrize(("traceback", "known"), [("Traceback ...", "Traceback ..."), ("", "only")])
def test_a_broken_environment_is_known_by_its_traceback(traceback: str, known: str):
    pair = Pair(hello=False)
    info = ErrorInfo("broken", Verdict.DID_NOT_RUN, "only", traceback=traceback)
    pair.work(WORKER, pair.workers[WORKER].take(SetUpFailed(info)))
    pair.settle()
    assert pair.router.pool.broken == known


# -- a worker that may start only so many ----------------------------------------
# ``recycle_executions=1`` was looked at once in a tick: in between, a worker that leaks,
# which is why it was to be replaced after each, got as many as its capacity: 50.


def test_it_gets_as_many_as_it_may_start_and_the_next_ones_go_to_its_replacement():
    pair = Pair(server={"recycle_executions": 2})
    pair.submit_many(5)
    assert [worker for worker, _ in pair.runs] == [b"w0-1"] * 2
    for count in (2, 4):
        for run in pair.runs[count - 2 : count]:
            pair.end(run)
        pair.advance(1.0)
    assert [worker for worker, _ in pair.runs] == [b"w0-1"] * 2 + [b"w0-2"] * 2 + [b"w0-3"]


# -- a worker of a foreign version -----------------------------------------------
# A worker that spoke another version was only counted, and looked as if it were
# starting until ``start_s`` had passed.


def test_work_was_dispatched_to_a_worker_that_was_just_killed_as_foreign():
    """It had been ready before."""
    pair = Pair()
    hello = cbor2.dumps([KINDS[WorkerHello], PROTOCOL_VERSION + 1, 1, "env", False])
    incarnation = pair.workers[WORKER].incarnation
    pair.give(WorkerMessage([WORKER, incarnation, hello], pair.now_s))
    pair.submit()
    assert [kill.worker for kill in pair.kills] == [WORKER]
    assert "version" in pair.kills[0].why
    assert pair.runs == []


# -- workers that are about to go ------------------------------------------------


def test_work_was_dispatched_to_a_worker_that_had_just_been_told_to_exit():
    """It was lost with that worker, in the normal course of a recycled pool."""
    pair = Pair.asked(server={"recycle_executions": 1})
    pair.end()
    pair.advance(0.1)
    assert pair.exits == [b"w0-1"]
    pair.submit()
    pair.advance(1.0)
    assert [worker for worker, _ in pair.runs] == [b"w0-1", b"w0-2"]


def test_work_was_dispatched_to_a_process_that_was_already_reaped():
    """Between its exit and the next tick: a lost execution for nothing."""
    pair = Pair()
    pair.give(Exited(b"w0-1", pair.now_s, "signal 9"))
    pair.submit()
    assert pair.runs == []
    pair.advance(1.0)
    assert [worker for worker, _ in pair.runs] == [b"w0-2"]


def test_work_was_dispatched_to_a_worker_whose_kill_was_just_decided():
    pair = Pair.asked(heartbeats=True, server={"silence_report_s": 1.0, "silence_kill_s": 1.5})
    pair.advance(2.0)
    assert len(pair.kills) == 1
    pair.submit()
    assert [worker for worker, _ in pair.runs] == [b"w0-1", b"w0-2"]


# -- failures that servers of this kind are known for ----------------------------


def test_failure_08_second_answer_for_a_finished_request_is_cached_and_forwarded():
    """A worker answers a second time for a request that is finished: the answer is
    kept, for nobody will ever acknowledge it, and sent to the client.

    Here only the live execution of a request can answer it, once (G3); FINISHED
    absorbs everything.
    """
    pair = Pair()
    call = pair.submit()
    pair.end()
    other = WorkerOutcome(pair.session.id, 0, 0, 0, 1.0), b"another outcome"
    pair.from_worker(*other)
    assert kinds(pair.told).count("Outcome") == 1

    pair.receive(call)
    pair.from_worker(*other)
    pair.advance(3.0)
    assert kinds(pair.told).count("Outcome") == 1, "forwarded"
    stats = pair.router.stats()
    assert (stats["kept"], stats["kept_bytes"]) == (0, 0), "cached"
    assert pair.result(call) == b"outcome"


def test_failure_14_send_that_fails_between_router_and_worker_is_only_logged():
    """A send fails, for a full queue or a connection that is just being made; it is
    logged, and nobody ever sends again.

    Here the stream to a worker has no queue of its own that could be full, and its end is the
    end of the worker.  Should a dispatch be lost all the same, the worker's beats show it.
    """
    pair = Pair()
    with pair.losing(Dispatch):
        pair.submit()
    assert pair.runs == []
    pair.submit()
    pair.beat()
    assert [kill.worker for kill in pair.kills] == [WORKER]


WHERE = '  File "/env.py", line 7, in hang\n'


def holder(pair: Pair, number: int, worker: bytes = WORKER) -> None:
    """A host finds that this request of the first session holds the interpreter of its worker."""
    request = str(RequestId(pair.session.id, number))
    pair.give(HolderFound(worker, pair.now_s, request, WHERE))


def test_request_that_held_the_interpreter_of_a_lost_worker_is_the_only_one_told_so():
    pair = Pair(heartbeats=True)
    guilty, beside = pair.submit(rerun=False), pair.submit(rerun=False)
    holder(pair, guilty)
    pair.silent.add(WORKER)
    pair.advance(pair.router.limits.silence_kill_s + 1.0)
    pair.die(WORKER)
    found = {number: pair.failure(number) for number in (guilty, beside)}
    assert found[guilty].code == "interpreter-held"
    assert found[beside].code == "worker-lost"
    for error in found.values():
        assert "line 7, in hang)" in error.message, error.message


def test_holder_in_a_worker_that_nobody_knows_is_ignored():
    pair = Pair(heartbeats=True)
    holder(pair, pair.submit(), b"nobody")
    assert pair.router.workforce.workers[WORKER].holder == ""


def test_holder_in_a_worker_that_is_not_ready_is_in_the_reason_of_its_end():
    pair = Pair(heartbeats=True, hello=False)
    pair.give(HolderFound(WORKER, pair.now_s, "", WHERE))
    pair.advance(pair.router.limits.silence_kill_s + 1.0)
    assert "line 7, in hang" in pair.router.pool.broken


WORDS: tuple[Any, ...] = ("beat", "unknown", 0, 1, 2)
"""Words about a worker: a sign of life, or which of two requests holds its interpreter; 2 is none
of them."""


@pytest.mark.parametrize("words", [*product(WORDS), *product(WORDS, WORDS)], ids=str)
def test_blame_is_on_whom_the_last_word_about_a_dead_worker_names(words: tuple[Any, ...]):
    pair = Pair(heartbeats=True)
    calls = [pair.submit(rerun=False) for _ in range(2)]
    for named in words:
        if named == "beat":
            pair.give(HeartbeatReceived(WORKER, pair.now_s, 0.0, 0, ""))
        elif named == "unknown":
            pair.give(HolderFound(WORKER, pair.now_s, "", WHERE))
        else:
            holder(pair, named)
    pair.die(WORKER)
    codes = [pair.failure(call).code for call in calls]
    assert codes == ["interpreter-held" if call == words[-1] else "worker-lost" for call in calls]
