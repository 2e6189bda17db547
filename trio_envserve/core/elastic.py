"""How many workers there are to be, where that may change.

Theory of operation
-------------------
A :class:`~.slots.Part` of a pool has as many slots as it may have workers at most; those
that are not needed are *spare*.  With each tick of the router :class:`Elastic` looks at
what there is to do (:class:`Need`):

- A request that a worker could take has waited for ``grow_after_s``: more slots are
  opened, twice as many as there are at most, and no more than what waits would fill.
  Not before each worker that was to help has been ready once: while they start, what
  waits says nothing new.  So an environment that cannot be set up gets no more of them.
- For ``shrink_after_s`` fewer workers would have been enough for all that ran and
  waited: as many as were not needed in that time become spare.

A worker in a spare slot takes no new work and ends when it has none.  If it is wanted
again before, it is taken back: that is quicker than a new one, and so there are never
more processes than the range allows.  Nothing is killed for it.

The slots of a host are a part of their own.  While it is not known to hear the router, it
gets no more workers, and nobody waits for those that it starts.

Times are awake time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .executions import Worker
from .limits import ServerLimits
from .lives import NOT_NEEDED, LifeInput, Phase, Pool, Slot
from .router_effects import PoolEffect, Report


class Need(NamedTuple):
    """The work that there is."""

    running: int
    """Executions that may run code."""
    waiting: int
    """Requests that wait for a worker."""
    oldest_s: float
    """How long that one has waited which waits longest of those that a worker could take;
    zero while another worker would not help."""


class Sizing:
    """Decides by how many they should be more or fewer: workers or whole hosts, each with
    ``capacity`` executions at once."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._fewer_since_s: float | None = None
        """Since when fewer would be enough, if they would."""
        self._most_needed = 0
        """How many would have been, since then."""

    def decide(self, now_s: float, now: int, need: Need, capacity: int) -> tuple[int, str]:
        """By how many there should be more than ``now``, or fewer, and why."""
        needed = -(-(need.running + need.waiting) // capacity)
        if needed >= now:
            self._fewer_since_s = None
        elif self._fewer_since_s is None:
            self._fewer_since_s, self._most_needed = now_s, needed
        self._most_needed = max(self._most_needed, needed)
        if need.oldest_s >= self._limits.grow_after_s:
            more = min(max(1, now), -(-need.waiting // capacity))
            return more, f"a request has waited for {need.oldest_s:.1f} s"
        for_s = self._limits.shrink_after_s
        if self._fewer_since_s is not None and now_s - self._fewer_since_s >= for_s:
            return self._most_needed - now, f"fewer were enough for {for_s:g} s"
        return 0, ""

    def changed(self) -> None:
        """There are more or fewer now: what was noted was about another number."""
        self._fewer_since_s = None


class Elastic:
    """Opens slots and makes them spare."""

    def __init__(self, pool: Pool, workers: Mapping[bytes, Worker], limits: ServerLimits) -> None:
        self._pool = pool
        self._workers = workers
        self._sizing = Sizing(limits)
        self.why = ""
        """Its last change, and the reason, for people; empty until then."""

    def tick(self, now_s: float, need: Need, capacity: int) -> list[PoolEffect]:
        """Decide anew; before each tick of the pool.  ``capacity``: of one worker."""
        pool = self._pool
        if pool.stopping:
            return []
        effects: list[PoolEffect] = []
        before = pool.wanted
        change, why = self._sizing.decide(now_s, before, need, capacity)
        if change > 0:
            self._grow(change)
        elif change < 0:
            self._shrink(-change)
        if pool.wanted != before:
            self._sizing.changed()
            self.why = f"{before} -> {pool.wanted} workers: {why}"
            effects.append(Report("info", self.why))
        return [*effects, *self._follow(now_s)]

    def _grow(self, most: int) -> None:
        pool = self._pool
        parts = [part for part in pool.parts if not part.held]
        if any(slot.awaited for part in parts for slot in part.open()):
            return
        for _ in range(most):
            spare = [part for part in parts if part.spare()]
            if not spare:
                break
            part = min(spare, key=lambda each: len(each.open()))
            pool.open(min(part.spare(), key=_readiness))

    def _shrink(self, most: int) -> None:
        for _ in range(most):
            open_slots = [
                slot
                for part in self._pool.parts
                if len(part.open()) > part.bounds.least
                for slot in part.open()
            ]
            if not open_slots:
                break
            self._pool.spare(min(open_slots, key=self._burden))

    def _burden(self, slot: Slot) -> tuple[int, int, int]:
        """A slot's place in the order of ending: absent, then not ready, then least busy, and of
        these the last one."""
        if slot.life is None:
            return 0, 0, -slot.index
        worker = self._workers.get(slot.life.id)
        if worker is None or slot.life.phase is Phase.RETIRING:
            return 1, 0, -slot.index
        return 2, len(worker.live), -slot.index

    def _follow(self, now_s: float) -> Iterator[PoolEffect]:
        """The effects for workers in slots that are spare, or are so no more."""
        for part in self._pool.parts:
            for slot in part.slots:
                if slot.life is None:
                    continue
                if slot.spare:
                    yield from self._pool.step(slot.life, LifeInput.RETIRE, now_s, NOT_NEEDED)
                elif slot.life.why == NOT_NEEDED:
                    yield from self._pool.step(slot.life, LifeInput.RECALL, now_s)


def _readiness(slot: Slot) -> tuple[int, int]:
    """How soon a slot helps: with a worker that drains, one that starts, one to be started."""
    if slot.life is None:
        return 2, slot.index
    return slot.life.phase is Phase.STARTING, slot.index
