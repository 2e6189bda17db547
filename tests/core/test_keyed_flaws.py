"""Requests with keys, between client and router: what once went wrong there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core.call_steps import CallInput
from trio_envserve.core.call_table import Calls
from trio_envserve.core.calls import ClientSession
from trio_envserve.core.client_inputs import (
    CallKey,
    CallsCancelled,
    CallSubmitted,
    ServerMessage,
)
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.limits import KIB, ClientLimits
from trio_envserve.core.request_table import RequestInput
from trio_envserve.core.requests import RequestState, Session
from trio_envserve.core.router_inputs import CloseAsked
from trio_envserve.core.terms import Status

from .helpers import Pair, limit_keys


def submit(
    pair: Pair, word: bytes, act: KeyAct = KeyAct.ASK, body: bytes = b"body", **how: Any
) -> int:
    """A call with a key, sent as far as it goes."""
    digest = input_digest(body, how.get("rerun"))
    tag = word if act in (KeyAct.CANCEL, KeyAct.FORGET) else b""
    return pair.submit(body, key=CallKey(act, KeyName(b"default", word), digest, tag), **how)


def full_of_keys() -> Pair:
    """A server with room for one generation, and a client that waits with another one."""
    pair = Pair(workers=2)
    limit_keys(pair, generations=1, namespace_share=1.0)
    submit(pair, b"0")
    submit(pair, b"1")
    assert len(pair.runs) == 1
    assert len(pair.client.calls.held) == 1
    return pair


def test_the_next_work_of_a_key_waited_for_ever_when_an_announced_outcome_was_not_wanted():
    pair = Pair(workers=1, server={"kept_bytes": 64 * KIB})
    fills, waits = pair.submit(b"fills what may be kept"), submit(pair, b"key")
    for run in list(pair.runs):
        pair.end(run, bytes(100 * KIB))
    assert len(pair.router.announced) == 1
    pair.give_client(CallsCancelled((waits,), pair.now_s))
    pair.settle()
    pair.receive(fills)
    submit(pair, b"key")
    assert len(pair.runs) == 3
    assert not pair.router.keys.ending


def test_work_was_answered_again_that_its_key_had_finished_as_the_server_closed():
    pair = Pair(workers=1)
    submit(pair, b"key")
    steps = watched(pair)
    pair.give(CloseAsked(pair.now_s, ClosingStage.DRAINING))
    pair.die()
    assert (RequestInput.DEADLINE, RequestState.NOT_SEEN) not in steps


def test_a_waiter_and_who_had_attached_crashed_the_server_when_they_left_together():
    pair = Pair(workers=1)
    both = [submit(pair, b"key"), submit(pair, b"key", KeyAct.ATTACH)]
    pair.lose = lambda message: isinstance(message, messages.Finish)
    pair.give_client(CallsCancelled(both, pair.now_s))
    pair.settle()
    pair.lose = lambda message: False
    pair.advance(1.5)  # the next sync says it of both
    assert not pair.session.entries
    assert len(pair.cancels) == 1


def watched(pair: Pair) -> list[tuple[RequestInput, RequestState]]:
    """What the requests of the router will be given, and in which states."""
    step, steps = pair.router.cache.step, []

    def watching(session: Session, sequence: int, input: RequestInput, arg: Any = None) -> Any:
        steps.append((input, session.state(sequence)))
        return step(session, sequence, input, arg)

    pair.router.cache.step = watching  # type: ignore[method-assign]  # to look on
    return steps


# -- calls that are refused for their keys, and the others of their client ----------------
# A window full of asks for whose keys there was no room kept back every other call of
# their client, the forget that would have made room among them; and one that no worker
# could judge yet ("keys-early") did so alone.

WINDOW = 16


def crowd(pair: Pair, count: int) -> None:
    """Asks for keys, all made before anything is heard."""
    for number in range(count):
        word = b"%d" % number
        key = CallKey(KeyAct.ASK, KeyName(b"default", word), input_digest(b"body", None))
        pair.give_client(CallSubmitted(pair.new_call(), b"body", pair.now_s, key=key))
    pair.settle()


def full_window() -> Pair:
    """A client with more asks than its window takes, at a server with room for one key."""
    pair = Pair(workers=2, server={"window": WINDOW})
    limit_keys(pair, generations=1, namespace_share=1.0)
    crowd(pair, 3 * WINDOW)
    assert len(pair.runs) == 1
    return pair


@pytest.mark.parametrize("full", [full_of_keys, full_window])
def test_asks_without_room_for_their_keys_held_up_calls_without_keys(full: Callable[[], Pair]):
    pair = full()
    pair.submit(b"no key")
    assert [bytes(run.body) for _, run in pair.runs] == [b"body", b"no key"]


@pytest.mark.parametrize("full", [full_of_keys, full_window])
def test_asks_without_room_for_their_keys_held_up_the_forget_that_makes_room(
    full: Callable[[], Pair],
):
    pair = full()
    submit(pair, b"0", KeyAct.FORGET)
    pair.end(status=Status.CANCELLED)
    pair.advance(5.0)
    assert len(pair.runs) == 2
    assert (full is full_of_keys) == (not pair.client.calls.held)


def test_asks_past_their_part_of_the_window_are_sent_when_others_have_left_it():
    pair = full_window()
    limit_keys(pair)
    pair.advance(30.0)
    while len(pair.answers) < 3 * WINDOW:
        pair.end(pair.runs[len(pair.answers)])
        pair.receive(pair.answers[-1].call)
        pair.advance(1.0)
    assert len(pair.runs) == 3 * WINDOW


def test_a_window_of_one_takes_an_ask_for_a_key():
    pair = Pair(server={"window": 1})
    submit(pair, b"key")
    assert len(pair.runs) == 1


def test_an_ask_that_came_too_early_held_up_calls_without_keys():
    pair = Pair(workers=2)
    submit(pair, b"key")
    session, sequence = pair.session.id, 0
    refused = messages.Refused(session, sequence, "keys-early", "no worker has said it", 60.0)
    pair.give_client(ServerMessage((messages.encode(refused),), pair.now_s))
    pair.submit(b"no key")
    assert [bytes(run.body) for _, run in pair.runs] == [b"body", b"no key"]


def test_a_call_for_which_there_was_no_room_once_waited_behind_all_that_wait_for_keys():
    calls, session = Calls(ClientLimits()), ClientSession(bytes(16), bytes(16), 999, 9)
    for number in range(500):
        held = CallInput.KEY_HELD if number < 499 else CallInput.HOLD
        call = calls.new(CallSubmitted(number, b"body", 0.0))
        calls.step(call, CallInput.SEND, 0.0, session)
        calls.step(call, held, 0.0, 1.0 if held is CallInput.HOLD else (1.0, "keys-full"))
    assert next(call.number for call in calls.due(1.0)) == 499


def test_every_call_refused_for_its_key_has_its_turn_within_a_round():
    calls, session = Calls(ClientLimits()), ClientSession(bytes(16), bytes(16), 9999, 9)
    for number in range(2560):
        call = calls.new(CallSubmitted(number, b"body", 0.0))
        calls.step(call, CallInput.SEND, 0.0, session)
        calls.step(call, CallInput.KEY_HELD, 0.0, (0.0, "keys-full"))
    tried = set()
    for _ in range(256):
        for call in calls.due(1.0):
            tried.add(call.number)
            calls.step(call, CallInput.DUE, 1.0)
            calls.step(call, CallInput.KEY_HELD, 1.0, (1.0, "keys-full"))
    assert len(tried) == 2560


def test_calls_that_may_wait_took_the_room_that_others_had_been_refused():
    """Runs whose clients were gone, dozens, were tried again in turn with those of others."""
    calls, session = Calls(ClientLimits()), ClientSession(bytes(16), bytes(16), 999, 9)
    for number in range(60):
        call = calls.new(CallSubmitted(number, b"body", 0.0))
        call.may_wait = number < 59
        calls.step(call, CallInput.SEND, 0.0, session)
        calls.step(call, CallInput.KEY_HELD, 0.0, (float(number // 59), "keys-full"))
    assert calls.due(0.5) == []  # it is not due yet, and its room is not given to others
    [last] = calls.due(1.0)
    assert last.number == 59
    calls.step(last, CallInput.DUE, 1.0)
    assert {call.number for call in calls.due(1.0)} <= set(range(59))
    assert calls.due(1.0)
