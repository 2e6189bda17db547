"""The number of workers, where it may change with the work.

Theory of operation
-------------------
A :class:`~.lives.Part` of the pool has one slot for each of its most workers; slots that are not
needed are *spare*.  With each tick of the router :class:`Elastic` looks at the waiting and running
work (:class:`Need`):

- It grows when a request that a worker could take has waited for ``grow_after_s``: more slots are
  opened, at most as many as are open, and no more than the waiting requests would fill.  It does
  not grow again before each opened slot has had a ready worker: while workers start, requests wait
  whether there are enough workers or not.  So an environment that cannot be set up gets no more
  workers.
- It shrinks when, for ``shrink_after_s``, fewer workers would have been enough for all running and
  waiting requests: as many slots as were not needed in that time become spare.

A worker in a spare slot gets no new work and ends when it has none.  If the slot is opened before
that, the worker stays: that is quicker than a start, and the number of processes never exceeds the
range.  No worker is killed to shrink.

The slots of a host are one part.  While the host is not known to hear the router, its part does not
grow, and its starting workers hold up no growth elsewhere.

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
    """The work for which there are to be workers."""

    running: int
    """Number of executions that may run code."""
    waiting: int
    """Number of requests that wait for a worker."""
    oldest_s: float
    """Longest wait, in seconds, of the requests that a worker could take; 0 while another worker
    would not help."""


class Sizing:
    """Decides how many units there should be.  A unit takes ``capacity`` executions at once: a
    worker, or a whole host."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._fewer_since_s: float | None = None
        """Moment from which on fewer units were enough; None if they are not."""
        self._most_needed = 0
        """Most units that were needed since that moment."""

    def decide(self, now_s: float, now: int, need: Need, capacity: int) -> tuple[int, str]:
        """The change of the number of units, which is ``now``, and the reason for people."""
        needed = -(-(need.running + need.waiting) // capacity)  # rounded up
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
        """Forget the past after a change of the number, which it was not about."""
        self._fewer_since_s = None


class Elastic:
    """Opens slots and makes slots spare, as there is work."""

    def __init__(self, pool: Pool, workers: Mapping[bytes, Worker], limits: ServerLimits) -> None:
        self._pool = pool
        self._workers = workers
        self._sizing = Sizing(limits)
        self.why = ""
        """The last change and its reason, for people; empty before the first one."""

    def tick(self, now_s: float, need: Need, capacity: int) -> list[PoolEffect]:
        """Decide anew; to be called before each tick of the pool.  ``capacity``: number of
        executions that one worker takes at once."""
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
        """Sort key of slots; the least one becomes spare first: slots without a life, then those
        whose worker is not ready, then those with the fewest executions; of equals the last."""
        if slot.life is None:
            return 0, 0, -slot.index
        worker = self._workers.get(slot.life.id)
        if worker is None or slot.life.phase is Phase.RETIRING:
            return 1, 0, -slot.index
        return 2, len(worker.live), -slot.index

    def _follow(self, now_s: float) -> Iterator[PoolEffect]:
        """Retire the workers in slots that became spare, recall those in slots that were opened."""
        for part in self._pool.parts:
            for slot in part.slots:
                if slot.life is None:
                    continue
                if slot.spare:
                    yield from self._pool.step(slot.life, LifeInput.RETIRE, now_s, NOT_NEEDED)
                elif slot.life.why == NOT_NEEDED:
                    yield from self._pool.step(slot.life, LifeInput.RECALL, now_s)


def _readiness(slot: Slot) -> tuple[int, int]:
    """Sort key of slots; the least one is opened first: slots with a draining worker, then with a
    starting one, then without any."""
    if slot.life is None:
        return 2, slot.index
    return slot.life.phase is Phase.STARTING, slot.index
