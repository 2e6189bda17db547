"""Sessions: who gets one, for how long, and what is left of it (G8)."""

from __future__ import annotations

from trio_envserve.core import messages
from trio_envserve.core.dedup import DedupCache
from trio_envserve.core.messages import Goodbye, Hello
from trio_envserve.core.requests import Session

from .helpers import CLIENT, STRANGER, Pair, ask, cache_with, identifier

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
    pair.client.connected(pair.now_s)
    pair.settle()
    assert pair.client.session is not None


def test_a_connection_that_ends_a_session_may_open_another():
    cache = cache_with(connection_sessions=1)
    first = opened(cache, 1, b"a")
    assert first is not None
    assert opened(cache, 2, b"a") is None
    assert opened(cache, 3, b"b") is not None
    cache.end(first)
    assert opened(cache, 2, b"a") is None  # it is not forgotten yet
    cache.forget(first)
    assert opened(cache, 2, b"a") is not None


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
    assert not cache._unused


# -- sessions that never asked anything ---------------------------------------


def test_a_session_that_never_asked_anything_goes_soon():
    cache = cache_with(unused_lease_s=10.0, lease_s=100.0)
    unused, used = opened(cache, 1, b"a"), opened(cache, 2, b"b")
    assert unused is not None
    assert used is not None
    cache.request(used, 0, ask())
    assert list(cache.lapsed(10.0)) == []
    assert list(cache.lapsed(10.1)) == [unused]
    cache.end(unused)
    assert list(cache.lapsed(10.1)) == []
    assert list(cache.lapsed(100.1)) == [used]


def test_a_client_that_pings_keeps_its_session_though_it_asks_nothing():
    cache = cache_with(unused_lease_s=10.0)
    one, two = opened(cache, 1, b"a"), opened(cache, 2, b"b")
    assert one is not None
    cache.heard(one, 8.0)
    assert list(cache.lapsed(15.0)) == [two]


def test_sessions_come_back_when_those_that_flooded_are_silent():
    pair = Pair(server={"sessions": 5, "unused_lease_s": 10.0}, welcomed=False)
    for number in range(5):
        pair.tell(hello(number), route=b"route %d" % number)
    pair.client.connected(pair.now_s)
    pair.settle()
    assert pair.client.session is None
    pair.advance(12.0)
    assert pair.client.session is not None


def test_a_client_that_slept_asks_nothing_before_it_knows_that_its_session_is_there():
    """What is asked in a session that was forgotten may have run: nobody can say."""
    pair = Pair(server={"unused_lease_s": 10.0})
    first = pair.client.session
    for _ in range(30):  # the client is stopped, the server is not
        pair.now_s += 1.0
        pair.router.tick(pair.now_s)
    pair.submit()
    assert pair.runs == []
    pair.client.tick(pair.now_s, late_s=29.0)
    pair.settle()
    pair.advance(1.0)
    assert pair.client.session is not first
    assert len(pair.runs) == 1


# -- goodbye ------------------------------------------------------------------


def test_a_client_that_was_closed_before_its_welcome_left_a_session():
    pair = Pair(welcomed=False)
    pair.lose = lambda message: isinstance(message, messages.Welcome)
    pair.client.connected(pair.now_s)
    pair.settle()
    assert len(pair.router.cache.sessions) == 1
    pair.client.close(pair.now_s)
    pair.settle()
    assert len(pair.router.cache.sessions) == 0


def test_a_client_that_never_said_hello_has_no_goodbye_to_say():
    pair = Pair(welcomed=False)
    pair.client.close(pair.now_s)
    pair.settle()
    assert pair.sent == []


def test_a_hello_that_came_after_the_goodbye_opened_another_session():
    pair = Pair()
    said = next(m for m in pair.sent if isinstance(m, Hello))
    pair.client.close(pair.now_s)
    pair.settle()
    pair.tell(said, route=b"late")
    assert len(pair.router.cache.sessions) == 0
    error = pair.mail[-1][1]
    assert isinstance(error, messages.Error)
    assert "fresh nonce" in error.text


def test_a_hello_that_its_goodbye_overtook_opens_nothing():
    pair = Pair(welcomed=False)
    pair.tell(Goodbye(identifier(NONCE)), route=CLIENT)
    pair.tell(hello(0), route=STRANGER)
    assert len(pair.router.cache.sessions) == 0


def test_nonces_of_those_who_left_are_bounded_as_sessions_are():
    cache = cache_with(sessions=3)
    for number in range(10):
        cache.goodbye(identifier(number))
    assert list(cache._ended) == [identifier(number) for number in (7, 8, 9)]
