"""The host lease: proof, across machines, that the workers of a host are dead.

Theory of operation
-------------------
A router cannot reap a process of another machine.  So a host that it no longer hears has
promised to be dead by a time that the router can count.

A host sends numbered beats.  Before it sends beat ``n`` it reads ``b_n`` on a clock that
runs while the machine sleeps (CLOCK_BOOTTIME).  Only the router's answer to ``n`` renews
the lease, to ``b_n + fence_s``, and nothing makes it shorter.  That time is absolute: a
guard, which nothing in an environment can hold up, kills the workers when it has come.
No worker starts before the first answer.

The router counts ``fence_s + margin_s`` from its receipt of the last beat that it
answered.  The beat was read before it was received, so the host's time begins earlier,
and the margin is what the clocks may differ by, and the guard be late
(:func:`least_margin_s`).  Nothing that a host has sent helps it if the answer did not
arrive: where only one direction is cut, both sides still come to the same end.

A *membership* is one host with one router: it has random bits of its own, begins with a
hello, and is never taken up by another router.  The numbers of hellos and beats are those
of one membership, so what is left of an older one is never taken for a new one.

A router with a journal knows which executions the one before has started.  It says so to
a host whose membership was with that one, and the host begins a membership that *continues* the
old one: its workers live on, and the deadline stands, since only answers move it.  The old
router's answers may have moved it for as long as that router has written down: so the new
one takes no host that continues for dead before that time.

A router may do without a lease.  Then its hosts keep their workers however long it is silent,
and it takes none of them for dead but by a host's own word: that it goes, or, with the hello of
its next membership, that the workers of the one before have ended.  For the formulas that is a
lease of many years.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from .earlier_epochs import EarlierEpochs, EpochWait
from .errors import ConfigError
from .terms import Epoch, Membership

FENCE_S = 20.0
NO_LEASE_S = 5e8
"""The lease that stands for none: some sixteen years.  A host of such a router is never taken for
dead because of what a clock says."""
FRESH_S = 10.0
"""A host that is not known to have heard the router for so long gets no work."""
DRIFT = 0.1
"""A clock is at most so much slower, or faster, than time itself."""
GUARD_S = 5.0
"""The guard has killed all workers at most so long after its time has come."""

UNCONFIRMED_MOST = 64
"""Of so many answered beats of a host the router knows when they came: the newest."""

FIRST_BEAT_S = 60.0
"""A membership without a beat for so long is over, however long leases are.  A late hello of one
that was over long ago would keep its host out for ever where there is no lease."""

OVER_MOST = 1 << 14
"""So many memberships that are over are remembered; another one of theirs has a high number."""


def least_margin_s(fence_s: float, drift: float = DRIFT, guard_s: float = GUARD_S) -> float:
    """The margin that the router must wait past ``fence_s``.

    The host counts ``fence_s`` on a clock that may be slow, and then the guard may be late;
    the router counts on one that may be fast."""
    return fence_s * 2 * drift / (1 - drift) + guard_s * (1 + drift)


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The terms of a router's leases.  ConfigError if they cannot hold."""

    fence_s: float = FENCE_S
    """A host that heard no answer for so long has no workers any more."""
    margin_s: float | None = None
    """None: the least that there may be."""
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
        """Whether there is a lease: then the death of a host is known at last."""
        return self.fence_s < NO_LEASE_S

    @property
    def wait_s(self) -> float:
        """So long after the last beat that it answered a router takes a host for dead."""
        if self.margin_s is not None:
            return self.fence_s + self.margin_s
        return self.fence_s + least_margin_s(self.fence_s, self.drift, self.guard_s)


# -- the host's side ------------------------------------------------------------------


class LeaseBeat(NamedTuple):
    """One beat of a host.  ``answered`` is the newest one whose answer it has."""

    number: int
    answered: int
    epoch: Epoch
    """The router that the membership is with: no other one may answer.  A hello alone does not
    say that, since it may be late, and come to the next router."""


class HostLease:
    """The lease of one host, through all its memberships.  It is over the time ``boot_s`` of a
    clock that runs while the machine sleeps."""

    def __init__(self, membership: Membership) -> None:
        self.begin(membership)

    def begin(self, membership: Membership) -> None:
        """Begin a membership.  All workers of the one before have ended, and are reaped."""
        self.membership = membership
        self.epoch: Epoch = b""
        """The router that this membership is with; empty until one has welcomed it."""
        self.fence_s = 0.0
        self.hellos = 0
        self.beats = 0
        self.answered = 0
        """The newest beat whose answer is here."""
        self.deadline_s: float | None = None
        """By then every worker is dead, unless another answer comes; absolute, on the clock
        of the beats.  None: there was no answer yet, and no worker may start."""
        self.over = False
        """Whether the membership is over: all workers must end, and then the next one begins."""
        self._read: dict[int, float] = {}
        """When each beat that may still be answered was read."""

    def go_on(self, membership: Membership) -> None:
        """Begin a membership that continues the one before: its workers live on, until the
        deadline at which they would have ended anyway."""
        deadline_s = self.deadline_s
        self.begin(membership)
        self.deadline_s = deadline_s

    def hello(self) -> int:
        """The number of the next hello: one for each connection."""
        self.hellos += 1
        return self.hellos

    def welcomed(self, hello: int, epoch: Epoch, fence_s: float) -> bool:
        """A router has answered a hello.  Whether the membership is with it.

        That of another router is over, and so is one whose router says that it is
        (:meth:`refused`): what has begun under one router ends before another one is told
        of it, since only the first one knows by when it will be dead."""
        if self.over or hello != self.hellos:
            return False
        if self.epoch not in (b"", epoch):
            self.over = True
            return False
        self.epoch, self.fence_s = epoch, fence_s
        return True

    def refused(self, hello: int) -> None:
        """The router says that this membership is over."""
        self.over |= hello == self.hellos

    def beat(self, boot_s: float) -> LeaseBeat:
        """The next beat; ``boot_s`` was read before.  Only of a membership that was welcomed and
        is not over."""
        assert self.epoch
        assert not self.over
        self.beats += 1
        self._read[self.beats] = boot_s
        for number in [n for n, read_s in self._read.items() if read_s + self.fence_s <= boot_s]:
            del self._read[number]  # its answer would come too late
        return LeaseBeat(self.beats, self.answered, self.epoch)

    def answer(self, membership: Membership, number: int) -> float | None:
        """The router has answered a beat.  The new deadline, for the guard; None if the old
        one stands."""
        read_s = self._read.get(number)
        if membership != self.membership or read_s is None or number <= self.answered:
            return None
        self.answered = number
        self._read = {n: s for n, s in self._read.items() if n > number}
        self.deadline_s = max(self.deadline_s or 0.0, read_s + self.fence_s)
        return self.deadline_s

    def holds(self, boot_s: float) -> bool:
        """Whether workers may live, and start."""
        return not self.over and self.deadline_s is not None and boot_s < self.deadline_s


# -- the router's side ----------------------------------------------------------------


class Reception(enum.Enum):
    """A router's answer to a hello."""

    WELCOME = "it is welcome"
    OLD = "a newer hello of it came before, and nothing is said"
    IN_USE = "another membership has this id, and may have workers"
    OVER = "this membership is over"
    MOVED = "it was with the router before; the next one may continue it"


@dataclasses.dataclass(slots=True, eq=False)
class Holding:
    """One membership, as the router counts it."""

    host: str
    membership: Membership
    begun_s: float
    hello: int = 0
    """Its newest hello."""
    received_s: float | None = None
    """When the last beat came that was answered.  None: no worker can have been started."""
    received: dict[int, float] = dataclasses.field(default_factory=dict)
    """When each of the answered beats came whose answers may not have arrived."""
    confirmed_s: float | None = None
    """When the newest beat came whose answer is known to have arrived."""
    not_before_s: float = 0.0
    """It may live until then by what an earlier router has said."""
    continues: bool = False
    """Whether workers of a membership before may run in it."""

    @property
    def heard_s(self) -> float:
        """When something of it was heard last that counts."""
        return self.begun_s if self.received_s is None else self.received_s


class Leases:
    """The hosts of one router.  Times are of a clock that never runs ahead of time by more
    than the drift; that it stands still in sleep does no harm here."""

    def __init__(
        self, terms: LeaseTerms, epoch: Epoch, earlier: EarlierEpochs | None = None
    ) -> None:
        """``earlier``: the routers before whose journal this one has."""
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
        """A host wants to join, or is back.

        ``ended``: earlier memberships of this id whose workers it knows to be dead: it has reaped
        them, or holds the lock that they have held.  Nothing else that it says proves that.
        ``with_epoch``: the router that the membership is with, if it has one, or that the one was
        with which it ``continues``: then ``to`` is the router to which it says what runs.
        It may be late, and come to the next one, which would take it for the whole.

        Also the membership that has ended by that, whose executions are over."""
        self.earlier.accounted_for(ended)
        holding = self.holdings.get(host)
        if holding is not None and holding.membership == membership:
            if number <= holding.hello:
                return Reception.OLD, None
            holding.hello = number
            return Reception.WELCOME, None
        self._remember(ended)
        if membership in self._over or (with_epoch and with_epoch not in self.earlier):
            return Reception.OVER, None  # of a router before, or of this one, long ago
        if not with_epoch and self.earlier.knows(membership):
            return Reception.OVER, None  # the welcome was lost, or this hello is late
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
        """A beat has come.  Whether it is to be answered: the lease is counted from now.

        One of a membership that is over is never answered, since that would renew what is
        taken for dead.  Nor is one of a host that has not received any answer for the
        whole wait: it is fenced, and what was to run there would wait for as long as its
        beats come."""
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
        """Whether it was over here, as far as that is remembered."""
        return membership in self._over

    def is_fresh(self, holding: Holding, now_s: float) -> bool:
        """Whether the host is known to hold its lease for some time yet: then it may get
        work.  A beat alone says nothing: answers may be what is cut."""
        confirmed_s = holding.confirmed_s
        fresh_s = min(self.terms.fence_s / 2, FRESH_S)
        return confirmed_s is not None and now_s - confirmed_s < fresh_s

    def lost(self, now_s: float) -> list[Holding]:
        """The memberships that are over by now: every worker of theirs is dead."""
        lost = [each for each in self.holdings.values() if now_s >= self._dead_at_s(each)]
        for each in lost:
            self._end(each)
        return lost

    def leave(self, host: str, membership: Membership) -> Holding | None:
        """A host says that all its workers have ended, and that it goes."""
        holding = self.holdings.get(host)
        if holding is None or holding.membership != membership:
            return None
        self._end(holding)
        return holding

    def _dead_at_s(self, holding: Holding) -> float:
        wait_s = self.terms.wait_s
        if holding.received_s is None and not holding.continues:
            wait_s = min(wait_s, FIRST_BEAT_S)  # nothing runs there: its hello may have been late
        return max(holding.heard_s + wait_s, holding.not_before_s)

    def _end(self, holding: Holding) -> None:
        del self.holdings[holding.host]
        self._remember([holding.membership])

    def _remember(self, over: Iterable[Membership]) -> None:
        self._over |= dict.fromkeys(over)
        while len(self._over) > OVER_MOST:
            self._over.popitem(last=False)
