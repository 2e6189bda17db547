"""The router of the simulation: what ships counts the leases; the rest is small."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...core.lease import EarlierEpochs, EpochWait, LeaseBeat, Leases, LeaseTerms, Reception, Tenure
from ...core.terms import Epoch
from .machine import Machine, Queue

if TYPE_CHECKING:
    from .world import World

TICK_S = 0.5


@dataclasses.dataclass(slots=True)
class Request:
    """One request that is not answered yet, as the journal has it."""

    number: int | None = None
    """Of its execution; None: it waits."""
    tenure: Tenure = b""
    epoch: bytes = b""


class Router:
    """One epoch."""

    def __init__(self, world: World, terms: LeaseTerms) -> None:
        self.world = world
        self.epoch = world.new_id()
        self.alive = True
        self.queue = Queue()
        self.stood_s = 0.0
        """How long its clock stood still."""
        self.leases = Leases(terms, self.epoch)
        self.earlier = EarlierEpochs(world.disk, self.now_s())
        self.own = EpochWait(self.epoch, terms.wait_s)
        world.disk = self.earlier.record(self.own)  # before the first host is welcomed
        self._tick()

    def now_s(self) -> float:
        """Its own clock."""
        return 50.0 + self.world.plan.rates[-1] * (self.world.now_s - self.stood_s)

    def receive(self, machine: Machine, kind: str, tenure: Tenure, *rest: Any) -> None:
        """A message of a host has arrived, by a connection of that machine."""
        if self.alive:
            getattr(self, f"_{kind}")(machine, tenure, *rest)

    def _hello(
        self, machine: Machine, tenure: Tenure, number: int, ended: tuple[Tenure, ...],
        epoch: bytes,
    ) -> None:  # fmt: skip
        reception, over = self.leases.hello(
            machine.name, tenure, number, ended, self.now_s(), with_epoch=epoch
        )
        if over is not None:
            self._dead(over.tenure, self.epoch)
        if reception is Reception.WELCOME:
            fence_s = self.leases.terms.fence_s
            self.world.to_host(machine, "welcome", tenure, number, self.epoch, fence_s)
        elif reception is Reception.OVER:
            self.world.to_host(machine, "refused", tenure, number)

    def _beat(
        self, machine: Machine, tenure: Tenure, beat: LeaseBeat, ended: tuple[tuple[int, bool], ...]
    ) -> None:
        holding = self.leases.holdings.get(machine.name)
        if holding is None or holding.tenure != tenure:
            return
        for number, done in ended:
            self.world.ended(number, done)
        if self.leases.beat(machine.name, tenure, beat, self.now_s()):
            wanted = self._wanted(tenure)
            self.world.to_host(machine, "answer", tenure, beat.number, wanted)

    def _wanted(self, tenure: Tenure) -> tuple[tuple[int, int], ...]:
        return tuple(
            (each.number, index)
            for index, each in self.world.requests.items()
            if each.number is not None and each.tenure == tenure
        )

    def _dead(self, tenure: Tenure, epoch: Epoch) -> None:
        """Of this tenure, or of all of this epoch, nothing lives: what ran may run again."""
        self.world.judge.declared(tenure, epoch)
        for request in self.world.requests.values():
            if request.epoch == epoch and tenure in (b"", request.tenure):
                request.number, request.tenure, request.epoch = None, b"", b""

    def _tick(self) -> None:
        if not self.alive:
            return
        now_s = self.now_s()
        for lost in self.leases.lost(now_s):
            self._dead(lost.tenure, self.epoch)
        for epoch in self.earlier.take_dead(now_s):
            self._dead(b"", epoch)
            self.world.disk = self.earlier.record(self.own)
        fresh = [h for h in self.leases.holdings.values() if self.leases.is_fresh(h, now_s)]
        for request in self.world.requests.values():
            if request.number is None and fresh:
                holding = self.world.luck.choice(fresh)
                request.number = self.world.new_number()
                request.tenure, request.epoch = holding.tenure, self.epoch
        self.world.after(TICK_S, self.queue.run, self._tick)
