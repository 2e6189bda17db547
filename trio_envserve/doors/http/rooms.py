"""The bound on calls of the door, shared by namespaces."""

from __future__ import annotations

from contextlib import ExitStack
from typing import final

import trio

from ..shares import Shared
from .problems import LATER, Problem


@final
class Rooms:
    """Room for calls.  Some are refused where there is none, others wait for it, in order.

    A call under a key goes on without a caller, and may have to wait for the room that its
    namespace has with the server.  So a namespace has its share of what the others leave:
    else it would hold all room, and nobody else could call (G10).
    """

    def __init__(self, most: int, share: float) -> None:
        self._most = most
        self._taken = Shared(most, share)
        self._waiting: dict[str, trio.lowlevel.ParkingLot] = {}
        """By namespace."""

    @property
    def taken(self) -> int:
        """How many calls there are."""
        return self._taken.total

    def check(self, calls: int, namespace: str = "") -> None:
        """Problem if there is no room for so many.  ``namespace``: empty without a key."""
        if self._taken.total + calls > self._most:
            raise Problem("busy", f"the door has {self._most} calls at once", LATER)
        if not self._has_room(calls, namespace):
            text = f"the calls of namespace {namespace} take their share of {self._most} at once"
            raise Problem("busy", text, LATER)

    def take(self, calls: int, held: ExitStack, namespace: str = "") -> None:
        """Room for so many calls while ``held`` is open.  Problem as :meth:`check`."""
        self.check(calls, namespace)
        self._taken.take(namespace, calls)
        held.callback(self._give_back, calls, namespace)

    async def wait(self, held: ExitStack, namespace: str) -> None:
        """Room for one call while ``held`` is open, as soon as there is some."""
        if self._has_room(1, namespace):
            self._taken.take(namespace, 1)
        else:  # who gives one back leaves it to this task
            await self._waiting.setdefault(namespace, trio.lowlevel.ParkingLot()).park()
        held.callback(self._give_back, 1, namespace)

    def _has_room(self, calls: int, namespace: str) -> bool:
        taken = self._taken
        if taken.total + calls > self._most:
            return False
        one_of_its_own = calls == 1 and not taken.by(namespace)
        return not namespace or one_of_its_own or taken.has_room(namespace, calls)

    def _give_back(self, calls: int, namespace: str) -> None:
        """Nobody takes it before those that wait."""
        self._taken.give(namespace, calls)
        for name, waiting in list(self._waiting.items()):
            while waiting and self._has_room(1, name):
                self._taken.take(name, 1)
                waiting.unpark()
            if not waiting:
                del self._waiting[name]
