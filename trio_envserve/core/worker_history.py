"""The history of workers, for statistics alone: their own figures, and their ends."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from .model_totals import ModelTotals
from .router_effects import Lost
from .terms import one_line, worker_name

DEATHS = 20
"""So many ends of workers are told, the last ones."""

WHY_BYTES = 1024
"""A longer reason of one is cut."""


STATISTICS_MOST = 64
"""Statistics of one worker; it says some thirty of its own."""

NAME_CHARACTERS = 64
NUMBER_MOST = 2**63


def checked(said: dict[str, Any]) -> tuple[dict[str, float], int]:
    """A worker's entries that are statistics, and how many of its
    entries are not.

    A statistic is a finite number below :data:`NUMBER_MOST` under a short printable
    name.  So nothing that a worker says can raise where statistics are added up,
    written or sent, and it cannot make the answer to another one's question large.
    """
    taken = {
        name: value
        for name, value in said.items()
        if type(value) in (int, float)
        and abs(value) < NUMBER_MOST  # false for what is not a number
        and len(name) <= NAME_CHARACTERS
        and name.isprintable()
    }
    taken = dict(list(taken.items())[:STATISTICS_MOST])
    return taken, len(said) - len(taken)


class Death(NamedTuple):
    """How a worker has ended."""

    worker: str
    why: str
    at_s: float
    """On the awake clock."""
    lost: int
    """Executions that were lost with it."""


class WorkerHistory:
    """The statistics of the workers that live, and the deaths of the last ones."""

    def __init__(self) -> None:
        self.stats: dict[bytes, dict[str, Any]] = {}
        """The last statistics of each worker."""
        self.bad_statistics = 0
        """How much of what workers said of themselves is not."""
        self.deaths: deque[Death] = deque(maxlen=DEATHS)
        """How the last workers have ended, the newest one last."""
        self.models_of_the_dead = ModelTotals()
        """The model calls of workers that are proven dead, as far as they have said."""

    def said(self, worker: bytes, statistics: Any) -> None:
        """A worker says this of itself."""
        self.stats[worker], bad = checked(statistics)
        self.bad_statistics += bad

    def died(self, end: Lost, now_s: float, lost: int) -> str:
        """A worker is proven dead, and so many executions with it; its name."""
        name = worker_name(end.worker, end.host)
        self.deaths.append(Death(name, one_line(end.why, WHY_BYTES), now_s, lost))
        return name

    def over(self, worker: bytes) -> None:
        """It will say no more."""
        self.models_of_the_dead.take(self.stats.pop(worker, {}))
