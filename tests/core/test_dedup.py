"""Every cell of the dedup cache's table, and what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.client_inputs import ClientTick, Disconnected, OutcomeReceived
from trio_envserve.core.dedup import DedupCache
from trio_envserve.core.executions import Duty, Worker
from trio_envserve.core.messages import Hello, Outcome, Refused, Sync, Synced
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.request_table import TABLE, RequestInput
from trio_envserve.core.request_table import RequestAction as Do
from trio_envserve.core.request_table import RequestInput as Input
from trio_envserve.core.requests import Entry, Session
from trio_envserve.core.requests import WorkState as State
from trio_envserve.core.router_inputs import ClientMessage, Tick
from trio_envserve.core.scheduler import Scheduler
from trio_envserve.core.terms import RequestId, Status, Verdict

from .helpers import (
    ALL,
    CLIENT,
    STRANGER,
    Pair,
    ask,
    cache_with,
    dos,
    identifier,
    kept,
    kinds,
    limited,
    picture,
    session_of,
)

STATES = (
    State.NOT_SEEN,
    State.WAITING,
    State.RUNNING,
    State.COMPLETED,
    State.FINISHED,
)
EXECUTION = object()


def reach(cache: DedupCache, session: Session, state: State, sequence: int = 0, **how: Any) -> None:
    """Bring a request into a state, through the inputs that lead there."""
    if state is State.NOT_SEEN:
        return
    cache.request(session, sequence, ask(**how))
    if state in (State.RUNNING, State.COMPLETED):
        cache.step(session, sequence, Input.DISPATCH, EXECUTION)
    if state is State.COMPLETED:
        cache.step(session, sequence, Input.OUTCOME, kept())
    if state is State.FINISHED:
        cache.step(session, sequence, Input.FINISH)


def made(state: State, **how: Any) -> tuple[DedupCache, Session]:
    """A cache with one session, whose request 0 is in this state."""
    cache = cache_with()
    session = session_of(cache)
    reach(cache, session, state, **how)
    assert session.state(0) is state
    return cache, session


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
    entry, before = session.tickets.get(0), picture(cache)
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


@pytest.mark.parametrize(
    ("rerun", "at_dispatch", "at_death", "allowance", "again"),
    [
        (None, False, False, 2, False), (None, True, True, 2, True), (None, True, False, 2, False),
        (None, False, True, 2, False),  # it waited without its body, which was dropped
        (False, True, True, 2, False), (True, False, False, 2, True), (True, True, True, 1, False),
    ],
)  # fmt: skip
def test_g2_a_lost_request_runs_again_only_with_consent_and_allowance_left(
    rerun, at_dispatch, at_death, allowance, again
):
    """The environment's declaration counts if it was made before the dispatch and still is."""
    cache = cache_with()
    session = session_of(cache)
    cache.declared_rerun = at_dispatch
    reach(cache, session, State.RUNNING, rerun=rerun, allowance=allowance)
    cache.declared_rerun = at_death
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
    assert session.tickets[0].executions == 3
    assert (cache.counters.dispatched, cache.counters.reruns, cache.counters.lost) == (3, 2, 1)


def test_g3_every_replay_is_the_same_object():
    cache, session = made(State.COMPLETED)
    first = session.tickets[0].kept
    for _ in range(3):
        ((do, entry),) = cache.request(session, 0, ask())
        assert do is Do.ANSWER
        assert entry.kept is first


def test_g6_a_longer_body_under_the_same_digest_is_a_conflict():
    cache, session = made(State.RUNNING)
    claimed = ask(b"longer body", digest=int.from_bytes(b"body"))
    assert dos(cache.request(session, 0, claimed)) == [Do.CONFLICT]
    assert cache.counters.conflicts == 1


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


# -- bodies -------------------------------------------------------------------


def test_g8_a_body_is_held_no_longer_than_it_can_be_needed():
    cache, session = made(State.WAITING, rerun=True, allowance=2)
    assert cache.held_bytes == session.held_bytes == 4
    cache.step(session, 0, Input.DISPATCH, EXECUTION)
    assert cache.held_bytes == 4
    cache.step(session, 0, Input.WORKER_DEAD, None)
    cache.step(session, 0, Input.DISPATCH, EXECUTION)  # the last one allowed
    assert cache.held_bytes == session.held_bytes == 0
    assert session.tickets[0].body is None


# -- what is counted ----------------------------------------------------------


def test_each_transmission_is_counted_once_and_by_what_became_of_it():
    cache = cache_with()
    session = session_of(cache)
    reach(cache, session, State.RUNNING)
    cache.request(session, 0, ask())
    cache.request(session, 0, ask(digest=5))
    cache.step(session, 0, Input.OUTCOME, kept())
    cache.request(session, 0, ask())
    cache.sync(session, 1, Ranges((0,)))
    cache.step(session, 0, Input.FINISH)
    cache.request(session, 0, ask())
    assert cache.epoch == identifier(99)
    counters = cache.counters
    assert counters.requests == 5
    assert (counters.entered, counters.coalesced, counters.conflicts) == (1, 1, 1)
    assert (counters.replayed, counters.spent) == (2, 1)
    assert (counters.dispatched, counters.completed, counters.finished) == (1, 1, 1)


@pytest.mark.parametrize("state", [State.WAITING, State.RUNNING])
@pytest.mark.parametrize(
    ("input", "counter"), [(Input.FINISH, "cancelled"), (Input.DEADLINE, "deadlines")]
)
def test_requests_that_end_without_their_outcome_are_counted(state, input, counter):
    cache, session = made(state)
    cache.step(session, 0, input, lambda entry: kept(b"late"))
    assert getattr(cache.counters, counter) == 1


# -- failures that servers of this kind are known for ----------------------------


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


# -- bounds ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "finishes", "finished"),
    [
        (2, [[0], [0, 2, 4]], [0, 1, 2, 3, 4, 5]),
        (3, [[number] for number in range(0, 100, 2)], [0, 1, 2, 3, 4, 5, 6, 7]),
        (3, [[0], [2], [4], [6], [1, 3]], [0, 5, 6, 7]),
        (3, [[1, 3, 5, 7], range(0, 10, 2)], [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
    ids=["as many", "one too many", "closing gaps is always taken", "too many at once"],
)
def test_g8_more_gaps_than_a_window_can_leave_are_ignored(window, finishes, finished):
    cache = cache_with(window=window)
    session = session_of(cache)
    for sequences in finishes:
        cache.finish_spans(session, Ranges(sequences))
    assert session.finished.flat() == finished


# By bound: limits, and requests (session, sequence, bytes) with what is done about each.
BOUNDS: dict[str, tuple[dict[str, Any], list[tuple[int, int, int, list[Do]]]]] = {
    "of the window": (
        {"window": 2},
        [(1, 0, 4, [Do.QUEUE]), (1, 1, 4, [Do.QUEUE]), (1, 2, 4, [Do.WINDOW]), (1, 1, 4, [])],
    ),
    "of the queue": (
        {"queue": 2, "session_share": 1.0},
        [(1, 0, 4, [Do.QUEUE]), (2, 0, 4, [Do.QUEUE]), (1, 1, 4, [Do.FULL])],
    ),
    "of a full queue, for who has nothing in it": (
        {"queue": 2, "sessions": 10, "session_share": 1.0},
        [(1, 0, 4, [Do.QUEUE]), (1, 1, 4, [Do.QUEUE]), (2, 0, 4, [Do.QUEUE])],
    ),
    "of a session in the queue": (
        {"queue": 4, "session_share": 0.5},
        [
            (1, 0, 4, [Do.QUEUE]), (1, 1, 4, [Do.QUEUE]), (1, 2, 4, [Do.FULL]),
            (2, 0, 4, [Do.QUEUE]),
        ],
    ),
    "of bytes that the others leave": (
        {"queue_bytes": 100, "sessions": 10, "session_share": 0.5},
        [
            (2, 0, 40, [Do.QUEUE]), (1, 0, 10, [Do.QUEUE]), (1, 1, 21, [Do.FULL]),
            (1, 1, 20, [Do.QUEUE]),
        ],
    ),
    "of bytes in all": (
        {"queue_bytes": 100, "session_share": 0.5},
        [
            (1, 0, 40, [Do.QUEUE]), (1, 1, 20, [Do.FULL]), (2, 0, 50, [Do.QUEUE]),
            (3, 0, 11, [Do.FULL]), (3, 0, 10, [Do.QUEUE]),
        ],
    ),
    "of bytes, for one body that is larger": (
        {"queue_bytes": 10}, [(1, 0, 1000, [Do.QUEUE]), (2, 0, 1, [Do.FULL])],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("limits", "requests"), BOUNDS.values(), ids=BOUNDS)
def test_g8_past_a_bound_a_request_is_refused_for_now(limits, requests):
    cache = cache_with(**limits)
    sessions = {number: session_of(cache, number) for number, *_ in requests}
    refused = 0
    for number, sequence, size, do in requests:
        assert dos(cache.request(sessions[number], sequence, ask(b"x" * size))) == do
        is_refused = do in ([Do.WINDOW], [Do.FULL])
        assert (sessions[number].state(sequence) is State.NOT_SEEN) is is_refused
        refused += is_refused
    assert cache.counters.refused_for_now == refused


def test_a_hostile_peer_grew_the_finished_spans_by_single_cancels():
    """Only finishes were bounded; cancels, and finished entries, were not (G8)."""
    cache = cache_with(window=2)
    session = session_of(cache)
    for sequence in range(0, 50, 2):
        cache.request(session, sequence, ask())
        cache.cancel(session, sequence)
    assert session.finished.span_count() <= 3
    assert len(session.tickets) <= 2


def test_deadlines_of_waiting_requests_grew_the_kept_outcomes_past_all_bounds():
    """Each left the queue, which made room for the next (G8)."""
    cache = cache_with(queue=3, kept_outcomes=2, session_share=1.0)
    sessions = [session_of(cache, number) for number in range(1, 4)]
    for sequence in range(20):
        for session in sessions:
            cache.request(session, sequence, ask())
            cache.step(session, sequence, Input.DEADLINE, lambda entry: kept(b"late"))
    assert cache.kept_count + cache.queued_count <= 3 + 2


def test_one_session_filled_the_queue_for_all_with_large_bodies():
    """Only the kept outcomes had a share for each session (G8)."""
    pair = Pair(ready=False, server={"queue_bytes": 1000})
    pair.submit_many(5, b"x" * 200)
    assert pair.router.accounts.all.held_bytes == 400
    pair.ask(pair.stranger(), body=b"y" * 400)
    assert pair.router.accounts.all.held_bytes == 800


# -- deadlines of what never ran -------------------------------------------------
# A client with a full worker asked for 10,000 more with a short deadline and was then
# suspended.  Each ended with "it did not run", which is an outcome and is kept; at the
# bound of kept outcomes the server dispatched nothing more, for anybody, until the
# lease of that client had ended: ten minutes.
#
# What never ran takes up room of its session's share of the queue, and stops nobody.


CAPACITY, KEPT, QUEUE = 2, 6, 20


def with_deadlines_passed(count: int) -> Pair:
    """A client fills the worker, and fetches none of ``count`` that were too late."""
    pair, session = Pair.with_stranger(
        server={"kept_outcomes": KEPT, "worker_capacity": CAPACITY, "queue": QUEUE}
    )
    for sequence in range(CAPACITY):
        pair.ask(session, sequence)
    for sequence in range(CAPACITY, CAPACITY + count):
        pair.ask(session, sequence, deadline_s=0.1)
        pair.advance(0.25)
    return pair


def test_another_client_runs_as_much_as_before():
    pair = with_deadlines_passed(KEPT + 1)
    assert pair.router.accounts.all.kept_count == KEPT + 1
    for run in pair.runs[:]:
        pair.end(run)
    pair.submit()
    pair.submit()
    assert len(pair.runs) == 2 * CAPACITY  # a server full of outcomes would let one run


def test_they_are_bounded_as_the_queue_is_and_leave_room_in_it_for_others():
    pair = with_deadlines_passed(3 * QUEUE)
    assert pair.router.accounts.all.kept_count == QUEUE / 2
    assert isinstance(pair.heard(), Refused)
    pair.submit()
    assert len(pair.router.queue) == 1


# -- failures that servers of this kind are known for ----------------------------


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


def test_failure_05_kept_outcome_is_evicted_at_the_entry_limit():
    """The same past the entry limit: the oldest outcome makes room for the newest, and
    its client's retry runs again.

    Here nothing that has run is thrown away for what has not (G8): at the bound
    dispatching pauses, and goes on when clients have their outcomes.
    """
    pair = Pair(rerun=True, server={"kept_outcomes": 4, "session_share": 1.0})
    pair.lose = lambda message: isinstance(message, messages.Outcome)
    bodies = [b"%d" % number for number in range(12)]
    calls = [pair.submit(body) for body in bodies]
    pair.end_what_runs()
    pair.advance(5.0)

    pair.lose = lambda message: False
    taken: set[int] = set()
    for _ in range(10):
        pair.advance(2.0)
        pair.end_what_runs()
        pair.receive(*pair.endings.keys() - taken)
        taken.update(pair.endings)
    assert sorted(bytes(run.body) for _, run in pair.runs) == sorted(bodies), "each once"
    assert [pair.result(call) for call in calls] == [b"outcome of " + body for body in bodies]


def test_failure_17_kept_outcomes_are_bounded_in_number_but_not_in_bytes():
    """10,000 outcomes may be kept, of 5 MB each.

    Here bytes have a bound too, in all and for each session (G8): past it dispatching
    pauses, so what is kept is at most the bound and what was running.
    """
    bound, size, at_once = 40_000, 5_000, 2
    limits = {"kept_bytes": bound, "session_share": 1.0, "worker_capacity": at_once}
    pair = Pair(server=limits)
    pair.lose = lambda message: isinstance(message, messages.Outcome)
    calls = [pair.submit(b"%d" % number) for number in range(50)]
    pair.end_what_runs(bytes(size))
    kept_bytes = pair.router.stats()["kept_bytes"]
    assert bound <= kept_bytes <= bound + at_once * 2 * size, "kept without a bound"
    assert len(pair.runs) < len(calls), "the rest waits"

    pair.lose = lambda message: False
    taken: set[int] = set()
    for _ in range(20):
        pair.advance(2.0)
        pair.receive(*pair.endings.keys() - taken)
        taken.update(pair.endings)
        pair.end_what_runs(bytes(size))
    assert len(taken) == len(pair.runs) == len(calls)


# -- Sessions: who gets one, for how long, and what is left of it (G8) ---------

NONCE = 7000


def hello(number: int) -> Hello:
    return Hello(1, identifier(NONCE + number), 1, "flood", 1 << 20)


def opened(cache: DedupCache, number: int, route: bytes, now_s: float = 0.0) -> Session | None:
    return cache.open(
        identifier(number), identifier(NONCE + number), "x", route, 1, now_s
    )  # fmt: skip


# -- a connection's share -----------------------------------------------------


def test_a_flood_of_hellos_on_one_connection_took_the_sessions_of_all_others():
    """New clients got none until the lease had ended, and nothing was in the log."""
    pair = Pair(server={"sessions": 100, "connection_sessions": 10}, welcomed=False)
    for number in range(1000):
        pair.tell(hello(number), route=STRANGER)
    welcomes = pair.mailed(messages.Welcome)
    refusals = pair.mailed(messages.Error)
    assert (len(welcomes), len(refusals)) == (10, 990)
    assert refusals[0].code == "no-session"
    assert "10 sessions were opened on this connection" in refusals[0].text
    assert pair.router.stats()["cache"]["sessions_refused"] == 990
    said = [r.text for r in pair.reports if "gets no session" in r.text]
    assert 0 < len(said) <= pair.router.limits.log_rate
    assert "flood" in said[0]
    pair.connect()
    assert pair.client.sessions.current is not None


def test_what_is_counted_of_connections_goes_with_their_sessions():
    cache = cache_with()
    for number in range(50):
        session = opened(cache, number, b"route %d" % number)
        assert session is not None
        cache.end(session)
        cache.forget(session)
    assert not cache._opened
    assert not cache._idle


# -- sessions that make room --------------------------------------------------


def test_a_flood_of_hellos_on_many_connections_took_the_sessions_of_all_others():
    """A client that came then was not served for as long as theirs were kept."""
    pair = Pair(server={"sessions": 5}, welcomed=False)
    for number in range(50):
        pair.tell(hello(number), route=b"route %d" % number)
    pair.connect()
    assert pair.client.sessions.current is not None
    assert len(pair.router.sessions.known) == 5
    assert pair.router.works.counters.sessions_refused == 0


def test_of_the_idle_sessions_the_one_unheard_for_longest_makes_room():
    cache = cache_with(sessions=3)
    one, two, three = (opened(cache, n, b"%d" % n) for n in (1, 2, 3))
    assert one is not None
    assert two is not None
    cache.request(one, 0, ask())
    cache.heard(two, 1.0)
    assert opened(cache, 4, b"4", 2.0) is not None
    assert three is not None
    assert three.ended
    assert three.id not in cache.sessions
    assert opened(cache, 5, b"5", 2.0) is not None
    assert two.ended
    cache.cancel(one, 0)
    assert opened(cache, 6, b"6", 2.0) is not None  # one is idle, but was heard last
    assert not one.ended


def flooded(pair: Pair) -> None:
    for number in range(100):
        pair.tell(hello(number), route=b"route %d" % number)


@pytest.mark.parametrize("limit_s", [None, 60.0])
def test_what_is_asked_in_a_session_that_made_room_did_not_run_and_is_asked_again(limit_s):
    pair = Pair(server={"sessions": 5})
    first = pair.client.sessions.current
    flooded(pair)
    pair.submit(rerun=False, limit_s=limit_s)
    pair.settle()
    pair.advance(1.0)
    assert pair.client.sessions.current is not first
    assert len(pair.runs) == 1
    pair.end()
    assert [type(answer) for answer in pair.answers] == [Answer]


def test_past_what_it_may_remember_no_session_is_said_to_be_settled():
    """Those of which it is not so are remembered, as many as there may be sessions."""
    cache = cache_with(sessions=2)
    for number in range(4):
        session = opened(cache, number, b"%d" % number)
        assert session is not None
        cache.request(session, 0, ask())
        cache.end(session)
        cache.forget(session)
        assert cache.settled(identifier(99)) == (number < 2)
    assert not any(cache.settled(identifier(number)) for number in range(4))
    assert len(cache._unsettled) == 2


def test_a_client_that_slept_asks_nothing_before_it_knows_that_its_session_is_there():
    """What is asked in a session that was forgotten may have run."""
    pair = Pair(server={"lease_s": 10.0})
    first = pair.client.sessions.current
    for _ in range(30):  # the client is stopped, the server is not
        pair.now_s += 1.0
        pair.give(Tick(pair.now_s))
    pair.submit()
    assert pair.runs == []
    pair.client_takes(ClientTick(pair.now_s, late_s=29.0))
    pair.advance(1.0)
    assert pair.client.sessions.current is not first
    assert len(pair.runs) == 1


# -- goodbye ------------------------------------------------------------------


def test_a_client_that_was_closed_before_its_welcome_left_a_session():
    pair = Pair(welcomed=False)
    pair.lose = lambda message: isinstance(message, messages.Welcome)
    pair.connect()
    assert len(pair.router.sessions.known) == 1
    pair.close_client()
    assert len(pair.router.sessions.known) == 0


def test_a_hello_that_came_after_the_goodbye_opened_another_session():
    pair = Pair()
    said = next(m for m in pair.sent if isinstance(m, Hello))
    pair.close_client()
    pair.tell(said, route=b"late")
    assert len(pair.router.sessions.known) == 0
    error = pair.heard()
    assert isinstance(error, messages.Error)
    assert "fresh nonce" in error.text


def test_a_goodbye_said_again_was_forgotten_as_if_it_had_been_said_once():
    cache = cache_with(sessions=3)
    for number in (1, 2, 3, 1, 4, 5):
        cache.goodbye(identifier(number))
    assert cache.no_session(identifier(1), b"a")


# -- what happens to a session ---------------------------------------------------


def test_g4_what_an_older_connection_carried_is_replayed_on_the_new_one():
    cache, session = made(State.COMPLETED)
    outcome = session.tickets[0].kept
    assert outcome is not None
    outcome.sent_probe = 0  # as the router marks it when it sends
    cache.moved(session, b"new", 2)
    effects, _ = cache.sync(session, 1, Ranges((0,)), 0)
    assert dos(effects) == [Do.ANSWER]


def test_a_session_was_forgotten_twice_when_one_worker_died_with_two_of_its_executions():
    """KeyError in the router: both ends came after both executions were over."""
    pair = Pair.asked()
    pair.submit()
    session = pair.session
    pair.close_client()
    pair.die(b"w0-1")
    assert session.id not in pair.router.sessions.known


# -- Bounds are shared: those who never give back leave enough for the others (G8)

KEPT_MOST = 800
AT_ONCE = 64


def takes_all_it_may(
    cache: DedupCache, session: Session, size_bytes: int = 1, sequence: int = 0
) -> int:
    """It asks, never fetches, and asks again: how many of its outcomes are kept then."""
    while cache.share_left(session):
        cache.request(session, sequence, ask())
        cache.step(session, sequence, RequestInput.DISPATCH, object())
        cache.step(session, sequence, RequestInput.OUTCOME, kept(b"x" * size_bytes))
        sequence += 1
    return sequence


def test_each_session_takes_its_share_of_what_the_others_leave():
    cache = cache_with(kept_outcomes=KEPT_MOST, session_share=0.5)
    hogs = [takes_all_it_may(cache, session_of(cache, n)) for n in range(4)]
    assert hogs == [400, 200, 100, 50]
    assert cache.may_dispatch()


def asks_all_it_may(cache: DedupCache, session: Session) -> int:
    """How many of its requests wait then."""
    for sequence in range(10_000, 11_000):
        cache.request(session, sequence, ask())
    return session.queued_count


def hogs_and_one(
    takes: Callable[[DedupCache, Session], int], **limits: int
) -> tuple[DedupCache, Session]:
    """So many sessions that took all they could that nothing is left, and another one."""
    cache = cache_with(sessions=100, connection_sessions=100, session_share=0.5, **limits)
    for number in range(50):
        takes(cache, session_of(cache, number))
    return cache, session_of(cache, 60)


def test_many_sessions_that_never_finish_left_no_room_in_the_queue_for_any_other():
    """An honest client stood still until their leases ended."""
    cache, honest = hogs_and_one(asks_all_it_may, queue=800)
    assert cache.queued_count >= 800
    assert asks_all_it_may(cache, honest) == 8  # its own part: a hundredth


def test_many_sessions_that_never_finish_leave_each_other_its_own_part():
    cache, honest = hogs_and_one(takes_all_it_may, kept_outcomes=800)
    assert not cache.may_dispatch()
    assert takes_all_it_may(cache, honest) == 8


@pytest.mark.parametrize("hogs", [0, 3])
def test_three_sessions_that_never_finished_left_the_others_one_execution_at_a_time(hogs):
    """They fell from 404 to 19 rollouts a second."""
    pair = Pair(server={"kept_outcomes": KEPT_MOST, "worker_capacity": 2 * AT_ONCE})
    for number in range(hogs):
        session = pair.stranger(900 + number)
        for sequence in range(KEPT_MOST):
            pair.ask(session, sequence)
        while runs := [run for run in pair.runs if run[1].client == "other"]:
            pair.runs.clear()
            for run in runs:
                pair.end(run)
    pair.runs.clear()
    pair.submit_many(AT_ONCE)
    rounds = 0
    while runs := pair.runs[:]:
        rounds += 1
        pair.runs.clear()
        for run in runs:
            pair.end(run)
        for answer in pair.answers:
            pair.give_client(OutcomeReceived(answer.call, pair.now_s))
        pair.answers.clear()
        pair.advance(0.03)
    assert pair.client.calls.live == {}
    assert rounds <= 2  # all at once, or nearly


# -- one client at the bound -----------------------------------------------------
# One client had 256 requests running when it was suspended.  Their outcomes filled all
# the room for kept ones, and nothing was dispatched any more: clients that fetched
# theirs at once waited for ten minutes, for the lease of that one to end.
#
# At the bound, whoever has nothing to fetch goes on, with one execution at a time.


BOUND = 4


def at_the_bound(capacity: int = BOUND, **limits: float) -> Pair:
    """Another client runs as many as are kept, and fetches none."""
    bounds = {"kept_outcomes": BOUND, "session_share": 1.0, "worker_capacity": capacity}
    pair, session = Pair.with_stranger(server={**bounds, **limits})
    for sequence in range(BOUND):
        pair.ask(session, sequence)
    for run in pair.runs[:]:
        pair.end(run)
    assert pair.router.accounts.all.kept_count == BOUND
    return pair


def test_one_at_a_time_is_run_for_who_fetches_them():
    pair = at_the_bound()
    pair.submit_many(3)
    for number in range(3):
        assert len(pair.runs) == BOUND + 1 + number
        pair.end()
        assert len(pair.answers) == 1 + number
        pair.receive(number)


def test_who_does_not_fetch_gets_no_further_one():
    pair = at_the_bound()
    pair.submit()
    pair.submit()
    assert len(pair.runs) == BOUND + 1
    pair.end()
    pair.advance(3.0)
    assert len(pair.runs) == BOUND + 1


def test_a_suspect_of_who_fetches_goes_too():
    pair = at_the_bound(restart_pause_s=0.1, restart_pause_max_s=0.1)
    pair.submit(rerun=True)
    pair.die()
    pair.advance(1.0)
    assert [run.client for _, run in pair.runs[BOUND:]] == ["test", "test"]


def test_no_worker_is_reserved_for_a_suspect_that_may_not_run():
    """It drained for one and then stood idle, while others could have used it."""
    suspect = Entry(RequestId(b"a" * 16, 0), b"d" * 16, True, 3, b"", 0, suspicion=(b"w0-0", 1))
    plain = Entry(RequestId(b"b" * 16, 0), b"d" * 16, None, 1, b"", 0)
    worker = Worker(b"w0-1", b"i" * 16, 2)
    pair = Pair.asked()
    execution = worker.start(pair.session, plain, 0.0)
    queue = Scheduler()
    queue.add(suspect)
    assert queue.pick([worker], lambda session: True) is None
    assert worker.duty is Duty.DRAINING
    worker.end(execution)
    queue.add(plain)
    assert queue.pick([worker], lambda session: session == b"b" * 16) == (plain, worker)


# -- The dedup cache: what clients state, what is finished, and what is replayed

# -- finishing and syncing -------------------------------------------------------


# -- an outcome that is under way ------------------------------------------------
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


def test_on_a_new_connection_it_is_replayed_at_once_and_only_once():
    pair = with_an_outcome_lost()
    pair.give_client(Disconnected(pair.now_s, "cut"))
    pair.connect()
    assert outcomes_told(pair) == 2
    sync = next(message for message in reversed(pair.sent) if isinstance(message, Sync))
    pair.router_takes(ClientMessage(CLIENT, (messages.encode(sync),), pair.now_s))
    assert outcomes_told(pair) == 2


# -- a finish with endless gaps --------------------------------------------------
# A hostile peer finished every second sequence, as many as fit into a header, again and
# again.  Each was refused, but only after it had been merged, span by span, into a copy
# of what was finished before: a second of the server's time for one message.


WINDOW = 4


def edges(count: int) -> list[int]:
    """That many spans of one sequence each, with a gap after each."""
    return list(range(2 * count))


@pytest.mark.parametrize("count", [WINDOW + 2, 10_000])
def test_it_is_refused_by_its_number_of_spans(count: int, monkeypatch: Any):
    pair, session = Pair.with_stranger(server={"window": WINDOW})
    merged = []

    def update(self: Ranges, other: Ranges) -> None:
        merged.append(other.span_count())

    monkeypatch.setattr(Ranges, "update", update)
    pair.tell(messages.Finish(session, edges(count)), route=b"stranger")
    assert merged == []
    assert pair.router.sessions.known[session].finished == Ranges()


# -- a huge span that is finished ------------------------------------------------
# A client, broken or hostile, finished every sequence up to 2^62: the server must not go
# through them one by one.


@pytest.mark.parametrize("name", ["finish", "sync"])
def test_neither_does_the_server_walk_through_what_a_client_finishes(name: str, monkeypatch: Any):
    pair, session = Pair.with_stranger()
    for sequence in range(3):
        pair.ask(session, sequence)
    monkeypatch.setattr(Ranges, "__iter__", limited)
    finish = messages.Finish(session, ALL)
    sync = messages.Sync(session, pair.router.epoch, 1, 1, 2**62, [])
    pair.tell(finish if name == "finish" else sync, route=b"stranger")
    assert not pair.router.sessions.known[session].entries
    assert len(pair.cancels) == 3
