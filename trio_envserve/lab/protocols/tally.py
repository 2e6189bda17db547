"""The sum of many runs of a protocol."""

from __future__ import annotations

from typing import Any

from ..kit.tally import BaseTally
from .interface import Fault
from .run import Run

SIZES = ("requests", "faults")
"""The measures of the least run and of the average run."""


class ActorTally(BaseTally[Run]):
    """Sums over runs."""

    def sizes(self, run: Run) -> dict[str, int]:
        """By the names of :data:`SIZES`."""
        sizes = (sum(run.told.values()), sum(run.faults.values()))
        return dict(zip(SIZES, sizes, strict=True))

    def average(self) -> dict[str, float]:
        """The sizes of an average run."""
        return {**dict.fromkeys(SIZES, 0.0), **super().average()}

    def figures(self, took_s: float) -> dict[str, Any]:
        """All of it; the kinds of fault that never occurred with 0."""
        faults = {fault.value: self.faults[fault.value] for fault in Fault}
        return super().figures(took_s) | {"faults": faults}
