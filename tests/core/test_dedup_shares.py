"""Bounds are shared: those who never give back leave enough for the others (G8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trio_envserve.core.client_inputs import OutcomeReceived
from trio_envserve.core.dedup import DedupCache
from trio_envserve.core.executions import Duty, Worker
from trio_envserve.core.request_table import RequestInput
from trio_envserve.core.requests import Entry, RequestState, Session
from trio_envserve.core.scheduler import Scheduler
from trio_envserve.core.terms import RequestId

from .helpers import Pair, ask, cache_with, kept, session_of

KEPT = 800
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
    cache = cache_with(kept_outcomes=KEPT, session_share=0.5)
    hogs = [takes_all_it_may(cache, session_of(cache, n)) for n in range(4)]
    assert hogs == [400, 200, 100, 50]
    assert cache.may_dispatch()


def test_what_runs_takes_up_room_before_it_is_kept():
    """So what is kept never passes its bound by what was running."""
    cache = cache_with(kept_outcomes=10, session_share=0.5)
    session = session_of(cache)
    for sequence in range(5):
        assert cache.share_left(session)
        cache.request(session, sequence, ask())
        cache.step(session, sequence, RequestInput.DISPATCH, object())
    assert not cache.share_left(session)
    assert session.state(0) is RequestState.RUNNING


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
    pair = Pair(server={"kept_outcomes": KEPT, "worker_capacity": 2 * AT_ONCE})
    for number in range(hogs):
        session = pair.stranger(900 + number)
        for sequence in range(KEPT):
            pair.ask(session, sequence)
        while runs := [run for run in pair.runs if run[1].client == "other"]:
            pair.runs.clear()
            for run in runs:
                pair.end(run)
    pair.runs.clear()
    for _ in range(AT_ONCE):
        pair.submit()
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
    pair = Pair(server={**bounds, **limits})
    session = pair.stranger()
    for sequence in range(BOUND):
        pair.ask(session, sequence)
    for run in pair.runs[:]:
        pair.end(run)
    assert pair.router.cache.kept_count == BOUND
    return pair


def test_one_at_a_time_is_run_for_who_fetches_them():
    pair = at_the_bound()
    for _ in range(3):
        pair.submit()
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
    pair = Pair()
    pair.submit()
    execution = worker.start(pair.session, plain, 0.0)
    queue = Scheduler()
    queue.add(suspect)
    assert queue.pick([worker], lambda session: True) is None
    assert worker.duty is Duty.DRAINING
    worker.end(execution)
    queue.add(plain)
    assert queue.pick([worker], lambda session: session == b"b" * 16) == (plain, worker)
