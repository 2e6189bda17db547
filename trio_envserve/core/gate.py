"""The gate: the one queue of what waits until the journal is safe, or for another turn; and the
budget.

What is decided about a work is told at once, but for two reasons.  It may wait for the
journal (:mod:`.journal`), until all that was recorded by then is safe; an outcome that was
safe before waits for nothing that was recorded since.  And many may wait for one work, and
many works may end at once: so no turn does more than its :class:`Budget` for them, and the
rest is due in the next (G10).

Clients and workers wait in the same queue: a worker for a dispatch, until the record of its start
is safe, and for what it is told about resources and saves.

An answer at the gate is decided: no deadline and no cancel changes it, and the answer to a
cancel comes after it.  Whoever asks again meanwhile is not answered twice (G8).

A disk may be stuck for minutes, and what waits for it is bounded as works are (G8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar, final

from .journal import Journal
from .limits import KeyLimits

BUDGET = 1024
"""Requests that one input may end, answer or dispatch, where many do together: some 40 ms."""

RECORDS_OF_EACH = 4
"""The records of a work in a journal: opened, started, completed, closed."""

_T = TypeVar("_T")


@final
class Budget:
    """The number of requests that this input may still end, answer or dispatch."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = BUDGET

    def renew(self) -> None:
        """Another input begins."""
        self.left = BUDGET

    def spend(self) -> bool:
        """Take one, if one is left."""
        if self.left:
            self.left -= 1
            return True
        return False


@final
class Gate(Generic[_T]):
    """A queue of answers, each with the position of the journal that must be safe first."""

    def __init__(self, journal: Journal, keys: KeyLimits, budget: Budget) -> None:
        self._journal = journal
        self._keys = keys
        self.budget = budget
        self._late: deque[_T] = deque()
        """Safe answers for which no budget was left."""
        self._unsafe: deque[tuple[int, Hashable, _T, bool]] = deque()
        """Answers that wait for the journal: position, who waits, answer, whether it counts."""
        self._decided: dict[Hashable, _T] = {}
        """The last of these for each who waits."""
        self._counted = 0
        """Number of answers that wait for the journal and count."""

    @property
    def is_due(self) -> bool:
        """Whether an answer may be told now: it is safe, or known that it never will be."""
        if self._late or not self._unsafe:
            return bool(self._late)
        return self._journal.lost or self._journal.is_safe(self._unsafe[0][0])

    @property
    def waiting(self) -> int:
        """Number of answers that wait, but for those that do not count."""
        return self._counted + len(self._late)

    def is_decided(self, waiter: Hashable) -> bool:
        """Whether an answer to this one waits for the journal."""
        return waiter in self._decided

    def is_safe(self) -> bool:
        """Whether all that was recorded is safe."""
        return self._journal.appended <= self._journal.safe

    def passes(self) -> bool:
        """Whether a safe answer may be told at once; else it goes to :meth:`delay`."""
        return not self._late and self.budget.spend()

    def delay(self, answer: _T) -> None:
        """A safe answer waits for another turn."""
        self._late.append(answer)

    def hold(self, waiter: Hashable, answer: _T, *, counts: bool = True) -> None:
        """An answer waits until all that was recorded by now is safe.  One that does not count is
        for a worker: a server that closes does not wait for it."""
        self._unsafe.append((self._journal.appended, waiter, answer, counts))
        self._decided[waiter] = answer
        self._counted += counts

    def forget(self, waiter: Hashable) -> None:
        """This one waits no more, for ever.  Its answers keep their places, since many may wait,
        and many workers of a host may end in one turn (G10)."""
        self._decided.pop(waiter, None)

    def take_due(self) -> Iterator[tuple[_T, bool]]:
        """The answers that may be told now, and whether each is safe; as many as the budget
        has."""
        while self.is_due and self.budget.spend():
            if self._late:
                yield self._late.popleft(), True
                continue
            after, waiter, answer, counts = self._unsafe.popleft()
            self._counted -= counts
            last = self._decided.get(waiter)
            if last is answer:
                del self._decided[waiter]
            if last is not None:  # else it was forgotten
                yield answer, self._journal.is_safe(after)

    def may_hold(self, part: float = 1.0) -> bool:
        """Whether the disk may owe more: this part of what all works that there may be would
        leave in it, and of the bytes that these may hold.  One that is lost owes nothing."""
        journal = self._journal
        most = part * RECORDS_OF_EACH * self._keys.generations
        few = journal.appended - journal.safe < most and len(self._unsafe) < most
        return (few and journal.waiting_bytes < part * self._keys.retained_bytes) or journal.lost
