"""The host lease: proof, across machines, that the workers of a host are dead.

Theory of operation
-------------------
A router cannot reap a process of another machine.  So each host promises that, without answers of
the router, its workers are dead by a time that the router can compute.

A host sends numbered beats.  Before it sends beat ``n`` it reads the time ``b_n`` on a clock that
runs while the machine sleeps (CLOCK_BOOTTIME).  Only the router's answer to beat ``n`` renews
the lease, to ``b_n + fence_s``, and nothing makes it shorter.  At that absolute time a guard, which
no code of an environment can hold up, kills the workers.  No worker starts before the first answer.

The router waits ``fence_s + margin_s`` from its receipt of the last beat that it answered.  The
host read its clock before the router received the beat, so the host's period began earlier; the
margin covers the drift of the clocks and the latency of the guard (:func:`least_margin_s`).  A beat
whose answer does not arrive does not renew the host's lease: so the computation also holds where
only one direction of the network is cut.

A *membership* is the time that a host belongs to one router.  It has random bits of its own, begins
with a hello, and is never continued by another router as it is.  Hellos and beats are numbered
within one membership, so a late message of an older membership is never taken for a new one.

A router with a journal knows which executions the router before it has started.  It tells a host of
that router to go on, and the host begins a membership that *continues* the old one: its workers
live on, and its deadline stands, since only answers move it.  The old router's answers may have
moved that deadline by as much as that router has written down.  So the new router does not count a
continuing host as dead before that time.

A router may have no lease.  Then its hosts keep their workers however long it is silent, and it
counts a host as dead only by the host's own statement: that it leaves, or, in the hello of its next
membership, that the workers of the last one have ended.  The formulas treat that as a lease of many
years.

Hosts of routers before this one may still have workers (:class:`EarlierEpochs`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from .errors import ConfigError
from .terms import Epoch, Membership

FENCE_S = 20.0
NO_LEASE_S = 5e8
"""Length in seconds that stands for no lease: about sixteen years."""
FRESH_S = 10.0
"""Age of a host's last confirmed answer, in seconds, from which on it gets no work."""
DRIFT = 0.1
"""Largest relative error of a clock's rate."""
GUARD_S = 5.0
"""Longest time that the guard takes after the deadline to kill all workers, in seconds."""

UNCONFIRMED_MOST = 64
"""Number of a host's latest answered beats of which the router keeps the time of receipt."""

FIRST_BEAT_S = 60.0
"""Time in seconds after which a membership without any beat is over, however long leases are.
Without it, and without a lease, a late hello of an old membership would keep its host out for
ever."""

OVER_MOST = 1 << 14
"""Number of the latest ended memberships that are remembered."""


def least_margin_s(fence_s: float, drift: float = DRIFT, guard_s: float = GUARD_S) -> float:
    """The least time that the router must wait beyond ``fence_s``: the host's clock may be slow,
    the guard late, and the router's clock fast."""
    return fence_s * 2 * drift / (1 - drift) + guard_s * (1 + drift)


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The terms of a router's leases.  ConfigError if they prove nothing."""

    fence_s: float = FENCE_S
    """Length of a lease: a host without an answer for so long has no workers left."""
    margin_s: float | None = None
    """Time that the router waits beyond it; None: the least margin."""
    drift: float = DRIFT
    guard_s: float = GUARD_S

    def __post_init__(self) -> None:
        if not 0 <= self.drift < 1:
            raise ConfigError(f"drift ({self.drift}) must be at least 0 and less than 1")
        if not 0 < self.fence_s <= NO_LEASE_S:
            raise ConfigError(f"fence_s ({self.fence_s}) must be a positive number of seconds")
        if not 0 <= self.guard_s < float("inf"):
            raise ConfigError(f"guard_s ({self.guard_s}) must be a number of seconds")
        least_s = least_margin_s(self.fence_s, self.drift, self.guard_s)
        if self.margin_s is not None and not least_s <= self.margin_s < float("inf"):
            raise ConfigError(
                f"margin_s ({self.margin_s}) must be at least {least_s:.2f} with fence_s="
                f"{self.fence_s}: a host whose clock is slow would still have workers"
            )

    @property
    def proves(self) -> bool:
        """Whether there is a lease, by which the death of a silent host is known in the end."""
        return self.fence_s < NO_LEASE_S

    @property
    def grace_s(self) -> float:
        """Time for hosts to join a new router before it counts them as gone, in seconds: the
        workers of their last membership end first."""
        return self.wait_s if self.proves else LeaseTerms().wait_s

    @property
    def wait_s(self) -> float:
        """Time after the last answered beat when the router counts a host as dead, in seconds."""
        if self.margin_s is not None:
            return self.fence_s + self.margin_s
        return self.fence_s + least_margin_s(self.fence_s, self.drift, self.guard_s)


# -- the host's side ------------------------------------------------------------------


class LeaseBeat(NamedTuple):
    """A beat of a host."""

    number: int
    answered: int
    """Number of the newest beat whose answer has arrived."""
    epoch: Epoch
    """Router of the membership; no other router may answer.  Each beat names it, since a late hello
    may have made the membership known to the next router."""


class HostLease:
    """The lease of one host, through all its memberships.  The times ``boot_s`` are of a clock that
    runs while the machine sleeps."""

    def __init__(self, membership: Membership) -> None:
        self.begin(membership)

    def begin(self, membership: Membership) -> None:
        """Begin a membership; all workers of the last one must have been reaped."""
        self.membership = membership
        self.epoch: Epoch = b""
        """Router of this membership; empty until a router has welcomed the host."""
        self.fence_s = 0.0
        self.hellos = 0
        """Number of the last hello."""
        self.beats = 0
        """Number of the last beat."""
        self.answered = 0
        """Number of the newest beat whose answer has arrived."""
        self.deadline_s: float | None = None
        """Moment by which every worker must be dead unless another answer arrives, on the clock of
        the beats.  None before the first answer: no worker may start."""
        self.over = False
        """Whether the membership is over: all workers must end before the next one begins."""
        self._read: dict[int, float] = {}
        """Time ``b_n`` of each beat whose answer may still arrive."""

    def go_on(self, membership: Membership) -> None:
        """Begin a membership that continues the last one: its workers live on, and their deadline
        stands."""
        deadline_s = self.deadline_s
        self.begin(membership)
        self.deadline_s = deadline_s

    def hello(self) -> int:
        """The number for the next hello; each connection has one hello."""
        self.hellos += 1
        return self.hellos

    def welcomed(self, hello: int, epoch: Epoch, fence_s: float) -> bool:
        """Take in a router's welcome; returns whether the membership is with that router.

        If it was with another router it is over, as it is when its router says so
        (:meth:`refused`).  Work that began under one router ends before another router is told of
        it, since only the first router knows when it will be dead."""
        if self.over or hello != self.hellos:
            return False
        if self.epoch not in (b"", epoch):
            self.over = True
            return False
        self.epoch, self.fence_s = epoch, fence_s
        return True

    def refused(self, hello: int) -> None:
        """Take in a router's word that this membership is over."""
        self.over |= hello == self.hellos

    def beat(self, boot_s: float) -> LeaseBeat:
        """The next beat; ``boot_s`` was read before.  Only for a membership that was welcomed and
        is not over."""
        assert self.epoch
        assert not self.over
        self.beats += 1
        self._read[self.beats] = boot_s
        for number in [n for n, read_s in self._read.items() if read_s + self.fence_s <= boot_s]:
            del self._read[number]  # an answer would be too late
        return LeaseBeat(self.beats, self.answered, self.epoch)

    def answer(self, membership: Membership, number: int) -> float | None:
        """Take in the router's answer to a beat; returns the new deadline for the guard, or None if
        the old one stands."""
        read_s = self._read.get(number)
        if membership != self.membership or read_s is None or number <= self.answered:
            return None
        self.answered = number
        self._read = {n: s for n, s in self._read.items() if n > number}
        self.deadline_s = max(self.deadline_s or 0.0, read_s + self.fence_s)
        return self.deadline_s

    def holds(self, boot_s: float) -> bool:
        """Whether the lease holds: workers may live and start."""
        return not self.over and self.deadline_s is not None and boot_s < self.deadline_s


# -- the router's side ----------------------------------------------------------------


class Reception(enum.Enum):
    """A router's answer to a host's hello."""

    WELCOME = "the host is welcome"
    OLD = "a newer hello came before; there is no answer"
    IN_USE = "another membership has this host's name, and may have workers"
    OVER = "this membership is over"
    MOVED = "this membership was with the router before; the next one may continue it"


@dataclasses.dataclass(slots=True, eq=False)
class Holding:
    """The router's record of one membership."""

    host: str
    membership: Membership
    begun_s: float
    hello: int = 0
    """Number of its newest hello."""
    received_s: float | None = None
    """Moment of receipt of the last answered beat; None: no worker can have been started."""
    received: dict[int, float] = dataclasses.field(default_factory=dict)
    """Moment of receipt of each answered beat whose answer may not have arrived, by number."""
    confirmed_s: float | None = None
    """Moment of receipt of the newest beat whose answer is known to have arrived."""
    not_before_s: float = 0.0
    """Moment until which it may live by the answers of an earlier router."""
    continues: bool = False
    """Whether workers of an earlier membership may run in it."""

    @property
    def seen_at(self) -> float:
        """Moment from which the router counts its wait."""
        return self.begun_s if self.received_s is None else self.received_s


class Leases:
    """The leases of all hosts of one router.  Times are of a clock that is at most ``drift`` too
    fast; it may stand still while the machine sleeps."""

    def __init__(
        self, terms: LeaseTerms, epoch: Epoch, earlier: EarlierEpochs | None = None
    ) -> None:
        """``earlier``: earlier routers with the journal of this one."""
        self.terms = terms
        self.epoch = epoch
        self.earlier = earlier or EarlierEpochs((), 0.0)
        self.holdings: dict[str, Holding] = {}
        self._over: OrderedDict[Membership, None] = OrderedDict()

    def hello(
        self, host: str, membership: Membership, number: int, ended: Collection[Membership],
        now_s: float, *, with_epoch: Epoch = b"", continues: Collection[Membership] = (),
        to: Epoch = b"",
    ) -> tuple[Reception, Holding | None]:  # fmt: skip
        """Answer the hello of a host that joins or is back; returns the answer, and the membership
        that has ended by it, whose executions are over.

        ``ended``: earlier memberships of this name whose workers are dead: the host has reaped
        them, or holds the lock that they held.  No other statement of a host proves that.
        ``with_epoch``: router of the membership, if it has one, or of the one that it
        ``continues``.  ``to``: router for which a continuing host has stated its running work; the
        statement may be late and arrive at the next router, for which it is incomplete."""
        self.earlier.accounted_for(ended)
        holding = self.holdings.get(host)
        if holding is not None and holding.membership == membership:
            if number <= holding.hello:
                return Reception.OLD, None
            holding.hello = number
            return Reception.WELCOME, None
        self._remember(ended)
        if membership in self._over or (with_epoch and with_epoch not in self.earlier):
            return Reception.OVER, None  # of an earlier router, or of this one and long ended
        if not with_epoch and self.earlier.knows(membership):
            return Reception.OVER, None  # its welcome was lost, or this hello is late
        if with_epoch and not (continues and to == self.epoch):
            return Reception.MOVED, None
        if holding is not None:
            if holding.membership not in ended:
                return Reception.IN_USE, None
            self._end(holding)
        begun = self.holdings[host] = Holding(host, membership, now_s, number)
        self.earlier.accounted_for(continues)
        if continues:
            begun.continues, begun.not_before_s = True, self.earlier.until_s
        return Reception.WELCOME, holding

    def beat(self, host: str, membership: Membership, beat: LeaseBeat, now_s: float) -> bool:
        """Take in a beat; returns whether it is to be answered, which renews the lease.

        A beat of an ended membership is not answered, since that would renew the lease of a host
        that counts as dead.  Nor is a beat of a host that has received no answer for the whole
        wait: its workers are dead, and executions for it would wait as long as beats come."""
        holding = self.holdings.get(host)
        if holding is None or (holding.membership, self.epoch) != (membership, beat.epoch):
            return False
        confirmed_s = holding.received.get(beat.answered)
        if confirmed_s is not None:
            holding.confirmed_s = max(holding.confirmed_s or confirmed_s, confirmed_s)
        answered_s = holding.begun_s if holding.confirmed_s is None else holding.confirmed_s
        if now_s - answered_s >= self.terms.wait_s:
            return False
        holding.received_s = holding.received[beat.number] = now_s
        kept = sorted(n for n in holding.received if n >= beat.answered)[-UNCONFIRMED_MOST:]
        holding.received = {n: holding.received[n] for n in kept}
        return True

    def own(self) -> EpochWait:
        """The record of this router for a later one."""
        memberships = frozenset(each.membership for each in self.holdings.values())
        return EpochWait(self.epoch, self.terms.wait_s, memberships)

    def is_over(self, membership: Membership) -> bool:
        """Whether a membership has ended here, as far as that is remembered."""
        return membership in self._over

    def is_fresh(self, holding: Holding, now_s: float) -> bool:
        """Whether a host is known to hold its lease for some time to come, so that it may get work.
        Beats alone do not show that: the answers may be lost."""
        confirmed_s = holding.confirmed_s
        fresh_s = min(self.terms.fence_s / 2, FRESH_S)
        return confirmed_s is not None and now_s - confirmed_s < fresh_s

    def lost(self, now_s: float) -> list[Holding]:
        """End and return the memberships whose wait is over: all their workers are dead."""
        lost = [each for each in self.holdings.values() if now_s >= self._dead_at_s(each)]
        for each in lost:
            self._end(each)
        return lost

    def leave(self, host: str, membership: Membership) -> Holding | None:
        """End the membership of a host that leaves, with all its workers ended; None if it is not
        here."""
        holding = self.holdings.get(host)
        if holding is None or holding.membership != membership:
            return None
        self._end(holding)
        return holding

    def _dead_at_s(self, holding: Holding) -> float:
        wait_s = self.terms.wait_s
        if holding.received_s is None and not holding.continues:
            wait_s = min(wait_s, FIRST_BEAT_S)  # nothing runs there, and its hello may be late
        return max(holding.seen_at + wait_s, holding.not_before_s)

    def _end(self, holding: Holding) -> None:
        del self.holdings[holding.host]
        self._remember([holding.membership])

    def _remember(self, over: Iterable[Membership]) -> None:
        self._over |= dict.fromkeys(over)
        while len(self._over) > OVER_MOST:
            self._over.popitem(last=False)


# -- the routers before this one ---------------------------------------------------------


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
