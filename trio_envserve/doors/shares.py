"""A bound that several places share, so that none of them takes it all."""

from __future__ import annotations

from typing import final


@final
class Shared:
    """The use of one bound by each place."""

    def __init__(self, bound: int, share: float) -> None:
        self._bound = bound
        self._share = share
        self.total = 0
        self._taken: dict[str, int] = {}
        """By place; a place without anything has no entry."""

    def by(self, place: str) -> int:
        """The share that a place has taken."""
        return self._taken.get(place, 0)

    def has_room(self, place: str, more: int) -> bool:
        """Whether a place may take more: its share of what the others leave."""
        mine = self._taken.get(place, 0)
        return mine + more <= self._share * (self._bound - (self.total - mine))

    def take(self, place: str, size: int) -> None:
        """A place takes this; nobody is asked here."""
        self.total += size
        self._taken[place] = self._taken.get(place, 0) + size

    def give(self, place: str, size: int) -> None:
        """A place gives back what it took."""
        self.total -= size
        left = self._taken.get(place, 0) - size
        if left:
            self._taken[place] = left
        else:
            self._taken.pop(place, None)  # it may have taken nothing, several times
