"""Calls without keys: clients, a server and its workers, their judge, and configurations of them.

Theory of operation
-------------------
Clocks stand still: each is read as 0.  A core's timer fires when that is chosen, which makes
just that one due and ticks; every order of timers and messages is thereby possible, also those
that take a long silence.  After each input no timer is due (``calm``), so that the next to fire
is a choice again, and states do not differ by clock readings.

A worker's actor is the slot of a worker: there a process may live, which is spawned, killed
and reaped by notices.  A server that is killed leaves its busy workers behind; the next one
learns by notices, as by the lock of one machine, that they are dead, and starts none before.

What the judge must know beside asks and answers is told by events without a request, whose
value begins with the name of a method of :class:`Promises`.

The judge's memory is part of the state that is explored (two states with different pasts are
different states), so it remembers little, and forgets what cannot matter any more.
"""

from __future__ import annotations

import copy
import dataclasses
import heapq
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ...core import error_records, messages
from ...core.calls import Call, Stage
from ...core.client import ClientCore
from ...core.client_effects import Answer, Fail, ToServer
from ...core.client_inputs import (
    CallsCancelled,
    CallSubmitted,
    ClientClosed,
    ClientInput,
    ClientTick,
    Connected,
    Disconnected,
    OutcomeReceived,
    ServerMessage,
)
from ...core.errors import ErrorInfo
from ...core.limits import ANNOUNCE_BYTES, ClientLimits, ServerLimits, WireLimits
from ...core.lives import Phase
from ...core.ranges import Ranges
from ...core.router import Router
from ...core.router_effects import Kill, Lost, RouterEffect, Spawn, ToClient, ToWorker
from ...core.router_inputs import (
    ClientMessage,
    Exited,
    PoolOpened,
    Resume,
    RouterInput,
    Tick,
    WorkerMessage,
)
from ...core.terms import Status, Verdict
from ...core.worker import WorkerCore
from ...core.worker_effects import CancelRun, Exit, Run, ToRouter
from ...core.worker_inputs import BeatDue, EnvironmentReady, OutcomeMade, RouterMessage, WorkerInput
from ...retrylab import (
    Actor,
    Ask,
    Bag,
    Bounds,
    Choice,
    Event,
    Fault,
    Judge,
    Rule,
    System,
    Violation,
)
from ...retrylab.values import Forms, form
from ..simulation.bounds import audit, unfinished
from . import names
from .rules import FORMS
from .wire import Frames, Mail, WorkerMail, decoded, describe, frames_form

NOW_S = 0.0
LONG_AGO_S = -1e6
"""A moment that is longer ago than any timer waits."""
NOT_YET_S = 1.0
SERVER = "server"


def frames_of(frames: Iterable[Any]) -> Frames:
    """Frames as bytes."""
    return Frames(map(bytes, frames))


def header_of(frames: Frames) -> Any:
    """Header of a message, decoded; None if it has none."""
    return next(filter(None, map(decoded, frames)), None)


# -- clients -------------------------------------------------------------------------------------


class Client(Actor):
    """A process with callers, its core, and its connection to the server."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.ids: tuple[tuple[str, bytes, int], ...] = ()
        """Request, session and sequence of each call that was sent, as the judge knows it."""

    @property
    def index(self) -> int:
        """Number in its name."""
        return int(self.name[1:])

    def on_start(self) -> None:
        """A client that is not connected."""
        self.core = ClientCore(
            name=self.name, new_id=names.Nonces(self.index), now_s=NOW_S,
            limits=self.configuration.client_limits(), wire=WireLimits(),
        )  # fmt: skip
        self.calm()

    def calm(self) -> None:
        """Let no ping, flush, scan or limit be due."""
        core = self.core
        core.pings.at_s = core._scan_at_s = NOT_YET_S
        core._flush_at_s = None if core._flush_at_s is None else NOT_YET_S
        for call in core.calls.live.values():
            call.asked_s = NOW_S
            call.held_until_s = call.cancel_until_s = NOT_YET_S
        for session in core.sessions.lost:
            session.lost_s = NOW_S

    # -- inputs ---------------------------------------------------------------------

    def on_ask(self, request: str, what: Any) -> None:
        """Submit a call, whose body is the name of the request."""
        asked = self.configuration
        options = {"rerun": asked.consent, "limit_s": 60.0 if asked.limited else None}
        self.take(CallSubmitted(_number(request), request.encode(), NOW_S, **options))  # type: ignore[arg-type]  # two options of different types

    def on_message(self, sender: str, message: Mail) -> None:
        """A message of the server, unless it came for an earlier connection."""
        if self.core.link.connected and message.route == self.route():
            self.take(ServerMessage(message.frames, NOW_S))

    def on_cut(self, peer: str) -> None:
        """The connection is gone."""
        if self.core.link.connected:
            self.take(Disconnected(NOW_S, "connection lost"))

    def route(self) -> bytes:
        """Route of the present connection, as the server knows it."""
        return names.route(self.index, self.core.pings.connections)

    def choices(self) -> Iterator[Choice]:
        """Inputs of callers and timers."""
        core, sessions = self.core, self.core.sessions
        calls = core.calls.live
        if not core.link.connected:
            yield Choice("connect")
        if core._flush_at_s is not None and core.link.connected:
            yield Choice("flush")
        if core.calls.held or any(not session.calls for session in sessions.lost):
            yield Choice("scan")
        for number, call in calls.items():
            if call.stage is Stage.ANSWERED:
                yield Choice("take", (number,))
            if call.stage is Stage.EXPIRED:
                yield Choice("again", (number,), when="idle")
            if call.limit_s is not None and call.stage in (Stage.QUEUED, Stage.SENT):
                yield Choice("limit", (number,), bound="limits")
            yield Choice("cancel", (number,), bound="cancels")
        for session in sessions.lost:
            if session.calls:
                yield Choice("despair", (session.id,), bound="despairs")
        yield Choice("ping", when="idle")
        if core.link.connected:
            yield Choice("ping", bound="pings")
        if not core.closed:
            yield Choice("close", bound="closes")

    def on_choice(self, name: str, *args: Any) -> None:
        """Give the core the input that was chosen."""
        getattr(self, f"_{name}")(*args)

    def _connect(self) -> None:
        self.take(Connected(NOW_S))

    def _take(self, number: int) -> None:
        self.take(OutcomeReceived(number, NOW_S))
        self.did("", ("left", self._request(number)))

    def _cancel(self, number: int) -> None:
        self.did("", ("left", self._request(number)))
        self.take(CallsCancelled((number,), NOW_S))
        self.tell(self._request(number), ("left",))

    def _close(self) -> None:
        self.did("", ("excused", self.name))
        waiting = [*self.core.calls.live]
        self.take(ClientClosed(NOW_S))
        for number in waiting:
            self.tell(self._request(number), ("left",))

    def _ping(self) -> None:
        self.core.pings.at_s = NOW_S
        self.take(ClientTick(NOW_S))

    def _flush(self) -> None:
        self.core._flush_at_s = NOW_S
        self.take(ClientTick(NOW_S))

    def _scan(self) -> None:
        """Try again what was refused for now."""
        self.core._scan_at_s = NOW_S
        for call in self.core.calls.held.values():
            call.held_until_s = NOW_S
        self.take(ClientTick(NOW_S))

    def _limit(self, number: int) -> None:
        """The limit passes; and so does the moment in which it waits for the server's own word:
        what comes in it comes as well before the limit."""
        self.did("", ("excused", self._request(number)))
        self.core._scan_at_s = NOW_S
        self.core.calls.live[number].asked_s = LONG_AGO_S
        self.take(ClientTick(NOW_S))
        if number in self.core.calls.live:
            self._again(number)

    def _again(self, number: int) -> None:
        """It asks once more whether the call ever ran."""
        self.core._scan_at_s = NOW_S
        self.core.calls.live[number].held_until_s = NOW_S
        self.take(ClientTick(NOW_S))

    def _despair(self, lost: bytes) -> None:
        """It has waited long enough for a lost session."""
        self.core._scan_at_s = NOW_S
        for session in self.core.sessions.lost:
            if session.id == lost:
                session.lost_s = LONG_AGO_S
        self.take(ClientTick(NOW_S))

    # -- effects --------------------------------------------------------------------

    def take(self, given: ClientInput) -> None:
        """Give the core an input, and carry out what it wants."""
        effects = self.core.take(given)
        self.calm()
        self._say_ids()
        for effect in effects:
            match effect:
                case ToServer():
                    self.send(SERVER, Mail(self.route(), frames_of(effect.frames)))
                case Answer():
                    self._told(effect.call, _verdict(effect.status, effect.body), effect.body)
                case Fail():
                    request = self._request(effect.call)
                    self._told(effect.call, effect.info.verdict.name, None)
                    self.did("", ("left", request))

    def _told(self, number: int, what: str, body: Any) -> None:
        self.tell(self._request(number), (what, None if body is None else bytes(body)))

    def _request(self, number: int) -> str:
        return f"{self.name}#{number + 1}"

    def _say_ids(self) -> None:
        """Tell the judge which requests calls are now."""
        calls: Iterable[Call] = self.core.calls.live.values()
        now = tuple(
            (self._request(call.number), call.session.id, call.sequence)
            for call in calls if call.session
        )  # fmt: skip
        if now != self.ids:
            self.ids = now
            self.did("", ("ids", self.name, now))


def _number(request: str) -> int:
    return int(request.partition("#")[2]) - 1


def _verdict(status: Status, body: Any) -> str:
    if status is Status.RESULT:
        return "result"
    return error_records.decode(body).verdict.name


# -- the server ----------------------------------------------------------------------------------


class Server(Actor):
    """A router, of one life of the server."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    def on_start(self) -> None:
        """A router that starts workers once all before it are dead."""
        asked = self.configuration
        self.life: int = self.disk.get("life", -1) + 1
        self.disk["life"] = self.life
        self.new_id = names.ServerIds(self.life)
        self.router = Router(
            epoch=names.epoch(self.life), slots=asked.workers, now_s=NOW_S, new_id=self.new_id,
            limits=asked.server_limits(), wire=WireLimits(), journaled=False,
        )  # fmt: skip
        self.not_free = [f"w{slot}" for slot in range(asked.workers)] if self.life else []
        for slot in self.not_free:
            self.notify(slot, ("lock", self.life))
        if not self.life:
            self._open()
        self.calm()

    def calm(self) -> None:
        """Let no lease, suspicion, settling or start be due."""
        router = self.router
        for slot in router.pool.slots:
            if slot.start_at_s < math.inf:  # else it is never to start
                slot.start_at_s = NOT_YET_S
        for session in router.cache.sessions.values():
            session.heard_s = NOW_S
        for life in router.pool.lives.values():
            life.heard_s = life.left_s = NOW_S
        for worker in router.workforce.workers.values():
            for execution in worker.live.values():
                execution.stop_s = None if execution.stop_s is None else NOW_S

    # -- inputs ---------------------------------------------------------------------

    def on_message(self, sender: str, message: Mail | WorkerMail) -> None:
        """A message of a client or a worker."""
        header = header_of(message.frames)
        if isinstance(message, WorkerMail):
            self._of_worker(message, header)
            return
        sessions = [each.id for each in self.router.cache.sessions.values() if not each.ended]
        if getattr(header, "session", None) in sessions:
            self.did("", ("heard", *_finishes(header, self.configuration)))
        self.hear(message, header)

    def hear(self, mail: Mail, header: Any) -> list[Any]:
        """Give the router a message of a client.  The headers of what clients are told."""
        hello = isinstance(header, messages.Hello)
        self.new_id.session = names.session(self.life, header.nonce) if hello else None
        said = self.take(ClientMessage(mail.route, mail.frames, NOW_S))
        self.new_id.session = None  # the next id is another one's
        return said

    def _of_worker(self, mail: WorkerMail, header: Any) -> None:
        if isinstance(header, messages.WorkerOutcome) and mail.life == self.life:
            run = mail.life, mail.worker, header.number
            known = mail.worker in self.router.pool.lives  # else it was declared lost before
            if known and header.status == Status.RESULT:
                self.did("", ("reported", run, mail.frames[3]))
        self.take(WorkerMessage((mail.worker, *mail.frames), NOW_S), repairs=True)

    def on_notice(self, peer: str, what: Any) -> None:
        """A worker is dead: one of its own, or the last one of an earlier life."""
        match what:
            case ("free", life) if life == self.life and peer in self.not_free:
                self.not_free.remove(peer)
                if not self.not_free:
                    self._open()
            case ("exited", worker, life) if life == self.life:
                self.did("", ("reaped", life, worker))
                self.take(Exited(worker, NOW_S, "it ended"))

    def _open(self) -> None:
        dead = tuple(names.epoch(life) for life in range(self.life))
        self.take(PoolOpened(dead, NOW_S))

    def choices(self) -> Iterator[Choice]:
        """Timers, and somebody who sends another payload under a known id."""
        router, pool = self.router, self.router.pool
        sessions = router.cache.sessions
        for slot in pool.slots:
            waits = slot.life is None and slot.start_at_s < math.inf
            if waits and not (pool.stopping or router.starting):
                yield Choice("start", (b"w%d" % slot.index,))
        for life in pool.lives.values():
            if life.phase is Phase.REAPED:
                yield Choice("settle", (life.id,))
            if not life.leaving:
                yield Choice("silence", (life.id,), bound="kills")
                worker = router.workforce.workers.get(life.id)
                if worker is not None and worker.oldest_stop_s() is not None:
                    yield Choice("stop", (life.id,), bound="kills")
        if self.configuration.recycle is not None and self._ticks():
            yield Choice("tick")
        for session in sessions.values():
            if not session.ended:
                yield Choice("lease", (session.id,), bound="leases")
            for sequence in session.entries:
                yield Choice("forge", (session.id, sequence), bound="forgeries")
        for _, session_id, sequence in router.dispatcher.deadlines.heap:
            session = sessions.get(session_id)  # type: ignore[assignment]  # it may have ended
            entry = session and session.entries.get(sequence)
            if entry and entry.kept is None:
                yield Choice("deadline", (session_id, sequence), bound="limits")

    def _ticks(self) -> bool:
        """Whether anything comes of a tick."""
        router, new_id = copy.deepcopy((self.router, self.new_id))
        new_id.attach(router.pool)
        return bool(router.take(Tick(NOW_S))) or form(router, FORMS) != form(self.router, FORMS)

    def on_choice(self, name: str, *args: Any) -> None:
        """Let a timer be due."""
        getattr(self, f"_{name}")(*args)

    def _tick(self) -> None:
        self.take(Tick(NOW_S))

    def _start(self, slot: bytes) -> None:
        self.router.pool.slots[int(slot[1:])].start_at_s = NOW_S
        self._tick()

    def _settle(self, worker: bytes) -> None:
        """The last words of a dead worker were waited for long enough."""
        self.router.pool.lives[worker].left_s = LONG_AGO_S
        self._tick()

    def _silence(self, worker: bytes) -> None:
        self.router.pool.lives[worker].heard_s = LONG_AGO_S
        self._tick()

    def _stop(self, worker: bytes) -> None:
        """It has ignored a cancel for a long time."""
        for execution in self.router.workforce.workers[worker].live.values():
            if execution.stop_s is not None:
                execution.stop_s = LONG_AGO_S
        self._tick()

    def _lease(self, session: bytes) -> None:
        self.did("", ("excused", names.client_of(session)))
        self.router.cache.sessions[session].heard_s = LONG_AGO_S
        self.router.cache.sessions.move_to_end(session, last=False)
        self._tick()

    def _deadline(self, session: bytes, sequence: int) -> None:
        self.did("", ("out_of_time", session, sequence))
        self._pass(session, sequence)

    def _pass(self, session: bytes, sequence: int) -> None:
        """Let a deadline be due."""
        deadlines = self.router.dispatcher.deadlines
        deadlines.heap = [
            (LONG_AGO_S if each[1:] == (session, sequence) else each[0], *each[1:])
            for each in deadlines.heap
        ]
        heapq.heapify(deadlines.heap)
        self._tick()

    def _forge(self, session: bytes, sequence: int) -> None:
        digest = names.session(0, b"forged")
        request = messages.Request(session, sequence, digest, True, 3, None)
        route = names.route(names.owner(session), 0)
        said = self.take(ClientMessage(route, (messages.encode(request), b"forged"), NOW_S))
        if not any(isinstance(header, messages.Refused) for header in said):
            self.did("", ("broken", "G6", "another payload is taken for the first"))

    # -- effects --------------------------------------------------------------------

    def take(self, given: RouterInput, *, repairs: bool = False) -> list[Any]:
        """Give the router an input, and carry out what it wants.  The headers of what clients
        are told.  ``repairs``: whether a dispatch may be the repetition of a lost one."""
        router = self.router
        self.new_id.attach(router.pool)
        effects = router.take(given)
        while router.behind:
            effects += router.take(Resume(NOW_S))
        self.calm()
        said = []
        for effect in effects:
            match effect:
                case ToClient():
                    said.append(self._to_client(effect.route, frames_of(effect.frames)))
                case ToWorker():
                    self._to_worker(effect.worker, frames_of(effect.frames), repairs=repairs)
                case Spawn():
                    self._spawn(effect)
                case Kill():
                    self._kill(effect.worker)
                case Lost():
                    self._lost(effect.worker)
                case _:
                    self._more(effect)
        asked = self.configuration
        for wrong in audit(router, asked.workers * asked.capacity):
            self.did("", ("broken", "G8", wrong))
        return said

    def _spawn(self, effect: Spawn) -> None:
        to = _slot(effect.worker)
        self.notify(to, ("spawn", effect.worker, self.life, effect.incarnation))

    def _kill(self, worker: bytes) -> None:
        self.did("", ("ending", self.life, worker))
        self.notify(_slot(worker), ("kill", worker, self.life))

    def _lost(self, worker: bytes) -> None:
        self.did("", ("lost", self.life, worker))

    def _more(self, effect: RouterEffect) -> None:
        """Carry out another effect."""

    def _to_client(self, route: bytes, frames: Frames) -> Any:
        header = header_of(frames)
        match header:
            case messages.Outcome():
                self.did("", ("sent", header.session, header.sequence, frames))
            case messages.Cancelled(started=False):
                self.did("", ("never_started", header.session, header.sequence))
            case messages.Unknown(gone=True):
                self.did("", ("gone", header.session))
        if names.connection_of(route):  # else it is of somebody who is not here
            self.send(f"c{names.owner(route)}", Mail(route, frames))
        return header

    def _to_worker(self, worker: bytes, frames: Frames, *, repairs: bool) -> None:
        header = header_of(frames)
        match header:
            case messages.Dispatch():
                request = header.session, header.sequence
                self.did("", ("dispatched", self.life, worker, request, repairs))
            case messages.Retire():
                self.did("", ("ending", self.life, worker))
        self.send(_slot(worker), WorkerMail(worker, self.life, frames))

    def on_rest(self) -> None:
        """Say what a router at rest should not have."""
        for what in unfinished(self.router):
            self.has("", what)


def _slot(worker: bytes) -> str:
    return worker.decode().partition("-")[0]


def _finishes(message: Any, configuration: Configuration) -> tuple[str, bytes, tuple[int, ...]]:
    """Kind of a client's message, its session, and the requests that it finishes."""
    finished: Iterable[int] = ()
    match message:
        case messages.Finish():
            finished = Ranges.from_flat(message.finished)
        case messages.Cancel():
            finished = (message.sequence,)
        case messages.Sync():
            finished = Ranges.from_flat(message.pending).gaps(message.next)
        case messages.Goodbye():
            finished = range(configuration.requests * 4)
    return type(message).__name__, message.session, tuple(finished)


# -- workers -------------------------------------------------------------------------------------


class Running(NamedTuple):
    """Environment code that runs."""

    number: int
    body: bytes
    session: bytes
    cancelled: bool = False


@dataclasses.dataclass(slots=True)
class Process:
    """A worker's process, with the environment code that runs there."""

    life: int
    """Life of the server that started it."""
    id: bytes
    core: WorkerCore
    runs: tuple[Running, ...] = ()


class Worker(Actor):
    """A slot: the processes of workers that were started for it, of which one may still end
    when the next one starts."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.processes: dict[bytes, Process] = {}
        self.lock: int | None = None
        """The life of the server that waits until no process of an earlier one is there."""

    # -- processes --------------------------------------------------------------------

    def on_notice(self, peer: str, what: Any) -> None:
        """The server starts a process here, or kills it, or asks whether there is one."""
        match what:
            case ("spawn", worker, life, incarnation):
                self.did("", ("spawned", life, worker))
                self._take(self._made(worker, life, incarnation), self._ready())
            case ("kill", worker, life):
                self._die(worker, life)
            case ("lock", life):
                self.lock = life
                for process in [*self.processes.values()]:
                    if not process.runs:  # an idle worker dies with its server
                        self._die(process.id, process.life)
                self._unlock()

    def _made(self, worker: bytes, life: int, incarnation: bytes) -> Process:
        announce = self.configuration.announce
        core = WorkerCore(incarnation, header_bytes=1 << 20, announce_bytes=announce)
        process = self.processes[worker] = Process(life, worker, core)
        return process

    def _ready(self) -> EnvironmentReady:
        return EnvironmentReady(1, "explored", self.configuration.declared)

    def _die(self, worker: bytes, life: int) -> None:
        process = self.processes.get(worker)
        if process is None or process.life != life:
            return
        for run in process.runs:
            self.ended((life, worker, run.number))
        self.did("", ("died", life, worker))
        self.notify(SERVER, ("exited", worker, life))
        del self.processes[worker]
        self._unlock()

    def _unlock(self) -> None:
        if self.lock is not None and not self.processes:
            self.notify(SERVER, ("free", self.lock))
            self.lock = None

    # -- inputs -----------------------------------------------------------------------

    def on_message(self, sender: str, message: WorkerMail) -> None:
        """A message of the server to the process of this name."""
        process = self.processes.get(message.worker)
        if process is None:
            return
        self._take(process, RouterMessage(message.frames))
        self._heard(process, message.frames)

    def _heard(self, process: Process, frames: Frames) -> None:
        """Tell the judge what was stopped before it has begun."""
        header = header_of(frames)
        if isinstance(header, messages.Stop) and frames[0] == process.core.incarnation:
            numbers = [n for n in Ranges.from_flat(header.numbers) if n not in process.core.seen]
            self.did("", ("stopped", process.life, process.id, tuple(numbers)))

    def choices(self) -> Iterator[Choice]:
        """Ends of executions and of processes, and heartbeats."""
        for worker, process in self.processes.items():
            for run in process.runs:
                yield Choice("end", (worker, run.number, True), when="patient")
                if run.cancelled:
                    yield Choice("end", (worker, run.number, False))
            yield Choice("beat", (worker,), when="idle")
            yield Choice("beat", (worker,), bound="beats")
            if self.lock is not None:
                yield Choice("die", (worker,))
            else:
                yield Choice("crash", (worker,), bound="crashes")

    def on_choice(self, name: str, *args: Any) -> None:
        """Let it happen."""
        process = self.processes[args[0]]
        match name:
            case "end":
                self._end(process, *args[1:])
            case "beat":
                if not process.core.acknowledged:
                    self._take(process, self._ready())
                self._take(process, BeatDue({}))
            case _:
                self._die(process.id, process.life)

    def _end(self, process: Process, number: int, result: bool) -> None:
        """Environment code ends: with a result, or, if it was told to, without."""
        run = next(each for each in process.runs if each.number == number)
        process.runs = tuple(each for each in process.runs if each is not run)
        self.ended((process.life, process.id, number))
        payload = b"%b@e%d-%b-%d" % (run.body, process.life, process.id, number)
        status = Status.RESULT if result else Status.CANCELLED
        if not result:
            info = ErrorInfo("cancelled", Verdict.RAN_AND_FAILED, payload.decode())
            payload = error_records.encode(info)
        self._take(process, OutcomeMade(number, status, payload, None))

    # -- effects ----------------------------------------------------------------------

    def _take(self, process: Process, given: WorkerInput) -> None:
        for effect in process.core.take(given):
            match effect:
                case ToRouter():
                    frames = frames_of(effect.frames)
                    self.send(SERVER, WorkerMail(process.id, process.life, frames))
                case Run():
                    session, sequence = effect.request
                    self._begin(process, effect.number, (session, sequence), bytes(effect.body))
                case CancelRun():
                    process.runs = tuple(
                        run._replace(cancelled=run.cancelled or run.number == effect.number)
                        for run in process.runs
                    )
                    self._stopping(process, effect.number)
                case Exit():
                    self._exit(process)

    def _exit(self, process: Process) -> None:
        self._die(process.id, process.life)

    def _stopping(self, process: Process, number: int) -> None:
        """Environment code is told to stop."""

    def _begin(
        self, process: Process, number: int, request: tuple[bytes, int], body: bytes
    ) -> None:
        if len(process.runs) >= self.configuration.capacity:
            self.did("", ("broken", "G8", f"{process.id.decode()} runs more than it can take"))
        run = process.life, process.id, number
        self.did("", ("started", body.decode("ascii", "replace"), run, request))
        process.runs = (*process.runs, Running(number, body, request[0]))


# -- the judge -----------------------------------------------------------------------------------

RunId: TypeAlias = tuple[int, bytes, int]
"""An execution: life of its server, id of its worker, number of its dispatch."""

Request: TypeAlias = tuple[bytes, int]
"""Session and sequence."""

ProcessId: TypeAlias = tuple[int, bytes]
"""A worker: life of its server, and its id."""


class CallPast(NamedTuple):
    """The past of a call."""

    starts: int = 0
    last: RunId | None = None
    """Its last execution."""
    of: Request | None = None
    """The request under which that was started."""
    now: Request | None = None
    """The request that it is now, as its client has it."""
    told: str = ""
    """The verdict that its caller was told, or ``result``; ``over`` once it has left."""
    excused: bool = False
    """Whether its outcome may be lost: by a lease, a limit or its server's death."""
    delivered: bytes | None = None
    """The result that has arrived at its living server."""
    sent: tuple[Request, Frames] | None = None
    """The outcome that its server has sent, and of which request."""


class Promises(Judge):
    """What must hold of calls.  ``most``: executions that each call allows."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.calls: dict[str, CallPast] = {}
        """By the names of their requests, which are their bodies, too."""
        self.live: dict[RunId, tuple[str, bytes]] = {}
        """Call and session of each execution that lives."""
        self.alive: set[ProcessId] = set()
        self.ending: set[ProcessId] = set()
        """Workers that are to end, or have, and are not declared lost."""
        self.finished: set[Request] = set()
        """Requests that the living server was told are finished."""
        self.stopped: set[RunId] = set()
        """Dispatches that their worker was told to stop and has not begun."""
        self.left: tuple[str, ...] = ()
        """The contents that a router has at rest."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Violations that an event shows."""
        request = event.request
        found: Iterable[tuple[str, str]] = ()
        match event.kind:
            case "asked":
                self.calls[request] = CallPast()
            case "told":
                found = self._told(request, *event.what)
            case "has":
                self.left = (*self.left, event.what)
            case "ended":
                self.live.pop(event.what, None)
            case "died":
                self._server_died()
            case "did":
                name, *given = event.what
                found = getattr(self, f"_{name}")(*given) or ()
        for guarantee, text in found:
            yield event.breaks(guarantee, text)

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by what has not come to its end."""
        for request, call in self.calls.items():
            if not call.told:
                yield Violation("G9", at_s, f"{request} waits for ever", request)
        for request, _ in self.live.values():
            yield Violation("G7", at_s, f"{request} runs for ever", request)
        for what in self.left:
            yield Violation("G8", at_s, what)

    def _change(self, request: str, **to: Any) -> None:
        self.calls[request] = self.calls[request]._replace(**to)

    def _broken(self, guarantee: str, text: str) -> Iterator[tuple[str, str]]:
        yield guarantee, text

    # -- environment code, and workers -----------------------------------------------

    def _spawned(self, *process: Any) -> None:
        self.alive.add(process)

    def _died(self, *process: Any) -> None:
        """A process begins nothing any more."""
        self.alive.discard(process)
        self.stopped = {run for run in self.stopped if run[:2] != process}

    def _ending(self, *process: Any) -> None:
        self.ending.add(process)

    _reaped = _ending

    def _lost(self, life: int, worker: bytes) -> Iterator[tuple[str, str]]:
        """Executions of a worker are declared over."""
        self.ending.discard((life, worker))
        if (life, worker) in self.alive:
            yield "G1", f"{worker.decode()} is declared lost and lives"

    def _started(self, body: str, run: RunId, request: Request) -> Iterator[tuple[str, str]]:
        """Environment code begins."""
        call = self.calls.get(body)
        if call is None:
            yield "G6", f"{body} starts in the place of another request"
            return
        if body in [each for each, _ in self.live.values()]:
            yield "G1", f"{body} starts, and another execution of it lives"
        elif call.of == request and call.last is not None and call.last[:2] in self.alive:
            yield "G2", f"{body} starts again, and its worker had not died"
        if call.starts >= self.most:
            yield "G2", f"{body} starts for the {call.starts + 1}. time, {self.most} allowed"
        if int(request[0][1:2]) != run[0]:
            yield "G5", f"{body} starts on a worker of another epoch"
        if run in self.stopped:
            yield "G7", f"{body} starts though its worker was told not to"
        if call.told == Verdict.DID_NOT_RUN.name:
            yield "G9", f"{body} starts, and its caller was told that it did not run"
        self.stopped.discard(run)
        self.live[run] = body, request[0]
        self._change(body, starts=call.starts + 1, last=run, of=request)

    def _reported(self, run: RunId, payload: bytes) -> None:
        """The result of an execution has arrived at its own, living server."""
        for request, call in self.calls.items():
            if call.last == run and not (call.excused or call.told):
                self._change(request, delivered=payload)

    def _stopped(self, life: int, worker: bytes, numbers: tuple[int, ...]) -> None:
        """A worker was told to stop dispatches that it has not begun."""
        self.stopped |= {(life, worker, number) for number in numbers}

    # -- callers ---------------------------------------------------------------------

    def _told(
        self, request: str, what: str, body: bytes | None = None
    ) -> Iterator[tuple[str, str]]:
        """A caller is told an outcome, or the verdict of an error; or it has left."""
        if what == "left":
            return
        call = self.calls[request]
        if call.told:
            yield "G9", f"{request} was told twice: {call.told}, then {what}"
        if what == Verdict.DID_NOT_RUN.name and call.starts:
            yield "G9", f"{request} is told that it did not run, and it did"
        if what in (Verdict.RAN_AND_FAILED.name, "result") and not call.starts:
            yield "G9", f"{request} is told that it ran, and it did not"
        if what == "result" and body is not None:
            whose = body.partition(b"@")[0].decode("ascii", "replace")
            if whose != request:
                yield "G3", f"{request} was given a result of {whose}"
        if call.delivered is not None and call.delivered != body:
            yield "G4", f"{request} had its outcome and was told another thing"
        self._change(request, told=what, delivered=None)

    def _left(self, request: str) -> None:
        """Its caller has what it gets, or has left: little of what was still matters."""
        call = self.calls[request]
        told = call.told if call.told == Verdict.DID_NOT_RUN.name else "over"
        self.calls[request] = CallPast(call.starts, told=told, now=call.now)

    def _excused(self, whose: str) -> None:
        """A call, or all calls of a client, may lose their outcomes."""
        for request in self.calls:
            if whose in (request, request.partition("#")[0]):
                self._change(request, excused=True, delivered=None)

    def _out_of_time(self, *request: Any) -> None:
        for each in self._of(request):
            self._excused(each)

    def _ids(self, client: str, now: tuple[tuple[str, bytes, int], ...]) -> None:
        """Calls of a client are these requests now."""
        ids = {request: (session, sequence) for request, session, sequence in now}
        for request, call in self.calls.items():
            its = ids.get(request)
            if request.partition("#")[0] == client and its != call.now:
                self._change(request, now=its)

    def _of(self, request: Request) -> list[str]:
        """The call that is this request, if there is one."""
        return [each for each, call in self.calls.items() if call.now == request]

    # -- the server, and the wires -----------------------------------------------------

    def _server_died(self) -> None:
        """Forget all that a dead server knew and had sent."""
        self.calls = {
            request: call._replace(delivered=None, sent=None)
            for request, call in self.calls.items()
        }
        self.finished, self.stopped, self.ending = set(), set(), set()

    def _heard(
        self, kind: str, session: bytes, finished: tuple[int, ...]
    ) -> Iterator[tuple[str, str]]:
        """The server hears a client of a session that it knows: what finishes requests."""
        requests = [(session, number) for number in finished]
        self.finished.update(requests)
        for each in requests:
            for request in self._of(each):
                if kind == "Finish" and self.calls[request].told:
                    yield "G4", f"{request} is acknowledged, and its caller has nothing"

    def _sent(self, session: bytes, sequence: int, frames: Frames) -> Iterator[tuple[str, str]]:
        """The server sends an outcome."""
        for request in self._of((session, sequence)):
            sent = self.calls[request].sent
            if sent is None or sent[0] != (session, sequence):
                self._change(request, sent=((session, sequence), frames))
            elif frames_form(sent[1]) != frames_form(frames):  # but for texts for people
                yield "G3", f"{request}: two outcomes that differ"

    def _never_started(self, *request: Any) -> Iterator[tuple[str, str]]:
        """The server says that a cancelled request never started."""
        self.finished.add(request)
        if any(call.of == request for call in self.calls.values()):
            yield "G9", "a request is said not to have started, and it had"

    def _gone(self, session: bytes) -> Iterator[tuple[str, str]]:
        """The server says that nothing of a session runs."""
        for request, its in self.live.values():
            if its == session:
                yield "G1", f"{request} runs, and its session is said to be gone"

    def _dispatched(
        self, life: int, worker: bytes, request: Request, repairs: bool
    ) -> Iterator[tuple[str, str]]:
        """The server sends an execution to a worker."""
        if request in self.finished:
            yield "G7", f"request {request[1]} is dispatched after it was finished"
        if not repairs and (life, worker) in self.ending:
            yield "G2", f"an execution is spent on {worker.decode()}, which ends"


OF_PROMISES = {
    "most": Rule("the same in every state"),
    "calls": Rule("each for itself", lambda judge, calls: Bag(tuple(calls.items()))),
    "live": Rule("each for itself", lambda judge, live: Bag(tuple(live.items()))),
}

# -- configurations ------------------------------------------------------------------------------


class Described:
    """A mixin of dataclasses."""

    __slots__ = ()
    ALWAYS: ClassVar[tuple[str, ...]] = ()
    """The fields that are named even if they are as usual."""
    BOUNDED: ClassVar[tuple[str, ...]] = ()
    """The kinds of trouble that are counted, in the order in which a state counts them."""

    @property
    def bounds(self) -> dict[str, int]:
        """How often each kind of trouble may come."""
        return {name: getattr(self, name) for name in self.BOUNDED}

    def describe(self) -> str:
        """One line for people: what is not as usual."""
        parts = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # see above
            value = getattr(self, field.name)
            if field.name != "name" and (value != field.default or field.name in self.ALWAYS):
                parts.append(field.name if value is True else f"{field.name} {value}")
        return ", ".join(parts)

    def record(self) -> dict[str, int | bool | None]:
        """For programs: all its bounds."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # see above
        return {f.name: getattr(self, f.name) for f in fields if f.name != "name"}


CONFIGURATION_RULE = {"configuration": Rule("the same in every state")}
SYSTEM_FORMS: Forms = {
    **FORMS, Promises: OF_PROMISES, Client: CONFIGURATION_RULE, Worker: CONFIGURATION_RULE,
    Server: {**CONFIGURATION_RULE, "new_id": Rule("it draws ids by what is in the form")},
}  # fmt: skip

_FAULTS = {
    "losses": ("LOSE",), "strays": ("REORDER", "DUPLICATE"), "cuts": ("CUT",), "restarts": ("KILL",)
}  # fmt: skip
"""The kinds of fault that some bounds are of."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(Described):
    """A small system and its bounds.  What has no bound here is free: deliveries, ends
    of executions, reaping, replacing, reconnecting, taking outcomes, acknowledging."""

    ALWAYS: ClassVar = ("clients", "requests", "workers")
    BOUNDED: ClassVar = (
        "pings", "beats", "losses", "strays", "cuts", "crashes", "kills", "restarts",
        "cancels", "limits", "leases", "despairs", "closes", "forgeries",
    )  # fmt: skip

    name: str
    clients: int = 1
    requests: int = 1
    """Calls of each client, made in order at any time."""
    workers: int = 1
    capacity: int = 2
    """Executions at once on one worker."""
    consent: bool | None = False
    """The word of calls on a further execution; None: as the environment declares."""
    declared: bool = False
    """The environment's own word on it."""
    allowance: int = 3
    """Executions that a call allows, if a further one has consent."""
    limited: bool = False
    """Whether calls have a time limit."""
    window: int = 16
    """Unfinished requests of one session."""
    kept: int = 16
    """Outcomes kept for clients before dispatching pauses."""
    kept_bytes: int = 1 << 20
    """The same in bytes."""
    announce: int = ANNOUNCE_BYTES
    """The largest outcome that a worker sends without announcing it."""
    queue: int = 16
    """Requests waiting at the server before new ones are refused for now."""
    recycle: int | None = None
    """Executions after which a worker is replaced."""

    pings: int = 0
    """A client states what it holds, though nothing has gone wrong."""
    beats: int = 0
    """The same for a worker."""
    losses: int = 0
    """A message is lost, the connection stays."""
    strays: int = 0
    """A message, or a copy of it, is left behind and arrives at any time later: what no
    single connection does."""
    cuts: int = 0
    """A connection is cut and what is on its way is lost."""
    crashes: int = 0
    """A worker dies; what it had sent still arrives, or does not."""
    kills: int = 0
    """A worker is silent, or ignores a cancel, for so long that it is killed."""
    restarts: int = 0
    """The server is killed and replaced; busy workers of it live on for a while."""
    cancels: int = 0
    """A caller gives up."""
    limits: int = 0
    """A call's limit passes at the client, or its deadline at the server."""
    leases: int = 0
    """A client's lease ends: it was silent for long."""
    despairs: int = 0
    """A client has waited long enough for a lost session."""
    closes: int = 0
    """A client is closed."""
    forgeries: int = 0
    """Somebody sends another payload under the id of a request that the server knows."""

    @property
    def most(self) -> int:
        """Executions of one call that are allowed."""
        consent = self.declared if self.consent is None else self.consent
        return self.allowance if consent else 1

    def server_limits(self) -> ServerLimits:
        """The limits of its servers."""
        return ServerLimits(
            worker_capacity=self.capacity, window=self.window, kept_outcomes=self.kept,
            kept_bytes=self.kept_bytes, announce_bytes=self.announce,
            queue=self.queue, recycle_executions=self.recycle, session_share=1.0,
            spread_s=1e-300,
        )  # fmt: skip

    def client_limits(self) -> ClientLimits:
        """The limits of its clients."""
        return ClientLimits(max_executions=self.allowance)

    def system(self) -> System:
        """It as a system."""
        clients = [f"c{number}" for number in range(self.clients)]
        workers = [f"w{slot}" for slot in range(self.workers)]
        asks = [
            Ask(float(call), client, "run") for call in range(self.requests) for client in clients
        ]
        faults = {Fault[kind] for kind in Fault.__members__ if self.each.get(kind)}
        return System(
            actors={
                **dict.fromkeys(clients, partial(Client, self)), SERVER: partial(Server, self),
                **dict.fromkeys(workers, partial(Worker, self)),
            },
            asks=lambda random: asks, judges=[partial(Promises, self.most)], faults=faults,
            never_killed=[*clients, *workers], alike=[clients, workers], forms=SYSTEM_FORMS,
            describe=describe,
            bounds=Bounds(
                asks=len(asks), faults=sum(self.bounds.values()), each=self.each, settled=True,
                most_states=50_000_000,
            ),
        )  # fmt: skip

    @property
    def each(self) -> dict[str, int]:
        """Its bounds, as the search names them."""
        return {
            name: getattr(self, field)
            for field in self.BOUNDED for name in _FAULTS.get(field, (field,))
        }  # fmt: skip


TABLE: tuple[Configuration, ...] = (
    # A few hundred or thousand states each, around one kind of trouble.
    Configuration(name="lost", requests=2, losses=2),
    Configuration(name="cut", pings=1, cuts=1, strays=1),
    Configuration(name="beat", beats=1, cuts=1, cancels=1),
    Configuration(name="crash", workers=2, crashes=1),
    Configuration(name="rerun", crashes=2, consent=True, allowance=2),
    Configuration(name="kill", workers=2, kills=1, cancels=1),
    Configuration(name="limit", limited=True, limits=1, losses=1),
    Configuration(name="lease", leases=1, despairs=1, strays=1, consent=True),
    Configuration(name="restart", restarts=1, consent=True, allowance=2),
    Configuration(name="stray", strays=1, beats=1, cancels=1),
    Configuration(name="late", strays=1, limits=1, limited=True),
    Configuration(name="bound", requests=4, capacity=1, kept=1),
    Configuration(name="heavy", requests=4, capacity=1, kept_bytes=1),
    Configuration(
        name="announced", requests=2, kept_bytes=1, announce=1, losses=1,
        cancels=1, crashes=1,
    ),
    Configuration(name="full", requests=3, capacity=1, queue=1, window=2, cancels=1),
    Configuration(name="recycle", requests=2, recycle=1),
    Configuration(name="forged", requests=2, capacity=1, forgeries=1),
    Configuration(name="twins", clients=2, workers=2, capacity=1, cuts=1),
    Configuration(name="allowed", crashes=2, leases=1, consent=True),
    Configuration(name="ghost", strays=1, restarts=1),
    # A bit of everything.
    Configuration(name="small", cuts=1, cancels=1, crashes=1),
    # Two of each.
    Configuration(
        name="pair", requests=2, workers=2, capacity=1, losses=1, crashes=1, cancels=1,
        consent=True, allowance=2,
    ),
    Configuration(
        name="couple", clients=2, workers=2, capacity=1, cuts=1, crashes=1, cancels=1
    ),
    # A bit of everything, much of it.
    Configuration(
        name="ci", losses=1, cuts=1, cancels=1, crashes=1, restarts=1, consent=True, allowance=2
    ),
    Configuration(
        name="nightly", requests=2, losses=1, cuts=1, crashes=1, restarts=1, consent=True,
        allowance=2,
    ),
)  # fmt: skip
"""All configurations without keys, the small ones first."""
