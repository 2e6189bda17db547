"""The router's end of the links to workers: the registered workers, and their messages.

Theory of operation
-------------------
:class:`~.pool.Pool` decides about processes, and :class:`~.executions.Dispatches`
about the executions on them.  A message counts only if it names the incarnation that
this server gave to that worker (G5): every other message is counted and ignored.

Nothing is lost between a router and its worker, so nothing is sent twice.  Each
:class:`~.messages.Beat` of a worker names the dispatches that it has, at a point that both sides
know: after so many messages of the router, and after so many of the worker.  If these are
not what the router knows, one of the two is wrong: then the worker is killed, and its executions
end with that (G1).

A worker that an earlier router has started is told that by a :class:`~.messages.RouterChanged`.
All that it says before its answer, a hello with the epoch of this router, was for an earlier router
and may come again from its host: of that only outcomes count.

An execution ends by its report or by ``Lost``, and the router gets it as an
:class:`ExecutionEnded`.  :class:`~.pool.Turnover` decides when a worker is drained or killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import messages, outcomes
from .durations import Durations
from .errors import ProtocolError
from .executions import Dispatches, Execution, Site, Worker
from .limits import CAPACITY, ServerLimits
from .messages import (
    OF_WORKERS,
    UNCOUNTED,
    Announced,
    Beat,
    Claim,
    ClaimsEnded,
    ForeignVersion,
    ResourceIntended,
    ResourceStated,
    RouterChanged,
    WorkerBroken,
    WorkerDelta,
    WorkerHello,
    WorkerNotes,
    WorkerOutcome,
    WorkerSave,
)
from .pausing import Pausing
from .pool import Life, LifeInput, Phase, Pool, Turnover
from .ranges import Ranges
from .requests import RetainedOutcome, Suspicion
from .router_effects import Lost
from .router_inputs import WorkerBack
from .spoilt import has_failed
from .terms import ID_BYTES, Body, Epoch, Status, one_line
from .worker_history import WorkerHistory


class ExecutionEnded(NamedTuple):
    """An execution has ended."""

    execution: Execution
    kept: RetainedOutcome | None
    """Its outcome; None if it ended with its worker, or in the time of an earlier router."""
    why: str
    """Reason of its worker's death, or of its cancel, for people."""
    suspicion: Suspicion | None = None
    """Its worker, and the number of executions that died with that; None unless it has died."""


class Stray(NamedTuple):
    """An outcome of an execution that had already ended."""

    session: bytes
    sequence: int


class DeltaReceived(NamedTuple):
    """One piece of the outcome of a running execution."""

    execution: Execution
    delta: int
    body: Body


class NotesReceived(NamedTuple):
    """New notes of running executions."""

    executions: list[Execution]
    """Executions that have a new :attr:`~.executions.Execution.note`."""


class SaveReceived(NamedTuple):
    """A state that an execution saves."""

    execution: Execution
    save: int
    """Its number among the saves of the execution."""
    body: Body


class MalformedRow(NamedTuple):
    """A row of a batch that contradicts what the router knows; the other rows count."""

    text: str
    """The contradiction, for people."""


WorkerReport: TypeAlias = (
    ExecutionEnded | Stray | DeltaReceived | NotesReceived | SaveReceived | MalformedRow
)
"""Reading of a worker's message, for the router."""


DIFFERS = "it and this server disagree about its dispatches"
"""Beginning of the reason for which a worker is killed whose beat differs."""
UNREAD_BEATS = 600
"""So many beats in a row without a further message of the router show that the next one is lost: a
loop that beats reads, too.  Far more than a large input takes that comes in turns of a busy loop,
or beats that were long under way."""
DIFFERENCE_BYTES = 1024
"""Most bytes of the text of a difference; a longer one is cut."""
ENVIRONMENT_BYTES = 256
"""Most bytes of an environment's name; a longer one is cut."""
DURATIONS = 512
"""Number of the latest executions of which the typical duration is told."""


class Workforce:
    """Registered workers, and the reader of their messages."""

    def __init__(
        self, pool: Pool, limits: ServerLimits, header_bytes: int, dispatches: Dispatches
    ) -> None:
        self.pool = pool
        self.dispatches = dispatches
        self.announced = dispatches.announced
        self.limits = limits
        self.header_bytes = header_bytes
        self.workers: dict[bytes, Worker] = {}
        self.sites: dict[str, Site] = {}
        """Machines with workers, by the name of the host; this machine's is the empty string."""
        self.out = dispatches.out
        """Effects, in order; the router takes them out."""
        self.capacity = limits.worker_capacity or CAPACITY
        """Executions that one worker takes at once, by the newest worker's hello."""
        self.fenced = 0
        """Number of messages from processes that are not, or no longer, workers of this server."""
        self.strays = 0
        """Number of outcomes of executions that had already ended."""
        self.differences = 0
        """Number of workers that were killed because a beat disagreed with the router."""
        self.durations: deque[float] = deque(maxlen=DURATIONS)
        """Durations of the code of the latest executions that were not cancelled, in seconds."""
        self.runs = Durations()
        """Durations from the dispatch to the worker's report that the code has ended."""
        self.pausing = Pausing(limits)
        self.history = WorkerHistory()
        self.turnover = Turnover(pool, self.workers, limits)

    # -- messages -------------------------------------------------------------

    def message(self, frames: Sequence[Body], now_s: float) -> Sequence[WorkerReport]:
        """Read a message from a worker.  ProtocolError if it is malformed.

        ``frames``: the worker's id, the incarnation and a header; an outcome or a delta has the
        client id before its header, and a payload behind it."""
        life = self.pool.lives.get(bytes(frames[0]))
        incarnation = frames[1] if len(frames) > 1 else b""
        if life is None or (incarnation != life.incarnation and len(incarnation) == ID_BYTES):
            self.fenced += 1
            return []
        try:
            if incarnation != life.incarnation or len(frames) not in (3, 5):
                raise ProtocolError(f"{len(frames)} frames from a worker, 3 or 5 expected")
            life.mute_s = 0.0
            return self._message(life, frames, now_s)
        except ForeignVersion as error:  # another start would fail in the same way
            text = f"worker {life.name}: {error}"
            self.out += self.pool.set_up_failed(life, text, unloadable=True)
            self._distrust(life, str(error), now_s)
            raise
        except ProtocolError as error:
            self._distrust(life, f"it sent a malformed message: {error}", now_s)
            raise

    def _distrust(self, life: Life, why: str, now_s: float) -> None:
        """Kill a worker whose messages cannot be read.  If a rollout has broken its socket, its
        executions would never be reported (G9)."""
        if not life.leaving:
            self._end(life, why, now_s)

    def _end(self, life: Life, why: str, now_s: float) -> None:
        self.out += self.pool.step(life, LifeInput.KILL, now_s, why)
        self.refresh(now_s)

    def _message(self, life: Life, frames: Sequence[Body], now_s: float) -> Sequence[WorkerReport]:
        batch = frames[2:] if len(frames) == 3 else frames[3:]
        rows = messages.read(batch, most_bytes=self.header_bytes)
        message: Any = rows[0][0]
        body: Any = rows[0][1]
        if type(message) not in OF_WORKERS:
            raise ProtocolError(f"{type(message).__name__} from a worker")
        worker = self.workers.get(life.id)
        if worker is not None and not isinstance(message, UNCOUNTED):
            worker.received += len(rows)
        match message:
            case WorkerHello():
                self._hello(life, worker, message, now_s)
            case WorkerBroken():
                self._broken(life, message.error)
            case _ if worker is None:  # it has not said hello, or is ending
                self.fenced += isinstance(message, WorkerOutcome | Announced)
            case WorkerOutcome():
                return self._outcomes(worker, rows, now_s)
            case Beat():
                return self._beat(worker, life, message, now_s)
            case _ if not worker.is_back:
                pass
            case Announced():
                return self._announced(worker, message, now_s)
            case WorkerDelta():
                return self._delta(worker, message, body)
            case WorkerSave():
                return self._save(worker, message, body)
            case WorkerNotes():
                return self._notes(worker, message)
            case ClaimsEnded():
                self.dispatches.permits.ended(worker, Ranges.from_flat(message.claims))
            case Claim():
                self.dispatches.permits.claim(worker, _running(worker, message), message)
            case ResourceStated():
                self.dispatches.resources.stated(worker, message, now_s)
            case _:  # ResourceIntended()
                execution = _running(worker, message)
                self.dispatches.resources.intend(worker, execution, message, now_s)
        return []

    def _hello(self, life: Life, worker: Worker | None, hello: WorkerHello, now_s: float) -> None:
        self.out += self.pool.step(life, LifeInput.HELLO, now_s)
        if worker is not None:
            if not worker.is_back and hello.epoch == worker.epoch:
                worker.is_back, worker.received = True, 1
        elif life.phase is Phase.READY:
            self._enlist(life, hello, now_s).received = 1

    def _broken(self, life: Life, error: Mapping[str, Any]) -> None:
        if life.ready_s is not None:
            raise ProtocolError("the set-up of a ready worker cannot have failed")
        if life.told_broken:
            return
        life.told_broken = True
        because, kind = str(error.get("message") or ""), error.get("type")
        traceback = str(error.get("traceback") or because)
        unloadable = error.get("code") == messages.UNLOADABLE  # a text of this package's own
        if kind and not unloadable:
            because = f"{kind}: {because}"
        self.out += self.pool.set_up_failed(life, traceback, because, unloadable=unloadable)

    def _enlist(self, life: Life, hello: WorkerHello, now_s: float) -> Worker:
        environment = self.dispatches.environment
        environment.is_known, environment.rerun = True, hello.rerun
        # Cut, since every answer to a ping has it.
        environment.name = one_line(hello.environment, ENVIRONMENT_BYTES)
        most = self.limits.worker_capacity
        self.capacity = hello.capacity if most is None else min(hello.capacity, most)
        worker = self.workers[life.id] = Worker(
            life.id, life.incarnation, self.capacity, most=self.limits.recycle_executions
        )
        worker.host = life.host
        site = self.sites.setdefault(life.host, Site())
        worker.join(site, is_beside=life.phase is Phase.EMPTYING)
        self.turnover.refresh_one(worker, now_s)
        return worker

    # -- workers of an earlier epoch --------------------------------------------

    def take_back(self, life: Life, back: WorkerBack, epoch: Epoch, now_s: float) -> Worker | None:
        """Enter a worker of an earlier epoch, if it has said hello, and tell it of this one; None
        if it has not."""
        hello = None
        if back.hello:
            hello = messages.decode(back.hello, most_bytes=self.header_bytes)
        if not isinstance(hello, WorkerHello):
            return None
        self.out += self.pool.step(life, LifeInput.HELLO, now_s)
        worker = self._enlist(life, hello, now_s)
        self.dispatches.tell(worker, RouterChanged(epoch))
        worker.epoch, worker.is_back, worker.sent = epoch, False, 0
        self.dispatches.permits.unstated.add(worker)
        return worker

    def _beat(self, worker: Worker, life: Life, beat: Beat, now_s: float) -> list[ExecutionEnded]:
        """Compare the dispatches of a worker with those that it was told.  After its first beat a
        worker of an earlier epoch has said all that this one must know."""
        if not worker.is_back:
            if self._loses(worker, life, beat, now_s) and not life.leaving:
                self._differs(life, "it does not answer its new router", now_s)
            return []
        unstated = self.dispatches.permits.unstated
        is_first = worker in unstated
        unstated.discard(worker)
        if life.leaving:
            return []
        self.history.reported(life.id, beat.stats)
        live = Ranges.from_flat(beat.live)
        over = self.dispatches.settle(worker, live) if is_first else []
        is_possible = (
            beat.epoch == worker.epoch and beat.sent == worker.received
            and worker.acknowledged <= beat.received <= worker.sent
        )  # fmt: skip
        is_lost = self._loses(worker, life, beat, now_s)
        named = worker.named(beat.received)
        if named != live or not is_possible or is_lost:
            text = (
                f"it has {live!r}, and should have {named!r}; {beat.received} of {worker.sent} "
                f"messages have come there, and {worker.received} of {beat.sent} here"
            )
            self._differs(life, text, now_s)
        return [ExecutionEnded(execution, None, "") for execution in over]

    def _loses(self, worker: Worker, life: Life, beat: Beat, now_s: float) -> bool:
        """Whether no further message of the router has arrived for so many beats that the next one
        never will.  Where later ones arrive, that is not known before they end."""
        goes_on = worker.is_back and (
            beat.received != worker.acknowledged or beat.received == worker.sent
        )
        if goes_on or life.under_way:
            worker.unread = 0
        elif now_s >= worker.unread_s + self.limits.beat_s / 2:  # else they were sent long ago
            worker.unread, worker.unread_s = worker.unread + 1, now_s
        return worker.unread >= UNREAD_BEATS

    def _differs(self, life: Life, text: str, now_s: float) -> None:
        self.differences += 1
        self._end(life, one_line(f"{DIFFERS}: {text}", DIFFERENCE_BYTES), now_s)

    def clean(self, now_s: float) -> None:
        """Give resources without a holder to workers that are well."""
        well = (
            worker for worker in self.workers.values()
            if self.pool.is_well(life := self.pool.lives[worker.id])
            and (life.phase is Phase.READY or (self.turnover.waits and life.drains))
        )  # fmt: skip
        self.dispatches.resources.give(now_s, well)

    def hosts(self) -> set[str]:
        """Names of the hosts that have workers, or are to have some; empty: this machine."""
        return {slot.host for slot in self.pool.slots if not slot.closed}

    def _announced(
        self, worker: Worker, announced: Announced, now_s: float
    ) -> list[ExecutionEnded | Stray]:
        """Take in that the code of an execution has ended and its worker holds the outcome."""
        execution = _reported(worker, announced)
        if execution is None:
            number = announced.number
            if not worker.epoch or number >= worker.next_number or number in worker.dropped:
                raise ProtocolError(f"dispatch {number} is announced, and is not live")
            self.dispatches.unwanted(worker, number)  # an earlier epoch has had it
            return []
        if execution.size_bytes is not None or execution.is_unsent:
            raise ProtocolError(f"dispatch {announced.number} is announced, and does not run")
        size_bytes, most_bytes = announced.size_bytes, execution.session.message_bytes
        worker.announce(execution, size_bytes)
        if execution.claims is not None:
            self.dispatches.give_back(execution)
        self.runs.add(now_s - execution.dispatched_s)
        if execution.is_wanted and size_bytes <= most_bytes:
            self.announced.add(execution)
            return []
        kept: RetainedOutcome | None = None
        if execution.is_wanted:  # its client could not receive it, so it is not fetched
            kept = outcomes.too_large(execution.work, size_bytes, most_bytes)
        self.dispatches.unwanted(worker, execution.number)
        worker.end(execution)
        worker.done += 1
        return [ExecutionEnded(execution, kept, "")]

    def _outcomes(
        self, worker: Worker, rows: Sequence[messages.MessageRow], now_s: float
    ) -> list[WorkerReport]:
        reports: list[WorkerReport] = []
        for outcome, payload in rows:
            try:
                reports.append(self._outcome(worker, outcome, payload, now_s))
            except ProtocolError as error:  # the other rows of the batch count
                reports.append(MalformedRow(str(error)))
                life = self.pool.lives[worker.id]
                self._distrust(life, f"it sent a malformed message: {error}", now_s)
        return reports

    def _outcome(
        self, worker: Worker, outcome: Any, payload: Any, now_s: float
    ) -> ExecutionEnded | Stray:
        execution = _reported(worker, outcome)
        session_id, sequence, _, status, duration_s = outcome
        if execution is None:  # it had ended
            worker.dropped.pop(outcome.number, None)  # it was asked for, and then unwanted
            self.strays += 1
            return Stray(session_id, sequence)
        if not messages.is_status(status):
            raise ProtocolError(f"unknown status {status}")
        if execution.size_bytes is None:  # else its duration was counted at the announcement
            self.runs.add(now_s - execution.dispatched_s)
        self.dispatches.end(execution)
        worker.done += 1
        if status:
            worker.failed += 1
        if duration_s is not None and status != Status.CANCELLED:
            self.durations.append(duration_s)
        self.out += self.pausing.reported(status, payload, now_s)
        failed = has_failed(status, payload) if status else False
        if failed is not None:
            self.out += self.turnover.reported(worker, failed, now_s)
        if execution.taken_back and execution.is_wanted and status == Status.CANCELLED:
            # Nobody was told of that cancel, so it counts as a loss.
            return ExecutionEnded(execution, None, "the server before had begun to cancel it")
        executions = execution.work.executions if execution.is_wanted else 0
        message = messages.Outcome(
            session_id, sequence, status, worker.name, duration_s, executions
        )
        return ExecutionEnded(execution, RetainedOutcome.made(message, payload), "")

    def _delta(self, worker: Worker, delta: WorkerDelta, payload: Body) -> list[DeltaReceived]:
        execution = _reported(worker, delta)
        if execution is None or not execution.is_wanted:
            return []  # its outcome has the whole text, or nobody wants it
        return [DeltaReceived(execution, delta.delta, payload)]

    def _save(self, worker: Worker, save: WorkerSave, body: Body) -> list[SaveReceived]:
        execution = _reported(worker, save)
        if execution is None or execution.size_bytes is not None:
            return []  # it has ended
        return [SaveReceived(execution, save.save, body)]

    def _notes(self, worker: Worker, message: WorkerNotes) -> list[NotesReceived]:
        numbers = Ranges.from_flat(message.numbers)
        if len(numbers) != len(message.notes):
            raise ProtocolError(f"{len(message.notes)} notes of {len(numbers)} dispatches")
        received = NotesReceived([])
        for number, note in zip(numbers, message.notes, strict=True):
            execution = worker.live.get(number)
            if execution is not None and execution.is_wanted:
                execution.note = note
                received.executions.append(execution)
        return [received]

    def note_holder(self, life: Life, request: str = "") -> None:
        """Note for a worker's executions who holds its interpreter, or that nobody does."""
        worker = self.workers.get(life.id)
        if worker is not None:
            worker.holder, worker.held = request, life.held_by

    # -- time -----------------------------------------------------------------

    def tick(self, now_s: float) -> list[ExecutionEnded]:
        """Do what time brings: decisions of the pool, ends of executions whose worker is proven
        dead, ends of drained workers."""
        ended: list[ExecutionEnded] = []
        for stuck in self.dispatches.resources.overdue(now_s):
            assert isinstance(stuck, Worker)
            why = "it destroys a resource, and does not come to an end"
            self.out += self.pool.step(self.pool.lives[stuck.id], LifeInput.RETIRE, now_s, why)
        for worker in self.workers.values():
            if self.dispatches.resources.waits(worker):
                worker.held_up_at = now_s
        self.out += self.turnover.check(now_s)
        for effect in self.pool.tick(now_s):
            if isinstance(effect, Lost):
                dead = self.workers.get(effect.worker)
                lost = 0 if dead is None else len(dead.live)
                name = self.history.died(effect, now_s, lost)
                if lost:
                    self.out += self.pausing.lost(name, effect.why, now_s)
                ended += self._lost(effect)
            self.out.append(effect)
        self.refresh(now_s)
        return ended

    def refresh(self, now_s: float) -> None:
        """Decide anew which workers may get work."""
        self.turnover.refresh(now_s)

    def _lost(self, lost: Lost) -> list[ExecutionEnded]:
        worker = self.workers.pop(lost.worker, None)
        self.history.over(lost.worker)
        if worker is None:
            return []
        worker.leave_slot()
        worker.site.members -= 1
        if not worker.site.members:
            del self.sites[worker.host]
        self.dispatches.permits.unstated.discard(worker)
        executions = list(worker.live.values())
        suspicion = worker.id, len(executions)
        for execution in executions:
            self.dispatches.end(execution)
        self.dispatches.lost(worker)
        return [ExecutionEnded(execution, None, lost.why, suspicion) for execution in executions]

    def live_count(self) -> int:
        """Number of live executions on all workers."""
        return sum(len(worker.live) for worker in self.workers.values())


def _running(worker: Worker, message: Claim | ResourceIntended) -> Execution | None:
    """The execution whose code says this; None if the code has ended."""
    execution = worker.live.get(message.number)
    return None if execution is None or execution.size_bytes is not None else execution


def _reported(
    worker: Worker, report: Announced | WorkerOutcome | WorkerDelta | WorkerSave
) -> Execution | None:
    """The live execution that a report is about; None if it has ended."""
    execution = worker.live.get(report.number)
    if execution is None or execution.taken_back:  # an earlier epoch has given it another id
        return execution
    if execution.sequence != report.sequence or execution.session.id != report.session:
        raise ProtocolError(f"dispatch {report.number} is of another request")
    return execution
