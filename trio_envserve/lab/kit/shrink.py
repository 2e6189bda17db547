"""Makes a failing plan small: as long as it still fails.

Theory of operation
-------------------
A *plan* is a frozen dataclass: everything about a run that is drawn before it starts.
A subclass of :class:`BaseShrinker` says what its *calls* are (whatever callers ask
for), what else may be taken away from it, and whether it still fails.

Each pass takes something away, or makes it plain, and keeps that if the plan still fails.
The passes are repeated until none of them changes anything.  The *luck* (the seed of all
that is not in the plan) stays the same, except where calls are left out: a failure that
needs the luck of one message is often there with another luck.

Nothing here depends on time: the same case always shrinks to the same plan.  The
work is bounded by the number of runs.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_RUNS = 700
"""How many smaller plans are tried by default."""

MOST_CALLS = 12
"""With more calls than this, none is left out with another luck."""

P = TypeVar("P", bound="DataclassInstance")
C = TypeVar("C")
T = TypeVar("T")


class BaseShrinker(ABC, Generic[P, C]):
    """The smallest failing plan so far, and the luck that it fails with."""

    lucks = 6
    """How many are tried where that may help."""

    def __init__(self, plan: P, luck: int, most_runs: int) -> None:
        self.plan = plan
        self.luck = luck
        self.tried = 0
        self._most_runs = most_runs

    @abstractmethod
    def fails(self, plan: P, luck: int) -> bool:
        """Run it: is the failure there?"""

    @abstractmethod
    def calls(self) -> list[C]:
        """All calls of the plan."""

    @abstractmethod
    def with_calls(self, kept: Sequence[C]) -> P:
        """The plan with these calls only."""

    @abstractmethod
    def passes(self) -> Iterable[Callable[[], object]]:
        """The parts that may be taken away, the largest first; each by :meth:`take`."""

    def work(self, alone: Sequence[C]) -> None:
        """All passes, until none of them helps; first with these calls alone."""
        if alone:
            self.take_with_some_luck(self.with_calls(alone))
        while self.tried < self._most_runs:
            before = self.plan
            for one in self.passes():
                one()
            if self.plan == before and not self._one_call_less():
                return

    def take(self, plan: P, luck: int | None = None) -> bool:
        """Whether this plan fails, too: then it is the one to go on with."""
        luck = self.luck if luck is None else luck
        if plan == self.plan or self.tried >= self._most_runs:
            return False
        self.tried += 1
        if not self.fails(plan, luck):
            return False
        self.plan, self.luck = plan, luck
        return True

    def replace(self, **changes: Any) -> bool:
        """Take the plan with these fields changed."""
        return self.take(dataclasses.replace(self.plan, **changes))

    def drop_calls(self) -> None:
        """Leave out calls, half of them at first."""
        ddmin(self.calls(), lambda kept: self.take(self.with_calls(kept)))

    def _one_call_less(self) -> bool:
        """Leave out a call with another luck."""
        calls = self.calls()
        if len(calls) > MOST_CALLS:
            return False
        return any(
            self.take_with_some_luck(self.with_calls(calls[:index] + calls[index + 1 :]))
            for index in range(len(calls))
        )

    def take_with_some_luck(self, plan: P) -> bool:
        """Whether this plan fails, too, with some luck: then both are to go on with."""
        return any(self.take(plan, luck) for luck in range(self.luck, self.luck + self.lucks))


def ddmin(items: list[T], take: Callable[[Sequence[T]], bool]) -> list[T]:
    """A smaller list that ``take`` still takes: by leaving out halves, quarters, and
    in the end single items.  ``take`` is asked for the empty list first."""
    if items and take([]):
        return []
    parts = 2
    while len(items) >= 2:
        size = max(1, len(items) // parts)
        for start in range(0, len(items), size):
            fewer = items[:start] + items[start + size :]
            if fewer and take(fewer):
                items = fewer
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                return items
            parts = min(len(items), parts * 2)
    return items
