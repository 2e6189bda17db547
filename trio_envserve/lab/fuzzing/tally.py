"""The sum of many runs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from ...retrylab.jobs import BaseTally
from ..simulation.coverage import (
    IMPOSSIBLE,
    IMPOSSIBLE_OF_KEYS,
    POSSIBLE,
    POSSIBLE_OF_KEYS,
    name_of,
)
from ..simulation.faults import Fault
from ..simulation.simulator import Run

SIZES = ("clients", "workers", "requests", "faults")
"""The measures of the least run and of the average run."""


@dataclasses.dataclass
class Tally(BaseTally[Run]):
    """Sums over runs of the protocol that ships."""

    harsh: int = 0
    executions: int = 0
    pairs: Counter[str] = dataclasses.field(default_factory=Counter)
    key_pairs: Counter[str] = dataclasses.field(default_factory=Counter)

    def sizes(self, run: Run) -> dict[str, int]:
        """By the names of :data:`SIZES`."""
        struck = sum(run.faults.values())
        sizes = (run.plan.clients, run.plan.workers, run.asked, struck)
        return dict(zip(SIZES, sizes, strict=True))

    def add(self, run: Run) -> None:
        """One more run."""
        super().add(run)
        self.harsh += run.harsh
        self.executions += run.executions
        self.pairs.update(run.pairs)
        self.key_pairs.update(run.key_pairs)

    # -- what to tell ---------------------------------------------------------

    def every_fault(self) -> dict[str, int]:
        """All kinds, those that never occurred with 0."""
        return {fault.value: self.faults[fault.value] for fault in Fault}

    def every_pair(self) -> dict[str, int]:
        """All pairs that can occur, those that never did with 0."""
        return {name: self.pairs[name] for name in map(name_of, POSSIBLE)}

    def every_key_pair(self) -> dict[str, int]:
        """The same of the generations of keys."""
        return {name: self.key_pairs[name] for name in map(name_of, POSSIBLE_OF_KEYS)}

    def average(self) -> dict[str, float]:
        """The sizes of an average run."""
        sizes = dict.fromkeys(SIZES, 0.0)
        executions = round(self.executions / max(1, self.runs), 2)
        return {**sizes, **super().average(), "executions": executions}

    def figures(self, took_s: float) -> dict[str, Any]:
        """All of it, for ``--json``."""
        return super().figures(took_s) | {
            "harsh_runs": self.harsh,
            "executions": self.executions,
            "faults": self.every_fault(),
            "pairs": self.every_pair(),
            "pairs_that_cannot_occur": {name_of(pair): why for pair, why in IMPOSSIBLE.items()},
            "key_pairs": self.every_key_pair(),
            "key_pairs_that_cannot_occur": {
                name_of(pair): why for pair, why in IMPOSSIBLE_OF_KEYS.items()
            },
        }
