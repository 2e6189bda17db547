"""A machine: the process of a host, the guard, the workers, and a clock of its own.

Theory of operation
-------------------
The host's process may be stopped, and then does late what it was to do.  So may the guard,
which is the workers' parent: it is told the deadline and what to start, in order.  But its
deadline is a timer of the kernel that kills it, stopped or not, and its death kills the
workers.  While the machine sleeps nothing happens in it; when it wakes, timers come first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from ...core.lease import HostLease
from ...core.terms import Tenure
from .surroundings import AroundMachine

HELLO_AFTER = 3
"""A host that got no answer for so many turns tries a new connection."""


@dataclasses.dataclass(slots=True, eq=False)
class Worker:
    """One execution, which is alive."""

    number: int
    request: int
    tenure: Tenure
    epoch: bytes
    machine: Machine

    @property
    def sleeps(self) -> bool:
        """Whether its machine does."""
        return self.machine.sleeps > 0

    @property
    def where(self) -> str:
        """The name of its machine."""
        return self.machine.name


class Left(NamedTuple):
    """The word of a hello on the tenures before."""

    epoch: bytes = b""
    """The router that one of them was with."""
    continues: tuple[Tenure, ...] = ()
    to: bytes = b""
    running: tuple[int, ...] = ()


class Queue:
    """The tasks of a process, which may be stopped."""

    def __init__(self) -> None:
        self.stops = 0
        self._late: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def run(self, act: Callable[..., None], *args: Any) -> None:
        """Do it now, or when the process goes on."""
        if self.stops:
            self._late.append((act, args))
        else:
            act(*args)

    def go_on(self) -> None:
        """One stop less."""
        self.stops -= 1
        if not self.stops:
            late, self._late = self._late, []
            for act, args in late:
                self.run(act, *args)


class Machine:
    """One machine with one host at most."""

    def __init__(self, world: AroundMachine, index: int, name: str, rate: float) -> None:
        self.world = world
        self.index = index
        self.name = name
        self.rate = rate
        self.sleeps = 0
        self.sleeping_since_s = 0.0
        self.slept_s = 0.0
        self.workers: dict[int, Worker] = {}
        self.host = Queue()
        self.guard = Queue()
        self.frozen = 0
        """How many stops there are of the workers."""
        self.process = 0
        """Which process of the host it is; even: none runs."""
        self.lease = HostLease(b"")
        self.past: list[Tenure] = []
        """Tenures whose workers it knows to be dead."""
        self.unanswered = 0
        self.guards = 0
        """Which guard it is; even: none runs."""
        self.deadline_s: float | None = None
        self.doomed = False
        self.left = Left()
        self.seen: set[int] = set()
        self.ended: dict[int, bool] = {}

    # -- time -----------------------------------------------------------------

    def boot_s(self) -> float:
        """The clock that runs while the machine sleeps."""
        return 1000.0 + self.rate * self.world.now_s

    def true_s(self, boot_s: float) -> float:
        """When this clock says so."""
        return (boot_s - 1000.0) / self.rate

    def sleep(self) -> None:
        """Nothing happens in it from now on."""
        self.sleeps += 1
        if self.sleeps == 1:
            self.sleeping_since_s = self.world.now_s
        self.host.stops += 1
        self.guard.stops += 1

    def wake(self) -> None:
        """Timers first, then what runs."""
        self.sleeps -= 1
        if not self.sleeps:
            self.slept_s += self.world.now_s - self.sleeping_since_s
            if self.doomed or self.is_due():
                self.kill_guard()
            self.world.judge.woke([*self.workers.values()])
        self.host.go_on()
        self.guard.go_on()

    def is_due(self) -> bool:
        """Whether the guard's time has come."""
        return self.deadline_s is not None and self.boot_s() >= self.deadline_s - 1e-9

    # -- the host -------------------------------------------------------------

    def start_host(self, past: list[Tenure]) -> None:
        """A process of the host starts; ``past`` is what its lock proves."""
        assert not self.workers
        self.process += 1
        self.past = list(past)
        self._begin()
        self._turn(self.process)

    def kill_host(self) -> None:
        """Its process is killed, and so is its guard."""
        self.process += 1
        self.kill_guard()

    def is_running(self) -> bool:
        """Whether a process of the host is there."""
        return self.process % 2 == 1

    def _runs(self, process: int) -> bool:
        return self.is_running() and process == self.process

    def _begin(self) -> None:
        self.lease.begin(self.world.new_id())
        self.left = Left()
        self.seen, self.ended = set(), {}
        self.unanswered = 0
        self._new_guard()

    def _turn(self, process: int) -> None:
        if process != self.process:
            return
        lease = self.lease
        if lease.over:
            self.kill_guard()
            self.past = [*self.past[-3:], *self.left.continues, lease.tenure]
            self._begin()
        self.unanswered += 1
        if not lease.epoch or self.unanswered % HELLO_AFTER == 0:
            self.hello()
        if lease.epoch:
            beat = lease.beat(self.boot_s())
            ended = tuple(self.ended.items())
            self.world.to_router(self, "beat", lease.tenure, beat, ended)
        quarter_s = min(lease.fence_s or 2.0, 20.0) / 4 if self.world.plan.lease else 1.0
        period_s = quarter_s * self.world.luck.uniform(0.9, 1.1)
        self.world.after(period_s, self.host.run, self._turn, process)

    def hello(self) -> None:
        """Join, or come back over a new connection."""
        lease = self.lease
        hello = lease.hello()
        left = Left(lease.epoch) if lease.epoch else self.left
        self.world.to_router(self, "hello", lease.tenure, hello, tuple(self.past), left)

    def receive(self, process: int, kind: str, tenure: Tenure, *rest: Any) -> None:
        """A message of a router has arrived."""
        if self._runs(process) and tenure == self.lease.tenure:
            getattr(self, f"on_{kind}")(*rest)

    def on_welcome(self, hello: int, epoch: bytes, fence_s: float) -> None:
        """A hello was answered."""
        if self.lease.welcomed(hello, epoch, fence_s):
            self.left = Left()

    def on_moved(self, hello: int, epoch: bytes) -> None:
        """Another router is there, and takes over what runs."""
        lease, left = self.lease, self.left
        if hello == lease.hellos and not lease.over:
            running = tuple(sorted(n for n in self.seen if n not in self.ended))
            continues = (*left.continues, lease.tenure)
            self.left = Left(lease.epoch or left.epoch, continues, epoch, running)
            lease.go_on(self.world.new_id())
            self.hello()

    def on_refused(self, hello: int) -> None:
        """The tenure is over."""
        self.lease.refused(hello)

    def on_answer(
        self, number: int, wanted: tuple[tuple[int, int], ...], stop: tuple[int, ...] = ()
    ) -> None:
        """A beat was answered, with what the router wants to run here, and to stop."""
        deadline_s = self.lease.answer(self.lease.tenure, number)
        self.unanswered = 0
        if deadline_s is not None:
            self.tell_guard(deadline_s)
        self.on_wanted(wanted)
        for each in stop:
            self.guard.run(self._stop, each)

    def on_wanted(self, wanted: tuple[tuple[int, int], ...]) -> None:
        """Start what was not seen yet, as long as the lease holds."""
        for number, request in wanted:
            if number not in self.seen and self.lease.holds(self.boot_s()):
                self.seen.add(number)
                made = Worker(number, request, self.lease.tenure, self.lease.epoch, self)
                self.guard.run(self._start, self.guards, made)

    def _guard_ended(self, process: int, guard: int) -> None:
        if self._runs(process) and guard == self.guards:
            self.ended |= {n: False for n in self.seen if n not in self.ended}
            self._new_guard()

    # -- the guard ------------------------------------------------------------

    def _new_guard(self) -> None:
        if self.guards % 2 == 0:
            self.guards += 1
        self.deadline_s, self.doomed = None, False

    def _has_guard(self, guard: int) -> bool:
        return guard % 2 == 1 and guard == self.guards

    def tell_guard(self, deadline_s: float) -> None:
        """By then it must be dead."""
        self.guard.run(self._told, self.guards, deadline_s)

    def _told(self, guard: int, deadline_s: float) -> None:
        if not self._has_guard(guard) or self.doomed:
            return
        self.deadline_s = max(self.deadline_s or 0.0, deadline_s)
        self.arm(guard)

    def arm(self, guard: int) -> None:
        """Set the kernel's timer."""
        assert self.deadline_s is not None
        at_s = max(self.true_s(self.deadline_s), self.world.now_s)
        self.world.after(at_s - self.world.now_s, self.timer, guard)

    def timer(self, guard: int) -> None:
        """It may have come; it is as late as a guard may be."""
        if guard == self.guards and not self.sleeps and not self.doomed and self.is_due():
            self.doomed = True
            late_s = self.world.luck.choice((0.0, 1.0)) * self.world.plan.guard_s
            self.world.after(late_s, self._fire, guard)

    def _fire(self, guard: int) -> None:
        if guard == self.guards and not self.sleeps:
            self.kill_guard()

    def kill_guard(self) -> None:
        """Its death is that of all workers; the host's process notices."""
        if self.guards % 2 == 0:
            return
        self.guards += 1
        self.deadline_s, self.doomed = None, False
        self.workers.clear()
        self.host.run(self._guard_ended, self.process, self.guards)

    # -- workers --------------------------------------------------------------

    def _start(self, guard: int, worker: Worker) -> None:
        if not self._has_guard(guard):
            return  # the host hears that it has ended, and so have all that it has seen
        if self.doomed or not self.may_start():
            self.host.run(self._worker_ended, worker, False)
            return
        self.workers[worker.number] = worker
        self.world.judge.started(worker)
        self.world.after(self.world.lasts_s(), self._end, worker)

    def may_start(self) -> bool:
        """Whether the guard has a deadline that has not come."""
        return self.deadline_s is not None and not self.is_due()

    def _stop(self, number: int) -> None:
        worker = self.workers.get(number)
        if worker is not None:
            self.world.after(self.world.luck.uniform(0.1, 5.0), self._end, worker)
        elif number not in self.seen:  # it never came, and never will run
            self.seen.add(number)
            self.ended[number] = False

    def _end(self, worker: Worker) -> None:
        if self.workers.get(worker.number) is not worker:
            return
        if self.sleeps or self.frozen:
            self.world.after(1.0, self._end, worker)
            return
        del self.workers[worker.number]
        self.host.run(self._worker_ended, worker, True)

    def _worker_ended(self, worker: Worker, done: bool) -> None:
        if worker.number in self.seen:
            self.ended.setdefault(worker.number, done)
