"""The sum of many runs."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from .violation import Violation


class Ran(Protocol):
    """The figures that every run has."""

    @property
    def violations(self) -> Sequence[Violation]:
        """The violations that the judge found."""

    @property
    def digest(self) -> str:
        """The hash of the trace, recorded or not."""

    @property
    def events(self) -> int:
        """How many there were."""

    @property
    def virtual_s(self) -> float:
        """How long it was in virtual time."""

    @property
    def told(self) -> Mapping[str, int]:
        """How often callers were told what."""

    @property
    def faults(self) -> Mapping[str, int]:
        """How often each kind struck."""

    @property
    def log(self) -> Sequence[str]:
        """The trace as lines for people, if it was recorded."""


R = TypeVar("R", bound=Ran)


@dataclasses.dataclass
class BaseTally(ABC, Generic[R]):
    """Sums over runs; two of them can be added.  Every field is a number, a counter
    or :attr:`least`."""

    runs: int = 0
    violating: int = 0
    """Runs in which a guarantee was broken."""
    events: int = 0
    virtual_s: float = 0.0
    told: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    sums: Counter[str] = dataclasses.field(default_factory=Counter)
    """The sum of each of the :meth:`sizes` over all runs."""
    least: dict[str, int] = dataclasses.field(default_factory=dict)
    """The smallest of each of the :meth:`sizes` in any run."""

    @abstractmethod
    def sizes(self, run: R) -> dict[str, int]:
        """The measures of how large a run is."""

    def add(self, run: R) -> None:
        """One more run."""
        self.runs += 1
        self.violating += bool(run.violations)
        self.events += run.events
        self.virtual_s += run.virtual_s
        self.told.update(run.told)
        self.faults.update(run.faults)
        sizes = self.sizes(run)
        self.sums.update(sizes)
        self._smaller(sizes)

    def merge(self, other: Self) -> None:
        """Another tally's runs, too."""
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            elif mine is not self.least:
                setattr(self, field.name, mine + theirs)
        self._smaller(other.least)

    def _smaller(self, sizes: dict[str, int]) -> None:
        for name, size in sizes.items():
            self.least[name] = min(size, self.least.get(name, size))

    def to_data(self) -> dict[str, Any]:
        """For the way between processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The inverse of :meth:`to_data`."""
        empty = cls()
        return cls(**{name: type(getattr(empty, name))(value) for name, value in data.items()})

    # -- what to tell ---------------------------------------------------------

    def average(self) -> dict[str, float]:
        """The sizes of an average run."""
        runs = max(1, self.runs)
        sizes = {name: round(total / runs, 2) for name, total in self.sums.items()}
        return sizes | {
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
            "events": self.events,
            "average": self.average(),
            "least": dict(self.least),
            "told": dict(self.told.most_common()),
            "faults": dict(self.faults),
        }
