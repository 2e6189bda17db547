"""The dedup cache: its bounds (G8)."""

from __future__ import annotations

import pytest

from tests.regressions.bench import System, is_outcome
from trio_envserve.core import messages
from trio_envserve.core.client_inputs import Disconnected
from trio_envserve.core.messages import Refused
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.request_table import RequestAction as Do
from trio_envserve.core.request_table import RequestInput as Input
from trio_envserve.core.requests import Owner
from trio_envserve.core.requests import RequestState as State

from .dedup_states import EXECUTION, reach
from .helpers import STRANGER, Pair, ask, cache_with, dos, identifier, kept, session_of

# -- bounds ----------------------------------------------------------------------


def test_g8_as_many_gaps_as_a_window_can_leave_are_finished():
    cache = cache_with(window=2)
    session = session_of(cache)
    session.finished.add(0)
    cache.finish_spans(session, Ranges((0, 2, 4)))
    assert session.finished == Ranges((0, 2, 4))


def test_g8_past_the_window_a_request_is_refused_for_now():
    cache = cache_with(window=2)
    session = session_of(cache)
    for sequence in range(2):
        cache.request(session, sequence, ask())
    assert cache.request(session, 2, ask()) == ((Do.WINDOW, 2),)
    assert session.state(2) is State.NOT_SEEN
    assert dos(cache.request(session, 1, ask())) == []  # known: coalesced
    cache.finish_spans(session, Ranges([0]))
    assert dos(cache.request(session, 2, ask())) == [Do.QUEUE]
    assert cache.counters.refused_for_now == 1


def test_g8_past_the_queue_a_request_is_refused_for_now():
    cache = cache_with(queue=2, session_share=1.0)
    one, two = session_of(cache, 1), session_of(cache, 2)
    cache.request(one, 0, ask())
    cache.request(two, 0, ask())
    assert cache.request(one, 1, ask()) == ((Do.FULL, 1),)
    cache.step(two, 0, Input.DISPATCH, EXECUTION)
    assert dos(cache.request(one, 1, ask())) == [Do.QUEUE]
    assert cache.counters.refused_for_now == 1


def test_g8_who_has_nothing_in_a_full_queue_may_enter_one():
    cache = cache_with(queue=2, sessions=10, session_share=1.0)
    one, two = session_of(cache, 1), session_of(cache, 2)
    cache.request(one, 0, ask())
    cache.request(one, 1, ask())
    assert dos(cache.request(two, 0, ask())) == [Do.QUEUE]


def test_g8_a_share_of_bytes_is_of_what_the_others_leave():
    cache = cache_with(queue_bytes=100, sessions=10, session_share=0.5)
    one, two = session_of(cache, 1), session_of(cache, 2)
    assert dos(cache.request(two, 0, ask(body=bytes(40)))) == [Do.QUEUE]
    assert dos(cache.request(one, 0, ask(body=bytes(10)))) == [Do.QUEUE]
    assert dos(cache.request(one, 1, ask(body=bytes(21)))) == [Do.FULL]
    assert dos(cache.request(one, 1, ask(body=bytes(20)))) == [Do.QUEUE]


def test_the_owner_of_sessions_knows_what_all_of_them_hold():
    cache, owner = cache_with(), Owner("key")
    one, two = session_of(cache, 1), session_of(cache, 2)
    one.owner = two.owner = owner
    cache.request(one, 0, ask())
    cache.request(two, 0, ask())
    assert owner.unfinished == 2
    cache.finish_spans(one, Ranges([0]))
    assert owner.unfinished == 1
    cache.end(two)
    assert owner.unfinished == 0


def test_g8_one_session_gets_no_more_than_its_share_of_the_queue():
    cache = cache_with(queue=4, session_share=0.5)
    one, two = session_of(cache, 1), session_of(cache, 2)
    for sequence in range(2):
        assert dos(cache.request(one, sequence, ask())) == [Do.QUEUE]
    assert dos(cache.request(one, 2, ask())) == [Do.FULL]
    assert dos(cache.request(two, 0, ask())) == [Do.QUEUE]


@pytest.mark.parametrize("who", ["all", "its session"])
def test_g8_outcomes_of_what_never_ran_take_up_room_of_the_queue(who):
    cache = cache_with(queue=4) if who == "all" else cache_with(queue=6, session_share=0.5)
    one = session_of(cache, 1)
    other = session_of(cache, 2) if who == "all" else one
    if who == "all":  # a session of which nothing waits may always have one there
        assert dos(cache.request(other, 0, ask())) == [Do.QUEUE]
    for sequence in range(3):
        assert dos(cache.request(one, sequence, ask())) == [Do.QUEUE]
        if who == "all":
            one = session_of(cache, 3 + sequence)  # each is within its share
    for session in cache.sessions.values():
        for sequence in session.entries:
            if session is one or session is not other:
                cache.step(session, sequence, Input.DEADLINE, lambda entry: kept(b"late"))
    assert cache.kept_unrun == 3
    assert dos(cache.request(other, 9, ask())) == [Do.FULL]
    for session in cache.sessions.values():
        cache.finish_spans(session, Ranges(session.entries))
    assert dos(cache.request(other, 9, ask())) == [Do.QUEUE]


def test_g8_waiting_bodies_are_bounded_in_all_and_for_each_session():
    cache = cache_with(queue_bytes=100, session_share=0.5)
    one, two, three = (session_of(cache, number) for number in (1, 2, 3))
    assert dos(cache.request(one, 0, ask(b"x" * 40))) == [Do.QUEUE]
    assert dos(cache.request(one, 1, ask(b"x" * 20))) == [Do.FULL]
    assert dos(cache.request(two, 0, ask(b"x" * 50))) == [Do.QUEUE]
    assert dos(cache.request(three, 0, ask(b"x" * 11))) == [Do.FULL]
    assert dos(cache.request(three, 0, ask(b"x" * 10))) == [Do.QUEUE]


def test_g8_a_body_larger_than_the_bound_waits_alone():
    cache = cache_with(queue_bytes=10)
    one, two = session_of(cache, 1), session_of(cache, 2)
    assert dos(cache.request(one, 0, ask(b"x" * 1000))) == [Do.QUEUE]
    assert dos(cache.request(two, 0, ask(b"x"))) == [Do.FULL]


def test_g8_at_the_bound_of_kept_outcomes_dispatching_pauses():
    cache = cache_with(kept_outcomes=2, kept_bytes=100, session_share=0.5)
    one, two = session_of(cache, 1), session_of(cache, 2)
    assert cache.may_dispatch()
    assert cache.share_left(one)
    reach(cache, one, State.COMPLETED)
    assert cache.may_dispatch()
    assert not cache.share_left(one)
    assert cache.share_left(two)
    reach(cache, two, State.COMPLETED)
    assert not cache.may_dispatch()
    cache.finish_spans(one, Ranges([0]))
    assert cache.may_dispatch()
    assert cache.share_left(one)


def test_g8_kept_bytes_count_as_kept_outcomes_do():
    cache = cache_with(kept_bytes=20, session_share=0.5)
    one, two = session_of(cache, 1), session_of(cache, 2)
    for session in (one, two):
        reach(cache, session, State.RUNNING)
        cache.step(session, 0, Input.OUTCOME, kept(b"x" * 10))
        assert not cache.share_left(session)
    assert not cache.may_dispatch()


def test_a_hostile_peer_grew_the_finished_spans_by_single_cancels():
    """Only finishes were bounded; cancels, and finished entries, were not (G8)."""
    cache = cache_with(window=2)
    session = session_of(cache)
    for sequence in range(0, 50, 2):
        cache.request(session, sequence, ask())
        cache.cancel(session, sequence)
    assert session.finished.span_count() <= 3
    assert len(session.entries) <= 2


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
    for _ in range(5):
        pair.submit(b"x" * 200)
    assert pair.router.cache.held_bytes == 400
    pair.tell(messages.Hello(1, identifier(5), 1, "other", 1 << 20), route=STRANGER)
    session = pair.mail[-1][1].session  # type: ignore[union-attr]
    request = messages.Request(session, 0, identifier(6), None, 1, None)
    pair.tell(request, b"y" * 400, route=STRANGER)
    assert pair.router.cache.held_bytes == 800


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


# -- failures that servers of this kind are known for ----------------------------


def test_failure_05_kept_outcome_expires_sooner_than_the_retry():
    """The outcome is kept for 300 s and the client retries for 600 s: a client that is
    back after 400 s has the request run again.

    Here an outcome is kept until the client has it (G4); only the lease ends that, it
    is not shorter than the client's patience, and no client that is back outlives it.
    """
    system = System(rerun=True)
    call = system.submit()
    system.lose = is_outcome
    system.give_client(Disconnected(system.now_s, "cut"))
    system.end()
    limits = system.server_limits, system.client.limits
    assert limits[0].lease_s >= limits[1].recovery_s
    system.advance(400.0)
    assert system.ended == {}

    system.lose = lambda message: False
    system.reconnect(b"route 2")
    system.advance(2.0)
    assert len(system.starts) == 1, "it ran again"
    assert system.result(call) == b"outcome"


def test_failure_05_kept_outcome_is_evicted_at_the_entry_limit():
    """The same past the entry limit: the oldest outcome makes room for the newest, and
    its client's retry runs again.

    Here nothing that has run is thrown away for what has not (G8): at the bound
    dispatching pauses, and goes on when clients have their outcomes.
    """
    system = System(rerun=True, server={"kept_outcomes": 4, "session_share": 1.0})
    system.lose = is_outcome
    bodies = [b"%d" % number for number in range(12)]
    calls = [system.submit(body) for body in bodies]
    system.end_all(lambda start: b"outcome of " + start.body)
    system.advance(5.0)

    system.lose = lambda message: False
    taken: set[int] = set()
    for _ in range(10):
        system.advance(2.0)
        system.end_all(lambda start: b"outcome of " + start.body)
        system.received(*system.ended.keys() - taken)
        taken.update(system.ended)
    assert sorted(start.body for start in system.starts) == sorted(bodies), "each once"
    assert [system.result(call) for call in calls] == [b"outcome of " + body for body in bodies]


def test_failure_17_kept_outcomes_are_bounded_in_number_but_not_in_bytes():
    """10,000 outcomes may be kept, of 5 MB each.

    Here bytes have a bound too, in all and for each session (G8): past it dispatching
    pauses, so what is kept is at most the bound and what was running.
    """
    bound, size, at_once = 40_000, 5_000, 2
    limits = {"kept_bytes": bound, "session_share": 1.0, "worker_capacity": at_once}
    system = System(server=limits)
    system.lose = is_outcome
    calls = [system.submit(b"%d" % number) for number in range(50)]
    system.end_all(lambda start: bytes(size))
    kept_bytes = system.router.stats()["kept_bytes"]
    assert bound <= kept_bytes <= bound + at_once * 2 * size, "kept without a bound"
    assert len(system.starts) < len(calls), "the rest waits"

    system.lose = lambda message: False
    taken: set[int] = set()
    for _ in range(20):
        system.advance(2.0)
        system.received(*system.ended.keys() - taken)
        taken.update(system.ended)
        system.end_all(lambda start: bytes(size))
    assert len(taken) == len(system.starts) == len(calls)
