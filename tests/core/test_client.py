"""The client's side of its link, against a real router."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import cbor2
import numpy as np
import pytest

from trio_envserve.core import messages
from trio_envserve.core.client import (
    SYNCS_REFUSED,
    Answer,
    CallKey,
    CallsCancelled,
    ClientClosed,
    ClientTick,
    Connected,
    Disconnected,
    Fail,
    OutcomeReceived,
    QueriesRefused,
    Reconnect,
    ServerMessage,
    Stage,
)
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.health import Health
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.messages import Finish, Request, Sync, Synced
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.router_inputs import CloseAsked
from trio_envserve.core.terms import Status, Verdict

from .helpers import ALL, Pair, error_body, identifier, kinds, limited

# -- sessions and sending -----------------------------------------------------


@pytest.mark.parametrize("side", ["this side", "the server"])
def test_a_body_larger_than_either_side_takes_is_not_sent(side: str):
    """This side's socket refused it, and with each sync the server asked for it again."""
    small, large = WireLimits(message_bytes=10), WireLimits()
    pair = Pair(wire={"message_bytes": 10} if side == "the server" else None)
    pair.client.wire = small if side == "this side" else large
    pair.submit(b"x" * 11)
    assert pair.verdict() == ("too-large", Verdict.DID_NOT_RUN)
    assert ("this client's message_bytes is 10" in pair.failure().message) is (side == "this side")
    assert "Request" not in kinds(pair.sent)
    pair.submit(b"x" * 10)
    assert len(pair.runs) == 1


def test_acknowledgements_wait_a_moment_for_company():
    pair = Pair()
    pair.give_client(ClientTick(pair.now_s))
    for _ in range(2):
        pair.end((b"w0-1", pair.runs[pair.submit()][1]))
    for number in range(2):
        pair.give_client(OutcomeReceived(number, pair.now_s))
    pair.settle()
    assert "Finish" not in kinds(pair.sent)
    assert pair.client.wake_at_s() == pair.now_s + 0.02
    pair.advance(0.02)
    assert [m.finished for m in pair.sent if isinstance(m, messages.Finish)] == [[0, 2]]
    assert pair.client.wake_at_s() > pair.now_s


def test_a_place_in_the_window_that_is_free_again_is_used_at_once():
    pair = Pair(server={"window": 1})
    first, second = pair.submit(), pair.submit()
    assert kinds(pair.sent).count("Request") == 1
    pair.end()
    pair.give_client(OutcomeReceived(first, pair.now_s))
    assert pair.client_effects
    pair.settle()
    assert kinds(pair.sent).count("Request") == 2
    assert pair.client.calls.live[second].sequence == 1
    assert not pair.client_effects


# -- replies nobody waits for -------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ((), "message"), ((b"\xff",), "message"),
        ((messages.encode(messages.Goodbye(b"x" * 16)), b""), "message"),
        ((messages.encode(messages.Goodbye(b"x" * 16)),), "Goodbye"),
    ],
)  # fmt: skip
def test_what_a_server_does_not_say_is_reported_and_ignored(frames, what):
    pair = Pair()
    pair.client_takes(ServerMessage(frames, pair.now_s))
    assert f"ignored a {what} of the server" in pair.reports[-1].text


# -- a server that stops, or speaks another version ---------------------------


def test_what_a_stopping_server_did_not_run_waits_for_the_next_one():
    pair = Pair()
    pair.give(CloseAsked(pair.now_s))
    pair.submit()
    pair.submit()
    assert pair.answers == []
    assert kinds(pair.sent).count("Request") == 1  # the second is not even sent
    pair.restart(proven=True)
    pair.advance(2.0)
    assert len(pair.runs) == 2


def test_a_foreign_version_ends_calls_that_wait_and_those_to_come():
    pair = Pair.asked(ready=False, welcomed=False)
    foreign = messages.Error(2, "foreign-version", "version 1 is not spoken, 2 is")
    pair.hear(foreign)
    pair.hear(foreign)
    assert pair.verdict() == ("foreign-version", Verdict.DID_NOT_RUN)
    pair.submit()
    assert len(pair.answers) == 2
    assert [r.text for r in pair.reports] == [f"the server refuses: {foreign.text}"]
    pair.connect()  # and the next one speaks it
    pair.advance(1.0)
    pair.submit()
    assert len(pair.answers) == 2


def test_statistics_go_to_whoever_asked():
    pair = Pair()
    pair.give_client(
        ServerMessage((messages.encode(messages.QueryAnswer(7)), b"record"), pair.now_s)
    )
    (effect,) = pair.client_said()
    assert tuple(effect) == (7, b"record")


# -- an environment's error is not the server's word -----------------------------
# An error of environment code that happened to have the code ``stopping`` was
# taken for the server's own "it did not run" and the call issued again.


def test_a_stopping_error_of_something_that_ran_is_an_answer():
    pair = Pair.asked()
    pair.end(payload=error_body("stopping"), status=Status.ERROR)
    assert isinstance(pair.last(), Answer)
    assert pair.verdict() == ("stopping", Verdict.RAN_AND_FAILED)


# -- refused as malformed ------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "header of 9 bytes, 8 allowed", "what?", "unknown kind 99"])
def test_a_refusal_that_names_no_message_is_about_none(text: str):
    assert messages.refused_class(text) is None


def test_texts_of_refusals_begin_with_the_message():
    for cls in messages.KINDS:
        if cls in (messages.Hello, messages.WorkerHello):
            continue
        with pytest.raises(ProtocolError) as caught:
            messages.decode(cbor2.dumps([messages.KINDS[cls], *[None] * 30]), most_bytes=1000)
        assert messages.refused_class(str(caught.value)) is cls


@pytest.mark.parametrize("keyed", [False, True])
def test_a_request_that_is_refused_as_malformed_was_sent_again_without_end(keyed: bool):
    """A server whose requests have another field, under a version of the same number."""
    pair = Pair()
    pair.lose = lambda message: isinstance(message, messages.Request)
    name = KeyName(b"default", b"k")
    asks = CallKey(KeyAct.ASK, name, input_digest(b"body", None)) if keyed else None
    pair.submit(key=asks)
    pair.hear(messages.Error(1, "malformed", "Request with 7 fields, not 6"))
    assert pair.answers == []  # it may be about another one: the server says which it lacks
    pair.advance(1.5)
    assert pair.verdict() == ("malformed", Verdict.DID_NOT_RUN)
    assert "Request with 7 fields, not 6" in pair.failure().message
    sent = len(pair.sent)
    pair.advance(5.0)
    assert "Request" not in kinds(pair.sent[sent:])
    assert pair.client.calls.retransmitted == 0


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("Sync with 7 fields, not 6", False), ("Cancel.sequence is not uint", False),
        ("Request with 7 fields, not 6", True),
    ],
)  # fmt: skip
def test_a_lost_request_is_sent_again_whatever_else_is_refused(text: str, before: bool):
    """Or was, before it was sent."""
    pair = Pair()
    refusal = messages.Error(1, "malformed", text)
    if before:
        pair.hear(refusal)
    with pair.losing(messages.Request):
        pair.submit()
        if not before:
            pair.hear(refusal)
    pair.advance(1.5)
    assert len(pair.runs) == 1


def test_an_answer_that_is_late_ends_no_call_as_malformed():
    """The server was asked before the request was sent."""
    pair = Pair.asked()
    pair.hear(messages.Error(1, "malformed", "Request with 7 fields, not 6"))
    pair.hear(messages.Synced(pair.session.id, 0, [0, 1], pair.router.status()))
    assert pair.answers == []


def refuse_statements(pair: Pair, count: int) -> None:
    """A server whose statements have another field, under a version of the same number."""
    pair.lose = lambda message: isinstance(message, messages.Sync | messages.Request)
    for _ in range(count):
        pair.hear(messages.Error(1, "malformed", "Sync with 7 fields, not 6"))


def test_g9_a_call_whose_statements_are_refused_as_malformed_waited_for_ever():
    """Nothing that was lost was repaired, and its lease ended without a word."""
    pair = Pair()
    refuse_statements(pair, 0)
    pair.submit()
    refuse_statements(pair, SYNCS_REFUSED)
    assert pair.verdict() == ("no-answer", Verdict.MAY_HAVE_RUN)
    assert "Sync with 7 fields, not 6" in pair.failure().message
    pair.submit()
    assert pair.verdict() == ("malformed", Verdict.DID_NOT_RUN)  # and nobody asks for more
    pair.lose = lambda message: False
    pair.restart(proven=True)  # by one that understands
    pair.advance(3.0)
    pair.submit()
    assert len(pair.runs) == 1


def test_call_that_waits_for_the_window_ends_when_statements_are_refused():
    pair = Pair.asked(server={"window": 1})
    pair.submit()
    refuse_statements(pair, SYNCS_REFUSED)
    said = [answer.info.verdict for answer in pair.answers if isinstance(answer, Fail)]
    assert said == [Verdict.DID_NOT_RUN, Verdict.MAY_HAVE_RUN]


def test_statements_that_are_refused_now_and_then_end_no_call():
    pair = Pair.asked()
    for _ in range(9):
        refuse_statements(pair, SYNCS_REFUSED - 1)
        pair.lose = lambda message: False
        pair.advance(1.5)
    assert pair.answers == []
    pair.end()
    assert len(pair.answers) == 1


@pytest.mark.parametrize("text", ["Query.probe is not uint", "unknown kind 5"])
def test_whoever_asks_is_told_that_the_question_is_refused(text: str):
    pair = Pair()
    given = ServerMessage((messages.encode(messages.Error(1, "malformed", text)),), pair.now_s)
    pair.give_client(given)
    refused, *_ = [each for each in pair.client_said() if isinstance(each, QueriesRefused)]
    assert text in refused.text


# -- cancelling and closing ------------------------------------------------------


def test_g7_a_cancel_is_told_at_once_in_every_stage():
    pair = Pair(server={"window": 2})
    pair.submit_many(3)
    pair.end(pair.runs[0])
    for number in (2, 1, 0, 0):  # queued, sent, answered, gone
        pair.give_client(CallsCancelled((number,), pair.now_s))
    pair.settle()
    assert pair.client.calls.live == {}
    assert not pair.session.tickets
    assert pair.cancels == [(b"w0-1", 1)]


def test_calls_that_are_cancelled_together_were_told_in_a_message_each():
    pair = Pair(server={"window": 8})
    pair.submit_many(9)
    pair.sent.clear()
    pair.client_takes(CallsCancelled(range(9), pair.now_s))
    (finish,) = pair.sent
    assert isinstance(finish, messages.Finish)
    assert finish.finished == [0, 8]
    assert len(pair.cancels) == 8


def test_g9_closing_ends_every_call_and_tells_the_server():
    pair = Pair(server={"window": 2})
    pair.submit_many(3)
    pair.end(pair.runs[0])
    pair.close_client()
    ended = {e.call: e.info for e in pair.answers if isinstance(e, Fail)}
    assert {n: i.verdict for n, i in ended.items()} == {
        1: Verdict.MAY_HAVE_RUN, 2: Verdict.DID_NOT_RUN,
    }  # fmt: skip
    assert pair.cancels == [(b"w0-1", 1)]
    pair.give_client(OutcomeReceived(0, pair.now_s))
    pair.advance(3.0)
    pair.hear(messages.Welcome(2, identifier(7), identifier(8), identifier(9), 9, 9, {}))
    assert not pair.client.sessions.opened > 1


def test_a_call_after_the_close_was_sent_after_the_goodbye():
    pair = Pair()
    pair.give_client(ClientClosed(pair.now_s))
    pair.submit()
    assert pair.verdict() == ("closed", Verdict.DID_NOT_RUN)
    assert not any(isinstance(message, messages.Request) for message in pair.sent)


# -- limits ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "unknown_s", "verdict"),
    [
        ("before the dispatch", 1.9, ("never-started", Verdict.DID_NOT_RUN)),
        ("after the dispatch", 2.5, ("no-answer", Verdict.MAY_HAVE_RUN)),
        ("without an answer", 6.5, ("no-answer", Verdict.MAY_HAVE_RUN)),
    ],
)
def test_g9_a_limit_that_passes_says_what_is_known(when, unknown_s, verdict):
    pair = Pair(server={"worker_capacity": 1})
    if when == "before the dispatch":
        pair.submit()
    pair.submit(limit_s=2.0)
    pair.router._deadlines.clear()  # the server's own deadline
    if when == "without an answer":
        pair.lose = lambda message: True
    pair.advance(unknown_s)
    assert pair.answers == []
    pair.advance(2.5)
    assert pair.verdict() == verdict
    assert len(pair.runs) == 1
    assert pair.cancels == [(b"w0-1", 0)] * (when == "after the dispatch")


@pytest.mark.parametrize("waited_s", [0.0, 0.7, 1.9])
def test_limit_of_what_runs_was_told_as_may_have_run_by_whichever_clock_was_first(waited_s: float):
    """The client cancelled at its limit, and so before the server could say that it had stopped
    the execution.  A call that waited for room had told its server the whole limit."""
    pair = Pair.asked(server={"window": 1})
    pair.submit(limit_s=2.0)
    pair.beat()
    pair.advance(waited_s)
    pair.end(pair.runs[0])
    pair.receive(0)
    pair.beat()
    pair.answers.clear()
    with pair.losing(messages.Outcome):
        pair.advance(2.0 - waited_s + 0.1)
        assert pair.answers == []
    pair.advance(1.5)
    assert pair.verdict() == ("deadline", Verdict.RAN_AND_FAILED)
    assert "Cancel" not in kinds(pair.sent)


def requests_after(pair: Pair, seconds: float) -> int:
    """How many transmissions of requests there are in so much time."""
    before = kinds(pair.sent).count("Request")
    pair.advance(seconds)
    return kinds(pair.sent).count("Request") - before


def test_a_call_that_expires_while_it_is_refused_for_now_is_over():
    """It is not sent again, nor does it hold up others, as one that waits for room."""
    pair = Pair(server={"queue": 1, "worker_capacity": 1, "retry_delay_s": 3.0})
    pair.submit_many(2)
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
    pair.router._deadlines.clear()
    pair.advance(2.5)
    assert pair.client.calls.live[0].stage is Stage.EXPIRED
    pair.hear(messages.Refused(pair.session.id, 0, "queue-full", "", 0.1, b""))
    assert requests_after(pair, 1.0) == 0
    pair.submit()
    assert len(pair.runs) == 2


def test_g9_without_a_server_a_limit_ends_the_call_as_not_run():
    pair = Pair(ready=False, welcomed=False)
    pair.submit(limit_s=1.0)
    pair.advance(1.5)
    assert pair.verdict() == ("server-unreachable", Verdict.DID_NOT_RUN)
    assert "no answer" in pair.failure().message


def test_g9_without_a_limit_a_call_waits_for_its_server_so_long_and_no_longer():
    pair = Pair.asked(ready=False, welcomed=False, client={"start_s": 5.0})
    pair.advance(4.5)
    assert pair.answers == []
    pair.advance(1.0)
    assert pair.verdict() == ("server-unreachable", Verdict.DID_NOT_RUN)


def test_g9_without_a_limit_a_call_waits_for_a_lost_server_so_long_and_no_longer():
    pair = Pair.asked(client={"recovery_s": 5.0, "probe_s": 2.0, "cancel_answer_s": 1.0})
    pair.advance(30.0)
    assert pair.answers == []  # a server that answers is waited for as long as it takes
    pair.disconnect()
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
    pair.disconnect()
    pair.now_s += 100.0
    pair.give_client(ClientTick(pair.now_s, late_s=99.0))
    assert pair.client.link.health(pair.now_s)[0] is Health.HEALTHY


# A laptop was closed for a quarter of an hour, with calls that waited for a server to get
# ready, or for proof that a lost one was dead.  On waking, the clock said that the limits for
# both had passed: the calls ended before the first message that lay in the socket was read.


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
    pair.now_s += 900.0
    pair.client_takes(ClientTick(pair.now_s, late_s=900.0))
    pair.advance(2.0)
    assert pair.answers == []
    pair.advance(8.0)
    assert isinstance(pair.last(), Fail)


# -- limits that are no plain floats ---------------------------------------------
# ``timeout_s=math.inf`` was sent as it is, and the wire has no infinity: the server took
# the request for malformed, never answered it, and the client sent it again with every
# ping, for ever.  A numpy scalar could not be encoded at all and crashed the client in
# the middle of a message.


def connected(pair: Pair) -> Pair:
    """Only now is anything encoded."""
    pair.connect()
    return pair


@pytest.mark.parametrize(
    "limit_s", [math.inf, 1e12, 1e300, 10**400, np.float64("inf")], ids=lambda n: repr(n)[:20]
)
def test_a_limit_past_all_bounds_is_none(limit_s: Any):
    pair = Pair(welcomed=False)
    number = pair.submit(limit_s=limit_s)
    assert pair.client.calls.live[number].limit_s is None
    assert [request.deadline_s for request in connected(pair).sent_of(Request)] == [None]
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
    assert [request.deadline_s for request in connected(pair).sent_of(Request)] == [5.0, 5.0]


# -- What is lost between a client and its server is repaired (G9) -------------


def test_a_missing_request_is_not_sent_again_if_it_was_sent_since_the_ping():
    pair = Pair.asked()
    synced = messages.Synced(pair.session.id, 0, [0, 1, 5, 6], pair.router.status())
    pair.hear(synced)
    assert pair.client.calls.retransmitted == 0
    pair.hear(synced._replace(session=identifier(5), probe=99))
    assert pair.client.calls.retransmitted == 0
    pair.end()
    pair.hear(synced._replace(probe=99))  # answered by now
    assert pair.client.calls.retransmitted == 0


def test_a_delay_that_ends_without_a_connection_is_made_up_for_on_reconnecting():
    pair = Pair(server={"queue": 1, "worker_capacity": 1, "retry_delay_s": 2.0})
    pair.submit_many(3)
    pair.disconnect()
    pair.advance(3.0)
    for _ in range(2):
        pair.lose = lambda message: isinstance(message, messages.Outcome)
        pair.end()
    pair.lose = lambda message: False
    pair.connect()
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
    pair.connect()  # and this one answers
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
    with pair.losing(Request):
        pair.submit_many(3)
        assert pair.client.sessions.current is not None
        monkeypatch.setattr(Ranges, "__iter__", limited)
        synced = messages.Synced(pair.client.sessions.current.id, 99, ALL, pair.router.status())
    pair.hear(synced)
    assert pair.client.calls.retransmitted == 3
    assert len(pair.runs) == 3


# -- failures that servers of this kind are known for ----------------------------


def test_failure_07_answer_that_arrives_during_recovery_is_thrown_away():
    """The server is late, its client takes it for dead and waits for its recovery; the
    answer that arrives meanwhile is thrown away; then the server is restarted, and the
    request runs again.

    Here health decides nothing: an outcome is taken whenever it comes.
    """
    pair = Pair(rerun=True)
    call = pair.submit()
    with pair.losing(Synced):
        pair.advance(10.0)
        assert pair.client.link.health(pair.now_s)[0] is Health.UNHEALTHY
        pair.end()
        pair.restart(proven=True)

    pair.advance(10.0)
    assert len(pair.runs) == 1, "it ran again"
    assert pair.result(call) == b"outcome"


def test_failure_13_acknowledgement_is_sent_before_the_caller_has_woken():
    """An outcome is acknowledged when its message arrives; should the client end before
    its caller has woken, the outcome is gone.

    Here it is acknowledged when the caller has it (G4); until then every statement of
    the client holds on to it.
    """
    pair = Pair()
    call = pair.submit()
    pair.end()
    assert pair.result(call) == b"outcome", "it has arrived"

    pair.advance(10.0)  # the caller has other things to do
    assert not pair.sent_of(Finish)
    statement = pair.sent_of(Sync)[-1]
    assert (statement.next, statement.pending) == (1, [0, 1])
    assert pair.router.stats()["kept"] == 1

    pair.receive(call)
    assert pair.router.stats()["kept"] == 0
