"""One client had 256 requests running when it was suspended.  Their outcomes filled all
the room for kept ones, and nothing was dispatched any more: clients that fetched
theirs at once waited for ten minutes, for the lease of that one to end.

At the bound, whoever has nothing to fetch goes on, with one execution at a time.
"""

from tests.core.helpers import Pair
from trio_envserve.core.executions import Duty, Worker
from trio_envserve.core.requests import Entry
from trio_envserve.core.scheduler import Scheduler
from trio_envserve.core.terms import RequestId

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


def test_it_is_one_at_a_time():
    pair = at_the_bound()
    pair.submit()
    pair.submit()
    assert len(pair.runs) == BOUND + 1


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
