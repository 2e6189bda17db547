"""The shipped machines by number: each local state once, each step taken once.

Theory of operation
-------------------
A global state is mostly made of local states of machines that many other global
states have, too.  So each local state is kept once, as a pickled machine, and
what an input does to it is found out once, by the machine itself, and looked up
after that.  Two machines are the same local state if their forms
(:mod:`.rules`) are equal.

Time stands still: every clock is read as 0.  A timer fires when the explorer
says so, which makes just that one due and ticks; every order of timers and
messages is thereby possible, also those that take a long silence.
"""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any, ClassVar

from ...core.limits import ClientLimits, ServerLimits, WireLimits
from ...retrylab.values import form
from .mail import Mail
from .rules import FORMS

NOW_S = 0.0
LONG_AGO_S = -1e6
"""A moment that is longer ago than any timer waits."""
NOT_YET_S = 1.0

Step = tuple[int, tuple[Any, ...]]
"""The local state after an input, and its effects."""


class Catalogue:
    """The local states of one kind of machine, and the steps between them."""

    shared: ClassVar[tuple[type, ...]] = (ServerLimits, ClientLimits, WireLimits)

    merge = True
    """Whether equal forms are one local state.  A test of the forms says no: then each
    machine has the whole past of its path, what the forms leave out included."""

    def __init__(self, mail: Mail, limits: tuple[Any, ...]) -> None:
        self.mail = mail
        self.form: list[Any] = []
        self.info: list[Any] = []
        self._fresh: dict[Any, int] = {}
        """The first local state of each machine that was made."""
        self._pickled: list[bytes] = []
        self._numbers: dict[Any, int] = {}
        self._steps: dict[tuple[int, Any], Step] = {}
        self._limits = {type(each).__name__: each for each in limits}

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
        self.calm(machine)
        key = self.key(machine)
        number = self._numbers.get(key) if self.merge else None
        if number is None:
            number = self._numbers[key] = len(self.form)
            self.form.append(key)
            self.info.append(self.look(machine))
            file = io.BytesIO()
            _Pickler(file, self.shared).dump(machine)
            self._pickled.append(file.getvalue())
        return number

    def machine(self, number: int) -> Any:
        """A machine in this local state, for the caller to do with what it likes."""
        machine = _Unpickler(io.BytesIO(self._pickled[number]), self._limits).load()
        self.ready(machine)
        return machine

    def ready(self, machine: Any) -> None:
        """Make a machine that was restored fit to run."""

    def calm(self, machine: Any) -> None:
        """Let no timer be due, so that the next to fire is the explorer's choice."""

    def key(self, machine: Any) -> Any:
        """The form that tells its local state from others."""
        return form(machine, FORMS)

    def look(self, machine: Any) -> Any:
        """The facts about a local state that the explorer needs."""
        raise NotImplementedError

    def run(self, machine: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Hand in an input: its kind, and what belongs to it."""
        raise NotImplementedError


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: tuple[type, ...]) -> None:
        super().__init__(file, protocol=5)
        self._shared = shared

    def persistent_id(self, obj: Any) -> str | None:
        kind = type(obj)
        return kind.__name__ if kind in self._shared else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, limits: dict[str, Any]) -> None:
        super().__init__(file)
        self._limits = limits

    def persistent_load(self, pid: str) -> Any:
        return self._limits[pid]
