"""The worker's side of its link to the router.

Theory of operation
-------------------
:meth:`WorkerCore.take` is given an input (:mod:`.worker_inputs`) and gives the effects
(:mod:`.worker_effects`), in order; the shell carries them out.  Nothing else changes a
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
(:mod:`.unsent_notes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from . import error_records, messages
from .errors import ErrorInfo, ProtocolError
from .limits import ANNOUNCE_BYTES, HELD_BYTES, MIB, PROTOCOL_VERSION
from .messages import Dispatch, Fetch, Retire, Statement, Stop
from .ranges import Ranges
from .terms import Incarnation, RequestId, SentBody, Status, Verdict
from .unsent_notes import UnsentNotes
from .worker_effects import CancelRun, Exit, Park, Run, ToRouter, WorkerEffect
from .worker_inputs import (
    BeatDue,
    DeltaMade,
    EnvironmentReady,
    NoteMade,
    OutcomeMade,
    OutcomeParked,
    RouterMessage,
    SetUpFailed,
    WorkerInput,
)

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
