"""The search of a configuration: its figures, and its counterexample as text."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Iterator
from typing import Any

from ...retrylab.explore import Exploration, Move, walk
from ...retrylab.failure import explored_failure
from ..simulation.coverage import IMPOSSIBLE_OF_KEYS, POSSIBLE_OF_KEYS, name_of
from .configurations import AnyConfiguration, KeyConfiguration
from .systems import system_of
from .world import PAIRS


@dataclasses.dataclass(frozen=True, slots=True)
class Counterexample:
    """Violations, and a shortest path to them."""

    violations: tuple[str, ...]
    path: tuple[Move, ...]


@dataclasses.dataclass(slots=True)
class Figures:
    """The progress of exploring a configuration."""

    configuration: AnyConfiguration
    states: int = 0
    transitions: int = 0
    depth: int = 0
    """Actions from the first state to those found last."""
    frontier: int = 0
    """States that were found and not looked at yet."""
    local_states: int = 0
    """Local states, of all actors and judges together."""
    key_pairs: dict[str, int] = dataclasses.field(default_factory=dict)
    """How often each input came to a generation of a key in each state."""
    seconds: float = 0.0
    exhausted: bool = False
    found: Counterexample | None = None

    def record(self) -> dict[str, Any]:
        """For programs."""
        found = self.found
        return {
            "config": self.configuration.name,
            "bounds": self.configuration.record(),
            "states": self.states,
            "transitions": self.transitions,
            "depth": self.depth,
            "exhausted": self.exhausted,
            "local_states": self.local_states,
            "key_pairs": self.key_pairs,
            "key_pairs_that_cannot_occur": _cannot_occur() if self.key_pairs else {},
            "transitions_per_second": round(self.transitions / max(self.seconds, 1e-9)),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "seconds": round(self.seconds, 2),
            "violations": len(found.violations) if found else 0,
            "violated": sorted({text.partition(":")[0] for text in found.violations})
            if found
            else [],
        }


def _cannot_occur() -> dict[str, str]:
    return {name_of(pair): why for pair, why in IMPOSSIBLE_OF_KEYS.items()}


class Search:
    """Search of a configuration.  Iterate over :meth:`run`; it ends at the first violation."""

    def __init__(self, configuration: AnyConfiguration, *, most_states: int | None = None) -> None:
        self.system = system_of(configuration)
        bounds = self.system.bounds
        if most_states is not None:
            bounds = dataclasses.replace(bounds, most_states=most_states)
        self.exploration = Exploration(self.system, bounds)
        self.figures = Figures(configuration)
        PAIRS.clear()

    def run(self) -> Iterator[Figures]:
        """Explore; yields the figures now and then, and at the end."""
        for explored in self.exploration.run():
            figures = self.figures
            figures.states, figures.transitions = explored.states, explored.transitions
            figures.depth, figures.frontier = explored.depth, explored.states - explored.looked
            figures.local_states = explored.locals
            figures.seconds, figures.exhausted = explored.seconds, explored.exhausted
            if isinstance(figures.configuration, KeyConfiguration):
                figures.key_pairs = {name_of(pair): PAIRS[pair] for pair in POSSIBLE_OF_KEYS}
            if explored.path is not None:
                walked = walk(self.system, explored.path)
                texts = tuple(f"{each.guarantee}: {each.text}" for each in walked.violations)
                figures.found = Counterexample(texts, explored.path.moves)
            yield figures

    def tell(self) -> list[str]:
        """Lines of the counterexample; none without one."""
        failure = explored_failure(self.system, self.exploration.explored)
        if failure is None or self.figures.found is None:
            return []
        return [*failure.text().splitlines(), f"VIOLATED {self.figures.found.violations[0]}"]


def explore(configuration: AnyConfiguration, *, most_states: int | None = None) -> Search:
    """Explore to the end, or to the first violation, or to so many states."""
    search = Search(configuration, most_states=most_states)
    for _ in search.run():
        pass
    return search
