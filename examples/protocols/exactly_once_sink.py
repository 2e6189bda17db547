"""An exactly-once sink: records of a stream are stored once, and none is lost.

The source sends a record until the sink confirms it. The sink stores the record and its
number in one write, so one that comes again is known. BROKEN confirms before the write is
safe: that survives being killed, but when the power goes, a confirmed record is gone. SINK
syncs first, and after a start as well, for what it finds may not be safe.

    trio-envserve fuzz --protocol examples/protocols/exactly_once_sink.py:BROKEN --exhaustive
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from trio_envserve.retrylab import (
    USUAL,
    Actor,
    Ask,
    Bounds,
    Event,
    Fault,
    NoLostAcknowledgement,
    System,
    Violation,
)

RETRY_S = 0.5


class Source(Actor):
    """Sends each record until it is confirmed."""

    def on_start(self) -> None:
        self.waiting: dict[str, int] = {}

    def on_ask(self, request: str, what: int) -> None:
        self.waiting[request] = what
        self.on_timer(request)

    def on_timer(self, timer: str) -> None:
        self.send("sink", (timer, self.waiting[timer]))
        self.start_timer(timer, RETRY_S)

    def on_message(self, sender: str, message: str) -> None:
        if message in self.waiting:
            self.stop_timer(message)
            self.tell(message, self.waiting.pop(message))


class Sink(Actor):
    """Stores each record once, and confirms it when it is safe."""

    def on_start(self) -> None:
        self.records: tuple[tuple[str, int], ...] = self.disk.get("records", ())
        self.save()  # what it finds may not be safe yet

    def on_message(self, sender: str, message: tuple[str, int]) -> None:
        if message not in self.records:
            self.records += (message,)
            self.disk["records"] = self.records
            self.save()
        self.send(sender, message[0])

    def save(self) -> None:
        self.disk.sync()

    def on_rest(self) -> None:
        for name, value in self.records:
            self.has(name, value)


class BrokenSink(Sink):
    """Takes what is written for safe."""

    def save(self) -> None:
        pass


class ExactlyOnce(NoLostAcknowledgement):
    """No record that was confirmed is lost, and none is stored twice."""

    def see(self, event: Event) -> Iterator[Violation]:
        if event.kind == "has" and event.request in self.there.get(event.actor, ()):
            yield event.breaks("exactly once", f"{event.request} is stored twice")
        super().see(event)


def asks(random: Random) -> Iterator[Ask]:
    for _ in range(random.randint(1, 6)):
        yield Ask(random.uniform(0.0, 3.0), "source", random.randint(1, 9))


SINK = System(
    actors={"source": Source, "sink": Sink}, asks=asks,
    judges=[ExactlyOnce], never_killed=["source"],
    faults=USUAL | {Fault.POWER}, bounds=Bounds(asks=2, faults=1),
)  # fmt: skip

BROKEN = replace(SINK, actors={**SINK.actors, "sink": BrokenSink})
