"""How calls end that nobody answers: cancelled, closed, past a limit."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from trio_envserve.core import messages
from trio_envserve.core.calls import Stage
from trio_envserve.core.client_effects import Answer, Fail
from trio_envserve.core.client_inputs import (
    CallsCancelled,
    ClientClosed,
    ClientTick,
    Connected,
    OutcomeReceived,
    ServerMessage,
)
from trio_envserve.core.health import Health
from trio_envserve.core.messages import Cancel, Cancelled, Request
from trio_envserve.core.router_inputs import PoolOpened
from trio_envserve.core.terms import Verdict

from .client_side import disconnect, hear, kinds, session_id, verdict
from .helpers import Pair, identifier

# -- cancelling and closing ------------------------------------------------------


def test_g7_a_cancel_is_told_at_once_in_every_stage():
    pair = Pair(server={"window": 2})
    for _ in range(3):
        pair.submit()
    pair.end(pair.runs[0])
    for number in (2, 1, 0, 0):  # queued, sent, answered, gone
        pair.give_client(CallsCancelled((number,), pair.now_s))
    pair.settle()
    assert pair.client.calls.live == {}
    assert not pair.session.entries
    assert pair.cancels == [(b"w0-1", 1)]


def test_calls_that_are_cancelled_together_were_told_in_a_message_each():
    pair = Pair(server={"window": 8})
    for _ in range(9):
        pair.submit()
    pair.sent.clear()
    pair.give_client(CallsCancelled(range(9), pair.now_s))
    pair.settle()
    (finish,) = pair.sent
    assert isinstance(finish, messages.Finish)
    assert finish.finished == [0, 8]
    assert len(pair.cancels) == 8


def test_g9_closing_ends_every_call_and_tells_the_server():
    pair = Pair(server={"window": 2})
    for _ in range(3):
        pair.submit()
    pair.end(pair.runs[0])
    pair.give_client(ClientClosed(pair.now_s))
    pair.settle()
    ended = {e.call: e.info for e in pair.answers if isinstance(e, Fail)}
    assert {n: i.verdict for n, i in ended.items()} == {
        1: Verdict.MAY_HAVE_RUN, 2: Verdict.DID_NOT_RUN,
    }  # fmt: skip
    assert pair.cancels == [(b"w0-1", 1)]
    pair.give_client(OutcomeReceived(0, pair.now_s))
    pair.advance(3.0)
    hear(pair, messages.Welcome(1, identifier(7), identifier(8), identifier(9), 9, 9, {}))
    assert not pair.client.sessions.opened > 1


def test_a_call_after_the_close_was_sent_after_the_goodbye():
    pair = Pair()
    pair.give_client(ClientClosed(pair.now_s))
    pair.submit()
    assert (pair.failure().code, pair.failure().verdict) == ("closed", Verdict.DID_NOT_RUN)
    assert not any(isinstance(message, messages.Request) for message in pair.sent)


# -- limits ----------------------------------------------------------------------


def test_g9_a_limit_that_passes_before_the_dispatch_did_not_run():
    pair = Pair(server={"worker_capacity": 1})
    pair.submit()
    pair.lose = lambda message: isinstance(message, messages.Outcome)  # the server's own deadline
    pair.submit(limit_s=2.0)
    pair.router.dispatcher.deadlines.heap.clear()
    pair.lose = lambda message: False
    pair.advance(4.5)
    assert verdict(pair) == ("never-started", Verdict.DID_NOT_RUN)
    pair.end()
    assert len(pair.runs) == 1


def test_g9_a_limit_that_passes_after_the_dispatch_may_have_run():
    pair = Pair()
    pair.submit(limit_s=2.0)
    pair.router.dispatcher.deadlines.heap.clear()
    pair.advance(2.5)
    assert pair.answers == []
    pair.advance(2.0)
    assert verdict(pair) == ("no-answer", Verdict.MAY_HAVE_RUN)
    assert pair.cancels == [(b"w0-1", 0)]


@pytest.mark.parametrize("waited_s", [0.0, 0.7, 1.9])
def test_limit_of_what_runs_was_told_as_may_have_run_by_whichever_clock_was_first(waited_s: float):
    """The client cancelled at its limit, and so before the server could say that it had stopped
    the execution.  A call that waited for room had told its server the whole limit."""
    pair = Pair(server={"window": 1})
    pair.submit()
    pair.submit(limit_s=2.0)
    pair.beat()
    pair.advance(waited_s)
    pair.end(pair.runs[0])
    pair.receive(0)
    pair.beat()
    pair.answers.clear()
    pair.lose = lambda message: isinstance(message, messages.Outcome)  # the first time
    pair.advance(2.0 - waited_s + 0.1)
    assert pair.answers == []
    pair.lose = lambda message: False
    pair.advance(1.5)
    assert verdict(pair) == ("deadline", Verdict.RAN_AND_FAILED)
    assert "Cancel" not in kinds(pair.sent)


def test_g9_a_limit_that_passes_without_an_answer_may_have_run():
    pair = Pair()
    pair.submit(limit_s=2.0)
    pair.lose = lambda message: True
    pair.advance(6.5)
    assert pair.answers == []
    pair.advance(1.0)
    assert verdict(pair) == ("no-answer", Verdict.MAY_HAVE_RUN)


def requests_after(pair: Pair, seconds: float) -> int:
    """How many transmissions of requests there are in so much time."""
    before = kinds(pair.sent).count("Request")
    pair.advance(seconds)
    return kinds(pair.sent).count("Request") - before


def test_a_call_that_expires_while_it_is_refused_for_now_is_over():
    """It is not sent again, nor does it hold up others, as one that waits for room."""
    pair = Pair(server={"queue": 1, "worker_capacity": 1, "retry_delay_s": 3.0})
    for _ in range(2):
        pair.submit()
    pair.submit(limit_s=2.0)
    assert kinds(pair.told).count("Refused") == 1
    pair.lose = lambda message: isinstance(message, messages.Cancelled)
    pair.advance(2.5)
    assert pair.client.calls.live[2].stage is Stage.EXPIRED
    assert requests_after(pair, 2.0) == 0
    pair.end()
    pair.end()
    pair.submit()
    assert requests_after(pair, 0.1) == 0  # it went out at once
    assert len(pair.runs) == 3


def test_a_refusal_for_now_that_comes_after_the_limit_holds_up_nothing():
    pair = Pair()
    pair.submit(limit_s=2.0)
    pair.lose = lambda message: isinstance(message, messages.Cancel)
    pair.router.dispatcher.deadlines.heap.clear()
    pair.advance(2.5)
    assert pair.client.calls.live[0].stage is Stage.EXPIRED
    hear(pair, messages.Refused(session_id(pair), 0, "queue-full", "", 0.1))
    assert requests_after(pair, 1.0) == 0
    pair.submit()
    assert len(pair.runs) == 2


def test_g9_without_a_server_a_limit_ends_the_call_as_not_run():
    pair = Pair(ready=False, welcomed=False)
    pair.submit(limit_s=1.0)
    pair.advance(1.5)
    assert verdict(pair) == ("server-unreachable", Verdict.DID_NOT_RUN)
    assert "no answer" in pair.failure().message


def test_g9_without_a_limit_a_call_waits_for_its_server_so_long_and_no_longer():
    pair = Pair(ready=False, welcomed=False, client={"start_s": 5.0})
    pair.submit()
    pair.advance(4.5)
    assert pair.answers == []
    pair.advance(1.0)
    assert verdict(pair) == ("server-unreachable", Verdict.DID_NOT_RUN)


def test_g9_without_a_limit_a_call_waits_for_a_lost_server_so_long_and_no_longer():
    pair = Pair(client={"recovery_s": 5.0, "probe_s": 2.0, "cancel_answer_s": 1.0})
    pair.submit()
    pair.advance(30.0)
    assert pair.answers == []  # a server that answers is waited for as long as it takes
    disconnect(pair)
    pair.submit()
    pair.lose = lambda message: True
    pair.advance(4.5)
    assert pair.answers == []
    pair.advance(3.0)
    ended = {e.call: e.info for e in pair.answers if isinstance(e, Fail)}
    assert {n: (i.code, i.verdict) for n, i in ended.items()} == {
        0: ("no-answer", Verdict.MAY_HAVE_RUN), 1: ("never-started", Verdict.DID_NOT_RUN),
    }  # fmt: skip


def test_g9_a_loop_that_was_late_does_not_make_the_server_silent():
    pair = Pair()
    disconnect(pair)
    pair.now_s += 100.0
    pair.give_client(ClientTick(pair.now_s, late_s=99.0))
    assert pair.client.link.health(pair.now_s)[0] is Health.HEALTHY


@pytest.mark.parametrize("waits", ["for a ready server", "for proof", "for a word"])
def test_g9_what_is_waited_for_gets_back_the_time_of_a_loop_that_was_late(waits):
    limits = {"start_s": 5.0, "recovery_s": 5.0, "cancel_answer_s": 5.0}
    pair = Pair(ready=waits != "for a ready server", client=limits)
    pair.submit(limit_s=1.0 if waits == "for a word" else None)
    if waits == "for proof":
        pair.restart(proven=False)
    if waits == "for a word":
        pair.lose = lambda message: isinstance(message, (messages.Outcome, messages.Cancelled))
    pair.advance(2.0)
    pair.now_s += 100.0
    pair.give_client(ClientTick(pair.now_s, late_s=100.0))
    pair.settle()
    pair.advance(2.0)
    assert pair.answers == []
    pair.advance(8.0)
    assert isinstance(pair.last(), Fail)


def test_a_call_whose_limit_had_passed_was_told_that_its_executions_were_used_up():
    pair = Pair()
    pair.submit(rerun=True, limit_s=1.0)
    pair.lose = lambda message: True
    pair.advance(1.5)
    pair.lose = lambda message: False
    pair.restart(proven=True)
    pair.advance(1.0)
    assert "limit passed" in pair.failure().message
    assert len(pair.runs) == 1


# -- a client that was suspended -------------------------------------------------
# A laptop was closed for a quarter of an hour, with calls that waited for a server to
# get ready, or for proof that a lost one was dead.  On waking, the clock said that the
# limits for both had passed: the calls ended before the first message that lay in the
# socket was read, as lost, though nobody had been asked.


ASLEEP_S = 900.0


def suspend(pair: Pair) -> None:
    """The client is suspended; its clock runs first, before its receiver."""
    pair.now_s += ASLEEP_S
    pair.give_client(ClientTick(pair.now_s, late_s=ASLEEP_S))
    pair.settle()


def test_a_call_goes_on_waiting_for_a_server_to_get_ready():
    pair = Pair(ready=False)
    pair.submit()
    pair.advance(2.0)
    suspend(pair)
    assert pair.answers == []
    pair.advance(700.0)  # it waits no longer than it would have
    assert len(pair.answers) == 1


def test_a_call_goes_on_waiting_for_proof_that_its_server_is_dead():
    pair = Pair()
    pair.submit(rerun=True)
    pair.restart(proven=False)
    pair.advance(2.0)
    suspend(pair)
    assert pair.answers == []
    dead = pair.client.sessions.lost[0]
    pair.give(PoolOpened((dead.epoch,), pair.now_s))
    pair.advance(2.0)
    pair.end()
    assert isinstance(pair.last(), Answer)


def test_a_call_goes_on_waiting_for_the_word_on_whether_it_ran():
    pair = Pair(server={"worker_capacity": 1})
    pair.submit()
    pair.submit(limit_s=1.0)
    pair.router.dispatcher.deadlines.heap.clear()  # the server's own word on it is another matter
    pair.lose = lambda message: isinstance(message, Cancelled)
    pair.advance(3.5)
    assert pair.client.calls.live[1].stage is Stage.EXPIRED
    held = [message for message in pair.sent if isinstance(message, Cancel)]
    suspend(pair)
    assert pair.answers == []
    answer = Cancelled(held[0].session, held[0].sequence, False)
    pair.lose = lambda message: False
    pair.give_client(ServerMessage((messages.encode(answer),), pair.now_s))  # it lay in the socket
    pair.settle()
    assert pair.failure().verdict is Verdict.DID_NOT_RUN


# -- limits that are no plain floats ---------------------------------------------
# ``timeout_s=math.inf`` was sent as it is, and the wire has no infinity: the server took
# the request for malformed, never answered it, and the client sent it again with every
# ping, for ever.  A numpy scalar could not be encoded at all and crashed the client in
# the middle of a message.


def requests(pair: Pair) -> list[Request]:
    return [message for message in pair.sent if isinstance(message, Request)]


def connected(pair: Pair) -> Pair:
    """Only now is anything encoded."""
    pair.give_client(Connected(pair.now_s))
    pair.settle()
    return pair


@pytest.mark.parametrize(
    "limit_s", [math.inf, 1e12, 1e300, 10**400, np.float64("inf")], ids=lambda n: repr(n)[:20]
)
def test_a_limit_past_all_bounds_is_none(limit_s: Any):
    pair = Pair(welcomed=False)
    number = pair.submit(limit_s=limit_s)
    assert pair.client.calls.live[number].limit_s is None
    assert [request.deadline_s for request in requests(connected(pair))] == [None]
    assert len(pair.runs) == 1


@pytest.mark.parametrize(
    "limit_s", [5, np.float32(5), np.int64(5), Decimal(5), Fraction(5)], ids=repr
)
def test_any_real_number_is_the_same_limit(limit_s: Any):
    pair = Pair(welcomed=False)
    pair.submit(limit_s=5.0)
    pair.submit(limit_s=limit_s)
    _, other = pair.client.calls.live.values()
    assert type(other.limit_s) is float
    assert [request.deadline_s for request in requests(connected(pair))] == [5.0, 5.0]
