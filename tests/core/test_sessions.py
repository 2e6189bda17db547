"""Sessions: who gets one, for how long, and what is left of it (G8)."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client import Answer, ClientTick
from trio_envserve.core.messages import Hello
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.router_inputs import Tick
from trio_envserve.core.sessions import Session
from trio_envserve.core.work import Ticket

from .bench import Bench
from .helpers import ALL, STRANGER, Pair, identifier, limited

NONCE = 7000


def hello(number: int) -> Hello:
    return Hello(2, identifier(NONCE + number), 1, "flood", 1 << 20, bytes(16))


def opened(bench: Bench, number: int, route: bytes, now_s: float = 0.0) -> Session[Ticket] | None:
    return bench.works.sessions.open(
        identifier(number), bytes(16), identifier(NONCE + number), "x", route, 1, now_s
    )  # fmt: skip


# -- a connection's share -----------------------------------------------------------


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
    bench = Bench()
    sessions = bench.works.sessions
    found = [opened(bench, number, b"route %d" % (number // 2)) for number in range(50)]
    for session in found:
        assert session is not None
        assert not sessions.forget(session), "it has not ended"
        sessions.end(session)
        assert sessions.forget(session)
        assert not sessions.forget(session), "it is not there any more"
    assert [sessions._opened, sessions._idle, sessions._by_nonce, sessions._unsettled] == [{}] * 4
    assert bench.works.counters.sessions_ended == 50


def test_hello_that_comes_again_moves_its_session_and_opens_none():
    bench = Bench(connection_sessions=1)
    session = opened(bench, 1, b"one")
    assert session is not None
    sessions, nonce = bench.works.sessions, session.nonce
    assert sessions.open(identifier(2), bytes(16), nonce, "x", b"two", 2, 5.0) is session
    assert (session.name, session.route, session.connection) == ("x", b"two", 2)
    assert session.seen_at == 5.0
    assert bench.works.counters.sessions_opened == 1


def test_hello_of_a_session_that_has_ended_opens_none_while_its_execution_is_stopped():
    bench = Bench()
    bench.ask(1)
    execution, session = bench.dispatch(bench.own()), bench.session(1)
    assert [session.standing(each) for each in range(2)] == ["running", "not seen"]
    bench.end(1, lost=True)
    assert session.standing(0) == "finished"
    sessions = bench.works.sessions
    assert sessions.open(identifier(2), bytes(16), session.nonce, "x", b"r", 2, 5.0) is None
    assert "the session of this nonce has ended" in sessions.refusal(session.nonce, b"r")
    bench.dies(execution)
    assert not sessions.known


# -- sessions that make room --------------------------------------------------------


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
    bench = Bench(sessions=3)
    sessions = bench.works.sessions
    one, two, three = (opened(bench, n, b"%d" % n) for n in (1, 2, 3))
    assert one is not None
    assert two is not None
    assert three is not None
    bench.ask(1)
    sessions.seen(two, 1.0)
    assert opened(bench, 4, b"4", 2.0) is not None
    assert three.ended
    assert three.id not in sessions.known
    assert opened(bench, 5, b"5", 2.0) is not None
    assert two.ended
    bench.works.cancel(one, 0)
    assert opened(bench, 6, b"6", 2.0) is not None  # one is idle, but was heard last
    assert not one.ended


def test_at_the_bound_of_sessions_at_work_there_is_none_for_another():
    bench = Bench(sessions=2)
    for number in (1, 2):
        bench.ask(number)
    assert opened(bench, 3, b"3") is None
    assert bench.works.sessions.refusal(b"another", b"3") == (
        "2 sessions are at work, and more may not be"
    )
    assert bench.works.counters.sessions_refused == 1
    bench.finish(1)
    assert opened(bench, 3, b"3") is not None, "one is idle"


@pytest.mark.parametrize("limit_s", [None, 60.0])
def test_what_is_asked_in_a_session_that_made_room_did_not_run_and_is_asked_again(limit_s):
    pair = Pair(server={"sessions": 5})
    first = pair.client.sessions.current
    for number in range(100):
        pair.tell(hello(number), route=b"route %d" % number)
    pair.submit(rerun=False, limit_s=limit_s)
    pair.settle()
    pair.advance(1.0)
    assert pair.client.sessions.current is not first
    assert len(pair.runs) == 1
    pair.end()
    assert [type(answer) for answer in pair.answers] == [Answer]


def test_past_what_it_may_remember_no_session_is_said_to_be_settled():
    """Those of which it is not so are remembered, as many as there may be sessions."""
    bench = Bench(sessions=2)
    sessions = bench.works.sessions
    for number in range(4):
        session = opened(bench, number, b"%d" % number)
        assert session is not None
        bench.ask(number)
        bench.end(number, lost=True)
        assert session.id not in sessions.known
        assert sessions.settled(identifier(99)) == (number < 2)
    assert not any(sessions.settled(identifier(number)) for number in range(4))
    assert len(sessions._unsettled) == 2


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


# -- goodbye ------------------------------------------------------------------------


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
    sessions = Bench(sessions=3).works.sessions
    for number in (1, 2, 3, 1, 4, 5):
        sessions.goodbye(identifier(number))
    assert sessions.refusal(identifier(1), b"a")
    assert not sessions.refusal(identifier(2), b"a")


# -- what happens to a session -------------------------------------------------------


def test_a_session_was_forgotten_twice_when_one_worker_died_with_two_of_its_executions():
    """KeyError in the router: both ends came after both executions were over."""
    pair = Pair.asked()
    pair.submit()
    session = pair.session
    pair.close_client()
    pair.die(b"w0-1")
    assert session.id not in pair.router.sessions.known


# -- what is finished: bounded, and never walked through -----------------------------


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
    bench = Bench(window=window)
    for sequences in finishes:
        bench.finish(1, *sequences)
    assert bench.session(1).finished.flat() == finished


def test_a_hostile_peer_grew_the_finished_spans_by_single_cancels():
    """Only finishes were bounded; cancels, and finished entries, were not (G8)."""
    bench = Bench(window=2)
    session = bench.session(1)
    for sequence in range(0, 50, 2):
        bench.ask(1, sequence)
        bench.works.cancel(session, sequence)
        bench.turn()
    assert session.finished.span_count() <= 3
    assert len(session.tickets) <= 2


# A hostile peer finished every second sequence, as many as fit into a header, again and
# again.  Each was refused, but only after it had been merged, span by span, into a copy
# of what was finished before: a second of the server's time for one message.


WINDOW = 4


@pytest.mark.parametrize("count", [WINDOW + 2, 10_000])
def test_it_is_refused_by_its_number_of_spans(count: int, monkeypatch: Any):
    pair, session = Pair.with_stranger(server={"window": WINDOW})
    merged = []

    def update(self: Ranges, other: Ranges) -> None:
        merged.append(other.span_count())

    monkeypatch.setattr(Ranges, "update", update)
    edges = list(range(2 * count))  # of spans of one sequence each
    pair.tell(messages.Finish(session, edges), route=b"stranger")
    assert merged == []
    assert pair.router.sessions.known[session].finished == Ranges()


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
    assert not pair.router.sessions.known[session].tickets
    assert len(pair.cancels) == 3
