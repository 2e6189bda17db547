"""Calls that were refused for their keys: which of them are tried again, and when."""

from __future__ import annotations

from trio_envserve.core.client import (
    BURST,
    Call,
    CallInput,
    CallKey,
    Calls,
    CallSubmitted,
    ClientSession,
    Terms,
)
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.limits import ClientLimits
from trio_envserve.core.messages import SESSION_FULL


class Held:
    """The calls of a client that its server has refused for their keys."""

    def __init__(self) -> None:
        self.calls = Calls(ClientLimits())
        self.session = ClientSession(bytes(16), bytes(16), 9999, 9)
        self.tried: set[int] = set()

    def add(self, namespace: bytes, count: int = 1) -> None:
        for _ in range(count):
            number = len(self.calls.live)
            key = CallKey(KeyAct.ASK, KeyName(namespace, b"%d" % number))
            call = self.calls.new(CallSubmitted(number, b"body", 0.0, Terms(key=key)))
            self.calls.step(call, CallInput.SEND, 0.0, self.session)
            self.refuse(call)

    def refuse(self, call: Call) -> None:
        assert call.key is not None
        namespace = call.key.name.namespace
        self.calls.step(call, CallInput.HOLD, 0.0, (0.0, namespace, "keys-full"))

    def turn(self, *has_room: bytes) -> list[bytes]:
        """The namespaces of those that are tried again; where there is no room they are
        refused again."""
        due = self.calls.held.due(1.0)
        self.tried |= {call.number for call in due}
        for call in due:
            self.calls.step(call, CallInput.DUE, 1.0)
        tried = [call.key.name.namespace for call in due if call.key is not None]
        for call, namespace in zip(due, tried, strict=True):
            if namespace not in has_room:
                self.refuse(call)
        return tried


def test_calls_of_all_namespaces_were_tried_again_in_one_line():
    held = Held()
    held.add(b"full", 2000)
    for _ in range(20):
        held.turn()
    held.add(b"other")
    assert b"other" in held.turn() + held.turn()


def test_a_call_for_which_there_was_no_room_once_waited_behind_all_that_wait_for_keys():
    held = Held()
    held.add(b"full", 500)
    held.add(SESSION_FULL)
    assert held.turn()[0] == SESSION_FULL


def test_every_call_refused_for_its_key_has_its_turn_within_a_round():
    held = Held()
    held.add(b"full", 300)
    for _ in range(256):
        held.turn()
    assert held.tried == {*range(300)}


def test_refusals_in_one_namespace_slowed_down_another_that_has_room():
    held = Held()
    held.add(b"full", 2000)
    held.add(b"other", 200)
    tried = [namespace for _ in range(12) for namespace in held.turn(b"other")]
    assert tried.count(b"other") == 200


def test_one_turn_tries_only_so_many_however_many_namespaces_there_are():
    held = Held()
    for number in range(3 * BURST):
        held.add(b"%d" % number)
    turns = [held.turn() for _ in range(6)]
    assert [len(tried) for tried in turns] == [BURST] * 6
    for three in (turns[:3], turns[3:]):  # each has its turn before any has another one
        assert len({namespace for tried in three for namespace in tried}) == 3 * BURST


def test_g8_calls_that_are_not_due_let_their_numbers_grow():
    """It doubled with each look: by a bit four times a second, for each namespace."""
    held = Held()
    held.add(b"full")
    (call,) = held.calls.live.values()
    held.calls.step(call, CallInput.HOLD, 0.0, (1e9, b"full", "keys-full"))
    for _ in range(1000):
        assert held.turn() == []
    assert held.calls.held.lines[b"full"].burst == BURST
