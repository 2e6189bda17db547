"""The journal of keys, as far as the core decides it: records are safe before they are acted on.

Theory of operation
-------------------
Keys change in memory at once, and each change that must survive a crash appends a record.
The records of one turn leave the router as one :class:`~.router_effects.Save`; when they
are on disk, in their order, the router is told :class:`~.router_inputs.Saved`.  What the
world would see of a change waits until then (G11): a dispatch for the record of its start,
an answer for that of its outcome, a worker for that of the state that it has saved, what is said
to a cancel, to a forget, or at a deadline for that of the end.  An outcome that is to be
answered while it is saved has won over both.
Nobody has seen what a crash loses, so it may be lost.

As records are saved in their order, one number says how much is safe.  Without a journal
everything is safe at once.

If a record cannot be saved, nothing new is begun, what is known goes on being answered, and
the rest waits, a deadline excepted: whose deadline passes is told that it may have run.  Until
it is saved after all, or known that it never will be.  Then what was
to wait for it is answered as what may have run: nobody knows what the disk has.

After a crash
-------------
A record is there only if all before it are, but for what is over: the records of a closed
generation may be gone, those of old commands, those of a resource that is gone, and of a saved
state once there is a newer one or an outcome.  So each prefix of what was appended is a history
that could have been, and what the world has seen is in each that can be found.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias

from .terms import Body, Incarnation

_P = ParamSpec("_P")


class Opened(NamedTuple):
    """A generation of a key was opened by this request."""

    number: int
    namespace: bytes
    key: bytes
    digest: bytes
    rerun: bool | None
    allowance: int
    """Executions that may be started here, and in later epochs."""
    earlier: int
    """Executions that epochs without this journal may have started."""
    caller: bytes
    body: Body
    incarnation: Incarnation = b""
    """Life of the worker of the last earlier execution, if that was started with this journal;
    else as below."""
    dispatch: int = 0
    execution_s: float | None = None
    """Longest time of each execution by its caller, in seconds; None: none is set."""
    grace_s: float | None = None
    """End of that time in which its rollout is late, in seconds; None: there is none."""


class Joined(NamedTuple):
    """Another caller counts for it.  Nothing waits for this record."""

    number: int
    caller: bytes


class Started(NamedTuple):
    """A generation is dispatched, to this life of a worker and with this number there, so that a
    later epoch knows the execution again if that worker lives on."""

    number: int
    incarnation: Incarnation = b""
    dispatch: int = 0


class Completed(NamedTuple):
    """A generation has this outcome."""

    number: int
    frames: tuple[Body, ...]
    """Header and payload, as a worker or the router made them."""


class Closed(NamedTuple):
    """A generation is over: cancelled, forgotten, left by all, or retained for long enough."""

    number: int


class StateSaved(NamedTuple):
    """The last execution of a generation has saved this state, which replaces the one before."""

    number: int
    save: int
    """Number among the saves of that execution."""
    saves: int
    """Number of saves of all executions."""
    body: Body


class Commanded(NamedTuple):
    """A cancel or forget with an id of its own was answered so."""

    forget: bool
    namespace: bytes
    key: bytes
    tag: bytes
    generation: int | None
    started: bool
    finished: bool = False
    """Whether it was a cancel of a generation that had its outcome."""


class ResourceOpened(NamedTuple):
    """A resource is about to be created by an execution (:mod:`.scope`)."""

    resource: int
    name: str
    kind: str
    destroy: str
    """Reference to the function that destroys it."""
    account: bytes
    sequence: int
    """Request whose execution it is, with the account."""
    incarnation: Incarnation
    """Life of the worker of that, its holder, and the numbers of the execution and of the resource
    there."""
    dispatch: int
    serial: int
    host: str | None = None
    """Host whose workers alone can destroy it, by name; empty: this machine; None: any can."""


class ResourceCreated(NamedTuple):
    """A resource was created, and has this handle."""

    resource: int
    handle: bytes


class ResourceGiven(NamedTuple):
    """A resource has this holder now: a worker that is to destroy it, or nobody."""

    resource: int
    incarnation: Incarnation
    """Life of the worker; empty: nobody."""
    turn: int
    """Number of its cleanings, this one included."""


class ResourceGone(NamedTuple):
    """A resource is destroyed."""

    resource: int


OfResource: TypeAlias = ResourceOpened | ResourceCreated | ResourceGiven | ResourceGone
"""Records of resources, whose numbers have nothing to do with those of generations."""

Record: TypeAlias = (
    Opened | Joined | Started | Completed | Closed | Commanded | StateSaved | OfResource
)
"""Everything that a journal has.  Numbers of generations count through all epochs."""

KINDS: Final[tuple[type[Record], ...]] = (
    Opened, Joined, Started, Completed, Closed, Commanded, StateSaved,
    ResourceOpened, ResourceCreated, ResourceGiven, ResourceGone,
)  # fmt: skip
"""By number.  A new one comes last."""
_OPENED, _COMPLETED = map(KINDS.index, (Opened, Completed))


def plain_of(record: Record, body: Callable[[Body], bytes | int] = bytes) -> list[Any]:
    """The record as a list of plain values.  ``body``: what stands for an input or a payload."""
    if isinstance(record, Completed):  # no patterns: each call leaves two of these
        number, (header, payload) = record
        return [_COMPLETED, number, bytes(header), body(payload)]
    if isinstance(record, Opened):
        more = list(record[9:])
        if record.grace_s is None:
            del more[3 if record.execution_s is not None else 2 if record.incarnation else 0 :]
        return [_OPENED, *record[:8], *more, body(record.body)]
    if isinstance(record, StateSaved):
        return [KINDS.index(StateSaved), *record[:3], body(record.body)]
    return [KINDS.index(type(record)), *record]


def record_of(plain: Sequence[Any]) -> Record:
    """The record of :func:`plain_of`, where a length stands for as many zeros."""
    kind, *fields = plain
    made: Any = KINDS[kind]
    if made is Completed:
        number, header, payload = fields
        return Completed(number, (header, bytes(payload)))
    if made is Opened:
        fields = [*fields[:8], bytes(fields[-1]), *fields[8:-1]]
    elif made is StateSaved:
        fields = [*fields[:3], bytes(fields[-1])]
    record: Record = made(*fields)
    return record


class Journal:
    """The number of records that were appended, and of those that are safe."""

    def __init__(self, *, on: bool, reads: bool = False) -> None:
        self.on = on
        self.reads = reads
        """Whether outcomes may be read from it."""
        self.appended = 0
        """Records, ever."""
        self.safe = 0
        """Number of records that are safe."""
        self.unsaved: list[Record] = []
        """Records that no effect has taken yet."""
        self.waiting_bytes = 0
        """Bytes of inputs, states and outcomes that are being saved."""
        self._given: deque[tuple[int, int]] = deque()
        """Up to which record so many of these came at once, the oldest first."""
        self.failed = ""
        """Why the next record cannot be saved, for now or ever; empty if it can."""
        self.lost = False
        """Whether records will never be saved any more."""

    def append(self, kind: Callable[_P, Record], *fields: _P.args, **named: _P.kwargs) -> None:
        """Append a record of this kind, if there is a journal; else none is made."""
        if self.on:
            self.appended += 1
            self.unsaved.append(kind(*fields, **named))

    def take(self) -> tuple[Record, ...]:
        """The unsaved ones, for who saves them."""
        records = tuple(self.unsaved)
        self.unsaved.clear()
        body_bytes = 0
        for record in records:
            if isinstance(record, (Opened, StateSaved)):
                body_bytes += len(record.body)
            elif isinstance(record, Completed):
                body_bytes += len(record.frames[0]) + len(record.frames[1])
        if body_bytes:
            self.waiting_bytes += body_bytes
            self._given.append((self.appended, body_bytes))
        return records

    def saved(self, upto: int) -> None:
        """The first ``upto`` records are safe."""
        self.safe = max(self.safe, upto)
        while self._given and self._given[0][0] <= self.safe:
            self.waiting_bytes -= self._given.popleft()[1]
        if not self.lost:
            self.failed = ""

    def fail(self, why: str, *, final: bool) -> None:
        """The next records could not be saved."""
        if not self.lost:
            self.failed, self.lost = why, final

    def is_safe(self, after: int) -> bool:
        """Whether what was to wait for so many records may be done."""
        return after <= self.safe


# -- the keys of a journal ---------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Left:
    """A generation that was open."""

    opened: Opened
    callers: set[bytes]
    """The callers that may count for it."""
    executions: int = 0
    """Starts that are recorded, of all epochs with this journal."""
    frames: tuple[Body, ...] | None = None
    """Frames of its outcome; None: it has none."""
    last: tuple[Incarnation, int] = b"", 0
    """The life of the worker to which the last one of them was dispatched, and its number
    there."""
    saved: Body | None = None
    """The newest saved state; None: there is none."""
    last_save: int = 0
    """Number of that among the saves of the last execution; 0: that has saved nothing."""
    saves: int = 0
    """Number of saves of all executions."""


@dataclasses.dataclass(slots=True)
class LeftResource:
    """A resource that was not gone."""

    opened: ResourceOpened
    incarnation: Incarnation
    """Life of its last holder; empty: it had none."""
    turn: int = 0
    """Number of its cleanings."""
    handle: bytes | None = None
    """None: nobody has stated that it was created."""


@dataclasses.dataclass(slots=True)
class Remains:
    """All that a journal has left."""

    generations: dict[int, Left]
    commands: list[Commanded]
    next_number: int
    resources: dict[int, LeftResource] = dataclasses.field(default_factory=dict)


def remains_of(records: Iterable[Record]) -> Remains:
    """Read a journal, the oldest record first."""
    left = Remains({}, [], 0)
    for record in records:
        _read(left, record)
    return left


def _read(left: Remains, record: Record) -> None:
    match record:
        case Opened():
            left.generations[record.number] = _opened(record)
            left.next_number = max(left.next_number, record.number + 1)
        case Joined(number, caller):
            left.generations[number].callers.add(caller)
        case Started(number, incarnation, dispatch):
            left.generations[number].executions += 1
            left.generations[number].last = incarnation, dispatch
            left.generations[number].last_save = 0
        case StateSaved(number, save, saves, body):
            here = left.generations[number]
            here.saved, here.last_save, here.saves = body, save, saves
        case Completed(number, frames):
            left.generations[number].frames = frames
        case Closed(number):
            left.generations.pop(number, None)
            left.next_number = max(left.next_number, number + 1)
        case ResourceOpened():
            left.resources[record.resource] = LeftResource(record, record.incarnation)
        case ResourceCreated(number, handle):
            left.resources[number].handle = handle
        case ResourceGiven(number, incarnation, turn):
            left.resources[number].incarnation = incarnation
            left.resources[number].turn = turn
        case ResourceGone(number):
            left.resources.pop(number, None)
        case _:
            left.commands.append(record)


def _opened(record: Opened) -> Left:
    """Generation as its opening record has it.  A first start may stand there too, as one of the
    earlier executions and one that is allowed no more."""
    last = record.incarnation, record.dispatch
    if not record.incarnation:
        return Left(record, {record.caller}, last=last)
    before = record._replace(
        allowance=record.allowance + 1, earlier=record.earlier - 1, incarnation=b"", dispatch=0
    )
    return Left(before, {record.caller}, executions=1, last=last)
