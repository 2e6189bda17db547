"""What is lost between a client and its server is repaired (G9)."""

from __future__ import annotations

from typing import Any

from tests.regressions.bench import System
from trio_envserve.core import messages
from trio_envserve.core.client_effects import Answer, Reconnect
from trio_envserve.core.client_inputs import (
    CallsCancelled,
    ClientTick,
    Connected,
    Disconnected,
    ServerMessage,
)
from trio_envserve.core.health import Health
from trio_envserve.core.messages import Finish, Request, Sync, Synced
from trio_envserve.core.ranges import Ranges

from .client_side import connect, disconnect, hear, session_id
from .helpers import Pair, identifier
from .spans import ALL, limited


def test_g9_a_lost_reply_is_replayed_with_the_second_ping():
    pair = Pair()
    pair.submit()
    pair.lose = lambda message: isinstance(message, messages.Outcome)
    pair.end()
    assert pair.answers == []
    pair.lose = lambda message: False
    pair.advance(2.5)
    assert isinstance(pair.last(), Answer)
    assert len(pair.runs) == 1


def test_g9_a_lost_acknowledgement_and_a_lost_cancel_are_repaired_by_the_next_ping():
    pair = Pair()
    pair.submit()
    pair.submit()
    pair.end(pair.runs[0])
    pair.lose = lambda message: isinstance(message, messages.Finish)
    pair.receive(0)
    pair.give_client(CallsCancelled((1,), pair.now_s))
    pair.settle()
    assert len(pair.session.entries) == 2
    pair.advance(1.5)
    assert not pair.session.entries
    assert pair.cancels == [(b"w0-1", 1)]


def test_g9_a_cut_connection_loses_nothing():
    pair = Pair()
    disconnect(pair)
    pair.submit(b"asked while away")
    pair.advance(2.0)
    assert pair.runs == []
    connect(pair)
    assert len(pair.runs) == 1
    disconnect(pair)
    pair.lose = lambda message: isinstance(message, messages.Outcome)  # to the old identity
    pair.end()
    pair.lose = lambda message: False
    connect(pair)
    assert isinstance(pair.last(), Answer)


def test_a_missing_request_is_not_sent_again_if_it_was_sent_since_the_ping():
    pair = Pair()
    pair.submit()
    synced = messages.Synced(session_id(pair), 0, [0, 1, 5, 6], pair.router.status())
    hear(pair, synced)
    assert pair.client.calls.retransmitted == 0
    hear(pair, synced._replace(session=identifier(5), probe=99))
    assert pair.client.calls.retransmitted == 0
    pair.end()
    hear(pair, synced._replace(probe=99))  # answered by now
    assert pair.client.calls.retransmitted == 0


def test_a_delay_that_ends_without_a_connection_is_made_up_for_on_reconnecting():
    pair = Pair(server={"queue": 1, "worker_capacity": 1, "retry_delay_s": 2.0})
    for _ in range(3):
        pair.submit()
    disconnect(pair)
    pair.advance(3.0)
    for _ in range(2):
        pair.lose = lambda message: isinstance(message, messages.Outcome)
        pair.end()
    pair.lose = lambda message: False
    connect(pair)
    assert len(pair.runs) == 3


# -- a connection on which nothing is answered -----------------------------------


def reconnects(pair: Pair) -> list[float]:
    """When the client gave its connection up, in seconds, while nothing comes back."""
    gave_up = []
    began_s = pair.now_s
    while pair.now_s - began_s < 70:
        pair.now_s += 0.25
        pair.give_client(ClientTick(pair.now_s))
        if any(isinstance(effect, Reconnect) for effect in pair.client_said()):
            gave_up.append(pair.now_s - began_s)
            pair.give_client(Disconnected(pair.now_s, "given up"))
            pair.give_client(Connected(pair.now_s))
    return gave_up


def test_a_connection_that_swallows_everything_is_made_anew_with_growing_patience():
    pair = Pair(client={"reconnect_s": 5.0})
    first, second, third = reconnects(pair)
    assert 5 <= first <= 7
    assert 10 <= second - first <= 11
    assert 20 <= third - second <= 21
    connect(pair)  # and this one answers
    assert pair.client.link.health(pair.now_s)[0] is Health.HEALTHY
    assert 5 <= reconnects(pair)[0] <= 7


def test_a_client_whose_own_loop_was_late_does_not_blame_its_connection():
    pair = Pair(client={"reconnect_s": 5.0})
    pair.now_s += 1.0
    pair.give_client(ClientTick(pair.now_s))
    pair.now_s += 60.0
    pair.give_client(ClientTick(pair.now_s, late_s=60.0))
    assert not any(isinstance(effect, Reconnect) for effect in pair.client_said())


# -- a huge span of missing sequences --------------------------------------------
# A server, broken or hostile, named every sequence up to 2^62 as missing: the client
# went through them one by one and was not heard of again.


def test_only_what_is_pending_is_looked_at(monkeypatch: Any):
    pair = Pair()
    pair.lose = lambda message: isinstance(message, Request)
    for _ in range(3):
        pair.submit()
    assert pair.client.sessions.current is not None
    monkeypatch.setattr(Ranges, "__iter__", limited)
    synced = messages.Synced(pair.client.sessions.current.id, 99, ALL, pair.router.status())
    pair.lose = lambda message: False
    pair.give_client(ServerMessage((messages.encode(synced),), pair.now_s))
    pair.settle()
    assert pair.client.calls.retransmitted == 3
    assert len(pair.runs) == 3


# -- failures that servers of this kind are known for ----------------------------


def test_failure_07_answer_that_arrives_during_recovery_is_thrown_away():
    """The server is late, its client takes it for dead and waits for its recovery; the
    answer that arrives meanwhile is thrown away; then the server is restarted, and the
    request runs again.

    Here health decides nothing: an outcome is taken whenever it comes.
    """
    system = System(rerun=True)
    call = system.submit()
    system.lose = lambda message: isinstance(message, Synced)
    system.advance(10.0)
    assert system.client.link.health(system.now_s)[0] is Health.UNHEALTHY
    system.end()
    system.restart_server()

    system.lose = lambda message: False
    system.advance(10.0)
    assert len(system.starts) == 1, "it ran again"
    assert system.result(call) == b"outcome"


def test_failure_13_acknowledgement_is_sent_before_the_caller_has_woken():
    """An outcome is acknowledged when its message arrives; should the client end before
    its caller has woken, the outcome is gone.

    Here it is acknowledged when the caller has it (G4); until then every statement of
    the client holds on to it.
    """
    system = System()
    call = system.submit()
    system.end()
    assert system.result(call) == b"outcome", "it has arrived"

    system.advance(10.0)  # the caller has other things to do
    assert not any(isinstance(message, Finish) for message in system.to_server)
    statement = [message for message in system.to_server if isinstance(message, Sync)][-1]
    assert (statement.next, statement.pending) == (1, [0, 1])
    assert system.router.stats()["kept"] == 1

    system.received(call)
    assert system.router.stats()["kept"] == 0
