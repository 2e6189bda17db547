"""The pure part of a host: it joins a router, and owns the workers of its machine.

Theory of operation
-------------------
The host decides nothing about work.  It starts and kills the workers that the router wants,
forwards what they say and what they are told, and keeps what they said, outcomes above all,
until the router has it (:mod:`.host_link`).  A worker's end comes after all that it said.

It remembers which dispatches it has passed on, and which have ended.  A router with a
journal that follows the one before is told so, and takes over what runs.

It holds the lease (:mod:`.lease`).  If that runs out, or its membership is over, every worker is
to end; the next membership, with this router or another one, begins when all of them are reaped.
The guard has killed them by then; the host kills them too, since it costs nothing.

Inputs are methods, with the time ``boot_s`` of a clock that runs while the machine sleeps;
what is to be done is in :attr:`Host.out`, in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import messages
from .errors import ProtocolError
from .heartbeat import Heartbeat
from .host_link import Inbox, Item, ItemKind, Outbox, to_frames
from .host_messages import (
    ENDED_MOST,
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
from .lease import HostLease
from .limits import BATCH_BYTES, PROTOCOL_VERSION, WireLimits
from .messages import Announced, Declined, Dispatch, Message, WorkerHello, WorkerOutcome
from .ranges import Ranges
from .terms import ID_BYTES, Body, Epoch, Incarnation, Membership, one_line
from .worker_range import WorkerRange, least_of, most_of


class ToRouter(NamedTuple):
    """Send these frames over the newest connection."""

    frames: tuple[Body, ...]


class StartWorker(NamedTuple):
    """Start a process for this worker; then say :meth:`.Host.spawned`, and, when it is
    reaped or cannot be started, :meth:`.Host.exited`."""

    worker: bytes
    incarnation: Incarnation
    slot: int
    """Which of the host's places it has, from 0: one that was started there before may still
    be ending."""


class TellWorker(NamedTuple):
    """Send these frames to a worker."""

    worker: bytes
    frames: tuple[Body, ...]


class KillWorker(NamedTuple):
    """Kill the process and all that it has started."""

    worker: bytes
    why: str


class SetDeadline(NamedTuple):
    """Tell the guard by when it, and all workers, must be dead.  It comes before the
    workers that may be started for it."""

    deadline_s: float


class NewGuard(NamedTuple):
    """Whatever lives is dead by now, or is reaped: a guard that was never told a deadline is
    to take the place of the one before."""


class Serve(NamedTuple):
    """The router says what is to be run, before the first worker of a membership starts."""

    serves: dict[str, Any]


class Say(NamedTuple):
    """A line for the log."""

    level: str
    text: str


HostEffect: TypeAlias = (
    ToRouter | StartWorker | TellWorker | KillWorker | SetDeadline | NewGuard | Serve | Say
)


@dataclasses.dataclass(slots=True)
class WorkerLife:
    """A worker that a host reports to the router that takes it over."""

    incarnation: Incarnation
    place: int
    pid: int = 0
    hello: bytes = b""
    """The header of what it said when it was ready."""
    next: int = 0
    """One more than the greatest number of a dispatch to it."""
    running: set[int] = dataclasses.field(default_factory=set)
    """The dispatches that were passed on to it, and whose end it has not said."""

    def told(self, message: Message) -> None:
        """This is for the worker."""
        if isinstance(message, Dispatch):
            self.next = max(self.next, message.number + 1)
            self.running.add(message.number)

    def said(self, header: Body, message: Message) -> None:
        """The worker says this."""
        match message:
            case WorkerHello():
                self.hello = bytes(header)
            case WorkerOutcome() | Announced():
                self.running.discard(message.number)
            case Declined():
                self.running.difference_update(Ranges.from_flat(message.numbers))
            case _:
                pass


NO_LEASE = "the host's lease does not hold"
LEAVING = "the host leaves"
UNANSWERED_BEATS = 10
"""After so many a host says hello again: the router may know its membership no more, and then it
answers no beat of it."""
REFUSAL_BYTES = 1_000
"""A longer refusal of a router is cut."""
UNANSWERED = "the router has not answered for as long as the lease holds"


def _first_bytes(kinds: Sequence[type[messages.Message]]) -> frozenset[int]:
    return frozenset(messages.KINDS[each] for each in kinds)


_TOLD = _first_bytes(
    [
        messages.WorkerHello, messages.WorkerOutcome, messages.Announced, messages.Declined,
        messages.Dispatch,
    ]
)  # fmt: skip
"""Messages to and from workers that say what they are, and what runs."""
_PASSING = _first_bytes([messages.Beat, messages.WorkerDelta, messages.WorkerNotes])
"""Messages of workers of which the next one says more: they are not kept."""


class Host:
    """One host.  ``past`` are memberships that its lock proves dead."""

    def __init__(
        self, name: str, workers: int | WorkerRange, new_id: Callable[[], bytes], *,
        offers: dict[str, Any] | None = None, past: Sequence[Membership] = (),
        wire: WireLimits | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.capacity = most_of(workers)
        self._least = least_of(workers)
        self.offers = offers or {}
        self.out: list[HostEffect] = []
        self.workers: set[bytes] = set()
        """Those that were started, or are to be, and are not reaped."""
        self.is_leaving = False
        self._lives: dict[bytes, WorkerLife] = {}
        """Of those workers, and of those of whose end the router may not know."""
        self._continues: list[Membership] = []
        """The memberships that this one continues, until its router has said that it is welcome;
        and with which router one of them was, with which this one is to be, and what was
        there when it began."""
        self._moved_from: Epoch = b""
        self._moved_to: Epoch = b""
        self._left_lives: list[list[Any]] = []
        self._past = list(past)
        self._new_id = new_id
        self._wire = wire or WireLimits()
        self._ending = ""
        """Why all workers are to end, while they do."""
        self._serves: dict[str, Any] = {}
        """The environment that its workers were started for."""
        self._boot_s = 0.0
        """The newest time that it was told."""
        self._connected = False
        self.refusal: tuple[str, str] | None = None
        """The code and the text of the router's refusal; None once it has welcomed the host."""
        self.lease = HostLease(self._new_id())
        self._outbox, self._inbox = Outbox(self.lease.membership), Inbox()

    def _begin(self) -> None:
        self._past += [*self._continues, self.lease.membership]
        self.lease.begin(self._new_id())
        self._outbox, self._inbox = Outbox(self.lease.membership), Inbox()
        self._lives.clear()
        self._stay()
        self._connected = False

    def _stay(self) -> None:
        """Nothing is to be continued."""
        self._continues, self._left_lives = [], []
        self._moved_from = self._moved_to = b""

    def _go_over(self, to: Epoch) -> None:
        """The next router takes over what runs: nothing of the one before counts any more,
        and what may not have reached that is for this one."""
        lease = self.lease
        self._continues = [*self._continues, lease.membership][-ENDED_MOST:]
        self._moved_from, self._moved_to = lease.epoch or self._moved_from, to
        self._left_lives = [
            [
                worker, life.incarnation, life.pid, life.hello, life.next,
                Ranges(sorted(life.running)).flat(), life.place,
            ]
            for worker, life in self._lives.items()
        ]  # fmt: skip
        lease.go_on(self._new_id())
        self._outbox, self._inbox = self._outbox.move(lease.membership), Inbox()
        self.connect()

    @property
    def is_joined(self) -> bool:
        """Whether the router has welcomed it on the newest connection."""
        return self._connected

    # -- the router -----------------------------------------------------------

    def connect(self) -> None:
        """There is a new connection, or none answered on the last one: join, or come back."""
        lease = self.lease
        self._connected = False
        if lease.over:
            return
        hello = HostHello(
            PROTOCOL_VERSION, self.name, lease.membership, lease.hello(), self._past[-ENDED_MOST:],
            lease.epoch or self._moved_from, self.capacity, self._least, self.offers,
            self._continues, self._moved_to, self._left_lives,
        )  # fmt: skip
        self.out.append(ToRouter((encode(hello),)))

    def disconnect(self) -> None:
        """The connection is gone: what is sent waits for the next one."""
        self._connected = False

    def message(self, frames: Sequence[Body], boot_s: float) -> None:
        """A message of the router.  ProtocolError if it is none."""
        self._boot_s = boot_s
        try:
            message, rest = decode(frames, most_bytes=self._wire.header_bytes)
        except ForeignHost as error:
            self.refusal = VERSION, f"there {error}"
            raise
        if getattr(message, "membership", None) != self.lease.membership or self.lease.over:
            return
        match message:
            case HostWelcome():
                self._welcomed(message)
            case HostRefused():
                self._refused(message)
            case HostAnswer():
                self._answered(message, boot_s)
            case Items():
                try:
                    said = [(item, _checked(item)) for item in self._inbox.take(message, rest)]
                except ProtocolError:  # what it has wanted is lost: all ends, and begins anew
                    self.lease.over = True
                    self._go_on()
                    raise
                for item, place in said:
                    self._item(item, place, boot_s)
            case _:
                raise ProtocolError(f"{type(message).__name__} from a router")
        self._go_on()

    def _welcomed(self, message: HostWelcome) -> None:
        is_first = not self.lease.epoch
        if self.lease.welcomed(message.hello, message.epoch, message.fence_s):
            self._connected = True
            self.refusal = None
            if is_first and not self.workers:
                self._serves = message.serves
                self.out.append(Serve(message.serves))
            elif message.serves != self._serves:
                self.out.append(Say("warning", "the router wants other workers than there are"))
                self.lease.refused(message.hello)
            self._stay()
            self._outbox.again()

    def _refused(self, message: HostRefused) -> None:
        if message.code == MOVED and not self._ending:
            if message.hello == self.lease.hellos:
                self.out.append(Say("info", f"the router has gone: {message.text}"))
                self._go_over(message.epoch)
            return
        refusal = message.code, one_line(message.text, REFUSAL_BYTES)
        if refusal != self.refusal:  # it is asked again and again
            self.out.append(Say("warning", f"the router refuses this host: {refusal[1]}"))
        self.refusal = refusal
        if message.code in (OVER, MOVED):
            self.lease.refused(message.hello)

    def _answered(self, answer: HostAnswer, boot_s: float) -> None:
        before_s = self.lease.deadline_s
        deadline_s = self.lease.answer(answer.membership, answer.beat)
        self._outbox.received(answer.have, answer.beat)
        if len(self._lives) > len(self.workers):
            left = self.workers | self._outbox.ends()
            self._lives = {worker: self._lives[worker] for worker in self._lives if worker in left}
        if before_s is not None and boot_s >= before_s and not self._ending:
            self._end(UNANSWERED)  # the guard is dead, or dies now: no answer brings it back
        if deadline_s is not None and not self._ending:
            self._tell_guard()

    def _tell_guard(self) -> None:
        deadline_s = self.lease.deadline_s
        if deadline_s is not None and self._boot_s < deadline_s:
            self.out.append(SetDeadline(deadline_s))

    def _item(self, item: Item, slot: int, boot_s: float) -> None:
        worker = item.worker
        match item.kind:
            case ItemKind.SPAWN:
                if worker in self._lives:
                    self.out.append(Say("error", "the router starts a worker that is there"))
                    return
                self.workers.add(worker)
                incarnation = bytes(item.frames[0])
                self._lives[worker] = WorkerLife(incarnation, slot)
                if self.is_leaving:
                    self.exited(worker, LEAVING)
                elif self._ending or not self.lease.holds(boot_s):
                    self.exited(worker, NO_LEASE)
                else:
                    self.out.append(StartWorker(worker, incarnation, slot))
            case ItemKind.TELL:
                if worker in self.workers:
                    for message in self._read(item.frames[1:]):
                        self._lives[worker].told(message)
                    self.out.append(TellWorker(worker, item.frames))
            case _:  # a kill
                if worker in self.workers:
                    why = bytes(item.frames[0]).decode("utf-8", "replace")
                    self.out.append(KillWorker(worker, why))

    # -- workers --------------------------------------------------------------

    def _read(self, frames: Sequence[Body]) -> Iterator[messages.Message]:
        """Messages that concern what runs, of one batch.  What is none is for its receiver to
        judge."""
        if not frames or _kind(frames[0]) not in _TOLD:
            return
        try:
            for message, _ in messages.read(frames, most_bytes=self._wire.header_bytes):
                yield message
        except ProtocolError:
            return

    def spawned(self, worker: bytes, pid: int) -> None:
        """A process was started."""
        self._lives[worker].pid = pid
        self._put(Item(ItemKind.SPAWNED, worker, (str(pid).encode(),)))

    def worker_message(self, worker: bytes, frames: Sequence[Body]) -> None:
        """A message of a worker: its incarnation, a header, and more.  One that the link could
        not carry, or the router would not take, would keep back all that come after it: it is
        dropped, and its worker is ended, which might never report what it runs."""
        # The rest is for what stands beside it.
        most_bytes = max(self._wire.header_bytes * 7 // 8, BATCH_BYTES)
        if len(frames) not in (2, 4) or sum(map(len, frames[:3])) > most_bytes:
            name = worker.decode("ascii", "replace")
            self.out.append(Say("warning", f"worker {name} sent a malformed message"))
            self.out.append(KillWorker(worker, "it sent a malformed message"))
            return
        header = frames[len(frames) // 2]
        item = Item(ItemKind.MESSAGE, worker, tuple(frames))
        for message in self._read(frames[len(frames) // 2 :]):
            self._lives[worker].said(header, message)
        if _kind(header) in _PASSING:
            self._pass(item)
        else:
            self._put(item)

    def worker_heartbeat(self, worker: bytes, heartbeat: Heartbeat) -> None:
        """A heartbeat of a worker's process."""
        self._pass(Item(ItemKind.HEARTBEAT, worker, (heartbeat.to_line(),)))

    def exited(self, worker: bytes, how: str) -> None:
        """It was reaped, and all that it said was given to :meth:`worker_message`."""
        self.workers.discard(worker)
        self._put(Item(ItemKind.EXITED, worker, (how.encode("utf-8", "replace"),)))
        self._go_on()

    def _put(self, item: Item) -> None:
        """It goes with the next :meth:`flush`, together with others."""
        self._outbox.put(item)

    def _pass(self, item: Item) -> None:
        if self._connected:
            self.flush()  # it overtakes nothing
            self.out.append(ToRouter(to_frames(self.lease.membership, 0, [item])))

    def flush(self) -> None:
        """Send what was not sent."""
        if self._connected:
            self.out += [ToRouter(frames) for frames in self._outbox.messages()]

    # -- time -----------------------------------------------------------------

    def beat(self, boot_s: float, machine: dict[str, Any] | None = None) -> None:
        """It is time for a beat; ``boot_s`` was read just before.  ``machine``: how busy
        this machine is, for people."""
        self._boot_s = boot_s
        lease = self.lease
        if self.workers and not self._ending and not lease.holds(boot_s):
            self._end(UNANSWERED)
        if not lease.over and lease.epoch:
            beat = lease.beat(boot_s)
            sent = self._outbox.stated(beat.number)
            message = HostBeat(
                lease.membership, *beat, sent, self._inbox.have, self.is_leaving, machine or {}
            )
            self.out.append(ToRouter((encode(message),)))
            if lease.beats - lease.answered > UNANSWERED_BEATS:
                self._connected = False  # whoever owns it says hello again
        self._go_on()

    def leave(self) -> None:
        """Take no more work: the router drains the workers.  Once nothing runs the host says
        that it goes."""
        self.is_leaving = True
        self._go_on()

    def _end(self, why: str) -> None:
        self._ending = why
        self.out.append(Say("error", f"all workers of this host are killed: {why}"))
        self.out += [KillWorker(worker, why) for worker in sorted(self.workers)]

    def _go_on(self) -> None:
        """Go on once the membership is over, or all workers have ended."""
        lease = self.lease
        if lease.over and not self._ending:
            self._end("its membership with the router is over")
        if self._ending and not self.workers:
            self._ending = ""
            self.out.append(NewGuard())
            if lease.over:
                self._begin()
                self.connect()
            else:
                self._tell_guard()
        if self.is_leaving and not self.workers:
            self.flush()
            self.out.append(
                ToRouter((encode(HostLeaves(lease.membership, self._outbox.put_in_all)),))
            )
        elif self._connected:
            self.flush()


def _checked(item: Item) -> int:
    """The place of a worker that is to be started; 0 for what else a router may want.
    ProtocolError if it may not."""
    match item.kind, item.frames:
        case ItemKind.SPAWN, (incarnation, place) if len(incarnation) == ID_BYTES:
            slot = bytes(place)
            if slot.isdigit() and len(slot) < 7:
                return int(slot)
        case (ItemKind.TELL, (_, *_)) | (ItemKind.KILL, (_,)):
            return 0
    raise ProtocolError(f"{item.kind.name} of {len(item.frames)} frames from a router")


def _kind(header: Body) -> int:
    """The kind of a worker's message: the second item of a short array of CBOR."""
    first = header[1] if len(header) > 1 else 0
    return header[2] if first == 0x18 and len(header) > 2 else first
