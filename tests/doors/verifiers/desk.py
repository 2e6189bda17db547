"""A table of runs without a door: what is said to it, and what became of that."""

from __future__ import annotations

from typing import Any

from trio_envserve.doors.verifiers import VerifiersLimits, msgpack
from trio_envserve.doors.verifiers.records import Effect, Outcome, Send, Start, Stream
from trio_envserve.doors.verifiers.runs import Runs

HERE, THERE = "10.0.0.1", "10.0.0.2"
DONE = Outcome(reply=b"reply", deltas=[b"one", b"two"], traces=["t"])


class Desk:
    """A table of runs, its clock, and what became of its effects."""

    def __init__(self, *, redeliver: bool = True, **limits: Any) -> None:
        self.limits = VerifiersLimits(**limits)
        self.runs = Runs(self.limits, redeliver=redeliver)
        self.now_s = 0.0
        self.routes = 0

    def open(self, place: str = HERE) -> tuple[bytes, list[Effect]]:
        self.routes += 1
        route = b"route %d" % self.routes
        return route, self.runs.opened(route, place)

    def peer(self, place: str = HERE) -> bytes:
        route, effects = self.open(place)
        assert effects == []
        return route

    def close(self, route: bytes) -> list[Effect]:
        return self.runs.closed(route, self.now_s)

    def say(self, route: bytes, *frames: bytes, ready: bool = True) -> list[Effect]:
        return self.runs.said(route, list(frames), self.now_s, ready=ready)

    def run(self, route: bytes, name: bytes = b"a", payload: bytes = b"p") -> list[Effect]:
        return self.say(route, name, b"run", payload)

    def cancel(self, route: bytes, target: bytes = b"a") -> list[Effect]:
        return self.say(route, b"c", b"cancel", msgpack.write({"request_id": target.decode()}))

    def stream(self, *deltas: bytes, name: bytes = b"a", first: int = 0) -> list[bytes]:
        """Deltas of a run; the routes that they are sent to."""
        effects: list[Effect] = []
        for number, delta in enumerate(deltas, first):
            effects += self.runs.delta(name, number, delta)
        assert all(isinstance(each, Stream) for each in effects)
        return sorted(each.route for each in effects if isinstance(each, Stream))

    def end(self, name: bytes = b"a", outcome: Outcome = DONE) -> list[Effect]:
        return self.runs.ended(name, outcome, self.now_s)

    def deliver(self, route: bytes, name: bytes = b"a") -> list[Effect]:
        return self.runs.delivered(route, name, self.now_s)

    def after(self, seconds: float) -> list[Effect]:
        self.now_s += seconds
        return self.runs.tick(self.now_s)

    @property
    def is_empty(self) -> bool:
        table = self.runs
        states = (table._sent, table._orphans)
        kinds = (table._runs, table._waiting.places(), *(each.all() for each in states))
        shared = (table._count, table._asked, table._keeping.bytes)
        return not any(kinds) and not any(each.total or each._taken for each in shared)


def told(effects: list[Effect]) -> dict[str, Any]:
    """The one reply among the effects."""
    [(_, kind, body)] = [each.message for each in effects if isinstance(each, Send)]
    assert kind == b"reply"
    return msgpack.read(body)


def started(effects: list[Effect]) -> list[bytes]:
    return [each.name for each in effects if isinstance(each, Start)]


def begun(*names: bytes, **options: Any) -> tuple[Desk, bytes]:
    """A table, and a connection that has asked for these runs."""
    desk = Desk(**options)
    peer = desk.peer()
    for name in names or (b"a",):
        desk.run(peer, name)
    return desk, peer


def told_afterwards(desk: Desk, name: bytes = b"a") -> list[tuple[Any, bytes]]:
    """The messages of an outcome that is kept."""
    run = desk.runs.find(name)
    assert run is not None
    return [(kind, bytes(body)) for _, kind, body in run.messages]
