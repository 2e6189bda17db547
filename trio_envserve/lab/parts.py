"""Parts that worlds of all engines have: a disk, and parts of a host's machine.

They know nothing of time, luck or orders: an engine says what happens to them, and when.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ..core.host import Host, HostEffect
from ..core.journal import Record
from ..worker import guard

Group: TypeAlias = Sequence[Record]


class JournalDisk:
    """The journal of one server after the other: groups of records, which become safe in order."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        """Those that are safe."""
        self.written: list[Group] = []
        """Groups since the last sync, the oldest first."""

    def write(self, group: Group) -> None:
        """One more group."""
        self.written.append(group)

    def sync(self, groups: int) -> list[Record]:
        """So many groups are safe from now on, the oldest first: their records."""
        synced = [record for group in self.written[:groups] for record in group]
        del self.written[:groups]
        self.records += synced
        return synced

    def fall(self, groups: int) -> list[Record]:
        """All that is not safe is lost but so many groups, the oldest first: their records."""
        kept = self.sync(groups)
        self.written.clear()
        return kept


class GuardTimer:
    """The kernel's timer of a guard, of the clock, the signal and the kind that
    :mod:`trio_envserve.worker.guard` names.  Clock readings are those of its machine."""

    def __init__(self) -> None:
        self.deadline_s: float | None = None
        """Reading at which it fires; None: no deadline was told, and no worker starts."""
        self.is_due = False
        """Whether it has fired, and the guard is to die."""

    @staticmethod
    def stands_still() -> bool:
        """Whether its clock stands still while the machine sleeps."""
        return guard.TIMER_CLOCK != guard.BOOTTIME

    @staticmethod
    def kills() -> bool:
        """Whether its signal kills the guard, stopped or not; else the guard must run for that."""
        return guard.TIMER_SIGNAL == signal.SIGKILL

    @staticmethod
    def said(deadline_s: float, clock_s: float) -> float:
        """The value that a host says to its guard for a deadline."""
        return deadline_s if guard.TIMER_FLAGS & guard.ABSOLUTE else deadline_s - clock_s

    def told(self, value_s: float, clock_s: float) -> bool:
        """Whether the guard arms the timer with what its host has said."""
        if self.is_due:
            return False
        absolute = guard.TIMER_FLAGS & guard.ABSOLUTE
        self.deadline_s = value_s if absolute else clock_s + value_s
        return True

    def look(self, clock_s: float) -> bool:
        """Fire if the deadline has come; returns whether the timer has fired."""
        if self.deadline_s is not None and clock_s >= self.deadline_s:
            self.is_due = True
        return self.is_due

    def may_start(self) -> bool:
        """Whether the guard starts workers."""
        return guard.may_start(self.deadline_s is not None)


def wanted(host: Host) -> Iterator[HostEffect]:
    """Effects of a host, with those that carrying them out leads to."""
    host.flush()
    while host.out:
        out, host.out = host.out, []
        yield from out
        host.flush()
