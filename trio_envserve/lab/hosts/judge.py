"""The judge: it sees every worker, and true time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from ...core.terms import Epoch, Tenure
from ...retrylab.judges import Violation


class Live(Protocol):
    """A worker, which is an execution that lives."""

    @property
    def number(self) -> int:
        """Of the execution."""
        ...

    @property
    def request(self) -> int:
        """It runs this one."""
        ...

    @property
    def tenure(self) -> Tenure:
        """It was started in this one."""
        ...

    @property
    def epoch(self) -> Epoch:
        """The router that wanted it."""
        ...

    @property
    def sleeps(self) -> bool:
        """Whether its machine does."""
        ...

    @property
    def where(self) -> str:
        """The name of its machine."""
        ...


class Watched(Protocol):
    """The world that is judged."""

    @property
    def now_s(self) -> float:
        """True time."""
        ...

    def workers(self) -> Iterator[Live]:
        """All that live."""
        ...


class Past(NamedTuple):
    """The memory of a judge."""

    dead: frozenset[tuple[Tenure, Epoch]] = frozenset()
    """Of these tenures all workers with that router were said to be dead; of an empty one all
    of that router."""
    taken: tuple[tuple[int, Tenure, Epoch], ...] = ()
    """The executions that were taken over, each for which tenure and by which router."""
    started: frozenset[int] = frozenset()
    """The executions that have begun."""


class Judge:
    """The judge of what must never be: two live executions of one request, one that begins
    twice, a death that is none, and a request that nobody answers.

    A worker of a machine that sleeps runs no code.  What counts is whether it would run
    again: it is judged when the machine has woken, and its timers have fired."""

    def __init__(self, world: Watched, past: Past | None = None) -> None:
        self._world = world
        past = past or Past()
        self.violations: list[Violation] = []
        self._dead = set(past.dead)
        self._taken = {number: (tenure, epoch) for number, tenure, epoch in past.taken}
        self._started = set(past.started)

    def past(self) -> Past:
        """Its memory, for the judge of a later step."""
        taken = sorted((number, *where) for number, where in self._taken.items())
        return Past(frozenset(self._dead), tuple(taken), frozenset(self._started))

    def _say(self, guarantee: str, text: str) -> None:
        self.violations.append(Violation(guarantee, self._world.now_s, text))

    def started(self, worker: Live) -> None:
        """A worker lives from now on."""
        if worker.number in self._started:
            self._say("G2", f"execution {worker.number} begins a second time")
        self._started.add(worker.number)
        self._alive(worker)

    def woke(self, workers: Iterable[Live]) -> None:
        """The machine of these has woken: what lives runs again."""
        for worker in workers:
            self._alive(worker)

    def taken_over(self, number: int, tenure: Tenure, epoch: Epoch) -> None:
        """A router takes over this execution of an earlier one, which is of this tenure now."""
        self._taken[number] = tenure, epoch

    def declared(self, tenure: Tenure, epoch: Epoch) -> None:
        """A router takes all workers of a tenure with this epoch for dead; without a tenure:
        of all tenures with it."""
        self._dead.add((tenure, epoch))
        for worker in self._world.workers():
            if not worker.sleeps and self._is_dead(worker):
                self._say("G1", f"{worker.number} is declared lost, and lives on {worker.where}")

    def reported(self, number: int) -> None:
        """A router was told that this execution has ended."""
        for worker in self._world.workers():
            if worker.number == number:
                self._say("G1", f"{number} is reported as ended, and lives on {worker.where}")

    def _is_dead(self, worker: Live) -> bool:
        tenure, epoch = self._taken.get(worker.number, (worker.tenure, worker.epoch))
        return not self._dead.isdisjoint(((tenure, epoch), (b"", epoch)))

    def _alive(self, worker: Live) -> None:
        if self._is_dead(worker):
            self._say("G1", f"{worker.number} was declared lost, and runs on {worker.where}")
        for other in self._world.workers():
            if other.request == worker.request and other is not worker and not other.sleeps:
                text = f"{worker.number} and {other.number} run request {worker.request}"
                self._say("G1", text)

    def at_the_end(self, waiting: int) -> None:
        """It was calm for long."""
        if waiting:
            self._say("G9", f"{waiting} requests were never answered")
