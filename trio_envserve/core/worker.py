"""The worker's end of its link to the router: inputs, effects, and the machine between them.

Theory of operation
-------------------
:meth:`WorkerCore.take` is called with an input and returns the effects in order; the shell
carries them out.  Nothing else changes a worker.

Dispatches are numbered per incarnation, and each number is run at most once: ``seen`` has all
numbers that have arrived, as spans.  A dispatch for another incarnation, or with a number seen
before, is not run (G5).  A stop for a number that has not arrived is remembered, so that a cancel
may overtake its dispatch (G7).

An outcome is kept until a :class:`~.messages.Statement` shows that the router has it.  It is sent
again when a Statement that answers a *later* beat still wants it: then it was lost, not merely
under way.  Of an outcome above ``announce_bytes`` only the size is sent at first, and repeated in
the same way, until a :class:`~.messages.Fetch` asks for the outcome itself.  While
``most_held_bytes`` of these are in memory, further ones are to be parked elsewhere.  After each
:data:`BEAT_BYTES` of sent outcomes the worker sends an extra beat: else a busy worker would hold
gigabytes that the router has long received (G8).

A delta is sent once and not kept, since the outcome contains its text.  Between two statements of
the router at most :data:`DELTAS_BYTES` of deltas are sent; further ones are dropped, and the gap in
their numbers shows it.

The outcome of an execution waits until the router has answered all that was stated of its resources
(:mod:`.scope`).

An execution has one unanswered save at most.  It is kept and sent again as an outcome is, until a
:class:`~.messages.SaveAnswer` or a Statement without the execution ends it.

The last note (:mod:`.notes`) of an execution replaces the one before.  Changed notes are sent with
the beats of the clock (:class:`UnsentNotes`).  A lost note is not repeated: the next note, or the
outcome, says more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, takewhile
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, final

from . import error_records, messages
from .errors import ErrorInfo, ProtocolError
from .limits import ANNOUNCE_BYTES, CAPACITY, HELD_BYTES, MIB, PROTOCOL_VERSION, SAVE_BYTES
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
    SaveAnswer,
    Statement,
    Stop,
    in_batches,
)
from .permits import OpenClaims
from .ranges import Ranges
from .scope import OpenResources, ResourceState, Stated
from .terms import Body, Incarnation, RequestId, SentBody, Status, Verdict, weight, whole
from .worker_messages import WorkerNotes


class EnvironmentReady(NamedTuple):
    """The environment is set up.  To be given before each beat until the worker is
    :attr:`~.worker.WorkerCore.acknowledged`."""

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
UNKNOWN = "the server does not wait for this rollout any more"
"""Reasons for which a worker refuses a save by itself."""


@final
class UnsentNotes:
    """The last note of each execution of a worker, until it is sent."""

    def __init__(self) -> None:
        self._last: dict[int, bytes] = {}
        self._unanswered = False
        """Whether the router has answered no beat since notes were sent to it."""

    def keep(self, number: int, note: bytes) -> None:
        """Set the note of a dispatch.  It replaces a waiting one without going to the end."""
        self._last[number] = note

    def drop(self, number: int) -> None:
        """Forget the note of a dispatch that has ended."""
        self._last.pop(number, None)

    def answered(self) -> None:
        """Note that the router has answered a beat, so it reads what is sent."""
        self._unanswered = False

    def take(self) -> Iterator[WorkerNotes]:
        """The notes to send with a beat: none while the router answers no beats (G8)."""
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
"""Most dispatches that one message may name: each costs a step, and no router has given that many
to one worker."""


BEAT_BYTES = 8 * MIB
"""Bytes of sent outcomes after which an extra beat asks which of them the router has."""


DELTA_BYTES = MIB
"""Most bytes of a delta; a larger one is dropped."""

DELTAS_BYTES = 8 * MIB
"""Most bytes of deltas between two statements of the router."""

DELTA_RECORD_BYTES = 1024
"""Bytes that each delta counts besides its own: an environment may make millions of empty ones."""


@dataclasses.dataclass(slots=True)
class _Kept:
    """An outcome that the router is not known to have."""

    message: ToRouter
    payload: SentBody
    after_beat: int
    """Number of the last beat before it, or its announcement, was last sent."""
    announcement: ToRouter | None = None
    """The announcement that is sent in its place; None once the router has asked for it."""
    known: bool = False
    """Whether the router has the announcement, and no memory for the outcome yet."""
    held_bytes: int = 0
    """Its part of the memory for large outcomes, in bytes."""


@dataclasses.dataclass(slots=True)
class _LastSave:
    """The last save of an execution."""

    number: int
    message: ToRouter | None
    """The save, until the router has answered it."""
    after_beat: int
    """Number of the last beat before it was last sent."""


class WorkerCore:
    """One incarnation of a worker."""

    def __init__(
        self, incarnation: Incarnation, *, header_bytes: int, announce_bytes: int = ANNOUNCE_BYTES,
        most_held_bytes: int = HELD_BYTES, save_bytes: int = SAVE_BYTES,
    ) -> None:  # fmt: skip
        self.save_bytes = save_bytes
        self._saves: dict[int, _LastSave] = {}
        """The last save of each running execution that has one."""
        self.incarnation = incarnation
        self.header_bytes = header_bytes
        self.announce_bytes = announce_bytes
        self.most_held_bytes = most_held_bytes
        self.held_bytes = 0
        """Bytes of large outcomes in memory."""
        self.acknowledged = False
        """Whether the router has answered the hello."""
        self.running: dict[int, tuple[RequestId, str]] = {}
        """Request and client of each running execution, by the number of its dispatch."""
        self.seen = Ranges()
        """Numbers of all dispatches that have arrived."""
        self.fenced = 0
        """Number of messages for other incarnations."""
        self.repeated = 0
        """Number of dispatches whose number had been seen."""
        self.malformed = 0
        """Number of malformed messages."""
        self._kept: dict[int, _Kept] = {}
        self._stopped_early: set[int] = set()
        """Dispatches that were stopped before they arrived."""
        self._cancelled: set[int] = set()
        """Running executions that were told to stop."""
        self._beat = 0
        """Number of the last beat."""
        self._stats: dict[str, Any] = {}
        self._bytes_since_beat = 0
        """Bytes of outcomes that were sent since the last beat."""
        self._deltas: dict[int, int] = {}
        """Number of deltas of each running execution, sent or dropped."""
        self._deltas_bytes = 0
        """Bytes of deltas that were sent since the last statement."""
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
        if len(payload) > DELTA_BYTES or self._deltas_bytes + size_bytes > DELTAS_BYTES:
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
        last = self._saves.setdefault(number, _LastSave(0, None, 0))
        assert last.message is None, "the save before has not ended"
        last.number += 1
        (session, sequence), client = self.running[number]
        message = messages.WorkerSave(session, sequence, number, last.number)
        last.message = ToRouter(self.incarnation, message, payload, client)
        last.after_beat = self._beat
        return [last.message]

    def _answered(self, answer: SaveAnswer) -> list[WorkerEffect]:
        last = self._saves.get(answer.number)
        if last is None or last.message is None or last.number != answer.save:
            return []
        last.message = None
        return [SaveEnded(answer.number, answer.refused)]

    def _outcome_made(self, given: OutcomeMade) -> list[WorkerEffect]:
        """Send an outcome or its announcement, and keep it until the router has it."""
        number, status, payload, duration_s = given
        if number in self._stateful and not self._end_more(given):
            return []
        request, client = self.running.pop(number)
        self._cancelled.discard(number)
        outcome = messages.WorkerOutcome(
            request.session, request.sequence, number, status, duration_s
        )
        message = ToRouter(self.incarnation, outcome, payload, client)
        kept = self._kept[number] = _Kept(message, payload, self._beat)
        size_bytes = weight(payload)
        if size_bytes <= self.announce_bytes:
            return self._give(kept)
        kept.announcement = self._send(
            messages.Announced(request.session, request.sequence, number, size_bytes)
        )
        kept.held_bytes = len(payload)
        self.held_bytes += len(payload)
        if self.held_bytes <= self.most_held_bytes:
            return [kept.announcement]
        return [kept.announcement, Park(number, payload)]

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
        kept = self._kept.get(number)
        if kept is not None:
            kept.payload, kept.message = payload, kept.message._replace(body=payload)
            self._release(kept)
        return []

    def _claim_made(self, given: ClaimMade) -> list[WorkerEffect]:
        """Pass a claim on, if its execution runs."""
        if given.number not in self.running:
            return []
        self._stateful.add(given.number)
        claim = Claim(*given)
        self._claims.make(claim, self._beat)
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
        self._resources.intend(intent, self._beat)
        return [self._send(intent)]

    def _resource_told(self, given: ResourceTold) -> list[WorkerEffect]:
        said = self._resources.state(*given, self._beat)
        return [] if said is None else [self._send(said)]

    def _cleaned(self, given: Cleaned) -> list[WorkerEffect]:
        name, turn, why = given
        state = ResourceState.LEFT if why else ResourceState.GONE
        result = ResourceStated(name, state, b"", why, turn)
        return [self._send(self._resources.cleaned(result, self._beat))]

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
        saved = None
        if dispatch.saved_bytes is not None:
            at = max(0, len(body) - dispatch.saved_bytes)
            body, saved = body[:at], body[at:]
        traceparent, late_s = dispatch.traceparent, dispatch.late_s
        return [BeginRun(number, request, dispatch.client, body, traceparent, late_s, saved)]

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
        """Send the announced outcomes that the router asks for, and stop announcing those that it
        has no memory for yet."""
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
        effects: list[WorkerEffect] = [kept.message]
        self._bytes_since_beat += len(kept.payload)
        if self._bytes_since_beat >= BEAT_BYTES:
            effects.append(self._send_beat())
        return effects

    def _state(self, state: Statement, live: Ranges, cancelled: Ranges) -> list[WorkerEffect]:
        """Take in the router's statement, and repair what differs."""
        self.acknowledged = True
        if not state.beat:  # perhaps a new router, which knows of no announcement
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
                    effects.append(kept.message)
                elif not kept.known:
                    effects.append(kept.announcement)
        effects += self._go_on(Ranges.from_flat(state.granted or ()))
        effects += map(self._send, self._claims.unknown(state, self._beat))
        for number, last in self._saves.items():
            if last.message is None:
                continue
            if number < state.next and number not in live:
                last.message = None
                effects.append(SaveEnded(number, UNKNOWN))
            elif last.after_beat < state.beat:
                last.after_beat = self._beat
                effects.append(last.message)
        if self._resources:
            effects += map(self._send, self._resources.again(state, self._beat))
        return effects + self._absent(live, cancelled)

    def _absent(self, live: Ranges, cancelled: Ranges) -> list[WorkerEffect]:
        """Of the live dispatches that are neither running nor kept, ask for those that never
        arrived.  Decline the cancelled ones, and those that have ended here: an earlier router
        has had their outcome."""
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
        """A beat, which the router answers with its statement."""
        self._beat += 1
        self._bytes_since_beat = 0
        stated = self._claims.stated()
        return self._send(messages.Beat(self._beat, self.seen.flat(), self._stats, *stated))

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
