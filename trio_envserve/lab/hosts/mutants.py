"""One mutant for each rule of the lease: what the judge must see."""

from __future__ import annotations

from typing import Any

from ...core import lease as shipped
from ...core.earlier_epochs import EarlierEpochs
from ...core.lease import HostLease, Leases, LeaseTerms, Reception
from ...retrylab.mutants import Family, Patches
from .machine import Machine
from .router import Router

FAMILY = Family(("CRASH", "G1", "G2", "G9"))
MUTANTS = FAMILY.mutants


# -- what renews ----------------------------------------------------------------------


@FAMILY.mutant("G1", "G2", "G9")
def renewed_by_anything_heard(patch: Patches) -> None:
    """A host holds its lease for as long as it hears the router."""
    original = Machine.receive

    def receive(self: Any, process: Any, kind: Any, tenure: Any, *rest: Any) -> None:
        original(self, process, kind, tenure, *rest)
        if self.is_running() and self.lease.epoch and self.lease.deadline_s is not None:
            _renew_from_now(self)

    patch.attribute(Machine, "receive", receive)


@FAMILY.mutant("G1", "G2", "G9")
def counted_from_receipt(patch: Patches) -> None:
    """An answer renews from when it has come, not from when its beat was read."""
    original = Machine.on_answer

    def on_answer(self: Any, number: Any, *wanted: Any) -> None:
        before = self.lease.answered
        original(self, number, *wanted)
        if self.lease.answered > before:
            _renew_from_now(self)

    patch.attribute(Machine, "on_answer", on_answer)


def _renew_from_now(machine: Machine) -> None:
    machine.lease.deadline_s = machine.boot_s() + machine.lease.fence_s
    machine.tell_guard(machine.lease.deadline_s)


@FAMILY.mutant("G1", "G2", "G9")
def numbers_used_again_after_a_reconnect(patch: Patches) -> None:
    """The beats of each connection are numbered from one."""
    original = HostLease.hello

    def hello(self: Any) -> int:
        self.beats = self.answered = 0
        self._read = {}
        return original(self)

    patch.attribute(HostLease, "hello", hello)


@FAMILY.mutant("G1", "G2", "G9")
def any_router_answers_a_beat(patch: Patches) -> None:
    """A router that knows the tenure, if only by a hello that was late, answers its beats,
    whoever they are meant for."""
    original = Leases.beat

    def beat(self: Any, host: Any, tenure: Any, beat: Any, now_s: Any) -> bool:
        return original(self, host, tenure, beat._replace(epoch=self.epoch), now_s)

    patch.attribute(Leases, "beat", beat)
    patch.attribute(EarlierEpochs, "knows", lambda *_: False)


# -- what the router counts -----------------------------------------------------------


@FAMILY.mutant("G1", "G2", "G9")
def margin_fixed(patch: Patches) -> None:
    """The margin is the guard's latency, however long the clocks may drift apart."""
    patch.attribute(shipped, "least_margin_s", lambda *terms: shipped.GUARD_S)


@FAMILY.mutant("G1", "G2", "G9")
def no_margin(patch: Patches) -> None:
    """The router waits for as long as the host."""
    patch.attribute(LeaseTerms, "wait_s", property(lambda self: self.fence_s))


@FAMILY.mutant("G1", "G2", "G9")
def counted_from_what_was_confirmed(patch: Patches) -> None:
    """The router counts from the last beat whose answer is known to have arrived."""
    original = Leases.beat

    def beat(self: Any, host: Any, tenure: Any, beat: Any, now_s: Any) -> bool:
        answered = original(self, host, tenure, beat, now_s)
        if answered:
            holding = self.holdings[host]
            holding.received_s = holding.confirmed_s
        return answered

    patch.attribute(Leases, "beat", beat)


@FAMILY.mutant("G1", "G2", "G9")
def a_host_that_hears_nothing_is_answered_for_ever(patch: Patches) -> None:
    """Where only the router's direction is cut, the host is never lost."""
    original = Leases.beat

    def beat(self: Any, host: Any, tenure: Any, beat: Any, now_s: Any) -> bool:
        holding = self.holdings.get(host)
        if holding is not None and holding.tenure == tenure:
            if not original(self, host, tenure, beat, now_s):
                holding.received_s = now_s
                return bool(beat.epoch == self.epoch)
            return True
        return False

    patch.attribute(Leases, "beat", beat)


@FAMILY.mutant("G1", "G2", "G9")
def two_hosts_with_one_id(patch: Patches) -> None:
    """A hello of another tenure proves that the one before has ended."""
    original = Leases.hello

    def hello(self: Any, host: Any, tenure: Any, *rest: Any, **epoch: Any) -> Any:
        number, _, now_s = rest
        holding = self.holdings.get(host)
        ended = [] if holding is None else [holding.tenure]
        return original(self, host, tenure, number, ended, now_s, **epoch)

    patch.attribute(Leases, "hello", hello)


@FAMILY.mutant("G1", "G2", "G9")
def silence_is_proof_without_a_lease(patch: Patches) -> None:
    """A host that was silent for two minutes is taken for dead, though it promised nothing."""
    original = vars(LeaseTerms)["wait_s"].fget

    def wait_s(self: Any) -> Any:
        return original(self) if self.proves else 120.0

    patch.attribute(LeaseTerms, "wait_s", property(wait_s))


@FAMILY.mutant("G1", "G2", "G9")
def a_late_hello_says_that_nothing_runs(patch: Patches) -> None:
    """A hello that names no router proves that its tenure has no workers, whichever router it
    comes to."""
    original = Leases.hello

    def hello(self: Any, host: Any, tenure: Any, *rest: Any, **epoch: Any) -> Any:
        reception, over = original(self, host, tenure, *rest, **epoch)
        if reception is Reception.WELCOME:
            self.earlier.accounted_for([tenure])
        return reception, over

    patch.attribute(Leases, "hello", hello)
    patch.attribute(EarlierEpochs, "knows", lambda *_: False)


# -- the guard, and the machine -------------------------------------------------------


@FAMILY.mutant("G1", "G2", "G9")
def a_clock_that_stands_still_in_sleep(patch: Patches) -> None:
    """Beats and the guard's timer are on CLOCK_MONOTONIC."""

    def slept_s(self: Any) -> Any:
        asleep_s = self.world.now_s - self.sleeping_since_s if self.sleeps else 0.0
        return self.slept_s + asleep_s

    def boot_s(self: Any) -> Any:
        return 1000.0 + self.rate * (self.world.now_s - slept_s(self))

    def true_s(self: Any, boot_s: float) -> Any:
        return (boot_s - 1000.0) / self.rate + slept_s(self)

    original = Machine.timer

    def poll(self: Any, guard: int) -> None:
        polls.discard((self, guard))
        self.timer(guard)

    def timer(self: Any, guard: int) -> None:
        if guard == self.guards and self.deadline_s is not None and not self.is_due():
            if (self, guard) not in polls:
                polls.add((self, guard))
                self.world.after(0.5, poll, self, guard)
        else:
            original(self, guard)

    polls: set[Any] = set()

    patch.attribute(Machine, "boot_s", boot_s)
    patch.attribute(Machine, "true_s", true_s)
    patch.attribute(Machine, "timer", timer)


@FAMILY.mutant("G1", "G2", "G9")
def the_guard_looks_at_the_clock_itself(patch: Patches) -> None:
    """The deadline is no timer of the kernel: a guard that is stopped misses it."""

    def fire(self: Any, guard: int) -> None:
        if guard == self.guards:
            self.guard.run(_kill_late, self, guard)

    def wake(self: Any) -> None:
        self.sleeps -= 1
        self.world.judge.woke([*self.workers.values()])
        self.host.go_on()
        self.guard.go_on()

    patch.attribute(Machine, "_fire", fire)
    patch.attribute(Machine, "wake", wake)


def _kill_late(machine: Machine, guard: int) -> None:
    if guard == machine.guards:
        machine.kill_guard()


@FAMILY.mutant("G1", "G2", "G9")
def the_guard_is_told_for_how_long(patch: Patches) -> None:
    """The guard is told how much time is left, not until when: one that was stopped counts
    it from when it reads that."""

    def tell_guard(self: Any, deadline_s: float) -> None:
        self.guard.run(_told_how_long, self, self.guards, deadline_s - self.boot_s())

    patch.attribute(Machine, "tell_guard", tell_guard)


def _told_how_long(machine: Machine, guard: int, left_s: float) -> None:
    machine._told(guard, machine.boot_s() + left_s)


@FAMILY.mutant("G1", "G2", "G9")
def a_worker_starts_before_the_first_answer(patch: Patches) -> None:
    """A host that is welcome gets work, and starts it."""
    original = Router._hello

    def hello(self: Any, machine: Any, tenure: Any, *rest: Any) -> None:
        original(self, machine, tenure, *rest)
        self.world.to_host(machine, "wanted", tenure, self._wanted(tenure))

    def holds(self: Any, boot_s: float) -> bool:
        return not self.over and (self.deadline_s is None or boot_s < self.deadline_s)

    patch.attribute(Router, "_hello", hello)
    patch.attribute(Leases, "is_fresh", lambda *_: True)
    patch.attribute(HostLease, "holds", holds)
    patch.attribute(Machine, "may_start", lambda self: not self.is_due())


@FAMILY.mutant("G1", "G2", "G9")
def the_next_tenure_begins_over_living_workers(patch: Patches) -> None:
    """A host joins another router before its workers have ended."""
    original = Machine._turn

    def turn(self: Any, process: int) -> None:
        if process == self.process and self.lease.over:
            self.past = [*self.past, self.lease.tenure]
            self.lease.begin(self.world.new_id())
            self.seen, self.ended = set(), {}
        original(self, process)

    patch.attribute(Machine, "_turn", turn)


# -- routers that follow each other ---------------------------------------------------


@FAMILY.mutant("G1", "G2", "G9")
def a_tenure_is_kept_with_another_router(patch: Patches) -> None:
    """The next router renews what runs under the one before."""
    original = Leases.hello

    def hello(self: Any, *rest: Any, **epoch: Any) -> Any:
        return original(self, *rest)

    def welcomed(self: Any, hello: int, epoch: bytes, fence_s: float) -> bool:
        if self.over or hello != self.hellos:
            return False
        self.epoch, self.fence_s = epoch, fence_s
        return True

    patch.attribute(Leases, "hello", hello)
    patch.attribute(HostLease, "welcomed", welcomed)


@FAMILY.mutant("G1", "G2", "G9")
def a_successor_waits_by_its_own_limits(patch: Patches) -> None:
    """An earlier epoch is dead after what this router would wait."""
    original = Router.__init__

    def init(self: Any, world: Any, terms: Any) -> None:
        original(self, world, terms)
        self.earlier.until_s += terms.wait_s - self.earlier.longest_s

    patch.attribute(Router, "__init__", init)


@FAMILY.mutant("G1", "G2", "G9")
def a_successor_writes_down_itself_alone(patch: Patches) -> None:
    """Of two routers before, only the last one is known."""
    patch.attribute(EarlierEpochs, "record", lambda self, own, now_s: (own,))


@FAMILY.mutant("G1", "G2", "G9")
def a_successor_waits_for_each_epoch_by_its_own_words(patch: Patches) -> None:
    """Workers that one router has taken over from another are dead when the first one says so."""

    def take_dead(self: Any, now_s: float) -> Any:
        since_s = self.until_s - self.longest_s
        dead = [e for e in self.waits if not e.tenures or now_s >= since_s + e.wait_s]
        self.waits = tuple(each for each in self.waits if each not in dead)
        return [each.epoch for each in dead]

    patch.attribute(EarlierEpochs, "take_dead", take_dead)


# -- what is taken over -----------------------------------------------------------------


@FAMILY.mutant("G1", "G2", "G9")
def what_goes_on_is_counted_by_the_limits_of_the_new_router_alone(patch: Patches) -> None:
    """A host that was taken over is dead when its new router would have it so."""

    def dead_at_s(self: Any, holding: Any) -> Any:
        counted_s = holding.begun_s if holding.received_s is None else holding.received_s
        return counted_s + self.terms.wait_s

    patch.attribute(Leases, "_dead_at_s", dead_at_s)


@FAMILY.mutant("G1", "G2", "G9")
def unknown_work_is_not_stopped(patch: Patches) -> None:
    """Work that a host has brought, and the journal does not know, runs on as if it were not."""
    original = Router._take_over

    def take_over(self: Any, tenure: Any, left: Any) -> None:
        original(self, tenure, left._replace(running=()))

    patch.attribute(Router, "_take_over", take_over)


@FAMILY.mutant("G1", "G2", "G9")
def a_router_is_written_off_while_its_work_is_stopped(patch: Patches) -> None:
    """All of its hosts are back: so the next router is told nothing of it."""
    original = EarlierEpochs.record

    def record(self: Any, own: Any, now_s: Any) -> Any:
        return tuple(each for each in original(self, own, now_s) if each is own or each.tenures)

    patch.attribute(EarlierEpochs, "record", record)


@FAMILY.mutant("G1", "G2", "G9")
def a_host_is_welcomed_before_it_is_written_down(patch: Patches) -> None:
    """A successor knows of no host, and so waits for none."""
    original = Leases.own

    def own(self: Any) -> Any:
        return original(self)._replace(tenures=frozenset())

    patch.attribute(Leases, "own", own)


@FAMILY.mutant("G1", "G2", "G9")
def what_runs_is_said_before_the_tenure_begins(patch: Patches) -> None:
    """State is said with the old tenure: what comes from the old router later is not in it."""
    original = Machine.on_moved

    def on_moved(self: Any, hello: int, epoch: bytes) -> None:
        before = set(self.seen) - {max(self.seen, default=0)}
        seen, self.seen = self.seen, before
        original(self, hello, epoch)
        self.seen = seen

    patch.attribute(Machine, "on_moved", on_moved)
