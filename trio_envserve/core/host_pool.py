"""The router's side of hosts: to the router a worker of theirs is like any other.

Theory of operation
-------------------
A host that has joined, and is known to hold its lease, brings slots to the
:class:`~.slots.Pool`.  What the router wants of a worker in one of them (:meth:`Hosts.take`)
becomes an item for that host; what the host says becomes inputs of the router.

A host is lost when its lease is over (:mod:`.lease`): then, and not before, its workers are
reported as ended.  Its slots close first, so none of them is started again there.  Until a
host is known to hear the router its workers get no new work.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from string import ascii_letters, digits
from typing import Any, NamedTuple

from .errors import ConfigError, ProtocolError
from .heartbeat import Heartbeat, HeartbeatLines
from .host import LEAVING, NO_LEASE
from .host_link import Inbox, Item, Outbox, What
from .host_messages import (
    IN_USE,
    MOVED,
    OVER,
    UNFIT,
    VERSION,
    ForeignHost,
    HostAnswer,
    HostBeat,
    HostHello,
    HostLeaves,
    HostRefused,
    HostWelcome,
    Items,
    decode,
    encode,
)
from .lease import EarlierEpochs, Holding, LeaseBeat, Leases, LeaseTerms, Reception, Tenure
from .limits import PROTOCOL_VERSION, WireLimits
from .lives import LifeInput, Phase
from .messages import KINDS as WORKER_KINDS
from .messages import WorkerHello
from .ranges import Ranges
from .router_effects import Kill, Report, RouterEffect, Spawn, ToWorker
from .router_inputs import (
    Exited,
    HeartbeatFelt,
    HostsDead,
    RouterInput,
    Spawned,
    WorkerBack,
    WorkerMessage,
)
from .slots import Part, Pool, Slot
from .terms import Body, Epoch, Route

NAME_BYTES = 64
PAST_HOSTS = 16
"""So many hosts that are not here are told, the last ones."""
_PLAIN = frozenset(ascii_letters + digits + "._-")
_BUSY = ("load", "memory_bytes")
_BUSY_MOST = 1e18
NUMBERS_MOST = 1 << 16
"""No worker runs so many dispatches."""


class ToHost(NamedTuple):
    """Send these frames to a host."""

    route: Route
    frames: tuple[Body, ...]


@dataclasses.dataclass(slots=True, eq=False)
class RemoteHost:
    """One host in one tenure."""

    holding: Holding
    route: Route
    capacity: int
    """How many workers it is good for."""
    least: int
    """How many it is to have at least."""
    outbox: Outbox
    inbox: Inbox
    slots: list[Slot] = dataclasses.field(default_factory=list)
    part: Part | None = None
    """These slots, if not all of them are always to have a worker."""
    workers: set[bytes] = dataclasses.field(default_factory=set)
    """Those that were to be started there and have not ended."""
    unready: set[bytes] = dataclasses.field(default_factory=set)
    """Of these, the ones that have not said hello."""
    failed_starts: int = 0
    """How many in a row have ended before they said hello."""
    set_aside: bool = False
    why: str = ""
    """Why it is set aside."""
    leaving: bool = False
    fresh: bool = False
    busy: dict[str, float] = dataclasses.field(default_factory=dict)
    """How busy the machine is, as far as it says."""
    dirty: bool = False
    """Whether there is something to be sent to it."""

    @property
    def name(self) -> str:
        """Its id, for people too."""
        return self.holding.host


class Past(NamedTuple):
    """A host that was refused, has left, or was lost."""

    state: str
    why: str
    at_s: float


def host_name(given: str) -> str:
    """The id of a host as it may stand in the name of a worker, a log and a label."""
    text = "".join(char if char in _PLAIN else "_" for char in given[:NAME_BYTES])
    return text or "_"


def check_amounts(what: str, amounts: Mapping[str, Any]) -> None:
    """ConfigError if these are not what somebody needs or offers."""
    for name, amount in amounts.items():
        if type(amount) not in (int, float) or not 0 <= amount < _BUSY_MOST:
            raise ConfigError(f"{what}: {name}={amount!r:.80} is no amount, such as gpu=1")


def fitting(workers: int, offers: dict[str, Any], needs: dict[str, float]) -> int:
    """How many workers a host is good for, of what each of them needs."""
    most = float(workers)
    for what, need in needs.items():
        offered = offers.get(what, 0)
        enough = type(offered) in (int, float) and offered > 0
        if need > 0:
            most = min(most, offered // need if enough else 0.0)
    return int(most)


class Hosts:
    """All hosts of a router.  Effects are in :attr:`out`, in order."""

    def __init__(
        self, pool: Pool, terms: LeaseTerms, epoch: Epoch, *,
        needs: dict[str, float] | None = None, wire: WireLimits | None = None,
        serves: dict[str, Any] | None = None,
        earlier: EarlierEpochs | None = None,
    ) -> None:  # fmt: skip
        """``earlier``: the routers before whose journal this one has, if it has one."""
        self.leases = Leases(terms, epoch, earlier)
        self._tag = "" if earlier is None else f"-{epoch[:3].hex()}"
        self.out: list[ToHost | RouterEffect] = []
        self.hosts: dict[Tenure, RemoteHost] = {}
        self._pool = pool
        self._needs = needs or {}
        self._wire = wire or WireLimits()
        self._serves = serves or {}
        """What a host is told to run."""
        self._of_worker: dict[bytes, RemoteHost] = {}
        self._past: OrderedDict[str, Past] = OrderedDict()
        """Hosts that are not here, by their names; the newest one last."""

    # -- what the router wants ------------------------------------------------

    def take(self, effect: RouterEffect) -> bool:
        """An effect of the router.  Whether it is about a worker of a host."""
        match effect:
            case Spawn():
                host = self._of_slot(effect.slot)
                if host is None:
                    return False
                self._of_worker[effect.worker] = host
                host.workers.add(effect.worker)
                host.unready.add(effect.worker)
                place = [slot.index for slot in host.slots].index(effect.slot)
                number = str(place).encode()
                item = Item(What.SPAWN, effect.worker, (effect.incarnation, number))
            case ToWorker():
                item = Item(What.TELL, effect.worker, effect.frames)
            case Kill():
                item = Item(What.KILL, effect.worker, (effect.why.encode(),))
            case _:
                return False
        host = self._of_worker.get(effect.worker)
        if host is None:
            return False
        host.outbox.put(item)
        host.dirty = True
        return True

    def flush(self) -> None:
        """Send what was taken: what has come together goes together."""
        for host in self.hosts.values():
            if host.dirty:
                self._flush(host)

    def host_of(self, worker: bytes) -> str | None:
        """The name of the host that has a worker; None for one of this machine."""
        host = self._of_worker.get(worker)
        return None if host is None else host.name

    def _of_slot(self, index: int) -> RemoteHost | None:
        slot = self._pool.slots[index]
        return next((host for host in self.hosts.values() if slot in host.slots), None)

    def _flush(self, host: RemoteHost) -> None:
        host.dirty = False
        self.out += [ToHost(host.route, frames) for frames in host.outbox.messages()]

    # -- what hosts say -------------------------------------------------------

    def message(self, route: Route, frames: Sequence[Body], now_s: float) -> list[RouterInput]:
        """A message of a host: the inputs that the router is to get, in order.
        ProtocolError if it is none."""
        try:
            message, rest = decode(frames, most_bytes=self._wire.header_bytes)
        except ForeignHost as error:
            if error.hello is not None:
                tenure, number, name = error.hello
                self._refuse(route, tenure, number, VERSION, f"here {error}")
                self._remember(host_name(name), "refused", str(error), now_s)
            raise
        if isinstance(message, HostHello):
            return self._hello(route, message, now_s)
        host = self.hosts.get(message.tenure)
        if host is None:
            return []
        match message:
            case HostBeat():
                return self._beat(host, message, now_s)
            case HostLeaves():
                over = self.leases.leave(host.name, message.tenure)
                return [] if over is None else self._gone(over, now_s, "it has left", "info")
            case Items():
                inputs: list[RouterInput] = []
                for item in host.inbox.take(message, rest):
                    inputs += self._item(host, item, now_s)
                return inputs
            case _:
                raise ProtocolError(f"{type(message).__name__} from a host")

    def _hello(self, route: Route, hello: HostHello, now_s: float) -> list[RouterInput]:
        name = host_name(hello.host)
        if hello.least > hello.workers:
            raise ProtocolError(
                f"a host of {hello.least} workers at least, {hello.workers} at most"
            )
        capacity = fitting(hello.workers, hello.offers, self._needs)
        if not capacity and hello.tenure not in self.hosts:
            wanted = ", ".join(f"{what}={need:g}" for what, need in self._needs.items())
            text = f"it has not what a worker needs: {wanted}"
            self._refuse(route, hello.tenure, hello.hello, UNFIT, text)
            self._remember(name, "refused", text, now_s)
            return []
        lives = [_life(each) for each in hello.lives]
        names = {life.worker for life in lives}
        if len(names) < len(lives) or (
            hello.tenure not in self.hosts and not names.isdisjoint(self._pool.lives)
        ):
            raise ProtocolError("workers of a host that have one name")
        reception, over = self.leases.hello(
            name, hello.tenure, hello.hello, hello.ended, now_s,
            with_epoch=hello.epoch, continues=hello.continues, to=hello.to,
        )  # fmt: skip
        inputs = [] if over is None else self._gone(over, now_s, "its next tenure says so")
        if reception is Reception.IN_USE:
            text = f"another host is here as {name}"
            self._refuse(route, hello.tenure, hello.hello, IN_USE, text)
            self._remember(name, "refused", text, now_s)
        elif reception is Reception.OVER:
            text = "its tenure is over; it may join anew"
            self._refuse(route, hello.tenure, hello.hello, OVER, text)
        elif reception is Reception.MOVED:
            text = "this is another one, which takes over what runs"
            self._refuse(route, hello.tenure, hello.hello, MOVED, text)
        elif reception is Reception.WELCOME:
            is_new = hello.tenure not in self.hosts
            self._welcome(route, hello, name, capacity)
            if is_new:
                inputs += self._take_back(self.hosts[hello.tenure], lives, now_s)
        return inputs

    def _take_back(self, host: RemoteHost, lives: list[_Life], now_s: float) -> list[RouterInput]:
        """What lives on of the tenure that this one continues, each in its place, if that is
        still one.  Where there are fewer places those are kept that run most."""
        if not lives:
            return []
        self._open(host)
        inputs: list[RouterInput] = []
        free = set(range(host.capacity))
        for life in sorted(lives, key=lambda life: -len(life.running)):
            is_to_end = not free
            place = life.place if life.place in free else min(free, default=0)
            free.discard(place)
            slot = host.slots[place].index
            self._of_worker[life.worker] = host
            host.workers.add(life.worker)
            if not life.hello:
                host.unready.add(life.worker)
            if not is_to_end and host.slots[place].spare:
                self._pool.open(host.slots[place])
            inputs.append(
                WorkerBack(
                    life.worker, slot, life.incarnation, life.pid, is_to_end, life.hello,
                    life.next, life.running.flat(), now_s,
                )
            )  # fmt: skip
            if is_to_end:
                host.outbox.put(Item(What.KILL, life.worker, (b"there is no place for it",)))
        count = sum(len(life.running) for life in lives)
        text = f"host {host.name} is back with {len(lives)} workers, which run {count} requests"
        self.out.append(Report("info", text))
        self._flush(host)
        return inputs

    def _refuse(self, route: Route, tenure: Tenure, hello: int, code: str, text: str) -> None:
        refused = HostRefused(tenure, hello, self.leases.epoch, code, text)
        self.out.append(ToHost(route, (encode(refused),)))

    def _remember(self, name: str, state: str, why: str, now_s: float) -> None:
        self._past.pop(name, None)
        self._past[name] = Past(state, why, now_s)
        if len(self._past) > PAST_HOSTS:
            self._past.popitem(last=False)

    def _welcome(self, route: Route, hello: HostHello, name: str, capacity: int) -> None:
        holding = self.leases.holdings[name]
        host = self.hosts.get(hello.tenure)
        if host is None:
            outbox = Outbox(hello.tenure)
            least = min(hello.least, capacity)
            host = RemoteHost(holding, route, capacity, least, outbox, Inbox())
            self.hosts[hello.tenure] = host
        host.route = route
        welcome = HostWelcome(
            PROTOCOL_VERSION, hello.tenure, hello.hello, self.leases.epoch,
            self.leases.terms.fence_s, self._serves,
        )  # fmt: skip
        self.out.append(ToHost(route, (encode(welcome),)))
        host.outbox.again()
        self._flush(host)

    def _beat(self, host: RemoteHost, beat: HostBeat, now_s: float) -> list[RouterInput]:
        lease_beat = LeaseBeat(beat.beat, beat.answered, beat.epoch)
        if not self.leases.beat(host.name, beat.tenure, lease_beat, now_s):
            return []
        host.busy = _busy(beat.machine)
        host.outbox.received(beat.have, beat.answered)
        sent = host.outbox.stated(beat.beat)
        answer = HostAnswer(beat.tenure, beat.beat, sent, host.inbox.have)
        self.out.append(ToHost(host.route, (encode(answer),)))
        self._flush(host)
        if beat.leaving and not host.leaving:
            host.leaving = True
            self._set_aside(host, "info", "it leaves")
            self._drain(host, now_s)
        return []

    def _item(self, host: RemoteHost, item: Item, now_s: float) -> list[RouterInput]:
        worker = item.worker
        if worker not in host.workers:
            return []
        match item.what:
            case What.SAID:
                if worker in host.unready and _is_hello(item.frames):
                    host.unready.discard(worker)
                    host.failed_starts = 0
                return [WorkerMessage([worker, *item.frames], now_s)]
            case What.SPAWNED:
                return [Spawned(worker, _number(item))]
            case What.FELT:
                felt = _heartbeat(item)
                return [HeartbeatFelt(worker, now_s, felt.lag_s, felt.memory_bytes, felt.where)]
            case What.EXITED:
                return [self._ended(host, worker, _text(item), now_s)]
            case _:
                raise ProtocolError(f"{item.what.name} from a host")

    def _ended(self, host: RemoteHost, worker: bytes, how: str, now_s: float) -> Exited:
        host.workers.discard(worker)
        del self._of_worker[worker]
        if worker in host.unready:
            host.unready.discard(worker)
            # What its lease has ended, or never let begin, is no fault of the environment.
            host.failed_starts += host.fresh and how not in (NO_LEASE, LEAVING)
            most = self._pool.limits.broken_after
            if host.failed_starts >= most and not host.set_aside:
                self._set_aside(host, "error", f"{most} workers in a row did not get ready: {how}")
        return Exited(worker, now_s, how)

    def _set_aside(self, host: RemoteHost, level: str, why: str) -> None:
        host.set_aside, host.why = True, why
        self._close(host)
        self.out.append(Report(level, f"host {host.name} gets no more workers: {why}"))

    def _open(self, host: RemoteHost) -> None:
        host.slots = self._pool.open_slots(host.capacity, host.name, self._tag)
        if host.least < host.capacity:
            host.part = self._pool.vary(host.slots, host.least)
            host.part.held = not host.fresh

    def _close(self, host: RemoteHost) -> None:
        if host.part is not None:
            self._pool.parts.remove(host.part)
            host.part = None
        for slot in host.slots:
            slot.closed = True

    def _drain(self, host: RemoteHost, now_s: float) -> None:
        for worker in sorted(host.workers):
            life = self._pool.lives[worker]
            ends = LifeInput.KILL if life.phase is Phase.STARTING else LifeInput.RETIRE
            self.out += self._pool.step(life, ends, now_s, "its host leaves")

    # -- statistics -----------------------------------------------------------

    def records(self, running: Mapping[bytes, int], now_s: float) -> dict[str, Any]:
        """The hosts that are here, and the last ones that are not.  ``running``: what runs on
        each worker that said hello."""
        hosts = sorted(self.hosts.values(), key=lambda host: host.name)
        return {
            "hosts": [self._record(host, running, now_s) for host in hosts],
            "past_hosts": [
                {"host": name, "state": past.state, "why": past.why,
                 "age_s": round(now_s - past.at_s, 3)}
                for name, past in self._past.items()
            ],
        }  # fmt: skip

    def _record(
        self, host: RemoteHost, running: Mapping[bytes, int], now_s: float
    ) -> dict[str, Any]:
        received_s = host.holding.received_s
        heard_s = host.holding.begun_s if received_s is None else received_s
        return {
            "host": host.name, "state": _state(host), "why": host.why,
            "slots": host.capacity, "workers": len(host.workers),
            "ready": len(host.workers - host.unready),
            "running": sum(running.get(worker, 0) for worker in host.workers),
            "heard_s": round(now_s - heard_s, 3),
            "lost_s": round(heard_s + self.leases.terms.wait_s - now_s, 3),
            **host.busy,
        }  # fmt: skip

    # -- time -----------------------------------------------------------------

    def tick(self, now_s: float, *, unknown: int = 0) -> list[RouterInput]:
        """Before each tick of the router: which hosts are lost, and which get work.

        ``unknown``: so many executions have come back that are not known here, and are to
        stop.  While one lives, the router that has started it is not dead; nor may a later
        router think so."""
        inputs: list[RouterInput] = []
        if not unknown and (dead := self.leases.earlier.take_dead(now_s)):
            inputs.append(HostsDead(dead, now_s))
        for over in self.leases.lost(now_s):
            why = f"nothing was heard of it for {self.leases.terms.wait_s:.0f} s"
            inputs += self._gone(over, now_s, why)
        for host in self.hosts.values():
            host.fresh = self.leases.is_fresh(host.holding, now_s)
            if host.fresh and not host.slots and not host.set_aside:
                self._open(host)
                count = host.capacity if host.part is None else host.part.bounds
                self.out.append(Report("info", f"host {host.name}: {count} workers"))
            if host.part is not None:
                host.part.held = not host.fresh
            for worker in host.workers:
                self._pool.lives[worker].held = not host.fresh
        return inputs

    def _gone(
        self, over: Holding, now_s: float, why: str, level: str = "warning"
    ) -> list[RouterInput]:
        """A tenure is over, and every worker of it is dead."""
        host = self.hosts.pop(over.tenure)
        self._close(host)
        state = "left" if level == "info" else "lost"
        self._remember(host.name, state, why, now_s)
        self.out.append(Report(level, f"host {host.name} is gone: {why}"))
        how = f"its host {host.name} is gone: {why}"
        workers = sorted(host.workers)
        for worker in workers:
            del self._of_worker[worker]
        host.workers.clear()
        return [Exited(worker, now_s, how) for worker in workers]


def _state(host: RemoteHost) -> str:
    if host.leaving:
        return "leaving"
    if host.set_aside:
        return "set aside"
    if host.fresh:
        return "ready"
    return "quiet" if host.slots else "joining"


def _busy(said: Mapping[str, Any]) -> dict[str, float]:
    """What a host says of its machine, as far as it is what is asked for."""
    busy: dict[str, float] = {"load": 0.0, "memory_bytes": 0}
    for name in _BUSY:
        value: Any = said.get(name)
        if type(value) in (int, float) and 0 <= value < _BUSY_MOST:
            busy[name] = float(value) if name == "load" else int(value)
    return busy


class _Life(NamedTuple):
    """What a host says of a worker that lives on."""

    worker: bytes
    incarnation: bytes
    pid: int
    hello: bytes
    next: int
    running: Ranges
    place: int
    """Among the workers of its host."""


def _life(said: list[Any]) -> _Life:
    worker, incarnation, pid, hello, after, running, place = said
    life = _Life(worker, incarnation, pid, hello, after, Ranges.from_flat(running), place)
    if len(life.running) > NUMBERS_MOST or any(n >= life.next for n in life.running):
        raise ProtocolError(f"a worker that runs {len(life.running)} dispatches")
    return life


def _is_hello(frames: Sequence[Body]) -> bool:
    head = bytes((0x18, WORKER_KINDS[WorkerHello]))
    return len(frames) == 2 and bytes(frames[1][1:3]) == head


def _heartbeat(item: Item) -> Heartbeat:
    try:
        felt = HeartbeatLines().feed(b"".join(map(bytes, item.frames)))
    except ValueError as error:
        raise ProtocolError(f"a heartbeat that is {error}") from None
    if felt is None:
        raise ProtocolError("a heartbeat without an end")
    return felt


def _number(item: Item) -> int:
    text = _text(item)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ProtocolError("a pid that is no number")
    return int(text)


def _text(item: Item) -> str:
    return b"".join(map(bytes, item.frames)).decode("utf-8", "replace")
