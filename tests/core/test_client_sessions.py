"""Sessions that are lost with their server, and what becomes of their calls."""

from __future__ import annotations

import itertools

import pytest

from tests.regressions.bench import System, is_outcome
from trio_envserve.core import call_table, error_records, messages
from trio_envserve.core.client import ClientCore
from trio_envserve.core.client_effects import Answer, Fail, ToServer
from trio_envserve.core.client_inputs import (
    CallSubmitted,
    ClientInput,
    ClientTick,
    Connected,
    Disconnected,
    OutcomeReceived,
    ServerMessage,
)
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.messages import Hello, Message, Request, Unknown, Welcome
from trio_envserve.core.router_inputs import PoolOpened
from trio_envserve.core.terms import Status, Verdict

from .helpers import Pair

# -- lost sessions ---------------------------------------------------------------


def test_g2_a_proven_loss_is_issued_again_with_consent_and_what_is_left():
    pair = Pair()
    pair.submit(rerun=True, max_executions=3)
    first = pair.sent[-1]
    pair.restart(proven=True)
    pair.advance(1.5)
    requests = [m for m in pair.sent if isinstance(m, messages.Request)]
    assert [m.allowance for m in requests] == [2, 1]
    assert requests[1].session != first.session  # type: ignore[union-attr]
    assert pair.client.calls.reissued == 1
    pair.end()
    assert isinstance(pair.last(), Answer)


def test_g2_fifty_executions_became_one_when_the_server_was_restarted_once():
    pair = Pair()
    pair.submit(rerun=True, max_executions=50)
    for _ in range(3):
        pair.restart(proven=True)
        pair.advance(1.5)
    requests = [m for m in pair.sent if isinstance(m, messages.Request)]
    assert [m.allowance for m in requests] == [37, 9, 3, 1]


def test_g9_one_of_one_allowed_was_said_of_a_call_that_was_started_three_times():
    pair = Pair(server={"restart_pause_s": 0.1, "restart_pause_max_s": 0.1})
    pair.submit(rerun=True)
    pair.die()
    pair.advance(1.0)
    pair.restart(proven=True)
    pair.advance(1.5)
    assert len(pair.runs) == 3
    pair.die()
    ended = pair.last()
    assert isinstance(ended, Answer)
    error = pair.client.error_of(ended)
    assert (error.code, error.verdict) == ("worker-lost", Verdict.MAY_HAVE_RUN)
    assert "executions in this session: 1 of 1 granted" in error.message
    assert "at most 3 of the 4 executions allowed" in error.message


def test_g9_without_consent_a_lost_session_has_started_one_execution_at_most():
    pair = Pair()
    pair.submit()
    pair.restart(proven=True)
    pair.advance(1.5)
    assert "at most 1 of the 4 executions" in pair.failure().message


def test_error_of_a_worker_has_the_executions_that_the_server_counted():
    pair = Pair()
    pair.submit()
    info = ErrorInfo(code="rollout-failed", verdict=Verdict.RAN_AND_FAILED, message="broken")
    pair.end(payload=error_records.encode(info), status=Status.ERROR)
    ended = pair.last()
    assert isinstance(ended, Answer)
    assert pair.client.error_of(ended).executions == 1


def test_g2_the_environments_declaration_is_consent_for_a_new_session_too():
    pair = Pair(rerun=True)
    pair.submit()
    pair.restart(proven=True)
    pair.advance(1.5)
    assert len(pair.runs) == 2


@pytest.mark.parametrize(
    ("how", "words"),
    [({"rerun": False}, "rerun=True"), ({"rerun": True, "max_executions": 1}, "used up")],
)
def test_g2_a_proven_loss_without_consent_or_allowance_may_have_run(how, words):
    pair = Pair()
    pair.submit(**how)
    pair.restart(proven=True)
    pair.advance(1.5)
    assert pair.verdict() == ("server-lost", Verdict.MAY_HAVE_RUN)
    assert words in pair.failure().message
    assert len(pair.runs) == 1


def test_g2_an_unproven_loss_is_asked_about_until_the_limit_and_never_issued_again():
    pair = Pair(client={"recovery_s": 5.0})
    pair.submit(rerun=True)
    pair.restart(proven=False)
    pair.advance(5.0)
    assert pair.answers == []
    pair.advance(2.0)
    assert pair.verdict() == ("server-lost", Verdict.MAY_HAVE_RUN)
    assert "not proven" in pair.failure().message
    assert len(pair.runs) == 1


def test_what_was_answered_before_the_loss_is_still_the_callers():
    pair = Pair(client={"recovery_s": 3.0})
    pair.submit()
    pair.end()
    pair.restart(proven=False)
    pair.advance(1.5)
    assert len(pair.client.sessions.lost) == 1
    pair.advance(4.0)
    pair.give_client(OutcomeReceived(0, pair.now_s))
    pair.advance(1.0)
    assert (len(pair.answers), pair.client.calls.live) == (1, {})


def test_g9_a_limit_that_passed_before_the_loss_is_not_issued_again():
    pair = Pair()
    pair.submit(rerun=True, limit_s=1.0)
    pair.lose = lambda message: True
    pair.advance(1.5)
    pair.lose = lambda message: False
    pair.restart(proven=True)
    pair.advance(1.5)
    assert pair.verdict() == ("no-answer", Verdict.MAY_HAVE_RUN)
    assert len(pair.runs) == 1


def test_g9_what_no_server_takes_after_a_loss_may_have_run():
    pair = Pair()
    pair.submit(rerun=True, limit_s=4.0)
    pair.restart(proven=True)
    pair.lose = lambda message: isinstance(message, messages.Welcome)
    pair.advance(5.0)
    assert pair.verdict() == ("server-lost", Verdict.MAY_HAVE_RUN)


@pytest.mark.parametrize("end", ["too large", "refused", "foreign", "server's deadline"])
def test_a_call_said_that_it_did_not_run_although_a_lost_server_may_have_run_it(end):
    """After a proven loss it is issued again: the new server knows half the truth."""
    pair = Pair()
    pair.submit(rerun=True)
    pair.lose = lambda message: isinstance(message, messages.Request)
    pair.restart(proven=True)
    if end == "foreign":
        pair.lose = lambda message: isinstance(message, messages.Welcome)
    pair.advance(1.5)
    session = pair.client.sessions.current
    if end == "too large":
        call_table._requeue(pair.client.calls, pair.client.calls.live[0])
        assert session is not None
        session.message_bytes = 1
        pair.give_client(ClientTick(pair.now_s))
    elif end == "foreign":
        assert session is None
        foreign = messages.encode(messages.Error(2, "foreign-version", "2 is spoken"))
        pair.give_client(ServerMessage((foreign,), pair.now_s))
    elif end == "refused":
        assert session is not None
        refused = messages.encode(messages.Refused(session.id, 0, "refused", "no", None))
        pair.give_client(ServerMessage((refused,), pair.now_s))
    else:
        assert session is not None
        info = ErrorInfo("never-started", Verdict.DID_NOT_RUN, "the deadline passed")
        outcome = messages.encode(messages.Outcome(session.id, 0, 1, "", None, 0))
        pair.give_client(ServerMessage((outcome, error_records.encode(info)), pair.now_s))
    pair.settle()
    assert pair.verdict() == ("server-lost", Verdict.MAY_HAVE_RUN)
    assert "servers that were lost may have run it" in pair.failure().message


def test_g9_a_request_that_the_server_has_forgotten_may_have_run():
    pair = Pair()
    pair.submit()
    pair.hear(messages.Refused(pair.session.id, 0, "finished", "", None))
    assert pair.verdict() == ("server-lost", Verdict.MAY_HAVE_RUN)


def test_g6_a_conflict_ends_the_call():
    pair = Pair()
    pair.submit()
    pair.hear(messages.Refused(pair.session.id, 0, "conflict", "other payload", None))
    assert pair.verdict() == ("conflict", Verdict.DID_NOT_RUN)


# -- a call made while the server is restarted -----------------------------------
# A call made while no server was there was transmitted as soon as there was a
# connection again, in the session of the old server.  The new one did not know that
# session, so the call ended as "it may have run", though no server had ever had it:
# a restart failed also those calls without consent that were made after it.
#
# Found by the soak: one of its calls a minute ended so, and no kill explained it.


def test_it_waits_until_the_server_has_said_whether_it_knows_the_session():
    pair = Pair()
    pair.give_client(Disconnected(pair.now_s, "cut"))
    pair.restart(proven=True)
    pair.submit(b"made meanwhile", rerun=False)
    pair.connect()
    (request,) = (message for message in pair.sent if isinstance(message, messages.Request))
    assert pair.client.sessions.current is not None
    assert request.session == pair.client.sessions.current.id
    assert len(pair.runs) == 1
    pair.end()
    assert isinstance(pair.last(), Answer)


def test_it_is_told_again_with_the_next_ping_if_the_answer_is_lost():
    pair = Pair()
    pair.give_client(Disconnected(pair.now_s, "cut"))
    pair.submit(b"made meanwhile")
    with pair.losing(messages.Synced):
        pair.connect()
        assert pair.runs == []
    pair.advance(1.5)
    assert len(pair.runs) == 1


# -- the environment's consent, and a new server ---------------------------------
# After a restart the new server has no worker yet, and its first record says
# nothing of the environment.  The client took that for "no consent" and failed the
# calls which the environment had allowed to run again: two of three such calls.
#
# Found by the simulator, by counting what became of them.


def sent(client: ClientCore, given: ClientInput) -> list[Message]:
    effects = client.take(given)
    assert not [effect for effect in effects if isinstance(effect, Fail)]
    frames = [effect.frames for effect in effects if isinstance(effect, ToServer)]
    return [messages.decode(each[0], most_bytes=1 << 20) for each in frames]


def welcome(client: ClientCore, server: int, status: str, environment: str, rerun: bool) -> None:
    said = sent(client, ClientTick(float(server)))
    hello = next(each for each in said if isinstance(each, Hello))
    record = {"status": status, "environment": environment, "rerun": rerun}
    answer = Welcome(
        PROTOCOL_VERSION,
        hello.nonce,
        bytes([server]) * 16,
        bytes([server]) * 16,
        8,
        1 << 20,
        record,
    )
    client.take(ServerMessage((messages.encode(answer),), float(server)))


def test_a_call_is_issued_again_as_the_environment_had_declared():
    ids = itertools.count()
    client = ClientCore(name="c", new_id=lambda: next(ids).to_bytes(16), now_s=0.0)
    client.take(Connected(0.0))
    welcome(client, 1, "ready", "env", True)
    asked = CallSubmitted(0, b"body", 1.0, max_executions=2)
    (request,) = (each for each in sent(client, asked) if isinstance(each, Request))

    unknown = Unknown(request.session, False, b"\2" * 16, False)
    client.take(ServerMessage((messages.encode(unknown),), 1.5))
    welcome(client, 2, "starting", "", False)
    gone = ServerMessage((messages.encode(unknown._replace(gone=True)),), 2.5)

    (again,) = (each for each in sent(client, gone) if isinstance(each, Request))
    assert again.session == b"\2" * 16
    assert again.allowance == 1


# -- failures that servers of this kind are known for ----------------------------


def test_failure_07_answer_of_a_lost_session_is_thrown_away():
    """The same with a session that a new server has disowned already, and whose last
    answer was still on its way.

    Here a lost session is kept until it is known what has become of it, and its
    outcomes count.
    """
    system = System(rerun=True)
    call = system.submit()
    system.lose = is_outcome
    system.end()
    on_its_way = system.outcomes[-1]
    epoch = system.router.epoch
    system.lose = lambda message: False
    system.restart_server(proven=False)
    system.advance(3.0)
    assert system.ended == {}, "it waits for proof"

    system.give_client(ServerMessage(on_its_way, system.now_s))
    system.give(PoolOpened((epoch,), system.now_s))
    system.advance(10.0)
    assert len(system.starts) == 1, "it ran again"
    assert system.result(call) == b"outcome"
