"""Whole systems of the shipped machines: a client, a router, and the hosts of two machines.

Theory of operation
-------------------
The lease alone is tried by :mod:`trio_envserve.lab.hosts`, on clocks that drift.  Here the
cores run as the shells run them: what the router wants of a worker is an item for its host,
what that says is an item for the router, and the workers are cores, too.  Messages between a
host and the router come late and in order; cuts lose them in one direction or both; a host's
process is stopped, or killed and started anew; workers die; a router is killed, and the next
one has no journal.  A guard kills at its deadline, whatever is stopped.

The judge sees all processes: no request ever has two live executions, none has more than it
consented to, no worker is killed for the silence of its host, and when it has been calm for long
every call is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from tests.core.helpers import Pair
from trio_envserve.core.client_effects import Reconnect
from trio_envserve.core.client_inputs import ClientTick, Connected
from trio_envserve.core.earlier_epochs import EarlierEpochs
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host import Host
from trio_envserve.core.host_effects import (
    KillWorker,
    NewGuard,
    Say,
    Serve,
    SetDeadline,
    StartWorker,
    TellWorker,
    ToRouter,
)
from trio_envserve.core.host_messages import (
    OVER,
    HostHello,
    HostRefused,
    decode,
    encode,
)
from trio_envserve.core.host_pool import Hosts, ToHost
from trio_envserve.core.lease import NO_LEASE_S, LeaseTerms
from trio_envserve.core.router_effects import Kill, Lost, Report, Spawn
from trio_envserve.core.router_inputs import PoolOpened, RouterInput, Tick
from trio_envserve.core.terms import Body, Status
from trio_envserve.core.worker import WorkerCore
from trio_envserve.core.worker_effects import Run
from trio_envserve.core.worker_inputs import EnvironmentReady, OutcomeMade, RouterMessage

STEP_S = 0.25
FENCE_S = 4.0
SILENCE_S = 18.0
"""A worker that says nothing for so long while its host is heard is killed; none is silent here.
A host is heard for 10 s after it was cut off; and beats come through before heartbeats do."""
CALLS = 30
CALM_S = 120.0
"""From then on nothing goes wrong."""
END_S = CALM_S + 200.0
FAULTS = 7


class Machine:
    """The process of a host, its guard, and what is under way."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.name = f"h{index}"
        self.lives = 0
        self.rate = world.luck.choice((0.9, 1.0, 1.1))
        self.up: deque[tuple[float, bytes, Any]] = deque()
        self.down: deque[tuple[float, bytes, Any]] = deque()
        self.cut_up_s = self.cut_down_s = self.stopped_s = self.gone_s = -1.0
        """Until when."""
        self.alive: set[bytes] = set()
        self.deadline_s: float | None = None
        self.late: list[Callable[[], None]] = []
        self.past: list[bytes] = []
        self.was_cut = False
        self.asked_s = 0.0
        self.host = self.new_host()

    def new_host(self) -> Host:
        self.lives += 1
        self.route = f"{self.name}.{self.lives}".encode()
        host = Host(self.name, 2, self.new_tenure, past=self.past[-16:])
        host.connect()
        return host

    def new_tenure(self) -> bytes:
        tenure: bytes = self.world.ids()
        self.past.append(tenure)
        return tenure

    def boot_s(self) -> float:
        return 5000.0 + self.rate * self.world.now_s

    def do(self, act: Callable[[], None]) -> None:
        """What the host's process hears, or does; later, if it is stopped."""
        if self.world.now_s < max(self.stopped_s, self.gone_s):
            self.late.append(act)
        else:
            act()
            self.carry()

    def step(self) -> None:
        now_s = self.world.now_s
        if self.deadline_s is not None and self.boot_s() >= self.deadline_s:
            self.guard_dies()
        if now_s < self.gone_s:
            return
        if self.gone_s > 0:
            self.gone_s = -1.0
            self.late.clear()
            self.host = self.new_host()
        if now_s >= self.stopped_s:
            late, self.late = self.late, []
            for act in late:
                self.do(act)
        is_cut = now_s < max(self.cut_up_s, self.cut_down_s)
        if self.was_cut and not is_cut and self.world.luck.random() < 0.5:
            self.do(self.reconnect)
        self.was_cut = is_cut
        if now_s.is_integer():
            for worker in sorted(self.alive):
                self.do(partial(self.feels, worker))
        self.do(lambda: self.host.beat(self.boot_s()))
        if not self.host.is_joined and now_s >= self.asked_s + 2.0:
            self.asked_s = now_s
            self.do(self.host.connect)
        while self.down and self.down[0][0] <= now_s:
            _, route, frames = self.down.popleft()
            if route == self.route:
                self.do(partial(self.hear, frames))

    def says(self, worker: bytes, frames: Sequence[Body]) -> None:
        if worker in self.alive:
            self.host.said(worker, frames)

    def feels(self, worker: bytes) -> None:
        if worker in self.alive:
            self.host.felt(worker, Heartbeat())

    def reconnect(self) -> None:
        self.host.disconnect()
        self.host.connect()

    def hear(self, frames: Any) -> None:
        try:
            self.host.message(frames, self.boot_s())
        except ProtocolError as error:
            self.world.wrong.append(f"a router's message is none: {error}")

    def carry(self) -> None:
        self.host.flush()
        while self.host.out:
            out, self.host.out = self.host.out, []
            for effect in out:
                self._effect(effect)

    def _effect(self, effect: Any) -> None:
        world = self.world
        match effect:
            case ToRouter():
                if world.now_s >= self.cut_up_s:
                    due_s = world.now_s + world.luck.uniform(0, 0.6)
                    due_s = max(due_s, self.up[-1][0]) if self.up else due_s
                    self.up.append((due_s, self.route, effect.frames))
            case StartWorker(worker, incarnation, _):
                if self.deadline_s is None or self.boot_s() >= self.deadline_s:
                    self.host.exited(worker, "no guard starts it")
                    return
                self.alive.add(worker)
                self.host.spawned(worker, 7)
                world.begin(worker, incarnation)
            case KillWorker(worker, why):
                if worker in self.alive:
                    self.dies(worker, why)
            case TellWorker(worker, frames):
                if worker in self.alive:
                    world.work(worker, world.workers[worker].take(RouterMessage(frames)))
            case SetDeadline(deadline_s):
                self.deadline_s = max(self.deadline_s or 0.0, deadline_s)
            case NewGuard():
                assert not self.alive
                self.deadline_s = None
            case Serve() | Say():
                pass
            case _:
                raise AssertionError(effect)

    def dies(self, worker: bytes, why: str) -> None:
        """A process has ended, and its host reaps it."""
        self.alive.discard(worker)
        self.world.ended(worker)
        self.do(lambda: self.host.exited(worker, why))

    def guard_dies(self) -> None:
        """All workers die with it; the host puts another one in its place."""
        self.deadline_s = None
        for worker in sorted(self.alive):
            self.dies(worker, "its guard has ended")
        self.do(self.new_guard)

    def new_guard(self) -> None:
        if self.host.lease.holds(self.boot_s()):
            self.deadline_s = self.host.lease.deadline_s

    def kill_host(self, lasts_s: float) -> None:
        """All processes of it are killed; another host of its name comes later."""
        self.deadline_s = None
        for worker in sorted(self.alive):
            self.alive.discard(worker)
            self.world.ended(worker)
        self.gone_s = self.world.now_s + lasts_s
        self.up.clear()


class World(Pair):
    """One run; every fourth one has no lease."""

    def __init__(self, seed: int) -> None:
        self.luck = Random(seed)
        self.terms = LeaseTerms(NO_LEASE_S if seed % 4 == 3 else FENCE_S)
        self.wrong: list[str] = []
        self.machines: list[Machine] = []
        self.live: dict[Any, set[tuple[bytes, int]]] = {}
        """The live executions of each request, by its body, and how many there ever were."""
        self.starts: dict[Any, int] = {}
        self.ends: list[tuple[float, bytes, Run]] = []
        self.router_gone_s = -1.0
        self.earlier = EarlierEpochs((), 0.0)
        self.opened = True
        self.dead: list[bytes] = []
        """All epochs before: the file of the lock lists them."""
        limits = {"worker_capacity": 2, "silence_kill_s": SILENCE_S}
        super().__init__(workers=0, heartbeats=True, server=limits)
        self.batched = True
        self.hosts = Hosts(self.router.pool, self.terms, self.router.epoch)
        self.machines = [Machine(self, index) for index in range(2)]
        self.began_s = self.now_s
        self.faults = sorted(
            (self.luck.uniform(5, CALM_S * 0.7), self.luck.choice(FAULT_NAMES),
             self.luck.randrange(2), self.luck.choice((0.5, 3.0, 9.0, 25.0)))
            for _ in range(FAULTS)
        )  # fmt: skip

    # -- effects ------------------------------------------------------------------

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Spawn() | Kill():
                if isinstance(effect, Kill) and effect.why.startswith("no sign of life"):
                    self.wrong.append(f"{effect.worker!r} is killed: {effect.why}")
                if not self.hosts.take(effect):
                    assert isinstance(effect, Kill), "there are no workers but those of hosts"
            case ToHost(route, frames):
                for machine in self.machines:
                    if machine.route == route and self.now_s >= machine.cut_down_s:
                        due_s = self.now_s + self.luck.uniform(0, 0.6)
                        due_s = max(due_s, machine.down[-1][0]) if machine.down else due_s
                        machine.down.append((due_s, route, frames))
            case Report():
                pass
            case Lost(worker):
                if any(worker in machine.alive for machine in self.machines):
                    self.wrong.append(f"{worker.decode()} was declared lost, and lives")
            case Reconnect():
                self.give_client(Connected(self.now_s))
            case _:
                super()._carry_out(effect)

    def _arrive(self, kind: str, peer: bytes, frames: Sequence[Body]) -> None:
        if kind == "worker":
            self.hosts.tell(peer, [tuple(frames)])
        elif kind == "router":
            for machine in self.machines:
                if peer in machine.alive:
                    machine.do(partial(machine.says, peer, list(frames)))
        elif kind == "server" and self.now_s < self.router_gone_s:
            pass
        else:
            super()._arrive(kind, peer, frames)

    def settle(self) -> None:
        if not self.machines:
            super().settle()
            return
        while True:
            super().settle()
            self.hosts.flush()
            out, self.hosts.out = self.hosts.out, []
            for effect in out:
                self._carry_out(effect)
            if not (out or self._waiting or self._said):
                return

    # -- processes ----------------------------------------------------------------

    def begin(self, worker: bytes, incarnation: bytes) -> None:
        core = self.workers[worker] = WorkerCore(incarnation, header_bytes=1 << 18)
        self.work(worker, core.take(EnvironmentReady(1, "env", False)))

    def ended(self, worker: bytes) -> None:
        """The process of a worker is dead, and all that it runs."""
        self.workers.pop(worker, None)
        for live in self.live.values():
            live -= {each for each in live if each[0] == worker}

    def work(self, worker: bytes, effects: Sequence[Any]) -> None:
        runs = len(self.runs)
        super().work(worker, effects)
        for _, run in self.runs[runs:]:
            body = bytes(run.body)
            live = self.live.setdefault(body, set())
            if live:
                self.wrong.append(f"{body!r} runs on {worker!r}, and {live}")
            live.add((worker, run.number))
            self.starts[body] = self.starts.get(body, 0) + 1
            lasts_s = self.luck.choice((0.3, 4.0, 15.0))
            self.ends.append((self.now_s + lasts_s, worker, run))
        exits, self.exits = self.exits, []
        for each in exits:
            for machine in self.machines:
                if each in machine.alive:
                    machine.dies(each, "exit 0")

    # -- time -----------------------------------------------------------------------

    def tick_hosts(self) -> list[RouterInput]:
        """What follows for the router."""
        return self.hosts.tick(self.now_s)

    def strike(self, fault: str, machine: Machine, lasts_s: float) -> None:
        until_s = self.now_s + lasts_s
        if fault in ("cut", "cut up"):
            machine.cut_up_s = until_s
            machine.up.clear()
        if fault in ("cut", "cut down"):
            machine.cut_down_s = until_s
            machine.down.clear()
        if fault == "stop":
            machine.stopped_s = until_s
        if fault == "kill":
            machine.kill_host(lasts_s)
        if fault == "router" and self.opened:
            self.kill_router(lasts_s)
        if fault == "die" and machine.alive:
            machine.dies(self.luck.choice(sorted(machine.alive)), "killed by somebody")

    def step(self) -> None:
        self.now_s += STEP_S
        while self.faults and self.now_s - self.began_s >= self.faults[0][0]:
            _, fault, index, lasts_s = self.faults.pop(0)
            self.strike(fault, self.machines[index], lasts_s)
        due = [each for each in self.ends if each[0] <= self.now_s]
        self.ends = [each for each in self.ends if each[0] > self.now_s]
        for _, worker, run in due:
            live = self.live[bytes(run.body)]
            if worker in self.workers and (worker, run.number) in live:
                live.discard((worker, run.number))
                made = OutcomeMade(run.number, Status.RESULT, b"outcome", 1.0)
                self.work(worker, self.workers[worker].take(made))
        for machine in self.machines:
            machine.step()
            while machine.up and machine.up[0][0] <= self.now_s:
                _, route, frames = machine.up.popleft()
                if self.now_s < self.router_gone_s:
                    pass
                elif self.opened:
                    self.give(*self.hosts.message(route, frames, self.now_s))
                else:
                    self.end_tenure(route, frames)
                self.settle()
        if self.now_s >= self.router_gone_s:
            self.open()
            self.give(*self.tick_hosts())
            self.give(Tick(self.now_s))
        self.give_client(ClientTick(self.now_s))
        self.settle()

    # -- routers that follow each other ---------------------------------------------

    def kill_router(self, lasts_s: float) -> None:
        """The next one has no journal."""
        own = self.hosts.leases.own()
        self.earlier = EarlierEpochs(self.earlier.record(own, self.now_s), self.now_s + lasts_s)
        self.router_gone_s, self.opened = self.now_s + lasts_s, False
        self.router = self.new_router()
        self._said.clear()
        self.hosts = Hosts(self.router.pool, self.terms, self.router.epoch)
        for machine in self.machines:
            machine.up.clear()
            machine.down.clear()
            machine.do(machine.reconnect)

    def end_tenure(self, route: bytes, frames: Any) -> None:
        """As the server does before it welcomes hosts."""
        hello, _ = decode(frames, most_bytes=1 << 18)
        if isinstance(hello, HostHello):
            self.earlier.accounted_for(hello.ended)
            if hello.epoch or self.earlier.knows(hello.tenure):
                epoch = self.router.epoch
                refused = HostRefused(hello.tenure, hello.hello, epoch, OVER, "it is over")
                self._carry_out(ToHost(route, (encode(refused),)))

    def open(self) -> None:
        """Once all hosts of the routers before are known to have no workers."""
        self.dead += self.earlier.take_dead(self.now_s)
        if not self.opened and not self.earlier.waits:
            self.opened = True
            alive = [machine.name for machine in self.machines if machine.alive]
            if alive:
                self.wrong.append(f"the router before was taken for dead, and {alive} run")
            self.give(PoolOpened(self.dead, self.now_s))

    def run(self) -> list[str]:
        """What is wrong."""
        asked = 0
        while self.now_s - self.began_s < END_S and not self.wrong:
            if asked < CALLS and self.luck.random() < 0.1:
                asked += 1
                self.submit(b"body%d" % asked, rerun=asked % 2 == 0)
            self.step()
            if self.now_s - self.began_s > CALM_S and len(self.answers) >= asked == CALLS:
                break
        for body, starts in self.starts.items():
            if starts > (1 if int(body.removeprefix(b"body")) % 2 else 4):
                self.wrong.append(f"{body!r} was started {starts} times")
        if not self.wrong and len(self.answers) < CALLS:
            self.wrong.append(f"{CALLS - len(self.answers)} calls were never answered")
        return self.wrong


FAULT_NAMES = ("cut", "cut up", "cut down", "stop", "kill", "die", "router")
