"""Sessions: who gets one, for how long, and what is left of it (G8)."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.client_inputs import ClientClosed, ClientTick, Connected
from trio_envserve.core.dedup import DedupCache
from trio_envserve.core.messages import Hello
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.request_table import RequestAction as Do
from trio_envserve.core.requests import RequestState as State
from trio_envserve.core.requests import Session
from trio_envserve.core.router_inputs import Tick

from .dedup_states import made, reach
from .helpers import STRANGER, Pair, ask, cache_with, dos, identifier, session_of

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
    welcomes = [m for _, m in pair.mail if isinstance(m, messages.Welcome)]
    refusals = [m for _, m in pair.mail if isinstance(m, messages.Error)]
    assert (len(welcomes), len(refusals)) == (10, 990)
    assert refusals[0].code == "no-session"
    assert "10 sessions were opened on this connection" in refusals[0].text
    assert pair.router.stats()["cache"]["sessions_refused"] == 990
    said = [r.text for r in pair.reports if "gets no session" in r.text]
    assert 0 < len(said) <= pair.router.limits.log_rate
    assert "flood" in said[0]
    pair.give_client(Connected(pair.now_s))
    pair.settle()
    assert pair.client.sessions.current is not None


def test_a_session_counts_where_it_was_opened_wherever_it_has_moved():
    """Else two connections could hand sessions to each other, and open more."""
    cache = cache_with(connection_sessions=1)
    first = opened(cache, 1, b"a")
    assert first is not None
    cache.moved(first, b"b", 2)
    assert opened(cache, 2, b"a") is None
    assert opened(cache, 3, b"b") is not None


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
    pair.give_client(Connected(pair.now_s))
    pair.settle()
    assert pair.client.sessions.current is not None
    assert len(pair.router.cache.sessions) == 5
    assert pair.router.cache.counters.sessions_refused == 0


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


def test_a_session_whose_lease_has_ended_is_settled_if_all_of_it_was_finished():
    cache = cache_with(sessions=2)
    one, two = opened(cache, 1, b"1"), opened(cache, 2, b"2")
    assert one is not None
    assert two is not None
    cache.request(one, 0, ask())
    for session in (one, two):
        cache.end(session)
        cache.forget(session)
    assert not cache.settled(one.id)
    assert cache.settled(two.id)


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
    pair.give_client(ClientTick(pair.now_s, late_s=29.0))
    pair.settle()
    pair.advance(1.0)
    assert pair.client.sessions.current is not first
    assert len(pair.runs) == 1


# -- goodbye ------------------------------------------------------------------


def test_a_client_that_was_closed_before_its_welcome_left_a_session():
    pair = Pair(welcomed=False)
    pair.lose = lambda message: isinstance(message, messages.Welcome)
    pair.give_client(Connected(pair.now_s))
    pair.settle()
    assert len(pair.router.cache.sessions) == 1
    pair.give_client(ClientClosed(pair.now_s))
    pair.settle()
    assert len(pair.router.cache.sessions) == 0


def test_a_hello_that_came_after_the_goodbye_opened_another_session():
    pair = Pair()
    said = next(m for m in pair.sent if isinstance(m, Hello))
    pair.give_client(ClientClosed(pair.now_s))
    pair.settle()
    pair.tell(said, route=b"late")
    assert len(pair.router.cache.sessions) == 0
    error = pair.mail[-1][1]
    assert isinstance(error, messages.Error)
    assert "fresh nonce" in error.text


def test_a_goodbye_said_again_was_forgotten_as_if_it_had_been_said_once():
    cache = cache_with(sessions=3)
    for number in (1, 2, 3, 1, 4, 5):
        cache.goodbye(identifier(number))
    assert cache.no_session(identifier(1), b"a")


# -- what happens to a session ---------------------------------------------------


def open_again(cache: DedupCache, nonce: int, connection: int = 1, route: bytes = b"route") -> Any:
    return cache.open(identifier(500), identifier(nonce + 1000), "x", route, connection, 9.0)


def test_g8_past_the_bound_of_sessions_none_is_opened_but_known_ones_are_found():
    cache = cache_with(sessions=1)
    session = session_of(cache)
    cache.request(session, 0, ask())
    assert open_again(cache, 2) is None
    assert open_again(cache, 1) is session


def test_g7_a_lease_ends_after_silence_and_not_before():
    cache = cache_with(lease_s=10.0)
    quiet, heard = session_of(cache, 1), session_of(cache, 2)
    cache.heard(heard, 5.0)
    assert list(cache.lapsed(10.0)) == []
    assert list(cache.lapsed(10.1)) == [quiet]
    assert list(cache.lapsed(15.1)) == [quiet, heard]
    cache.end(quiet)
    assert cache.counters.sessions_ended == 1
    assert list(cache.lapsed(15.1)) == [heard]


def test_g7_a_hello_is_a_sign_of_life():
    cache = cache_with(lease_s=10.0)
    session_of(cache, 1)
    open_again(cache, 1)  # 9 s later
    assert list(cache.lapsed(18.9)) == []


def test_g4_what_an_older_connection_carried_is_replayed_on_the_new_one():
    cache, session = made(State.COMPLETED)
    outcome = session.entries[0].kept
    assert outcome is not None
    outcome.sent_probe = 0  # as the router marks it when it sends
    cache.moved(session, b"new", 2)
    effects, _ = cache.sync(session, 1, Ranges((0,)), 0)
    assert dos(effects) == [Do.ANSWER]


def test_g2_before_the_environment_has_declared_anything_there_is_no_consent():
    cache, session = made(State.RUNNING, rerun=None, allowance=3)
    assert not cache.may_rerun(session.entries[0])


def test_g7_the_end_of_a_session_cancels_all_that_is_left():
    cache = cache_with()
    session = session_of(cache)
    for sequence, state in enumerate((State.WAITING, State.RUNNING, State.COMPLETED)):
        reach(cache, session, state, sequence)
    assert dos(cache.end(session)) == [Do.UNQUEUE, Do.STOP]
    assert not session.entries
    assert (cache.kept_count, cache.kept_bytes, cache.queued_count, cache.held_bytes) == (0,) * 4
    assert session.state(7) is State.FINISHED  # an ended session takes no new request
    assert open_again(cache, 1) is None


def test_g4_a_session_is_forgotten_only_when_ended_and_nothing_of_it_runs():
    cache = cache_with()
    session = session_of(cache)
    assert not cache.forget(session)
    session.live_executions = 1
    cache.end(session)
    assert not cache.forget(session)
    session.live_executions = 0
    assert cache.forget(session)
    assert session.id not in cache.sessions
    assert open_again(cache, 1) is not session


def test_a_session_was_forgotten_twice_when_one_worker_died_with_two_of_its_executions():
    """KeyError in the router: both ends came after both executions were over."""
    pair = Pair()
    pair.submit()
    pair.submit()
    session = pair.session
    pair.give_client(ClientClosed(pair.now_s))
    pair.settle()
    pair.die(b"w0-1")
    assert session.id not in pair.router.cache.sessions
