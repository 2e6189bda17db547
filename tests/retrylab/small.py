"""A protocol of two actors that notes all that happens to them, and its runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

from trio_envserve.retrylab import Actor, Ask, Event, Judge, Run, System, Violation, run
from trio_envserve.retrylab.plan import Plan, Strike
from trio_envserve.retrylab.world import Rates

PLAIN = Rates(delay_s=(0.01, 0.01))


class Near(Actor):
    """Sends what it is asked for to `far`, and tells what comes back."""

    def on_start(self) -> None:
        self.disk["lives"] = self.disk.get("lives", 0) + 1

    def on_ask(self, request: str, what: Any) -> None:
        self.send("far", (request, what))

    def on_message(self, sender: str, message: Any) -> None:
        request, what = message
        self.tell(request, what)


class Far(Actor):
    """Does it, and answers."""

    def on_message(self, sender: str, message: Any) -> None:
        request, what = message
        self.did(request, what)
        self.send(sender, message)


def two_asks(random: Random) -> Iterator[Ask]:
    yield Ask(1.0, "near", "one")
    yield Ask(2.0, "near", "two")


SMALL = System(actors={"near": Near, "far": Far}, asks=two_asks, judges=[Judge], patience_s=20.0)


def whole(judge: Callable[[list[Event]], Iterable[Violation]]) -> type[Judge]:
    """A judge that looks at all events at the end."""

    class Whole(Judge):
        def __init__(self) -> None:
            self.events: list[Event] = []

        def see(self, event: Event) -> None:
            self.events.append(event)

        def rest(self, at_s: float) -> Iterable[Violation]:
            return judge(self.events)

    return Whole


def of(ran: Run | Iterable[Event], kind: str, request: str | None = None) -> list[Event]:
    """Events of a kind: all of them, or those of this request."""
    events = ran.history if isinstance(ran, Run) else ran
    return [e for e in events if e.kind == kind and request in (None, e.request)]


def with_actors(**actors: Callable[[], Actor]) -> System:
    return dataclasses.replace(SMALL, actors={**SMALL.actors, **actors})


def plan_of(*strikes: Strike, rates: Rates = PLAIN, asks: tuple[Ask, ...] | None = None) -> Plan:
    """Two asks, or these, and these faults."""
    if asks is None:
        asks = (Ask(1.0, "near", "one", "near#1"), Ask(2.0, "near", "two", "near#2"))
    return Plan(asks, strikes, rates, busy_s=4.0)


def run_small(
    *strikes: Strike, protocol: System = SMALL, rates: Rates = PLAIN, seed: int = 0,
    asks: tuple[Ask, ...] | None = None,
) -> Run:  # fmt: skip
    return run(protocol, seed, plan=plan_of(*strikes, rates=rates, asks=asks), trace=True)


def kinds(ran: Run, request: str = "near#1") -> list[str]:
    """What became of a request."""
    return [entry.kind for entry in ran.history if entry.request == request]


def at(ran: Run, kind: str) -> list[float]:
    return [round(entry.at_s, 3) for entry in ran.history if entry.kind == kind]


def notes(ran: Run, who: str) -> list[str]:
    """What the trace says of an actor, or of a connection."""
    return [record.what for record in ran.trace if record.who == who]
