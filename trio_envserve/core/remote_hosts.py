"""A router's hosts: each one that is here, its workers and its link, and the last that are not."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .errors import ProtocolError
from .host import LEAVING, NO_LEASE
from .host_link import Inbox, Item, Outbox, What
from .host_messages import HostAnswer, HostBeat
from .host_said import LeftLife, busy
from .lease import Holding
from .lives import LifeInput, Part, Phase, Pool, Slot
from .router_effects import RouterEffect, Spawn
from .terms import Body, Route

KEPT_BYTES = 256 << 20
"""A host that has not yet taken in so much of what is for its workers gets no new work."""
KEPT_ITEMS = 1 << 20
"""One that has not taken in so many messages for them takes in none."""
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

    # -- its workers ------------------------------------------------------------

    def start(self, spawn: Spawn) -> None:
        """A worker is to be started in one of its slots."""
        self.workers.add(spawn.worker)
        self.unready.add(spawn.worker)
        place = str(self.places[spawn.slot]).encode()
        self.put(Item(What.SPAWN, spawn.worker, (spawn.incarnation, place)))

    def kill(self, worker: bytes, why: str) -> None:
        """A worker is to be killed."""
        self.put(Item(What.KILL, worker, (why.encode(),)))

    def take_back(self, life: LeftLife, place: int, pool: Pool, *, is_to_end: bool) -> int:
        """A worker of the tenure before lives on in this place; returns the index of its slot."""
        slot = self.slots[place]
        self.workers.add(life.worker)
        if not life.hello:
            self.unready.add(life.worker)
        if is_to_end:
            self.kill(life.worker, "there is no place for it")
        elif slot.spare:
            pool.open(slot)
        return slot.index

    def got_ready(self, worker: bytes) -> None:
        """A worker has said hello."""
        self.unready.discard(worker)
        self.failed_starts = 0

    def ended(self, worker: bytes, how: str) -> None:
        """A worker has ended."""
        self.workers.discard(worker)
        if worker in self.unready:
            self.unready.discard(worker)
            # What its lease has ended, or never let begin, is no fault of the environment.
            self.failed_starts += self.fresh and how not in (NO_LEASE, LEAVING)

    def drain(self, pool: Pool, now_s: float) -> list[RouterEffect]:
        """It leaves: let its workers end."""
        effects: list[RouterEffect] = []
        for worker in sorted(self.workers):
            life = pool.lives[worker]
            ends = LifeInput.KILL if life.phase is Phase.STARTING else LifeInput.RETIRE
            effects += pool.step(life, ends, now_s, "its host leaves")
        return effects

    def refresh(self, pool: Pool, *, has_lease: bool) -> None:
        """Decide anew whether its workers may get new work."""
        self.fresh = has_lease and self.outbox.bytes <= KEPT_BYTES and not self.broken
        if self.part is not None:
            self.part.held = not self.fresh
        for worker in self.workers:
            pool.lives[worker].held = not self.fresh

    # -- the link ---------------------------------------------------------------

    def put(self, item: Item) -> None:
        """Send it with what is sent next."""
        self.outbox.put(item)
        self.dirty = True

    def messages(self) -> Iterator[tuple[Body, ...]]:
        """The messages that are to be sent to it now."""
        self.dirty = False
        return self.outbox.messages()

    def answer(self, beat: HostBeat) -> HostAnswer:
        """Take in a beat, and answer it.  ProtocolError if there is too much else to take in."""
        self.busy = busy(beat.machine)
        self.outbox.received(beat.have, beat.answered)
        if len(self.outbox) > KEPT_ITEMS:
            raise ProtocolError(f"a beat of a host that has {len(self.outbox)} items to take in")
        return HostAnswer(beat.tenure, beat.beat, self.outbox.stated(beat.beat), self.inbox.have)

    # -- statistics -------------------------------------------------------------

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
