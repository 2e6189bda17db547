"""The worker's end of its link to the router: inputs, effects, and the machine between them.

Theory of operation
-------------------
:meth:`WorkerCore.take` is called with an input and returns the effects in order; the shell
carries them out.  Nothing else changes a worker.

Messages between a worker and its router come in order, and none is lost or comes twice, so nothing
is kept for being sent again.  Each beat names the dispatches that the worker has, and the number of
the router's messages before it: the router compares that with what it has told (:mod:`.workforce`).
A dispatch for another incarnation is not run, and the worker ends where a number comes twice (G5).

Of an outcome above ``announce_bytes`` only the size is sent at first, until a
:class:`~.messages.Fetch` asks for the outcome itself, or says that it is not wanted.  While
``worker_held_bytes`` of these are in memory, further ones are to be parked elsewhere.

A delta is not kept, since the outcome contains its text.  Between two beats at most
:data:`DELTAS_BYTES` of deltas are sent, and none until those have left the process; further ones
are dropped, and the gap in their numbers shows it.

The outcome of an execution waits until the router has answered all that was stated of its resources
(:mod:`.scope`).  An execution has one unanswered save at most.

The last note (:mod:`.notes`) of an execution replaces the one before.  Changed notes are sent with
the beats (:class:`UnsentNotes`).

Another router may take the worker over (:class:`~.messages.RouterChanged`).  That is told, once,
all that the one before may not have known: so what is unanswered is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, islice, takewhile
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, final

from . import error_records, messages
from .errors import ErrorInfo, ProtocolError
from .limits import CAPACITY, MIB, PROTOCOL_VERSION, ServerLimits, WireLimits
from .messages import (
    Claim,
    ClaimsEnded,
    Clean,
    Dispatch,
    Fetch,
    Granted,
    Message,
    ResourceAnswer,
    ResourceIntended,
    ResourceStated,
    Retire,
    RouterChanged,
    SaveAnswer,
    Stop,
    WorkerNotes,
    in_batches,
)
from .permits import OpenClaims
from .ranges import Ranges
from .scope import OpenResources, ResourceState, Stated
from .terms import Body, Epoch, Incarnation, RequestId, SentBody, Status, Verdict, weight, whole


class EnvironmentReady(NamedTuple):
    """The environment is set up.  To be given once, before the first beat."""

    pid: int
    environment: str
    rerun: bool
    capacity: int = CAPACITY
    """Number of executions that the worker takes at once."""


class SetUpFailed(NamedTuple):
    """The environment could not be set up."""

    info: ErrorInfo


class BeatDue(NamedTuple):
    """The clock asks for a beat, with these statistics."""

    stats: dict[str, Any]
    has_left: bool = True
    """Whether all earlier messages have left the process."""


class RouterMessage(NamedTuple):
    """A message from the router: incarnation, header, and for a dispatch a body."""

    frames: Sequence[Body]


class DeltaMade(NamedTuple):
    """An execution has made a piece of its outcome."""

    number: int
    payload: bytes
    skipped: int = 0
    """Number of earlier pieces that were dropped since the last input."""


class NoteMade(NamedTuple):
    """An execution has written a note; see :mod:`.notes`."""

    number: int
    note: bytes


class SaveMade(NamedTuple):
    """An execution saves a state; not before the :class:`SaveEnded` of its save before."""

    number: int
    payload: bytes


class OutcomeMade(NamedTuple):
    """An execution has ended in this outcome."""

    number: int
    status: Status
    payload: SentBody
    duration_s: float | None


class OutcomeParked(NamedTuple):
    """The outcome of an execution was parked, and can be read as ``payload``."""

    number: int
    payload: Body


class ClaimMade(NamedTuple):
    """An execution claims a permit; see :class:`~.messages.Claim`."""

    number: int
    claim: int
    """Number of the claim, greater than all before."""
    name: str
    most: int
    per_s: float | None


class ClaimOver(NamedTuple):
    """A claim has ended, whether or not it was granted."""

    claim: int


class ResourceWanted(NamedTuple):
    """An execution is about to create a resource; see :class:`~.messages.ResourceIntended`.  It
    gets a :class:`~.scope.Stated` with the name."""

    number: int
    resource: int
    """Number of the resource, greater than all before."""
    kind: str
    destroy: str
    here: bool = False
    """Whether only workers of this host can destroy it."""


class ResourceTold(NamedTuple):
    """The code of an execution has created, left or destroyed a resource that has a name.  It gets
    a :class:`~.scope.Stated` once the router has that."""

    resource: int
    state: ResourceState
    handle: bytes = b""
    why: str = ""
    """Reason for which it is left."""


class Cleaned(NamedTuple):
    """A cleaning has ended: the resource is gone, or (``why``) it is not, for this reason."""

    name: str
    turn: int
    why: str


WorkerInput: TypeAlias = (
    EnvironmentReady | SetUpFailed | BeatDue | RouterMessage | DeltaMade | NoteMade | SaveMade
    | OutcomeMade | OutcomeParked | ClaimMade | ClaimOver | ResourceWanted | ResourceTold | Cleaned
)  # fmt: skip
"""Everything that changes a worker."""


class BeginRun(NamedTuple):
    """Start an execution."""

    number: int
    request: RequestId
    client: str
    body: Body
    traceparent: str | None = None
    """Parent of the execution's spans."""
    late_s: float | None = None
    """Time after which the rollout is late, in seconds; None: never."""
    saved: Body | None = None
    """The newest save of an earlier execution; None: there is none."""


class CancelRun(NamedTuple):
    """Cancel an execution; its outcome is still to be given."""

    number: int


class SaveEnded(NamedTuple):
    """The save of an execution is safe, or (``refused``) nothing of it is kept, for this reason."""

    number: int
    refused: str


class Park(NamedTuple):
    """Write an outcome to where it takes no memory, then give :class:`OutcomeParked`; if that
    fails, the outcome stays in memory."""

    number: int
    payload: SentBody


class GoOn(NamedTuple):
    """A claim was granted: its code goes on."""

    claim: int
    after_s: float | None = None
    """Time for which it is to wait before, in seconds: it is one of a rate, and has ended."""


class ToRouter(NamedTuple):
    """Send a message to the router, with others in a batch if it may be."""

    incarnation: Incarnation
    message: Message
    body: SentBody | None = None
    client: str = ""
    """Name of the client to which an outcome or a delta belongs."""

    @property
    def frames(self) -> tuple[Body, ...]:
        """The frames of this message alone, each in one piece."""
        return (*map(whole, next(frames_to_router((self,)))),)


def frames_to_router(effects: Iterable[ToRouter]) -> Iterator[tuple[SentBody, ...]]:
    """The frames of these messages, in this order; neighbours of one client share batches."""
    for (incarnation, client), each in groupby(effects, _SENDER_AND_CLIENT):
        for header, *body in in_batches((one.message, one.body) for one in each):
            yield (incarnation, client.encode(), header, *body) if body else (incarnation, header)


_SENDER_AND_CLIENT = attrgetter("incarnation", "client")


class Exit(NamedTuple):
    """Tear the environment down and exit: no more work comes."""


WorkerEffect: TypeAlias = (
    BeginRun | CancelRun | SaveEnded | Park | GoOn | Stated | Clean | ToRouter | Exit
)
"""Everything that a worker's shell must be able to do."""


MESSAGE_BYTES = 16 * 1024
"""Most bytes of notes in one message, which then fits into a frame of 32 KiB: any peer takes
that."""

BEAT_MESSAGES = 4
"""Most messages of notes that are sent with one beat; further notes wait for later beats."""

_RECORD_BYTES = 32
"""Bytes that each note counts besides its own, for its number and the work that it makes."""


ENDED = "the rollout was cancelled, or has ended"
"""Reason for which a worker refuses a save by itself."""


@final
class UnsentNotes:
    """The last note of each execution of a worker, until it is sent."""

    def __init__(self) -> None:
        self._last: dict[int, bytes] = {}

    def keep(self, number: int, note: bytes) -> None:
        """Set the note of a dispatch.  It replaces a waiting one without going to the end."""
        self._last[number] = note

    def drop(self, number: int) -> None:
        """Forget the note of a dispatch that has ended."""
        self._last.pop(number, None)

    def take(self) -> Iterator[WorkerNotes]:
        """The notes to send with a beat."""
        for _ in range(BEAT_MESSAGES):
            if not self._last:
                return
            sizes = accumulate(_RECORD_BYTES + len(note) for note in self._last.values())
            fitting = takewhile(
                lambda each: each[1] <= MESSAGE_BYTES, zip(self._last, sizes, strict=True)
            )
            numbers = sorted(number for number, _ in fitting)
            notes = [self._last.pop(number) for number in numbers]
            yield WorkerNotes(Ranges(numbers).flat(), notes)


NUMBERS_MOST = 1 << 16
"""Most dispatches that one message may name: each costs a step, and no router has given that many
to one worker."""


DELTA_BYTES = MIB
"""Most bytes of a delta; a larger one is dropped."""

DELTAS_BYTES = 8 * MIB
"""Most bytes of deltas between two beats."""

DELTA_RECORD_BYTES = 1024
"""Bytes that each delta counts besides its own: an environment may make millions of empty ones."""


@dataclasses.dataclass(slots=True)
class _Held:
    """An announced outcome for which the router has not asked."""

    message: ToRouter
    announcement: ToRouter
    held_bytes: int = 0
    """Its part of the memory for large outcomes, in bytes."""


@dataclasses.dataclass(slots=True)
class _LastSave:
    """The last save of an execution."""

    number: int
    message: ToRouter | None
    """The save, until the router has answered it."""


class WorkerCore:
    """One incarnation of a worker."""

    def __init__(
        self, incarnation: Incarnation, *, limits: ServerLimits | None = None,
        wire: WireLimits | None = None,
    ) -> None:  # fmt: skip
        """``limits``: those of its server."""
        self.limits = limits = limits or ServerLimits()
        self.wire = wire = wire or WireLimits()
        self.save_bytes = min(limits.save_bytes, wire.message_bytes)
        self._saves: dict[int, _LastSave] = {}
        """The last save of each running execution that has one."""
        self.incarnation = incarnation
        self.held_bytes = 0
        """Bytes of large outcomes in memory."""
        self.epoch: Epoch = b""
        """Router that has taken it over; empty: it has the one by which it was started."""
        self.received = 0
        """Number of messages of that router."""
        self.sent = 0
        """Number of messages to that router, but for those of :data:`~.messages.UNCOUNTED`."""
        self._hello: tuple[Any, ...] = ()
        """All but the epoch of its hello; empty before that."""
        self._seen = Ranges()
        """Numbers of all dispatches; past a bound the oldest gaps between them are closed."""
        self.running: dict[int, tuple[RequestId, str]] = {}
        """Request and client of each running execution, by the number of its dispatch."""
        self.fenced = 0
        """Number of messages for other incarnations."""
        self.malformed = 0
        """Number of malformed messages."""
        self._held: dict[int, _Held] = {}
        self._cancelled: set[int] = set()
        """Running executions that were told to stop."""
        self._stats: dict[str, Any] = {}
        self._deltas: dict[int, int] = {}
        """Number of deltas of each running execution, sent or dropped."""
        self._deltas_bytes = 0
        """Bytes of deltas that were sent since the last beat before which all had left."""
        self._notes = UnsentNotes()
        self._claims = OpenClaims()
        self._resources = OpenResources()
        self._stateful: set[int] = set()
        """Running executions of which more is known here than that they run: deltas, a note, a
        save, claims or resources."""
        self._outcomes: dict[int, OutcomeMade] = {}
        """Outcomes that wait for answers about resources of their executions."""

    def take(self, given: WorkerInput) -> list[WorkerEffect]:
        """Take in an input; returns the effects in order."""
        effects = _INPUTS[type(given)](self, given)
        for each in effects:
            if type(each) is ToRouter and not isinstance(each.message, messages.UNCOUNTED):
                self.sent += 1
        return effects

    # -- inputs ---------------------------------------------------------------

    def _ready(self, given: EnvironmentReady) -> list[WorkerEffect]:
        self._hello = PROTOCOL_VERSION, *given
        return [self._say_hello()]

    def _set_up_failed(self, given: SetUpFailed) -> list[WorkerEffect]:
        return [self._send(messages.WorkerBroken(error_records.to_record(given.info)))]

    def _beat_due(self, given: BeatDue) -> list[WorkerEffect]:
        self._stats = given.stats
        notes: Iterable[Message] = ()
        if given.has_left:  # else nobody may read them (G8)
            self._deltas_bytes = 0
            notes = self._notes.take()
        return [*map(self._send, notes), self._beat()]

    def _message(self, given: RouterMessage) -> list[WorkerEffect]:
        frames = given.frames
        if not frames or frames[0] != self.incarnation:
            self.fenced += 1
            return []
        try:
            rows = messages.read(frames[1:], most_bytes=self.wire.header_bytes)
            self.received += len(rows)
            message = rows[0][0]
            match message:
                case Dispatch():
                    return self._dispatches(rows)
                case Stop():
                    return self._stop(_numbers(message.numbers))
                case RouterChanged():
                    return self._go_over(message.epoch)
                case Fetch():
                    return self._fetch(_numbers(message.numbers), _numbers(message.unwanted))
                case Granted():
                    return self._go_on(Ranges.from_flat(message.claims), message.after_s)
                case SaveAnswer():
                    return self._answered(message)
                case ResourceAnswer():
                    return self._resource_answered(message)
                case Clean():
                    return [message] if self._resources.clean(message) else []
                case Retire():
                    return [Exit()]
                case _:
                    raise ProtocolError(f"{type(message).__name__} is not for workers")
        except ProtocolError:
            self.malformed += 1
            return []

    def _delta_made(self, given: DeltaMade) -> list[WorkerEffect]:
        """Send a delta if it is within the bounds and its execution runs and is not cancelled."""
        number, payload, skipped = given
        if number not in self.running or number in self._cancelled:
            return []
        self._stateful.add(number)
        delta = self._deltas.get(number, 0) + skipped
        self._deltas[number] = delta + 1
        size_bytes = DELTA_RECORD_BYTES + len(payload)
        most_bytes = min(DELTA_BYTES, self.wire.message_bytes)
        if len(payload) > most_bytes or self._deltas_bytes + size_bytes > DELTAS_BYTES:
            return []
        self._deltas_bytes += size_bytes
        (session, sequence), client = self.running[number]
        message = messages.WorkerDelta(session, sequence, number, delta)
        return [ToRouter(self.incarnation, message, payload, client)]

    def _note_made(self, given: NoteMade) -> list[WorkerEffect]:
        """Keep a note for the next beat if its execution runs and is not cancelled."""
        number, note = given
        if number in self.running and number not in self._cancelled:
            self._stateful.add(number)
            self._notes.keep(number, note)
        return []

    def _save_made(self, given: SaveMade) -> list[WorkerEffect]:
        """Send a save, unless it cannot be kept."""
        number, payload = given
        if number not in self.running or number in self._cancelled:
            return [SaveEnded(number, ENDED)]
        if len(payload) > self.save_bytes:
            return [SaveEnded(number, too_large(len(payload), self.save_bytes))]
        self._stateful.add(number)
        last = self._saves.setdefault(number, _LastSave(0, None))
        assert last.message is None, "the save before has not ended"
        last.number += 1
        (session, sequence), client = self.running[number]
        message = messages.WorkerSave(session, sequence, number, last.number)
        last.message = ToRouter(self.incarnation, message, payload, client)
        return [last.message]

    def _answered(self, answer: SaveAnswer) -> list[WorkerEffect]:
        last = self._saves.get(answer.number)
        if last is None or last.message is None or last.number != answer.save:
            return []
        last.message = None
        return [SaveEnded(answer.number, answer.refused)]

    def _outcome_made(self, given: OutcomeMade) -> list[WorkerEffect]:
        """Send an outcome, or its announcement, and hold it until the router asks for it."""
        number, status, payload, duration_s = given
        if number in self._stateful and not self._end_more(given):
            return []
        request, client = self.running.pop(number)
        self._cancelled.discard(number)
        outcome = messages.WorkerOutcome(
            request.session, request.sequence, number, status, duration_s
        )
        message = ToRouter(self.incarnation, outcome, payload, client)
        size_bytes = weight(payload)
        if size_bytes <= self.limits.announce_bytes:
            return [message]
        announcement = self._send(
            messages.Announced(request.session, request.sequence, number, size_bytes)
        )
        self._held[number] = _Held(message, announcement, len(payload))
        self.held_bytes += len(payload)
        if self.held_bytes <= self.limits.worker_held_bytes:
            return [announcement]
        return [announcement, Park(number, payload)]

    def _end_more(self, made: OutcomeMade) -> bool:
        """Forget what an execution has said whose code has ended, and end its claims; False if its
        outcome is to wait for answers about its resources."""
        number = made.number
        if self._resources.waits(number):
            self._outcomes[number] = made
            return False
        self._stateful.remove(number)
        self._deltas.pop(number, None)
        self._notes.drop(number)
        self._resources.end_of(number)
        self._saves.pop(number, None)
        self._claims.end_of(number)
        return True

    def _outcome_parked(self, given: OutcomeParked) -> list[WorkerEffect]:
        number, payload = given
        held = self._held.get(number)
        if held is not None:
            held.message = held.message._replace(body=payload)
            self._release(held)
        return []

    def _claim_made(self, given: ClaimMade) -> list[WorkerEffect]:
        """Pass a claim on, if its execution runs."""
        if given.number not in self.running:
            return []
        self._stateful.add(given.number)
        claim = Claim(*given)
        self._claims.make(claim)
        return [self._send(claim)]

    def _claim_over(self, given: ClaimOver) -> list[WorkerEffect]:
        if not self._claims.end(given.claim):
            return []
        return [self._send(ClaimsEnded([given.claim, given.claim + 1]))]

    def _resource_wanted(self, given: ResourceWanted) -> list[WorkerEffect]:
        """State an intent, if its execution runs."""
        number, resource, kind, destroy, here = given
        if number not in self.running or number in self._cancelled:
            return [Stated(resource, "", ENDED)]
        self._stateful.add(number)
        intent = ResourceIntended(number, resource, kind, destroy, here=1 if here else None)
        self._resources.intend(intent)
        return [self._send(intent)]

    def _resource_told(self, given: ResourceTold) -> list[WorkerEffect]:
        message = self._resources.state(*given)
        return [] if message is None else [self._send(message)]

    def _cleaned(self, given: Cleaned) -> list[WorkerEffect]:
        name, turn, why = given
        state = ResourceState.LEFT if why else ResourceState.GONE
        result = ResourceStated(name, state, b"", why, turn)
        return [self._send(self._resources.cleaned(result))]

    def _resource_answered(self, answer: ResourceAnswer) -> list[WorkerEffect]:
        """Take in what the router says of a resource, and send the outcome that has waited for
        that."""
        number = self._resources.execution_of(answer)
        news = self._resources.answered(answer)
        effects: list[WorkerEffect] = [] if news is None else [news]
        if number in self._outcomes and not self._resources.waits(number):
            effects += self._outcome_made(self._outcomes.pop(number))
        return effects

    def _go_on(self, numbers: Ranges, after_s: float | None = None) -> list[WorkerEffect]:
        return [GoOn(number, after_s) for number in self._claims.granted(numbers)]

    def _release(self, held: _Held) -> None:
        self.held_bytes -= held.held_bytes
        held.held_bytes = 0

    # -- decisions ------------------------------------------------------------

    def _dispatches(self, rows: Sequence[messages.MessageRow]) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        for dispatch, body in rows:
            began = self._dispatch(dispatch, body)
            if not began:
                self.malformed += 1
                return [*effects, Exit()]
            effects += began
        while self._seen.span_count() > NUMBERS_MOST:
            (_, start), (stop, _) = islice(self._seen.spans(), 2)
            self._seen.add_span(start, stop)
        return effects

    def _dispatch(self, dispatch: Any, body: Any) -> list[WorkerEffect]:
        number = dispatch.number
        if not self._seen.add(number):
            return []
        request = RequestId(dispatch.session, dispatch.sequence)
        self.running[number] = (request, dispatch.client)
        saved = None
        if dispatch.saved_bytes is not None:
            at = max(0, len(body) - dispatch.saved_bytes)
            body, saved = body[:at], body[at:]
        traceparent, late_s = dispatch.traceparent, dispatch.late_s
        return [BeginRun(number, request, dispatch.client, body, traceparent, late_s, saved)]

    def _stop(self, numbers: Ranges) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        for number in numbers:
            if number in self.running and number not in self._cancelled:
                self._cancelled.add(number)
                effects.append(CancelRun(number))
        return effects

    def _fetch(self, numbers: Ranges, unwanted: Ranges) -> list[WorkerEffect]:
        """Send the announced outcomes that the router asks for, and drop those that it does not
        want."""
        effects: list[WorkerEffect] = []
        for number, held in list(self._held.items()):
            if number in numbers:
                effects.append(held.message)
            elif number not in unwanted:
                continue
            self._release(self._held.pop(number))
        return effects

    def _go_over(self, epoch: Epoch) -> list[WorkerEffect]:
        """Tell another router all that the one before may not have known."""
        if not self._hello:
            raise ProtocolError("another router before the hello")
        self.epoch, self.received, self.sent = epoch, 0, 0
        effects: list[WorkerEffect] = [self._say_hello()]
        effects += (held.announcement for held in self._held.values())
        effects += (last.message for last in self._saves.values() if last.message is not None)
        effects += map(self._send, self._claims.again())
        effects += map(self._send, self._resources.again())
        return [*effects, self._beat(len(effects))]

    def _say_hello(self) -> ToRouter:
        return self._send(messages.WorkerHello._make((*self._hello, self.epoch)))

    def _beat(self, before: int = 0) -> ToRouter:
        """A beat behind so many messages that are not counted yet."""
        live = Ranges(sorted([*self.running, *self._held])).flat()
        return self._send(
            messages.Beat(self.epoch, self.received, self.sent + before, live, self._stats)
        )

    def _send(self, message: messages.Message) -> ToRouter:
        return ToRouter(self.incarnation, message)


_INPUTS: dict[type, Callable[..., list[WorkerEffect]]] = {
    EnvironmentReady: WorkerCore._ready,
    SetUpFailed: WorkerCore._set_up_failed,
    BeatDue: WorkerCore._beat_due,
    RouterMessage: WorkerCore._message,
    DeltaMade: WorkerCore._delta_made,
    NoteMade: WorkerCore._note_made,
    SaveMade: WorkerCore._save_made,
    OutcomeMade: WorkerCore._outcome_made,
    OutcomeParked: WorkerCore._outcome_parked,
    ClaimMade: WorkerCore._claim_made,
    ClaimOver: WorkerCore._claim_over,
    ResourceWanted: WorkerCore._resource_wanted,
    ResourceTold: WorkerCore._resource_told,
    Cleaned: WorkerCore._cleaned,
}


def _numbers(flat: list[int]) -> Ranges:
    """The dispatch numbers of a message.  ProtocolError if there are too many."""
    numbers = Ranges.from_flat(flat)
    if len(numbers) > NUMBERS_MOST:
        raise ProtocolError(f"{len(numbers)} dispatches named at once")
    return numbers


def too_large(size_bytes: int, most_bytes: int) -> str:
    """Reason for which a save is refused that is too large."""
    return f"it has {size_bytes} bytes, and {most_bytes} are allowed (save_bytes)"


def never_began(request: RequestId) -> ErrorInfo:
    """The error of an execution that was cancelled before it began."""
    return ErrorInfo(
        code="cancelled",
        verdict=Verdict.DID_NOT_RUN,
        message=f"request {request} was cancelled before it began",
    )
