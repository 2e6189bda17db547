"""Keys with a clock, and what they say in short, for the tests of their rules."""

from __future__ import annotations

import dataclasses
from typing import Any

from trio_envserve.core.journal import Journal
from trio_envserve.core.key_records import (
    Answer,
    AnswerCancelled,
    Enter,
    Finish,
    KeyAct,
    Keyed,
    KeyEffects,
    KeyName,
    Refuse,
    Reissue,
    WorkState,
    input_digest,
)
from trio_envserve.core.keys import Keys
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.requests import Ask, Entry, RetainedOutcome
from trio_envserve.core.terms import RequestId

from .helpers import identifier, kept

NAME = KeyName(b"default", b"key")
OUTCOME = kept()
LIMITS = KeyLimits(orphan_s=10.0, retention_s=100.0, command_s=20.0)

# Requests; each is of a session of its own, unless it says so.
A, B, C = (RequestId(identifier(n), 0) for n in (1, 2, 3))
A_BACK = RequestId(identifier(11), 0)
"""Of the caller of A, from a later session."""


def caller(waiter: RequestId) -> bytes:
    return identifier(int.from_bytes(waiter.session, "big") % 10 + 100)


def asking(
    waiter: RequestId, ask: Ask, name: KeyName = NAME, reissue: Reissue | None = None,
    caller_token: bytes | None = None,
) -> Entry:  # fmt: skip
    """The entry of a request that asks for a key."""
    token = caller(waiter) if caller_token is None else caller_token
    asked = Keyed(KeyAct.ASK, name, token, b"", reissue)
    size_bytes = len(ask.body)
    return Entry(waiter, ask.digest, ask.rerun, ask.allowance, ask.body, size_bytes, key=asked)


class Desk:
    """Keys, what was said, and a clock."""

    def __init__(self, limits: KeyLimits = LIMITS) -> None:
        self.keys = Keys(limits, Journal(on=False))
        self.now_s = 0.0

    def ask(
        self, waiter: RequestId, name: KeyName = NAME, *, body: bytes = b"input",
        rerun: bool | None = None, allowance: int = 4, reissue: Reissue | None = None,
    ) -> list[Any]:  # fmt: skip
        ask = Ask(input_digest(body, rerun), body, rerun, allowance)
        return said(self.keys.ask(asking(waiter, ask, name, reissue), self.now_s))

    def attach(self, waiter: RequestId, name: KeyName = NAME) -> list[Any]:
        return said(self.keys.attach(name, waiter, self.now_s))

    def leave(self, waiter: RequestId) -> list[Any]:
        return said(self.keys.leave(waiter, self.now_s)[0])

    def lose(self, waiter: RequestId) -> list[Any]:
        all_of = [each for each in self.keys.waiting if each.session == waiter.session]
        return said(self.keys.leave_all(all_of, self.now_s, lost=True))

    def withdraw(self, waiter: RequestId) -> list[Any]:
        effects, _ = self.keys.withdraw(NAME, caller(waiter), waiter.session, self.now_s)
        return said(effects)

    def cancel(self, tag: int | bytes = 0, name: KeyName = NAME) -> list[Any]:
        return said(self.keys.cancel(name, tag, self.now_s)[0])

    def forget(self, tag: int | bytes = 0) -> list[Any]:
        return said(self.keys.forget(NAME, tag, self.now_s)[0])

    def outcome(self, number: int = 0, outcome: RetainedOutcome = OUTCOME) -> list[Any]:
        brought = dataclasses.replace(outcome)  # each generation has its own
        return said(self.keys.outcome(number, brought, self.now_s))

    def run(self, number: int = 0, outcome: RetainedOutcome = OUTCOME) -> list[Any]:
        """From its dispatch to its outcome."""
        self.keys.dispatched(number)
        assert self.keys.execution_ended(number) == ()
        return self.outcome(number, outcome)

    def wait(self, seconds: float) -> list[Any]:
        self.now_s += seconds
        return said(self.keys.tick(self.now_s))

    def state(self, number: int = 0) -> WorkState:
        generation = self.keys.generations.get(number)
        return WorkState.CLOSED if generation is None else generation.state


def said(effects: KeyEffects) -> list[Any]:
    """Effects in short."""
    short: list[Any] = []
    for effect in effects:
        match effect:
            case Enter(generation):
                short.append(("enter", generation.number))
            case Finish(generation):
                short.append(("finish", generation.number))
            case Answer(waiter, outcome):
                short.append(("answer", waiter, outcome))
            case AnswerCancelled(waiter, started):
                short.append(("cancelled", waiter, started))
            case Refuse(waiter, why):
                short.append((why.name, waiter))
    return short
