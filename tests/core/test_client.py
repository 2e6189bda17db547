"""The client's side of its link, against a real router."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.client import SYNCS_REFUSED, ClientCore
from trio_envserve.core.client_effects import Answer, Fail, QuestionRefused
from trio_envserve.core.client_inputs import (
    CallKey,
    CallSubmitted,
    ClientTick,
    Connected,
    OutcomeReceived,
    ServerMessage,
)
from trio_envserve.core.errors import ErrorInfo, ProtocolError
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.router_inputs import CloseAsked
from trio_envserve.core.terms import Status, Verdict

from .client_side import connect, hear, kinds, session_id, verdict
from .helpers import Pair, identifier

# -- sessions and sending -----------------------------------------------------


def test_a_body_larger_than_this_side_may_send_is_not_sent():
    """Its socket refused it, and with each sync the server asked for it again."""
    pair = Pair()
    pair.client.wire = WireLimits(message_bytes=10)
    pair.submit(b"x" * 11)
    assert verdict(pair) == ("too-large", Verdict.DID_NOT_RUN)
    assert "this client's message_bytes is 10" in pair.failure().message
    assert "Request" not in kinds(pair.sent)


def test_a_body_larger_than_the_server_takes_is_not_sent():
    pair = Pair(wire={"message_bytes": 10})
    pair.submit(b"x" * 11)
    assert verdict(pair) == ("too-large", Verdict.DID_NOT_RUN)
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


def test_acknowledgements_go_with_a_request_if_they_have_waited_a_little():
    pair = Pair()
    pair.give_client(ClientTick(pair.now_s))
    for _ in range(2):
        call = pair.submit()
        pair.end((b"w0-1", pair.runs[call][1]))
        pair.give_client(OutcomeReceived(call, pair.now_s))
        pair.submit()
    assert "Finish" not in kinds(pair.sent)
    pair.now_s += 0.011  # half of the time after which they would go alone
    pair.sent.clear()
    pair.submit()
    assert kinds(pair.sent) == ["Finish", "Request"]


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
    "frames", [(), (b"\xff",), (messages.encode(messages.Goodbye(b"x" * 16)), b"")]
)
def test_what_is_malformed_is_reported_and_ignored(frames):
    pair = Pair()
    pair.give_client(ServerMessage(frames, pair.now_s))
    pair.settle()
    assert "ignored a message of the server" in pair.reports[-1].text


def test_what_a_server_does_not_say_is_reported_and_ignored():
    pair = Pair()
    hear(pair, messages.Goodbye(identifier(1)))
    assert pair.reports[-1].text == "ignored a Goodbye of the server"


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
    pair = Pair(ready=False, welcomed=False)
    pair.submit()
    foreign = messages.Error(2, "foreign-version", "version 1 is not spoken, 2 is")
    hear(pair, foreign)
    hear(pair, foreign)
    assert verdict(pair) == ("foreign-version", Verdict.DID_NOT_RUN)
    pair.submit()
    assert len(pair.answers) == 2
    assert [r.text for r in pair.reports] == [f"the server refuses: {foreign.text}"]
    connect(pair)  # and the next one speaks it
    pair.advance(1.0)
    pair.submit()
    assert len(pair.answers) == 2


def test_statistics_go_to_whoever_asked():
    pair = Pair()
    pair.give_client(ServerMessage((messages.encode(messages.Stats(7)), b"record"), pair.now_s))
    (effect,) = pair.client_said()
    assert tuple(effect) == (7, b"record")


# -- an environment's error is not the server's word -----------------------------
# An error of environment code that happened to have the code ``stopping`` was
# taken for the server's own "it did not run" and the call issued again.


def test_a_stopping_error_of_something_that_ran_is_an_answer() -> None:
    client = ClientCore(name="c", new_id=lambda: b"n" * 16, now_s=0.0)
    client.take(Connected(0.0))
    server = {"status": "ready", "environment": "e", "rerun": True}
    welcome = messages.Welcome(1, b"n" * 16, b"s" * 16, b"e" * 16, 10, 10**6, server)
    client.take(ServerMessage([messages.encode(welcome)], 0.1))
    client.take(CallSubmitted(7, b"body", 0.2))
    body = error_records.encode(
        ErrorInfo(code="stopping", verdict=Verdict.RAN_AND_FAILED, message="mine")
    )
    outcome = messages.Outcome(b"s" * 16, 0, Status.ERROR, "w0-1", 0.1, 1)
    effects = client.take(ServerMessage([messages.encode(outcome), body], 0.3))
    answers = [effect for effect in effects if isinstance(effect, Answer)]
    assert [answer.call for answer in answers] == [7]


# -- refused as malformed ------------------------------------------------------------


@pytest.mark.parametrize("kind", [cls for cls in messages.KINDS if cls is not messages.Error])
@pytest.mark.parametrize("how", ["{0} with 5 fields, not 6", "{0}.digest is not bytes", "kind"])
def test_the_text_of_a_refusal_says_which_message_it_is_about(kind: Any, how: str):
    text = f"unknown kind {messages.KINDS[kind]}" if how == "kind" else how.format(kind.__name__)
    assert messages.refused_class(text) is kind


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
    pair.lose = lambda message: isinstance(message, messages.Request | messages.KeyedRequest)
    name = KeyName(b"default", b"k")
    asks = CallKey(KeyAct.ASK, name, input_digest(b"body", None)) if keyed else None
    pair.submit(key=asks)
    kind = "KeyedRequest" if keyed else "Request"
    hear(pair, messages.Error(1, "malformed", f"{kind} with 7 fields, not 6"))
    assert pair.answers == []  # it may be about another one: the server says which it lacks
    pair.advance(1.5)
    assert verdict(pair) == ("malformed", Verdict.DID_NOT_RUN)
    assert f"{kind} with 7 fields, not 6" in pair.failure().message
    sent = len(pair.sent)
    pair.advance(5.0)
    assert not {"Request", "KeyedRequest"} & {*kinds(pair.sent[sent:])}
    assert pair.client.calls.retransmitted == 0


@pytest.mark.parametrize("text", ["Sync with 7 fields, not 6", "KeyedRequest.digest is not bytes"])
def test_a_lost_request_is_sent_again_whatever_else_is_refused(text: str):
    pair = Pair()
    pair.lose = lambda message: isinstance(message, messages.Request)
    pair.submit()
    hear(pair, messages.Error(1, "malformed", text))
    pair.lose = lambda message: False
    pair.advance(1.5)
    assert len(pair.runs) == 1


def test_a_request_that_was_sent_after_another_one_was_refused_is_sent_again():
    pair = Pair()
    hear(pair, messages.Error(1, "malformed", "Request with 7 fields, not 6"))
    pair.lose = lambda message: isinstance(message, messages.Request)
    pair.submit()
    pair.lose = lambda message: False
    pair.advance(1.5)
    assert len(pair.runs) == 1


def test_an_answer_that_is_late_ends_no_call_as_malformed():
    """The server was asked before the request was sent."""
    pair = Pair()
    pair.submit()
    hear(pair, messages.Error(1, "malformed", "Request with 7 fields, not 6"))
    hear(pair, messages.Synced(session_id(pair), 0, [0, 1], pair.router.status()))
    assert pair.answers == []


def refuse_statements(pair: Pair, count: int) -> None:
    """A server whose statements have another field, under a version of the same number."""
    pair.lose = lambda message: isinstance(message, messages.Sync | messages.Request)
    for _ in range(count):
        hear(pair, messages.Error(1, "malformed", "Sync with 7 fields, not 6"))


def test_g9_a_call_whose_statements_are_refused_as_malformed_waited_for_ever():
    """Nothing that was lost was repaired, and its lease ended without a word."""
    pair = Pair()
    refuse_statements(pair, 0)
    pair.submit()
    refuse_statements(pair, SYNCS_REFUSED)
    assert verdict(pair) == ("no-answer", Verdict.MAY_HAVE_RUN)
    assert "Sync with 7 fields, not 6" in pair.failure().message
    pair.submit()
    assert verdict(pair) == ("malformed", Verdict.DID_NOT_RUN)  # and nobody asks for more
    pair.lose = lambda message: False
    pair.restart(proven=True)  # by one that understands
    pair.advance(3.0)
    pair.submit()
    assert len(pair.runs) == 1


def test_call_that_waits_for_the_window_ends_when_statements_are_refused():
    pair = Pair(server={"window": 1})
    pair.submit()
    pair.submit()
    refuse_statements(pair, SYNCS_REFUSED)
    said = [answer.info.verdict for answer in pair.answers if isinstance(answer, Fail)]
    assert said == [Verdict.DID_NOT_RUN, Verdict.MAY_HAVE_RUN]


def test_statements_that_are_refused_now_and_then_end_no_call():
    pair = Pair()
    pair.submit()
    for _ in range(9):
        refuse_statements(pair, SYNCS_REFUSED - 1)
        pair.lose = lambda message: False
        pair.advance(1.5)
    assert pair.answers == []
    pair.end()
    assert len(pair.answers) == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [("AskStack.number is not uint", messages.AskStack), ("unknown kind 10", messages.AskRunning)],
)
def test_whoever_asks_is_told_that_the_question_is_refused(text: str, kind: type):
    pair = Pair()
    given = ServerMessage((messages.encode(messages.Error(1, "malformed", text)),), pair.now_s)
    pair.give_client(given)
    refused, *_ = [each for each in pair.client_said() if isinstance(each, QuestionRefused)]
    assert refused.question is kind
    assert text in refused.text
