"""Hosts and their leases: one mutant for each rule of theirs, and for what a router makes of them.

A simulated world has hosts for these (:class:`~trio_envserve.lab.simulation.plan.HostPlan`).
"""

from __future__ import annotations

import signal
import time
from typing import Any

from ...core import lease, router
from ...core.dispatches import Dispatches
from ...core.earlier_epochs import EarlierEpochs
from ...core.host import Host, SetDeadline
from ...core.host_link import Outbox
from ...core.host_pool import Hosts
from ...core.lease import HostLease, Leases, LeaseTerms, Reception
from ...core.lives import Life
from ...core.router_inputs import HostsLive, WorkerBack
from ...host import guard
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import Fault

FAMILY = Family(("CRASH", "G1", "G2", "G9"), needs=(Fault.HOSTS,))


# -- what renews ----------------------------------------------------------------------


@FAMILY.mutant()
def renewed_by_anything_heard(patch: Patches) -> None:
    """A host holds its lease for as long as it hears the router."""

    @patch.around(Host, "message")
    def message(original: Any, self: Any, frames: Any, boot_s: float) -> None:
        original(self, frames, boot_s)
        if self.lease.epoch and self.lease.holds(boot_s):
            self.lease.deadline_s = boot_s + self.lease.fence_s
            self.out.append(SetDeadline(self.lease.deadline_s))


@FAMILY.mutant()
def counted_from_receipt(patch: Patches) -> None:
    """An answer renews from when it has come, not from when its beat was read."""

    @patch.around(Host, "_answered")
    def answered(original: Any, self: Any, answer: Any, boot_s: float) -> None:
        if answer.beat in self.lease._read:
            self.lease._read[answer.beat] = boot_s
        original(self, answer, boot_s)


@FAMILY.mutant()
def numbers_used_again_after_a_reconnect(patch: Patches) -> None:
    """The beats of each connection are numbered from one."""
    anew = "self.hellos, self.beats, self.answered, self._read = self.hellos + 1, 0, 0, {}"
    patch.source(HostLease.hello, "self.hellos += 1", anew)


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.MANGLE))
def any_router_answers_a_beat(patch: Patches) -> None:
    """A router that knows the tenure, if only by a late hello, answers its beats."""
    patch.source(
        Leases.beat,
        "(holding.tenure, self.epoch) != (tenure, beat.epoch)",
        "holding.tenure != tenure",
    )
    patch.attribute(EarlierEpochs, "knows", lambda *_: False)


# -- what the router counts -----------------------------------------------------------


@FAMILY.mutant(needs=(Fault.CUT_HOST,))
def margin_fixed(patch: Patches) -> None:
    """The margin is the guard's latency, however long the clocks may drift apart."""
    patch.attribute(lease, "least_margin_s", lambda fence_s, drift, guard_s: guard_s)


@FAMILY.mutant(needs=(Fault.CUT_HOST,))
def no_margin(patch: Patches) -> None:
    """The router waits for as long as the host."""
    patch.attribute(LeaseTerms, "wait_s", property(lambda self: self.fence_s))


@FAMILY.mutant(needs=(Fault.CUT_HOST,))
def a_host_is_lost_before_its_lease_is_over(patch: Patches) -> None:
    """The router waits for half as long as the host."""
    patch.attribute(LeaseTerms, "wait_s", property(lambda self: self.fence_s / 2))


@FAMILY.mutant(needs=(Fault.CUT_HOST_UP,))
def counted_from_what_was_confirmed(patch: Patches) -> None:
    """The router counts from the last beat whose answer is known to have arrived."""
    confirmed = "holding.received[beat.number], holding.received_s = now_s, holding.confirmed_s"
    patch.source(
        Leases.beat, "holding.received_s = holding.received[beat.number] = now_s", confirmed
    )


@FAMILY.mutant(needs=(Fault.CUT_HOST_DOWN,))
def a_host_that_hears_nothing_is_answered_for_ever(patch: Patches) -> None:
    """Where only the router's direction is cut, the host is never lost."""

    @patch.around(Leases, "beat")
    def beat(original: Any, self: Any, host: Any, tenure: Any, beat: Any, now_s: Any) -> Any:
        holding = self.holdings.get(host)
        if holding is None or holding.tenure != tenure:
            return False
        if not original(self, host, tenure, beat, now_s):
            holding.received_s = now_s
        return beat.epoch == self.epoch


@FAMILY.mutant(needs=(Fault.COPY_HOST,))
def two_hosts_with_one_id(patch: Patches) -> None:
    """A hello of another tenure proves that the one before has ended."""
    patch.source(Leases.hello, "holding.tenure not in ended", "False")


@FAMILY.mutant("G1", needs=(Fault.NO_LEASE, Fault.CUT_HOST))
def silence_is_proof_without_a_lease(patch: Patches) -> None:
    """A host silent for three seconds is taken for dead, though it promised nothing."""
    original = vars(LeaseTerms)["wait_s"].fget

    def wait_s(self: Any) -> Any:
        return original(self) if self.proves else 3.0

    patch.attribute(LeaseTerms, "wait_s", property(wait_s))


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.MANGLE))
def a_late_hello_says_that_nothing_runs(patch: Patches) -> None:
    """A hello that names no router proves that its tenure has no workers."""

    @patch.around(Leases, "hello")
    def hello(original: Any, self: Any, host: Any, tenure: Any, *rest: Any, **epoch: Any) -> Any:
        reception, over = original(self, host, tenure, *rest, **epoch)
        if reception is Reception.WELCOME:
            self.earlier.accounted_for([tenure])
        return reception, over

    patch.attribute(EarlierEpochs, "knows", lambda *_: False)


@FAMILY.mutant("G9", "G8", "G1", needs=(Fault.CUT_HOST,))
def what_a_lost_host_ran_is_forgotten(patch: Patches) -> None:
    """Its workers are not said to have ended."""
    patch.source(Hosts._gone, "for worker in sorted(host.workers)", "for worker in ()")


@FAMILY.mutant("G9", needs=(Fault.NO_LEASE, Fault.CUT_HOST))
def the_silence_of_a_host_is_that_of_its_workers(patch: Patches) -> None:
    """All time counts against a worker, also that in which nothing of it could come."""
    patch.attribute(Life, "counted_s", lambda self, since_s, now_s: now_s - since_s)


# -- the guard, and the host ----------------------------------------------------------


@FAMILY.mutant(needs=(Fault.SLEEP_HOST,))
def a_clock_that_stands_still_in_sleep(patch: Patches) -> None:
    """Beats and the guard's timer are on CLOCK_MONOTONIC."""
    patch.attribute(guard, "TIMER_CLOCK", time.CLOCK_MONOTONIC)


@FAMILY.mutant(needs=(Fault.STOP_MACHINE,))
def the_guard_looks_at_the_clock_itself(patch: Patches) -> None:
    """The timer's signal is one that the guard acts on: a stopped guard misses it."""
    patch.attribute(guard, "TIMER_SIGNAL", signal.SIGTERM)


@FAMILY.mutant(needs=(Fault.STOP_GUARD, Fault.CUT_HOST))
def the_guard_is_told_for_how_long(patch: Patches) -> None:
    """The guard is told how much time is left: a stopped one counts it from when it reads."""
    patch.attribute(guard, "TIMER_FLAGS", 0)


@FAMILY.mutant()
def a_worker_starts_before_the_first_answer(patch: Patches) -> None:
    """A host that is welcome gets work, and starts it."""

    def holds(self: Any, boot_s: float) -> bool:
        return not self.over and (self.deadline_s is None or boot_s < self.deadline_s)

    patch.attribute(Leases, "is_fresh", lambda *_: True)
    patch.attribute(HostLease, "holds", holds)
    patch.attribute(guard, "may_start", lambda armed: True)


@FAMILY.mutant(needs=(Fault.KILL_SERVER,))
def the_next_tenure_begins_over_living_workers(patch: Patches) -> None:
    """A host joins another router before its workers have ended."""

    @patch.around(Host, "_go_on")
    def go_on(original: Any, self: Any) -> None:
        if self.lease.over:
            lives, self._ending = dict(self._lives), ""
            self._begin()
            self._lives |= lives
            self.connect()
        original(self)


@FAMILY.mutant()
def an_end_is_said_before_it_has_come(patch: Patches) -> None:
    """A host that tells a worker anything says that it has ended."""
    told = "self.out.append(TellWorker(worker, item.frames))"
    patch.source(Host._item, told, "self.exited(worker, 'it ends soon')")


@FAMILY.mutant("G9", needs=(Fault.RECONNECT_HOST,))
def nothing_is_sent_again(patch: Patches) -> None:
    """What a cut between a host and its router has taken is gone."""
    patch.attribute(Outbox, "again", lambda self: None)


# -- routers that follow each other ---------------------------------------------------


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.KILL_SERVER))
def a_tenure_is_kept_with_another_router(patch: Patches) -> None:
    """The next router renews what runs under the one before."""

    @patch.around(Leases, "hello")
    def hello(original: Any, self: Any, *rest: Any, **epoch: Any) -> Any:
        return original(self, *rest)

    def welcomed(self: Any, hello: int, epoch: bytes, fence_s: float) -> bool:
        if self.over or hello != self.hellos:
            return False
        self.epoch, self.fence_s = epoch, fence_s
        return True

    patch.attribute(HostLease, "welcomed", welcomed)


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.KILL_SERVER))
def a_successor_waits_by_its_own_limits(patch: Patches) -> None:
    """An earlier epoch is dead after what this router would wait."""

    @patch.around(Hosts, "__init__")
    def init(original: Any, self: Any, pool: Any, terms: Any, epoch: Any, **rest: Any) -> None:
        original(self, pool, terms, epoch, **rest)
        earlier = self.leases.earlier
        earlier.until_s += terms.wait_s - earlier.longest_s


@FAMILY.mutant(needs=(Fault.KILL_SERVER,))
def a_successor_writes_down_itself_alone(patch: Patches) -> None:
    """Of two routers before, only the last one is known."""
    patch.attribute(EarlierEpochs, "record", lambda self, own, now_s: (own,))


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.KILL_SERVER))
def a_successor_waits_for_each_epoch_by_its_own_words(patch: Patches) -> None:
    """Workers that one router took over from another die when the first says so."""

    def take_dead(self: Any, now_s: float) -> Any:
        since_s = self.until_s - self.longest_s
        dead = [e for e in self.waits if not e.tenures or now_s >= since_s + e.wait_s]
        self.waits = tuple(each for each in self.waits if each not in dead)
        return [each.epoch for each in dead]

    patch.attribute(EarlierEpochs, "take_dead", take_dead)


@FAMILY.mutant(needs=(Fault.KILL_SERVER,))
def a_router_begins_while_the_hosts_of_the_one_before_live(patch: Patches) -> None:
    """It has the lock of its machine, and waits for nobody else."""
    patch.source(EarlierEpochs.take_dead, "now_s < self.until_s and any(", "False and any(")


@FAMILY.mutant(needs=(Fault.KILL_SERVER,))
def a_host_is_welcomed_before_it_is_written_down(patch: Patches) -> None:
    """A successor knows of no host, and so waits for none."""
    patch.source(Leases.own, "in self.holdings.values()", "in ()")


# -- what is taken over -----------------------------------------------------------------


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.KILL_SERVER))
def what_goes_on_is_counted_by_the_limits_of_the_new_router_alone(patch: Patches) -> None:
    """A host that was taken over is dead when its new router would have it so."""
    counted = "max(holding.heard_s + wait_s, holding.not_before_s)"
    patch.source(Leases._dead_at_s, counted, "holding.heard_s + wait_s")


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.KILL_SERVER))
def unknown_work_is_not_stopped(patch: Patches) -> None:
    """Work that a host has brought, and the journal does not know, is not heard of."""

    @patch.around_cell(router._INPUTS, WorkerBack)
    def take_back(original: Any, self: Any, back: Any) -> None:
        original(self, back._replace(running=[]))


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.KILL_SERVER))
def what_is_not_known_runs_on(patch: Patches) -> None:
    """Nobody stops it, and the router before is taken for dead."""
    patch.attribute(Dispatches, "stop_unknown", lambda self, worker, number, now_s: None)


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.KILL_SERVER))
def work_of_keys_begins_before_all_hosts_are_back(patch: Patches) -> None:
    """It begins though an earlier generation may run on one of them."""
    patch.item(router._INPUTS, HostsLive, lambda self, given: None)


@FAMILY.mutant(needs=(Fault.JOURNAL, Fault.KILL_SERVER))
def a_router_is_written_off_while_its_work_is_stopped(patch: Patches) -> None:
    """All of its hosts are back: so the next router is told nothing of it."""

    @patch.around(EarlierEpochs, "record")
    def record(original: Any, self: Any, own: Any, now_s: Any) -> Any:
        return tuple(each for each in original(self, own, now_s) if each is own or each.tenures)


@FAMILY.mutant("CRASH", "G1", "G2", needs=(Fault.JOURNAL, Fault.KILL_SERVER))
def what_runs_is_said_before_the_tenure_begins(patch: Patches) -> None:
    """A host leaves out what its router had sent last when it says what runs."""

    @patch.around(Host, "_go_over")
    def go_over(original: Any, self: Any, to: Any) -> None:
        left = [(life, life.next, set(life.running)) for life in self._lives.values()]
        for life, next_, running in left:
            life.next = max(next_ - 1, 0)
            life.running = running - {next_ - 1}
        original(self, to)
        for life, next_, running in left:
            life.next, life.running = next_, running
