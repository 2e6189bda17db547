"""A bound that several share, so that none of them takes it all."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

import trio


@final
class Bound:
    """One bound, and what is taken of it.

    Whoever has a name (a place, a namespace) may take its share of what the others leave, and
    one in any case while there is room.  Some are refused where there is no room, and others
    wait for it: those of one name in their order, but who wants little does not wait behind
    who wants more than there is.
    """

    def __init__(self, most: int, share: float = 1.0) -> None:
        self.most = most
        self._share = share
        self.taken = 0
        """The part that is taken by all together."""
        self._by: dict[str, int] = {}
        """The part that each name has taken; a name that has nothing has no entry."""
        self._waiting: dict[str, OrderedDict[trio.Event, int]] = {}
        """The tasks that wait, by name, and how much each is to have."""

    def allows(self, size: int, name: str = "") -> bool:
        """Whether so much more may be taken.  ``name``: empty for who shares with nobody."""
        if self.taken + size > self.most:
            return False
        mine = self._by.get(name, 0)
        if not name or (size == 1 and not mine):
            return True
        return mine + size <= self._share * (self.most - (self.taken - mine))

    def take(self, size: int, name: str = "") -> None:
        """Take so much; nobody is asked here."""
        self.taken += size
        self._by[name] = self._by.get(name, 0) + size

    async def wait(self, size: int, name: str = "") -> None:
        """Take so much as soon as there is room."""
        if self.allows(size, name):
            self.take(size, name)
            return
        turn = trio.Event()
        self._waiting.setdefault(name, OrderedDict())[turn] = size
        try:
            await turn.wait()  # who gives something back leaves it to this task
        except BaseException:
            del self._waiting[name][turn]
            raise

    def give(self, size: int, name: str = "") -> None:
        """Give so much back.  Nobody takes it before those that wait."""
        self.taken -= size
        left = self._by.get(name, 0) - size
        if left:
            self._by[name] = left
        else:
            self._by.pop(name, None)  # nothing may have been taken, several times
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        for name, line in list(self._waiting.items()):
            for turn, size in list(line.items()):
                if self.allows(size, name):
                    del line[turn]
                    self.take(size, name)
                    turn.set()
                elif size <= 1:
                    break  # nobody wants less
            if not line:
                del self._waiting[name]
