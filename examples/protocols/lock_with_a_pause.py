"""A lock with a lease, whose holder pauses: it writes when somebody else has the lock.

No lease can prevent that: the holder may be stopped between its last look at the clock and
its write, or the write may be slow. So the lock gives out numbers that only grow, and the
store takes no write with a smaller one than it has seen: that is a fence. BROKEN has none.

    trio-envserve fuzz --protocol examples/protocols/lock_with_a_pause.py:BROKEN --exhaustive
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from trio_envserve.retrylab import Actor, Ask, Bounds, Event, Fault, Judge, System, Violation

LEASE_S = 1.0
RETRY_S = 0.4


class Holder(Actor):
    """Acquires the lock, writes, releases it, each until it is answered."""

    def on_start(self) -> None:
        self.state: dict[str, tuple[str, int]] = {}

    def on_ask(self, request: str, what: str) -> None:
        self.state[request] = "acquire", 0
        self.on_timer(request)

    def on_timer(self, timer: str) -> None:
        verb, token = self.state[timer]
        self.send("store" if verb == "write" else "lock", (verb, timer, token))
        self.start_timer(timer, RETRY_S)

    def on_message(self, sender: str, message: tuple[str, str, int]) -> None:
        verb, request, token = message
        if verb == "granted" and self.state.get(request) == ("acquire", 0):
            self.state[request] = "write", token
            self.on_timer(request)
        elif verb in ("written", "fenced") and request in self.state:
            del self.state[request]
            self.stop_timer(request)
            self.send("lock", ("release", request, token))
            self.tell(request, verb)


class Lock(Actor):
    """Grants the lock to one request at a time, for as long as its lease, with a number."""

    def on_start(self) -> None:
        self.holder = ""
        self.start_timer("free", LEASE_S)

    def on_timer(self, timer: str) -> None:
        self.holder = ""

    def on_message(self, sender: str, message: tuple[str, str, int]) -> None:
        verb, request, _ = message
        if verb == "release" and request == self.holder:
            self.holder = ""
        elif verb == "acquire" and self.holder in ("", request):
            token = self.disk.get("token", 0) + 1
            self.disk["token"] = token
            self.holder = request
            self.start_timer("free", LEASE_S)
            self.send(sender, ("granted", request, token))


class Store(Actor):
    """Takes writes of the newest holder only."""

    def on_message(self, sender: str, message: tuple[str, str, int]) -> None:
        _, request, token = message
        if token < self.disk.get("newest", 0):
            self.send(sender, ("fenced", request, token))
        else:
            self.disk["newest"] = token
            self.did(request, token)
            self.send(sender, ("written", request, token))


class BrokenStore(Store):
    """Believes that whoever writes has the lock."""

    def on_message(self, sender: str, message: tuple[str, str, int]) -> None:
        _, request, token = message
        self.did(request, token)
        self.send(sender, ("written", request, token))


class InOrder(Judge):
    """No write comes after that of a later holder."""

    def __init__(self) -> None:
        self.newest = 0

    def see(self, event: Event) -> Iterator[Violation]:
        if event.kind == "did":
            if event.what < self.newest:
                yield event.breaks("writes in order", f"{event.what} after {self.newest}")
            self.newest = max(self.newest, event.what)


def asks(random: Random) -> Iterator[Ask]:
    yield Ask(0.0, "c0", "write")
    yield Ask(0.1, "c1", "write")
    for _ in range(random.randint(0, 4)):
        yield Ask(random.uniform(0.0, 3.0), random.choice(["c0", "c1"]), "write")


LOCK = System(
    actors={"c0": Holder, "lock": Lock, "store": Store, "c1": Holder}, asks=asks,
    judges=[InOrder], faults={Fault.STOP, Fault.LOSE}, bounds=Bounds(asks=2, faults=1, pause=2),
)  # fmt: skip

BROKEN = replace(LOCK, actors={**LOCK.actors, "store": BrokenStore})
