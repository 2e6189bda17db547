"""Idempotency keys over HTTP: a shop posts a payment again until it is answered.

The server charges once for each key: it keeps the answer, and repeats it. BROKEN charges and
keeps the answer in two writes: killed between them it has charged, and knows nothing of it.
PAYMENTS does both in one, as in one transaction.

    trio-envserve fuzz --protocol examples/protocols/idempotency_keys.py:BROKEN --exhaustive
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from trio_envserve.retrylab import Actor, Ask, AtMostOnce, Bounds, OneTrueAnswer, System

RETRY_S = 0.5


class Shop(Actor):
    """Posts each payment, with a key of its own, until it is answered."""

    def on_start(self) -> None:
        self.waiting: dict[str, int] = {}

    def on_ask(self, request: str, what: int) -> None:
        self.waiting[request] = what
        self.on_timer(request)

    def on_timer(self, timer: str) -> None:
        self.send("server", (timer, self.waiting[timer]))
        self.start_timer(timer, RETRY_S)

    def on_message(self, sender: str, message: tuple[str, str]) -> None:
        key, answer = message
        if self.waiting.pop(key, None) is not None:
            self.stop_timer(key)
            self.tell(key, answer)


class Server(Actor):
    """Charges once for each key."""

    def on_start(self) -> None:
        self.charged: tuple[int, ...]
        self.answers: dict[str, str]
        self.charged, self.answers = self.disk.get("accounts", ((), {}))

    def on_message(self, sender: str, message: tuple[str, int]) -> None:
        key, amount = message
        if key not in self.answers:
            self.charge(key, amount)
        self.send(sender, (key, self.answers[key]))

    def charge(self, key: str, amount: int) -> None:
        self.charged += (amount,)
        self.answers[key] = "200 OK"
        self.disk["accounts"] = self.charged, self.answers
        self.did(key, "200 OK")


class BrokenServer(Server):
    """Charges, and then remembers that it did."""

    def on_start(self) -> None:
        self.charged = self.disk.get("charged", ())
        self.answers = self.disk.get("answers", {})

    def charge(self, key: str, amount: int) -> None:
        self.charged += (amount,)
        self.disk["charged"] = self.charged
        self.did(key, "200 OK")
        self.answers[key] = "200 OK"
        self.disk["answers"] = self.answers


def asks(random: Random) -> Iterator[Ask]:
    for _ in range(random.randint(1, 6)):
        yield Ask(random.uniform(0.0, 3.0), "shop", random.randint(1, 9))


PAYMENTS = System(
    actors={"shop": Shop, "server": Server}, asks=asks,
    judges=[AtMostOnce, OneTrueAnswer], never_killed=["shop"],
    bounds=Bounds(asks=1, faults=2),
)  # fmt: skip

BROKEN = replace(PAYMENTS, actors={**PAYMENTS.actors, "server": BrokenServer})
