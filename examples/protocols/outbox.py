"""An outbox and an at-least-once queue: what is ordered is shipped, and once.

The shop writes an order and what is to be sent about it in one write, and sends from this
outbox until it hears that it has arrived. So the queue delivers at least once. BROKEN takes
that for once: when the receipt is lost, it ships a second time. ORDERS remembers what it
has shipped, in the same write.

    trio-envserve fuzz --protocol examples/protocols/outbox.py:BROKEN --exhaustive
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from trio_envserve.retrylab import (
    Actor,
    Ask,
    AtMostOnce,
    Bounds,
    NoLostAcknowledgement,
    OneTrueAnswer,
    System,
)

RETRY_S = 0.5


class Shop(Actor):
    """Takes orders in, and sends its outbox until it is empty."""

    def on_start(self) -> None:
        self.start_timer("outbox", 0.0)

    def on_ask(self, request: str, what: str) -> None:
        self.disk["outbox"] = (*self.disk.get("outbox", ()), request)
        self.tell(request, "accepted")
        self.send("shipping", request)
        self.start_timer("outbox", RETRY_S)

    def on_timer(self, timer: str) -> None:
        for order in self.disk.get("outbox", ()):
            self.send("shipping", order)
            self.start_timer("outbox", RETRY_S)

    def on_message(self, sender: str, message: str) -> None:
        left = tuple(order for order in self.disk["outbox"] if order != message)
        self.disk["outbox"] = left


class Shipping(Actor):
    """Ships each order once, however often it comes."""

    def on_message(self, sender: str, message: str) -> None:
        shipped = self.disk.get("shipped", ())
        if message not in shipped:
            self.disk["shipped"] = (*shipped, message)
            self.did(message, "shipped")
        self.send("shop", message)

    def on_rest(self) -> None:
        for order in self.disk.get("shipped", ()):
            self.has(order)


class BrokenShipping(Shipping):
    """Ships whatever comes."""

    def on_message(self, sender: str, message: str) -> None:
        self.disk["shipped"] = (*self.disk.get("shipped", ()), message)
        self.did(message, "shipped")
        self.send("shop", message)


def accepted_once() -> OneTrueAnswer:
    """Callers are told that it is accepted, not that it is shipped."""
    return OneTrueAnswer(as_done=False)


def asks(random: Random) -> Iterator[Ask]:
    for _ in range(random.randint(1, 6)):
        yield Ask(random.uniform(0.0, 3.0), "shop", "order")


ORDERS = System(
    actors={"shop": Shop, "shipping": Shipping}, asks=asks,
    judges=[AtMostOnce, accepted_once, NoLostAcknowledgement], bounds=Bounds(asks=2, faults=2),
)  # fmt: skip

BROKEN = replace(ORDERS, actors={**ORDERS.actors, "shipping": BrokenShipping})
