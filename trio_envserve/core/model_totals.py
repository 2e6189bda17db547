"""The totals of workers' model calls: as a worker says them, and added up.  Pure.

A worker's statistics are numbers by short names.  So its counts are there as ``model_calls``
and so on, and how long the calls took as ``model_took_0.25`` and the like, by bucket.  A
worker that has called no model says nothing of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from .durations import Durations, plausible

COUNTS: Final = ("calls", "failed", "retries", "prompt_tokens", "completion_tokens")
"""As in the field ``usage`` of a result."""

_COUNT: Final = "model_"
TOOK: Final = "model_took_"
"""The prefix of the buckets' names."""


def said(counts: Mapping[str, int], took: Durations) -> dict[str, float]:
    """A worker's statistics of its model calls."""
    if not took.count:
        return {}
    return {
        **{f"{_COUNT}{name}": counts[name] for name in COUNTS},
        **{f"{TOOK}{name}": number for name, number in took.to_record().items()},
    }


@final
class ModelTotals:
    """The model calls of several workers."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(COUNTS, 0)
        self._took = Durations()

    def take(self, statistics: Mapping[str, object]) -> None:
        """Add what a worker says of its own."""
        for name in COUNTS:
            self._counts[name] += int(plausible(statistics.get(f"{_COUNT}{name}")))
        start = len(TOOK)
        self._took.take({n[start:]: count for n, count in statistics.items() if n.startswith(TOOK)})

    def copy(self) -> ModelTotals:
        """Another one, equal to this."""
        found = ModelTotals()
        found._counts = dict(self._counts)
        found._took.counts = list(self._took.counts)
        found._took.sum_s, found._took.most_s = self._took.sum_s, self._took.most_s
        return found

    def usage(self) -> dict[str, int]:
        """The counts by name."""
        return dict(self._counts)

    def took(self) -> dict[str, float]:
        """How long the calls took, as a record of durations."""
        return self._took.to_record()
