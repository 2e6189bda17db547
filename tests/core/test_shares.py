"""Bounds are shared: those who never give back leave enough for the others (G8)."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages
from trio_envserve.core.dedup import DedupCache, Input
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.requests import Session, State

from .helpers import Pair, ask, cache_with, identifier, kept, session_of

KEPT = 800
AT_ONCE = 64


def takes_all_it_may(cache: DedupCache, session: Session, size_bytes: int = 1) -> int:
    """It asks, never fetches, and asks again: how many of its outcomes are kept then."""
    sequence = 0
    while cache.share_left(session):
        cache.request(session, sequence, ask())
        cache.step(session, sequence, Input.DISPATCH, object())
        cache.step(session, sequence, Input.OUTCOME, kept(b"x" * size_bytes))
        sequence += 1
    return sequence


def test_each_session_takes_its_share_of_what_the_others_leave():
    cache = cache_with(kept_outcomes=KEPT, session_share=0.5)
    hogs = [takes_all_it_may(cache, session_of(cache, n)) for n in range(4)]
    assert hogs == [400, 200, 100, 50]
    assert cache.may_dispatch()


def test_bytes_are_shared_in_the_same_way():
    cache = cache_with(kept_bytes=8000, session_share=0.5)
    hogs = [takes_all_it_may(cache, session_of(cache, n), 10) for n in range(4)]
    assert hogs == [400, 200, 100, 50]


def test_what_is_given_back_is_there_again():
    cache = cache_with(kept_outcomes=KEPT, session_share=0.5)
    one, two = session_of(cache, 1), session_of(cache, 2)
    assert (takes_all_it_may(cache, one), takes_all_it_may(cache, two)) == (400, 200)
    cache.finish_spans(one, Ranges([*range(400)]))
    assert cache.share_left(two)


def test_what_runs_takes_up_room_before_it_is_kept():
    """So what is kept never passes its bound by what was running."""
    cache = cache_with(kept_outcomes=10, session_share=0.5)
    session = session_of(cache)
    for sequence in range(5):
        assert cache.share_left(session)
        cache.request(session, sequence, ask())
        cache.step(session, sequence, Input.DISPATCH, object())
    assert not cache.share_left(session)
    assert session.state(0) is State.RUNNING


def test_at_the_bound_of_all_each_goes_on_with_one():
    cache = cache_with(kept_outcomes=4, session_share=1.0)
    one, two = session_of(cache, 1), session_of(cache, 2)
    assert takes_all_it_may(cache, one) == 4
    assert not cache.may_dispatch()
    assert takes_all_it_may(cache, two) == 1


def test_the_queue_is_shared_in_the_same_way():
    cache = cache_with(queue=800, session_share=0.5)
    entered = []
    for number in range(3):
        session = session_of(cache, number)
        for sequence in range(1000):
            cache.request(session, sequence, ask())
        entered.append(session.queued_count)
    assert entered == [400, 200, 100]


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
            pair.client.received(answer.call, pair.now_s)
        pair.answers.clear()
        pair.advance(0.03)
    assert pair.client.calls == {}
    assert rounds <= 2  # all at once, or nearly


def test_a_client_past_its_share_goes_on_when_it_has_fetched():
    pair = Pair(server={"kept_outcomes": 4, "session_share": 0.5})
    session = pair.stranger()
    for sequence in range(3):
        pair.ask(session, sequence)
    for run in pair.runs[:]:
        pair.end(run)
    assert len(pair.runs) == 2
    pair.tell(messages.Finish(session, [0, 1]), route=b"stranger")
    assert len(pair.runs) == 3
    assert identifier(1)
