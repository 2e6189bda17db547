"""The walk through all states of a configuration, breadth first.

Theory of operation
-------------------
States are found layer by layer: all that take n actions, then all that take
n + 1.  Each is looked at once, by its digest (:meth:`.Explored.canonical`); of a
state that was found only its predecessor and the action between are kept.  So
the first violation that is met has a shortest path to it, and the path can be
walked again.

A digest has 8 bytes.  Among n states the chance that any two share one, so
that one of them is not looked at, is below n * n / 2**65: one in 370,000 for
ten million states.
"""

from __future__ import annotations

import dataclasses
import gc
import resource
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

from ...retrylab.explore import Exploration, walk
from ...retrylab.failure import explored_failure
from ..simulation.coverage import IMPOSSIBLE_OF_KEYS, POSSIBLE_OF_KEYS, name_of
from .actions import Action
from .configurations import AnyConfiguration, Configuration, KeyConfiguration
from .hosted_configurations import HostConfiguration
from .hosted_world import HostsWorld
from .keyed import PAIRS

CHUNK = 2_000
"""States that are looked at between two reports of progress."""


@dataclasses.dataclass(frozen=True, slots=True)
class Counterexample:
    """A violation, and a shortest way to it."""

    violations: tuple[str, ...]
    path: tuple[Action, ...]
    """The actions from the blank state."""
    opening: int
    """How many of them belong to the opening."""
    aftermath: tuple[Action, ...] = ()
    """The actions that happen by themselves after the path, until the violation shows."""

    @property
    def steps(self) -> int:
        """The length of the path from the first state on."""
        return max(0, len(self.path) - self.opening)


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
    quiet: int = 0
    """States in which nothing more happens by itself, each run to its rest."""
    local_states: dict[str, int] = dataclasses.field(default_factory=dict)
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
            "quiet_states": self.quiet,
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


class SystemSearch:
    """Search of a configuration that is a system of actors; see :class:`Search`."""

    def __init__(
        self, configuration: Configuration | KeyConfiguration, *, most_states: int | None = None
    ) -> None:
        self.system = configuration.system()
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
            figures.local_states = {"local": explored.locals}
            figures.seconds, figures.exhausted = explored.seconds, explored.exhausted
            if isinstance(figures.configuration, KeyConfiguration):
                figures.key_pairs = {name_of(pair): PAIRS[pair] for pair in POSSIBLE_OF_KEYS}
            if explored.path is not None:
                walked = walk(self.system, explored.path)
                texts = tuple(f"{each.guarantee}: {each.text}" for each in walked.violations)
                figures.found = Counterexample(texts, explored.path.moves, 1)
            yield figures

    def tell(self) -> list[str]:
        """Lines of the counterexample; none without one."""
        failure = explored_failure(self.system, self.exploration.explored)
        if failure is None or self.figures.found is None:
            return []
        return [*failure.text().splitlines(), f"VIOLATED {self.figures.found.violations[0]}"]


class Search:
    """One exploration.  Iterate over :meth:`run`; it ends at the first violation."""

    def __init__(self, configuration: HostConfiguration, *, most_states: int | None = None) -> None:
        self.world = HostsWorld(configuration)
        self.figures = Figures(configuration)
        self._most_states = most_states
        self._opening: list[Action] = []
        self._seen: set[bytes] = set()
        self._parents = array("I")
        self._actions = array("H")
        self._action_numbers: dict[Action, int] = {}
        self._action_list: list[Action] = []

    def run(self) -> Iterator[Figures]:
        """Explore; yields the figures after every chunk, and at the end."""
        began_s = time.monotonic()
        with _no_collections():
            for _ in self._explore():
                self._measure(began_s)
                yield self.figures
        self._measure(began_s)
        yield self.figures

    def _measure(self, began_s: float) -> None:
        world, figures = self.world, self.figures
        figures.states = len(self._seen)
        figures.seconds = time.monotonic() - began_s
        figures.local_states = world.sizes()

    # -- the walk ---------------------------------------------------------------

    def _explore(self) -> Iterator[None]:
        first = self._open()
        if first is None:
            return
        self._enter(self.world.canonical(first), 0, ())
        layer = [(first, 0)]
        looked = 0
        while layer:
            found: list[tuple[Any, int]] = []
            for count, (state, index) in enumerate(layer, 1):
                if not self._look(state, index, found):
                    return
                self.figures.frontier = len(layer) - count + len(found)
                looked += 1
                if looked % CHUNK == 0:
                    yield
                if self._most_states is not None and len(self._seen) >= self._most_states:
                    return
            layer = found
            self.figures.depth += bool(layer)
        self.figures.frontier = 0
        self.figures.exhausted = True

    def _open(self) -> Any:
        """The first state; None if something is violated before it is reached."""
        state: Any = self.world.blank()
        for action in self.world.opening():
            self._opening.append(action)
            state, violations = self.world.move(state, action)
            if violations:
                self.figures.found = Counterexample(
                    tuple(violations), tuple(self._opening), len(self._opening)
                )
                return None
        return state

    def _look(self, state: Any, index: int, found: list[tuple[Any, int]]) -> bool:
        """Look at one state; False if it, or an action from it, violates something."""
        world, figures, seen = self.world, self.figures, self._seen
        actions = world.certain(state)
        if world.is_quiet(state, actions):
            figures.quiet += 1
            violations, way = world.run_to_rest(state)
            if violations:
                self._report(violations, index, aftermath=way)
                return False
            if not world.at_rest(state):
                actions += world.timers(state)
        for action in (*actions, *world.trouble(state)):
            after, violations = world.move(state, action)
            figures.transitions += 1
            if violations:
                self._report(violations, index, action)
                return False
            key = world.canonical(after)
            if key not in seen:
                found.append((after, self._enter(key, index, action)))
        return True

    def _enter(self, key: bytes, parent: int, action: Action) -> int:
        """A state that was never seen: its number."""
        self._seen.add(key)
        number = self._action_numbers.get(action)
        if number is None:
            number = self._action_numbers[action] = len(self._action_list)
            self._action_list.append(action)
        self._parents.append(parent)
        self._actions.append(number)
        return len(self._parents) - 1

    def _report(
        self,
        violations: list[str],
        index: int,
        *last: Action,
        aftermath: Sequence[Action] = (),
    ) -> None:
        path = list(reversed(last))
        while index:
            path.append(self._action_list[self._actions[index]])
            index = self._parents[index]
        path += reversed(self._opening)
        self.figures.found = Counterexample(
            tuple(violations), tuple(reversed(path)), len(self._opening), tuple(aftermath)
        )


@contextmanager
def _no_collections() -> Iterator[None]:
    """Nothing here is garbage in cycles, and there is much to look through in vain."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def search_of(
    configuration: AnyConfiguration, *, most_states: int | None = None
) -> Search | SystemSearch:
    """Search of a configuration."""
    if not isinstance(configuration, HostConfiguration):
        return SystemSearch(configuration, most_states=most_states)
    return Search(configuration, most_states=most_states)


@overload
def explore(
    asked: Configuration | KeyConfiguration, *, most_states: int | None = None
) -> SystemSearch: ...
@overload
def explore(asked: HostConfiguration, *, most_states: int | None = None) -> Search: ...
@overload
def explore(
    asked: AnyConfiguration, *, most_states: int | None = None
) -> Search | SystemSearch: ...
def explore(asked: AnyConfiguration, *, most_states: int | None = None) -> Search | SystemSearch:
    """Explore to the end, or to the first violation, or to so many states."""
    search = search_of(asked, most_states=most_states)
    for _ in search.run():
        pass
    return search
