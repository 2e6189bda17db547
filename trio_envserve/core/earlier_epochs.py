"""The routers before this one, as far as hosts of theirs may still have workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .terms import Epoch, Membership


class EpochWait(NamedTuple):
    """The record that a router writes before it welcomes its first host, and each other one."""

    epoch: Epoch
    wait_s: float
    """By its own limits: those of a later router may be others."""
    memberships: frozenset[Membership] | None = None
    """Memberships that may have workers; None: unknown."""


class EarlierEpochs:
    """The epochs before this one whose hosts may still have workers.

    ``now_s`` is read when this router holds the lock: so the earlier ones answer no more.
    They are dead once each membership of theirs was continued here, or is known to have ended;
    or after the longest of the times that they have written down.  Not each after its own:
    a host that one has taken over lives by what the one before has said."""

    def __init__(self, waits: Iterable[EpochWait], now_s: float) -> None:
        self.waits = tuple(waits)
        self.longest_s = max((each.wait_s for each in self.waits), default=0.0)
        self.until_s = now_s + self.longest_s

    def __contains__(self, epoch: Epoch) -> bool:
        """Whether hosts of this epoch may still have workers."""
        return any(each.epoch == epoch for each in self.waits)

    def knows(self, membership: Membership) -> bool:
        """Whether one of these epochs has welcomed it, as far as it is not accounted for."""
        return any(membership in (each.memberships or ()) for each in self.waits)

    def accounted_for(self, memberships: Iterable[Membership]) -> None:
        """Nothing of these memberships lives that this router does not know."""
        gone = frozenset(memberships)
        self.waits = tuple(
            each if each.memberships is None else each._replace(memberships=each.memberships - gone)
            for each in self.waits
        )

    def record(self, own: EpochWait, now_s: float) -> tuple[EpochWait, ...]:
        """All that a later router must know: it must wait for those before, too, and for as
        long as hosts live that were taken over from them."""
        if not self.waits and now_s < self.until_s:
            own = own._replace(wait_s=max(own.wait_s, self.longest_s))
        return (*self.waits, own)

    def take_dead(self, now_s: float) -> list[Epoch]:
        """Take the epochs that are dead by now.  The record may then be written anew without
        them."""
        if not self.have_ended(now_s):
            return []
        dead, self.waits = [each.epoch for each in self.waits], ()
        return dead

    def have_ended(self, now_s: float) -> bool:
        """Whether nothing lives of any of them."""
        are_over = all(each.memberships == frozenset() for each in self.waits)
        return are_over or now_s >= self.until_s
