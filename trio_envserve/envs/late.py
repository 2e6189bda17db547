"""Whether a rollout is late: the limit of its call has passed, and its grace has begun."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import final


@final
class Late:
    """The moment at which a rollout is late, if it has a grace.

    A late rollout is to give what it has: its limits end it after the grace.
    """

    __slots__ = ("_at_s", "_clock")

    def __init__(self, at_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_s = at_s
        self._clock = clock
        """Clock of that moment, which may be read in any thread."""

    def is_set(self) -> bool:
        """Whether the rollout is late.  May be called in any thread."""
        return self._clock() >= self._at_s

    def left_s(self) -> float:
        """Time until it is late, in seconds; 0 once it is, infinite if it never will be.  May be
        called in any thread."""
        return max(0.0, self._at_s - self._clock())

    async def wait(self) -> None:
        """Wait until the rollout is late, on trio or asyncio; for ever if it never will be."""
        # Imported here: the interface of environments needs neither.
        import trio

        if trio.lowlevel.in_trio_task():
            await trio.sleep(self.left_s())
            return
        import asyncio

        while not self.is_set():  # noqa: ASYNC110  # asyncio's timers may end a little early
            await asyncio.sleep(self.left_s())
