"""The judge: it sees every worker, and true time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.terms import Epoch, Tenure
from ..kit.violation import Violation

if TYPE_CHECKING:
    from .machine import Machine, Worker
    from .world import World


class Judge:
    """What must never be: two live executions of one request, a death that is none, and a
    request that nobody answers.

    A worker of a machine that sleeps runs no code.  What counts is whether it would run
    again: it is judged when the machine has woken, and its timers have fired."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[Violation] = []
        self._dead: set[tuple[Tenure, Epoch]] = set()
        self._taken: dict[int, tuple[Tenure, Epoch]] = {}

    def _say(self, guarantee: str, text: str) -> None:
        self.violations.append(Violation(guarantee, self._world.now_s, text))

    def started(self, worker: Worker) -> None:
        """A worker lives from now on."""
        self._alive(worker)

    def woke(self, machine: Machine) -> None:
        """What lives on this machine runs again."""
        for worker in machine.workers.values():
            self._alive(worker)

    def taken_over(self, number: int, tenure: Tenure, epoch: Epoch) -> None:
        """A router takes over this execution of an earlier one, which is of this tenure now."""
        self._taken[number] = tenure, epoch

    def declared(self, tenure: Tenure, epoch: Epoch) -> None:
        """A router takes all workers of a tenure with this epoch for dead; without a tenure:
        of all tenures with it."""
        self._dead.add((tenure, epoch))
        for worker in self._world.workers():
            if not worker.machine.sleeps and self._is_dead(worker):
                name = worker.machine.name
                self._say("declared lost", f"{worker.number} lives on {name}")

    def _is_dead(self, worker: Worker) -> bool:
        tenure, epoch = self._taken.get(worker.number, (worker.tenure, worker.epoch))
        return not self._dead.isdisjoint(((tenure, epoch), (b"", epoch)))

    def _alive(self, worker: Worker) -> None:
        if self._is_dead(worker):
            self._say("declared lost", f"{worker.number} runs on {worker.machine.name}")
        for other in self._world.workers():
            if other.request == worker.request and other is not worker and not other.machine.sleeps:
                text = f"{worker.number} and {other.number} run request {worker.request}"
                self._say("one at a time", text)

    def at_the_end(self, waiting: int) -> None:
        """It was calm for long."""
        if waiting:
            self._say("no silent wait", f"{waiting} requests were never answered")
