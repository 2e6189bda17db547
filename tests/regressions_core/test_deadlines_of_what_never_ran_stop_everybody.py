"""A client with a full worker asked for 10,000 more with a short deadline and was then
suspended.  Each ended with "it did not run", which is an outcome and is kept; at the
bound of kept outcomes the server dispatched nothing more, for anybody, until the
lease of that client had ended: ten minutes.

What never ran takes up room of its session's share of the queue, and stops nobody.
"""

from tests.core.helpers import Pair
from trio_envserve.core.messages import Refused

CAPACITY, KEPT, QUEUE = 2, 6, 20


def with_deadlines_passed(count: int) -> Pair:
    """A client fills the worker, and fetches none of ``count`` that were too late."""
    pair = Pair(server={"kept_outcomes": KEPT, "worker_capacity": CAPACITY, "queue": QUEUE})
    session = pair.stranger()
    for sequence in range(CAPACITY):
        pair.ask(session, sequence)
    for sequence in range(CAPACITY, CAPACITY + count):
        pair.ask(session, sequence, deadline_s=0.1)
        pair.advance(0.25)
    return pair


def test_another_client_runs_as_much_as_before():
    pair = with_deadlines_passed(KEPT + 1)
    assert pair.router.cache.kept_count == KEPT + 1
    for run in pair.runs[:]:
        pair.end(run)
    pair.submit()
    pair.submit()
    assert len(pair.runs) == 2 * CAPACITY  # a server full of outcomes would let one run


def test_they_are_bounded_as_the_queue_is_and_leave_room_in_it_for_others():
    pair = with_deadlines_passed(3 * QUEUE)
    assert pair.router.cache.kept_count == QUEUE / 2
    assert isinstance(pair.mail[-1][1], Refused)
    pair.submit()
    assert pair.router.cache.queued_count == 1


def test_their_room_is_given_back_with_them():
    pair = with_deadlines_passed(KEPT)
    cache = pair.router.cache
    other = next(s for s in cache.sessions.values() if s is not pair.session)
    assert (cache.kept_unrun, other.kept_unrun) == (KEPT, KEPT)
    cache.end(other)
    assert (cache.kept_unrun, other.kept_unrun) == (0, 0)
