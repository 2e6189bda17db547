"""The disk with the journal of keys, which outlives servers.

Theory of operation
-------------------
What a server writes at once is a group: one transaction.  Between two syncs the groups
are written and not safe.  A crash leaves of their rows any that it likes, in any order,
and torn.  Each row has a checksum, and who opens the journal takes over what comes before
the first row that is missing or damaged, of a group all or nothing; it syncs that before
it is given to a router.  So after a crash there is a prefix of what was written, and all
that was safe is in it.
"""

from __future__ import annotations

from random import Random
from typing import TypeAlias

from ...core.journal import Record

Group: TypeAlias = tuple[Record, ...]

LUCK = (0.0, 0.5, 0.9, 1.0)
"""How likely a row is whole after a crash; drawn for each crash."""


class Disk:
    """One journal, of one server after the other."""

    def __init__(self, rng: Random) -> None:
        self.records: list[Record] = []
        """Those that are safe."""
        self.writes = 0
        """Groups that were ever written."""
        self._written: list[Group] = []
        """Since the last sync, the oldest first."""
        self._rng = rng

    @property
    def dirty(self) -> int:
        """How many groups are written and not safe."""
        return len(self._written)

    def write(self, group: Group) -> None:
        """One more group."""
        self.writes += 1
        self._written.append(group)

    def sync(self, groups: int) -> list[Record]:
        """So many groups are safe from now on, the oldest first: their records."""
        synced = [record for group in self._written[:groups] for record in group]
        del self._written[:groups]
        self.records += synced
        return synced

    def crash(self) -> list[Record]:
        """The records written since the last sync that can be taken over."""
        luck = self._rng.choice(LUCK)
        whole = 0
        for group in self._written:
            rows = [self._rng.random() < luck for _ in group]
            if not all(rows):
                break
            whole += 1
        kept = self.sync(whole)
        self._written.clear()
        return kept
