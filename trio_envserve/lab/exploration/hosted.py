"""Two hosts, their leases, and the router that counts them, as actors and as configurations.

Theory of operation
-------------------
Router, :class:`~.host_pool.Hosts`, :class:`~.host.Host` and the workers are the cores that ship,
joined as the server and the host's shell join them.  A caller is played by the server: its one
request has consent to be run again, and is asked again once the epoch that it was asked in is
proven dead.

*Time.*  The router's own clock stands still, as in :mod:`.calls`.  Leases are about time: it
passes by ticks, which are few, and each clock is as slow or as fast as the terms allow.  Within
a tick everything may come in any order.  A guard whose time has come kills at any moment before
the terms say that it has.  With these terms a host fences after two ticks, its guard may need one
more, and the router waits for three: a margin that is shorter by anything is seen.

*What is played.*  A guard is a process between host and workers: what it is told waits while it
is stopped, its timer is the kernel's, and its death is that of all workers.  A machine that sleeps
hears nothing, and no timer of it fires; when it wakes, timers come first.  What has come for it
meanwhile it hears then.

*Sizes.*  A start, a hello and an end of a worker are messages of their own, so there are many
more states than leases alone would have: hence one host where one is enough.

What is on its way to a router that has been killed may arrive at the next one; the connections of
hosts are lost then.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ...core import host_messages, messages
from ...core.earlier_epochs import EarlierEpochs, EpochWait
from ...core.executions import Worker as KnownWorker
from ...core.host import Host
from ...core.host_effects import (
    KillWorker,
    NewGuard,
    SetDeadline,
    StartWorker,
    TellWorker,
    ToRouter,
)
from ...core.host_link import Outbox, What
from ...core.host_lives import WorkerLife
from ...core.host_pool import Hosts, ToHost
from ...core.journal import plain_of, record_of
from ...core.key_records import KeyAct, input_digest
from ...core.lease import NO_LEASE_S, Holding, Leases, LeaseTerms
from ...core.limits import ServerLimits, WireLimits
from ...core.lives import Phase
from ...core.remote_hosts import RemoteHost
from ...core.router import Router
from ...core.router_effects import Kill, RouterEffect, Save, Spawn
from ...core.router_inputs import (
    HostsDead,
    HostsLive,
    PoolOpened,
    Restored,
    RouterInput,
    Saved,
    Tick,
    WorkerBack,
)
from ...core.server_hosts import ServerHosts
from ...core.slots import Slot
from ...core.terms import Incarnation, Status, Tenure
from ...core.worker import WorkerCore
from ...core.worker_effects import CancelRun, Exit, Run
from ...core.worker_effects import ToRouter as WorkerSays
from ...core.worker_inputs import (
    BeatDue,
    EnvironmentReady,
    OutcomeMade,
    RouterMessage,
    WorkerInput,
)
from ...host import guard
from ...retrylab import Actor, Bounds, Choice, Event, Judge, Rule, System, Violation
from ...retrylab.values import Forms
from . import names
from .calls import (
    CONFIGURATION_RULE,
    LONG_AGO_S,
    NOW_S,
    SERVER,
    Described,
    Process,
    Running,
    Server,
    frames_of,
    header_of,
)
from .keyed import KEY, MOST_BYTES, NAMESPACE, Row, compacted
from .rules import FORMS
from .wire import Frames, Mail, describe

TICK_S = 5.0
GUARD_S = TICK_S
"""A guard is at most so late, in seconds."""
DRIFT = 0.5
"""So much that the lengths of time in which it matters are few ticks."""
SLOW, FAST = 1 - DRIFT, 1 + DRIFT
CLOCKS = (
    (SLOW, SLOW, FAST), (FAST, FAST, SLOW), (SLOW, FAST, FAST), (SLOW, SLOW, SLOW),
    (FAST, FAST, FAST), (FAST, SLOW, FAST), (SLOW, FAST, SLOW), (FAST, SLOW, SLOW),
)  # fmt: skip
"""Rates of the clocks: of both machines, and of the router."""
HOSTS = ("h0", "h1")
TIME = "time"
ROUNDS = 40
"""Rounds on the way to rest: in each all hosts have a turn."""
ROUNDS_OF_A_TICK = 4
"""The last of so many rounds is a tick."""
BODY = b"work"
HEADER_BYTES = 1 << 20


class HostMail(NamedTuple):
    """Message between a host and its router."""

    route: bytes
    """Route of the connection that it was sent over."""
    frames: Frames


def told(mail: Any) -> str:
    """Message as text, for people."""
    if not isinstance(mail, HostMail):
        return describe(mail)
    message, rest = host_messages.decode([*mail.frames], most_bytes=HEADER_BYTES)
    name = type(message).__name__.removeprefix("Host")
    if isinstance(message, host_messages.Items):
        said = []
        for what, worker, count in zip(message.what, message.workers, message.frames, strict=True):
            header, rest = header_of(frames_of(rest[:count])), rest[count:]
            inner = f" {type(header).__name__}" if header is not None else ""
            said.append(f"{What(what).name} {worker.decode()}{inner}")
        return f"{name} {message.first}({', '.join(said)})"
    shown = {
        field: value for field, value in zip(message._fields, message, strict=True)
        if field in ("hello", "beat", "answered", "code", "sent", "have") or
        (field in ("ended", "continues") and value)
    }  # fmt: skip
    return f"{name}({', '.join(f'{field}={value}' for field, value in shown.items())})"


def named(incarnation: Incarnation) -> str:
    """Name of a worker's incarnation, for people and for the judge."""
    return incarnation.decode().rstrip(".")


# -- time ------------------------------------------------------------------------------------


class Time(Actor):
    """True time, which passes by ticks."""

    def __init__(self, configuration: HostConfiguration) -> None:
        self.configuration = configuration
        self.ticks = 0
        self.rounds = 0

    def choices(self) -> Iterator[Choice]:
        """A tick; on the way to rest a round."""
        for clocks in range(1 if self.ticks else self.configuration.clocks):
            yield Choice("tick", (clocks,), bound="ticks")
        if self.rounds < ROUNDS:
            yield Choice("round", when="rest")

    def on_choice(self, name: str, *args: Any) -> None:
        """Let it happen."""
        if name == "tick":
            self._pass(*args)
            return
        self.rounds += 1
        for host in HOSTS[: self.configuration.hosts]:
            self.notify(host, ("round", self.rounds % ROUNDS_OF_A_TICK == 1))
        self.notify(SERVER, ("round",))
        if self.rounds % ROUNDS_OF_A_TICK == 0:
            self._pass(0)

    def _pass(self, clocks: int) -> None:
        """The time passes for all at once; machines come first, so that guards kill in time."""
        self.ticks += 1
        for name, rate in zip((*HOSTS, SERVER), CLOCKS[clocks], strict=True):
            if name not in HOSTS[self.configuration.hosts :]:
                self.notify(name, ("tick", self.ticks, rate if self.ticks == 1 else None))


# -- machines --------------------------------------------------------------------------------


class Tenures:
    """Source of a machine's ids."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.drawn: tuple[Tenure, ...] = ()

    def __call__(self) -> Tenure:
        """The next one."""
        self.drawn = (*self.drawn, names.tenure(self.machine, len(self.drawn) + 1))
        return self.drawn[-1]


class Machine(Actor):
    """A machine: a host's process, its guard, and its workers."""

    def __init__(self, configuration: HostConfiguration) -> None:
        self.configuration = configuration
        self.ticks, self.rate = 0, SLOW
        self.missed = 0
        """Ticks that its clock has missed: none, as long as it runs while the machine sleeps."""
        self.host: Host | None = None
        self.connections = 0
        self.first_hello: HostMail | None = None
        self.has_lost = False
        """Whether the router of its connection was killed."""
        self.opening = configuration.opening
        """Beats that are still to come before the search begins."""
        self.processes: dict[bytes, Process] = {}
        self.deadline_s: float | None = None
        """Time on this machine's clock at which the guard's timer fires; None: it has none."""
        self.doomed = False
        """Whether the guard's time has come, and it kills at any moment."""
        self.stopped = False
        """Whether the guard is stopped."""
        self.for_guard: tuple[Any, ...] = ()
        """Commands that a stopped guard has not read."""
        self.asleep = False
        self.late: tuple[Any, ...] = ()
        """What has come while it slept."""
        self.cut: tuple[str, ...] = ()
        """Directions in which nothing passes between the host and its router: up, down."""

    def on_start(self) -> None:
        """The host begins, unless it is a second one with the id of the first."""
        self.tenures = Tenures(self.name)
        if not self.configuration.copies or self.name == HOSTS[0]:
            self._begin()

    # -- time -----------------------------------------------------------------------

    def boot_s(self) -> float:
        """The clock of beats and of the guard's timer."""
        return 1000.0 + self.rate * (self.ticks - self.missed) * TICK_S

    def _true_s(self, boot_s: float) -> float:
        return (boot_s - 1000.0) / self.rate + self.missed * TICK_S

    def is_due(self) -> bool:
        """Whether the guard's time has come."""
        return self.deadline_s is not None and self.boot_s() >= self.deadline_s

    def _passes(self, ticks: int, rate: float | None) -> None:
        """The time passes.  A guard that is as late as may be kills before."""
        dead_by_s = self._true_s(self.deadline_s or 0.0) + GUARD_S
        if self._may_fire() and dead_by_s <= ticks * TICK_S:
            self._fire()
        self.ticks = ticks
        # A clock that stands still in sleep would miss that.
        self.missed += self.asleep and guard.TIMER_CLOCK != guard.BOOTTIME
        if rate is not None:  # all clocks read the same at the beginning, however fast they are
            self.rate = rate
        self.timer()

    def timer(self) -> None:
        """The kernel's timer fires if it is due."""
        self.doomed = self.doomed or (self.is_due() and not self.asleep)

    def _may_fire(self) -> bool:
        """Whether the signal of the timer may kill now: SIGKILL does while the guard is stopped."""
        needs_nobody = guard.TIMER_SIGNAL == signal.SIGKILL
        return self.doomed and not self.asleep and (needs_nobody or not self.stopped)

    # -- what may happen ---------------------------------------------------------------

    def choices(self) -> Iterator[Choice]:
        """Inputs of the machine, and faults."""
        asked = self.configuration
        if self.asleep:
            yield Choice("wake")
            return
        if self.host is None:
            first = self.name == HOSTS[0] or not asked.copies or self.tenures.drawn
            yield Choice("begin", bound="" if first else "copies")
        if self.stopped:
            yield Choice("resume")
        if self._may_fire():
            yield Choice("fire")
        for worker, process in self.processes.items():
            for run in process.runs:
                yield Choice("end", (worker, run.number), when="patient")
        if not asked.lasting:
            for way in self.cut:
                yield Choice("heal", (way,))
        if self.first_hello is not None:
            yield Choice("again", bound="lates")
        for way in ("up", "down"):
            if way not in self.cut:
                yield Choice("sever", (way,), bound="cuts")
        if self.host is None:
            return
        if self.has_lost:
            yield Choice("connect")
        if self.opening:
            yield Choice("open")
        yield Choice("turn", bound="turns")
        yield Choice("connect", bound="reconnects")
        yield Choice("crash", bound="crashes")
        yield Choice("sleep", bound="sleeps")
        if not self.stopped:
            yield Choice("stop", bound="stops")

    def on_choice(self, name: str, *args: Any) -> None:
        """Let it happen."""
        getattr(self, f"_{name}")(*args)
        self._carry_out()

    def on_message(self, sender: str, message: HostMail) -> None:
        """A message of the router, unless it came for an earlier connection."""
        if "down" in self.cut or self.host is None or message.route != self._route():
            return
        if self.asleep:
            self.late = (*self.late, message)
            return
        self._hear(message)
        self._carry_out()

    def _hear(self, message: HostMail) -> None:
        if self.host is not None and message.route == self._route():
            self.host.message([*message.frames], self.boot_s())

    def on_notice(self, peer: str, what: Any) -> None:
        """The time passes, or the router that it was connected to is dead."""
        match what:
            case ("tick", ticks, rate):
                self._passes(ticks, rate)
            case ("round", is_new):
                self._round(is_new=is_new)
            case ("lost",):
                self.has_lost = True
        self._carry_out()

    def _round(self, *, is_new: bool) -> None:
        """A turn on the way to rest, over a new connection if ``is_new``: what runs ends."""
        if self.host is not None and not self.asleep:
            if is_new:
                self._connect()
            self._turn()
            for process in [*self.processes.values()]:
                for run in process.runs:
                    self._end(process.id, run.number)
                self._take(process, BeatDue({}))

    # -- the host ------------------------------------------------------------------------

    def _route(self) -> bytes:
        return b"%b.%d" % (self.name.encode(), self.connections)

    def _begin(self) -> None:
        """A process of the host starts: its lock proves its earlier tenures dead."""
        host = HOSTS[0] if self.configuration.copies else self.name
        self.host = Host(host, 1, self.tenures, past=self.tenures.drawn[-16:])
        self._connect()
        self._carry_out()

    def _connect(self) -> None:
        """There is a new connection."""
        assert self.host is not None
        self.has_lost = False
        self.connections += 1
        self.host.disconnect()
        self.host.connect()

    def _turn(self) -> None:
        """It is time for a beat, and, if no router has answered, for another hello."""
        assert self.host is not None
        self.host.beat(self.boot_s())
        if not self.host.is_joined:
            self.host.connect()

    def _open(self) -> None:
        self.opening -= 1
        self._turn()

    def _again(self) -> None:
        """A copy of the first hello comes late."""
        assert self.first_hello is not None
        self.send(SERVER, self.first_hello)

    def _crash(self) -> None:
        """The host's process is killed, and its guard ends with it."""
        self.host = None
        self._new_guard()
        for process in [*self.processes.values()]:
            self._ended(process)

    def _sleep(self) -> None:
        self.asleep = True
        self.did("", ("slept",))

    def _wake(self) -> None:
        """Timers come first, then what runs."""
        self.asleep = False
        self.timer()
        if self.doomed and guard.TIMER_SIGNAL == signal.SIGKILL:
            self._fire()
        self.did("", ("woke",))
        late, self.late = self.late, ()
        for message in late:
            self._hear(message)
            self._carry_out()

    def _sever(self, way: str) -> None:
        self.cut = (*self.cut, way)

    def _heal(self, way: str) -> None:
        self.cut = tuple(each for each in self.cut if each != way)

    # -- the guard ----------------------------------------------------------------------

    def _stop(self) -> None:
        self.stopped = True

    def _resume(self) -> None:
        self.stopped = False
        commands, self.for_guard = self.for_guard, ()
        for command in commands:
            self._command(*command)

    def _tell_guard(self, *command: Any) -> None:
        if command[0] == "deadline" and guard.TIMER_FLAGS != guard.ABSOLUTE:
            command = ("left", command[1] - self.boot_s())
        if self.stopped:
            self.for_guard = (*self.for_guard, command)
        else:
            self._command(*command)

    def _command(self, name: str, *args: Any) -> None:
        getattr(self, f"_guard_{name}")(*args)

    def _guard_deadline(self, deadline_s: float) -> None:
        if not self.doomed:
            self.deadline_s = max(self.deadline_s or 0.0, deadline_s)
            self.timer()

    def _guard_left(self, left_s: float) -> None:
        self._guard_deadline(self.boot_s() + left_s)

    def _guard_start(self, worker: bytes, incarnation: Incarnation) -> None:
        assert self.host is not None
        if not guard.may_start(self.deadline_s is not None) or self.doomed:
            self.host.exited(worker, "no guard starts it")
            return
        core = WorkerCore(incarnation, header_bytes=HEADER_BYTES)
        process = self.processes[worker] = Process(int(incarnation[1:2]), worker, core)
        self.host.spawned(worker, 1)
        self.did("", ("spawned", named(incarnation)))
        self._take(process, EnvironmentReady(1, "explored", False))

    def _guard_kill(self, worker: bytes) -> None:
        if worker in self.processes:
            self._reaped(self.processes[worker], "it was killed")

    def _fire(self) -> None:
        """The kernel kills the guard, and with it all workers; another one takes its place."""
        waiting = [args[0] for name, *args in self.for_guard if name == "start"]
        self._new_guard()
        for process in [*self.processes.values()]:
            self._reaped(process, "its guard has ended")
        if self.host is None:
            return
        for worker in waiting:
            self.host.exited(worker, "its guard has ended")
        lease = self.host.lease
        if lease.holds(self.boot_s()):
            self._tell_guard("deadline", lease.deadline_s)

    def _new_guard(self) -> None:
        self.deadline_s, self.doomed, self.stopped, self.for_guard = None, False, False, ()

    # -- workers --------------------------------------------------------------------------

    def _reaped(self, process: Process, how: str) -> None:
        self._ended(process)
        if self.host is not None:
            self.host.exited(process.id, how)

    def _ended(self, process: Process) -> None:
        del self.processes[process.id]
        self.did("", ("died", named(process.core.incarnation)))

    def _end(self, worker: bytes, number: int) -> None:
        """Environment code ends with its result."""
        process = self.processes[worker]
        process.runs = tuple(each for each in process.runs if each.number != number)
        self.did("", ("over", (named(process.core.incarnation), number)))
        self._take(process, OutcomeMade(number, Status.RESULT, b"1", None))

    def _take(self, process: Process, given: WorkerInput) -> None:
        assert self.host is not None
        for effect in process.core.take(given):
            match effect:
                case WorkerSays():
                    self.host.said(process.id, effect.frames)
                case Run():
                    session, _ = effect.request
                    process.runs = (*process.runs, Running(effect.number, BODY, session))
                    run = named(process.core.incarnation), effect.number
                    self.did("", ("started", run, int(session[1:2])))
                case CancelRun():  # it ends whenever it does
                    pass
                case Exit():
                    self._reaped(process, "exit 0")

    # -- effects --------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Carry out what the host wants."""
        if self.host is None:
            return
        self.host._boot_s = self.boot_s()  # what it read last, so that states differ by less
        self.host.flush()
        while self.host.out:
            out, self.host.out = self.host.out, []
            for effect in out:
                self._effect(effect)
            self.host.flush()  # what its workers have said meanwhile

    def _effect(self, effect: Any) -> None:
        match effect:
            case ToRouter():
                mail = HostMail(self._route(), frames_of(effect.frames))
                if self.configuration.lates and self.first_hello is None:
                    self.first_hello = mail
                if "up" not in self.cut:
                    self.send(SERVER, mail)
            case StartWorker(worker, incarnation, _):
                self._tell_guard("start", worker, incarnation)
            case KillWorker(worker, _):
                self._tell_guard("kill", worker)
            case TellWorker(worker, frames):
                if worker in self.processes:
                    self._take(self.processes[worker], RouterMessage(frames))
            case SetDeadline(deadline_s):
                self._tell_guard("deadline", deadline_s)
            case NewGuard():
                self._new_guard()


# -- the server ------------------------------------------------------------------------------


class HostServer(Server):
    """A router with its hosts, of one life after another, and the caller of one request."""

    configuration: Any

    def __init__(self, configuration: HostConfiguration) -> None:
        super().__init__(configuration)  # type: ignore[arg-type]  # what it needs of it is here
        self.ticks, self.rate = 0, FAST
        self.life = -1
        self.rows: tuple[Row, ...] = ()
        """The journal."""
        self.waits: tuple[EpochWait, ...] = ()
        """The records of routers for their successors."""
        self.asked_in: int | None = -1
        """Life of the router that has the caller's request; None: it is answered."""
        self.saving = 0
        """Number of records up to which this step has written; 0: all of them are safe."""

    def on_start(self) -> None:
        """The first router."""
        self.did("", ("asked",))
        self._make()
        self._begin()

    def clock_s(self) -> float:
        """The router's clock, by which it counts leases."""
        return 50.0 + self.rate * self.ticks * TICK_S

    # -- routers that follow each other ---------------------------------------------------

    def _make(self) -> None:
        """The next router, which has not begun."""
        self.life += 1
        self.alive = False
        self.new_id = names.ServerIds(self.life)
        self.router = Router(
            epoch=names.epoch(self.life), slots=0, now_s=NOW_S, new_id=self.new_id,
            limits=ServerLimits(worker_capacity=1, session_share=1.0), wire=WireLimits(),
            heartbeats=False, journaled=self.configuration.journal,
        )  # fmt: skip
        asked = self.configuration
        fence_s = asked.next_fence_s if self.life % 2 else asked.fence_s
        terms = LeaseTerms(fence_s if asked.lease else NO_LEASE_S, drift=DRIFT, guard_s=GUARD_S)
        self.hosts = ServerHosts(self.router, terms)

    def _begin(self) -> None:
        journal = self.configuration.journal
        self.alive = True
        self.hosts.earlier = EarlierEpochs(self.waits, self.clock_s())
        if self.life and journal:
            self.take(Restored(tuple(map(record_of, self.rows)), NOW_S))
        if journal or not self.waits:
            self._open()

    def _open(self) -> None:
        """Welcome hosts.  Without a journal nothing of the routers before lives any more."""
        self.hosts.open(self.hosts.earlier if self.configuration.journal else None)
        waits = {each.epoch for each in self.hosts.earlier.waits}
        self._write()
        if waits:
            self.take(HostsLive(NOW_S))
        dead = [life for life in range(self.life) if names.epoch(life) not in waits]
        self._dead(dead)
        self.take(PoolOpened([*map(names.epoch, dead)], NOW_S))
        self._call()

    def _dead(self, lives: Sequence[int]) -> None:
        if lives:
            self.did("", ("dead", *lives))

    def _write(self) -> None:
        """Write down what a later server must know."""
        record = self.hosts.record(self.clock_s())
        if record is not None:
            self.waits = record
            self.hosts.written(record)

    def _fall(self) -> None:
        self._make()

    def _replace(self) -> None:
        for host in HOSTS[: self.configuration.hosts]:
            self.notify(host, ("lost",))
        self._begin()
        self._send_to_hosts()

    # -- inputs ---------------------------------------------------------------------------

    def choices(self) -> Iterator[Choice]:
        """The router's turn, if something comes of it, and its end."""
        if not self.alive:
            yield Choice("replace")
            return
        if self._is_due():
            yield Choice("rule")
        yield Choice("fall", bound="falls")

    def _is_due(self) -> bool:
        now_s, leases = self.clock_s(), self.hosts.hosts.leases
        unknown = self.router.dispatcher.dispatches.unknown.live_executions
        if not unknown and copy.copy(self.hosts.earlier).take_dead(now_s):
            return True
        if any(s.is_open and not s.life and s.start_at_s <= NOW_S for s in self.router.pool.slots):
            return True
        if any(now_s >= leases._dead_at_s(each) for each in leases.holdings.values()):
            return True
        for host in self.hosts.hosts.hosts.values():
            fresh = leases.is_fresh(host.holding, now_s) and not host.broken
            if fresh != host.fresh or (fresh and not host.slots and not host.set_aside):
                return True
        return False

    def on_notice(self, peer: str, what: Any) -> None:
        """The time passes, or nothing else goes on: then pauses end, too."""
        if what[0] == "tick":
            _, self.ticks, rate = what
            self.rate = self.rate if rate is None else rate
        for slot in self.router.pool.slots:
            slot.pause_s = 0.0
            slot.start_at_s = min(slot.start_at_s, NOW_S)

    def on_message(self, sender: str, message: Any) -> None:
        """A message of a host; before hosts are welcome one only hears that its tenure is
        over."""
        if not self.alive:
            return
        if self.hosts.is_open:
            self._give(self.hosts.message(message.route, message.frames, self.clock_s()))
            self._send_to_hosts()
        elif (told := self.hosts.end_tenure(message.route, message.frames)) is not None:
            self._to_host(told)

    def _rule(self) -> None:
        """The router's turn: look who is lost, and who gets work."""
        if self.hosts.is_open:
            self._give(self.hosts.tick(self.clock_s()))
        elif self.hosts.earlier.have_ended(self.clock_s()):
            self._open()
        self._send_to_hosts()

    def _give(self, inputs: Iterable[Any]) -> None:
        """Give the router the inputs that follow from hosts; its own clock stands still."""
        for given in inputs:
            if isinstance(given, HostsDead):
                dead = given.dead_epochs
                self._dead([life for life in range(self.life) if names.epoch(life) in dead])
            self.take(given._replace(now_s=NOW_S) if "now_s" in given._fields else given)
            if isinstance(given, WorkerBack):
                self._taken(given)
        self.take(Tick(NOW_S))
        self._call()

    def _taken(self, back: WorkerBack) -> None:
        """What a worker that is back runs, and the journal knows, is this router's now."""
        worker = self.router.workforce.workers.get(back.worker)
        unknown = self.router.dispatcher.dispatches.unknown
        for number, execution in worker.live.items() if worker is not None else ():
            if execution.session is not unknown:
                self.did("", ("taken", (named(back.incarnation), number), self.life))

    # -- the caller -------------------------------------------------------------------------

    def _call(self) -> None:
        """Ask in this life, if what was asked before is known to run no more; under a key in
        any case."""
        asked, before = self.configuration, self.asked_in
        if not self.hosts.is_open or before is None or before == self.life:
            return
        nonce = names.nonce(0, 1)
        session = names.session(self.life, nonce)
        is_keyed = asked.journal and asked.keyed
        if before >= 0 and not is_keyed:
            old = names.session(before, nonce)
            said = self._say(messages.Sync(old, names.epoch(before), 1, 1, 1, [0, 1]))
            if not any(isinstance(each, messages.Unknown) and each.gone for each in said):
                return
        self.asked_in = self.life
        self._say(messages.Hello(1, nonce, 1, "c0", MOST_BYTES))
        digest = input_digest(BODY, True)
        if is_keyed:
            earlier = 1 if before >= 0 else None
            self._say(
                messages.KeyedRequest(
                    session, 0, digest, True, ALLOWANCE, None, nonce, KeyAct.ASK, NAMESPACE, KEY,
                    b"", earlier, True,
                ),
                BODY,
            )  # fmt: skip
        else:
            self._say(messages.Request(session, 0, digest[:16], True, ALLOWANCE, None), BODY)

    def _say(self, message: Any, *more: bytes) -> list[Any]:
        return self.hear(
            Mail(names.route(0, 1), Frames((messages.encode(message), *more))), message
        )

    # -- effects ------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let every wait for last words be due, and every start but one after a pause, which lasts
        until the next tick; no lease of the caller."""
        super().calm()
        for slot in self.router.pool.slots:
            if not slot.pause_s and slot.start_at_s < math.inf:
                slot.start_at_s = NOW_S
        for life in self.router.pool.lives.values():
            if life.phase is Phase.REAPED:
                life.left_s = LONG_AGO_S

    def take(self, given: RouterInput, *, repairs: bool = False) -> list[Any]:
        """See :meth:`.Server.take`.  What is written is safe at once."""
        lives = self.router.pool.lives
        self.incarnations = {each: life.incarnation for each, life in lives.items()}
        said = super().take(given)
        while self.saving:
            upto, self.saving = self.saving, 0
            said += super().take(Saved(upto, NOW_S))
        del self.incarnations
        return said

    def _spawn(self, effect: Spawn) -> None:
        assert self.hosts.hosts.take(effect)

    def _kill(self, worker: bytes) -> None:
        self.hosts.hosts.take(Kill(worker, "it is killed"))

    def _lost(self, worker: bytes) -> None:
        self.did("", ("lost", named(self.incarnations[worker])))

    def _more(self, effect: RouterEffect) -> None:
        if isinstance(effect, Save):
            rows = tuple(tuple(plain_of(each)) for each in effect.records)
            self.rows = compacted((*self.rows, *rows))
            self.saving = effect.upto

    def _to_client(self, route: bytes, frames: Frames) -> Any:
        header = header_of(frames)
        if isinstance(header, messages.Outcome):
            self.did("", ("answered",))
            self.asked_in = None
        return header

    def _to_worker(self, worker: bytes, frames: Frames, *, repairs: bool) -> None:
        self.hosts.hosts.tell(worker, [frames])

    def _send_to_hosts(self) -> None:
        """Send what is for hosts, once it is written down who is here."""
        self._write()
        self.hosts.hosts.flush()
        for effect in self.hosts.effects():
            if isinstance(effect, ToHost):
                self._to_host(effect)

    def _to_host(self, told: ToHost) -> None:
        mail = HostMail(told.route, frames_of(told.frames))
        self.send(told.route.decode().partition(".")[0], mail)

    def on_rest(self) -> None:
        """Say nothing: the judge knows what its one caller waits for."""


# -- the judge --------------------------------------------------------------------------------

Started: TypeAlias = tuple[str, int]
"""An execution: name of its worker's incarnation, number of its dispatch."""


class LeaseJudge(Judge):
    """What must hold of one request on machines whose workers nobody can reap from here.

    A worker of a machine that sleeps runs no code: what counts is whether it would run again,
    once the machine has woken and its timers have fired."""

    def __init__(self) -> None:
        self.waits = False
        """Whether the caller waits."""
        self.homes: dict[str, str] = {}
        """Machine of each worker that lives."""
        self.asleep: set[str] = set()
        self.live: dict[Started, int] = {}
        """Life of the router that each execution that lives is of."""
        self.started: set[Started] = set()
        self.lost: set[str] = set()
        """Workers that were declared lost."""
        self.dead: set[int] = set()
        """Lives of routers of which nothing lives, as was said."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Violations that an event shows."""
        suspects: Collection[Started] = ()
        match event.what:
            case ("asked",):
                self.waits = True
            case ("answered",):
                self.waits = False
            case ("spawned", incarnation):
                self.homes[incarnation] = event.actor
            case ("died", incarnation):
                del self.homes[incarnation]
                self.live = {run: of for run, of in self.live.items() if run[0] != incarnation}
            case ("started", run, life):
                if run in self.started:
                    yield event.breaks("G2", f"{_said(run)} begins a second time")
                self.started.add(run)
                self.live[run] = life
                suspects = [run]
            case ("over", run):
                del self.live[run]
            case ("slept",):
                self.asleep.add(event.actor)
            case ("woke",):
                self.asleep.discard(event.actor)
                suspects = [run for run in self.live if self.homes[run[0]] == event.actor]
            case ("lost", incarnation):
                self.lost.add(incarnation)
                suspects = [run for run in self.live if run[0] == incarnation]
            case ("dead", *lives):
                self.dead.update(lives)
                suspects = [run for run, life in self.live.items() if life in lives]
            case ("taken", run, life) if run in self.live:
                self.live[run] = life
        awake = [run for run in self.live if self.homes[run[0]] not in self.asleep]
        for run in suspects:
            if run not in awake:
                continue
            if run[0] in self.lost or self.live[run] in self.dead:
                yield event.breaks("G1", f"{_said(run)} is declared lost, and lives")
            if len(awake) > 1:
                yield event.breaks("G1", f"{' and '.join(map(_said, awake))} run one request")

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by what has not come to its end."""
        if self.waits:
            yield Violation("G9", at_s, "the request is never answered")


def _said(run: Started) -> str:
    return f"execution {run[1]} of {run[0]}"


# -- which states are the same ----------------------------------------------------------------

_CONSTANT = Rule("the same in every state of a configuration")
_PEOPLE = Rule("for people and statistics; nothing is decided by it")
_ELSEWHERE = Rule("in the form of the server")

HOST_FORMS: Forms = {
    **FORMS,
    Time: CONFIGURATION_RULE,
    Machine: CONFIGURATION_RULE,
    HostServer: {**CONFIGURATION_RULE, "new_id": Rule("it draws ids by what is in the form")},
    Host: {
        **dict.fromkeys(("offers", "_least", "_wire", "_serves", "capacity", "name"), _CONSTANT),
        "_new_id": Rule("in the form of the machine"),
        "_boot_s": Rule("read anew in each step"),
        "refusal": _PEOPLE,
    },
    WorkerLife: {"pid": _PEOPLE},
    Outbox: {"bytes": Rule("follows from what is kept")},
    ServerHosts: {
        **dict.fromkeys(("_terms", "_wire", "_needs", "_serves", "_claim"), _CONSTANT),
        "_router": _ELSEWHERE,
        "_written": Rule("follows from the record on the disk, and whether hosts are welcome"),
    },
    Hosts: {
        **dict.fromkeys(("_needs", "_wire", "_serves", "_claim", "_tag"), _CONSTANT),
        "_pool": Rule("the router's"),
        "_past": _PEOPLE,
        "_of_worker": Rule(
            "in the form of the hosts",
            lambda hosts, of: tuple((name, host.holding.tenure) for name, host in of.items()),
        ),
        "_of_slot": Rule(
            "in the form of the hosts",
            lambda hosts, of: tuple((slot, host.holding.tenure) for slot, host in of.items()),
        ),
    },
    Leases: {"terms": Rule("follows from the life of the router"), "earlier": _ELSEWHERE},
    RemoteHost: {
        "holding": Rule("in the form of the leases", lambda host, of: of.tenure),
        "slots": Rule("in the form of the pool", lambda host, slots: len(slots)),
        "busy": _PEOPLE,
        "why": _PEOPLE,
    },
    Slot: {
        **FORMS[Slot],  # type: ignore[dict-item]  # it has rules
        "start_at_s": Rule("whether it is due", lambda slot, at_s: at_s <= NOW_S),
    },
    Holding: {"host": Rule("the name under which it is listed")},
    KnownWorker: {
        name: rule
        for name, rule in FORMS[KnownWorker].items()  # type: ignore[union-attr]  # it has rules
        if name not in ("results", "suspect", "resting")
    },
}
"""As :data:`.rules.FORMS`, for what hosts have besides."""


# -- configurations ---------------------------------------------------------------------------

ALLOWANCE = 9
"""Executions that the request allows: more than a configuration can come to."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostConfiguration(Described):
    """One or two hosts, a router, and a request with consent to be run again.

    What has no bound here is free: deliveries, the router's turns, ends of executions, the guard's
    kill, coming back of whatever was stopped, killed, asleep or cut off, and new connections to
    another router."""

    ALWAYS: ClassVar = ("ticks", "turns")
    BOUNDED: ClassVar = (
        "ticks", "turns", "lates", "cuts", "reconnects", "crashes", "copies", "sleeps", "stops",
        "falls",
    )  # fmt: skip
    workers: ClassVar = 2
    capacity: ClassVar = 1
    recycle: ClassVar[int | None] = None

    name: str
    hosts: int = 2
    opening: int = 2
    """Beats of each host that were answered at the beginning: after two the request runs."""
    clocks: int = 1
    """Number of ways in which the clocks drift: 1 is hosts as slow and a router as fast as may
    be, 8 are all in which each clock is as slow or as fast as may be."""
    journal: bool = False
    """Whether the router has one: then the next router takes over what runs."""
    keyed: bool = True
    """Whether the request has a key, if there is a journal."""
    lease: bool = True
    fence_s: float = 5.0
    next_fence_s: float = 5.0
    """That of every second router."""
    lasting: bool = False
    """Whether a cut is for ever."""

    ticks: int = 3
    """The time passes: by :data:`TICK_S`."""
    turns: int = 4
    """A host has its turn: it beats, or says hello."""
    lates: int = 0
    """A copy of a host's first hello arrives late."""
    cuts: int = 0
    """Nothing passes any more between a host and the router, in one direction."""
    reconnects: int = 0
    """A host says hello over another connection."""
    crashes: int = 0
    """A host's process is killed, and with it all workers of its machine."""
    copies: int = 0
    """The first host is started on the other machine, too, which has none of its own."""
    sleeps: int = 0
    """A machine sleeps: no code runs there, no timer fires, the time goes on."""
    stops: int = 0
    """A guard is stopped."""
    falls: int = 0
    """The router is killed."""

    def system(self) -> System:
        """It as a system."""
        actors: dict[str, Callable[[], Actor]] = {
            TIME: partial(Time, self), SERVER: partial(HostServer, self),
            **dict.fromkeys(HOSTS[: self.hosts], partial(Machine, self)),
        }  # fmt: skip
        return System(
            actors=actors, asks=lambda random: (), judges=[LeaseJudge], faults=(),
            forms=HOST_FORMS, describe=told,
            bounds=Bounds(
                asks=0, faults=sum(self.bounds.values()), each=self.bounds, prompt=True,
                settled=True, most_states=50_000_000,
            ),
        )  # fmt: skip


HOST_TABLE: tuple[HostConfiguration, ...] = (
    HostConfiguration(name="hosts-beat", ticks=3, turns=1),
    HostConfiguration(name="hosts-clocks", hosts=1, clocks=8, ticks=3, turns=1),
    HostConfiguration(name="hosts-start", hosts=1, opening=1, ticks=1, turns=2, crashes=1),
    HostConfiguration(name="hosts-deaf", ticks=0, turns=1, cuts=1, lasting=True),
    HostConfiguration(name="hosts-cut", hosts=1, ticks=0, turns=1, cuts=1),
    HostConfiguration(name="hosts-one-id", ticks=1, turns=1, copies=1),
    HostConfiguration(name="hosts-no-lease", ticks=17, turns=0, lease=False),
    HostConfiguration(name="hosts-sleep", ticks=4, turns=0, sleeps=1),
    HostConfiguration(name="hosts-guard", hosts=1, ticks=3, turns=1, stops=1),
    HostConfiguration(name="hosts-next", ticks=0, turns=0, falls=1),
    HostConfiguration(
        name="hosts-limits", hosts=1, ticks=3, turns=0, falls=1, journal=True, next_fence_s=1.0
    ),
    HostConfiguration(name="hosts-falls", hosts=1, ticks=0, turns=0, falls=2, journal=True),
    HostConfiguration(name="hosts-kept", hosts=1, ticks=3, turns=0, falls=1, journal=True),
    HostConfiguration(
        name="hosts-hello", hosts=1, lates=1, ticks=0, turns=0, crashes=1, falls=1, journal=True
    ),
    HostConfiguration(
        name="hosts-late", hosts=1, lates=1, ticks=1, turns=1, falls=1, journal=True, fence_s=1.0,
        next_fence_s=1.0,
    ),
    HostConfiguration(
        name="hosts-over-twice", hosts=1, ticks=2, turns=0, falls=2, journal=True,
        next_fence_s=1.0,
    ),
    HostConfiguration(name="hosts-unknown", ticks=0, turns=0, falls=1, journal=True, keyed=False),
    HostConfiguration(
        name="hosts-written-off", hosts=1, ticks=0, turns=1, falls=2, journal=True, keyed=False
    ),
    # Much of it.
    HostConfiguration(name="hosts", ticks=2, turns=1, crashes=1),
)  # fmt: skip
"""Those with hosts, the small ones first."""
