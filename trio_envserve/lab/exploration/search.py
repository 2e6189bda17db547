"""The search of a configuration: its figures, and its counterexample as text."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Iterator
from typing import Any

from ...retrylab.explore import Exploration, Explored, walk
from ...retrylab.failure import explored_failure
from ..simulation.coverage import IMPOSSIBLE, POSSIBLE, name_of
from .configurations import Configuration
from .systems import system_of
from .world import PAIRS


class Search:
    """Search of a configuration.  Iterate over :meth:`run`; it ends at the first violation."""

    def __init__(self, configuration: Configuration, *, most_states: int | None = None) -> None:
        self.configuration = configuration
        self.system = system_of(configuration)
        bounds = self.system.bounds
        if most_states is not None:
            bounds = dataclasses.replace(bounds, most_states=most_states)
        self._exploration = Exploration(self.system, bounds)
        self.violations: tuple[str, ...] = ()
        """Violations at the end of the shortest path to one."""
        PAIRS.clear()

    @property
    def figures(self) -> Explored:
        """The progress of the search."""
        return self._exploration.explored

    @property
    def violated(self) -> list[str]:
        """Names of the guarantees that are violated."""
        return sorted({text.partition(":")[0] for text in self.violations})

    @property
    def pairs(self) -> dict[str, int]:
        """How often each input came to a work in each state."""
        return {name_of(pair): PAIRS[pair] for pair in POSSIBLE}

    def run(self) -> Iterator[Explored]:
        """Explore; yields the figures now and then, and at the end."""
        for explored in self._exploration.run():
            if explored.path is not None:
                walked = walk(self.system, explored.path)
                self.violations = tuple(f"{v.guarantee}: {v.text}" for v in walked.violations)
            yield explored

    def record(self) -> dict[str, Any]:
        """Figures for programs."""
        figures = self.figures
        return {
            "config": self.configuration.name,
            "bounds": self.configuration.record(),
            "states": figures.states,
            "transitions": figures.transitions,
            "depth": figures.depth,
            "exhausted": figures.exhausted,
            "local_states": figures.locals,
            "pairs": self.pairs,
            "pairs_that_cannot_occur": {name_of(pair): why for pair, why in IMPOSSIBLE.items()},
            "transitions_per_second": round(figures.transitions / max(figures.seconds, 1e-9)),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "seconds": round(figures.seconds, 2),
            "violations": len(self.violations),
            "violated": self.violated,
        }

    def tell(self) -> list[str]:
        """Lines of the counterexample; none without one."""
        failure = explored_failure(self.system, self.figures)
        if failure is None:
            return []
        return [*failure.text().splitlines(), f"VIOLATED {self.violations[0]}"]


def explore(configuration: Configuration, *, most_states: int | None = None) -> Search:
    """Explore to the end, or to the first violation, or to so many states."""
    search = Search(configuration, most_states=most_states)
    for _ in search.run():
        pass
    return search
