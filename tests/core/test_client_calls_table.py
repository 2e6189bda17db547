"""The table of a call: every input in every stage, and what the cells change."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core.client import (
    BURST,
    TABLE,
    Answer,
    Call,
    CallAction,
    CallInput,
    Calls,
    CallSubmitted,
    ClientSession,
    Effects,
    OutcomeReceived,
    Stage,
    Terms,
    info,
)
from trio_envserve.core.limits import ClientLimits
from trio_envserve.core.messages import SESSION_FULL, Request
from trio_envserve.core.terms import Status, Verdict

from .helpers import Pair, identifier

LIMITS = ClientLimits(ping_s=1.0, cancel_answer_s=5.0)
REFUSED = info("refused", Verdict.DID_NOT_RUN, "too large")


ANSWER = Answer(0, Status.RESULT, b"result", "w0", 1.0, 1, None)


def made(stage: Stage, **options: Any) -> tuple[Calls, ClientSession, Call]:
    """Calls of which the only one is in this stage."""
    options = {"max_executions": 4, "limit_s": 9.0, **options}
    calls, session = Calls(LIMITS), ClientSession(identifier(1), identifier(2), 9, 9)
    call = calls.new(CallSubmitted(0, b"body", 0.0, Terms(**options)))
    if stage is not Stage.QUEUED:
        calls.step(call, CallInput.SEND, 0.0, session)
    if stage is Stage.EXPIRED:
        calls.step(call, CallInput.LIMIT, 0.0)
    elif stage is Stage.ANSWERED:
        calls.step(call, CallInput.OUTCOME, 0.0, ANSWER)
    assert call.stage is stage
    return calls, session, call


def argument(input: CallInput, session: ClientSession) -> Any:
    return {
        CallInput.SEND: session, CallInput.MISSING: 1,
        CallInput.HOLD: (3.0, SESSION_FULL, "queue-full"),
        CallInput.REFUSED: REFUSED, CallInput.OUTCOME: ANSWER,
        CallInput.LIMIT: lambda now_s: REFUSED, CallInput.CANCELLED: False,
        CallInput.PROVEN: True, CallInput.UNPROVEN: True, CallInput.SETTLED: True,
    }.get(input)  # fmt: skip


def dos(effects: Effects) -> list[CallAction]:
    return [do for do, _ in effects]


def error(effects: Effects) -> tuple[str, Verdict]:
    """The code and the verdict of the one error among these."""
    ((_, found),) = [what for do, what in effects if do is CallAction.FAIL]
    return found.code, found.verdict


STAGES = (Stage.QUEUED, Stage.SENT, Stage.EXPIRED, Stage.ANSWERED)
GONE = "gone"
FAILED = (GONE, [CallAction.TELL_NEXT, CallAction.FAIL])
UNSENT = (GONE, [CallAction.FAIL])
DROPPED = (GONE, [CallAction.TELL])
QUEUED: tuple[Stage, list[CallAction]] = (Stage.QUEUED, [])
SENT: tuple[Stage, list[CallAction]] = (Stage.SENT, [])
EXPIRED: tuple[Stage, list[CallAction]] = (Stage.EXPIRED, [])
ANSWERED: tuple[Stage, list[CallAction]] = (Stage.ANSWERED, [])
AGAIN = (Stage.QUEUED, [CallAction.TELL_NEXT])
LATER = (Stage.QUEUED, [CallAction.STOPPING, CallAction.TELL_NEXT])
TRANSMITTED = (Stage.SENT, [CallAction.TRANSMIT])
GIVEN = (Stage.ANSWERED, [CallAction.ANSWER])

# What follows in each stage, and the stage after; None: it cannot be.
EXPECTED: dict[CallInput, tuple[Any, ...]] = {
    CallInput.SEND: (TRANSMITTED, None, None, None),
    CallInput.MISSING: (None, TRANSMITTED, EXPIRED, ANSWERED),
    CallInput.HOLD: (None, SENT, EXPIRED, ANSWERED),
    CallInput.DUE: (None, TRANSMITTED, None, None),
    CallInput.REFUSED: (UNSENT, FAILED, FAILED, ANSWERED),
    CallInput.STOPPING: (None, LATER, LATER, ANSWERED),
    CallInput.OUTCOME: (None, GIVEN, GIVEN, ANSWERED),
    CallInput.RECEIVED: (None, None, None, (GONE, [CallAction.TELL_SOON])),
    CallInput.CANCEL: ((GONE, []), DROPPED, DROPPED, DROPPED),
    CallInput.LIMIT: (UNSENT, EXPIRED, EXPIRED, ANSWERED),
    CallInput.TIME: (QUEUED, SENT, EXPIRED, ANSWERED),
    CallInput.CANCELLED: (None, SENT, FAILED, ANSWERED),
    CallInput.PROVEN: (None, AGAIN, FAILED, ANSWERED),
    CallInput.UNPROVEN: (None, FAILED, FAILED, ANSWERED),
    CallInput.SETTLED: (None, AGAIN, FAILED, ANSWERED),
    CallInput.CLOSED: (UNSENT, FAILED, FAILED, ANSWERED),
}

CELLS = [
    pytest.param(stage, input, expected, id=f"{input.name} in {stage.name}")
    for input, row in EXPECTED.items()
    for stage, expected in zip(STAGES, row, strict=True)
]


@pytest.mark.parametrize(("stage", "input", "expected"), CELLS)
def test_every_input_in_every_stage(stage, input, expected):
    calls, session, call = made(stage)
    if input is CallInput.DUE and stage is Stage.SENT:
        calls.step(call, CallInput.HOLD, 0.0, (0.0, SESSION_FULL, "queue-full"))
    if expected is None:
        with pytest.raises(AssertionError, match="cannot reach"):
            calls.step(call, input, 0.0, argument(input, session))
        assert call.stage is stage
        return
    after, do = expected
    assert dos(calls.step(call, input, 0.0, argument(input, session))) == do
    records = (calls.live, calls.queue, calls.timed, dict.fromkeys(calls.held))
    if after is GONE:
        assert records == ({}, {}, {}, {})
        assert session.calls == {}
        assert session.unflushed == ([0] if stage is not Stage.QUEUED else [])
        return
    assert call.stage is after
    assert (call.number in calls.queue) == (after is Stage.QUEUED) == (call.session is None)
    held = input is CallInput.HOLD and after is Stage.SENT
    assert (call.number in calls.held) == (SESSION_FULL in calls.held.lines) == held
    assert list(session.calls.values()) == ([] if after is Stage.QUEUED else [call])


def test_the_table_has_all_inputs_and_all_stages():
    assert {*TABLE} == {*CallInput} == {*EXPECTED}
    assert all({*row} == {*Stage} for row in TABLE.values())


@pytest.mark.parametrize("input", CallInput, ids=lambda input: input.name)
def test_every_input_to_a_call_that_is_gone_changes_nothing(input):
    calls, session, _ = made(Stage.SENT)
    assert calls.step(None, input, 0.0, argument(input, session)) == ()
    assert (list(calls.live), list(session.calls), session.unflushed) == ([0], [0], [])


@pytest.mark.parametrize(
    ("rerun", "allowance", "earlier"), [(None, 4, 3), (False, 4, 1), (True, 4, 3), (True, 1, 1)]
)
def test_g2_a_call_that_is_issued_again_says_what_lost_sessions_may_have_started(
    rerun, allowance, earlier
):
    """Whether it may start again, says the server."""
    calls, session, call = made(Stage.SENT, rerun=rerun, max_executions=allowance)
    assert dos(calls.step(call, CallInput.PROVEN, 0.0)) == [CallAction.TELL_NEXT]
    assert calls.reissued == 1
    assert call.may_have_run
    calls.step(call, CallInput.SEND, 0.0, session)
    assert call.request is not None
    assert (call.request.allowance, call.request.earlier) == (allowance, earlier)


def test_g2_what_may_still_run_is_not_issued_again():
    calls, _, call = made(Stage.SENT, rerun=True)
    effects = calls.step(call, CallInput.UNPROVEN, 0.0)
    assert error(effects) == ("server-lost", Verdict.MAY_HAVE_RUN)


def test_g9_what_was_settled_did_not_run_and_keeps_its_allowance():
    calls, _, call = made(Stage.SENT)
    calls.step(call, CallInput.SETTLED, 0.0, False)
    assert (call.most, call.earlier, call.may_have_run) == (4, 0, False)
    calls, _, call = made(Stage.EXPIRED)
    effects = calls.step(call, CallInput.SETTLED, 0.0, False)
    assert error(effects) == ("never-started", Verdict.DID_NOT_RUN)


@pytest.mark.parametrize("input", [CallInput.REFUSED, CallInput.LIMIT, CallInput.CLOSED])
def test_g9_a_call_that_a_lost_session_may_have_run_never_did_not_run(input):
    calls, session, call = made(Stage.SENT, rerun=True)
    calls.step(call, CallInput.PROVEN, 0.0, False)
    verdict = error(calls.step(call, input, 0.0, argument(input, session)))[1]
    assert verdict is Verdict.MAY_HAVE_RUN


def test_g9_an_answer_that_it_did_not_run_is_no_answer_after_a_loss():
    calls, session, call = made(Stage.SENT, rerun=True)
    calls.step(call, CallInput.PROVEN, 0.0, False)
    calls.step(call, CallInput.SEND, 0.0, session)
    effects = calls.step(call, CallInput.OUTCOME, 0.0, ANSWER._replace(error=REFUSED))
    assert error(effects) == ("server-lost", Verdict.MAY_HAVE_RUN)


def test_g9_an_expired_call_asks_with_each_ping_and_ends_without_an_answer():
    calls, _, call = made(Stage.EXPIRED)
    moments_s = (0.9, 1.9, 2.0, 2.9, 3.0)  # for limit_word_s it waits for the server's own word
    asked = [dos(calls.step(call, CallInput.TIME, now_s)) for now_s in moments_s]
    assert asked == [[], [], [CallAction.ASK], [], [CallAction.ASK]]
    effects = calls.step(call, CallInput.LIMIT, 5.0)
    assert error(effects) == ("no-answer", Verdict.MAY_HAVE_RUN)


@pytest.mark.parametrize(("limit_s", "held"), [(9.0, True), (None, False)])
def test_limit_that_the_server_does_not_know_is_asked_about_at_once(limit_s, held):
    calls, _, call = made(Stage.SENT, limit_s=limit_s)
    if held:
        calls.step(call, CallInput.HOLD, 0.0, (3.0, SESSION_FULL, "queue-full"))
    assert dos(calls.step(call, CallInput.LIMIT, 0.0)) == [CallAction.ASK]


# -- many requests that are refused for now --------------------------------------
# 5,000 calls met a server with room for 356.  Each of the others was sent again as soon
# as its delay had passed, with its body, and refused again: 100,000 transmissions in ten
# seconds, and the next calls were sent on top.
#
# Refused ones are tried again a few at a time, ever fewer while that is refused too,
# and what waits behind them stays here.


ROOM, CALLS, SECONDS = 10, 300, 20


def test_a_call_that_is_issued_again_has_no_clock_of_its_own_without_a_limit():
    for limit_s, timed in ((None, []), (9.0, [0])):
        calls, _, call = made(Stage.EXPIRED, limit_s=limit_s)
        assert list(calls.timed) == [0]
        calls.step(call, CallInput.STOPPING, 0.0)
        assert list(calls.timed) == timed


def transmissions(pair: Pair) -> int:
    return sum(isinstance(message, Request) for message in pair.sent)


def at_a_full_server() -> Pair:
    limits = {"queue": 2 * (ROOM - 1), "worker_capacity": 1, "retry_delay_s": 0.5}
    pair = Pair(server=limits)
    for _ in range(CALLS):  # as a client with many tasks does, before anything is heard
        pair.give_client(CallSubmitted(pair.new_call(), b"body", pair.now_s))
    pair.settle()
    assert transmissions(pair) == CALLS
    assert len(pair.session.tickets) == ROOM
    return pair


def test_ever_fewer_are_tried_while_all_are_refused():
    pair = at_a_full_server()
    pair.advance(SECONDS, step_s=0.25)
    tried = transmissions(pair) - CALLS
    assert tried < 2 * BURST + SECONDS / 0.25  # and not (CALLS - ROOM) * SECONDS / 0.5
    before = transmissions(pair)
    pair.advance(SECONDS, step_s=0.25)
    assert 0 < transmissions(pair) - before <= SECONDS / 0.25


def test_each_is_run_once_when_there_is_room():
    pair = at_a_full_server()
    pair.submit()
    assert transmissions(pair) == CALLS, "a new call waits behind those that were refused"
    pair.advance(SECONDS, step_s=0.25)
    ended = 0
    for _ in range(40 * CALLS):
        if ended == len(pair.runs):
            pair.advance(0.25, step_s=0.25)
        else:
            pair.end(pair.runs[ended])
            pair.give_client(OutcomeReceived(pair.answers[ended].call, pair.now_s))
            ended += 1
    assert len(pair.runs) == len(pair.answers) == CALLS + 1
    assert not pair.client.calls.live
