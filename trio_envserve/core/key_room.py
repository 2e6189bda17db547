"""The bounds of generations of keys, and whether there is room for more (G8).

A namespace may take its share of what the others leave of a bound: so several do not
use it up between them.  But one of them may pass its bound, by what was running when that
was reached, and then the others leave less than nothing.  Therefore each namespace also has
a part of its own, which no other can take.  Callers choose namespaces, so there may be any
number: the one that comes next gets a small share of what was not given away as parts.  All
parts together are at most as large as the bound, so at most twice the bound is used, and
what was running.
"""

from __future__ import annotations

from .key_records import Generation, Payload, Usage
from .limits import KeyLimits

_NOTHING = Usage()
"""The usage of a namespace without keys."""

_WHOLE = 1 << 48
"""All parts of a bound: they are whole numbers, so what is given back is what was taken."""


class KeyRoom:
    """The room of all namespaces.  It changes no generation."""

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.all = Usage()
        """The usage of all together."""
        self.of_namespace: dict[bytes, Usage] = {}
        """By those of which something is there."""
        self._parts_left = _WHOLE

    def of(self, namespace: bytes) -> Usage:
        """The usage of a namespace; empty: that of all."""
        return self.of_namespace.get(namespace, _NOTHING) if namespace else self.all

    def share(self, bound: int, others: int) -> float:
        """The part of a bound that a namespace may have, where the others have so much."""
        return self.limits.namespace_share * (bound - others)

    def _most(self, bound: int, mine: Usage, others: int) -> float:
        """The same, or its part where that is more."""
        part = mine.part or self._next_part()  # of one that is not there yet: its part to be
        return max(self.share(bound, others), bound * part // _WHOLE)

    def _next_part(self) -> int:
        return self._parts_left // self.limits.namespaces

    # Where all together have no more than the share of one, each may go on: so whose that
    # is has to be looked up only nearer to a bound.

    def may_open(self, namespace: bytes, own_bytes: int) -> bool:
        """Whether there is room for another generation, with a name and an input of so
        many bytes."""
        limits, taken = self.limits, self.all
        share, taken_bytes = limits.namespace_share, taken.own_bytes + taken.outcome_bytes
        if (
            taken.generations < share * limits.generations
            and taken_bytes + own_bytes <= share * limits.retained_bytes
        ):
            return True
        mine = self.of(namespace)
        others = taken.generations - mine.generations
        if mine.generations >= self._most(limits.generations, mine, others):
            return False
        if not taken_bytes:  # what is larger than the bound may be there, but alone
            return True
        most_bytes = self._most(limits.retained_bytes, mine, taken_bytes - mine.size_bytes)
        return mine.size_bytes + own_bytes <= most_bytes

    def may_retain(self, namespace: bytes) -> bool:
        """Whether another outcome may come: so long more is dispatched."""
        most_bytes, taken_bytes = self.limits.retained_bytes, self.all.outcome_bytes
        if taken_bytes < self.limits.namespace_share * most_bytes:
            return True
        mine = self.of(namespace)
        mine_bytes = mine.outcome_bytes
        return mine_bytes < self._most(most_bytes, mine, taken_bytes - mine_bytes)

    def add(self, generation: Generation) -> None:
        """It takes room from now on, besides that for its outcome (:meth:`bring`)."""
        namespace, own_bytes = generation.name[0], generation.own_bytes
        taken, mine = self.all, self.of_namespace.get(namespace) or self._come(namespace)
        taken.generations += 1
        mine.generations += 1
        taken.own_bytes += own_bytes
        mine.own_bytes += own_bytes

    def drop(self, generation: Generation) -> None:
        """It gives back its room, and holds its outcome no more."""
        namespace, own_bytes, outcome = generation.name[0], generation.own_bytes, generation.outcome
        taken, mine = self.all, self.of_namespace[namespace]
        taken.generations -= 1
        mine.generations -= 1
        taken.own_bytes -= own_bytes
        mine.own_bytes -= own_bytes
        if outcome is not None:
            self.let_go(outcome.shared)
        elif not mine.generations and not mine.outcome_bytes:
            self._go(namespace)

    def bring(self, namespace: bytes, size_bytes: int, after: int = 0) -> Payload:
        """A generation holds what it has brought."""
        mine = self.of_namespace.get(namespace) or self._come(namespace)
        self.all.outcome_bytes += size_bytes
        mine.outcome_bytes += size_bytes
        return Payload(namespace, size_bytes, 1, after)

    def hold(self, payload: Payload) -> None:
        """One more holds it."""
        if not payload.holders:
            self._count_outcome(payload.namespace, payload.size_bytes)
        payload.holders += 1

    def let_go(self, payload: Payload) -> None:
        """One holds it no more."""
        payload.holders -= 1
        if not payload.holders:
            self._count_outcome(payload.namespace, -payload.size_bytes)

    def _count_outcome(self, namespace: bytes, change_bytes: int) -> None:
        # It may have been forgotten, and is to be answered all the same.
        mine = self.of_namespace.get(namespace) or self._come(namespace)
        self.all.outcome_bytes += change_bytes
        mine.outcome_bytes += change_bytes
        if not mine.generations and not mine.outcome_bytes:
            self._go(namespace)

    def _come(self, namespace: bytes) -> Usage:
        """From now on something of this namespace is there."""
        mine = self.of_namespace[namespace] = Usage(part=self._next_part())
        self._parts_left -= mine.part
        return mine

    def _go(self, namespace: bytes) -> None:
        """Nothing of it is there any more."""
        self._parts_left += self.of_namespace.pop(namespace).part
