"""What generations of keys take of their bounds, and whether there is room for more (G8).

A namespace may take its share of what the others leave of a bound: so several do not
use it up between them.
"""

from __future__ import annotations

from .key_records import Generation, KeyName, Payload, Usage
from .limits import KeyLimits

_NOTHING = Usage()
"""What a namespace takes that has no keys."""


class KeyRoom:
    """The room of all namespaces.  It changes no generation."""

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.all = Usage()
        """What is taken by all together."""
        self.of_namespace: dict[bytes, Usage] = {}
        """By those of which something is there."""

    def of(self, namespace: bytes) -> Usage:
        """What the generations of a namespace take; empty: those of all."""
        return self.of_namespace.get(namespace, _NOTHING) if namespace else self.all

    def share(self, bound: int, others: int) -> float:
        """What a namespace may have of a bound of which the others have so much."""
        return self.limits.namespace_share * (bound - others)

    def may_open(self, name: KeyName, held_bytes: int) -> bool:
        """Whether there is room for another generation."""
        limits, taken = self.limits, self.all
        mine = self.of_namespace.get(name.namespace, _NOTHING)
        others = taken.generations - mine.generations
        if mine.generations >= self.share(limits.generations, others):
            return False
        if not taken.size_bytes:  # what is larger than the bound may be there, but alone
            return True
        size_bytes = mine.size_bytes + len(name.namespace) + len(name.key) + held_bytes
        return size_bytes <= self.share(limits.retained_bytes, taken.size_bytes - mine.size_bytes)

    def may_retain(self, namespace: bytes) -> bool:
        """Whether another outcome may come."""
        mine = self.of_namespace.get(namespace, _NOTHING)
        others_bytes = self.all.outcome_bytes - mine.outcome_bytes
        return mine.outcome_bytes < self.share(self.limits.retained_bytes, others_bytes)

    def charge(self, generation: Generation, sign: int) -> None:
        """Count what it takes besides its outcome, or give that back."""
        self._count(generation.name.namespace, sign, sign * generation.own_bytes, 0)

    def retain(self, generation: Generation, size_bytes: int) -> Payload:
        """It holds an outcome in place of its input."""
        held_bytes = len(generation.ask.body) if generation.ask is not None else 0
        payload = Payload(generation.name.namespace, size_bytes, holders=1)
        self._count(payload.namespace, 0, size_bytes - held_bytes, size_bytes)
        return payload

    def hold(self, payload: Payload) -> None:
        """One more holds what a generation has brought."""
        if not payload.holders:
            self._count(payload.namespace, 0, payload.size_bytes, payload.size_bytes)
        payload.holders += 1

    def let_go(self, payload: Payload) -> None:
        """One holds it no more."""
        payload.holders -= 1
        if not payload.holders:
            self._count(payload.namespace, 0, -payload.size_bytes, -payload.size_bytes)

    def _count(
        self, namespace: bytes, generations: int, size_bytes: int, outcome_bytes: int
    ) -> None:
        taken, mine = self.all, self.of_namespace.get(namespace)
        if mine is None:
            mine = self.of_namespace[namespace] = Usage()
        taken.generations += generations
        mine.generations += generations
        taken.size_bytes += size_bytes
        mine.size_bytes += size_bytes
        taken.outcome_bytes += outcome_bytes
        mine.outcome_bytes += outcome_bytes
        if not mine.size_bytes:  # every generation has a name
            del self.of_namespace[namespace]
