"""The configurations as targets, which are searched as any system is."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...retrylab.explore import Explored, Path
from ...retrylab.explore import explore as search
from ...retrylab.failure import SystemTarget
from ...retrylab.plan import Plan
from ..mutants import find
from ..simulation.coverage import IMPOSSIBLE, POSSIBLE, name_of
from ..simulation.plan import GUARANTEES
from .configurations import Configuration, configuration
from .systems import system_of
from .world import PAIRS

SPEC = f"{__name__}:SmallSystem"
"""Name by which the process of a search finds it."""


class SmallSystem(SystemTarget):
    """A configuration of the protocol that ships, or of a mutant of it."""

    def __init__(self, *, config: str = "small", mutant: str = "") -> None:
        self.configuration = configuration(config)
        system = system_of(self.configuration)
        super().__init__(system, SPEC, find(mutant) if mutant else None)
        PAIRS.clear()

    def figures(self, explored: Explored) -> dict[str, Any]:
        """Figures of a search, and how often each input came to a work in each state."""
        return {
            **super().figures(explored),
            "config": self.configuration.name,
            "bounds": self.configuration.record(),
            "pairs": {name_of(pair): PAIRS[pair] for pair in POSSIBLE},
            "pairs_that_cannot_occur": {name_of(pair): why for pair, why in IMPOSSIBLE.items()},
        }

    def promise(self, guarantee: str) -> str:
        """The guarantee in one line."""
        return GUARANTEES[guarantee]

    def again(self, seed: int, plan: Plan | Path) -> str:
        """The command that searches every order again."""
        command = f"trio-envserve fuzz --exhaustive --config {self.configuration.name}"
        return command + (f" --mutant {self.mutant.name}" if self.mutant else "")


def explore(asked: Configuration, *, most_states: int | None = None) -> Explored:
    """Search a configuration to its end, or to the first violation, or to so many states."""
    system = system_of(asked)
    most = system.bounds.most_states if most_states is None else most_states
    PAIRS.clear()
    return search(system, dataclasses.replace(system.bounds, most_states=most))
