"""The connections of the door, by route and by place.  Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Final, final

from .records import Peer

GONE_S: Final = 5.0
"""How long after the loss of a connection something that it had said may still come in."""


@final
class Peers:
    """Those that are open, and those that were lost a moment ago."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._by_route: dict[bytes, Peer] = {}
        self._at: dict[str, dict[bytes, Peer]] = {}
        """The open ones by place."""

    def __getitem__(self, route: bytes) -> Peer:
        return self._by_route[route]

    def find(self, route: bytes) -> Peer | None:
        """The connection with this route, if something of it may still come."""
        return self._by_route.get(route)

    def at(self, place: str) -> Collection[Peer]:
        """The open ones of a place, the oldest first."""
        return self._at.get(place, {}).values()

    def opened(self, route: bytes, place: str) -> None:
        """A connection was opened."""
        peer = self._by_route[route] = Peer(route, place, next(self._numbers))
        self._at.setdefault(place, {})[route] = peer

    def closed(self, route: bytes, now_s: float) -> Peer:
        """It was lost."""
        peer = self._by_route[route]
        peer.closed_s = now_s
        del self._at[peer.place][route]
        if not self._at[peer.place]:
            del self._at[peer.place]
        return peer

    def tick(self, now_s: float) -> None:
        """Of those that were lost long enough ago nothing comes any more."""
        gone = [
            each.route for each in self._by_route.values()
            if each.closed_s is not None and each.closed_s + GONE_S < now_s
        ]  # fmt: skip
        for route in gone:
            del self._by_route[route]
