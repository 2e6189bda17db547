"""Histograms of durations: counts in buckets with fixed bounds.

Adding a duration costs a search among twenty numbers, and the memory does not grow.  A record names
the bound of each bucket, so its reader may have other bounds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, final

BOUNDS_S: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 300.0,
    600.0, 1800.0, 3600.0,
)  # fmt: skip
"""Upper bounds of the buckets, in seconds: from an empty rollout to an hour.  A last bucket has the
longer ones."""

_BUCKETS: Final = {f"{bound_s:g}": n for n, bound_s in enumerate((*BOUNDS_S, math.inf))}
"""Index of each bucket, by its name in a record."""

SUM: Final = "sum_s"
"""Name of the sum in a record."""

MOST: Final = "most_s"
"""Name of the longest duration in a record; all other names but :data:`SUM` are bounds."""

NUMBER_MOST: Final = 2**48
"""Largest count or sum that is taken from a peer, so that totals stay in bounds."""


@final
class Durations:
    """A histogram: counts by bucket, the sum, and the longest of some durations."""

    __slots__ = ("counts", "most_s", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Counts by bucket, not cumulated."""
        self.sum_s = 0.0
        self.most_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s
        self.most_s = max(self.most_s, duration_s)

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def take(self, record: Mapping[str, object]) -> None:
        """Add the durations of a record; names and numbers that no record can have are ignored."""
        self.sum_s += plausible(record.get(SUM))
        self.most_s = max(self.most_s, plausible(record.get(MOST)))
        for name, count in record.items():
            bucket = _BUCKETS[name] if name in _BUCKETS else _bucket(name)
            if bucket is not None:
                self.counts[bucket] += int(plausible(count))
                if MOST not in record and plausible(count) >= 1:
                    # The record of another program: the longest that its buckets allow.
                    self.most_s = max(self.most_s, (*BOUNDS_S, BOUNDS_S[-1])[bucket])

    def to_record(self) -> dict[str, float]:
        """The record: the counts above 0 by the bound of their bucket, the sum, and the longest."""
        counts = zip(_BUCKETS, self.counts, strict=True)
        named = {name: count for name, count in counts if count}
        return {SUM: self.sum_s, **({MOST: self.most_s} if named else {}), **named}

    def quantile(self, part: float, before: Durations | None = None) -> float | None:
        """The quantile of the durations since ``before``, in seconds: the duration that a ``part``
        of them does not exceed; None if there are none.  Durations are taken to be evenly spread
        within a bucket, and not to exceed the longest."""
        earlier = [0] * len(self.counts) if before is None else before.counts
        counts = [max(0, now - then) for now, then in zip(self.counts, earlier, strict=True)]
        left = part * sum(counts)
        bounds_s = zip((0.0, *BOUNDS_S), (*BOUNDS_S, math.inf), counts, strict=True)
        for low_s, high_s, count in bounds_s:
            if count and left <= count:
                high_s = min(high_s, self.most_s)
                return max(0.0, min(high_s, low_s + (high_s - low_s) * left / count))
            left -= count
        return None


def plausible(number: object) -> float:
    """A peer's number if it can be a count or a sum; else 0."""
    if type(number) not in (int, float):
        return 0
    assert isinstance(number, (int, float))
    return number if 0 <= number <= NUMBER_MOST else 0


def _bucket(name: str) -> int | None:
    """Index of the bucket in which a record's bucket with another bound is counted; None if the
    name is no bound."""
    try:
        bound_s = float(name)
    except ValueError:
        return None
    return bisect_left(BOUNDS_S, bound_s) if bound_s > 0 else None
