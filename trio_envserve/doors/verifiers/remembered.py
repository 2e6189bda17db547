"""The memory of runs that are not there: over, or not come yet.  Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, final

from .limits import VerifiersLimits


class Over(NamedTuple):
    """A run that is over."""

    digest: bytes
    why: str
    """The reason that a repeated one is told."""


@final
class Remembered:
    """The latest runs that are over, and the latest cancels that came before their runs."""

    def __init__(self, limits: VerifiersLimits) -> None:
        self._limits = limits
        self._over: OrderedDict[bytes, Over] = OrderedDict()
        self._early: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def over(self, name: bytes) -> Over | None:
        """The run with this id, if it is known to be over."""
        return self._over.get(name)

    def add(self, name: bytes, digest: bytes, why: str) -> None:
        """A run is over."""
        self._over[name] = Over(digest, why)
        if len(self._over) > self._limits.known:
            self._over.popitem(last=False)

    def add_cancel(self, place: str, name: bytes) -> None:
        """A run was cancelled before it came; one that is over will not come."""
        if name in self._over:
            return
        self._early[place, name] = None
        if len(self._early) > self._limits.early_cancels:
            self._early.popitem(last=False)

    def take_cancel(self, place: str, name: bytes) -> bool:
        """Whether this run, which has come, was cancelled before; that is known once."""
        is_cancelled = (place, name) in self._early
        if is_cancelled:
            del self._early[place, name]
        return is_cancelled
