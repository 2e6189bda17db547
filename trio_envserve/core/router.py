"""The router: makes effects of inputs.

Theory of operation
-------------------
:meth:`Router.take` is given an input (:mod:`.router_inputs`) and gives the effects
(:mod:`.router_effects`), in order; the shell carries them out.  Nothing else changes a
router.  Nothing here awaits, reads a clock or draws a random number, so what the
simulator runs is what ships.

What is asked and answered is decided by :class:`~.work.Works`, what runs where by
:class:`~.workforce.Workforce`; the router reads messages, keeps deadlines, closes, and ends
each input with :meth:`Router._schedule`, so nothing that could run ever waits for a tick.
Two clocks: deadlines are on the monotonic clock (``now_s``); leases and suspicion on awake
time, which stands still while this process does.

A router that is :attr:`Router.behind` is given :class:`~.router_inputs.Resume` until it is not.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from . import messages, outcomes
from .account import Account, Accounts
from .clock import AwakeClock
from .closing import Closing, ClosingStage, Held
from .durations import Durations
from .errors import ProtocolError
from .executions import Announcements, Dispatches, Execution, Worker
from .gate import Budget, Gate
from .health import ServerStatus
from .heartbeat import Heartbeat
from .host_pool import Hosts
from .journal import Journal
from .key_records import keyed_of
from .lease import LeaseTerms
from .limits import PROTOCOL_VERSION, KeyLimits, ServerLimits, WireLimits
from .messages import ForeignVersion
from .pool import Elastic, LifeInput, Need, Pool
from .queries import KeyPages, RunningPages, Stacks
from .ranges import Ranges
from .rights import Rights
from .router_effects import (
    ClosingOver,
    Flush,
    Report,
    RouterEffect,
    Save,
    TellStats,
    ToClient,
    answer_to,
)
from .router_inputs import (
    AtRest,
    ClientMessage,
    CloseAsked,
    Exited,
    Flushed,
    HeartbeatReceived,
    HolderFound,
    HostMessage,
    HostsBefore,
    HostsDead,
    HostsRecorded,
    HostsTick,
    Loaded,
    OfHost,
    PeerKnown,
    PoolOpened,
    PoolWaits,
    Restored,
    Resume,
    RouterInput,
    Saved,
    SaveFailed,
    Spawned,
    StackTaken,
    Tick,
    TurnOver,
    WorkerBack,
    WorkerMessage,
)
from .scheduler import Scheduler
from .scope import SHOWN, Resources
from .sessions import Session
from .status import plain
from .terms import ID_BYTES, Body, Epoch, Route, SessionId, one_line, short, weight
from .work import Answer, Outcomes, Refusal, Ticket, Work, Works, WorkState
from .worker_history import TOOK
from .worker_range import WorkerRange
from .workforce import (
    DeltaReceived,
    ExecutionEnded,
    NotesReceived,
    SaveReceived,
    Stray,
    Workforce,
)

AGAIN_S = 1.0
"""Seconds until a request is looked at again whose answer waits for the journal when its deadline
passes."""


class Router:
    """The whole server, less its sockets, processes and clock."""

    def __init__(
        self, *, epoch: Epoch, slots: int | WorkerRange, now_s: float, new_id: Callable[[], bytes],
        limits: ServerLimits | None = None, wire: WireLimits | None = None,
        keys: KeyLimits | None = None, heartbeats: bool = True, journaled: bool = False,
        resting: bool = False, lease: LeaseTerms | None = None,
        needs: Mapping[str, float] | None = None, serves: Mapping[str, Any] | None = None,
        claim: Callable[[Route, str], str] | None = None,
    ) -> None:  # fmt: skip
        """``lease``: that of hosts; None if none can join.  ``needs``, ``serves`` and ``claim``
        are those of :class:`~.host_pool.Hosts`."""
        self.epoch = epoch
        self.limits = limits = limits or ServerLimits()
        self.wire = wire or WireLimits()
        keys = keys or KeyLimits()
        self.clock = AwakeClock(limits.awake_step_s, now_s)
        self.pool = Pool(slots, limits, new_id, heartbeats=heartbeats)
        self.closing = Closing(limits, self.wire.flush_s)
        self.journal = Journal(on=journaled, reads=resting)
        self.accounts = Accounts(limits, keys)
        self.queue: Scheduler[Work] = Scheduler()
        self.announced = Announcements(self.accounts)
        self.out: list[RouterEffect] = []
        """Effects of this input, in order; each of its parts appends to them."""
        gate: Gate[Answer] = Gate(self.journal, keys, Budget())
        self.resources = Resources(epoch, limits, self.journal, gate, self._tell_worker, self.warn)
        self.dispatches = Dispatches(self.announced, gate, self.out, self.clock, self.resources)
        self.workforce = Workforce(self.pool, limits, self.wire.header_bytes, self.dispatches)
        self.elastic = Elastic(self.pool, self.workforce.workers, limits)
        self.works = Works(
            limits, keys, self.accounts, self.journal, gate, self.closing, self.queue,
            self.dispatches, self.clock, new_id, self._never_starts, self.warn,
            self.wire.message_bytes,
        )  # fmt: skip
        self.hosts = None if lease is None else Hosts(
            self.pool, lease, epoch, self.journal, needs=needs, wire=self.wire, serves=serves,
            claim=claim, out=self.out,
        )  # fmt: skip
        self.followed: list[OfHost] = []
        """What followed from the last input about hosts, for who watches."""
        self.sessions = self.works.sessions
        self.waits = Durations()
        """From entering the queue to the dispatch."""
        self._hosts_by = math.inf
        """Moment, in time awake, by which hosts of an earlier router have had time to join."""
        self.dead_epochs: Collection[Epoch] = ()
        self.starting = "waiting for the workers of an earlier server to end"
        """Why no worker is started yet; empty once they are."""
        self.malformed = 0
        self.rights = Rights()
        self._key_pages = KeyPages(self.works)
        self._running = RunningPages(self.workforce)
        self._stacks = Stacks()
        self._new_id = new_id
        self._told: tuple[float, dict[str, Any]] = (-1.0, {})
        """Moment of the last statistics that were made for a query, and these statistics."""
        self._deadlines: list[tuple[float, SessionId, int]] = []
        """A heap: when each request ends.  Those that were answered before are dropped now and
        then."""
        self._limited: list[tuple[float, int, Execution]] = []
        """A heap: until when, in time awake, each execution may last, with its serial number."""
        self._is_late = False
        """Whether deadlines have passed whose requests were not answered yet."""
        self._most = 1024
        self._log_second = -1.0
        self._log_lines = 0

    @property
    def behind(self) -> bool:
        """Whether it has more to do than it may in one turn: then give it a Resume."""
        return self._is_late or self.works.behind

    @property
    def awake_s(self) -> float:
        """The time in which it was awake."""
        return self.clock.awake_s

    # -- inputs ---------------------------------------------------------------

    def take(self, given: RouterInput) -> list[RouterEffect]:
        """Take one input in; what must be done, in order."""
        self.works.budget.renew()
        _INPUTS[type(given)](self, given)
        self._schedule()
        if self.hosts is not None:
            for effect in self.out:  # what it wants sent comes behind
                self.hosts.take(effect)
        out = self.out.copy()
        self.out.clear()
        if self.journal.unsaved:
            out.append(Save(self.journal.take(), self.journal.appended))
        return out

    def _saved(self, given: Saved) -> None:
        upto, now_s = given
        self.clock.read(now_s)
        failed = self.journal.failed
        self.journal.saved(upto)
        if failed and not self.journal.failed:
            self.report("info", "the journal saves again")
        self.works.go_on()

    def _save_failed(self, given: SaveFailed) -> None:
        why, final, now_s = given
        self.clock.read(now_s)
        journal = self.journal
        was = journal.failed, journal.lost
        journal.fail(why, final=final)
        if (journal.failed, journal.lost) != was:
            then = "for good; start the server anew" if final else "it tries again"
            self.report("error", f"the journal cannot save: {why} ({then})")
        if final:
            self.works.go_on()
            self.works.give_up()

    def _restored(self, given: Restored) -> None:
        records, now_s = given
        self.clock.read(now_s)
        self.resources.restore(self.works.restore(records), self.awake_s)

    def _at_rest(self, given: AtRest) -> None:
        keys, now_s = given
        self.clock.read(now_s)
        self.works.restore_archive(keys)

    def _loaded(self, given: Loaded) -> None:
        number, frames, why, now_s = given
        self.clock.read(now_s)
        self.works.go_on()
        self.works.loaded(number, frames, why)

    def _pool_waits(self, given: PoolWaits) -> None:
        self.starting = given.why

    def _pool_opened(self, given: PoolOpened) -> None:
        dead, now_s = given
        live = set() if self.hosts is None else self.hosts.open()
        self.dead_epochs = [each for each in dead if each not in live]
        self.works.earlier_lives = bool(live)
        if not self.works.earlier_lives:
            self._earlier_dead()
        self.starting = ""
        grace_s = 0.0 if self.hosts is None else self.hosts.leases.terms.grace_s
        self._hosts_by = self.clock.read(now_s) + grace_s
        self._time(now_s)

    # -- hosts ------------------------------------------------------------------

    def _hosts_before(self, given: HostsBefore) -> None:
        assert self.hosts is not None
        self.hosts.found(*given)

    def _host_message(self, given: HostMessage) -> None:
        """Read a message of a host, and do what follows."""
        route, frames, now_s, lease_s = given
        assert self.hosts is not None
        self.followed = []
        if now_s > self.clock.last_s:
            self.clock.read(now_s)
        try:
            follows = self.hosts.message(route, frames, now_s if lease_s is None else lease_s)
        except ProtocolError as error:
            self.count_malformed(f"host {short(route)}: {error}")
            return
        self._follow(follows, now_s)

    def _hosts_tick(self, given: HostsTick) -> None:
        now_s, lease_s = given
        assert self.hosts is not None
        self.followed = []
        unknown = self.dispatches.unknown.live_executions
        at_s = now_s if lease_s is None else lease_s
        self._follow(self.hosts.tick(at_s, unknown=unknown), now_s)

    def _follow(self, follows: Iterable[OfHost], now_s: float) -> None:
        """Take in what follows about the workers of hosts, as if they were here."""
        for each in follows:
            given = each if isinstance(each, Spawned) else each._replace(now_s=now_s)
            self.works.budget.renew()
            self.followed.append(given)
            _INPUTS[type(given)](self, given)

    def _hosts_recorded(self, given: HostsRecorded) -> None:
        assert self.hosts is not None
        self.hosts.recorded(given.why)

    def _turn_over(self, given: TurnOver) -> None:
        assert self.hosts is not None
        self.hosts.turn_over()

    def _hosts_dead(self, given: HostsDead) -> None:
        dead_epochs, now_s = given
        self.dead_epochs = {*self.dead_epochs, *dead_epochs}
        self._earlier_dead()
        self._time(now_s)

    def _earlier_dead(self) -> None:
        """All earlier lives are proven dead, but for those of workers that are back."""
        self.works.earlier_lives = False
        self.works.started_as.clear()
        self.resources.earlier_dead(self.awake_s)

    def _worker_back(self, given: WorkerBack) -> None:
        """A worker of an earlier epoch lives on.  What the journal knows of its work goes on as it
        was; the rest is stopped.  A dispatch that did not reach its host is sent now."""
        works, workforce, awake_s = self.works, self.workforce, self.clock.read(given.now_s)
        life = self.pool.take_back(given, awake_s)
        started = works.started_as.pop(life.incarnation, {})
        worker = workforce.take_back(life, given, self.epoch, awake_s)
        if worker is None:
            return
        worker.next_number = max([given.next, *(number + 1 for number in started)])
        running, missing = map(Ranges.from_flat, (given.running, given.missing))
        unknown: list[int] = []
        for number in sorted({*started, *running}):
            work, saves = started.get(number, (None, 0))
            if work is None or work.state is not WorkState.HELD or self.closing.begun:
                if number in running:
                    unknown.append(number)
                continue
            works.take_back(work)
            execution = self.dispatches.go_on(worker, number, work.account, work, awake_s, saves)
            works.go_on_as_before(work, execution)
            self._limit(execution, work)
            if number in running:
                execution.sent_at = 0
                execution.body = None
            elif number >= given.next or number in missing:
                self.dispatches.send(execution)
        self.dispatches.stop_unknown(worker, unknown, awake_s)
        self.resources.take_back(worker, awake_s)

    def _worker_message(self, given: WorkerMessage) -> None:
        frames, now_s = given
        if now_s > self.clock.last_s:
            self.clock.read(now_s)
        try:
            events = self.workforce.message(frames, self.clock.awake_s)
        except ProtocolError as error:
            self.count_malformed(f"worker {bytes(frames[0][:16])!r}: {error}")
            return
        for each in events:
            if isinstance(each, ExecutionEnded):
                self._ended(each)
            elif isinstance(each, Stray):
                self._stray(each)
            elif isinstance(each, DeltaReceived):
                self._pass_delta(each)
            elif isinstance(each, NotesReceived):
                self._noted(each)
            elif isinstance(each, SaveReceived):
                self.works.save(*each)
            else:
                self.count_malformed(f"worker {bytes(frames[0][:16])!r}: {each.text}")
        if self.resources.waiting and not self.starting:
            self.workforce.clean(self.awake_s)

    def _stray(self, stray: Stray) -> None:
        """An outcome of an execution that had ended is counted, and changes nothing."""
        self.works.counters.stray_outcomes += stray.session in self.sessions.known

    def _ended(self, ended: ExecutionEnded) -> None:
        execution, kept, why, suspicion = ended
        work: Work | None = execution.work
        wanted = work is not None and work.execution is execution
        lost: Outcomes = outcomes.lost_with_server
        if wanted and suspicion is not None:
            assert work is not None
            work.suspicion = suspicion
            lost = outcomes.lost(
                execution.worker, why, declared_rerun=self.dispatches.environment.rerun,
                of_key=bool(work.account.namespace), is_holder=execution.is_holder,
            )  # fmt: skip
        self.works.ended(execution, kept, lost)

    def _pass_delta(self, given: DeltaReceived) -> None:
        """Pass a delta on to the tickets of its work; it is not kept."""
        for ticket in self.works.followers(given.execution.work):
            delta = messages.Delta(*ticket.id, given.delta)
            self.out.append(ToClient(ticket.session.route, delta, given.body))

    def _noted(self, noted: NotesReceived) -> None:
        """The notes of one message of a worker go to who waits, in one for each session."""
        told: dict[Session[Ticket], dict[int, bytes]] = {}
        for execution in noted.executions:
            for ticket in self.works.followers(execution.work):
                told.setdefault(ticket.session, {})[ticket.sequence] = execution.note
        for session, notes in told.items():
            sequences = sorted(notes)
            self.send(
                session.route,
                messages.Notes(
                    session.id, Ranges(sequences).flat(), [notes[each] for each in sequences]
                ),
            )

    def _heartbeat(self, given: HeartbeatReceived) -> None:
        life = self.pool.lives.get(given.worker)
        if life is not None:
            awake_s = self.clock.read(given.now_s)
            heartbeat = Heartbeat(given.lag_s, given.memory_bytes, given.where)
            self.out += self.pool.step(life, LifeInput.HEARTBEAT, awake_s, heartbeat)
            self.workforce.note_holder(life)

    def _holder_found(self, given: HolderFound) -> None:
        life = self.pool.lives.get(given.worker)
        if life is not None:
            heartbeat = Heartbeat(where=given.where, holder=given.request)
            awake_s = self.clock.read(given.now_s)
            self.out += self.pool.step(life, LifeInput.HELD, awake_s, heartbeat)
            self.workforce.note_holder(life, given.request)

    def _stack_taken(self, given: StackTaken) -> None:
        self.out += self._stacks.taken(given.worker, given.number, given.text)

    def _spawned(self, given: Spawned) -> None:
        self.pool.lives[given.worker].pid = given.pid

    def _exited(self, given: Exited) -> None:
        worker, now_s, how = given
        awake_s = self.clock.read(now_s)
        self.out += self.pool.step(self.pool.lives[worker], LifeInput.EXITED, awake_s, how)
        self.workforce.refresh(awake_s)

    def _peer_known(self, given: PeerKnown) -> None:
        self.rights.know(*given)

    # -- time -----------------------------------------------------------------

    def _tick(self, given: Tick) -> None:
        self._time(given.now_s)

    def _time(self, now_s: float) -> None:
        """Do all that is due by now."""
        awake_s = self.clock.read(now_s)
        self.works.go_on()
        self._pass_deadlines(now_s)
        self._drop_deadlines()
        self._lapse(awake_s)
        self.works.tick()
        if not self.starting:
            self._resize()
            self.workforce.turnover.waits = self.closing.stage in (
                ClosingStage.DRAINING,
                ClosingStage.CANCELLING,
            ) and len(self.resources.all) > len(self.resources.stuck)
            for ended in self.workforce.tick(awake_s):
                self._ended(ended)
            # Until then, hosts of an earlier router may come back; not to a router that closes.
            if not self.works.earlier_lives and (awake_s >= self._hosts_by or self.closing.begun):
                self.resources.find_hosts(self.workforce.hosts, awake_s)
            self.workforce.clean(awake_s)
        self.dispatches.permits.tick(awake_s)
        self._go_on_closing(now_s)

    def _resume(self, given: Resume) -> None:
        self.clock.read(given.now_s)
        self.works.go_on()
        self._pass_deadlines(given.now_s)
        self.works.tick()
        self._go_on_closing(given.now_s)

    def _lapse(self, awake_s: float) -> None:
        """End the sessions whose leases have ended.  Of those that hold much the next tick ends
        some more: many end at once where a network is cut (G10)."""
        for session in self.sessions.lapsed(awake_s):
            self.works.budget.left -= min(self.works.budget.left, len(session.tickets))
            self.report("info", f"session {short(session.id)} ({session.name}): lease ended")
            self.works.end_session(session, lost=True)
            if not self.works.budget.left:
                return

    def _pass_deadlines(self, now_s: float) -> None:
        """Answer the requests whose deadlines have passed, and those whose executions have lasted
        for longer than they may, as many as the budget has."""
        works, heap, limited, awake_s = self.works, self._deadlines, self._limited, self.awake_s
        self._is_late = False
        while heap and heap[0][0] <= now_s:
            if works.gate.is_due or not works.budget.spend():
                self._is_late = True
                return
            _, session_id, sequence = heapq.heappop(heap)
            ticket = self._ticket(session_id, sequence)
            if ticket is not None and not works.expire(ticket):
                self._expire_at(now_s + AGAIN_S, ticket)
        outcome = outcomes.too_old(self.limits.execution_s)
        while limited and limited[0][0] <= awake_s:
            if works.gate.is_due or not works.budget.spend():
                self._is_late = True
                return
            execution = heapq.heappop(limited)[2]
            if _may_run(execution):
                works.answer(execution.work, outcome)

    def _ticket(self, session_id: SessionId, sequence: int) -> Ticket | None:
        session = self.sessions.known.get(session_id)
        return None if session is None else session.tickets.get(sequence)

    def _expire_at(self, at_s: float, ticket: Ticket) -> None:
        heapq.heappush(self._deadlines, (at_s, *ticket.id))

    def _limit(self, execution: Execution, work: Work) -> None:
        """This execution may last for as long as its caller and this server let it."""
        most_s: float | None = self.limits.execution_s
        if work.execution_s is not None:
            most_s = work.execution_s if most_s is None else min(most_s, work.execution_s)
        if most_s is not None:
            until_s = execution.dispatched_s + most_s
            heapq.heappush(self._limited, (until_s, execution.serial, execution))
        if work.grace_s is not None:
            execution.late_at = self._late_at(work, work.grace_s, most_s)

    def _late_at(self, work: Work, grace_s: float, most_s: float | None) -> float | None:
        """Moment at which a rollout that is dispatched now is late, on the awake clock: its grace
        before the first of its limits.  None if it has no limit."""
        if work.ends_at is not None:
            left_s = work.ends_at - self.clock.last_s
            most_s = left_s if most_s is None else min(most_s, left_s)
        return None if most_s is None else self.awake_s + most_s - grace_s

    def _drop_deadlines(self) -> None:
        """Drop those of finished requests, and of executions that have ended, once they are most
        of all (G8)."""
        if len(self._deadlines) + len(self._limited) < self._most:
            return
        self._deadlines = [each for each in self._deadlines if self._ticket(*each[1:]) is not None]
        self._limited = [each for each in self._limited if _may_run(each[2])]
        heapq.heapify(self._deadlines)
        heapq.heapify(self._limited)
        self._most = max(1024, 2 * (len(self._deadlines) + len(self._limited)))

    # -- messages of clients ----------------------------------------------------

    def _client_message(self, given: ClientMessage) -> None:
        """Read a message of a client, and do what it asks."""
        route, frames, now_s = given
        if now_s > self.clock.last_s:  # of those that come together the first one reads it
            self.clock.read(now_s)
        try:
            rows = messages.read(frames, most_bytes=self.wire.header_bytes)
            kind = type(rows[0][0])
            handler = _HANDLERS.get(kind)
            if handler is None:
                raise ProtocolError(f"{kind.__name__} from a client")
        except ProtocolError as error:
            code = "foreign-version" if isinstance(error, ForeignVersion) else "malformed"
            self.count_malformed(f"client {short(route)}: {error}")
            self.send(route, messages.Error(PROTOCOL_VERSION, code, str(error)))
            return
        for message, body in rows:
            if self.rights.on and (answer := self.rights.refusal(route, message, self.sessions)):
                self.send(route, answer)
            elif body is None:
                handler(self, route, message)
            else:
                self._request(route, message, body, now_s)

    def _hello(self, route: Route, hello: messages.Hello) -> None:
        name = one_line(hello.name, self.wire.name_bytes)
        owner, caller = self.rights.owner(route) if self.rights.on else None, hello.caller
        if owner is not None:  # nobody acts for a caller of another one by giving its token (G7)
            named = owner.name.encode() + caller
            caller = hashlib.blake2b(named, digest_size=ID_BYTES).digest()
        session = self.sessions.open(
            self._new_id(), caller, hello.nonce, name, route, hello.connection, self.awake_s
        )
        if session is None:
            text = self.sessions.refusal(hello.nonce, route)
            self.warn(f"client {short(route)} ({name}) gets no session: {text}")
            self.send(route, messages.Error(PROTOCOL_VERSION, "no-session", text))
            return
        session.account.message_bytes = hello.message_bytes
        session.owner = owner
        welcome = messages.Welcome(
            PROTOCOL_VERSION, hello.nonce, session.id, self.epoch, self.limits.window,
            self.wire.message_bytes, self.status(),
        )  # fmt: skip
        self.send(route, welcome)

    def _session(
        self, route: Route, session_id: SessionId, epoch: Epoch = b""
    ) -> Session[Ticket] | None:
        """The session of a message, heard just now; or None, and the sender is told."""
        session = self.sessions.known.get(session_id)
        if session is not None and not session.ended:
            self.sessions.seen(session, self.awake_s)
            return session
        ours = epoch == self.epoch and session is None
        gone = ours or epoch in self.dead_epochs
        settled = ours and self.sessions.settled(session_id)
        self.send(route, messages.Unknown(session_id, gone, self.epoch, settled))
        return None

    def _request(self, route: Route, request: Any, body: Body, now_s: float) -> None:
        session = self._session(route, request.session)
        if session is None:
            return
        try:
            key = keyed_of(*request[8:12])
            size_bytes = weight(body)
            if size_bytes > self.wire.message_bytes or not request.allowance:
                text = f"a body of {size_bytes} bytes, an allowance of {request.allowance}"
                raise ProtocolError(text)
        except ProtocolError as error:
            self.works.refuse(session, request.sequence, Refusal.REFUSED, route, text=str(error))
            return
        ticket = self.works.request(session, request, body, key, route)
        if ticket is not None and ticket.kept is None and request.deadline_s is not None:
            self._expire_at(now_s + request.deadline_s, ticket)
            if key is None and ticket.work is not None:  # else it ends the wait, not the work
                ticket.work.ends_at = now_s + request.deadline_s

    def _finish(self, route: Route, finish: messages.Finish) -> None:
        session = self._session(route, finish.session)
        if session is not None:
            self.works.finish(session, Ranges.from_flat(finish.finished))

    def _sync(self, route: Route, sync: messages.Sync) -> None:
        session = self._session(route, sync.session, sync.epoch)
        if session is None:
            return
        self.sessions.moved(session, route, sync.connection)
        # A newer probe says that the answer to the one before has arrived: what was
        # sent before that, and is still asked for, is lost.
        sent_before = session.probe if sync.probe > session.probe else 0
        pending = Ranges.from_flat(sync.pending)
        missing = self.works.sync(session, sync.next, pending, sent_before)
        session.probe = max(session.probe, sync.probe)
        answer = messages.Synced(session.id, sync.probe, missing.flat(), self.status())
        self.send(session.route, answer)

    def _cancel(self, route: Route, cancel: messages.Cancel) -> None:
        session = self._session(route, cancel.session)
        if session is not None:
            self.works.cancel(session, cancel.sequence)

    def _query(self, route: Route, query: messages.Query) -> None:
        turn_s, first = self.clock.last_s, query.first or 0
        match query.about:
            case "keys":
                if self.works.gate.is_decided(route):
                    return  # it comes again, and an answer to it waits for the journal
                page = self._key_pages.page(query.namespace or b"", first, self.awake_s, turn_s)
                self.works.page(answer_to(route, query.probe, page))
            case "running":
                page = self._running.page(first, self.awake_s, turn_s)
                self.out.append(answer_to(route, query.probe, page))
            case "stack":
                execution = self._running.find(first, turn_s)
                self.out += self._stacks.ask(execution, route, query.probe, self.awake_s)
            case _:
                # One record for all who ask in one turn: making it costs far more than asking.
                made_s, stats = self._told
                if made_s != turn_s:
                    stats = self.stats()
                    self._told = turn_s, stats
                self.out.append(TellStats(route, query.probe, stats))

    def _goodbye(self, route: Route, goodbye: messages.Goodbye) -> None:
        session = self.sessions.goodbye(goodbye.session)
        if session is not None and not session.ended:
            self.works.end_session(session, lost=False)

    # -- what runs ----------------------------------------------------------------

    def _schedule(self) -> None:
        """Dispatch whatever can go now: once all of an input is taken in, so that nothing goes to a
        worker whose end stands behind its hello."""
        queue, works, workforce = self.queue, self.works, self.workforce
        works.stop()
        if self.dispatches.permits.due:
            self.dispatches.grant(self.awake_s, paused=works.earlier_lives)
        if self.pool.broken and len(queue) and self._is_hopeless():
            works.answer_all(lambda work: work.state is WorkState.WAITING, self._broken())
        if self.announced.lines:
            self.dispatches.fetch()
        if queue.may_pick or queue.is_paused:
            queue.resume(self._share_left)
            pausing, awake_s = workforce.pausing, self.awake_s
            most = self._most_at_once()
            while (
                queue.may_pick and not pausing.holds(awake_s)
                and (chosen := queue.pick(workforce.workers.values(), self._share_left, most))
            ):  # fmt: skip
                work, worker = chosen
                execution = self.dispatches.start(work.account, work, worker, awake_s)
                self._limit(execution, work)
                self.waits.add(awake_s - work.queued_s)
                pausing.dispatched(awake_s)
                self.dispatches.send(execution, is_safe=works.dispatched(work, execution))

    def _most_at_once(self) -> float:
        """Number of executions that a worker may have now, so that those that still start find
        their share of what is there."""
        if not self.pool.spreads(self.awake_s):
            return math.inf
        return -(-(self.workforce.live_count() + len(self.queue)) // max(1, self.pool.wanted))

    def _share_left(self, account_id: SessionId) -> bool:
        """Whether this account has room for the outcome of one more execution."""
        session = self.sessions.known.get(account_id)
        if session is not None:
            return self.accounts.may_run(session.account)
        account: Account = self.accounts.of_id[account_id]
        if self.works.earlier_lives or self.journal.failed:
            return False
        return self.accounts.may_retain(account) and self.accounts.may_run(account)

    def _resize(self) -> None:
        """Decide how many workers there are to be, where that may change."""
        if self.pool.parts:
            is_held = bool(self.workforce.pausing.why) or self.pool.spreads(self.awake_s)
            need = Need(
                sum(worker.running for worker in self.workforce.workers.values()),
                len(self.queue),
                0.0 if is_held else self.oldest_wait_s(),
            )
            self.out += self.elastic.tick(self.awake_s, need, self.workforce.capacity)

    def oldest_wait_s(self) -> float:
        """Wait of the oldest request that a worker could take."""
        since_s = self.queue.oldest_s(self._share_left)
        return 0.0 if since_s is None else self.awake_s - since_s

    def _is_hopeless(self) -> bool:
        """Whether no worker will ever take what waits, and that is not answered yet."""
        return not self.works.has_due and self.pool.is_broken_for_good()

    def _never_starts(self) -> Outcomes | None:
        """The outcome of what is asked for now, if nothing will ever run it."""
        if self.closing.begun:
            return outcomes.stopping
        if self.pool.broken and self.pool.is_broken_for_good():
            return self._broken()
        return None

    def _broken(self) -> Outcomes:
        return outcomes.broken(self.pool.broken_because or self.pool.broken, self.pool.broken)

    # -- closing --------------------------------------------------------------------

    def _close_asked(self, given: CloseAsked) -> None:
        now_s, stage, drain_s = given
        self.clock.read(now_s)
        self.works.go_on()
        for each in self.closing.until(stage):
            self._enter(each, now_s)
        if drain_s is not None:
            self.closing.limit_drain(now_s + drain_s)
        self._go_on_closing(now_s)

    def _flushed(self, given: Flushed) -> None:
        self.clock.read(given.now_s)
        self.works.go_on()
        self.closing.flushed = True
        self._go_on_closing(given.now_s)

    def _go_on_closing(self, now_s: float) -> None:
        """Enter the stages that are due, once nobody waits for an answer of the last."""
        while self.closing.begun and not self.works.answers_due:
            self.works.stop()
            stage = self.closing.following(now_s, self.held())
            if stage is None:
                return
            self._enter(stage, now_s)

    def _enter(self, stage: ClosingStage, now_s: float) -> None:
        """Do what a stage of closing begins with."""
        works = self.works
        self.closing.enter(stage, now_s)
        match stage:
            case ClosingStage.DRAINING:
                self.out += self.workforce.turnover.retire_all(self.awake_s)
                works.answer_all(lambda work: work.execution is None, outcomes.stopping)
            case ClosingStage.CANCELLING:
                works.answer_all(lambda work: work.execution is not None, outcomes.stopped)
            case ClosingStage.ENDING:
                self._tell_left()
            case ClosingStage.KILLING:
                self.out += self.workforce.turnover.kill_all(self.awake_s)
            case ClosingStage.FLUSHING:
                self.out.append(Flush())
            case _:  # ClosingStage.CLOSED
                self.out.append(ClosingOver(tuple(self.pool.lives)))

    def _tell_left(self) -> None:
        """Log the resources that this server leaves.  Workers without work are told to exit by the
        tick."""
        left = list(self.resources.all.values())
        if left:
            then = "destroy them by hand, since no later server does"
            if self.journal.on and not self.journal.lost:
                then = "the next server with this journal destroys them"
            names = ", ".join(f"{each.name} ({each.kind})" for each in left[:SHOWN])
            more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
            self.report("warning", f"resources left: {len(left)}; {then}: {names}{more}")

    def held(self) -> Held:
        """The things that closing waits for."""
        kept = (
            session.account.kept_count for session in self.sessions.known.values()
            if self.awake_s - session.seen_at < self.limits.client_gone_s
        )  # fmt: skip
        on_disk = self.works.gate.waiting + self.works.reads_due
        resources = self.resources.open if self.pool.lives else 0  # else nobody destroys them
        return Held(
            self.workforce.live_count(), sum(kept) + on_disk, len(self.pool.lives), on_disk,
            resources,
        )  # fmt: skip

    # -- what it says of itself -------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The status record of welcomes and syncs."""
        pool, environment, reason = self.pool, self.dispatches.environment, self.starting
        journal = self.journal
        ready = pool.ready_count()
        if self.closing.begun:
            stage = self.closing.stage.value
            status, reason = ServerStatus.STOPPING, f"the server is stopping ({stage})"
        elif pool.is_silent():
            status, reason = ServerStatus.SILENT, "no worker sends heartbeats"
        elif ready:
            status = ServerStatus.READY
        elif pool.is_broken():
            status, reason = ServerStatus.BROKEN, f"the environment is broken:\n{pool.broken}"
        else:
            status = ServerStatus.STARTING
            waits_for = "no worker is ready yet"
            if not pool.wanted:
                waits_for = "no host is here that may start workers"
            reason = reason or pool.broken or waits_for
        record: dict[str, Any] = {
            "status": status.value, "reason": reason, "ready": ready, "workers": pool.wanted,
            "environment": environment.name, "rerun": environment.rerun,
            "durable": journal.on and not journal.failed, "paused": self.workforce.pausing.why,
        }  # fmt: skip
        if journal.failed:
            record["journal"] = journal.failed
        if self.closing.begun:
            record["closing"] = self._closing()
        return record

    def _closing(self) -> dict[str, Any]:
        """The stage of closing, what it waits for, and the seconds until the next."""
        left_s = self.closing.left_s(self.clock.last_s)
        running, kept, workers, _, resources = self.held()
        return {
            "stage": self.closing.stage.value, "running": running, "outcomes": kept,
            "workers": workers, "left_s": round(left_s, 1), "resources": resources,
        }  # fmt: skip

    def stats(self) -> dict[str, Any]:
        """Everything countable, aggregated here and nowhere else.  Counters count from the start
        of this server, gauges are of now."""
        works, taken, workforce, pool = self.works, self.accounts.all, self.workforce, self.pool
        archive = works.archive
        workers = []
        for life in pool.lives.values():
            worker = workforce.workers.get(life.id)
            given = workforce.history.stats.get(life.id, {})
            row = {
                # First: it cannot overrule what is known here.  Its buckets are in model_calls.
                **{name: number for name, number in given.items() if not name.startswith(TOOK)},
                "worker": life.name,
                "slot": life.slot,
                "host": life.host,
                "pid": life.pid,
                "phase": life.phase.value,
                "pending": len(worker.live) if worker else 0,
                "capacity": worker.capacity if worker else 0,
                "done": worker.done if worker else 0,
                "failed": worker.failed if worker else 0,
                "restarts": pool.slots[life.slot].lives - 1,
                "memory_bytes": life.memory_bytes,
                "lag_s": life.lag_s,
                "silent": life.silent,
                "blocked": life.blocked,
            }
            workers.append(row)
        models = workforce.history.models_of_the_dead.copy()
        for statistics in workforce.history.stats.values():
            models.take(statistics)
        return {
            "epoch": self.epoch.hex(),
            **self.status(),
            "sessions": len(self.sessions.known),
            "waiting": len(self.queue),
            "running": workforce.live_count(),
            "kept": taken.kept_count,
            "kept_bytes": taken.kept_bytes,
            "announced": len(self.announced),
            "announced_bytes": taken.announced_bytes,
            "held_bytes": taken.held_bytes,
            "keys": taken.works,
            "keys_bytes": taken.size_bytes,
            "journal_keys": 0 if archive is None else archive.all.keys,
            "journal_bytes": 0 if archive is None else archive.all.disk_bytes,
            **self._size(),
            "worker_restarts": pool.restarts,
            "malformed": self.malformed,
            "fenced": workforce.fenced,
            "strays": workforce.strays,
            "differences": workforce.differences,
            "bad_statistics": workforce.history.bad_statistics,
            **self.resources.counts(),
            "bounds": self._bounds(),
            "waits": self.waits.to_record(),
            "runs": workforce.runs.to_record(),
            "model_calls": models.took(),
            "model_usage": models.usage(),
            "failures": dict(works.failures),
            "cache": plain(works.counters),
            "per_worker": workers,
            "deaths": [
                {
                    "worker": death.worker, "why": death.why, "lost": death.lost,
                    "age_s": round(self.clock.awake_s - death.at_s, 3),
                }
                for death in workforce.history.deaths
            ],
            **self._host_records(),
            "permits": self.dispatches.permits.records(),
            "resources_held": self.resources.records(self.clock.awake_s),
        }  # fmt: skip

    def _host_records(self) -> dict[str, Any]:
        """The records of present and past hosts."""
        if self.hosts is None:
            return {"hosts": [], "past_hosts": []}
        running = {worker: len(each.live) for worker, each in self.workforce.workers.items()}
        return self.hosts.records(running, self.hosts.now_s)

    def _size(self) -> dict[str, Any]:
        """The figures on the number of workers: longest wait, range, last change."""
        pool = self.pool
        fixed = pool.wanted - sum(len(part.open()) for part in pool.parts)
        return {
            "oldest_wait_s": round(self.oldest_wait_s(), 3),
            "workers_least": fixed + sum(part.bounds.least for part in pool.parts),
            "workers_most": fixed + sum(part.bounds.most for part in pool.parts),
            "resized": self.elastic.why,
        }

    def _bounds(self) -> dict[str, int]:
        """The bounds of numbers in the statistics, by their names."""
        limits, keys = self.limits, self.accounts.keys
        return {
            "sessions": limits.sessions,
            "waiting": limits.queue,
            "running": self.workforce.capacity * self.pool.wanted,
            "kept": limits.kept_outcomes,
            "kept_bytes": limits.kept_bytes,
            "announced_bytes": limits.announced_bytes,
            "held_bytes": limits.queue_bytes,
            "keys": keys.generations,
            "keys_bytes": keys.retained_bytes,
            "journal_keys": keys.journal_keys,
            "journal_bytes": keys.journal_bytes,
            "pending": self.workforce.capacity,
            "resources": limits.resources,
        }

    # -- what leaves ------------------------------------------------------------------

    def send(self, route: Route, message: messages.Message) -> None:
        """A message without a body goes to a client."""
        self.out.append(ToClient(route, message))

    def _tell_worker(self, worker: Worker, message: messages.Message) -> None:
        self.dispatches.tell(worker, message)

    def count_malformed(self, text: str) -> None:
        """A message that is ignored, and said in the log."""
        self.malformed += 1
        self.warn(text)

    def warn(self, text: str) -> None:
        """Log what a peer can cause, but no more than some lines a second; all of it is
        counted."""
        second = self.awake_s // 1.0
        if second != self._log_second:
            self._log_second, self._log_lines = second, 0
        self._log_lines += 1
        if self._log_lines <= self.limits.log_rate:
            self.report("warning", text)

    def report(self, level: str, text: str) -> None:
        """Log a line."""
        self.out.append(Report(level, text))


def _may_run(execution: Execution) -> bool:
    """Whether its code may still run, and its work wants its outcome."""
    work: Work | None = execution.work
    return work is not None and work.execution is execution and execution.size_bytes is None


_HANDLERS: dict[type, Callable[..., None]] = {
    messages.Hello: Router._hello,
    messages.Request: Router._request,
    messages.Finish: Router._finish,
    messages.Sync: Router._sync,
    messages.Cancel: Router._cancel,
    messages.Query: Router._query,
    messages.Goodbye: Router._goodbye,
}

_INPUTS: dict[type, Callable[..., None]] = {
    ClientMessage: Router._client_message,
    WorkerMessage: Router._worker_message,
    HeartbeatReceived: Router._heartbeat,
    Spawned: Router._spawned,
    Exited: Router._exited,
    Tick: Router._tick,
    PoolWaits: Router._pool_waits,
    PoolOpened: Router._pool_opened,
    CloseAsked: Router._close_asked,
    Flushed: Router._flushed,
    Resume: Router._resume,
    Saved: Router._saved,
    AtRest: Router._at_rest,
    Loaded: Router._loaded,
    Restored: Router._restored,
    StackTaken: Router._stack_taken,
    SaveFailed: Router._save_failed,
    PeerKnown: Router._peer_known,
    HostsBefore: Router._hosts_before,
    HostMessage: Router._host_message,
    HostsTick: Router._hosts_tick,
    HostsRecorded: Router._hosts_recorded,
    TurnOver: Router._turn_over,
    WorkerBack: Router._worker_back,
    HostsDead: Router._hosts_dead,
    HolderFound: Router._holder_found,
}
