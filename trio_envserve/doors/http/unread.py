"""The bound on answers that callers do not take, for all of them together.

Theory of operation
-------------------
An answer is written as its caller takes it, and until then all of it is held.  So all
answers under way are counted.  Past the bound the caller that has taken nothing for longest
is cut off: those that read go on, however many others do not.  One answer alone is written
whatever its size.
"""

from __future__ import annotations

import logging
from typing import Protocol, final

_log = logging.getLogger("trio_envserve.http")


class Caller(Protocol):
    """Somebody who is written to."""

    def cut_off(self) -> None:
        """Write nothing more to it."""


@final
class Unread:
    """The answers that are under way."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._of: dict[Caller, int] = {}
        """Bytes of each caller; the one that took something last comes last."""
        self._cut_off = 0
        self._to_complain = 1
        self.bytes = 0
        """Of all."""

    def add(self, caller: Caller, size: int) -> None:
        """So many bytes are to be written.  Cuts off whom the bound asks for, if need be this
        caller."""
        self._of[caller] = self._of.get(caller, 0) + size
        self.bytes += size
        while self.bytes > self._most_bytes and len(self._of) > 1:
            slowest = next(iter(self._of))
            self.gone(slowest)
            self._complain()
            slowest.cut_off()

    def took(self, caller: Caller, size: int) -> None:
        """A caller has taken so many of them."""
        left = self._of.pop(caller, 0)
        self.bytes -= min(left, size)
        if left > size:
            self._of[caller] = left - size

    def gone(self, caller: Caller) -> None:
        """Nothing more is written to a caller."""
        self.bytes -= self._of.pop(caller, 0)

    def _complain(self) -> None:
        self._cut_off += 1
        if self._cut_off == self._to_complain:
            _log.warning(
                "more than %d bytes of answers wait for callers that do not read: %d cut off",
                self._most_bytes, self._cut_off,
            )  # fmt: skip
            self._to_complain *= 2  # a flood is no flood of lines
