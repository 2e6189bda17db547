"""The worker's side of its link to the router.

Theory of operation
-------------------
:meth:`WorkerCore.take` is given an input (:mod:`.worker`) and gives the effects
(:mod:`.worker`), in order; the shell carries them out.  Nothing else changes a
worker.

Dispatches are numbered per incarnation, and each number is run at most once:
``seen`` remembers them all, as spans.  A dispatch for another incarnation, or
with a number seen before, is not run (G5).  A stop for a number that has not
arrived is remembered, so that a cancel may overtake its dispatch (G7).

An outcome is kept until a :class:`~.messages.Statement` shows that the router has
it, and sent again when a Statement that answers a *later* beat still wants it:
then it was lost, not merely under way.  Of one above ``announce_bytes`` only the
size is sent at first, in the same way, until a :class:`~.messages.Fetch` asks for
it; from then on it is like any other.  Those that come while ``most_held_bytes`` of
them are in memory are to be parked elsewhere.  Large outcomes do not wait for the next
beat of the clock: after some megabytes of them there is one at once, or a busy
worker would hold gigabytes that the router has long had (G8).

A delta is sent once and not kept, since the outcome has all of it.  From one statement of
the router to the next no more of them leave than ``DELTAS_BYTES``; the others are dropped,
and their numbers show it.  The last notes of executions leave with the beats of the clock
(:mod:`.worker`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, takewhile
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, final

from . import error_records, messages
from .errors import ErrorInfo, ProtocolError
from .limits import ANNOUNCE_BYTES, CAPACITY, HELD_BYTES, MIB, PROTOCOL_VERSION
from .messages import Dispatch, Fetch, Message, Retire, Statement, Stop, in_batches
from .ranges import Ranges
from .terms import Body, Incarnation, RequestId, SentBody, Status, Verdict, whole
from .worker_messages import WorkerNotes


class EnvironmentReady(NamedTuple):
    """The environment is set up.  Given before each beat until the worker is
    :attr:`~.worker.WorkerCore.acknowledged`."""

    pid: int
    environment: str
    rerun: bool
    capacity: int = CAPACITY
    """Executions at once."""


class SetUpFailed(NamedTuple):
    """The environment could not be set up."""

    info: ErrorInfo


class BeatDue(NamedTuple):
    """It is time for a beat, with these statistics."""

    stats: dict[str, Any]


class RouterMessage(NamedTuple):
    """A message from the router: incarnation, header, and for a dispatch a body."""

    frames: Sequence[Body]


class DeltaMade(NamedTuple):
    """An execution says one piece of what it will come to, after so many others that were
    dropped before they got here."""

    number: int
    payload: bytes
    skipped: int = 0


class NoteMade(NamedTuple):
    """An execution has noted how far it is; see :mod:`.notes`."""

    number: int
    note: bytes


class OutcomeMade(NamedTuple):
    """An execution has ended in this outcome."""

    number: int
    status: Status
    payload: SentBody
    duration_s: float | None


class OutcomeParked(NamedTuple):
    """The outcome of this execution is elsewhere now, and reads as ``payload``."""

    number: int
    payload: Body


WorkerInput: TypeAlias = (
    EnvironmentReady | SetUpFailed | BeatDue | RouterMessage | DeltaMade | NoteMade
    | OutcomeMade | OutcomeParked
)  # fmt: skip
"""Everything that changes a worker."""


class Run(NamedTuple):
    """Start an execution."""

    number: int
    request: RequestId
    client: str
    body: Body
    traceparent: str | None = None
    """The span below which those of the execution are."""


class CancelRun(NamedTuple):
    """Cancel an execution; its end is still to be reported."""

    number: int


class Park(NamedTuple):
    """Put this outcome where it takes no memory, and say so with
    :class:`~.worker.OutcomeParked`; it stays where it is if that cannot be done."""

    number: int
    payload: SentBody


class ToRouter(NamedTuple):
    """Send a message to the router, with others in a batch if it may be."""

    incarnation: Incarnation
    message: Message
    body: SentBody | None = None
    client: str = ""
    """Of an outcome and of a delta: whose they are."""

    @property
    def frames(self) -> tuple[Body, ...]:
        """Of the message alone, each in one piece."""
        return (*map(whole, next(frames_to_router((self,)))),)


def frames_to_router(said: Iterable[ToRouter]) -> Iterator[tuple[SentBody, ...]]:
    """The frames of these messages, in this order.  Those of one client share batches."""
    for (incarnation, client), each in groupby(said, _OF):
        for header, *body in in_batches((one.message, one.body) for one in each):
            yield (incarnation, client.encode(), header, *body) if body else (incarnation, header)


_OF = attrgetter("incarnation", "client")


class Exit(NamedTuple):
    """Tear down and exit: there is no more work to come."""


WorkerEffect: TypeAlias = Run | CancelRun | Park | ToRouter | Exit
"""Everything that a worker can have done."""


MESSAGE_BYTES = 16 * 1024
"""Of notes in one message: so it fits into a frame of 32 KiB, which any peer takes."""

BEAT_MESSAGES = 4
"""Messages of notes that leave with one beat; the others leave with later ones."""

_RECORD_BYTES = 32
"""Each note counts so much besides its bytes: for its number, and its part of the work."""


@final
class UnsentNotes:
    """The last note of each execution of a worker, until it is sent."""

    def __init__(self) -> None:
        self._last: dict[int, bytes] = {}
        self._unanswered = False
        """Whether the router has not said anything since notes were sent to it."""

    def keep(self, number: int, note: bytes) -> None:
        """This dispatch has a new note.  One that waits keeps its place."""
        self._last[number] = note

    def drop(self, number: int) -> None:
        """This dispatch has ended."""
        self._last.pop(number, None)

    def answered(self) -> None:
        """The router has answered a beat, so it takes what comes."""
        self._unanswered = False

    def take(self) -> Iterator[WorkerNotes]:
        """The notes that leave with this beat: none, while the router does not answer (G8)."""
        if self._unanswered:
            return
        for _ in range(BEAT_MESSAGES):
            if not self._last:
                return
            self._unanswered = True
            sizes = accumulate(_RECORD_BYTES + len(note) for note in self._last.values())
            fitting = takewhile(
                lambda each: each[1] <= MESSAGE_BYTES, zip(self._last, sizes, strict=True)
            )
            numbers = sorted(number for number, _ in fitting)
            notes = [self._last.pop(number) for number in numbers]
            yield WorkerNotes(Ranges(numbers).flat(), notes)


NUMBERS_MOST = 1 << 16
"""Most dispatches that one message may name: each is looked at, and no router has
given that many to one worker."""


BEAT_BYTES = 8 * MIB
"""After so many bytes of outcomes a beat asks which of them the router has."""


DELTA_BYTES = MIB
"""A larger delta is not sent."""

DELTAS_BYTES = 8 * MIB
"""All deltas that are sent from one statement of the router to the next."""

DELTA_RECORD_BYTES = 1024
"""Each counts so much besides its bytes: an environment may say millions of empty ones."""


@dataclasses.dataclass(slots=True)
class _Kept:
    said: ToRouter
    payload: SentBody
    after_beat: int
    """The last beat that was sent before it, or its announcement, was."""
    announcement: ToRouter | None = None
    """The announcement that is sent in their place until the router asks for them."""
    known: bool = False
    """Whether the router has the announcement, and has no room yet."""
    held_bytes: int = 0
    """Its part of the memory for large outcomes."""


class WorkerCore:
    """One incarnation of a worker."""

    def __init__(
        self, incarnation: Incarnation, *, header_bytes: int, announce_bytes: int = ANNOUNCE_BYTES,
        most_held_bytes: int = HELD_BYTES,
    ) -> None:  # fmt: skip
        self.incarnation = incarnation
        self.header_bytes = header_bytes
        self.announce_bytes = announce_bytes
        self.most_held_bytes = most_held_bytes
        self.held_bytes = 0
        """Of large outcomes, in memory."""
        self.acknowledged = False
        """Whether the router has answered the hello."""
        self.running: dict[int, tuple[RequestId, str]] = {}
        self.seen = Ranges()
        self.fenced = 0
        self.repeated = 0
        self.malformed = 0
        self._kept: dict[int, _Kept] = {}
        self._stopped_early: set[int] = set()
        self._cancelled: set[int] = set()
        self._beat = 0
        self._stats: dict[str, Any] = {}
        self._bytes_since_beat = 0
        self._deltas: dict[int, int] = {}
        """How many deltas each dispatch has had, sent or dropped."""
        self._deltas_bytes = 0
        """Of those that were sent since the last statement."""
        self._notes = UnsentNotes()

    def take(self, given: WorkerInput) -> list[WorkerEffect]:
        """Take one input in; what must be done, in order."""
        return _INPUTS[type(given)](self, given)

    # -- inputs ---------------------------------------------------------------

    def _ready(self, given: EnvironmentReady) -> list[WorkerEffect]:
        return [self._send(messages.WorkerHello(PROTOCOL_VERSION, *given))]

    def _set_up_failed(self, given: SetUpFailed) -> list[WorkerEffect]:
        return [self._send(messages.WorkerBroken(error_records.to_record(given.info)))]

    def _beat_due(self, given: BeatDue) -> list[WorkerEffect]:
        self._stats = given.stats
        return [*map(self._send, self._notes.take()), self._send_beat()]

    def _message(self, given: RouterMessage) -> list[WorkerEffect]:
        frames = given.frames
        if not frames or frames[0] != self.incarnation:
            self.fenced += 1
            return []
        try:
            rows = messages.read(frames[1:], most_bytes=self.header_bytes)
            message = rows[0][0]
            match message:
                case Dispatch():
                    return self._dispatches(rows)
                case Stop():
                    return self._stop(_numbers(message.numbers))
                case Statement():
                    return self._state(message, _numbers(message.live), _numbers(message.cancelled))
                case Fetch():
                    return self._fetch(_numbers(message.numbers), _numbers(message.later))
                case Retire():
                    return [Exit()]
                case _:
                    raise ProtocolError(f"{type(message).__name__} is not for workers")
        except ProtocolError:
            self.malformed += 1
            return []

    def _delta_made(self, given: DeltaMade) -> list[WorkerEffect]:
        """It is sent, if there is room; of what has ended, or was cancelled, nothing is."""
        number, payload, skipped = given
        if number not in self.running or number in self._cancelled:
            return []
        delta = self._deltas.get(number, 0) + skipped
        self._deltas[number] = delta + 1
        size_bytes = DELTA_RECORD_BYTES + len(payload)
        if len(payload) > DELTA_BYTES or self._deltas_bytes + size_bytes > DELTAS_BYTES:
            return []
        self._deltas_bytes += size_bytes
        (session, sequence), client = self.running[number]
        said = messages.WorkerDelta(session, sequence, number, delta)
        return [ToRouter(self.incarnation, said, payload, client)]

    def _note_made(self, given: NoteMade) -> list[WorkerEffect]:
        """It waits for a beat; of what has ended, or was cancelled, nothing is sent."""
        number, note = given
        if number in self.running and number not in self._cancelled:
            self._notes.keep(number, note)
        return []

    def _outcome_made(self, given: OutcomeMade) -> list[WorkerEffect]:
        """It is kept until the router has it."""
        number, status, payload, duration_s = given
        request, client = self.running.pop(number)
        self._deltas.pop(number, None)
        self._notes.drop(number)
        self._cancelled.discard(number)
        outcome = messages.WorkerOutcome(
            request.session, request.sequence, number, status, duration_s
        )
        said = ToRouter(self.incarnation, outcome, payload, client)
        kept = self._kept[number] = _Kept(said, payload, self._beat)
        if len(payload) <= self.announce_bytes:
            return self._give(kept)
        kept.announcement = self._send(
            messages.Announced(request.session, request.sequence, number, len(payload))
        )
        kept.held_bytes = len(payload)
        self.held_bytes += len(payload)
        if self.held_bytes <= self.most_held_bytes:
            return [kept.announcement]
        return [kept.announcement, Park(number, payload)]

    def _outcome_parked(self, given: OutcomeParked) -> list[WorkerEffect]:
        number, payload = given
        kept = self._kept.get(number)
        if kept is not None:
            kept.payload, kept.said = payload, kept.said._replace(body=payload)
            self._release(kept)
        return []

    def _release(self, kept: _Kept) -> None:
        self.held_bytes -= kept.held_bytes
        kept.held_bytes = 0

    # -- decisions ------------------------------------------------------------

    def _dispatches(self, rows: Sequence[messages.Said]) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        for dispatch, body in rows:
            effects += self._dispatch(dispatch, body)
        return effects

    def _dispatch(self, dispatch: Any, body: Any) -> list[WorkerEffect]:
        number = dispatch.number
        if not self.seen.add(number):
            self.repeated += 1
            return []
        request = RequestId(dispatch.session, dispatch.sequence)
        self.running[number] = (request, dispatch.client)
        if number in self._stopped_early:
            self._stopped_early.discard(number)
            payload = error_records.encode(never_began(request))
            return self._outcome_made(OutcomeMade(number, Status.CANCELLED, payload, None))
        return [Run(number, request, dispatch.client, body, dispatch.traceparent)]

    def _stop(self, numbers: Ranges) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        for number in numbers:
            if number in self.running:
                if number not in self._cancelled:
                    self._cancelled.add(number)
                    effects.append(CancelRun(number))
            elif number not in self.seen:
                self._stopped_early.add(number)
        return effects

    def _fetch(self, numbers: Ranges, later: Ranges) -> list[WorkerEffect]:
        """The router has room for announced outcomes; or has none yet, and knows them."""
        effects: list[WorkerEffect] = []
        for number, kept in self._kept.items():
            kept.known = kept.known or number in later
            if number in numbers and kept.announcement is not None:
                kept.announcement = None
                effects += self._give(kept)
        return effects

    def _give(self, kept: _Kept) -> list[WorkerEffect]:
        """Send an outcome for the first time."""
        kept.after_beat = self._beat
        effects: list[WorkerEffect] = [kept.said]
        self._bytes_since_beat += len(kept.payload)
        if self._bytes_since_beat >= BEAT_BYTES:
            effects.append(self._send_beat())
        return effects

    def _state(self, state: Statement, live: Ranges, cancelled: Ranges) -> list[WorkerEffect]:
        """The router's statement: repair what differs."""
        self.acknowledged = True
        if not state.beat:  # it may be another router than the one that knows of outcomes
            for kept in self._kept.values():
                kept.known = False
        self._deltas_bytes = 0
        self._notes.answered()
        effects = self._stop(Ranges(n for n in cancelled if n in self.running))
        unwanted = [n for n in self.running if n < state.next and n not in live]
        effects += self._stop(Ranges(unwanted))
        for number, kept in list(self._kept.items()):
            if number < state.next and number not in live:
                self._release(self._kept.pop(number))
            elif number in live and kept.after_beat < state.beat:
                kept.after_beat = self._beat
                if kept.announcement is None:
                    effects.append(kept.said)
                elif not kept.known:
                    effects.append(kept.announcement)
        return effects + self._absent(live, cancelled)

    def _absent(self, live: Ranges, cancelled: Ranges) -> list[WorkerEffect]:
        """Live dispatches that never arrived: decline the cancelled, ask for the rest.  And
        decline those of which nothing is kept: an earlier router has had the outcome."""
        missing, declined = Ranges(), Ranges()
        for number in live:
            if number in self.running or number in self._kept:
                continue
            if number in cancelled or number in self.seen:
                self.seen.add(number)
                self._stopped_early.discard(number)
                declined.add(number)
            else:
                missing.add(number)
        effects: list[WorkerEffect] = []
        if declined:
            effects.append(self._send(messages.Declined(declined.flat())))
        if missing:
            effects.append(self._send(messages.Missing(missing.flat())))
        return effects

    def _send_beat(self) -> ToRouter:
        """A sign of life, answered with the router's statement."""
        self._beat += 1
        self._bytes_since_beat = 0
        return self._send(messages.Beat(self._beat, self.seen.flat(), self._stats))

    def _send(self, message: messages.Message) -> ToRouter:
        return ToRouter(self.incarnation, message)


_INPUTS: dict[type, Callable[..., list[WorkerEffect]]] = {
    EnvironmentReady: WorkerCore._ready,
    SetUpFailed: WorkerCore._set_up_failed,
    BeatDue: WorkerCore._beat_due,
    RouterMessage: WorkerCore._message,
    DeltaMade: WorkerCore._delta_made,
    NoteMade: WorkerCore._note_made,
    OutcomeMade: WorkerCore._outcome_made,
    OutcomeParked: WorkerCore._outcome_parked,
}


def _numbers(flat: list[int]) -> Ranges:
    """The dispatches that a message names."""
    numbers = Ranges.from_flat(flat)
    if len(numbers) > NUMBERS_MOST:
        raise ProtocolError(f"{len(numbers)} dispatches named at once")
    return numbers


def never_began(request: RequestId) -> ErrorInfo:
    """The record of an execution that was cancelled before it began."""
    return ErrorInfo(
        code="cancelled",
        verdict=Verdict.DID_NOT_RUN,
        message=f"request {request} was cancelled before it began",
    )
