"""Work: who shares it and who leaves, commands by name, generations, and outcomes on the disk."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import cbor2
import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.archive import packed_of
from trio_envserve.core.client import (
    Answer,
    CallKey,
    CallSubmitted,
    Disconnected,
    Terms,
)
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.executions import Execution
from trio_envserve.core.journal import (
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Record,
    Started,
    remains_of,
)
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.limits import KIB, KeyLimits
from trio_envserve.core.messages import Outcome, Refused, Sync, Synced
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.router_inputs import (
    AtRest,
    CloseAsked,
    Loaded,
    PoolOpened,
    Restored,
)
from trio_envserve.core.terms import RequestId, Status, Verdict
from trio_envserve.core.work import LOST_CALLERS, READS_AT_ONCE, Work, WorkInput, Works, WorkState
from trio_envserve.core.worker import EnvironmentReady

from .bench import Bench, Told, made
from .helpers import CLIENT, NAME, STRANGER, Pair, identifier, kinds, limit_keys, named
from .keyed import AtDisk, Journaled, Keyed, fail, generation, told

# -- cells of the table ------------------------------------------------------------

S, Input = WorkState, WorkInput
OUT = b"outcome"

# Of an open work client 1 waits and client 3 watches; client 2 comes to it, and client 11 is
# the caller of client 1 in a later session.


def bench_in(state: WorkState) -> tuple[Bench, Work | None]:
    """A bench whose newest work of the key is in this state."""
    bench = Bench(reads=state is S.ARCHIVED)
    if state is S.ABSENT:
        return bench, None
    if state is S.HELD:
        bench.ask(4, body=b"earlier", name=NAME)
        bench.dispatch(bench.work())
        bench.command(4, KeyAct.CANCEL, 0, sequence=1)
    if state is S.ARCHIVED:
        bench.ask(4, name=NAME)
        bench.run(bench.work())
        bench.finish(4)
        bench.wait(1.0)
        assert not bench.works.generations
    bench.ask(1, name=NAME)
    bench.attach(3)
    work = bench.works.open[NAME]
    if state in (S.RUNNING, S.COMPLETED, S.CLOSED):
        execution = bench.dispatch(work)
        if state is S.COMPLETED:
            bench.report(execution)
        if state is S.CLOSED:
            bench.command(4, KeyAct.CANCEL, work.number)
    assert work.state is state
    return bench, work


def of(bench: Bench) -> Execution:
    """The execution of the only work that has, or had, one."""
    (execution,) = bench.worker.live.values()
    return execution


def dies_with_consent(bench: Bench, work: Work) -> list[Told]:
    work.rerun, work.body = True, b"input"
    bench.accounts.hold(work.account, work.body_bytes)
    return bench.dies(of(bench))


def orphaned(bench: Bench, work: Work) -> list[Told]:
    assert bench.end(1, lost=True) == []
    return bench.wait(10.0)


def outdated(bench: Bench, work: Work) -> list[Told]:
    assert bench.finish(1) == []
    return bench.wait(100.0)


def read(bench: Bench, why: str = "") -> list[Told]:
    outcome = made()
    bench.works.loaded(0, () if why else outcome.frames, why)
    return bench.turn()


OPEN = (S.HELD, S.WAITING, S.RUNNING)
DONE = (S.COMPLETED, S.ARCHIVED)
BOTH = [(1, 0, OUT), (3, 0, OUT)]
LOST = [(1, 0, "worker-lost"), (3, 0, "worker-lost")]
CLOSED = [(1, 0, "x"), (3, 0, "x")]
"""x: whether it was started, as a code."""
HIT: dict[str, Any] = {"generation": "n", "started": "x"}
NOTHING: dict[str, Any] = {"generation": None, "started": True}
FINISHED = {**NOTHING, "finished": True}

# Input, states, what is done, what is told, and the state then.
CELLS: list[tuple[WorkInput, tuple[WorkState, ...], Any, list[Any], WorkState | None]] = [
    (Input.ASK, (S.ABSENT, *OPEN, S.ARCHIVED), lambda b, w: b.ask(2, name=NAME), [], None),
    (Input.ASK, (S.COMPLETED,), lambda b, w: b.ask(2, name=NAME), [(2, 0, OUT)], None),
    (
        Input.CLASH, (*OPEN, *DONE), lambda b, w: b.ask(2, name=NAME, body=b"other"),
        [(2, 0, "key-conflict")], None,
    ),
    (Input.ATTACH, (S.ABSENT,), lambda b, w: b.attach(2), [(2, 0, "unknown-key")], None),
    (Input.ATTACH, (*OPEN, S.ARCHIVED), lambda b, w: b.attach(2), [], None),
    (Input.ATTACH, (S.COMPLETED,), lambda b, w: b.attach(2), [(2, 0, OUT)], None),
    (Input.LEAVE, OPEN, lambda b, w: b.finish(1), [(3, 0, "x")], S.CLOSED),
    (Input.LEAVE, (*OPEN, S.ARCHIVED), lambda b, w: b.finish(3), [], None),
    (Input.LEAVE, DONE, lambda b, w: b.finish(1), [], None),
    (Input.LOSE, (*OPEN, *DONE), lambda b, w: b.end(1, lost=True), [], None),
    (Input.LOSE, (*OPEN, S.ARCHIVED), lambda b, w: b.end(3, lost=True), [], None),
    (
        Input.CANCEL, (S.ABSENT,), lambda b, w: b.command(2, KeyAct.CANCEL, b"id"),
        [(2, 0, NOTHING)], None,
    ),
    (
        Input.CANCEL, OPEN, lambda b, w: b.command(2, KeyAct.CANCEL, w.number),
        [*CLOSED, (2, 0, HIT)], S.CLOSED,
    ),
    (
        Input.CANCEL, DONE, lambda b, w: b.command(2, KeyAct.CANCEL, w.number),
        [(2, 0, FINISHED)], None,
    ),
    (
        Input.FORGET, (S.ABSENT,), lambda b, w: b.command(2, KeyAct.FORGET, b"id"),
        [(2, 0, NOTHING)], None,
    ),
    (
        Input.FORGET, OPEN, lambda b, w: b.command(2, KeyAct.FORGET, w.number),
        [*CLOSED, (2, 0, HIT)], S.CLOSED,
    ),
    (
        Input.FORGET, (S.COMPLETED,), lambda b, w: b.command(2, KeyAct.FORGET, w.number),
        [(2, 0, HIT)], S.CLOSED,
    ),
    (
        Input.FORGET, (S.ARCHIVED,), lambda b, w: b.command(2, KeyAct.FORGET, w.number),
        [*CLOSED, (2, 0, HIT)], S.CLOSED,
    ),
    (
        Input.QUIT, OPEN, lambda b, w: b.command(11, KeyAct.LEAVE, None),
        [*CLOSED, (11, 0, HIT)], S.CLOSED,
    ),
    (
        Input.QUIT, (*OPEN, *DONE), lambda b, w: b.command(2, KeyAct.LEAVE, None),
        [(2, 0, NOTHING)], None,
    ),
    (
        Input.QUIT, DONE, lambda b, w: b.command(11, KeyAct.LEAVE, None),
        [(11, 0, NOTHING)], None,
    ),
    (Input.RELEASE, (S.HELD,), lambda b, w: b.report(of(b)), [], S.WAITING),
    (Input.DISPATCH, (S.WAITING,), lambda b, w: b.dispatch(w) and [], [], S.RUNNING),
    (Input.REPORT, (S.RUNNING,), lambda b, w: b.report(of(b)), BOTH, S.COMPLETED),
    (Input.REPORT, (S.CLOSED,), lambda b, w: b.report(of(b)), [], None),
    (Input.DEAD, (S.RUNNING,), lambda b, w: b.dies(of(b)), LOST, S.COMPLETED),
    (Input.DEAD, (S.RUNNING,), dies_with_consent, [], S.WAITING),
    (Input.DEAD, (S.CLOSED,), lambda b, w: b.dies(of(b)), [], None),
    (Input.ANSWER, (S.WAITING,), lambda b, w: b.answer(w), LOST, S.CLOSED),
    (Input.ANSWER, (S.RUNNING,), lambda b, w: b.answer(w), LOST, S.COMPLETED),
    (Input.ORPHANED, OPEN, orphaned, [(3, 0, "x")], S.CLOSED),
    (Input.ORPHANED, DONE, orphaned, [], None),
    (Input.OUTDATED, (S.COMPLETED,), outdated, [], S.CLOSED),
    (Input.OUTDATED, (S.ARCHIVED,), outdated, [(3, 0, "x")], S.CLOSED),
    (Input.READ, (S.ARCHIVED,), lambda b, w: read(b), BOTH, S.COMPLETED),
    (
        Input.UNREAD, (S.ARCHIVED,), lambda b, w: read(b, "it is not there"),
        [(1, 0, "not-durable"), (3, 0, "not-durable")], None,
    ),
]  # fmt: skip
LATE = {(Input.REPORT, S.COMPLETED), (Input.DEAD, S.COMPLETED)}
"""Its execution is still being stopped."""
POSSIBLE = {
    (i, s) for i, row in Works.TABLE.items() for s, cell in row.items() if cell != Works._never
}


def filled(expected: Any, work: Work | None, code: str) -> Any:
    """What is expected to be told, of this work."""
    started = code == "cancelled"
    if isinstance(expected, dict):
        values = {"n": work.number if work else None, "x": started}
        return {key: values.get(str(each), each) for key, each in expected.items()}
    if isinstance(expected, (list, tuple)):
        return type(expected)(filled(each, work, code) for each in expected)
    return code if expected == "x" else expected


@pytest.mark.parametrize(
    ("input", "state", "do", "told", "then"),
    [
        pytest.param(input, state, do, told, then, id=f"{input.value} while {state.value}")
        for input, states, do, told, then in CELLS
        for state in states
    ],
)
def test_an_input_in_a_state(input, state, do, told, then):
    bench, work = bench_in(state)
    code = "cancelled" if work is not None and work.started else "never-started"
    bench.reached.clear()
    assert do(bench, work) == filled(told, work, code)
    assert (input, state) in bench.reached
    if work is not None:
        assert work.state is (then or state)


@pytest.mark.parametrize("state", [*OPEN, *DONE, S.CLOSED])
def test_request_stands_as_its_work_until_it_has_an_answer(state):
    bench, _ = bench_in(state)
    stands = S.COMPLETED if state is S.CLOSED else state
    assert bench.session(1).standing(0) == stands.value


def test_tickets_that_count_are_told_first():
    bench, _ = bench_in(S.RUNNING)
    bench.finish(3)
    bench.ask(11, name=NAME)  # from now on the first one only looks on
    assert bench.report(of(bench)) == [(11, 0, OUT), (1, 0, OUT)]


@pytest.mark.parametrize("dead", [False, True])
def test_an_execution_that_ends_after_the_router_has_answered_changes_no_outcome(dead: bool):
    bench, work = bench_in(S.RUNNING)
    assert work is not None
    assert bench.answer(work) == LOST
    assert work.live
    assert (bench.dies(of(bench)) if dead else bench.report(of(bench))) == []
    assert bench.reached >= {(Input.DEAD if dead else Input.REPORT, S.COMPLETED)}
    assert (work.state, work.live) == (S.COMPLETED, False)
    assert bench.ask(2, name=NAME) == [(2, 0, "worker-lost")]


def test_the_orphan_deadline_of_work_that_the_router_had_answered_ended_the_server():
    """It never ran, so its outcome was not retained; and its time ran on."""
    bench, work = bench_in(S.WAITING)
    assert work is not None
    bench.end(1, lost=True)
    assert bench.answer(work) == [(3, 0, "worker-lost")]
    assert not bench.works.orphans
    assert bench.wait(10.0) == []


def test_every_cell_of_the_table_is_in_that_list_or_cannot_be():
    listed = {(input, state) for input, states, *_ in CELLS for state in states}
    assert listed | LATE == POSSIBLE
    assert {*Works.TABLE} == {*Input}
    assert all({*row} == {*S} for row in Works.TABLE.values())


@pytest.mark.parametrize(
    ("input", "state"),
    [(i, s) for i in Input for s in S if (i, s) not in POSSIBLE], ids=lambda value: value.value
)  # fmt: skip
def test_an_input_that_cannot_be_changes_nothing(input, state):
    bench, work = bench_in(state)
    before = repr(vars(bench.works))
    with pytest.raises(AssertionError, match="cannot reach"):
        bench.works.step(work, input, None)
    assert repr(vars(bench.works)) == before


# -- who asks for one key ----------------------------------------------------------


def test_g2_two_that_ask_under_one_key_start_it_once():
    pair = Keyed.asked()
    session = pair.stranger()
    pair.request(session)
    assert len(pair.runs) == 1
    pair.end(payload=b"the one")
    mine = pair.last()
    assert isinstance(mine, Answer)
    assert bytes(mine.body) == b"the one"
    theirs = pair.heard()
    assert (theirs.session, theirs.sequence, theirs.status) == (session, 0, Status.RESULT)
    assert (theirs.worker, theirs.executions) == ("w0-1", 1)


def test_g4_its_outcome_is_replayed_to_those_that_ask_later():
    pair = Keyed.asked()
    pair.end()
    pair.receive(0)
    pair.call()
    assert len(pair.runs) == 1
    assert isinstance(pair.last(), Answer)
    assert len(pair.answers) == 2
    pair.about(KeyAct.ATTACH)
    assert len(pair.answers) == 3
    assert isinstance(pair.last(), Answer)


def test_g6_another_input_under_the_key_is_a_conflict():
    pair = Keyed.asked()
    session = pair.stranger()
    pair.request(session, body=b"other")
    refused = pair.heard()
    assert (refused.code, refused.delay_s) == ("key-conflict", None)
    pair.call(body=b"other")
    assert pair.failure().code == "key-conflict"
    assert pair.failure().verdict is Verdict.DID_NOT_RUN


@pytest.mark.parametrize(
    "other",
    [{"name": KeyName(b"default", b"other")}, {"act": KeyAct.FORGET}],
    ids=str,
)
def test_g6_an_id_that_asked_something_of_another_key_was_taken_for_the_same(
    other: dict[str, Any],
):
    pair, session = Keyed.with_stranger()
    pair.request(session, 0)
    pair.request(session, 0, **other)
    assert (pair.heard().code, pair.heard().delay_s) == ("conflict", None)
    pair.end(payload=b"the first")
    assert (pair.heard().sequence, pair.heard().status) == (0, Status.RESULT)
    assert len(pair.runs) == 1


# -- who leaves ---------------------------------------------------------------


@pytest.mark.parametrize(("others", "started"), [(0, False), (1, True), (None, None)])
def test_g7_a_cancel_says_whether_it_may_have_run(
    others: int | None, started: bool | None
):  # fmt: skip
    """For another that waits, too; null of what never came."""
    pair, session = Keyed.with_stranger(ready=False)
    for sequence in range(0 if others is None else 1 + others):
        pair.request(session, sequence)
    pair.tell(messages.Cancel(session, 0), route=STRANGER)
    assert pair.heard() == messages.Cancelled(session, 0, started)
    assert len(pair.router.queue) == (others or 0)


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_passed_deadline_ended_the_work_of_a_key_that_its_caller_asked_for_again(is_ready: bool):
    """Who waits for a moment and asks again under the key ran it each time anew."""
    pair, session = Keyed.with_stranger(ready=is_ready)
    for sequence in range(3):
        pair.request(session, sequence, deadline_s=5.0)
        pair.advance(6.0)
        assert pair.heard().status is not Status.RESULT
        assert pair.verdict_of(session) is Verdict.MAY_HAVE_RUN
    (work,) = pair.router.works.generations.values()
    assert (work.number, work.executions) == (0, is_ready)


@pytest.mark.parametrize("act", [KeyAct.ASK, KeyAct.LEAVE])
def test_a_late_request_of_a_process_that_was_killed_took_the_place_of_the_next(act: KeyAct):
    """It was on its way when that had begun to wait, which was told then that it is cancelled:
    at once, or when the lease and the orphan deadline had ended."""
    pair = Keyed(server={"lease_s": 20.0})
    killed = pair.stranger(900)
    pair.request(killed, 0)
    next = pair.stranger(901)
    pair.request(next, 0)
    pair.request(killed, 1, b"" if act is KeyAct.LEAVE else b"body", act=act)
    for _ in range(9):
        pair.advance(10.0)
        pair.tell(Sync(next, pair.router.epoch, 1, 0, 1, [0, 1]), route=STRANGER)
    assert len(pair.router.sessions.known) == 2, "the lease of the one that was killed has ended"
    assert generation(pair) is WorkState.RUNNING
    assert not pair.cancels


def test_g8_retention_ends_and_the_next_ask_is_new_work():
    pair = Keyed.asked()
    pair.end()
    pair.receive(0)
    pair.advance(pair.keys.retention_s + 2.0)
    assert generation(pair) is WorkState.CLOSED
    pair.call()
    assert len(pair.runs) == 2


# -- commands -----------------------------------------------------------------


@pytest.mark.parametrize("tag", [0, None, b"id"])
def test_g4_a_cancel_of_what_has_its_outcome_drops_nothing_and_says_so(tag: int | bytes | None):
    """The outcome was dropped, also before its caller had it, and the answer said that it was
    cancelled."""
    pair = Keyed.asked()
    pair.end()
    session = pair.stranger()
    for sequence in range(2):
        pair.request(session, sequence, b"", act=KeyAct.CANCEL, tag=tag)
        said = {"generation": None, "started": True, "finished": True}
        assert pair.answered(session, sequence) == said
        if sequence == 0:
            pair.receive(0)
    assert generation(pair) is WorkState.COMPLETED
    pair.request(session, 2)
    assert pair.heard().status == Status.RESULT


@pytest.mark.parametrize("act", [KeyAct.CANCEL, KeyAct.FORGET])
def test_a_command_without_an_id_that_is_issued_again_hits_nothing(act: KeyAct):
    """The session that had it is lost, and may have carried it out: what is there now may be
    another generation."""
    pair, session = Keyed.with_stranger()
    pair.call()
    pair.request(session, 0, b"", act=act, earlier=0)
    assert (pair.heard().code, pair.heard().delay_s) == ("unknown-key", None)
    assert generation(pair) is WorkState.RUNNING
    pair.request(session, 1, b"", act=act, tag=b"id", earlier=0)
    assert generation(pair) is WorkState.CLOSED


def test_g8_commands_are_refused_for_now_at_their_bound():
    pair = Keyed()
    limit_keys(pair, commands=1)
    session = pair.stranger()
    pair.request(session, 0, b"", act=KeyAct.CANCEL, tag=b"one")
    pair.request(session, 1, b"", act=KeyAct.CANCEL, tag=b"two")
    assert (pair.heard().code, pair.heard().delay_s is None) == ("commands-full", False)


# -- generations --------------------------------------------------------------


def test_g1_the_next_generation_waits_for_the_end_of_the_last():
    pair = Keyed.asked()
    first = pair.runs[-1]
    pair.about(KeyAct.FORGET)
    pair.call()
    assert len(pair.runs) == 1
    assert generation(pair, 1) is WorkState.HELD
    pair.end(first, status=Status.CANCELLED)
    assert len(pair.runs) == 2
    assert generation(pair, 1) is WorkState.RUNNING


def test_g7_what_is_held_and_cancelled_never_starts():
    pair = Keyed.asked()
    pair.about(KeyAct.FORGET)
    pair.call()
    pair.about(KeyAct.CANCEL)
    said = pair.answers[-1]
    assert isinstance(said, Answer)
    assert cbor2.loads(said.body) == {"generation": 1, "started": False}
    pair.end(status=Status.CANCELLED)
    assert len(pair.runs) == 1


def test_g1_nothing_of_a_key_runs_beside_what_a_dying_worker_still_runs():
    pair = Keyed.asked(workers=2)
    worker = pair.runs[-1][0]
    pair.about(KeyAct.FORGET)
    pair.call()
    assert len(pair.runs) == 1
    pair.die(worker)
    assert len(pair.runs) == 2


@pytest.mark.parametrize("consent", [False, True])
def test_g2_its_worker_dies(consent: bool):
    pair = Keyed.asked(workers=2, rerun=consent)
    pair.die()
    assert len(pair.runs) == 1 + consent
    if not consent:
        assert pair.failure().code == "worker-lost"
        pair.call()  # and that is what everybody hears
        assert len(pair.runs) == 1
        assert pair.failure().code == "worker-lost"


# -- a server that was lost -------------------------------------------------------


@pytest.mark.parametrize(
    ("proven", "rerun", "runs"), [(True, True, 2), (True, False, 1), (False, True, 1)]
)
def test_g2_it_is_issued_again_only_by_proof_and_consent(proven: bool, rerun: bool, runs: int):
    pair = Keyed.asked(rerun=rerun, client={"recovery_s": 20.0})
    pair.restart(proven=proven)
    pair.advance(30.0)
    assert len(pair.runs) == runs
    if runs == 1:
        assert pair.failure().verdict is Verdict.MAY_HAVE_RUN


@pytest.mark.parametrize(("rerun", "earlier"), [(False, 1), (True, 4)])
def test_key_that_may_not_be_issued_again_is_unknown(rerun: bool, earlier: int):
    assert Bench().ask(1, name=NAME, rerun=rerun, earlier=earlier) == [(1, 0, "unknown-key")]


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("name", [None, NAME])
def test_request_of_a_lost_session_waits_for_the_consent_of_an_environment(
    name: KeyName | None, closes: bool
):
    """Also where this server takes no work in: the next one may let it run again."""
    bench = Bench()
    bench.works.environment.is_known = False
    if closes:
        bench.router.closing.enter(ClosingStage.DRAINING, 0.0)
    assert bench.ask(1, name=name, earlier=1) == [(1, 0, "early")]


def test_it_is_issued_again_once_a_worker_has_said_what_it_consents_to():
    pair = Keyed.asked(rerun=True)
    pair.auto_hello = False
    pair.restart(proven=True)
    pair.advance(5.0)
    assert len(pair.runs) == 1
    assert not pair.answers
    pair.auto_hello = True
    for worker, core in pair.workers.items():
        pair.work(worker, core.take(EnvironmentReady(1, "env", True)))
    pair.advance(5.0)
    assert len(pair.runs) == 2


@pytest.mark.parametrize("name", [None, NAME])
@pytest.mark.parametrize(("earlier", "granted"), [(None, 3), (0, 3), (3, 1)])
def test_g2_each_epoch_starts_its_part_of_the_allowance(
    earlier: int | None, granted: int, name: KeyName | None
):
    bench = Bench()
    bench.ask(1, name=name, rerun=True, allowance=4, earlier=earlier)
    assert bench.own().allowance == granted


def test_a_session_that_was_forgotten_joins_what_still_runs():
    """The client slept for longer than its lease; its work went on."""
    pair = Keyed.asked(server={"lease_s": 20.0}, client={"late_s": 1.0})
    pair.router.works.end_session(pair.session, lost=True)
    pair.advance(3.0)
    pair.end()
    assert len(pair.runs) == 1
    assert isinstance(pair.last(), Answer)
    assert not pair.router.works.generations[0].lost


# -- Keyed requests at the bounds of a server, and when it closes --------------


def test_g8_at_the_bound_of_keys_new_ones_wait_and_known_ones_do_not():
    pair = Keyed()
    limit_keys(pair, generations=2)
    session = pair.stranger()
    pair.request(session, 0)
    pair.request(session, 1, name=KeyName(b"default", b"other"))
    assert (pair.heard().code, pair.heard().delay_s is None) == ("keys-full", False)
    pair.request(session, 2)
    assert len(pair.router.works.generations[0].tickets) == 2


def test_g8_work_of_keys_has_its_share_of_the_queue():
    pair, session = Keyed.with_stranger(ready=False, server={"queue_bytes": 1000})
    pair.request(session, 0, b"a" * 400, name=KeyName(b"n", b"a"))
    pair.request(session, 1, b"b" * 400, name=KeyName(b"n", b"b"))
    assert pair.heard().code == "key-queue-full"


def test_g7_a_cancel_of_a_key_that_was_never_seen_hits_nothing_that_comes_later():
    pair, session = Keyed.with_stranger()
    pair.request(session, 0, act=KeyAct.CANCEL, tag=b"id")
    assert pair.answered(session, 0) == {"generation": None, "started": True}
    pair.call()
    pair.request(session, 1, act=KeyAct.CANCEL, tag=b"id")  # nor does a copy of it
    assert generation(pair) is WorkState.RUNNING


def test_g10_one_client_took_all_places_with_work_in_as_many_namespaces():
    pair = Keyed(server={"sessions": 20, "worker_capacity": 1})
    limit_keys(pair, namespaces=4)
    session, idle = pair.stranger(), pair.stranger(901)
    for number in range(30):
        pair.request(session, number, name=KeyName(b"%d" % number, b"key"))
    assert (pair.heard().code, pair.heard().delay_s is None) == ("key-queue-full", False)
    assert len(pair.router.accounts.at_work) == 4
    assert idle in pair.router.sessions.known
    assert pair.stranger(902) in pair.router.sessions.known
    pair.end()  # of the first: so there is room for another one
    pair.request(session, 30, name=KeyName(b"another", b"key"))
    assert len(pair.router.works.open) == 5
    assert len(pair.router.accounts.at_work) == 4


def test_g8_namespaces_of_long_ago_are_forgotten():
    pair = Keyed(keys=KeyLimits(namespaces=8, retention_s=20.0))
    for number in range(12):
        pair.call(name=KeyName(b"%d" % number, b"key"))
        pair.end()
        pair.receive(number)
        pair.advance(21.0, step_s=1.0)
    accounts = pair.router.accounts
    assert not accounts.at_work
    assert accounts.of_id == accounts.namespaces == {}


def test_g8_outcomes_have_room_before_work_is_dispatched():
    pair = Keyed(server={"worker_capacity": 1})
    limit_keys(pair, retained_bytes=1000)
    pair.call()
    pair.call(name=KeyName(b"default", b"other"))
    pair.end(payload=b"x" * 900)
    assert len(pair.runs) == 1  # until there is room
    pair.about(KeyAct.FORGET)
    assert len(pair.runs) == 1  # who was answered with it holds it
    pair.receive(0)
    assert len(pair.runs) == 2


def test_g10_an_outcome_that_many_are_answered_with_is_counted_once():
    """Who attached 16,384 times to 1 MiB, and received none, had 16 GiB counted for it, and
    others had less room."""
    pair = Keyed()
    limit_keys(pair)
    pair.call()
    pair.end(payload=b"x" * 100_000)
    session = pair.stranger()
    for number in range(50):
        pair.request(session, number, act=KeyAct.ATTACH)
    usage = pair.router.accounts.all
    assert usage.kept_count == 51
    assert usage.kept_bytes < 100_000 < usage.outcome_bytes < 101_000
    pair.about(KeyAct.FORGET)
    pair.receive(0)
    assert usage.outcome_bytes > 100_000  # others have not received it
    pair.tell(messages.Goodbye(session), route=STRANGER)
    assert usage.outcome_bytes == usage.size_bytes == 0


@pytest.mark.parametrize("running", [False, True])
def test_g9_a_server_that_closes_answers_all_that_wait(running: bool):
    pair, session = Keyed.with_stranger(ready=running)
    pair.request(session, 0)
    pair.request(session, 1)
    pair.close(drain_s=1.0)
    pair.advance(3.0)
    verdict = Verdict.MAY_HAVE_RUN if running else Verdict.DID_NOT_RUN
    assert [pair.verdict_of(session, sequence) for sequence in range(2)] == [verdict] * 2


def test_an_outcome_too_large_for_one_reaches_the_other():
    pair = Keyed.asked()
    session = pair.stranger()
    pair.router.sessions.known[session].account.message_bytes = 10
    pair.request(session)
    pair.end(payload=b"x" * 100)
    mine = pair.last()
    assert isinstance(mine, Answer)
    assert mine.status is Status.RESULT
    assert pair.heard().status == Status.ERROR
    pair.ask(session, 1)
    pair.end(payload=b"x" * 100)
    assert (pair.heard().sequence, pair.heard().status) == (1, Status.ERROR)


# -- Requests with keys, between client and router: what once went wrong there -


def full_of_keys() -> Keyed:
    """A server with room for one generation, and a client that waits with another one."""
    pair = Keyed(workers=2)
    limit_keys(pair, generations=1, namespace_share=1.0)
    pair.call(name=named(0))
    pair.call(name=named(1))
    assert len(pair.runs) == 1
    assert len(pair.client.calls.held) == 1
    return pair


def test_the_next_work_of_a_key_waited_for_ever_when_an_announced_outcome_was_not_wanted():
    pair = Keyed(server={"kept_bytes": 64 * KIB})
    fills, waits = pair.submit(b"fills what may be kept"), pair.call()
    for run in list(pair.runs):
        pair.end(run, bytes(100 * KIB))
    assert len(pair.router.announced) == 1
    pair.cancel(waits)
    pair.receive(fills)
    pair.call()
    assert len(pair.runs) == 3
    assert not pair.router.works.ending


def test_work_was_answered_again_that_its_key_had_finished_as_the_server_closed():
    pair = Keyed.asked()
    pair.give(CloseAsked(pair.now_s, ClosingStage.DRAINING))
    pair.die()
    assert len(pair.answers) == 1


def test_a_waiter_and_who_had_attached_crashed_the_server_when_they_left_together():
    pair = Keyed()
    both = [pair.call(), pair.about(KeyAct.ATTACH)]
    with pair.losing(messages.Finish):
        pair.cancel(*both)
    pair.advance(1.5)  # the next sync says it of both
    assert not pair.session.tickets
    assert len(pair.cancels) == 1


# -- calls that are refused for their keys, and the others of their client ----------------
# A window full of asks for whose keys there was no room kept back every other call of
# their client, the forget that would have made room among them; and one that no worker
# could judge yet ("early") did so alone.

WINDOW = 16


def full_window() -> Keyed:
    """A client with more asks than its window takes, all made before anything is heard, at a server
    with room for one key."""
    pair = Keyed(workers=2, server={"window": WINDOW})
    limit_keys(pair, generations=1, namespace_share=1.0)
    for number in range(3 * WINDOW):
        key = CallKey(KeyAct.ASK, named(number), input_digest(b"body", None))
        pair.give_client(CallSubmitted(pair.new_call(), b"body", pair.now_s, Terms(key=key)))
    pair.settle()
    assert len(pair.runs) == 1
    return pair


@pytest.mark.parametrize("full", [full_of_keys, full_window])
def test_asks_without_room_for_their_keys_held_up_calls_without_keys(full: Callable[[], Keyed]):
    pair = full()
    pair.submit(b"no key")
    assert [bytes(run.body) for _, run in pair.runs] == [b"body", b"no key"]


@pytest.mark.parametrize("full", [full_of_keys, full_window])
def test_asks_without_room_for_their_keys_held_up_the_forget_that_makes_room(
    full: Callable[[], Keyed],
):
    pair = full()
    pair.about(KeyAct.FORGET, named(0))
    pair.end(status=Status.CANCELLED)
    pair.advance(5.0)
    assert len(pair.runs) == 2
    assert (full is full_of_keys) == (not pair.client.calls.held)


def test_an_ask_that_came_too_early_held_up_calls_without_keys():
    pair = Keyed.asked(workers=2)
    pair.hear(messages.Refused(pair.session.id, 0, "early", "no worker has said it", 60.0))
    pair.submit(b"no key")
    assert [bytes(run.body) for _, run in pair.runs] == [b"body", b"no key"]


def left(records: list[Record], **how: Any) -> AtDisk:
    """Another server with what a journal has."""
    other = AtDisk(ready=False, **how)
    other.auto_hello = True
    remains = remains_of(records)
    done = [each for each in remains.generations.values() if each.frames is not None]
    open_ = [
        each for each in records
        if getattr(each, "number", None) not in {one.opened.number for one in done}
    ]  # fmt: skip
    other.records += records
    journal = other.router.journal
    journal.appended = journal.safe = len(records)
    other.give(Restored((Closed(remains.next_number - 1), *open_), other.now_s))
    other.give(AtRest([packed for one in done if (packed := packed_of(one))], other.now_s))
    other.open_pool()
    return other


def test_g11_nothing_rests_before_its_outcome_is_safe():
    pair, session = AtDisk.with_stranger()
    pair.request(session)
    pair.disk()
    pair.end()
    pair.tell(messages.Finish(session, [0, 1]), route=STRANGER)  # it wants none
    pair.advance(1.0)
    assert pair.router.works.retained
    pair.disk()
    pair.advance(1.0)
    assert pair.resting.all.keys == 1


@pytest.mark.parametrize("act", [KeyAct.ASK, KeyAct.ATTACH])
def test_g3_who_asks_again_gets_the_same_bytes_when_they_are_read(act):
    pair = AtDisk()
    pair.run_one(payload=b"the outcome")
    session = pair.stranger()
    pair.request(session, act=act)
    assert pair.loads == [0]
    pair.advance(2.0)
    assert pair.loads == [0]  # it is asked for once
    assert not isinstance(pair.heard(), messages.Outcome)
    pair.read()
    assert isinstance(pair.heard(), messages.Outcome)
    assert told(pair)[1] == b"the outcome"
    assert len(pair.runs) == 1


def test_g6_another_input_is_a_conflict_before_anything_is_read():
    pair = AtDisk.rested()
    pair.request(pair.stranger(), body=b"another")
    assert pair.heard().code == "key-conflict"
    assert not pair.loads
    assert pair.resting.all.keys == 1


def test_g9_an_outcome_that_cannot_be_read_is_told_so_and_never_runs_again():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session)
    pair.read("bodies/3 is missing")
    outcome = pair.heard()
    assert isinstance(outcome, messages.Outcome)
    error = error_records.decode(told(pair)[1])
    assert (outcome.status, error.code) == (Status.ERROR, "not-durable")
    assert error.verdict is Verdict.MAY_HAVE_RUN
    assert "bodies/3 is missing" in error.message
    assert "generation 0 cannot be read" in pair.reports[-1].text
    pair.advance(1.0)
    assert pair.resting.all.keys == 1
    pair.request(session, 1)  # it may go better now
    pair.read()
    assert pair.heard().status == Status.RESULT
    assert len(pair.runs) == 1


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ((b"\xff", b"out"), "header is not CBOR"),
        (
            (messages.encode(messages.QueryAnswer(1)), b"out"),
            "QueryAnswer in the place of an outcome",
        ),
        (
            (messages.encode(messages.Query(1, "statistics")),),
            "Query in the place of an outcome",
        ),
    ],
)
def test_what_was_read_and_is_no_outcome_cannot_be_read(frames, why):
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session)
    (number,) = pair.loads
    pair.router_takes(Loaded(number, frames, "", pair.now_s))
    error = error_records.decode(told(pair)[1])
    assert (error.code, error.verdict) == ("not-durable", Verdict.MAY_HAVE_RUN)
    assert why in error.message


def test_g4_what_rests_has_its_outcome_and_a_cancel_by_name_drops_nothing():
    pair = AtDisk.rested()
    session = pair.stranger()
    for sequence in range(2):  # the second one is told what the first was
        pair.request(session, sequence, act=KeyAct.CANCEL, tag=b"id")
        pair.disk()
        assert pair.answered(session, sequence)["finished"] is True
        assert pair.resting.all.keys == 1
    pair.request(session, 2, act=KeyAct.ATTACH)
    pair.request(session, 3, act=KeyAct.CANCEL, tag=b"while it is read")
    pair.read()
    pair.disk()
    assert pair.answered(session, 3)["finished"] is True
    outcomes = pair.mailed(messages.Outcome)
    assert {each.sequence: each.status for each in outcomes}[2] == Status.RESULT


def test_g7_what_rests_is_forgotten_by_name():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session, act=KeyAct.FORGET, tag=pair.ids())
    assert pair.records[-2] == Closed(0)
    assert not isinstance(pair.heard(), messages.Outcome)  # nothing is said before it is safe
    pair.disk()
    assert isinstance(pair.heard(), messages.Outcome)
    assert not pair.resting.all.keys
    pair.request(session, 1, act=KeyAct.ATTACH)
    assert pair.heard().code == "unknown-key"


def test_a_command_that_names_another_generation_leaves_one_that_is_read():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session, act=KeyAct.ATTACH)
    pair.tell(messages.Finish(session, [0, 1]), route=STRANGER)
    pair.request(session, 1, act=KeyAct.FORGET, tag=7)
    assert pair.router.works.generations
    pair.read()
    pair.advance(1.0)
    assert pair.resting.all.keys == 1


def test_g9_closing_server_waits_for_an_outcome_that_is_read_from_the_disk():
    """The server ended at once, without an answer."""
    pair = AtDisk.rested()
    pair.request(pair.stranger())
    pair.give(CloseAsked(pair.now_s))
    pair.advance(1.0, step_s=0.1)
    assert pair.router.closing.stage is ClosingStage.DRAINING
    pair.read()
    assert pair.heard().status == Status.RESULT
    pair.tell(messages.Finish(pair.heard().session, [0, 1]), route=STRANGER)
    pair.advance(1.0, step_s=0.1)
    assert pair.router.closing.drained


def test_keys_that_the_archive_cannot_have_kept_the_router_busy():
    """It had always more of them to put there, and never could."""
    pair = AtDisk(keys=KeyLimits(retention_s=64.0, orphan_s=20.0, namespace_bytes=256))
    for number in range(1025):
        pair.call(name=KeyName(bytes(256), b"%d" % number))
        pair.disk()
        pair.end()
        pair.disk()
        pair.receive(number)
    assert not pair.resting.all.keys
    assert len(pair.router.works.generations) == 1025
    assert not pair.router.behind


def test_a_command_with_too_long_an_id_left_in_memory_what_was_archived():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session, 0, b"", act=KeyAct.FORGET, tag=bytes(65))
    assert isinstance(pair.heard(), messages.Error)
    assert pair.resting.all.keys == 1
    assert not pair.router.works.generations


def test_g7_who_waits_for_what_is_forgotten_hears_that():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.request(session)
    pair.request(session, 1, act=KeyAct.FORGET, tag=pair.ids())
    pair.disk()
    told = {each.sequence: each for _, each in pair.mail if isinstance(each, messages.Outcome)}
    assert told[0].status == Status.CANCELLED
    assert told[1].status == Status.RESULT
    pair.read()  # it is too late
    assert not pair.router.works.generations
    usage = pair.router.accounts.all
    assert (usage.works, usage.own_bytes, usage.outcome_bytes) == (0, 0, 0)


def test_what_rests_is_on_the_page_of_keys_in_its_place():
    pair, session, names = many_at_rest(3)
    pair.call(name=KeyName(b"default", b"3"))
    pair.request(session, name=names[1])  # it is awake, and was opened in between
    pages = pair.router._key_pages
    page = pages.page(b"", 0, pair.router.awake_s, 1.0)
    assert [row["key"] for row in page["keys"]] == [b"0", b"1", b"2", b"3"]
    assert [row["state"] for row in page["keys"]] == [
        "completed", "archived", "completed", "running",
    ]  # fmt: skip
    assert [row["executions"] for row in page["keys"]] == [1, 1, 1, 1]
    assert (page["generations"], page["next"]) == (4, None)
    later = pages.page(b"default", 2, pair.router.awake_s, 2.0)
    assert [row["generation"] for row in later["keys"]] == [2, 3]
    assert later["keys"][0]["left_s"] > 50


def many_at_rest(
    count: int, payload: bytes = b"out", **limits: Any
) -> tuple[AtDisk, bytes, list[KeyName]]:
    """As many keys at rest, a stranger's session, and the names of the keys."""
    pair = AtDisk(keys=KeyLimits(retention_s=64.0, **limits))
    names = [named(number) for number in range(count)]
    for name in names:
        pair.run_one(name=name, payload=payload)
    return pair, pair.stranger(), names


def attach(pair: AtDisk, session: bytes, names: list[KeyName], first: int = 0) -> None:
    for sequence, name in enumerate(names, first):
        pair.request(session, sequence, act=KeyAct.ATTACH, name=name)


def test_g8_no_more_is_read_at_once_than_there_is_room_for():
    pair, session, names = many_at_rest(6, bytes(900), retained_bytes=4000, namespace_share=0.5)
    attach(pair, session, names)
    assert len(pair.loads) == 3  # up to the share, and one that goes past it
    assert pair.heard().code == "keys-full"
    pair.read()
    pair.tell(messages.Finish(session, [0, 3]), route=STRANGER)
    pair.advance(1.0)
    attach(pair, session, names[3:], 3)
    assert pair.loads == [3, 4, 5]


def test_g8_what_is_wanted_waits_for_room_and_is_read_then():
    pair, session, names = many_at_rest(2, bytes(100), retained_bytes=4000, namespace_share=1.0)
    accounts, works = pair.router.accounts, pair.router.works
    attach(pair, session, names[:1])
    account = accounts.namespaces[b"default"]
    accounts.retain(account, 0, 0, 4000)  # others have taken it meanwhile
    works._wanted[pair.loads.pop()] = None
    works._reading.clear()
    pair.advance(1.0)
    assert not pair.loads
    accounts.retain(account, 0, 0, -4000)
    pair.advance(1.0)
    assert pair.loads == [0]


def test_g8_no_more_wake_than_there_may_be():
    pair, session, names = many_at_rest(3, generations=2, namespace_share=1.0)
    attach(pair, session, names)
    assert pair.heard().code == "keys-full"
    assert pair.heard().delay_s is not None
    assert pair.loads == [0, 1]


@pytest.mark.parametrize("act", [KeyAct.ASK, KeyAct.ATTACH])
def test_g8_new_keys_wait_when_the_journal_is_full_and_known_ones_are_answered(act):
    pair, session, names = many_at_rest(2, journal_keys=2, namespace_share=1.0)
    new = KeyName(b"default", b"new")
    pair.request(session, 0, name=new)
    assert pair.heard().code == "keys-full"
    pair.request(session, 0, act=KeyAct.ATTACH, name=new)
    assert pair.heard().code == "unknown-key"
    pair.request(session, 1, act=act, name=names[0])
    pair.read()
    assert pair.heard().status == Status.RESULT


def test_g11_what_a_journal_has_left_rests_and_is_answered_byte_for_byte():
    first = AtDisk()
    first.run_one(payload=b"the outcome")
    first.call(name=KeyName(b"default", b"open"))
    other = left(first.records[:5])
    assert other.resting.all.keys == 1
    assert [*other.router.works.generations] == [1]
    other.request(other.stranger(), act=KeyAct.ATTACH)
    assert other.loads == [0]
    other.read()
    assert told(other)[1] == b"the outcome"


def test_what_a_journal_has_left_is_retained_after_the_orphan_deadline():
    first = AtDisk.rested()
    other = left(first.records)
    other.advance(64.0 + 19.0)
    assert other.resting.all.keys == 1
    other.advance(3.0)
    assert not other.resting.all.keys
    assert other.records[-1] == Closed(0)


def test_no_more_are_read_at_once_than_a_disk_needs():
    (done,) = [each for each in AtDisk.rested().records if type(each) is Completed]
    names = [KeyName(b"n", b"%d" % number) for number in range(READS_AT_ONCE + 5)]
    records: list[Record] = []
    for number, name in enumerate(names):
        records.append(Opened(number, *name, bytes(32), None, 1, 0, identifier(1), b""))
        records.append(Started(number))
        records.append(Completed(number, (done.frames[0], b"x")))
    other = left(records)
    session = other.stranger()
    attach(other, session, names)
    assert len(other.loads) == READS_AT_ONCE
    # Of those that wait, one caller leaves, and one key is forgotten.
    other.tell(messages.Finish(session, [READS_AT_ONCE, READS_AT_ONCE + 1]), route=STRANGER)
    forgotten, tag = names[READS_AT_ONCE + 1], other.ids()
    other.request(session, 2 * READS_AT_ONCE, act=KeyAct.FORGET, name=forgotten, tag=tag)
    other.read()
    assert len(other.loads) == 3


def test_how_many_keys_rest_was_nowhere_to_be_seen():
    pair = AtDisk()
    assert pair.router.stats()["journal_keys"] == 0
    pair.run_one(payload=b"outcome")
    pair.advance(1.0)
    (one,) = pair.resting
    stats = pair.router.stats()
    assert (stats["journal_keys"], stats["journal_bytes"]) == (1, one.disk_bytes)
    assert stats["bounds"]["journal_keys"] == pair.keys.journal_keys
    assert stats["bounds"]["journal_bytes"] == pair.keys.journal_bytes


# -- a request again: coalesced, replayed, refused (G3, G4, G6) ------------------------


def test_g3_every_replay_is_the_same_object():
    bench = Bench()
    bench.ask(1)
    bench.run(bench.own())
    kept = bench.session(1).tickets[0].kept
    for _ in range(3):
        assert bench.ask(1) == [(1, 0, OUT)]
        assert bench.session(1).tickets[0].kept is kept


def test_g6_a_longer_body_under_the_same_digest_is_a_conflict():
    bench = Bench()
    digest = input_digest(b"body", None)
    bench.ask(1, body=b"body")
    assert bench.ask(1, body=b"longer body", digest=digest) == [(1, 0, "conflict")]
    assert bench.works.counters.conflicts == 1
    bench.ask(1, 1, body=b"body", name=NAME)
    told = bench.ask(2, body=b"longer body", name=NAME, digest=digest)
    assert told == [(2, 0, "key-conflict")]


@pytest.mark.parametrize(
    ("fate", "started"),
    [("not seen", None), ("waits", False), ("runs", True), ("completed", True),
     ("finished", True), ("waits to run again", True), ("may have run before", True)],
)  # fmt: skip
def test_g9_a_cancel_is_told_whether_it_ever_started(fate: str, started: bool | None):
    bench = Bench()
    if fate == "may have run before":
        bench.ask(1, name=NAME, rerun=True, earlier=1)
    elif fate != "not seen":
        bench.ask(1, rerun=True)
    if fate in ("runs", "completed", "waits to run again"):
        execution = bench.dispatch(bench.own())
        if fate == "completed":
            bench.report(execution)
        if fate == "waits to run again":
            bench.dies(execution)
    if fate == "finished":
        bench.finish(1)
    bench.works.cancel(bench.session(1), 0)
    assert bench.turn() == [(1, 0, started)]
    assert bench.session(1).standing(0) == "finished"
    assert not bench.works.queue


def test_each_transmission_is_counted_once_and_by_what_became_of_it():
    bench = Bench()
    bench.ask(1)
    execution = bench.dispatch(bench.own())
    bench.ask(1)
    bench.ask(1, body=b"other")
    bench.report(execution)
    bench.ask(1)
    bench.works.sync(bench.session(1), 1, Ranges((0,)), math.inf)
    assert bench.turn() == [(1, 0, OUT)]
    bench.finish(1)
    assert bench.ask(1) == [(1, 0, "finished")]
    counters = bench.works.counters
    assert counters.requests == 5
    assert (counters.entered, counters.coalesced, counters.conflicts) == (1, 1, 1)
    assert (counters.replayed, counters.spent) == (2, 1)
    assert (counters.dispatched, counters.completed, counters.finished) == (1, 1, 1)


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("counter", ["cancelled", "deadlines"])
def test_requests_that_end_without_their_outcome_are_counted(runs: bool, counter: str):
    bench = Bench()
    bench.ask(1)
    if runs:
        bench.dispatch(bench.own())
    bench.finish(1) if counter == "cancelled" else bench.answer(bench.own())
    assert getattr(bench.works.counters, counter) == 1


# -- executions again (G2) -------------------------------------------------------------


@pytest.mark.parametrize(
    ("rerun", "at_dispatch", "at_death", "allowance", "again"),
    [
        (None, False, False, 4, False), (None, True, True, 4, True), (None, True, False, 4, False),
        (None, False, True, 4, False),  # it waited without its body, which was dropped
        (False, True, True, 4, False), (True, False, False, 4, True), (True, True, True, 1, False),
        (True, True, True, 2, False),  # a part is for the next session
    ],
)  # fmt: skip
def test_g2_a_lost_request_runs_again_only_with_consent_and_allowance_left(
    rerun, at_dispatch, at_death, allowance, again
):
    """The environment's declaration counts if it was made before the dispatch and still is."""
    bench = Bench()
    bench.works.environment.rerun = at_dispatch
    bench.ask(1, rerun=rerun, allowance=allowance)
    work = bench.own()
    execution = bench.dispatch(work)
    bench.works.environment.rerun = at_death
    assert bench.dies(execution) == ([] if again else [(1, 0, "worker-lost")])
    assert len(bench.works.queue) == again
    assert bench.works.counters.lost == (not again)


def test_g2_the_allowance_is_a_cap_over_all_executions():
    bench = Bench()
    bench.ask(1, rerun=True, allowance=4)
    work = bench.own()
    told: list[Told] = []
    for _ in range(3):
        assert told == []
        told = bench.dies(bench.dispatch(work))
    assert told == [(1, 0, "worker-lost")]
    assert work.executions == 3
    counters = bench.works.counters
    assert (counters.dispatched, counters.reruns, counters.lost) == (3, 2, 1)


# -- failures that servers of this kind are known for ----------------------------------


def test_failure_04_request_that_kills_its_worker_is_dispatched_for_ever():
    """A request that kills its worker is given to the next one, and the next, until
    the pool is dead.

    Here executions are capped over the whole life of the call (G2), so it ends as an
    error that says so, and the pool is there for others.
    """
    pair = Pair(workers=2)
    call = pair.submit(b"killer", rerun=True, max_executions=3)
    for _ in range(10):
        if call in pair.endings:
            break
        pair.die()
        pair.advance(60.0)

    assert 2 <= len(pair.runs) <= 3
    error = pair.failure(call)
    assert (error.code, error.verdict) == ("worker-lost", Verdict.MAY_HAVE_RUN)
    other = pair.submit(b"harmless")
    pair.end()
    assert pair.result(other) == b"outcome"


def test_failure_05_kept_outcome_expires_sooner_than_the_retry():
    """The outcome is kept for 300 s and the client retries for 600 s: a client that is
    back after 400 s has the request run again.

    Here an outcome is kept until the client has it (G4); only the lease ends that, it
    is not shorter than the client's patience, and no client that is back outlives it.
    """
    pair = Pair(rerun=True)
    call = pair.submit()
    pair.lose = lambda message: isinstance(message, messages.Outcome)
    pair.give_client(Disconnected(pair.now_s, "cut"))
    pair.end()
    limits = pair.server_limits, pair.client.limits
    assert limits[0].lease_s >= limits[1].recovery_s
    pair.advance(400.0)
    assert pair.endings == {}

    pair.lose = lambda message: False
    pair.reconnect(b"route 2")
    pair.advance(2.0)
    assert len(pair.runs) == 1, "it ran again"
    assert pair.result(call) == b"outcome"


def test_failure_06_late_duplicate_of_an_acknowledged_request_runs_again():
    """The client acknowledges, the server forgets, and a late duplicate of the request
    looks like a new one: it runs again.

    Here finished sequences are remembered, as ranges, so "finished" and "never seen"
    are different things, and the duplicate is refused.
    """
    pair = Pair(rerun=True)
    call = pair.submit()
    pair.end()
    pair.receive(call)
    assert pair.sent_of(messages.Finish)

    answers = pair.answers_to(pair.sent_of(messages.Request)[0], b"body")
    assert len(pair.runs) == 1, "it ran again"
    assert [answer.code for answer in answers if isinstance(answer, Refused)] == ["finished"]
    assert len(answers) == 1


@pytest.mark.parametrize("state", ["waiting", "running", "completed"])
def test_failure_09_first_result_is_replayed_for_another_payload(state):
    """The same id comes with another payload, and gets the result of the first.

    Here the id is tied to a digest of body and options: another one is refused as a
    conflict, and the first is not disturbed (G6).
    """
    pair = Pair(server={"worker_capacity": 1})
    if state == "waiting":
        pair.submit(b"in the way")
    call = pair.submit(b"first")
    if state == "completed":
        pair.lose = lambda message: isinstance(message, messages.Outcome)
        pair.end()
    pair.lose = lambda message: True  # what follows is about somebody else's message
    request = pair.sent_of(messages.Request)[-1]

    answers = pair.answers_to(request._replace(digest=b"another digest !"), b"other")
    assert [type(answer) for answer in answers] == [Refused], "it was answered, or coalesced"
    assert isinstance(answers[0], Refused)
    assert (answers[0].code, answers[0].delay_s) == ("conflict", None)
    assert all(run.body != b"other" for _, run in pair.runs)

    pair.lose = lambda message: False
    pair.end_what_runs()
    pair.advance(2.0)
    assert pair.result(call) in (b"outcome of first", b"outcome"), "the first is not disturbed"


def test_failure_10_cached_cancelled_is_replayed_as_the_result_of_a_retry():
    """A request is cancelled; "cancelled" is kept like an outcome; the caller asks
    again and is told "cancelled".

    Here a cancel finishes the request: nothing is kept and nothing replayed, another
    transmission of it is refused, and asking again is another request (G7).
    """
    pair = Pair()
    first = pair.submit(b"asked twice")
    pair.cancel(first)
    assert pair.cancels, "the environment code is told"

    request = pair.sent_of(messages.Request)[0]
    assert kinds(pair.answers_to(request, b"asked twice")) == ["Refused"]
    pair.end(status=Status.CANCELLED, payload=b"cancelled")
    assert kinds(pair.answers_to(request, b"asked twice")) == ["Refused"]
    assert pair.router.stats()["kept"] == 0

    second = pair.submit(b"asked twice")
    pair.end()
    assert pair.result(second) == b"outcome"
    assert first not in pair.endings


# -- an outcome that is under way ------------------------------------------------------
# A large outcome took longer to arrive than a second.  Every ping meanwhile asked for
# it and got it once more, and the link that was slow already carried it again and
# again: 250 MB of outcomes became several times as much, and the last arrived never.
#
# A replay needs proof now: the answer to a probe was received, and what had been sent
# before that answer was not.


def outcomes_told(pair: Pair) -> int:
    """How often the server has sent one."""
    return sum(isinstance(message, Outcome) for message in pair.told)


def with_an_outcome_lost(*lost: type) -> Pair:
    pair = Pair()
    pair.advance(3.0)  # some probes have been answered
    pair.submit()
    pair.sent.clear()
    pair.lose = lambda message: isinstance(message, (Outcome, *lost))
    pair.end()
    assert outcomes_told(pair) == 1
    return pair


def test_while_no_answer_to_a_probe_arrives_nothing_is_replayed():
    pair = with_an_outcome_lost(Synced)
    pair.advance(10.0)
    assert outcomes_told(pair) == 1
    probes = [message.probe for message in pair.sent if isinstance(message, Sync)]
    assert len(probes) > 8
    assert len(set(probes)) == 1  # a repeated one asks for nothing


def test_after_the_answer_to_a_later_probe_it_is_replayed_once():
    pair = with_an_outcome_lost(Synced)
    pair.advance(10.0)
    pair.lose = lambda message: False
    pair.advance(1.0)
    assert pair.answers == []
    pair.advance(1.0)
    assert [type(answer) for answer in pair.answers] == [Answer]
    pair.receive(0)
    pair.advance(5.0)
    assert outcomes_told(pair) == 2


def test_what_was_sent_between_two_answers_is_replayed_after_the_second():
    pair = with_an_outcome_lost()
    pair.advance(1.0)
    assert outcomes_told(pair) == 1  # it was sent since the answer to the last one
    pair.advance(1.0)
    assert outcomes_told(pair) == 2


def test_a_statement_that_comes_twice_or_late_replays_nothing():
    pair = with_an_outcome_lost()
    pair.advance(3.0)
    before = outcomes_told(pair)
    assert before > 1
    syncs = pair.sent_of(Sync)
    for sync in (syncs[-1], syncs[-2], syncs[-1]):
        pair.tell(sync, route=CLIENT)
    assert outcomes_told(pair) == before


# -- names, turns and commands of keys -------------------------------------------------


def test_the_digest_is_of_the_input_and_the_consent():
    digests = {
        input_digest(body, rerun) for body in (b"", b"1", b"11") for rerun in (None, True, False)
    }
    assert len(digests) == 9
    assert {*map(len, digests)} == {32}
    assert input_digest(memoryview(b"11"), True) == input_digest(b"11", True)


@pytest.mark.parametrize("part", ["namespace", "key"])
def test_a_name_has_a_bounded_length(part: str):
    bench = Bench()
    most = getattr(bench.works.keys, f"{part}_bytes")
    for length in (0, most + 1):
        name = NAME._replace(**{part: b"k" * length})
        for act in KeyAct:
            assert bench.ask(1, name=name, act=act) == [(1, 0, "refused")]
    assert not bench.works.generations
    assert bench.ask(1, name=NAME._replace(**{part: b"k" * most})) == []


def test_g10_one_turn_ends_so_many_by_time_and_no_more():
    bench = Bench(KeyLimits(retention_s=1.0, namespace_share=1.0))
    works, most = bench.works, 1024
    for number in range(most + 1):
        bench.ask(1, number, name=named(number))
        bench.run(works.generations[number])
    works.finish(bench.session(1), Ranges(range(most + 1)))
    assert works.behind  # one of them leaves in the next turn
    bench.turn()
    works.clock.awake_s = 1.0
    works.tick()
    assert len(works.generations) == 1
    assert works.behind
    works.budget.renew()
    works.tick()
    assert not works.behind
    assert works.generations == {}


def test_each_end_of_a_retention_had_a_turn_of_its_own():
    """Where much was retained, something was due at any time, and a server went round and
    round between its ticks."""
    bench = Bench(KeyLimits(retention_s=1.0))
    bench.ask(1, name=NAME)
    bench.run(bench.work())
    bench.finish(1)
    bench.works.clock.awake_s = 2.0
    assert not bench.works.behind
    bench.works.tick()
    assert not bench.works.behind
    assert bench.works.generations == {}


def test_g10_one_turn_answers_so_many_and_no_more():
    bench = Bench(KeyLimits(orphan_s=1.0, namespace_share=1.0))
    for number in range(3):
        bench.ask(1, number, name=named(number))
        for sequence in range(600):
            bench.attach(2, named(number), 1000 * number + sequence)
    bench.end(1, lost=True)
    works = bench.works
    works.clock.awake_s = 1.0
    works.tick()
    assert len(works.out) <= 1024
    assert works.behind
    assert len(bench.turn()) == 3 * 600


def test_what_a_door_had_forgotten_filled_the_memory_of_commands():
    """A door forgets the key of each run.  The server remembered all of these commands for
    minutes; then it refused them, and what nobody wanted stayed retained."""
    bench = Bench(KeyLimits(commands=100))
    for number in range(200):
        bench.ask(1, 2 * number, name=NAME)
        bench.run(bench.work(number))
        bench.finish(1, 2 * number)
        said = {"generation": number, "started": True}
        told = bench.command(1, KeyAct.FORGET, None, sequence=2 * number + 1)
        assert told == [(1, 2 * number + 1, said)]
        bench.finish(1, 2 * number + 1)
    assert not bench.works.commands
    assert not bench.works.commands_of
    assert not bench.accounts.all.works


def test_commands_of_one_namespace_left_no_room_for_those_of_others():
    bench = Bench(KeyLimits(commands=8, command_s=20.0))
    sequences = itertools.count()

    def forget(namespace: bytes, key: bytes) -> bool:
        """Whether it was not refused."""
        sequence = next(sequences)
        name = KeyName(namespace, key)
        ((*_, said),) = bench.command(1, KeyAct.FORGET, b"id", name, sequence)
        return bool(said != "commands-full")

    for number in range(8):
        forget(b"busy", b"%d" % number)
    assert len(bench.works.commands) == 4
    assert forget(b"other", b"key")
    assert not forget(b"busy", b"7")
    assert forget(b"busy", b"0"), "it is known"
    bench.wait(20.0)
    assert not bench.works.commands_of
    assert forget(b"busy", b"7")


def test_a_command_that_a_journal_has_twice_counted_twice_for_ever():
    """A copy of it had come after the first was forgotten, and a crash before the disk forgot
    that, too."""
    bench = Bench(KeyLimits(command_s=1.0))
    record = Commanded(False, *NAME, b"t" * 16, None, False)
    bench.works.restore([record, record])
    assert len(bench.works.commands) == 1
    bench.wait(1.0)
    assert not bench.works.commands
    assert not bench.works.commands_of


# -- bounds of what waits, and statements ----------------------------------------------


def test_g8_so_many_may_wait_for_a_key_and_one_that_is_lost_is_in_nobodys_way():
    bench = Bench(KeyLimits(waiters=2))
    bench.ask(1, name=NAME)
    bench.ask(2, name=NAME)
    crowded = [(3, 0, "key-crowded")]
    assert bench.ask(3, name=NAME) == bench.attach(3) == crowded
    bench.end(1, lost=True)
    assert bench.ask(3, name=NAME) == []
    assert bench.ask(11, name=NAME) == [(11, 0, "key-crowded")]
    assert bench.run(bench.work()) == [(2, 0, OUT), (3, 0, OUT)]
    assert bench.attach(11) == [(11, 0, OUT)], "it does not wait"


def test_callers_whose_limits_passed_crowded_a_key_for_good():
    """Each of them counts until the orphan deadline, and nobody waits."""
    pair = Keyed.asked(keys=KeyLimits(waiters=4, orphan_s=20.0, retention_s=20.0))
    for number in range(5000, 5004):
        pair.request(pair.stranger(number, identifier(number)), deadline_s=0.0)
        pair.advance(1.0)
    assert len(pair.router.works.generations[0].lost) == 4
    pair.request(pair.stranger())
    assert not isinstance(pair.heard(), messages.Refused)
    assert len(pair.router.works.generations[0].tickets) == 2


def test_a_restart_locked_everybody_out_of_a_key_that_many_had_asked_for():
    keys = KeyLimits(waiters=4, orphan_s=20.0, retention_s=20.0)
    pair = Journaled.running(keys=keys)
    for number in range(5000, 5008):
        session = pair.stranger(number, identifier(number))
        pair.request(session)
        pair.disk()
        pair.tell(messages.Cancel(session, 0), route=STRANGER)
    pair.disk()
    other = Journaled(ready=False, rerun=True, keys=keys)
    other.auto_hello = True
    other.router_takes(Restored(pair.records, other.now_s), PoolOpened((), other.now_s))
    assert len(other.router.works.generations[0].lost) == 9
    other.request(other.stranger())
    assert not isinstance(other.heard(), messages.Refused)
    assert len(other.router.works.generations[0].tickets) == 1


def test_g8_the_lost_callers_of_a_work_are_bounded():
    pair = Keyed.asked()
    for number in range(5000, 5002 + LOST_CALLERS):
        session = pair.stranger(number, identifier(number))
        pair.request(session, deadline_s=0.0)
        pair.advance(0.001, step_s=0.001)
        pair.tell(messages.Goodbye(session), route=STRANGER)
    work = pair.router.works.generations[0]
    assert len(work.lost) == LOST_CALLERS
    assert work.state is S.RUNNING


@pytest.mark.parametrize("deadline_s", [0.0, None])
def test_a_caller_that_counts_wrote_a_record_with_each_ask(deadline_s: float | None):
    """The journal grew by what a stranger asks."""
    pair = Journaled.running()
    session, known = pair.stranger(), len(pair.records)
    for number in range(5):
        pair.request(session, number, deadline_s=deadline_s)
        pair.advance(1.0)
        pair.disk()
    assert [type(each) for each in pair.records[known:]] == [Joined]


def test_g8_a_statement_of_more_than_a_window_is_ignored():
    bench = Bench(window=2)
    bench.ask(1)
    missing = bench.works.sync(bench.session(1), 5, Ranges((1, 2, 3)), math.inf)
    assert (bench.turn(), missing) == ([], Ranges())
    assert bench.session(1).standing(0) == "waiting"


def test_cancel_that_leaves_too_many_gaps_is_told_that_it_may_have_run():
    bench = Bench(window=1)
    bench.finish(1, 0, 2)
    bench.works.cancel(bench.session(1), 4)
    assert bench.turn() == [(1, 4, True)]
    assert not bench.session(1).has_seen(4)


def test_who_has_finished_and_had_no_time_to_leave_is_sent_no_deltas():
    bench = Bench()
    bench.ask(1, name=NAME)
    bench.dispatch(bench.work())
    assert [*bench.works.followers(bench.work())] == [bench.session(1).tickets[0]]
    bench.works.budget.left = 0
    bench.works.finish(bench.session(1), Ranges((0,)))
    assert [*bench.works.followers(bench.work())] == []


@pytest.mark.parametrize("closes_first", [False, True])
def test_g9_work_that_was_held_for_its_key_was_not_answered_by_a_server_that_closed(
    closes_first: bool,
):
    """The execution before it had to end first, and its worker was not proven dead in time."""
    pair, session = Keyed.with_stranger()
    pair.request(session)
    pair.request(session, 1, act=KeyAct.FORGET, tag=b"t")
    for step in range(2):
        if closes_first is (step == 0):
            pair.give(CloseAsked(pair.now_s, ClosingStage.DRAINING))
        else:
            pair.request(session, 2)
    assert pair.verdict_of(session, 2) is Verdict.DID_NOT_RUN
    assert not pair.router.works.open
    assert len(pair.runs) == 1


def test_a_caller_that_comes_back_while_its_outcome_waits_for_the_journal_counts_once():
    pair = Journaled.running()
    first, second = pair.stranger(5000), pair.stranger(5001)
    pair.request(first)
    pair.end(payload=b"out")
    pair.request(second)
    work = pair.router.works.generations[0]
    assert [each.session.id for each in work.tickets if each.counts][1:] == [second]
    pair.disk()
    assert pair.payload(first) == pair.payload(second) == b"out"


def test_g8_as_many_may_wait_for_an_outcome_that_is_being_saved_as_for_one_that_runs():
    pair = Journaled.running(keys=KeyLimits(waiters=2, orphan_s=20.0, retention_s=20.0))
    first, session = pair.stranger(5000, identifier(5000)), pair.stranger(5001, identifier(5001))
    pair.request(first)
    pair.end(payload=b"out")
    pair.request(session)
    assert pair.heard().code == "key-crowded"
    assert not pair.router.works.gate.is_decided(RequestId(session, 0))
    pair.disk()
    pair.tell(messages.Finish(first, [0, 1]), route=STRANGER)
    pair.request(session)
    assert pair.payload(session) == b"out"


def test_a_limit_that_passes_while_nothing_can_be_saved_ends_the_wait_of_a_cancelled_key():
    pair = Journaled.running()
    session = pair.stranger()
    pair.request(session, deadline_s=5.0)
    pair.request(session, 1, act=KeyAct.CANCEL, tag=b"t")
    fail(pair)
    pair.advance(6.0)
    assert pair.heard().sequence == 0
    assert pair.verdict_of(session) is Verdict.MAY_HAVE_RUN


def test_who_looks_at_an_outcome_that_cannot_be_read_does_not_prolong_its_retention():
    pair = AtDisk.rested()
    session = pair.stranger()
    pair.advance(40.0)
    for sequence in range(2):
        pair.request(session, sequence, act=KeyAct.ATTACH)
        pair.read("the disk is gone")
        assert pair.verdict_of(session, sequence) is Verdict.MAY_HAVE_RUN
    assert pair.router.works.generations
    pair.advance(30.0)
    assert not pair.router.works.generations
    assert not pair.resting.all.keys


@pytest.mark.parametrize("has_outcome", [False, True])
def test_works_that_a_journal_has_left_are_counted_until_they_are_dropped(has_outcome: bool):
    pair = Journaled.running()
    if has_outcome:
        pair.end(payload=b"out")
        pair.disk()
    bench = Bench(reads=True)
    bench.works.restore(pair.records)
    assert bench.turn() == []
    assert bench.attach(3) == ([(3, 0, b"out")] if has_outcome else [])
    bench.works.earlier_lives = False
    assert bench.turn() == ([] if has_outcome else [(3, 0, "worker-lost")])
    for seconds in (10.0, 100.0):
        bench.wait(seconds)
    bench.finish(3)
    assert not bench.accounts.namespaces
