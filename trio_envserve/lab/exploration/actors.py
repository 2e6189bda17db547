"""The shipped cores as actors of a search of every order: clients, a server, its workers.

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
value begins with the name of a method of :class:`.judge.Promises`.
"""

from __future__ import annotations

import copy
import dataclasses
import heapq
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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
from ...core.limits import WireLimits
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
from ...retrylab import Actor, Choice
from ...retrylab.values import form
from ..simulation.bounds import audit, unfinished
from . import names
from .rules import FORMS
from .wire import Frames, Mail, WorkerMail, decoded

if TYPE_CHECKING:
    from .configurations import Configuration

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


# -- clients ---------------------------------------------------------------------------------


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


# -- the server --------------------------------------------------------------------------------


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

    def hear(self, mail: Mail, header: Any) -> None:
        """Give the router a message of a client."""
        hello = isinstance(header, messages.Hello)
        self.new_id.session = names.session(self.life, header.nonce) if hello else None
        self.take(ClientMessage(mail.route, mail.frames, NOW_S))
        self.new_id.session = None  # the next id is another one's

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
                    to = _slot(effect.worker)
                    self.notify(to, ("spawn", effect.worker, self.life, effect.incarnation))
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


# -- workers ----------------------------------------------------------------------------------


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
