"""The dispatcher: carries out what the dedup cache decides.

Theory of operation
-------------------
The cache says what must be done about a request (:class:`~.request_table.RequestAction`);
here it is done: an answer is sent, an entry queued, an execution stopped.  All that is to
leave the router is collected in :attr:`Dispatcher.out`, in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from . import messages, outcomes
from .announced import Announcements
from .clock import AwakeClock
from .closing import Closing, ClosingStage
from .deadlines import Deadlines, Outcome
from .dedup import DedupCache
from .dispatches import Dispatches
from .durations import Durations
from .elastic import Elastic, Need
from .executions import Execution
from .heard import ExecutionEnded, Noted, Said, Stray
from .journal import Journal
from .key_records import GenerationState
from .keyed import KeyedRequests
from .keyed_at_rest import RestingRequests
from .limits import KeyLimits, ServerLimits, WireLimits
from .lives import Life
from .ranges import Ranges
from .request_table import REFUSALS, Effects, RequestAction, RequestInput
from .requests import Entry, RequestState, Session
from .router_effects import Report, RouterEffect, ToClient
from .router_inputs import WorkerBack
from .scheduler import Scheduler
from .slots import Pool
from .terms import Route, SessionId
from .workforce import Workforce

# Each request comes by here: to look one of them up in its class takes as long as a line (3.11).
_ANSWER, _QUEUE, _LEAVE = RequestAction.ANSWER, RequestAction.QUEUE, RequestAction.LEAVE


class Dispatcher:
    """The way of requests from the cache's steps to the effects."""

    def __init__(
        self, cache: DedupCache, pool: Pool, closing: Closing, clock: AwakeClock,
        limits: ServerLimits, wire: WireLimits, keys: KeyLimits, new_id: Callable[[], bytes],
        journal: Journal,
    ) -> None:  # fmt: skip
        self.cache = cache
        self.pool = pool
        self.queue = Scheduler()
        self.announced = Announcements(cache)
        self.journal = journal
        self.dispatches = Dispatches(self.announced, journal)
        self.workforce = Workforce(pool, limits, wire.header_bytes, self.dispatches)
        self.limits = limits
        self.elastic = Elastic(pool, self.workforce.workers, limits)
        self.waits = Durations()
        """From entering the queue to the dispatch."""
        self.out: list[RouterEffect] = []
        self.clock = clock
        self._closing = closing
        self.is_starting = True
        """Whether earlier epochs may still live."""
        self.earlier_lives = False
        """Whether hosts may still run something for an earlier epoch: then no work of keys
        begins, since it may be for one whose last generation was not known to end."""
        made = RestingRequests if journal.reads else KeyedRequests
        self.keyed: KeyedRequests = made(self, keys, new_id, journal)
        self.deadlines = Deadlines(self)
        self._log_second = -1.0
        self._log_lines = 0

    @property
    def behind(self) -> bool:
        """Whether there is more to answer than one turn may."""
        return self.deadlines.behind or self.keyed.behind

    @property
    def is_closing(self) -> bool:
        """Whether nothing is started any more."""
        return self._closing.begun

    @property
    def is_flushing(self) -> bool:
        """Whether the last answers leave: what is not decided by now is told to nobody."""
        return self._closing.stage is ClosingStage.FLUSHING

    # -- what the cache says --------------------------------------------------

    def step(self, session: Session, sequence: int, given: RequestInput, arg: Any = None) -> None:
        """Give the cache an input of a request, and carry out what it says."""
        effects = self.cache.step(session, sequence, given, arg)
        if effects:
            self.do(session, effects)

    def do(self, session: Session, effects: Effects, asker: Route | None = None) -> None:
        """Carry out what the cache says.  Answers go to the session's newest
        connection, refusals to who asked: it may be somebody else (G6)."""
        leaving: list[Entry] = []
        stopping: list[Execution] = []
        for do, arg in effects:
            if do is _ANSWER:
                if session.own:
                    self.keyed.outcome(arg)
                else:
                    self.answer(session, arg)
            elif do is _QUEUE:
                if arg.key is None:
                    self.enqueue(arg)
                else:
                    self.keyed.enter(session, arg)
            elif do is _LEAVE:
                leaving.append(arg)
            elif do is RequestAction.UNQUEUE:
                self.queue.remove(arg)
            elif do is RequestAction.STOP:
                stopping.append(arg)
            else:  # a refusal
                code, text, for_now = REFUSALS[do]
                delay_s = self.limits.retry_delay_s if for_now else None
                refused = messages.Refused(session.id, arg, code, text, delay_s)
                self.send(asker or session.route, refused)
        if stopping:
            self._stop(session, stopping)
        if leaving and not session.ended:  # else all of it leaves (end)
            self.keyed.leave_together(leaving)

    def _stop(self, session: Session, executions: list[Execution]) -> None:
        """Their requests need these no more."""
        over = self.dispatches.stop(executions, self.clock.awake_s)
        self.take_from_workforce()
        if session.own:
            for execution in over:
                self.keyed.execution_ended(execution.sequence)

    def answer(self, session: Session, entry: Entry) -> None:
        """Its outcome goes to the session's newest connection."""
        kept = entry.kept
        assert kept is not None
        kept.sent_probe = session.probe
        self.out.append(ToClient(session.route, kept.outcome, kept.payload))

    def enqueue(self, entry: Entry) -> None:
        """It waits for a worker from now on."""
        entry.queued_s = self.clock.awake_s
        self.queue.add(entry)

    def ended(self, ended: ExecutionEnded) -> None:
        """An execution has ended, by its report or by proof of its worker's death."""
        execution, entry = ended.execution, ended.execution.entry
        session = execution.session
        if entry is not None and ended.kept is not None:
            if session.own:
                self.keyed.reported(session, execution.sequence, ended.kept)
            else:
                kept = outcomes.fitting(ended.kept, entry, session.message_bytes)
                self.step(session, entry.id.sequence, RequestInput.OUTCOME, kept)
            return
        if session.own:
            self.keyed.execution_ended(execution.sequence)
        if entry is None:  # abandoned: its request was answered or finished before
            self.cache.forget(session)
        else:
            entry.suspicion = ended.suspicion
            outcome: Outcome = outcomes.lost_with_server
            if ended.suspicion is not None:
                outcome = outcomes.lost(
                    execution.worker, ended.why, declared_rerun=self.cache.declared_rerun,
                    of_key=bool(session.own),
                )  # fmt: skip
            self.step(session, entry.id.sequence, RequestInput.WORKER_DEAD, outcome)
            # It may wait again, but nothing will be started any more.
            if self._closing.begun and entry.id.sequence in session.entries:
                self.answer_stopping(session, entry.id.sequence)

    def take_back(self, life: Life, back: WorkerBack) -> None:
        """A worker of an earlier epoch lives on.  What the journal knows of its work goes on
        as it was; the rest is stopped.  Only then anything is said to it."""
        awake_s, workforce, keys = self.clock.awake_s, self.workforce, self.keyed.keys
        started = keys.started_as.pop(life.incarnation, {})
        worker = workforce.take_back(life, back, awake_s)
        if worker is None:
            return
        # What was sent last may not have reached the host: it may be sent again.
        worker.next_number = max([back.next, *(number + 1 for number in started)])
        self.cache.declared_rerun = keys.declared_rerun = workforce.rerun
        running = Ranges.from_flat(back.running)
        for number in sorted({*started, *running}):
            generation = started.get(number)
            if (
                generation is None or generation.state is not GenerationState.HELD
                or self._closing.begun
            ):  # fmt: skip
                if number in running:
                    self.dispatches.stop_unknown(worker, number, awake_s)
                continue
            session, entry = self.keyed.take_back(generation)
            execution = self.dispatches.go_on(worker, number, session, entry, awake_s)
            keys.dispatched(entry.id.sequence, None)
            counters = self.cache.counters
            before = counters.dispatched, counters.reruns
            self.cache.step(session, entry.id.sequence, RequestInput.DISPATCH, execution)
            counters.dispatched, counters.reruns = before  # the epoch before has counted it
            self.deadlines.add_execution(execution, entry)
        workforce.state(worker)
        self.take_from_workforce()

    def said(self, said: Said) -> None:
        """One piece of an outcome goes to who waits for that, and is kept by nobody."""
        for session, sequence in self._followers(said.execution):
            delta = messages.Delta(session.id, sequence, said.delta)
            self.out.append(ToClient(session.route, delta, said.body))

    def noted(self, noted: Noted) -> None:
        """The notes of one message of a worker go to who waits, in one for each session."""
        told: dict[SessionId, dict[int, bytes]] = {}
        for execution in noted.executions:
            for session, sequence in self._followers(execution):
                told.setdefault(session.id, {})[sequence] = execution.note
        for session_id, notes in told.items():
            sequences = sorted(notes)
            self.send(
                self.cache.sessions[session_id].route,
                messages.Notes(
                    session_id, Ranges(sequences).flat(), [notes[each] for each in sequences]
                ),
            )

    def _followers(self, execution: Execution) -> list[tuple[Session, int]]:
        """The sessions that wait for its outcome, with their sequences."""
        if execution.session.own:
            return self.keyed.followers(execution.sequence)
        return [(execution.session, execution.sequence)]

    def stray(self, stray: Stray) -> None:
        """An outcome of an execution that had ended is counted, and changes nothing."""
        session = self.cache.sessions.get(stray.session)
        if session is not None:
            self.cache.step(session, stray.sequence, RequestInput.STRAY_OUTCOME)

    def end(self, session: Session, *, lost: bool) -> None:
        """A session's lease has ended (it is lost), or its client has said goodbye."""
        self.keyed.leave_all(session, lost=lost)
        self.do(session, self.cache.end(session))
        self.cache.forget(session)

    def schedule(self) -> None:
        """Dispatch whatever can go now."""
        cache, queue, workforce = self.cache, self.queue, self.workforce
        if self.pool.broken and cache.queued_count and self._is_hopeless():
            self.deadlines.answer_all(
                lambda entry: entry.state is RequestState.WAITING, self.broken()
            )
        if self.announced.lines:
            self.dispatches.fetch()
        if cache.queued_count or queue.reserving:
            queue.resume(self._share_left)
            pausing, awake_s = workforce.pausing, self.clock.awake_s
            most, are_limited = self._most_at_once(), self.limits.execution_s is not None
            while (
                queue.may_pick and not pausing.holds(awake_s)
                and (chosen := queue.pick(workforce.workers.values(), self._share_left, most))
            ):  # fmt: skip
                entry, worker = chosen
                session = cache.sessions[entry.id.session]
                after = 0
                if session.own:
                    where = worker.incarnation, worker.next_number
                    self.keyed.keys.dispatched(entry.id.sequence, where)
                    after = self.journal.appended
                execution = self.dispatches.dispatch(session, entry, worker, awake_s, after)
                self.waits.add(awake_s - entry.queued_s)
                pausing.dispatched(awake_s)
                cache.step(session, entry.id.sequence, RequestInput.DISPATCH, execution)
                if are_limited or entry.execution_s is not None:
                    self.deadlines.add_execution(execution, entry)
        if workforce.out:
            self.out += workforce.out
            workforce.out.clear()

    def _most_at_once(self) -> float:
        """Number of executions that a worker may have now, so that those that still start find
        their share of what is there."""
        if not self.pool.spreads(self.clock.awake_s):
            return math.inf
        return -(-(self.workforce.live_count() + len(self.queue)) // max(1, self.pool.wanted))

    def resize(self) -> None:
        """Decide how many workers there are to be, where that may change."""
        if self.pool.parts:
            self.out += self.elastic.tick(self.clock.awake_s, self._need(), self.workforce.capacity)

    def _need(self) -> Need:
        is_held = bool(self.workforce.pausing.why) or self.pool.spreads(self.clock.awake_s)
        return Need(
            sum(worker.running for worker in self.workforce.workers.values()),
            len(self.queue),
            0.0 if is_held else self.oldest_wait_s(),
        )

    def oldest_wait_s(self) -> float:
        """Wait of the oldest request that a worker could take."""
        since_s = self.queue.oldest_s(self._share_left)
        return 0.0 if since_s is None else self.clock.awake_s - since_s

    def _is_hopeless(self) -> bool:
        """Whether no worker will ever take what waits, and that is not answered yet."""
        return not self.deadlines.are_due and self.pool.is_broken_for_good()

    def _share_left(self, session_id: SessionId) -> bool:
        session = self.cache.sessions[session_id]
        if session.own and (
            self.earlier_lives
            or self.journal.failed
            or not self.keyed.keys.room.may_retain(session.own)
        ):
            return False
        return self.cache.share_left(session)

    # -- answers that are not the environment's -------------------------------

    def answer_stopping(self, session: Session, sequence: int) -> None:
        """A request waits for a worker, and gets none any more."""
        self.step(session, sequence, RequestInput.DEADLINE, outcomes.stopping)

    def answer_fresh(self, session: Session, sequence: int) -> bool:
        """Answer a request that has just been entered, if nothing will ever run it."""
        if self._closing.begun:
            self.answer_stopping(session, sequence)
        elif self.pool.broken and self.pool.is_broken_for_good():
            self.step(session, sequence, RequestInput.DEADLINE, self.broken())
        else:
            return False
        return True

    def broken(self) -> Outcome:
        """The outcome of a request that waits for a worker while there can be none."""
        pool = self.pool
        return outcomes.broken(pool.broken_because or pool.broken, pool.broken)

    def saved(self) -> None:
        """More of the journal is safe: what waited for that is done."""
        self.keyed.begin_turn()  # first: what was decided earlier is told earlier
        self.dispatches.release()
        self.take_from_workforce()

    def begin_turn(self) -> None:
        """Another input may answer as many again."""
        self.deadlines.begin_turn()
        self.keyed.begin_turn()

    @property
    def answers_due(self) -> bool:
        """Whether requests that end together, or for keys, still wait for their answers, or what
        a journal has left."""
        return self.deadlines.are_due or self.keyed.answers_due or self.keyed.may_go_on

    # -- what leaves ----------------------------------------------------------

    def take_from_workforce(self) -> None:
        """Pass on the effects of the workforce, in order."""
        if self.workforce.out:
            self.out += self.workforce.out
            self.workforce.out.clear()

    def send(self, route: Route, message: messages.Message) -> None:
        """A message without a body goes to a client."""
        self.out.append(ToClient(route, message))

    def warn(self, text: str) -> None:
        """Log what a peer can cause, but no more than some lines a second; all of it
        is counted."""
        second = self.clock.awake_s // 1.0
        if second != self._log_second:
            self._log_second, self._log_lines = second, 0
        self._log_lines += 1
        if self._log_lines <= self.limits.log_rate:
            self.report("warning", text)

    def report(self, level: str, text: str) -> None:
        """Log a line."""
        self.out.append(Report(level, text))
