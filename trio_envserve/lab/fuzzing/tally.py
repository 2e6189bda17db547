"""What many runs came to, added up."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from ..simulation.coverage import IMPOSSIBLE, POSSIBLE, name_of
from ..simulation.faults import Fault
from ..simulation.simulator import Run

SIZES = ("clients", "workers", "requests", "faults")
"""What the least run and the average run are told by."""


@dataclasses.dataclass(slots=True)
class Tally:
    """Sums over runs; two of them can be added."""

    runs: int = 0
    harsh: int = 0
    violating: int = 0
    """Runs in which a guarantee was broken."""
    events: int = 0
    virtual_s: float = 0.0
    executions: int = 0
    told: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    pairs: Counter[str] = dataclasses.field(default_factory=Counter)
    sums: Counter[str] = dataclasses.field(default_factory=Counter)
    """Of each of :data:`SIZES`, over all runs."""
    least: dict[str, int] = dataclasses.field(default_factory=dict)
    """Of each of :data:`SIZES`, the smallest of any run."""

    def add(self, run: Run) -> None:
        """One more run."""
        self.runs += 1
        self.harsh += run.harsh
        self.violating += bool(run.violations)
        self.events += run.events
        self.virtual_s += run.virtual_s
        self.executions += run.executions
        self.told.update(run.told)
        self.faults.update(run.faults)
        self.pairs.update(run.pairs)
        struck = sum(run.faults.values())
        sizes = dict(
            zip(SIZES, (run.plan.clients, run.plan.workers, run.asked, struck), strict=True)
        )
        self.sums.update(sizes)
        self._smaller(sizes)

    def merge(self, other: Tally) -> None:
        """Another tally's runs, too."""
        for name in ("runs", "harsh", "violating", "events", "virtual_s", "executions"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("told", "faults", "pairs", "sums"):
            getattr(self, name).update(getattr(other, name))
        self._smaller(other.least)

    def _smaller(self, sizes: dict[str, int]) -> None:
        for name, size in sizes.items():
            self.least[name] = min(size, self.least.get(name, size))

    def to_data(self) -> dict[str, Any]:
        """For the way between processes."""
        fields = (field.name for field in dataclasses.fields(self))
        return {name: getattr(self, name) for name in fields}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Tally:
        """What :meth:`to_data` made."""
        counters = {name: Counter(data[name]) for name in ("told", "faults", "pairs", "sums")}
        return cls(**{**data, **counters})

    # -- what to tell ---------------------------------------------------------

    def every_fault(self) -> dict[str, int]:
        """All kinds, those that never occurred with 0."""
        return {fault.value: self.faults[fault.value] for fault in Fault}

    def every_pair(self) -> dict[str, int]:
        """All pairs that can occur, those that never did with 0."""
        return {name_of(pair): self.pairs[name_of(pair)] for pair in POSSIBLE}

    def average(self) -> dict[str, float]:
        """What a run has on average."""
        runs = max(1, self.runs)
        sizes = {name: round(self.sums[name] / runs, 2) for name in SIZES}
        return sizes | {
            "executions": round(self.executions / runs, 2),
            "events": round(self.events / runs, 1),
            "seconds": round(self.virtual_s / runs, 2),
        }

    def figures(self, took_s: float) -> dict[str, Any]:
        """All of it, for ``--json``."""
        return {
            "runs": self.runs,
            "violations": self.violating,
            "seconds": round(took_s, 3),
            "runs_per_minute": round(60.0 * self.runs / took_s, 1) if took_s else 0.0,
            "simulated_hours": round(self.virtual_s / 3600.0, 3),
            "harsh_runs": self.harsh,
            "events": self.events,
            "executions": self.executions,
            "average": self.average(),
            "least": dict(self.least),
            "told": dict(self.told.most_common()),
            "faults": self.every_fault(),
            "pairs": self.every_pair(),
            "pairs_that_cannot_occur": {name_of(pair): why for pair, why in IMPOSSIBLE.items()},
        }
