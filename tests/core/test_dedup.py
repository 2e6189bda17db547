"""Every cell of the dedup cache's table, and what it counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.regressions.bench import System, is_outcome
from trio_envserve.core.client_inputs import CallsCancelled
from trio_envserve.core.messages import Finish, Refused, Request, decode, encode
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.request_table import TABLE, RequestInput
from trio_envserve.core.request_table import RequestAction as Do
from trio_envserve.core.request_table import RequestInput as Input
from trio_envserve.core.requests import Entry, RequestState
from trio_envserve.core.requests import RequestState as State
from trio_envserve.core.terms import Status, Verdict

from .dedup_states import EXECUTION, STATES, made, reach
from .helpers import ask, cache_with, dos, identifier, kept, picture, session_of

ARGUMENTS: dict[Input, Any] = {
    Input.REQUEST: ask(),
    Input.OTHER_DIGEST: ask(digest=5),
    Input.DISPATCH: EXECUTION,
    Input.OUTCOME: kept(),
    Input.WORKER_DEAD: lambda entry: kept(b"lost"),
    Input.DEADLINE: lambda entry: kept(b"late"),
    Input.ANSWERED: kept(),
}

# What each input makes of each state, and what must be done.  None: it cannot be.
EXPECTED: dict[Input, tuple[tuple[State, list[Do]] | None, ...]] = {
    Input.REQUEST: (
        (State.WAITING, [Do.QUEUE]), (State.WAITING, []), (State.RUNNING, []),
        (State.COMPLETED, [Do.ANSWER]), (State.FINISHED, [Do.SPENT]),
    ),
    Input.OTHER_DIGEST: (
        None, (State.WAITING, [Do.CONFLICT]), (State.RUNNING, [Do.CONFLICT]),
        (State.COMPLETED, [Do.CONFLICT]), (State.FINISHED, [Do.SPENT]),
    ),
    Input.DISPATCH: (None, (State.RUNNING, []), None, None, (State.FINISHED, [])),
    Input.OUTCOME: (
        None, None, (State.COMPLETED, [Do.ANSWER]), None, (State.FINISHED, []),
    ),
    Input.STRAY_OUTCOME: (
        (State.NOT_SEEN, []), (State.WAITING, []), (State.RUNNING, []), (State.COMPLETED, []),
        (State.FINISHED, []),
    ),
    Input.FINISH: (
        (State.FINISHED, []), (State.FINISHED, [Do.UNQUEUE]), (State.FINISHED, [Do.STOP]),
        (State.FINISHED, []), (State.FINISHED, []),
    ),
    Input.WORKER_DEAD: (
        None, None, (State.COMPLETED, [Do.ANSWER]), None, (State.FINISHED, []),
    ),
    Input.DEADLINE: (
        (State.NOT_SEEN, []), (State.COMPLETED, [Do.UNQUEUE, Do.ANSWER]),
        (State.COMPLETED, [Do.ANSWER, Do.STOP]), (State.COMPLETED, []), (State.FINISHED, []),
    ),
    Input.LEASE_ENDED: (
        None, (State.FINISHED, [Do.UNQUEUE]), (State.FINISHED, [Do.STOP]), (State.FINISHED, []),
        (State.FINISHED, []),
    ),
    Input.ANSWERED: (None, (State.COMPLETED, [Do.ANSWER]), None, None, (State.FINISHED, [])),
    Input.TURNED_AWAY: (None, (State.NOT_SEEN, []), None, None, (State.FINISHED, [])),
}  # fmt: skip

CELLS = [
    pytest.param(state, input, expected, id=f"{input.name} in {state.name}")
    for input, row in EXPECTED.items()
    for state, expected in zip(STATES, row, strict=True)
]


@pytest.mark.parametrize(("state", "input", "expected"), CELLS)
def test_every_input_in_every_state(state, input, expected):
    cache, session = made(state)
    entry, before = session.entries.get(0), picture(cache)
    if expected is None:
        with pytest.raises(AssertionError, match="cannot reach"):
            cache.step(session, 0, input, ARGUMENTS.get(input))
        assert picture(cache) == before
        return
    after, do = expected
    assert dos(cache.step(session, 0, input, ARGUMENTS.get(input))) == do
    assert session.state(0) is after
    assert cache.counters.stray_outcomes == (input is Input.STRAY_OUTCOME)
    if after is state:
        assert picture(cache) == before
    elif entry is not None and after is not State.NOT_SEEN:
        assert entry.state is after, "whoever still holds it can see that"


def test_the_table_has_all_inputs_and_these_states():
    assert {*TABLE} == {*Input} == {*EXPECTED}
    assert all({*row} == {*STATES} - {State.FINISHED} for row in TABLE.values())


# -- what the cells change ----------------------------------------------------


def test_g2_a_lost_request_runs_again_only_with_consent_and_allowance_left():
    for rerun, declared, allowance, again in (
        (None, False, 2, False), (None, True, 2, True), (False, True, 2, False),
        (True, False, 2, True), (True, True, 1, False),
    ):  # fmt: skip
        cache, session = cache_with(), None
        cache.declared_rerun = declared
        session = session_of(cache)
        reach(cache, session, State.RUNNING, rerun=rerun, allowance=allowance)
        effects = cache.step(session, 0, Input.WORKER_DEAD, lambda entry: kept(b"lost"))
        assert dos(effects) == ([Do.QUEUE] if again else [Do.ANSWER])
        assert session.state(0) is (State.WAITING if again else State.COMPLETED)
        assert cache.counters.lost == (not again)


def test_g2_the_allowance_is_a_cap_over_all_executions():
    cache, session = made(State.WAITING, rerun=True, allowance=3)
    for _ in range(3):
        assert session.state(0) is State.WAITING
        cache.step(session, 0, Input.DISPATCH, EXECUTION)
        cache.step(session, 0, Input.WORKER_DEAD, lambda entry: kept(b"lost"))
    assert session.state(0) is State.COMPLETED
    assert session.entries[0].executions == 3
    assert (cache.counters.dispatched, cache.counters.reruns, cache.counters.lost) == (3, 2, 1)


def test_g3_every_replay_is_the_same_object():
    cache, session = made(State.COMPLETED)
    first = session.entries[0].kept
    for _ in range(3):
        ((do, entry),) = cache.request(session, 0, ask())
        assert do is Do.ANSWER
        assert entry.kept is first


def test_g6_other_payload_is_a_conflict_and_the_first_is_undisturbed():
    for state in (State.WAITING, State.RUNNING, State.COMPLETED):
        cache, session = made(state)
        before = picture(cache)
        assert dos(cache.request(session, 0, ask(b"other"))) == [Do.CONFLICT]
        assert dos(cache.request(session, 0, ask(b"longer body", digest=int.from_bytes(b"body"))))
        assert picture(cache) == before
        assert cache.counters.conflicts == 2


def test_g4_a_late_duplicate_of_a_finished_request_is_refused_not_run():
    cache, session = made(State.FINISHED)
    assert cache.request(session, 0, ask()) == ((Do.SPENT, 0),)
    assert cache.request(session, 0, ask(b"other")) == ((Do.SPENT, 0),)
    assert not session.entries


def test_g7_a_cancel_that_overtakes_its_request_wins():
    cache, session = made(State.NOT_SEEN)
    assert cache.cancel(session, 0) == ((), False)
    assert dos(cache.request(session, 0, ask())) == [Do.SPENT]


@pytest.mark.parametrize(
    ("state", "started"),
    [
        (State.NOT_SEEN, False), (State.WAITING, False), (State.RUNNING, True),
        (State.COMPLETED, True), (State.FINISHED, True),
    ],
)  # fmt: skip
def test_g9_a_cancel_is_told_whether_it_ever_started(state, started):
    cache, session = made(state)
    assert cache.ever_started(session, 0) is started
    assert cache.cancel(session, 0)[1] is started
    assert session.state(0) is State.FINISHED


def test_g9_a_request_that_waits_to_run_again_did_start():
    cache, session = made(State.RUNNING, rerun=True, allowance=2)
    cache.step(session, 0, Input.WORKER_DEAD, None)
    assert cache.cancel(session, 0)[1] is True


def test_g7_finishing_a_running_request_stops_its_execution():
    cache, session = made(State.RUNNING)
    assert list(cache.finish_spans(session, Ranges([0]))) == [(Do.STOP, EXECUTION)]


# -- bodies -------------------------------------------------------------------


def test_g8_a_body_is_held_no_longer_than_it_can_be_needed():
    cache, session = made(State.WAITING, rerun=True, allowance=2)
    assert cache.held_bytes == session.held_bytes == 4
    cache.step(session, 0, Input.DISPATCH, EXECUTION)
    assert cache.held_bytes == 4
    cache.step(session, 0, Input.WORKER_DEAD, None)
    cache.step(session, 0, Input.DISPATCH, EXECUTION)  # the last one allowed
    assert cache.held_bytes == session.held_bytes == 0
    assert session.entries[0].body is None


def test_g8_an_outcome_frees_the_body():
    cache, session = made(State.COMPLETED, rerun=True, allowance=5)
    assert (cache.held_bytes, session.entries[0].body) == (0, None)


def test_a_request_waited_without_its_body_after_the_declaration_had_changed():
    """AssertionError at the dispatch: the body was dropped while nothing further was allowed."""
    cache = cache_with()
    session = session_of(cache)
    cache.request(session, 0, ask(allowance=2))
    cache.step(session, 0, RequestInput.DISPATCH, object())
    cache.declared_rerun = True
    cache.step(session, 0, RequestInput.WORKER_DEAD, lambda entry: kept(b"lost"))
    assert session.state(0) is RequestState.COMPLETED


# -- what is counted ----------------------------------------------------------


def test_an_entry_is_itself_not_its_content():
    cache, session = made(State.WAITING)
    entry = session.entries[0]
    assert entry != Entry(entry.id, entry.digest, None, 1, b"body", 4)
    assert cache.epoch == identifier(99)


def test_each_transmission_is_counted_once_and_by_what_became_of_it():
    cache = cache_with()
    session = session_of(cache)
    reach(cache, session, State.RUNNING)
    cache.request(session, 0, ask())
    cache.request(session, 0, ask(digest=5))
    cache.step(session, 0, Input.OUTCOME, kept())
    cache.request(session, 0, ask())
    cache.step(session, 0, Input.FINISH)
    cache.request(session, 0, ask())
    counters = cache.counters
    assert counters.requests == 5
    assert (counters.entered, counters.coalesced, counters.conflicts) == (1, 1, 1)
    assert (counters.replayed, counters.spent) == (1, 1)
    assert (counters.dispatched, counters.completed, counters.finished) == (1, 1, 1)


def test_what_a_sync_has_replayed_is_counted():
    cache, session = made(State.COMPLETED)
    effects, _ = cache.sync(session, 1, Ranges((0,)))
    assert dos(effects) == [Do.ANSWER]
    assert cache.counters.replayed == 1


@pytest.mark.parametrize("state", [State.WAITING, State.RUNNING])
def test_what_is_finished_before_its_outcome_counts_as_cancelled(state):
    cache, session = made(state)
    cache.step(session, 0, Input.FINISH)
    assert cache.counters.cancelled == 1


@pytest.mark.parametrize("declared_at_dispatch", [False, True])
def test_g2_it_runs_again_only_if_that_was_declared_at_its_dispatch_and_still_is(
    declared_at_dispatch,
):
    cache = cache_with()
    session = session_of(cache)
    cache.declared_rerun = declared_at_dispatch
    reach(cache, session, State.RUNNING, rerun=None, allowance=2)
    cache.declared_rerun = not declared_at_dispatch
    effects = cache.step(session, 0, Input.WORKER_DEAD, lambda entry: kept(b"lost"))
    assert dos(effects) == [Do.ANSWER]
    assert session.state(0) is State.COMPLETED


@pytest.mark.parametrize("state", [State.WAITING, State.RUNNING])
def test_deadlines_that_end_a_request_are_counted(state):
    cache, session = made(state)
    cache.step(session, 0, Input.DEADLINE, lambda entry: kept(b"late"))
    assert cache.counters.deadlines == 1


# -- failures that servers of this kind are known for ----------------------------


def test_failure_04_request_that_kills_its_worker_is_dispatched_for_ever():
    """A request that kills its worker is given to the next one, and the next, until
    the pool is dead.

    Here executions are capped over the whole life of the call (G2), so it ends as an
    error that says so, and the pool is there for others.
    """
    system = System(workers=2)
    call = system.submit(b"killer", rerun=True, max_executions=3)
    for _ in range(10):
        if call in system.ended:
            break
        system.reap(system.starts[-1].worker)
        system.advance(60.0)

    assert 2 <= len(system.starts) <= 3
    error = system.failure(call)
    assert (error.code, error.verdict) == ("worker-lost", Verdict.MAY_HAVE_RUN)
    other = system.submit(b"harmless")
    system.end()
    assert system.result(other) == b"outcome"


def test_failure_06_late_duplicate_of_an_acknowledged_request_runs_again():
    """The client acknowledges, the server forgets, and a late duplicate of the request
    looks like a new one: it runs again.

    Here finished sequences are remembered, as ranges, so "finished" and "never seen"
    are different things, and the duplicate is refused.
    """
    system = System(rerun=True)
    call = system.submit()
    system.end()
    system.received(call)
    assert any(isinstance(message, Finish) for message in system.to_server)

    answers = system.tell(*system.asked[0])
    assert len(system.starts) == 1, "it ran again"
    assert [answer.code for answer in answers if isinstance(answer, Refused)] == ["finished"]
    assert len(answers) == 1


@pytest.mark.parametrize("state", ["waiting", "running", "completed"])
def test_failure_09_first_result_is_replayed_for_another_payload(state):
    """The same id comes with another payload, and gets the result of the first.

    Here the id is tied to a digest of body and options: another one is refused as a
    conflict, and the first is not disturbed (G6).
    """
    system = System(server={"worker_capacity": 1})
    if state == "waiting":
        system.submit(b"in the way")
    call = system.submit(b"first")
    if state == "completed":
        system.lose = is_outcome
        system.end()
    system.lose = lambda message: True  # what follows is about somebody else's message
    header, _ = system.asked[-1]
    request = decode(header, most_bytes=1000)
    assert isinstance(request, Request)

    forged = encode(request._replace(digest=b"another digest !"))
    answers = system.tell(forged, b"other")
    assert [type(answer) for answer in answers] == [Refused], "it was answered, or coalesced"
    assert isinstance(answers[0], Refused)
    assert (answers[0].code, answers[0].delay_s) == ("conflict", None)
    assert all(start.body != b"other" for start in system.starts)

    system.lose = lambda message: False
    system.end_all(lambda start: b"outcome of " + start.body)
    system.advance(2.0)
    assert system.result(call) in (b"outcome of first", b"outcome"), "the first is not disturbed"


def test_failure_10_cached_cancelled_is_replayed_as_the_result_of_a_retry():
    """A request is cancelled; "cancelled" is kept like an outcome; the caller asks
    again and is told "cancelled".

    Here a cancel finishes the request: nothing is kept and nothing replayed, another
    transmission of it is refused, and asking again is another request (G7).
    """
    system = System()
    first = system.submit(b"asked twice")
    system.give_client(CallsCancelled((first,), system.now_s))
    system.settle()
    assert system.cancels, "the environment code is told"

    answers = system.tell(*system.asked[0])
    assert [type(answer) for answer in answers] == [Refused]
    system.end(status=Status.CANCELLED, payload=b"cancelled")
    answers = system.tell(*system.asked[0])
    assert [type(answer) for answer in answers] == [Refused]
    assert system.router.stats()["kept"] == 0

    second = system.submit(b"asked twice")
    system.end()
    assert system.result(second) == b"outcome"
    assert first not in system.ended
