"""Totals of model calls: as one worker reports them, and summed over workers.

A worker's statistics are numbers by short names.  Its counts of model calls have names such as
``model_calls``, and the buckets of their durations names such as ``model_took_0.25``.  A worker
that has called no model reports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from .durations import Durations, plausible

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
