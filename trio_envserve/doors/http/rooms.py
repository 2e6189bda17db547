"""How many calls the door has at once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import final

import trio

from .problems import LATER, Problem


@final
class Rooms:
    """Room for calls.  Some are refused where there is none, others wait for it, in order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._waiting = trio.lowlevel.ParkingLot()

    def check(self, calls: int) -> None:
        """Problem if there is no room for so many, or others wait for some."""
        if self._waiting or self._taken + calls > self._most:
            raise Problem("busy", f"the door has {self._most} calls at once", LATER)

    def take(self, calls: int, held: ExitStack) -> None:
        """Room for so many calls while ``held`` is open.  Problem as :meth:`check`."""
        self.check(calls)
        self._taken += calls
        held.callback(self._give_back, calls)

    async def wait(self, held: ExitStack) -> None:
        """Room for one call while ``held`` is open, as soon as there is some."""
        if self._waiting or self._taken >= self._most:
            await self._waiting.park()  # who gives one back leaves it to this task
        else:
            self._taken += 1
        held.callback(self._give_back, 1)

    def _give_back(self, calls: int) -> None:
        self._taken -= calls
        while self._waiting and self._taken < self._most:
            self._taken += 1
            self._waiting.unpark()
