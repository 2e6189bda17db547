"""Statistics that workers report of themselves, and the ends of the last workers.

A worker's statistics are numbers by short names.  Its counts of model calls have names such as
``model_calls``, and the buckets of their durations names such as ``model_took_0.25``.  A worker
that has called no model reports none of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, final

from .durations import Durations, plausible
from .router_effects import Lost
from .terms import one_line, worker_name

DEATHS = 20
"""Number of ended workers that are kept for the statistics, the last ones."""

WHY_BYTES = 1024
"""Most bytes of the reason of an end; a longer one is cut."""


STATISTICS_MOST = 64
"""Most statistics of one worker; this package's workers report about thirty."""

NAME_CHARACTERS = 64
"""Most characters of a statistic's name."""
NUMBER_MOST = 2**63
"""Bound of a statistic's absolute value, exclusive."""


def checked(reported: dict[str, Any]) -> tuple[dict[str, float], int]:
    """The statistics among the entries that a worker reports, and the number of other entries.

    A statistic is a finite number below :data:`NUMBER_MOST` under a short printable name.  So no
    report of a worker can raise an exception where statistics are summed, written or sent, or make
    the answer to a client's question large.
    """
    taken = {
        name: value
        for name, value in reported.items()
        if type(value) in (int, float)
        and abs(value) < NUMBER_MOST  # false for what is not a number
        and len(name) <= NAME_CHARACTERS
        and name.isprintable()
    }
    taken = dict(list(taken.items())[:STATISTICS_MOST])
    return taken, len(reported) - len(taken)


# -- model calls -------------------------------------------------------------------------

COUNTS: Final = ("calls", "failed", "retries", "prompt_tokens", "completion_tokens")
"""Names of the counts, as in the field ``usage`` of a result."""

_COUNT: Final = "model_"
"""Prefix of the counts' names in a worker's statistics."""
TOOK: Final = "model_took_"
"""Prefix of the buckets' names there."""


def to_statistics(counts: Mapping[str, float], took: Durations) -> dict[str, float]:
    """The entries about model calls in a worker's statistics; empty if there were none."""
    if not took.count:
        return {}
    return {
        **{f"{_COUNT}{name}": counts[name] for name in COUNTS},
        **{f"{TOOK}{name}": number for name, number in took.to_record().items()},
    }


@final
class ModelTotals:
    """Totals of the model calls of several workers."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(COUNTS, 0)
        self._took = Durations()

    def take(self, statistics: Mapping[str, object]) -> None:
        """Add the statistics of a worker."""
        for name in COUNTS:
            self._counts[name] += int(plausible(statistics.get(f"{_COUNT}{name}")))
        start = len(TOOK)
        self._took.take({n[start:]: count for n, count in statistics.items() if n.startswith(TOOK)})

    def copy(self) -> ModelTotals:
        """An independent copy."""
        found = ModelTotals()
        found._counts = dict(self._counts)
        found._took.counts = list(self._took.counts)
        found._took.sum_s, found._took.most_s = self._took.sum_s, self._took.most_s
        return found

    def usage(self) -> dict[str, int]:
        """The total counts by name."""
        return dict(self._counts)

    def took(self) -> dict[str, float]:
        """The durations of the calls, as a record of :class:`~.durations.Durations`."""
        return self._took.to_record()


# -- workers ----------------------------------------------------------------------------


class Death(NamedTuple):
    """The end of a worker."""

    worker: str
    why: str
    at_s: float
    """Moment of the end, on the awake clock."""
    lost: int
    """Number of executions that were lost with it."""


class WorkerHistory:
    """The statistics of the living workers, and the ends of the last dead ones."""

    def __init__(self) -> None:
        self.stats: dict[bytes, dict[str, Any]] = {}
        """The last statistics of each worker."""
        self.bad_statistics = 0
        """Number of reported entries that are no statistics."""
        self.deaths: deque[Death] = deque(maxlen=DEATHS)
        """Ends of the last workers, the newest one last."""
        self.models_of_the_dead = ModelTotals()
        """Model calls of workers that are proven dead, as far as they were reported."""

    def reported(self, worker: bytes, statistics: Any) -> None:
        """Take in the statistics that a worker reports of itself."""
        self.stats[worker], bad = checked(statistics)
        self.bad_statistics += bad

    def died(self, end: Lost, now_s: float, lost: int) -> str:
        """Note the proven death of a worker, with which ``lost`` executions died; returns its
        name."""
        name = worker_name(end.worker, end.host)
        self.deaths.append(Death(name, one_line(end.why, WHY_BYTES), now_s, lost))
        return name

    def over(self, worker: bytes) -> None:
        """Forget the statistics of a dead worker, but for its model calls."""
        self.models_of_the_dead.take(self.stats.pop(worker, {}))
