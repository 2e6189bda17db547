"""A host and the router's side of it, with a link between them that tests can harm."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host import (
    FromHost,
    Host,
    NewGuard,
    Serve,
    SetDeadline,
    TellWorker,
)
from trio_envserve.core.host_link import Item, to_frames
from trio_envserve.core.host_messages import HostRefused, encode
from trio_envserve.core.host_pool import Hosts
from trio_envserve.core.journal import Journal
from trio_envserve.core.lease import LeaseTerms
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.messages import Beat, WorkerHello
from trio_envserve.core.messages import encode as encode_worker
from trio_envserve.core.pool import LifeInput, Pool
from trio_envserve.core.router_effects import (
    AskWorker,
    Kill,
    Lost,
    RecordHosts,
    Report,
    Spawn,
    ToHost,
    ToWorker,
)
from trio_envserve.core.router_inputs import (
    Exited,
    HeartbeatReceived,
    HostsDead,
    WorkerBack,
    WorkerMessage,
)
from trio_envserve.core.worker_range import WorkerRange

TERMS = LeaseTerms(fence_s=20.0)
EPOCH = b"e" * 16
SERVES = {"environment": "arithmetic"}
HELLO = encode_worker(WorkerHello(2, 7, "arithmetic", False, 256))
BEAT = encode_worker(Beat(b"", 1, 0, [], {}))


JUNK: list[Any] = [
    None, True, -1, 0, 1, 1 << 40, 1 << 62, 1 << 64, 10**400, -(10**400), 0.5, float("inf"),
    float("nan"), b"", b"\xff" * 16, b"x" * 300, "", "a\nb", "\ud7ff" * 100, [], [[]], [0] * 300,
    [b"p" * 16] * 17, [b"\n"], [1 << 62, (1 << 62) + 1], {}, {"gpu": 10**400},
    {"gpu": float("inf")}, {"load": float("nan"), "memory_bytes": -1}, {1: 2},
    [1, [2, [3, [4, [5]]]]],
]  # fmt: skip


def spoilt(array: list[Any]) -> list[list[Any]]:
    """The array with each of its elements spoilt in each way."""
    return [[*array[:at], junk, *array[at + 1 :]] for at in range(len(array)) for junk in JUNK]


def about(given: Any) -> bytes:
    """The worker that an input is about."""
    return bytes(given.frames[0] if isinstance(given, WorkerMessage) else given[0])


class Link:
    """A host, the router's side, and what is under way between them."""

    def __init__(self, workers: int | WorkerRange = 1, **given) -> None:
        count = itertools.count(1)
        self.ids = lambda: next(count).to_bytes(16, "big")
        self.pool = Pool(0, ServerLimits(broken_after=2), self.ids)
        self.needs = given.pop("needs", None)
        self.hosts = Hosts(
            self.pool, TERMS, EPOCH, Journal(on=False), needs=self.needs, serves=SERVES
        )
        self.hosts.open()
        self.host = Host("a", workers, self.ids, **given)
        self.now_s = 100.0
        self.up: deque[Any] = deque()
        self.down: deque[Any] = deque()
        self.alive: dict[bytes, bytes] = {}
        self.places: dict[bytes, int] = {}
        self.serves: list[Any] = []
        self.told: list[Any] = []
        self.asked: list[AskWorker] = []
        self.inputs: list[Any] = []
        self.logged: list[str] = []
        self.deadline_s: float | None = None
        self.cut = False
        self.epochs = 0

    def carry(self) -> None:
        """What the host has to have done."""
        self.host.flush()
        out, self.host.out = self.host.out, []
        for effect in out:
            match effect:
                case FromHost():
                    self.up.append(effect.frames)
                case Spawn():
                    assert self.deadline_s is not None
                    self.alive[effect.worker] = effect.incarnation
                    self.places[effect.worker] = effect.slot
                    self.host.spawned(effect.worker, 7)
                case Kill():
                    if self.alive.pop(effect.worker, None) is not None:
                        self.host.exited(effect.worker, effect.why)
                case TellWorker():
                    self.told.append((effect.worker, *effect.frames))
                case AskWorker():
                    self.asked.append(effect)
                case SetDeadline():
                    self.deadline_s = effect.deadline_s
                case NewGuard():
                    assert not self.alive
                    self.deadline_s = None
                case Serve():
                    assert not self.alive
                    self.serves.append(effect.serves)
                case Report():
                    self.logged.append(effect.text)
        if self.host.out:
            self.carry()

    def route(self) -> None:
        """What the router's side has to have done."""
        for effect in self.said():
            if isinstance(effect, ToHost):
                self.down.append(effect.frames)
            elif isinstance(effect, Report):
                self.logged.append(effect.text)
            else:
                self.hosts.take(effect)
        if self.hosts.is_due:
            self.route()

    def said(self) -> list[Any]:
        """The effects of the router's side; each record is safe at once."""
        said: list[Any] = []
        while self.hosts.is_due or self.hosts.out:
            self.hosts.turn_over()
            out = self.hosts.out.copy()
            self.hosts.out.clear()
            for each in out:
                if isinstance(each, RecordHosts):
                    self.hosts.recorded("")
                else:
                    said.append(each)
        return said

    def tell(self, effect: ToWorker) -> bool:
        """A message of the router to a worker; whether it is one of the host."""
        return self.hosts.take(effect)

    def take(self, inputs) -> None:
        """The router's part, as far as processes go."""
        for each in inputs:
            self.inputs.append(each)
            if isinstance(each, HostsDead):
                continue
            if isinstance(each, WorkerBack):
                life = self.pool.take_back(each, each.now_s)
                if each.hello and not each.is_to_end:
                    self.pool.step(life, LifeInput.HELLO, each.now_s)
                continue
            life = self.pool.lives[about(each)]
            if isinstance(each, Exited):
                self.pool.step(life, LifeInput.EXITED, each.now_s, each.how)
            elif isinstance(each, WorkerMessage) and each.frames[2] == HELLO:
                self.pool.step(life, LifeInput.HELLO, each.now_s)
            elif isinstance(each, HeartbeatReceived):
                life.mute_s = 0.0  # as if it had said something, too
                self.pool.step(life, LifeInput.HEARTBEAT, each.now_s, Heartbeat())

    def move(self) -> bool:
        """One message arrives."""
        if self.up:
            self.take(self.hosts.message(b"r", self.up.popleft(), self.now_s))
        elif self.down:
            self.host.message(self.down.popleft(), self.now_s)
        else:
            return False
        self.carry()
        self.route()
        return True

    def settle(self) -> None:
        """Everything arrives, or nothing if the link is cut."""
        self.carry()
        self.route()
        if self.cut:
            self.up.clear()
            self.down.clear()
        while self.move():
            pass

    def dies(self, worker: bytes = b"w0-1", how: str = "exit code 0") -> None:
        """The process of a worker ends."""
        del self.alive[worker]
        self.host.exited(worker, how)

    def says(self, payload: bytes = b"payload", worker: bytes = b"w0-1") -> None:
        """A worker says something for a client."""
        self.host.worker_message(worker, (self.alive[worker], b"client", b"\x00header", payload))

    def beats(self, worker: bytes = b"w0-1") -> None:
        self.host.worker_message(worker, (self.alive[worker], BEAT))

    def from_router(self, *items: Item, skip: int = 0) -> None:
        """Items to the host, after so many that are missing."""
        first = self.host._inbox.have + 1 + skip
        self.host.message(to_frames(self.host.lease.membership, first, items), self.now_s)

    def moved(self, *, before: int = 0) -> None:
        """Another router says that this host is to move to it, to an earlier hello or the last."""
        membership, hello = self.host.lease.membership, self.host.lease.hellos - before
        refusal = HostRefused(membership, hello, b"n" * 16, "moved", "another one")
        self.host.message((encode(refusal),), self.now_s)

    def second(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            if self.deadline_s is not None and self.now_s >= self.deadline_s:
                for worker in list(self.alive):  # the guard has killed them
                    del self.alive[worker]
                    self.host.exited(worker, "killed by the guard")
            self.host.beat(self.now_s)
            self.settle()
            self.take(self.hosts.tick(self.now_s))
            for effect in self.pool.tick(self.now_s):
                if isinstance(effect, Spawn | Kill):
                    assert self.hosts.take(effect)
                elif isinstance(effect, Lost):
                    assert effect.worker not in self.alive
            self.settle()

    def joined(self) -> None:
        self.host.connect()
        self.settle()
        self.second(3)

    def follow(self, **given: Any) -> None:
        """The router is killed, and another one has its journal."""
        waits = [*self.hosts.leases.earlier.waits, self.hosts.leases.own()]
        self.pool = Pool(0, ServerLimits(broken_after=2), self.ids)
        self.epochs += 1
        given = {"serves": SERVES, **given}
        self.hosts = Hosts(self.pool, TERMS, b"%016d" % self.epochs, Journal(on=True), **given)
        self.hosts.found(waits, self.now_s)
        self.hosts.open()
        self.up.clear()
        self.down.clear()
        self.inputs.clear()
        self.host.connect()
        self.settle()

    def ready(self) -> None:
        for worker, incarnation in self.alive.items():
            self.host.worker_message(worker, (incarnation, HELLO))
        self.settle()


def starting(**given) -> Link:
    """A link of a host whose workers start."""
    link = Link(**given)
    link.joined()
    return link


def joined(**given) -> Link:
    link = starting(**given)
    link.ready()
    return link


def hello_of(host: Host) -> tuple[Any, ...]:
    host.out.clear()
    host.connect()
    return last(host.out).frames  # type: ignore[no-any-return]  # whatever it is


def last(out: list[Any]) -> Any:
    return out.pop()
