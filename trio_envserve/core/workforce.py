"""The router's side of the worker link: which workers there are, and what they say.

Theory of operation
-------------------
:class:`~.lives.Pool` decides about processes, and :class:`~.dispatches.Dispatches`
about what runs on them.  A message counts only if it comes from the incarnation that
this server gave to that worker (G5): everything else is counted and ignored.

Losses on the link are repaired by statements, not by remembering to retry:
every :class:`~.messages.Beat` is answered by :class:`~.messages.Statement`, what
the router holds.  From it the worker sends again what the router still wants,
drops what it does not, and names the dispatches that never arrived.

An execution ends by its report or by ``Lost``, and is then handed to the
router as :class:`~.workforce.ExecutionEnded`.  When a worker must go is decided in
:mod:`.workforce`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import messages, outcomes, spoilt
from .dispatches import Dispatches
from .durations import Durations
from .errors import ProtocolError
from .executions import Execution, Site, Worker
from .limits import CAPACITY, ServerLimits
from .lives import Life, LifeInput, Phase, Pool
from .messages import (
    Announced,
    Beat,
    Declined,
    ForeignVersion,
    Missing,
    WorkerBroken,
    WorkerDelta,
    WorkerHello,
    WorkerNotes,
    WorkerOutcome,
)
from .pausing import Pausing
from .ranges import Ranges
from .requests import RetainedOutcome, Suspicion
from .router_effects import Lost, Report, RouterEffect, ToWorker
from .router_inputs import WorkerBack
from .spoilt import has_failed
from .terms import ID_BYTES, Body, Status, one_line
from .worker_history import WorkerHistory


class ExecutionEnded(NamedTuple):
    """An execution has ended: with an outcome, or, if None, with its worker."""

    execution: Execution
    kept: RetainedOutcome | None
    why: str
    suspicion: Suspicion | None = None


class Stray(NamedTuple):
    """An outcome came from an execution that had already ended."""

    session: bytes
    sequence: int


class DeltaReceived(NamedTuple):
    """An execution has said one piece of its outcome."""

    execution: Execution
    delta: int
    body: Body


class NotesReceived(NamedTuple):
    """These executions have noted how far they are."""

    executions: list[Execution]


class MalformedRow(NamedTuple):
    """A row of a batch says what cannot be.  The other rows are as if it were not there."""

    text: str


WorkerReport: TypeAlias = ExecutionEnded | Stray | DeltaReceived | NotesReceived | MalformedRow
"""The router's reading of a message of a worker."""


class Turnover:
    """Decides by what runs on a worker; what follows for its process is the pool's part."""

    def __init__(self, pool: Pool, workers: Mapping[bytes, Worker], limits: ServerLimits) -> None:
        self._pool = pool
        self._workers = workers
        self._limits = limits
        self._tally = spoilt.Tally()
        self._failing = False
        """Whether some worker has as many failures in a row as make it suspect."""

    def check(self, now_s: float) -> list[RouterEffect]:
        """Drain, retire or kill those whose time has come."""
        return [
            effect for worker in self._workers.values() for effect in self._check(worker, now_s)
        ]

    def _check(self, worker: Worker, now_s: float) -> list[RouterEffect]:
        life = self._pool.lives[worker.id]
        limits = self._limits
        ignored_s = _ignored_s(worker, life, now_s)
        if life.leaving:
            return []
        if ignored_s >= limits.cancel_kill_s or (
            ignored_s >= limits.cancel_grace_s and worker.only_abandoned()
        ):
            why = f"an execution ignores its cancel for {ignored_s:.0f} s"
            return list(self._pool.step(life, LifeInput.KILL, now_s, why))
        if worker.suspect:
            self._suspect(worker, now_s)
        effects: list[RouterEffect] = []
        most = limits.recycle_executions
        if most and worker.next_number >= most:
            why = f"it has run {worker.next_number} executions"
            effects += self._pool.step(life, LifeInput.RETIRE, now_s, why)
        if life.phase is Phase.RETIRING and not worker.live:
            effects.append(ToWorker(worker.id, worker.incarnation, messages.Retire()))
            effects.append(Report("info", f"worker {worker.name} retires: {life.why}"))
            effects += self._pool.step(life, LifeInput.DRAINED, now_s, life.why)
        return effects

    def reported(self, worker: Worker, failed: bool, now_s: float) -> list[RouterEffect]:
        """One of its executions has failed, or has a result: decide anew who is suspect, and
        drain who is spoilt."""
        if not (failed or self._failing or worker.results.excess):
            self._tally.ended += 1  # nearly always: in few steps
            return []
        most = self._limits.spoilt_after
        worker.results.add(failed, self._tally, most, now_s)
        if not (failed or self._failing):
            return []
        was_failing, everyone = self._failing, self._workers.values()
        self._failing = worker.results.excess >= most or (
            was_failing and any(each.results.excess >= most for each in everyone)
        )
        if not (self._failing or was_failing):
            return []
        effects: list[RouterEffect] = []
        for each in everyone:
            self._suspect(each, now_s)
            life = self._pool.lives[each.id]
            if (
                each.suspect and life.phase is Phase.READY
                and not each.results.may_be_chance(self._tally)
            ):  # fmt: skip
                row = each.results.row
                many = "all" if row.failed == row.ended else row.failed
                why = (
                    f"{many} of its last {row.ended} executions failed, far more than on other "
                    "workers"
                )
                text = f"worker {each.name} gets no more work: {why}"
                effects += [Report("warning", text)]
                effects += self._pool.step(life, LifeInput.RETIRE, now_s, why)
                self.refresh_one(each, now_s)
        return effects

    def _suspect(self, worker: Worker, now_s: float) -> None:
        most = self._limits.spoilt_after
        worker.suspect = spoilt.is_suspect(worker, self._workers.values(), most)
        worker.resting = worker.suspect and not worker.results.may_try(self._tally, most, now_s)

    def refresh(self, now_s: float) -> None:
        """Decide anew who may get work.  After anything that ends a life: what
        is dispatched to a process on its way out is lost for nothing."""
        for worker in self._workers.values():
            self.refresh_one(worker, now_s)

    def refresh_one(self, worker: Worker, now_s: float) -> None:
        """Decide anew whether this one may."""
        life = self._pool.lives[worker.id]
        patient = _ignored_s(worker, life, now_s) < self._limits.cancel_grace_s
        worker.accepting = patient and self._pool.accepts(life)

    def retire_all(self, now_s: float) -> list[RouterEffect]:
        """Start no more and end every worker once it has no work."""
        self._pool.stop()
        effects: list[RouterEffect] = []
        for life in list(self._pool.lives.values()):
            if life.phase is Phase.STARTING:
                effects += self._pool.step(life, LifeInput.KILL, now_s, "the server stops")
            effects += self._pool.step(life, LifeInput.RETIRE, now_s, "the server stops")
        self.refresh(now_s)
        return effects

    def kill_all(self, now_s: float) -> list[RouterEffect]:
        """End every process now."""
        self._pool.stop()
        effects: list[RouterEffect] = []
        for life in list(self._pool.lives.values()):
            effects += self._pool.step(life, LifeInput.KILL, now_s, "the server stops")
        self.refresh(now_s)
        return effects


def _ignored_s(worker: Worker, life: Life, now_s: float) -> float:
    """For how long an execution on it has ignored its cancel."""
    stopped_s = worker.oldest_stop_s()
    return 0.0 if stopped_s is None else life.counted_s(stopped_s, now_s)


ENVIRONMENT_BYTES = 256
"""A longer name of an environment is cut."""
DURATIONS = 512
"""Of so many executions the typical duration is told."""


class Workforce:
    """The workers, and what they say."""

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
        """The machines that have them, by the name of the host; this one has none."""
        self.out = dispatches.out
        """Effects, in order; the dispatcher takes them."""
        self.environment = ""
        self.rerun = False
        self.capacity = limits.worker_capacity or CAPACITY
        """Executions at once on one worker, as the newest said."""
        self.fenced = 0
        """Messages from what is not, or no longer, a worker of this server."""
        self.strays = 0
        """Outcomes of executions that had already ended."""
        self.durations: deque[float] = deque(maxlen=DURATIONS)
        """How long the code of the last ones took that were not cancelled."""
        self.runs = Durations()
        """From the dispatch to the worker's word that the code has ended."""
        self.pausing = Pausing(limits)
        self.history = WorkerHistory()
        self.turnover = Turnover(pool, self.workers, limits)

    # -- messages -------------------------------------------------------------

    def message(self, frames: Sequence[Body], now_s: float) -> Sequence[WorkerReport]:
        """A message from a worker: id, incarnation, then a header, or for an outcome and
        a delta client id, header and payload.  ProtocolError if malformed."""
        life = self.pool.lives.get(bytes(frames[0]))
        spoken_as = frames[1] if len(frames) > 1 else b""
        if life is None or (spoken_as != life.incarnation and len(spoken_as) == ID_BYTES):
            self.fenced += 1
            return []
        try:
            if spoken_as != life.incarnation or len(frames) not in (3, 5):
                raise ProtocolError(f"{len(frames)} frames from a worker, 3 or 5 expected")
            life.mute_s = 0.0
            return self._message(life, frames, now_s)
        except ForeignVersion as error:  # it will never be ready: say so now
            text = f"worker {life.name}: {error}"
            self.out += self.pool.set_up_failed(life, text, unloadable=True)
            self._distrust(life, str(error), now_s)
            raise
        except ProtocolError as error:
            self._distrust(life, f"it sent a malformed message: {error}", now_s)
            raise

    def _distrust(self, life: Life, why: str, now_s: float) -> None:
        """End a worker whose words cannot be understood: a rollout may have changed what its
        process speaks with, and then nothing that it runs is ever reported (G9)."""
        if not life.leaving:
            self.out += self.pool.step(life, LifeInput.KILL, now_s, why)
            self.refresh(now_s)

    def _message(self, life: Life, frames: Sequence[Body], now_s: float) -> Sequence[WorkerReport]:
        said = frames[2:] if len(frames) == 3 else frames[3:]
        rows = messages.read(said, most_bytes=self.header_bytes)
        message, body = rows[0]
        match message:
            case WorkerOutcome():
                return self._outcomes(life, rows, now_s)
            case WorkerDelta() if body is not None:
                return self._delta(life, message, body)
            case WorkerHello():
                self._hello(life, message, now_s)
            case WorkerBroken():
                if life.ready_s is not None:
                    raise ProtocolError("a set-up that failed, of a worker that is set up")
                self._broken(life, message.error)
            case Beat():
                self._beat(life, message)
            case Missing():
                self._missing(life, message)
            case Declined():
                return self._declined(life, message)
            case Announced():
                return self._announced(life, message, now_s)
            case WorkerNotes():
                return self._notes(life, message)
            case _:
                raise ProtocolError(f"{type(message).__name__} from a worker")
        return []

    def _hello(self, life: Life, hello: WorkerHello, now_s: float) -> None:
        self.out += self.pool.step(life, LifeInput.HELLO, now_s)
        worker = self.workers.get(life.id)
        if worker is None and life.phase is Phase.READY:
            worker = self._enlist(life, hello, now_s)
        if worker is not None:
            self.state(worker)

    def _broken(self, life: Life, error: Mapping[str, Any]) -> None:
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
        # Every client is told its name with every answer to a ping: a short one.
        self.environment = one_line(hello.environment, ENVIRONMENT_BYTES)
        self.rerun = hello.rerun
        most = self.limits.worker_capacity
        self.capacity = hello.capacity if most is None else min(hello.capacity, most)
        worker = self.workers[life.id] = Worker(
            life.id, life.incarnation, self.capacity, most=self.limits.recycle_executions
        )
        worker.host = life.host
        worker.site = self.sites.setdefault(life.host, Site())
        worker.site.workers += 1
        self.turnover.refresh_one(worker, now_s)
        return worker

    # -- what an earlier epoch has left -----------------------------------------

    def take_back(self, life: Life, back: WorkerBack, now_s: float) -> Worker | None:
        """A worker of an earlier epoch, if it has said hello; nothing is said to it yet."""
        hello = None
        if back.hello:
            hello = messages.decode(back.hello, most_bytes=self.header_bytes)
        if not isinstance(hello, WorkerHello):
            return None
        self.out += self.pool.step(life, LifeInput.HELLO, now_s)
        return self._enlist(life, hello, now_s)

    def state(self, worker: Worker) -> None:
        """Say what this epoch holds of a worker."""
        self.dispatches.tell(worker, worker.statement(0))

    def _beat(self, life: Life, beat: Beat) -> None:
        worker = self.workers.get(life.id)
        if worker is None:  # its hello was lost: it repeats that until it hears us
            return
        self.history.said(life.id, beat.stats)
        seen = Ranges.from_flat(beat.seen)
        for execution in worker.live.values():
            if execution.body is not None and execution.number in seen:
                execution.body = None
        fetches = worker.fetches()
        if any(fetches):  # before the statement, which asks for what is not known
            self.dispatches.tell(worker, fetches)
        self.dispatches.tell(worker, worker.statement(beat.beat))

    def _missing(self, life: Life, missing: Missing) -> None:
        worker = self.workers.get(life.id)
        if worker is not None:
            self.dispatches.repeat(worker, Ranges.from_flat(missing.numbers))

    def _declined(self, life: Life, declined: Declined) -> list[ExecutionEnded | Stray]:
        """Cancelled dispatches that never arrived, and will not be run; or those of an
        earlier epoch of which the worker has kept nothing."""
        worker = self.workers.get(life.id)
        if worker is None:
            return []
        numbers = Ranges.from_flat(declined.numbers)
        over = [
            e for n, e in worker.live.items()
            if n in numbers and (n in worker.stopping or e.taken_back)
        ]  # fmt: skip
        for execution in over:
            self.dispatches.end(execution)
        return [ExecutionEnded(execution, None, "") for execution in over]

    def _announced(
        self, life: Life, announced: Announced, now_s: float
    ) -> list[ExecutionEnded | Stray]:
        """The code of an execution has ended, and its worker holds the outcome."""
        worker = self.workers.get(life.id)
        if worker is None:
            self.fenced += 1
            return []
        execution = _reported(worker, announced)
        if execution is None or execution.size_bytes is not None:
            return []  # ended, or announced before
        size_bytes, most_bytes = announced.size_bytes, execution.session.message_bytes
        worker.announce(execution, size_bytes)
        self.runs.add(now_s - execution.dispatched_s)
        if execution.is_wanted and size_bytes <= most_bytes:
            self.announced.add(execution)
            return []
        kept: RetainedOutcome | None = None
        if execution.is_wanted:
            kept = outcomes.too_large(execution.work, size_bytes, most_bytes)
        worker.end(execution)
        worker.done += 1
        return [ExecutionEnded(execution, kept, "")]

    def _outcomes(
        self, life: Life, rows: Sequence[messages.Said], now_s: float
    ) -> list[WorkerReport]:
        worker = self.workers.get(life.id)
        if worker is None:
            self.fenced += 1
            return []
        heard: list[WorkerReport] = []
        for outcome, payload in rows:
            try:
                heard.append(self._outcome(worker, outcome, payload, now_s))
            except ProtocolError as error:  # the other outcomes are none the worse
                heard.append(MalformedRow(str(error)))
                self._distrust(life, f"it sent a malformed message: {error}", now_s)
        return heard

    def _outcome(
        self, worker: Worker, outcome: Any, payload: Any, now_s: float
    ) -> ExecutionEnded | Stray:
        execution = _reported(worker, outcome)
        session_id, sequence, _, status, duration_s = outcome
        if execution is None:  # already ended; the next statement lets the worker drop it
            self.strays += 1
            return Stray(session_id, sequence)
        if not messages.is_status(status):
            raise ProtocolError(f"unknown status {status}")
        if execution.size_bytes is None:  # else it was counted when it was announced
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
            why = "the server before had begun to cancel it"  # and nobody was told so
            return ExecutionEnded(execution, None, why)
        executions = execution.work.executions if execution.is_wanted else 0
        said = messages.Outcome(session_id, sequence, status, worker.name, duration_s, executions)
        return ExecutionEnded(execution, RetainedOutcome.made(said, payload), "")

    def _delta(self, life: Life, delta: WorkerDelta, payload: Body) -> list[DeltaReceived]:
        worker = self.workers.get(life.id)
        execution = None if worker is None else _reported(worker, delta)
        if execution is None or not execution.is_wanted:
            return []  # it has ended, or nobody wants it: the outcome would have it all
        return [DeltaReceived(execution, delta.delta, payload)]

    def _notes(self, life: Life, message: WorkerNotes) -> list[NotesReceived]:
        numbers = Ranges.from_flat(message.numbers)
        if len(numbers) != len(message.notes):
            raise ProtocolError(f"{len(message.notes)} notes of {len(numbers)} dispatches")
        worker = self.workers.get(life.id)
        live = {} if worker is None else worker.live
        noted = NotesReceived([])
        for number, note in zip(numbers, message.notes, strict=True):
            execution = live.get(number)
            if execution is not None and execution.is_wanted:
                execution.note = note
                noted.executions.append(execution)
        return [noted]

    # -- time -----------------------------------------------------------------

    def tick(self, now_s: float) -> list[ExecutionEnded]:
        """Let the pool decide, end what is proven dead, retire what is drained."""
        ended: list[ExecutionEnded] = []
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
        """Decide anew who may get work."""
        self.turnover.refresh(now_s)

    def _lost(self, lost: Lost) -> list[ExecutionEnded]:
        worker = self.workers.pop(lost.worker, None)
        self.history.over(lost.worker)
        if worker is None:
            return []
        worker.site.workers -= 1
        if not worker.site.workers:
            del self.sites[worker.host]
        executions = list(worker.live.values())
        suspicion = worker.id, len(executions)
        for execution in executions:
            self.dispatches.end(execution)
        return [ExecutionEnded(execution, None, lost.why, suspicion) for execution in executions]

    def retire_all(self, now_s: float) -> None:
        """Start no more and end every worker once it has no work."""
        self.out += self.turnover.retire_all(now_s)

    def kill_all(self, now_s: float) -> None:
        """End every process now."""
        self.out += self.turnover.kill_all(now_s)

    def live_count(self) -> int:
        """Executions on all workers."""
        return sum(len(worker.live) for worker in self.workers.values())


def _reported(worker: Worker, report: Announced | WorkerOutcome | WorkerDelta) -> Execution | None:
    """The live execution that a report is about."""
    execution = worker.live.get(report.number)
    if execution is None or execution.taken_back:  # that of an earlier epoch has another name
        return execution
    if execution.sequence != report.sequence or execution.session.id != report.session:
        raise ProtocolError(f"dispatch {report.number} is of another request")
    return execution
