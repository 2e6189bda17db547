"""Machines by number: each local state once, each step taken once.

Theory of operation
-------------------
A global state is mostly made of local states of machines that many other global states have,
too.  So each local state is kept once, and what an input does to it is found out once, by the
machine itself, and looked up after that.  Two machines are the same local state if their forms
are equal.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from typing import Any

from ...retrylab.values import Twins

Step = tuple[int, tuple[Any, ...]]
"""The local state after an input, and its effects."""


class Catalogue(ABC):
    """The local states of one kind of machine, and the steps between them."""

    merge = True
    """Whether equal forms are one local state.  A test of the forms says no: then each
    machine has the whole past of its path, what the forms leave out included."""

    def __init__(self) -> None:
        self.form: list[Any] = []
        self.info: list[Any] = []
        self._twins: list[Twins] = []
        self._numbers: dict[Any, int] = {}
        self._steps: dict[tuple[int, Any], Step] = {}

    def __len__(self) -> int:
        return len(self.form)

    def step(self, number: int, given: tuple[Any, ...]) -> Step:
        """The step of an input to a machine in this local state.

        An effect ``("crash", text)`` says what the machine raised."""
        key = (number, given)
        known = self._steps.get(key)
        if known is None:
            machine = self.machine(number)
            try:
                effects = self.run(machine, given)
                known = self.add(machine), effects
            except Exception:  # whatever a core raises is what is looked for
                known = number, (("crash", traceback.format_exc(limit=-3)),)
            self._steps[key] = known
        return known

    def add(self, machine: Any) -> int:
        """The number of a machine's local state."""
        key = self.key(machine)
        number = self._numbers.get(key) if self.merge else None
        if number is None:
            number = self._numbers[key] = len(self.form)
            self.form.append(key)
            self.info.append(self.look(machine))
            self._twins.append(Twins(machine, "a machine"))
        return number

    def machine(self, number: int) -> Any:
        """A machine in this local state, for the caller to do with what it likes."""
        return self._twins[number].make()

    @abstractmethod
    def key(self, machine: Any) -> Any:
        """The form that tells its local state from others."""

    @abstractmethod
    def look(self, machine: Any) -> Any:
        """The facts about a local state that the explorer needs."""

    @abstractmethod
    def run(self, machine: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Hand in an input: its kind, and what belongs to it."""
