"""A worker's process in a state."""

from __future__ import annotations

from typing import NamedTuple

DEAD = -1
"""In place of the core of a worker whose process is dead."""


class Running(NamedTuple):
    """Environment code that runs."""

    number: int
    key: bytes
    session: bytes
    cancelled: bool


class WorkerPart(NamedTuple):
    """A worker's process and its link."""

    id: bytes
    life: int
    """The life of the server that started it."""
    core: int
    runs: tuple[Running, ...] = ()
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    late: tuple[tuple[str, int], ...] = ()
    """The messages left behind that still arrive: which way, and the message."""
    doomed: bool = False
    """It was killed or told to exit, and will be dead soon."""
    reaped: bool = False

    def told_to_stop(self, number: int) -> WorkerPart:
        """The same after an execution was told to stop."""
        return self._replace(
            runs=tuple(r._replace(cancelled=r.cancelled or r.number == number) for r in self.runs)
        )

    def ended(self, number: int) -> tuple[Running, WorkerPart]:
        """An execution, and the same without it."""
        run = next(each for each in self.runs if each.number == number)
        return run, self._replace(runs=tuple(each for each in self.runs if each is not run))
