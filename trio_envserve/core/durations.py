"""How long things took: counts in buckets with fixed bounds.  Pure.

Adding one costs a search among twenty numbers, and what is held does not grow.  A record
says the bound of each bucket, so whoever reads it may have other bounds.
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
"""From an empty rollout to an hour.  A bucket has what took at most so long, and longer
than the one before; the last has no bound."""

_BUCKETS: Final = {f"{bound_s:g}": n for n, bound_s in enumerate((*BOUNDS_S, math.inf))}
"""The buckets by their names in a record."""

SUM: Final = "sum_s"
"""The name of the sum in a record."""

MOST: Final = "most_s"
"""The name of the longest one in a record; other names are bounds."""

NUMBER_MOST: Final = 2**48
"""A count or a sum of a peer is taken up to here, so that adding them up stays in bounds."""


@final
class Durations:
    """Counts, the sum and the longest of durations."""

    __slots__ = ("counts", "most_s", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """By bucket, not cumulated."""
        self.sum_s = 0.0
        self.most_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s
        self.most_s = max(self.most_s, duration_s)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def take(self, record: Mapping[str, object]) -> None:
        """Count those of a record, too.  Names and numbers that cannot be in one are left out."""
        self.sum_s += plausible(record.get(SUM))
        self.most_s = max(self.most_s, plausible(record.get(MOST)))
        for name, count in record.items():
            bucket = _BUCKETS[name] if name in _BUCKETS else _bucket(name)
            if bucket is not None:
                self.counts[bucket] += int(plausible(count))
                if MOST not in record and plausible(count) >= 1:
                    # Of another program: what it can have been.
                    self.most_s = max(self.most_s, (*BOUNDS_S, BOUNDS_S[-1])[bucket])

    def to_record(self) -> dict[str, float]:
        """The counts above zero, by the bound of their bucket, the sum, and the longest."""
        counts = zip(_BUCKETS, self.counts, strict=True)
        named = {name: count for name, count in counts if count}
        return {SUM: self.sum_s, **({MOST: self.most_s} if named else {}), **named}

    def quantile(self, part: float, before: Durations | None = None) -> float | None:
        """The duration that ``part`` of those since ``before`` do not exceed, in seconds; None if
        there are none.  Within a bucket they are taken to lie evenly, and none above the longest
        one that there ever was."""
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
    """A number of a peer, if it can be a count or a sum; else zero."""
    if type(number) not in (int, float):
        return 0
    assert isinstance(number, (int, float))
    return number if 0 <= number <= NUMBER_MOST else 0


def _bucket(name: str) -> int | None:
    """Where what has another bound is counted; None if that is no bound."""
    try:
        bound_s = float(name)
    except ValueError:
        return None
    return bisect_left(BOUNDS_S, bound_s) if bound_s > 0 else None
