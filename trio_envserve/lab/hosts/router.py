"""The router of the simulation: what ships counts the leases; the rest is small."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...core.earlier_epochs import EarlierEpochs
from ...core.lease import LeaseBeat, Leases, LeaseTerms, Reception
from ...core.terms import Epoch, Tenure
from .machine import Left, Machine, Queue
from .surroundings import AroundRouter

TICK_S = 0.5


@dataclasses.dataclass(slots=True)
class Request:
    """One request that is not answered yet, as the journal has it."""

    number: int | None = None
    """Of its execution; None: it waits."""
    tenure: Tenure = b""
    epoch: bytes = b""
    keyed: bool = False
    """Whether the journal has it, if there is one: then it can be taken over."""


class Router:
    """One epoch."""

    def __init__(self, world: AroundRouter, terms: LeaseTerms) -> None:
        self.world = world
        self.epoch = world.new_id()
        self.alive = True
        self.queue = Queue()
        self.stood_s = 0.0
        """How long its clock stood still."""
        self.earlier = EarlierEpochs(world.disk, self.now_s())
        self.leases = Leases(terms, self.epoch, self.earlier if world.plan.journal else None)
        self.unknown: dict[int, Tenure] = {}
        """The executions that were taken over, are not known here, and are to stop."""
        self._write()
        self._tick()

    def _write(self) -> None:
        """Before anything is said to a host that is new."""
        self.world.disk = self.earlier.record(self.leases.own(), self.now_s())

    def now_s(self) -> float:
        """Its own clock."""
        return 50.0 + self.world.plan.rates[-1] * (self.world.now_s - self.stood_s)

    def receive(self, machine: Machine, kind: str, tenure: Tenure, *rest: Any) -> None:
        """A message of a host has arrived, by a connection of that machine."""
        if self.alive:
            getattr(self, f"_{kind}")(machine, tenure, *rest)

    def _hello(
        self, machine: Machine, tenure: Tenure, number: int, ended: tuple[Tenure, ...],
        left: Left,
    ) -> None:  # fmt: skip
        if not self.world.plan.journal:  # else the leases see to it
            self.earlier.accounted_for(ended)
            if not left.epoch and self.earlier.knows(tenure):
                self.world.to_host(machine, "refused", tenure, number)
                return
        before = self.leases.holdings.get(machine.name)
        reception, over = self.leases.hello(
            machine.name, tenure, number, ended, self.now_s(),
            with_epoch=left.epoch, continues=left.continues, to=left.to,
        )  # fmt: skip
        if over is not None:
            self._dead(over.tenure, self.epoch)
        if reception is Reception.WELCOME:
            if before is None or before.tenure != tenure:
                self._take_over(tenure, left)
                self._write()
            fence_s = self.leases.terms.fence_s
            self.world.to_host(machine, "welcome", tenure, number, self.epoch, fence_s)
        elif reception is Reception.OVER:
            self.world.to_host(machine, "refused", tenure, number)
        elif reception is Reception.MOVED:
            self.world.to_host(machine, "moved", tenure, number, self.epoch)

    def _take_over(self, tenure: Tenure, left: Left) -> None:
        """Let go on what the journal knows; the rest is to stop."""
        unknown = set(left.running)
        for request in self.world.requests.values():
            if request.number is not None and request.keyed and request.tenure in left.continues:
                unknown.discard(request.number)
                request.tenure, request.epoch = tenure, self.epoch
                self.world.judge.taken_over(request.number, tenure, self.epoch)
        self.unknown |= dict.fromkeys(unknown, tenure)

    def _beat(
        self, machine: Machine, tenure: Tenure, beat: LeaseBeat, ended: tuple[tuple[int, bool], ...]
    ) -> None:
        holding = self.leases.holdings.get(machine.name)
        if holding is None or holding.tenure != tenure:
            return
        for number, done in ended:
            if self.unknown.pop(number, None) is None:
                self.world.ended(number, done)
        if self.leases.beat(machine.name, tenure, beat, self.now_s()):
            wanted = self._wanted(tenure)
            stop = [n for n, its in self.unknown.items() if its == tenure]
            self.world.to_host(machine, "answer", tenure, beat.number, wanted, tuple(stop))

    def _wanted(self, tenure: Tenure) -> tuple[tuple[int, int], ...]:
        return tuple(
            (each.number, index)
            for index, each in self.world.requests.items()
            if each.number is not None and each.tenure == tenure
        )

    def _dead(self, tenure: Tenure, epoch: Epoch) -> None:
        """Of this tenure, or of all of this epoch, nothing lives: what ran may run again."""
        self.world.judge.declared(tenure, epoch)
        for number in [n for n, its in self.unknown.items() if its == tenure]:
            del self.unknown[number]
        for request in self.world.requests.values():
            if request.epoch == epoch and tenure in (b"", request.tenure):
                request.number, request.tenure, request.epoch = None, b"", b""

    def _tick(self) -> None:
        if not self.alive:
            return
        now_s = self.now_s()
        for lost in self.leases.lost(now_s):
            self._dead(lost.tenure, self.epoch)
        if not self.unknown:
            for epoch in self.earlier.take_dead(now_s):
                self._dead(b"", epoch)
        self._write()
        fresh = [h for h in self.leases.holdings.values() if self.leases.is_fresh(h, now_s)]
        for request in self.world.requests.values():
            if request.number is None and fresh:
                holding = self.world.luck.choice(fresh)
                request.number = self.world.new_number()
                request.tenure, request.epoch = holding.tenure, self.epoch
        self.world.after(TICK_S, self.queue.run, self._tick)
