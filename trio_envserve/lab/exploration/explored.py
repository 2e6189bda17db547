"""The interface of a configuration for a search: states, what can happen in them, and rest.

Theory of operation
-------------------
A state is *quiet* if nothing happens by itself in it any more, but that environment code
may end for which nobody waits.  That a call still waits there is no failure: a message may
be lost, and the next ping or beat repairs it.  So from each quiet state the system is run
on without trouble, pings and beats in turn, until everything is at rest; if it is not after
:data:`ROUNDS`, somebody would wait for ever (G9), or something is never given back (G8).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

from .actions import Action, BaseStep
from .machines import Catalogue

S = TypeVar("S")

ROUNDS = 10
"""Pings and beats of everybody that repair whatever can be repaired."""

MOST_MOVES = 2_000


class Explored(ABC, Generic[S]):
    """A configuration, with everything that was ever found out about it."""

    rounds: ClassVar[int] = ROUNDS

    def __init__(self, machines: Mapping[str, Catalogue]) -> None:
        self._machines = machines

    # -- states -----------------------------------------------------------------

    @abstractmethod
    def blank(self) -> S:
        """Before anything: a server that has started nothing."""

    @abstractmethod
    def opening(self) -> Iterator[Action]:
        """The way from a blank state to the first."""

    @abstractmethod
    def step(self, state: S) -> BaseStep[S]:
        """The step that takes one action from this state."""

    def move(self, state: S, action: Action) -> tuple[S, list[str]]:
        """The state after an action, and what it violates."""
        step = self.step(state)
        step.take(action)
        return step.state(), step.judge.violations

    def sizes(self) -> dict[str, int]:
        """How many local states there are of each kind,"""
        sizes = {name: len(catalogue) for name, catalogue in self._machines.items()}
        return sizes

    # -- what can happen ----------------------------------------------------------

    @abstractmethod
    def certain(self, state: S) -> list[Action]:
        """The actions that happen by themselves, sooner or later, in no certain order."""

    @abstractmethod
    def trouble(self, state: S) -> list[Action]:
        """The faults that may happen as well, as often as their bounds allow."""

    def timers(self, state: S) -> list[Action]:
        """The timers that a second of silence makes due: they repair what was lost.  Free, since
        they only come where nothing else does; what they send is no news."""
        return []

    # -- rest ---------------------------------------------------------------------

    @abstractmethod
    def left(self, state: S) -> list[str]:
        """The parts that are not at rest, as the guarantees that they would violate for ever."""

    def repairs(self, state: S, count: int) -> list[Action]:
        """The actions on the way to rest, in the round of this number."""
        return self.timers(state)

    def is_unwanted(self, state: S, action: Action) -> bool:
        """Whether it happens by itself, and may as well never happen."""
        return False

    def is_quiet(self, state: S, certain: list[Action]) -> bool:
        """Whether nothing more happens by itself that one could count on."""
        return all(self.is_unwanted(state, action) for action in certain)

    def at_rest(self, state: S) -> bool:
        """Whether nothing is left to do."""
        return not self.left(state)

    def run_to_rest(self, state: S) -> tuple[list[str], list[Action]]:
        """The violations on the way to rest, or the parts not at rest at its end; and the way."""
        way: list[Action] = []
        passed: set[bytes] = set()
        for count in range(self.rounds):
            if self.at_rest(state):
                return [], way
            here = self.canonical(state)
            if here in passed:  # and so on for ever
                break
            passed.add(here)
            for action in self.repairs(state, count):
                state, violations = self.move(state, action)
                way.append(action)
                if violations:
                    return violations, way
            state, violations = self._quieten(state, way)
            if violations:
                return violations, way
        return self.left(state), way

    def _quieten(self, state: S, way: list[Action]) -> tuple[S, list[str]]:
        """Let happen what happens by itself, everybody in turn."""
        for count in range(MOST_MOVES):
            certain = self.certain(state)
            actions = [each for each in certain if not self.is_unwanted(state, each)]
            if not actions:
                return state, []
            action = actions[count % len(actions)]
            state, violations = self.move(state, action)
            way.append(action)
            if violations:
                return state, violations
        return state, ["G9: it goes on for ever"]

    # -- which states are the same --------------------------------------------------

    @abstractmethod
    def canonical(self, state: S) -> bytes:
        """8 bytes that are the same for the same states, and for no others."""
