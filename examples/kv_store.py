"""A key-value store whose clients retry, for the laboratory of trio_envserve.

A client sends a request until it is answered, and the server must apply it once,
however often it comes: it keeps the answer of each request, and repeats it.
FORGETFUL has a bug that such servers have: it keeps the answers in memory only.

    trio-envserve fuzz --protocol examples/kv_store.py:STORE
    trio-envserve fuzz --protocol examples/kv_store.py:FORGETFUL
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias

from trio_envserve.retrylab import (
    Actor,
    Ask,
    Bounds,
    Event,
    Judge,
    OneTrueAnswer,
    System,
    Violation,
)

RETRY_S = 0.5


# -- what is asked for, and what travels ----------------------------------------------

Operation: TypeAlias = tuple[str, str, int]
"""``put`` or ``add`` or ``get``, a key, a number."""


def after(operation: Operation, before: int) -> int:
    """The value of its key after an operation."""
    what, _, n = operation
    return {"put": n, "add": before + n, "get": before}[what]


@dataclass(frozen=True)
class Do:
    """Client to server, again and again until there is an answer."""

    request: str
    operation: Operation


@dataclass(frozen=True)
class Done:
    """Server to client: what the key has now."""

    request: str
    value: int


# -- who takes part -------------------------------------------------------------------


class Client(Actor):
    """Sends each request until it is answered."""

    def __init__(self) -> None:
        self.waiting: dict[str, Operation] = {}

    def on_ask(self, request: str, what: Operation) -> None:
        self.waiting[request] = what
        self.transmit(request)

    def on_timer(self, timer: str) -> None:
        self.transmit(timer)

    def on_message(self, sender: str, message: Done) -> None:
        if self.waiting.pop(message.request, None) is not None:
            self.stop_timer(message.request)
            self.tell(message.request, message.value)

    def transmit(self, request: str) -> None:
        self.send("server", Do(request, self.waiting[request]))
        self.start_timer(request, RETRY_S)


class Server(Actor):
    """Applies each request once, and answers it as often as it comes."""

    def on_start(self) -> None:
        self.values: dict[str, int]
        self.answers: dict[str, int]
        self.values, self.answers = self.disk.get("store", ({}, {}))

    def on_message(self, sender: str, message: Do) -> None:
        if message.request not in self.answers:
            self.apply(message.request, message.operation)
        self.send(sender, Done(message.request, self.answers[message.request]))

    def apply(self, request: str, operation: Operation) -> None:
        _, key, _ = operation
        value = after(operation, self.values.get(key, 0))
        self.values[key] = self.answers[request] = value
        self.keep()
        self.did(request, value)

    def keep(self) -> None:
        """In one write: between two the server may be killed."""
        self.disk["store"] = self.values, self.answers


class ForgetfulServer(Server):
    """Knows what it has answered as long as it lives."""

    def keep(self) -> None:
        self.disk["store"] = self.values, {}


# -- what callers ask for, and what must hold -----------------------------------------


def asks(random: Random) -> Iterator[Ask]:
    """Some operations on two keys, in five seconds, by two clients."""
    for _ in range(random.randint(4, 20)):
        what, key = random.choice(["put", "add", "add", "get"]), random.choice("xy")
        operation = what, key, 0 if what == "get" else random.randint(1, 9)
        yield Ask(random.uniform(0.0, 5.0), random.choice(["c0", "c1"]), operation)


class Store(Judge):
    """The server does what a store does, and writes once for each request."""

    def __init__(self) -> None:
        self.asked: dict[str, Operation] = {}
        self.values: dict[str, int] = {}
        self.written: set[str] = set()

    def see(self, event: Event) -> Iterator[Violation]:
        request = event.request
        if event.kind == "asked":
            self.asked[request] = event.what
        elif event.kind == "did":
            what, key, _ = self.asked[request]
            if what != "get" and request in self.written:
                yield event.breaks("at most once", f"{request} is written again")
            elif event.what != after(self.asked[request], self.values.get(key, 0)):
                yield event.breaks("right values", f"{key} is {event.what}")
            self.values[key] = event.what
            self.written.add(request)


CLIENTS = {"c0": Client, "c1": Client}

STORE = System(
    actors={**CLIENTS, "server": Server}, asks=asks, judges=[Store, OneTrueAnswer],
    never_killed=CLIENTS, bounds=Bounds(asks=1, seed=1),
)  # fmt: skip

FORGETFUL = replace(STORE, actors={**CLIENTS, "server": ForgetfulServer})
