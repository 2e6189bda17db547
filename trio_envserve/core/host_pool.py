"""The router's side of hosts, by which a host's worker is to the router like any other.

Theory of operation
-------------------
A host that has joined, and is known to hold its lease, brings slots to the
:class:`~.pool.Pool`.  Effects of the router that concern a worker in one of them
(:meth:`Hosts.take`) become items for that host; what the host says of its workers is to the router
as if it was said here (:data:`~.router_inputs.OfHost`).

A host is lost when its lease is over (:mod:`.lease`).  Only then are its workers reported as ended.
Its slots close first, so that no worker is started there again.  While a host is not known to hear
the router, its workers get no new work.

Before it welcomes a host, a router has it recorded durably which hosts may have workers and for how
long (:class:`~.router_effects.RecordHosts`): a later server waits for that.  What a new host is
told waits until the record is safe.  If that could not be written, the host gets no answer, and
asks again.

Before hosts are welcome (:meth:`Hosts.open`), a router without the journal of earlier ones tells
their hosts that their memberships are over, and learns which have ended.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .errors import ProtocolError
from .heartbeat import Heartbeat
from .host import LEAVING, NO_LEASE
from .host_checks import (
    LeftLife,
    Value,
    busy,
    crowded,
    fitting,
    host_name,
    is_hello,
    left_lives,
    on_slots,
    unfit,
    value_of,
)
from .host_link import Inbox, Item, ItemKind, Outbox, to_frames
from .host_messages import (
    IN_USE,
    MOVED,
    OVER,
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
from .journal import Journal
from .lease import EarlierEpochs, EpochWait, Holding, LeaseBeat, Leases, LeaseTerms, Reception
from .limits import PROTOCOL_VERSION, WireLimits
from .messages import in_batches
from .pool import NO_SLOT, LifeInput, Part, Phase, Pool, Slot
from .router_effects import (
    AskWorker,
    Kill,
    RecordHosts,
    Report,
    RouterEffect,
    Spawn,
    ToHost,
    ToWorker,
)
from .router_inputs import (
    Exited,
    HostsDead,
    OfHost,
    Spawned,
    WorkerBack,
    WorkerMessage,
    inputs_of,
)
from .terms import Body, Epoch, Incarnation, Membership, Route, whole

KEPT_BYTES = 256 << 20
"""Bytes of items for a host that are not known to have arrived, above which it gets no new work."""
KEPT_ITEMS = 1 << 20
"""Number of such items above which the host's session ends."""
PAST_HOSTS = 16
"""Number of past hosts that are kept for the statistics, the last ones."""


@dataclasses.dataclass(slots=True, eq=False)
class RemoteHost:
    """The router's record of one host in one membership."""

    holding: Holding
    route: Route
    capacity: int
    """Most workers that it is to have."""
    least: int
    """Fewest workers that it is to have."""
    outbox: Outbox
    inbox: Inbox
    slots: list[Slot] = dataclasses.field(default_factory=list)
    """Its slots of the pool; empty while it has none."""
    host_slots: dict[int, int] = dataclasses.field(default_factory=dict)
    """Index on the host of each of its slots, by the slot's index in the pool."""
    part: Part | None = None
    """Its slots as a part of the pool, if the number of its workers changes with the work."""
    workers: dict[bytes, int] = dataclasses.field(default_factory=dict)
    """Number of the last item for each worker that was to be started there and has not ended, by
    its name."""
    unready: set[bytes] = dataclasses.field(default_factory=set)
    """Names of those among them that have not said hello."""
    failed_starts: int = 0
    """Number of the latest workers that ended before they said hello, as :class:`~.pool.Slot`
    counts them."""
    set_aside: bool = False
    """Whether it gets no further workers."""
    why: str = ""
    """Reason for which it is set aside, for people."""
    leaving: bool = False
    broken: bool = False
    """Whether it has sent a malformed message: all further messages are ignored."""
    fresh: bool = False
    """Whether its workers may get new work: it is known to hold its lease."""
    busy: dict[str, float] = dataclasses.field(default_factory=dict)
    """Load and memory of its machine, as far as it reports them."""
    dirty: bool = False
    """Whether its outbox has unsent items."""
    recorded: bool = False
    """Whether a later server would know of it."""
    held: list[ToHost] = dataclasses.field(default_factory=list)
    """What it is told once it is recorded."""
    safe: int = 0
    """Number of its items that are safe."""
    unsafe: tuple[int, int] | None = None
    """Number of its items that are safe next, and of the journal's records that must be so first;
    None: it has none."""

    @property
    def name(self) -> str:
        """Id of the host."""
        return self.holding.host

    @property
    def state(self) -> str:
        """State of the host, in a word of the page on hosts."""
        if self.leaving:
            return "leaving"
        if self.set_aside:
            return "set aside"
        if self.fresh:
            return "ready"
        return "quiet" if self.slots else "joining"

    def open(self, pool: Pool, tag: str) -> None:
        """Add its slots to the pool.  ``tag``: last part of the names of their workers."""
        self.slots = pool.open_slots(self.capacity, self.name, tag)
        self.host_slots = {slot.index: host_slot for host_slot, slot in enumerate(self.slots)}
        if self.least < self.capacity:
            self.part = pool.vary(self.slots, self.least)
            self.part.held = not self.fresh

    def close(self, pool: Pool, failed: str = "") -> list[int]:
        """Close its slots; returns their indexes, which another host may get.  ``failed``: why no
        worker became ready here, if that is the reason."""
        if self.part is not None:
            pool.parts.remove(self.part)
            self.part = None
        pool.close_slots(self.slots, failed)
        closed, self.slots, self.host_slots = [*self.host_slots], [], {}
        return closed

    # -- its workers ------------------------------------------------------------

    def start(self, spawn: Spawn) -> None:
        """Order the start of a worker in one of its slots."""
        self.workers[spawn.worker] = 0
        self.unready.add(spawn.worker)
        host_slot = str(self.host_slots[spawn.slot]).encode()
        self.put(Item(ItemKind.SPAWN, spawn.worker, (spawn.incarnation, host_slot)))

    def kill(self, worker: bytes, why: str) -> None:
        """Order the kill of a worker."""
        self.put(Item(ItemKind.KILL, worker, (why.encode(),)))

    def question(self, ask: AskWorker) -> tuple[Body, ...]:
        """The message that asks a worker where an execution stands.  It may be lost: who wants to
        know asks again."""
        frames = str(ask.number).encode(), ask.request.encode()
        return to_frames(self.outbox.membership, 0, [Item(ItemKind.ASK, ask.worker, frames)])

    def take_back(self, life: LeftLife, host_slot: int, pool: Pool, *, is_to_end: bool) -> int:
        """Enter a worker of an earlier membership that lives on in this slot of the host; returns
        the index of that in the pool."""
        slot = self.slots[host_slot]
        self.workers[life.worker] = 0
        if not life.hello:
            self.unready.add(life.worker)
        if is_to_end:
            if not life.hello:
                self.kill(life.worker, NO_SLOT)
        elif slot.spare:
            pool.open(slot)
        return slot.index

    def got_ready(self, worker: bytes) -> None:
        """Note that a worker has said hello."""
        self.unready.discard(worker)
        self.failed_starts = 0

    def ended(self, worker: bytes, how: str, pool: Pool) -> None:
        """Note that a worker has ended."""
        self.workers.pop(worker, None)
        if worker in self.unready:
            self.unready.discard(worker)
            # An end by the lease, or a start that it forbade, is no fault of the environment.
            is_fault = self.fresh and how not in (NO_LEASE, LEAVING)
            self.failed_starts += is_fault and not pool.slots[pool.lives[worker].slot].emptying

    def drain(self, pool: Pool, now_s: float) -> list[RouterEffect]:
        """Drain its workers, since the host leaves."""
        effects: list[RouterEffect] = []
        for worker in sorted(self.workers):
            life = pool.lives[worker]
            ends = LifeInput.KILL if life.phase is Phase.STARTING else LifeInput.RETIRE
            effects += pool.step(life, ends, now_s, "its host leaves")
        return effects

    def refresh(self, pool: Pool, *, has_lease: bool) -> None:
        """Decide anew whether its workers may get new work."""
        self.fresh = has_lease and self.outbox.bytes <= KEPT_BYTES and not self.broken
        if self.part is not None:
            self.part.held = not self.fresh
        arrived = self.outbox.put_in_all - len(self.outbox)
        for worker, last in self.workers.items():
            life = pool.lives[worker]
            life.held, life.under_way = not self.fresh, last > arrived

    # -- the link ---------------------------------------------------------------

    def put(self, item: Item) -> None:
        """Append an item, which goes with the next messages."""
        self.outbox.put(item)
        self.dirty = True
        if item.worker in self.workers:
            self.workers[item.worker] = self.outbox.put_in_all

    def messages(self) -> Iterator[tuple[Body, ...]]:
        """The messages to send to it now."""
        self.dirty = False
        return self.outbox.messages()

    def answer(self, beat: HostBeat, journal: Journal) -> HostAnswer:
        """Take in a beat, and answer it.  ProtocolError if the host reads none of its items."""
        self.busy = busy(beat.machine)
        self.outbox.received(beat.have, beat.answered)
        if len(self.outbox) > KEPT_ITEMS:
            raise ProtocolError(f"the host beats, but has not read {len(self.outbox)} items")
        have, now_safe = self.inbox.have, self.unsafe or (self.inbox.have, journal.appended)
        self.unsafe = now_safe
        if journal.is_safe(now_safe[1]):
            self.safe, self.unsafe = now_safe[0], None
        return HostAnswer(
            beat.membership, beat.beat, self.outbox.stated(beat.beat), have, self.safe
        )

    # -- statistics -------------------------------------------------------------

    def record(
        self, running: Mapping[bytes, int], pool: Pool, wait_s: float, now_s: float
    ) -> dict[str, Any]:
        """The host's record in the statistics.  ``running``: number of executions on each worker
        that said hello.  ``wait_s``: time after its last beat when it is lost."""
        received_s = self.holding.received_s
        seen_at = self.holding.begun_s if received_s is None else received_s
        return {
            "host": self.name, "state": self.state, "why": self.why,
            "slots": self.capacity, "workers": len(self.workers),
            "ready": sum(pool.lives[worker].serves for worker in self.workers),
            "running": sum(running.get(worker, 0) for worker in self.workers),
            "beat_age_s": round(now_s - seen_at, 3),
            "lost_s": round(seen_at + wait_s - now_s, 3),
            **self.busy,
        }  # fmt: skip


class Past(NamedTuple):
    """A host that was refused, has left, or was lost."""

    state: str
    why: str
    at_s: float


class PastHosts:
    """The last past hosts, by name; the newest one is last."""

    def __init__(self) -> None:
        self._past: OrderedDict[str, Past] = OrderedDict()

    def add(self, name: str, state: str, why: str, now_s: float) -> None:
        """Add a past host, and drop an older record of its name."""
        self._past.pop(name, None)
        self._past[name] = Past(state, why, now_s)
        if len(self._past) > PAST_HOSTS:
            self._past.popitem(last=False)

    def records(self, now_s: float) -> list[dict[str, Any]]:
        """Their records in the statistics."""
        return [
            {"host": name, "state": past.state, "why": past.why,
             "age_s": round(now_s - past.at_s, 3)}
            for name, past in self._past.items()
        ]  # fmt: skip


_REFUSALS = {
    Reception.IN_USE: (IN_USE, "another host has the name {}"),
    Reception.OVER: (OVER, "its membership is over; it may join anew"),
    Reception.MOVED: (MOVED, "this is its successor, which takes the running work over"),
}
"""Code and text of each reception that refuses a host; ``{}`` is the name of the host."""


class Hosts:
    """All hosts of a router.  Times are of the clock of leases."""

    def __init__(
        self, pool: Pool, terms: LeaseTerms, epoch: Epoch, journal: Journal, *,
        needs: Mapping[str, float] | None = None, wire: WireLimits | None = None,
        serves: Mapping[str, Any] | None = None,
        claim: Callable[[Route, str], str] | None = None, out: list[RouterEffect] | None = None,
    ) -> None:  # fmt: skip
        """``needs``: resources that each worker needs.  ``serves``: environment that hosts are told
        to run.  ``journal``: with one that is on, hosts of earlier routers may come back.
        ``claim``: returns why the peer behind a route may not be the host of
        a name, or ""."""
        self.leases = Leases(terms, epoch)
        self.out: list[RouterEffect] = [] if out is None else out
        """Effects, in order; the router takes them out."""
        self.hosts: dict[Membership, RemoteHost] = {}
        self.is_open = False
        """Whether hosts are welcome."""
        self.now_s = 0.0
        """Last time that was read."""
        self.mark: Callable[[ToWorker], ToWorker] = lambda effect: effect
        """Marks what a worker is sent, for who traces it; it must not grow."""
        self._pool = pool
        self.needs = dict(needs or {})
        self._wire = wire or WireLimits()
        self._serves = dict(serves or {})
        self._journal = journal
        self._tag = f"-{epoch[:3].hex()}" if journal.on else ""
        self._of_worker: dict[bytes, RemoteHost] = {}
        self._of_slot: dict[int, RemoteHost] = {}
        self._told: dict[tuple[bytes, Incarnation], list[ToWorker]] = {}
        """Messages of this turn to workers of hosts."""
        self.claim = claim
        self._past = PastHosts()
        self._recorded: tuple[EpochWait, ...] = ()
        """The last record that is safe."""
        self._stale = False
        """Whether the record may have changed."""
        self._recording: tuple[EpochWait, ...] | None = None
        """The record that is being written; None if none is."""
        self._failed = False
        """Whether the last record could not be written."""

    # -- earlier routers, and the record for later ones -------------------------

    def found(self, waits: Sequence[EpochWait], now_s: float) -> None:
        """Take in the earlier epochs whose hosts may still have workers."""
        self.leases.earlier = EarlierEpochs(waits, now_s)
        self.now_s = now_s

    def open(self) -> set[Epoch]:
        """Welcome hosts from now on; returns the earlier epochs whose hosts may come back.  Without
        their journal nothing of these lives by now."""
        if not self._journal.on:
            self.leases.earlier = EarlierEpochs((), 0.0)
        self.is_open = self._stale = True
        return {each.epoch for each in self.leases.earlier.waits}

    @property
    def is_recorded(self) -> bool:
        """Whether a record of this router was ever safe."""
        return bool(self._recorded)

    @property
    def is_recording(self) -> bool:
        """Whether a record is being written."""
        return self._recording is not None

    def _record(self) -> None:
        """Have what a later server must find recorded, unless it is: one record at a time."""
        if self.is_recording:
            return
        self._stale = False
        record = self.leases.earlier.record(self.leases.own(), self.now_s)
        if record != self._recorded:
            self._recording = record
            self.out.append(RecordHosts(record))
        else:
            self._failed = False  # a host that could not be recorded has gone

    def recorded(self, why: str) -> None:
        """Take in that the record is safe, or why it could not be written."""
        record, self._recording = self._recording, None
        assert record is not None
        if not why:
            self._recorded, self._stale = record, True
        elif not self._failed:
            self.out.append(Report("error", f"no further host can join: {why}"))
        self._failed = bool(why)
        known = record[-1].memberships or frozenset()
        for membership, host in self.hosts.items():
            if membership in known and not host.recorded:
                host.recorded = not why
                self.out += host.held if host.recorded else ()
                host.held.clear()

    def _end_earlier(self, route: Route, frames: Sequence[Body]) -> None:
        """Answer a host of an earlier router without whose journal this one is.  ProtocolError if
        its message is malformed."""
        hello, _ = decode(frames, most_bytes=self._wire.header_bytes)
        if not isinstance(hello, HostHello):
            return
        self.leases.earlier.accounted_for(hello.ended)
        if hello.epoch or self.leases.earlier.knows(hello.membership):
            text = "this is another router, and its membership is over; it may join anew"
            self._refuse(route, hello.membership, hello.hello, OVER, text)

    # -- effects of the router ------------------------------------------------

    def take(self, effect: RouterEffect) -> bool:
        """Carry out an effect of the router if it concerns a worker of a host; returns whether it
        does."""
        host: RemoteHost | None = None
        if isinstance(effect, Spawn):
            host = self._of_slot.get(effect.slot)
        elif isinstance(effect, Kill | AskWorker | ToWorker):
            host = self._of_worker.get(effect.worker)
        if host is None:
            return False
        if isinstance(effect, Spawn):
            self._of_worker[effect.worker] = host
            host.start(effect)
        elif isinstance(effect, Kill):
            host.kill(effect.worker, effect.why)
        elif isinstance(effect, AskWorker):
            self._send(host, host.question(effect))
        else:
            assert isinstance(effect, ToWorker)
            self._told.setdefault(effect[:2], []).append(effect)
        return True

    @property
    def is_due(self) -> bool:
        """Whether hosts are to be sent something when the turn is over."""
        is_stale = self._stale and not self.is_recording
        return is_stale or bool(self._told) or any(host.dirty for host in self.hosts.values())

    def turn_over(self) -> None:
        """Send the messages to workers and the orders of this turn, in batches, and have recorded
        what has changed in it."""
        told, self._told = self._told, {}
        for (worker, incarnation), each in told.items():
            host = self._of_worker.get(worker)
            if host is not None:  # else it has ended in this turn
                for frames in in_batches(self.mark(effect)[2:] for effect in each):
                    item = Item(ItemKind.TELL, worker, (incarnation, *map(whole, frames)))
                    host.put(item)
        for host in self.hosts.values():
            if host.dirty:
                self._flush(host)
        if self._stale:
            self._record()

    def host_of(self, worker: bytes) -> str | None:
        """Name of the host of a worker; None for a worker of this machine."""
        host = self._of_worker.get(worker)
        return None if host is None else host.name

    def _send(self, host: RemoteHost, frames: tuple[Body, ...]) -> None:
        told = self.out if host.recorded else host.held
        told.append(ToHost(host.route, frames))

    def _flush(self, host: RemoteHost) -> None:
        for frames in host.messages():
            self._send(host, frames)

    # -- messages of hosts ----------------------------------------------------

    def message(self, route: Route, frames: Sequence[Body], now_s: float) -> list[OfHost]:
        """Take in a message of a host; returns what follows for the router, in order.

        ProtocolError if it is malformed: then it has no effect, the host's membership ends, and
        the host is told that.  Its workers count as dead no earlier than those of a silent host."""
        if not self.is_open:
            if not self._journal.on:
                self._end_earlier(route, frames)
            return []
        try:
            return self._message(route, frames, now_s)
        except ProtocolError as error:
            for host in self.hosts.values():
                if host.route == route and not host.broken:
                    self._end_session(host, error)
            raise
        finally:
            self.now_s, self._stale = now_s, True

    def _end_session(self, host: RemoteHost, error: ProtocolError) -> None:
        host.broken = True
        why = f"it sent a malformed message: {error}"
        if host.set_aside:
            host.why = why
        else:
            self._set_aside(host, "error", why)
        self._refuse(host.route, host.holding.membership, host.holding.hello, OVER, why)

    def _message(self, route: Route, frames: Sequence[Body], now_s: float) -> list[OfHost]:
        try:
            message, rest = decode(frames, most_bytes=self._wire.header_bytes)
        except ForeignHost as error:
            if error.hello is not None:
                membership, number, name = error.hello
                self._refuse(route, membership, number, VERSION, f"here {error}")
                self._past.add(host_name(name), "refused", str(error), now_s)
            raise
        if isinstance(message, HostHello):
            return self._hello(route, message, now_s)
        host = self.hosts.get(message.membership)
        if host is None or host.broken:
            return []
        match message:
            case HostBeat():
                return self._beat(host, message, now_s)
            case HostLeaves():
                if host.inbox.have < message.sent:
                    return []  # items are missing; the host repeats its goodbye
                over = self.leases.leave(host.name, message.membership)
                return [] if over is None else self._gone(over, now_s, "it has left", "info")
            case Items():
                items = [(item, value_of(item)) for item in host.inbox.take(message, rest)]
                follows = [self._item(host, item, value, now_s) for item, value in items]
                return [each for inputs in follows for each in inputs]
            case _:
                raise ProtocolError(f"{type(message).__name__} from a host")

    def _hello(self, route: Route, hello: HostHello, now_s: float) -> list[OfHost]:
        name = host_name(hello.host)
        if self.claim is not None and (refused := self.claim(route, name)):
            self._refuse(route, hello.membership, hello.hello, IN_USE, refused)
            self._past.add(name, "refused", refused, now_s)
            return []
        if not min(1, hello.workers) <= hello.least <= hello.workers:
            raise ProtocolError(
                f"a host of {hello.least} workers at least, {hello.workers} at most"
            )
        capacity = fitting(hello.workers, hello.offers, self.needs)
        lives = left_lives(hello, header_bytes=self._wire.header_bytes)
        known = self.hosts.get(hello.membership)
        if known is None and self.leases.is_over(hello.membership):
            pass  # it is told so below, whatever else is wrong with it
        elif known is None:
            is_late = bool(hello.epoch) and hello.to != self.leases.epoch  # told so below, too
            if not is_late and any(life.worker in self._pool.lives for life in lives):
                raise ProtocolError("a worker of a host that has the name of another one")
            if unwelcome := self._unwelcome(name, hello.workers, capacity):
                self._refuse(route, hello.membership, hello.hello, *unwelcome)
                self._past.add(name, "refused", unwelcome[1], now_s)
                return []
        elif known.name != name:
            raise ProtocolError("one membership of two hosts")
        elif known.broken:
            self._refuse(route, hello.membership, hello.hello, OVER, known.why)
            return []
        reception, over = self.leases.hello(
            name, hello.membership, hello.hello, hello.ended, now_s,
            with_epoch=hello.epoch, continues=hello.continues, to=hello.to,
        )  # fmt: skip
        follows: list[OfHost] = []
        if over is not None:
            follows += self._gone(over, now_s, "its next membership says so")
        if reception in _REFUSALS:
            code, text = _REFUSALS[reception]
            self._refuse(route, hello.membership, hello.hello, code, text.format(name))
            if reception is Reception.IN_USE:
                self._past.add(name, "refused", text.format(name), now_s)
        elif reception is Reception.WELCOME:
            is_new = hello.membership not in self.hosts
            self._welcome(route, hello, name, capacity)
            if is_new:
                follows += self._take_back(self.hosts[hello.membership], lives, now_s)
        return follows

    def _unwelcome(self, name: str, workers: int, capacity: int) -> tuple[str, str] | None:
        """Code and text of the reason for which a host cannot join; None if it can."""
        if refused := unfit(workers, capacity, self.needs):
            return refused
        if name in self.leases.holdings:
            return None  # it replaces a host that is here
        return crowded([host.capacity for host in self.hosts.values()], capacity)

    def _take_back(self, host: RemoteHost, lives: list[LeftLife], now_s: float) -> list[OfHost]:
        """Enter the workers that live on from the membership that this one continues."""
        if not lives:
            return []
        self._open(host)
        follows: list[OfHost] = []
        for life, host_slot, is_to_end in on_slots(lives, host.capacity):
            self._of_worker[life.worker] = host
            slot = host.take_back(life, host_slot, self._pool, is_to_end=is_to_end)
            after = max(life.seen.flat(), default=0)
            follows.append(
                WorkerBack(
                    life.worker, slot, life.incarnation, life.pid, is_to_end, life.hello,
                    after, life.running.flat(), now_s, life.seen.gaps(after).flat(),
                )
            )  # fmt: skip
        count = sum(len(life.running) for life in lives)
        text = f"host {host.name} is back with {len(lives)} workers, which run {count} requests"
        self.out.append(Report("info", text))
        self._flush(host)
        return follows

    def _refuse(
        self, route: Route, membership: Membership, hello: int, code: str, text: str
    ) -> None:
        refused = HostRefused(membership, hello, self.leases.epoch, code, text)
        self.out.append(ToHost(route, (encode(refused),)))

    def _welcome(self, route: Route, hello: HostHello, name: str, capacity: int) -> None:
        holding = self.leases.holdings[name]
        host = self.hosts.get(hello.membership)
        if host is None:
            outbox = Outbox(hello.membership)
            least = min(hello.least, capacity)
            host = RemoteHost(holding, route, capacity, least, outbox, Inbox())
            self.hosts[hello.membership] = host
        host.route = route
        welcome = HostWelcome(
            PROTOCOL_VERSION, hello.membership, hello.hello, self.leases.epoch,
            self.leases.terms.fence_s, self._serves,
        )  # fmt: skip
        self._send(host, (encode(welcome),))
        host.outbox.again()
        self._flush(host)

    def _beat(self, host: RemoteHost, beat: HostBeat, now_s: float) -> list[OfHost]:
        lease_beat = LeaseBeat(beat.beat, beat.answered, beat.epoch)
        if not self.leases.beat(host.name, beat.membership, lease_beat, now_s):
            return []
        self._send(host, (encode(host.answer(beat, self._journal)),))
        self._flush(host)
        if beat.leaving and not host.leaving:
            host.leaving = True
            self._set_aside(host, "info", "it leaves")
            self.out += host.drain(self._pool, now_s)
        return []

    def _item(self, host: RemoteHost, item: Item, value: Value, now_s: float) -> Sequence[OfHost]:
        worker = item.worker
        if worker not in host.workers:
            return []
        match value:
            case int():
                return [Spawned(worker, value)]
            case Heartbeat():
                return inputs_of(worker, value, now_s)
            case str():
                return [self._ended(host, worker, value, now_s)]
            case frames:
                if worker in host.unready and is_hello(frames, self._wire.header_bytes):
                    host.got_ready(worker)
                return [WorkerMessage([worker, *frames], now_s)]

    def _ended(self, host: RemoteHost, worker: bytes, how: str, now_s: float) -> Exited:
        del self._of_worker[worker]
        host.ended(worker, how, self._pool)
        most = self._pool.limits.broken_after
        if host.failed_starts >= most and not host.set_aside:
            why = f"{most} workers in a row did not get ready: {how}"
            self._set_aside(host, "error", why, failed=f"host {host.name}: {why}")
        return Exited(worker, now_s, how)

    def _set_aside(self, host: RemoteHost, level: str, why: str, failed: str = "") -> None:
        host.set_aside, host.why = True, why
        self._close(host, failed)
        self.out.append(Report(level, f"host {host.name} gets no more workers: {why}"))

    def _open(self, host: RemoteHost) -> None:
        host.open(self._pool, self._tag)
        self._of_slot |= dict.fromkeys(host.host_slots, host)

    def _close(self, host: RemoteHost, failed: str = "") -> None:
        for index in host.close(self._pool, failed):
            del self._of_slot[index]

    # -- statistics -----------------------------------------------------------

    def records(self, running: Mapping[bytes, int], now_s: float) -> dict[str, Any]:
        """The statistics of present and past hosts.  ``running``: number of executions on each
        worker that said hello."""
        hosts = sorted(self.hosts.values(), key=lambda host: host.name)
        wait_s = self.leases.terms.wait_s
        return {
            "hosts": [host.record(running, self._pool, wait_s, now_s) for host in hosts],
            "past_hosts": self._past.records(now_s),
        }

    # -- time -----------------------------------------------------------------

    def tick(self, now_s: float, *, unknown: int = 0) -> list[OfHost]:
        """Decide which hosts are lost and which get work; returns what follows for the router.

        ``unknown``: number of live executions of earlier routers that this one does not know and
        stops.  While there is one, the router that started it does not count as dead, here or for
        a later router."""
        if not self.is_open:
            return []
        follows: list[OfHost] = []
        if not unknown and (dead := self.leases.earlier.take_dead(now_s)):
            follows.append(HostsDead(dead, now_s))
        for over in self.leases.lost(now_s):
            why = f"it sent nothing for {now_s - over.seen_at:.0f} s"
            follows += self._gone(over, now_s, why)
        for host in self.hosts.values():
            host.refresh(self._pool, has_lease=self.leases.is_fresh(host.holding, now_s))
            if host.fresh and not host.slots and not host.set_aside:
                self._open(host)
                count = host.capacity if host.part is None else host.part.bounds
                self.out.append(Report("info", f"host {host.name}: {count} workers"))
        self.now_s, self._stale = now_s, True
        return follows

    def _gone(self, over: Holding, now_s: float, why: str, level: str = "warning") -> list[OfHost]:
        """Remove the host of a membership that is over, whose workers are all dead."""
        host = self.hosts.pop(over.membership)
        self._close(host)
        state = "left" if level == "info" else "lost"
        self._past.add(host.name, state, why, now_s)
        self.out.append(Report(level, f"host {host.name} is gone: {why}"))
        how = f"its host {host.name} is gone: {why}"
        for worker in host.workers:
            del self._of_worker[worker]
        return [*(Exited(worker, now_s, how) for worker in sorted(host.workers))]
