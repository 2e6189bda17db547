"""A router's records of the hosts that are here, and of the last ones that are not."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from .host_link import Inbox, Outbox
from .lease import Holding
from .slots import Part, Pool, Slot
from .terms import Route

PAST_HOSTS = 16
"""So many hosts that are not here are told, the last ones."""


@dataclasses.dataclass(slots=True, eq=False)
class RemoteHost:
    """One host in one tenure."""

    holding: Holding
    route: Route
    capacity: int
    """How many workers it is good for."""
    least: int
    """How many it is to have at least."""
    outbox: Outbox
    inbox: Inbox
    slots: list[Slot] = dataclasses.field(default_factory=list)
    places: dict[int, int] = dataclasses.field(default_factory=dict)
    """Which of them each slot of the pool is, by its index."""
    part: Part | None = None
    """These slots, if not all of them are always to have a worker."""
    workers: set[bytes] = dataclasses.field(default_factory=set)
    """Those that were to be started there and have not ended."""
    unready: set[bytes] = dataclasses.field(default_factory=set)
    """Of these, the ones that have not said hello."""
    failed_starts: int = 0
    """How many in a row have ended before they said hello."""
    set_aside: bool = False
    why: str = ""
    """Why it is set aside."""
    leaving: bool = False
    broken: bool = False
    """Whether it has sent a malformed message: nothing that it says counts any more."""
    fresh: bool = False
    busy: dict[str, float] = dataclasses.field(default_factory=dict)
    """How busy the machine is, as far as it says."""
    dirty: bool = False
    """Whether there is something to be sent to it."""

    @property
    def name(self) -> str:
        """Its id, for people too."""
        return self.holding.host

    @property
    def state(self) -> str:
        """How it is, in a word of the page on hosts."""
        if self.leaving:
            return "leaving"
        if self.set_aside:
            return "set aside"
        if self.fresh:
            return "ready"
        return "quiet" if self.slots else "joining"

    def open(self, pool: Pool, tag: str) -> None:
        """Bring its slots to the pool; ``tag`` ends the names of their workers."""
        self.slots = pool.open_slots(self.capacity, self.name, tag)
        self.places = {slot.index: place for place, slot in enumerate(self.slots)}
        if self.least < self.capacity:
            self.part = pool.vary(self.slots, self.least)
            self.part.held = not self.fresh

    def close(self, pool: Pool, failed: str = "") -> list[int]:
        """Take its slots out of the pool; returns their indexes, which another host may get.
        ``failed``: why no worker got ready here, if that is the reason."""
        if self.part is not None:
            pool.parts.remove(self.part)
            self.part = None
        pool.close_slots(self.slots, failed)
        closed, self.slots, self.places = [*self.places], [], {}
        return closed

    def record(self, running: Mapping[bytes, int], wait_s: float, now_s: float) -> dict[str, Any]:
        """It in statistics.  ``running``: what runs on each worker that said hello;
        ``wait_s``: so long after its last beat it is lost."""
        received_s = self.holding.received_s
        heard_s = self.holding.begun_s if received_s is None else received_s
        return {
            "host": self.name, "state": self.state, "why": self.why,
            "slots": self.capacity, "workers": len(self.workers),
            "ready": len(self.workers - self.unready),
            "running": sum(running.get(worker, 0) for worker in self.workers),
            "heard_s": round(now_s - heard_s, 3),
            "lost_s": round(heard_s + wait_s - now_s, 3),
            **self.busy,
        }  # fmt: skip


class Past(NamedTuple):
    """A host that was refused, has left, or was lost."""

    state: str
    why: str
    at_s: float


class PastHosts:
    """Hosts that are not here, by their names; the newest one last."""

    def __init__(self) -> None:
        self._past: OrderedDict[str, Past] = OrderedDict()

    def add(self, name: str, state: str, why: str, now_s: float) -> None:
        """Remember it, in the place of what was known under this name."""
        self._past.pop(name, None)
        self._past[name] = Past(state, why, now_s)
        if len(self._past) > PAST_HOSTS:
            self._past.popitem(last=False)

    def records(self, now_s: float) -> list[dict[str, Any]]:
        """They in statistics."""
        return [
            {"host": name, "state": past.state, "why": past.why,
             "age_s": round(now_s - past.at_s, 3)}
            for name, past in self._past.items()
        ]  # fmt: skip
