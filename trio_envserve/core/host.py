"""The machine of a host: it joins a router and owns the worker processes of its computer.

Theory of operation
-------------------
A host decides nothing about work.  It starts and kills the workers that the router wants, and
forwards messages in both directions.  It keeps the workers' messages, outcomes above all, until the
router's journal has them (:mod:`.host_link`).  The report of a worker's end follows all its
messages.

A host remembers which dispatches it has passed on to each worker and which of them have ended.  A
new router with the journal of the old one is told that, and takes the running work over.  It gets
the messages again that may not be in the journal.

A host holds a lease (:mod:`.lease`).  When the lease runs out, or the membership is over, all
workers must end.  The next membership, with this router or another one, begins when all of them
are reaped.  The guard has killed them by then; the host kills them as well, since that costs
nothing.

Inputs are methods, with the time ``boot_s`` of a clock that runs while the machine sleeps.
Effects are appended to :attr:`Host.out`, in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
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
from .messages import Announced, Dispatch, Message, WorkerHello, WorkerOutcome, is_uint
from .ranges import Ranges
from .router_effects import AskWorker, Kill, Report, Spawn
from .terms import ID_BYTES, Body, Epoch, Incarnation, Membership, one_line
from .worker_range import WorkerRange, least_of, most_of


class FromHost(NamedTuple):
    """Send these frames over the newest connection."""

    frames: tuple[Body, ...]
    is_delta: bool = False
    """Whether it is dropped where much waits already: the lease hangs on what comes behind."""


class TellWorker(NamedTuple):
    """Send these frames to a worker."""

    worker: bytes
    frames: tuple[Body, ...]


class SetDeadline(NamedTuple):
    """Tell the guard the moment by which it and all workers must be dead.  Precedes the starts
    that the deadline allows."""

    deadline_s: float


class NewGuard(NamedTuple):
    """Replace the guard by one that was never told a deadline: all workers are reaped."""


class Serve(NamedTuple):
    """Load the environment that the router wants, before the first start of a membership."""

    serves: dict[str, Any]


HostEffect: TypeAlias = (
    FromHost | Spawn | TellWorker | Kill | AskWorker | SetDeadline | NewGuard | Serve | Report
)
"""Everything that a host can have done.  A spawn is followed by :meth:`.Host.spawned`, and by
:meth:`.Host.exited` when the process was reaped, or could not be started; its slot is that
of the host, whose earlier worker may still be ending."""


@dataclasses.dataclass(slots=True)
class WorkerLife:
    """A host's record of a worker, which a router that takes the host over is told."""

    incarnation: Incarnation
    slot: int
    """Index of its slot on the host."""
    pid: int = 0
    hello: bytes = b""
    """Header of its hello; empty until it is ready."""
    seen: Ranges = dataclasses.field(default_factory=Ranges)
    """Numbers of the dispatches to it.  What waits for a journal is sent after greater ones."""
    running: set[int] = dataclasses.field(default_factory=set)
    """Numbers of the dispatches that were passed on to it and have not ended."""

    def told(self, message: Message) -> None:
        """Note a message to the worker."""
        if isinstance(message, Dispatch):
            self.seen.add(message.number)
            if self.seen.span_count() > SPANS_MOST:
                (_, start), (stop, _) = islice(self.seen.spans(), 2)
                self.seen.add_span(start, stop)
            self.running.add(message.number)

    def note(self, header: Body, message: Message) -> None:
        """Note a message of the worker."""
        match message:
            case WorkerHello():
                self.hello = bytes(header)
            case WorkerOutcome() | Announced():
                self.running.discard(message.number)
            case _:
                pass


SPANS_MOST = 16
"""Most spans of the dispatches that a worker has seen; at more the oldest missing ones count as
seen, and so may have run."""
NO_LEASE = "the host's lease does not hold"
LEAVING = "the host leaves"
UNANSWERED_BEATS = 10
"""Number of unanswered beats after which a host says hello again: a router that no longer knows the
membership answers none of its beats."""
REFUSAL_BYTES = 1_000
"""Most bytes of a router's refusal; a longer one is cut."""
REQUEST_BYTES = 64
"""Most bytes of the id of a request in a router's question."""
UNANSWERED = "the router has not answered for as long as the lease holds"


_TOLD = (WorkerHello, WorkerOutcome, Announced, Dispatch)
"""Messages by which a host learns what a worker is and runs."""
_PASSING = (messages.WorkerDelta, messages.WorkerNotes)
"""Messages of workers that are not kept: the next one, or the outcome, says more."""


class Host:
    """One host.  ``past``: memberships whose workers are dead, as the host's lock proves."""

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
        """Names of the workers that are to be started or were started, and are not reaped."""
        self.is_leaving = False
        self._lives: dict[bytes, WorkerLife] = {}
        """Records of those workers, and of ended ones of whose end the router may not know."""
        self._continues: list[Membership] = []
        """Memberships that the present one continues; empty once the router has welcomed it."""
        self._moved_from: Epoch = b""
        """Router of one of these memberships."""
        self._moved_to: Epoch = b""
        """Router with which the present membership is to be."""
        self._left_lives: list[list[Any]] = []
        """Workers at the beginning of a continuing membership, as its hello states them."""
        self._past = list(past)
        self._new_id = new_id
        self._wire = wire or WireLimits()
        self._ending = ""
        """Reason for which all workers are to end; empty unless they are ending."""
        self._serves: dict[str, Any] = {}
        """Environment for which its workers were started."""
        self._boot_s = 0.0
        """Latest time that an input had."""
        self._connected = False
        """Whether the router has welcomed it on the newest connection."""
        self.refusal: tuple[str, str] | None = None
        """Code and text of the router's last refusal; None once it has welcomed the host."""
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
        """Continue no earlier membership."""
        self._continues, self._left_lives = [], []
        self._moved_from = self._moved_to = b""

    def _go_over(self, to: Epoch) -> None:
        """Begin a membership with the next router, which takes the running work over.  Messages of
        the old router do not count any more; items that may not be safe go to the next."""
        lease = self.lease
        self._continues = [*self._continues, lease.membership][-ENDED_MOST:]
        self._moved_from, self._moved_to = lease.epoch or self._moved_from, to
        self._left_lives = [
            [
                worker, life.incarnation, life.pid, life.hello, life.seen.flat(),
                Ranges(sorted(life.running)).flat(), life.slot,
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
        """Say hello on a new connection, or again on one on which nobody answers."""
        lease = self.lease
        self._connected = False
        if lease.over:
            return
        hello = HostHello(
            PROTOCOL_VERSION, self.name, lease.membership, lease.hello(), self._past[-ENDED_MOST:],
            lease.epoch or self._moved_from, self.capacity, self._least, self.offers,
            self._continues, self._moved_to, self._left_lives,
        )  # fmt: skip
        self.out.append(FromHost((encode(hello),)))

    def disconnect(self) -> None:
        """Note that the connection is gone: items wait for the next one."""
        self._connected = False

    def message(self, frames: Sequence[Body], boot_s: float) -> None:
        """Take in a message of the router.  ProtocolError if it is malformed."""
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
                    items = [(item, _checked(item)) for item in self._inbox.take(message, rest)]
                except (
                    ProtocolError
                ):  # items of the router are lost, so the membership cannot go on
                    self.lease.over = True
                    self._go_on()
                    raise
                for item, number in items:
                    self._item(item, number, boot_s)
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
                text = "the router serves another environment now: all workers of this host end"
                self.out.append(Report("warning", text))
                self.lease.refused(message.hello)
            self._stay()
            self._outbox.again()

    def _refused(self, message: HostRefused) -> None:
        if message.code == MOVED and not self._ending:
            if message.hello == self.lease.hellos:
                self.out.append(Report("info", f"the router was replaced: {message.text}"))
                self._go_over(message.epoch)
            return
        refusal = message.code, one_line(message.text, REFUSAL_BYTES)
        if refusal != self.refusal:  # not once for each hello
            self.out.append(Report("warning", f"the router refuses this host: {refusal[1]}"))
        self.refusal = refusal
        if message.code in (OVER, MOVED):
            self.lease.refused(message.hello)

    def _answered(self, answer: HostAnswer, boot_s: float) -> None:
        before_s = self.lease.deadline_s
        deadline_s = self.lease.answer(answer.membership, answer.beat)
        self._outbox.received(answer.have, answer.beat, answer.safe)
        if len(self._lives) > len(self.workers):
            left = self.workers | self._outbox.ends()
            self._lives = {worker: self._lives[worker] for worker in self._lives if worker in left}
        if before_s is not None and boot_s >= before_s and not self._ending:
            self._end(UNANSWERED)  # the guard is dying or dead, whatever the answer says
        if deadline_s is not None and not self._ending:
            self._tell_guard()

    def _tell_guard(self) -> None:
        deadline_s = self.lease.deadline_s
        if deadline_s is not None and self._boot_s < deadline_s:
            self.out.append(SetDeadline(deadline_s))

    def _item(self, item: Item, number: int, boot_s: float) -> None:
        worker = item.worker
        match item.kind:
            case ItemKind.SPAWN:
                if worker in self._lives:
                    name = worker.decode("ascii", "replace")
                    text = f"the router wanted a second worker {name}, which was not started"
                    self.out.append(Report("error", text))
                    return
                self.workers.add(worker)
                incarnation = bytes(item.frames[0])
                self._lives[worker] = WorkerLife(incarnation, number)
                if self.is_leaving:
                    self.exited(worker, LEAVING)
                elif self._ending or not self.lease.holds(boot_s):
                    self.exited(worker, NO_LEASE)
                else:
                    self.out.append(Spawn(number, worker, incarnation))
            case ItemKind.TELL:
                if worker in self.workers:
                    for message in self._read(item.frames[1:]):
                        self._lives[worker].told(message)
                    self.out.append(TellWorker(worker, item.frames))
            case ItemKind.ASK:
                if worker in self.workers:
                    request = bytes(item.frames[1]).decode("utf-8", "replace")
                    self.out.append(AskWorker(worker, number, request))
            case _:  # ItemKind.KILL
                if worker in self.workers:
                    why = bytes(item.frames[0]).decode("utf-8", "replace")
                    self.out.append(Kill(worker, why))

    # -- workers --------------------------------------------------------------

    def _read(self, frames: Sequence[Body]) -> Iterator[messages.Message]:
        """The messages of a batch, if their kind is in :data:`_TOLD`.  A malformed batch has none
        here: its receiver judges it."""
        if not frames or messages.kind_claimed(frames[0]) not in _TOLD:
            return
        try:
            for message, _ in messages.read(frames, most_bytes=self._wire.header_bytes):
                yield message
        except ProtocolError:
            return

    def spawned(self, worker: bytes, pid: int) -> None:
        """Note that the process of a worker was started."""
        self._lives[worker].pid = pid
        self._put(Item(ItemKind.SPAWNED, worker, (str(pid).encode(),)))

    def worker_message(self, worker: bytes, frames: Sequence[Body]) -> None:
        """Take in a message of a worker: its incarnation, a header, and more.

        A message that the link cannot carry, or the router would refuse, would block the link for
        all later ones.  It is dropped, and its worker is killed, since the executions on it might
        never be reported."""
        # An eighth of a header is left for the fields of the item.
        most_bytes = max(self._wire.header_bytes * 7 // 8, BATCH_BYTES)
        if len(frames) not in (2, 4) or sum(map(len, frames[:3])) > most_bytes:
            name = worker.decode("ascii", "replace")
            self.out.append(Report("warning", f"worker {name} sent a malformed message"))
            self.out.append(Kill(worker, "it sent a malformed message"))
            return
        header = frames[len(frames) // 2]
        item = Item(ItemKind.MESSAGE, worker, tuple(frames))
        for message in self._read(frames[len(frames) // 2 :]):
            self._lives[worker].note(header, message)
        kind = messages.kind_claimed(header)
        if kind in _PASSING:
            self._pass(item)
        elif kind is not messages.Beat or self._connected:  # beats come in order or not at all
            self._put(item)

    def worker_heartbeat(self, worker: bytes, heartbeat: Heartbeat) -> None:
        """Take in a heartbeat of a worker's process."""
        self._pass(Item(ItemKind.HEARTBEAT, worker, (heartbeat.to_line(),)))

    def exited(self, worker: bytes, how: str) -> None:
        """Note that a worker was reaped, after :meth:`worker_message` has got all its messages."""
        self.workers.discard(worker)
        self._put(Item(ItemKind.EXITED, worker, (how.encode("utf-8", "replace"),)))
        self._go_on()

    def _put(self, item: Item) -> None:
        """Send an item with the next :meth:`flush`, in a batch with others."""
        self._outbox.put(item)

    def _pass(self, item: Item) -> None:
        """Send an item without a number, which may be lost."""
        if self._connected:
            self.flush()  # so that it overtakes no earlier item
            header = item.frames[len(item.frames) // 2]
            kind = messages.kind_claimed(header) if item.kind is ItemKind.MESSAGE else None
            frames = to_frames(self.lease.membership, 0, [item])
            self.out.append(FromHost(frames, is_delta=kind is messages.WorkerDelta))

    def flush(self) -> None:
        """Send the items that were not sent yet."""
        if self._connected:
            self.out += [FromHost(frames) for frames in self._outbox.messages()]

    # -- time -----------------------------------------------------------------

    def beat(self, boot_s: float, machine: dict[str, Any] | None = None) -> None:
        """Send a beat.  ``boot_s`` was read just before.  ``machine``: load and memory of this
        computer, for people."""
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
            self.out.append(FromHost((encode(message),)))
            if lease.beats - lease.answered > UNANSWERED_BEATS:
                self._connected = False  # so the shell calls connect()
        self._go_on()

    def leave(self) -> None:
        """Leave the router: it drains the workers, and once none is left the host says goodbye."""
        self.is_leaving = True
        self._go_on()

    def _end(self, why: str) -> None:
        self._ending = why
        self.out.append(Report("error", f"all workers of this host are killed: {why}"))
        self.out += [Kill(worker, why) for worker in sorted(self.workers)]

    def _go_on(self) -> None:
        """Do what is due: end a membership that is over, begin the next one once all workers have
        ended, say goodbye, or send."""
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
                FromHost((encode(HostLeaves(lease.membership, self._outbox.put_in_all)),))
            )
        elif self._connected:
            self.flush()


def _checked(item: Item) -> int:
    """Check an item of the router: returns the slot of a worker that is to be started, the number
    of a dispatch that is asked for, and 0 for other kinds.  ProtocolError if it is malformed."""
    match item.kind, item.frames:
        case ItemKind.SPAWN, (incarnation, slot) if len(incarnation) == ID_BYTES:
            digits = bytes(slot)
            if digits.isdigit() and len(digits) < 7:
                return int(digits)
        case ItemKind.ASK, (number, request) if len(request) <= REQUEST_BYTES:
            digits = bytes(number)
            if digits.isdigit() and len(digits) < 20 and is_uint(int(digits)):
                return int(digits)
        case (ItemKind.TELL, (_, *_)) | (ItemKind.KILL, (_,)):
            return 0
    raise ProtocolError(f"{item.kind.name} of {len(item.frames)} frames from a router")
