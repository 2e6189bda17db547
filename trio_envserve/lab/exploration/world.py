"""The actors of all explored systems: callers and clients, a server, its workers, and machines.

Theory of operation
-------------------
All of them are the cores that ship, joined as the shells join them; which there are, and what may
happen, a configuration says (:mod:`.configurations`).

*Clocks* stand still: each is read as 0.  A core's timer fires when that is chosen, which makes
just that one due and ticks; every order of timers and messages is thereby possible, also those
that take a long silence.  After each input no timer is due (``calm``), so that the next to fire
is a choice again, and states do not differ by clock readings.

*Workers.*  A worker's actor is the slot of a worker: there a process may live, which is spawned,
killed and reaped by notices.  A server that is killed leaves its busy workers behind; the next one
learns by notices, as by the lock of one machine, that they are dead, and starts none before.

*Keys.*  With a key nothing is on its way (:attr:`.Bounds.instant`): what is said is dealt with at
once, and that something comes late is that it is said late.  A client is connected whenever it can
be, and says at once what it has finished.  So there are few states.

*The disk.*  All that a step has written to the journal is a group: groups become safe one by one,
or all at once, at any time.  The server may fall at any time: then any number of the groups that
were not safe, from the first on, are there nevertheless, and the next server is given what is.
Its sessions are new, the worker is dead, and the clients come back.

*Hosts.*  A caller is played by the server there: its one request has consent to be run again, and
is asked again once the epoch that it was asked in is proven dead.  Leases are about time: it
passes by ticks, which are few, and each clock is as slow or as fast as the terms allow.  Within
a tick everything may come in any order.  A guard whose time has come kills at any moment before
the terms say that it has.  With these terms a host fences after two ticks, its guard may need one
more, and the router waits for three: a margin that is shorter by anything is seen.  A guard is a
process between host and workers: what it is told waits while it is stopped, its timer is the
kernel's, and its death is that of all workers.  A machine that sleeps hears nothing, and no timer
of it fires; when it wakes, timers come first.  What has come for it meanwhile it hears then.  A
start, a hello and an end of a worker are messages of their own, so there are many more states than
leases alone would have: hence one host where one is enough.  What is on its way to a router that
has been killed may arrive at the next one; the connections of hosts are lost then.

What judges must know beside asks and answers is told by events without a request, whose value
begins with a name.
"""

from __future__ import annotations

import copy
import dataclasses
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ...core import error_records, host_messages, messages
from ...core.client import (
    Answer,
    CallKey,
    CallsCancelled,
    CallSubmitted,
    ClientClosed,
    ClientCore,
    ClientInput,
    ClientTick,
    Connected,
    Disconnected,
    Fail,
    OutcomeReceived,
    ServerMessage,
    Stage,
    Terms,
    ToServer,
)
from ...core.closing import ClosingStage
from ...core.errors import ErrorInfo
from ...core.host import (
    FromHost,
    Host,
    NewGuard,
    SetDeadline,
    TellWorker,
)
from ...core.host_link import ItemKind
from ...core.journal import Closed, Commanded, OfResource, Opened, Record
from ...core.key_records import KeyAct, KeyName, Tag, input_digest
from ...core.lease import NO_LEASE_S, EpochWait, LeaseTerms
from ...core.limits import PROTOCOL_VERSION, ServerLimits, WireLimits
from ...core.pool import Phase
from ...core.ranges import Ranges
from ...core.router import Router
from ...core.router_effects import (
    Kill,
    Lost,
    RecordHosts,
    RouterEffect,
    Save,
    Spawn,
    ToClient,
    ToHost,
    ToWorker,
)
from ...core.router_inputs import (
    ClientMessage,
    CloseAsked,
    Exited,
    HostMessage,
    HostsBefore,
    HostsDead,
    HostsRecorded,
    HostsTick,
    OfHost,
    PoolOpened,
    Restored,
    Resume,
    RouterInput,
    Saved,
    Tick,
    TurnOver,
    WorkerBack,
    WorkerMessage,
)
from ...core.terms import Incarnation, Status, Verdict
from ...core.worker import (
    BeatDue,
    BeginRun,
    CancelRun,
    EnvironmentReady,
    Exit,
    OutcomeMade,
    RouterMessage,
    ToRouter,
    WorkerCore,
    WorkerInput,
)
from ...core.workforce import DIFFERS
from ...retrylab import (
    Actor,
    Choice,
)
from ...retrylab.values import form
from ..parts import GuardTimer, JournalDisk, wanted
from ..simulation.bounds import audit, unfinished
from ..simulation.coverage import Pair, counted_pairs
from . import names
from .configurations import Configuration
from .rules import FORMS
from .wire import Frames, Mail, WorkerMail, decoded, describe

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


NAMESPACE, KEY = b"a", b"k"
INPUT, OTHER = b"x", b"y"
"""The input that is asked under the key, and another one."""
MOST_BYTES = 1 << 20

PAIRS: Counter[Pair] = Counter()
"""How often each input came to a work in each state, in all searches of this
process since it was cleared; no part of any state."""


def compacted(records: Iterable[Record]) -> list[Record]:
    """Records without generations that are closed, but for the number of the last."""
    records = [*records]
    closed = {each.number for each in records if isinstance(each, Closed)}
    last = max((each.number for each in records if isinstance(each, Opened)), default=-1)
    return [
        each for each in records
        if isinstance(each, Commanded | OfResource) or each.number not in closed
        or (each.number == last and isinstance(each, (Opened, Closed)))
    ]  # fmt: skip


TICK_S = 5.0
GUARD_S = TICK_S
"""A guard is at most so late, in seconds."""
DRIFT = 0.5
"""So much that the lengths of time in which it matters are few ticks."""
SLOW, FAST = 1 - DRIFT, 1 + DRIFT
CLOCKS = (
    (SLOW, SLOW, FAST), (FAST, FAST, SLOW), (SLOW, FAST, FAST), (SLOW, SLOW, SLOW),
    (FAST, FAST, FAST), (FAST, SLOW, FAST), (SLOW, FAST, SLOW), (FAST, SLOW, SLOW),
)  # fmt: skip
"""Rates of the clocks: of both machines, and of the router."""
HOSTS = ("h0", "h1")
TIME = "time"
ROUNDS = 40
"""Rounds on the way to rest: in each all hosts have a turn."""
ROUNDS_OF_A_TICK = 4
"""The last of so many rounds is a tick."""
REQUEST = "c0#1"
"""The one request on hosts."""
BODY = REQUEST.encode()
HEADER_BYTES = 1 << 20


class HostMail(NamedTuple):
    """Message between a host and its router."""

    route: bytes
    """Route of the connection that it was sent over."""
    frames: Frames


def told(mail: Any) -> str:
    """Message as text, for people."""
    if not isinstance(mail, HostMail):
        return describe(mail)
    message, rest = host_messages.decode([*mail.frames], most_bytes=HEADER_BYTES)
    name = type(message).__name__.removeprefix("Host")
    if isinstance(message, host_messages.Items):
        said = []
        for what, worker, count in zip(message.what, message.workers, message.frames, strict=True):
            header, rest = header_of(frames_of(rest[:count])), rest[count:]
            inner = f" {type(header).__name__}" if header is not None else ""
            said.append(f"{ItemKind(what).name} {worker.decode()}{inner}")
        return f"{name} {message.first}({', '.join(said)})"
    shown = {
        field: value for field, value in zip(message._fields, message, strict=True)
        if field in ("hello", "beat", "answered", "code", "sent", "have") or
        (field in ("ended", "continues") and value)
    }  # fmt: skip
    return f"{name}({', '.join(f'{field}={value}' for field, value in shown.items())})"


class ExploredPart(Actor):
    """A part of the system, which tells the judge of calls what it does."""

    configuration: Any

    def say(self, *what: Any) -> None:
        """Tell the judge of calls."""
        if not self.configuration.instant:
            self.did("", what)


# -- clients -------------------------------------------------------------------------------------


class ExploredClient(ExploredPart):
    """A process with callers, its core, and its connection to the server."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        # Of a client that calls for a key.
        self.count = 0
        """Number of its calls so far."""
        self.asked = 0
        """Number of those that ask with the input and were not lost with their process."""
        self.commands: tuple[tuple[int, Tag], ...] = ()
        """The acts and ids of commands that were used."""
        self.left: tuple[bytes, ...] = ()
        """Sessions of processes that died, whose leases have not ended."""

    @property
    def index(self) -> int:
        """Number in its name."""
        return int(self.name[1:])

    def on_start(self) -> None:
        """Its first process begins."""
        self._begin(names.Ids(names.nonce, self.index), 0)

    def _begin(self, nonces: Callable[[], bytes], connections: int) -> None:
        """A process, which is not connected; one that calls for a key connects at once."""
        self.core = ClientCore(
            name=self.name, new_id=nonces, now_s=NOW_S, caller=names.caller(self.index),
            limits=self.configuration.client_limits(), wire=WireLimits(),
        )  # fmt: skip
        self.core.pings.connections = connections
        self.calm()
        if self.configuration.instant:
            self._connect()

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
        terms = Terms(asked.consent, limit_s=60.0 if asked.limited else None)
        self.take(CallSubmitted(_number(request), request.encode(), NOW_S, terms))

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
        if self.configuration.key:
            yield from self._of_key()

    def _of_key(self) -> Iterator[Choice]:
        """Calls for the key, and what may become of their sessions.  One client cancels and
        forgets by key, with an id or naming any generation, and does nothing else."""
        if self.index == self.configuration.clients:
            for act in (KeyAct.CANCEL, KeyAct.FORGET):
                for tag in (b"t%d" % len(self.commands), *range(2)):
                    yield Choice("command", (int(act), tag), bound="commands")
            for command in self.commands:
                yield Choice("copy", command, bound="copies")
            return
        if self.asked < self.configuration.requests:
            yield Choice("ask", (INPUT,))
        yield Choice("ask", (OTHER,), bound="others")
        yield Choice("attach", bound="attaches")
        for number, call in self.core.calls.live.items():
            if call.stage is Stage.SENT:
                yield Choice("repeat", (number,), bound="repeats")
        for session in self.left:
            yield Choice("lease", (session,))
        if self.core.sessions.current is not None:
            yield Choice("lease", (self.core.sessions.current.id,), bound="leases")
        yield Choice("gone", bound="deaths")

    def on_choice(self, name: str, *args: Any) -> None:
        """Give the core the input that was chosen."""
        getattr(self, f"_{name}")(*args)

    def _connect(self) -> None:
        self.take(Connected(NOW_S))

    def _take(self, number: int) -> None:
        self.take(OutcomeReceived(number, NOW_S))
        self.say("left", self._request(number))

    def _cancel(self, number: int) -> None:
        self.say("left", self._request(number))
        self.take(CallsCancelled((number,), NOW_S))
        self._told(number, "left")

    def _close(self) -> None:
        waiting = [*self.core.calls.live]
        self.take(ClientClosed(NOW_S))
        for number in waiting:
            self._told(number, "left")
        if self.configuration.instant:
            self._gone()

    def _ping(self) -> None:
        self.core.pings.at_s = NOW_S
        self.take(ClientTick(NOW_S))

    def _flush(self) -> None:
        self.core._flush_at_s = NOW_S
        self.take(ClientTick(NOW_S))

    def _scan(self) -> None:
        """Try again what was refused for now."""
        self.core._scan_at_s = NOW_S
        for number in self.core.calls.held:
            self.core.calls.live[number].held_until_s = NOW_S
        self.take(ClientTick(NOW_S))

    def _limit(self, number: int) -> None:
        """The limit passes; and so does the moment in which it waits for the server's own word:
        what comes in it comes as well before the limit."""
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

    # -- calls for a key, and their sessions ------------------------------------------

    def _ask(self, body: bytes) -> None:
        self.asked += body == INPUT
        self._call(KeyAct.ASK, body)

    def _attach(self) -> None:
        self._call(KeyAct.ATTACH)

    def _command(self, act: int, tag: Tag) -> None:
        if isinstance(tag, bytes):
            self.commands = (*self.commands, (act, tag))
        self._copy(act, tag)

    def _copy(self, act: int, tag: Tag) -> None:
        self._call(KeyAct(act), tag=tag)

    def _call(self, act: KeyAct, body: bytes = b"", tag: Tag = None) -> None:
        asked, number = self.configuration, self.count
        key = CallKey(act, KeyName(NAMESPACE, KEY), input_digest(body, asked.consent), tag)
        limit_s = 60.0 if asked.limited and act is KeyAct.ASK else None
        self.count += 1
        terms = Terms(asked.consent, limit_s=limit_s, key=key)
        self.take(CallSubmitted(number, body, NOW_S, terms))

    def _repeat(self, number: int) -> None:
        """A transmission comes again."""
        call = self.core.calls.live[number]
        assert call.request is not None
        self._send(ToServer(call.request, call.body))

    def _lease(self, session: bytes) -> None:
        """A lease ends: of the session in use, of which it hears with its next ping, or of one
        that was left."""
        self.notify(SERVER, ("lease", session))
        if session in self.left:
            self.left = tuple(each for each in self.left if each != session)
        else:
            self._ping()

    def _gone(self) -> None:
        """Its process ends, and its session stays until the lease ends; another one begins."""
        core = self.core
        if core.sessions.current is not None and not core.closed:
            self.left = (*self.left, core.sessions.current.id)
            self.asked -= sum(call.body == INPUT for call in core.calls.live.values())
        self._begin(core.pings._new_id, core.pings.connections)

    def on_notice(self, peer: str, what: Any) -> None:
        """The server has fallen, and another one is there."""
        self.left = ()
        self.on_cut(peer)

    # -- effects --------------------------------------------------------------------

    def take(self, given: ClientInput) -> None:
        """Give the core an input, and carry out what it wants."""
        effects = self.core.take(given)
        self.calm()
        for effect in effects:
            match effect:
                case ToServer():
                    self._send(effect)
                case Answer():
                    self._told(effect.call, _verdict(effect.status, effect.body), effect.body)
                case Fail():
                    request = self._request(effect.call)
                    self._told(effect.call, effect.info.verdict.name)
                    self.say("left", request)
        if self.configuration.instant:
            self._at_once()

    def _at_once(self) -> None:
        """Who has sent a command is done with its answer, the server is told who is done, and a
        lost session in which nobody waits is forgotten."""
        core = self.core
        for number, call in [*core.calls.live.items()]:
            if call.stage is Stage.ANSWERED and not call.waits_for_key:
                self._take(number)
        if core._flush_at_s and core.link.connected:
            self._flush()
        if any(not session.calls for session in core.sessions.lost):
            self._scan()

    def _send(self, effect: ToServer) -> None:
        if isinstance(effect.message, messages.Finish):
            self._acknowledge(effect.message)
        self.send(SERVER, Mail(self.route(), frames_of(effect.frames)))

    def _acknowledge(self, message: messages.Finish) -> None:
        """What it says to have received, its callers have."""
        finished = Ranges.from_flat(message.finished)
        for call in self.core.calls.live.values():
            its = call.session is not None and call.session.id == message.session
            if its and call.sequence in finished and call.stage is Stage.ANSWERED:
                text = f"{self._request(call.number)} is acknowledged, and its caller has nothing"
                self.did("", ("broken", "G4", text))

    def _told(self, number: int, what: str, *body: Any) -> None:
        if not self.configuration.instant:  # else nobody judges what callers are told
            self.tell(self._request(number), (what, *map(bytes, body)))

    def _request(self, number: int) -> str:
        return f"{self.name}#{number + 1}"


def _number(request: str) -> int:
    return int(request.partition("#")[2]) - 1


def _verdict(status: Status, body: Any) -> str:
    if status is Status.RESULT:
        return "result"
    return error_records.decode(body).verdict.name


# -- the server ----------------------------------------------------------------------------------


class ExploredServer(ExploredPart):
    """A router, of one life of the server after the other, with its workers and its journal."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.life = -1
        self.not_free: list[str] = []
        """Slots in which processes of earlier lives may be, which this one waits for."""
        self.journal = JournalDisk()
        """A fall of the server may lose groups that are not safe, from any of them on."""
        self.group: tuple[Record, ...] = ()
        """The records that this step has written so far."""

    def on_start(self) -> None:
        """A router that starts workers once all before it are dead."""
        self.life = self.disk.get("life", -1)
        self._make()
        self.disk["life"] = self.life
        if self.life:
            self.not_free = [f"w{slot}" for slot in range(self.configuration.slots)]
            for slot in self.not_free:
                self.notify(slot, ("lock", self.life))
        else:
            self._open()
        self.calm()
        if self.configuration.instant:
            self._start(b"w0")

    def _make(self) -> None:
        """The next router, which has not begun."""
        asked = self.configuration
        self.life += 1
        self.new_id = names.ServerIds(self.life)
        self.router = Router(
            epoch=names.epoch(self.life), slots=asked.slots, now_s=NOW_S, new_id=self.new_id,
            limits=asked.server_limits(), wire=WireLimits(), heartbeats=asked.slots > 0,
            journaled=asked.journal, lease=self._terms(),
        )  # fmt: skip

    def _terms(self) -> LeaseTerms | None:
        """The lease of hosts; None if none can join."""
        return None

    def calm(self) -> None:
        """Let no lease, suspicion, settling or start be due, and nothing of keys."""
        router = self.router
        for slot in router.pool.slots:
            if slot.start_at_s < math.inf:  # else it is never to start
                slot.start_at_s = NOT_YET_S
        for session in router.sessions.known.values():
            session.seen_at = NOW_S
        for life in router.pool.lives.values():
            life.seen_at = life.left_s = NOW_S
        for worker in router.workforce.workers.values():
            for execution in worker.live.values():
                execution.stop_s = None if execution.stop_s is None else NOW_S
        for generation in router.works.generations.values():
            generation.since_s = NOW_S

    # -- inputs ---------------------------------------------------------------------

    def on_message(self, sender: str, message: Mail) -> None:
        """A message of a client."""
        self.hear(message, header_of(message.frames))

    def hear(self, mail: Mail, header: Any) -> list[Any]:
        """Give the router a message of a client.  The headers of what clients are told."""
        hello = isinstance(header, messages.Hello)
        self.new_id.session = names.session(self.life, header.nonce) if hello else None
        said = self.take(ClientMessage(mail.route, mail.frames, NOW_S))
        self.new_id.session = None  # the next id is another one's
        return said

    def on_notice(self, peer: str, what: Any) -> None:
        """A message of a worker; one is dead: one of its own, or the last one of an earlier life; a
        lease ends."""
        match what:
            case WorkerMail(worker, _, frames):
                self.take(WorkerMessage((worker, *frames), NOW_S))
            case ("free", life) if life == self.life and peer in self.not_free:
                self.not_free.remove(peer)
                if not self.not_free:
                    self._open()
            case ("exited", worker, life) if life == self.life:
                self.take(Exited(worker, NOW_S, "it ended"))
            case ("lease", session):
                self._end_lease(session)

    def _open(self) -> None:
        dead = tuple(names.epoch(life) for life in range(self.life))
        self.take(PoolOpened(dead, NOW_S))

    def choices(self) -> Iterator[Choice]:
        """Timers, the journal, and what somebody may do to the server."""
        yield from self._of_workers()
        yield from self._of_requests()
        works = self.router.works
        if works.orphans or works.retained:
            yield Choice("unwanted")
        if works.commands:
            yield Choice("expire")
        if self.life and self.router.starting and not self.not_free:
            yield Choice("open")
        written = len(self.journal.written)
        for groups in sorted({1, written} if written else ()):
            yield Choice("sync", (groups,))
        for kept in range(written + 1):
            yield Choice("fall", (kept,), bound="falls")
        for stage in ("DRAINING", "CANCELLING"):
            yield Choice("close", (stage,), bound="closings")

    def _of_workers(self) -> Iterator[Choice]:
        router, pool = self.router, self.router.pool
        for slot in pool.slots:
            waits = slot.life is None and slot.start_at_s < math.inf
            alone = self.configuration.instant and pool.lives  # one worker at a time
            if waits and not (pool.stopping or router.starting or alone):
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

    def _of_requests(self) -> Iterator[Choice]:
        sessions = self.router.sessions.known
        for session in sessions.values() if not self.configuration.instant else ():
            if not session.ended:
                yield Choice("lease", (session.id,), bound="leases")
            for sequence in session.tickets:
                yield Choice("forge", (session.id, sequence), bound="forgeries")
        for _, id, sequence in self.router._deadlines:
            ticket = self.router._ticket(id, sequence)
            if ticket is not None and ticket.kept is None:
                yield Choice("deadline", (id, sequence), bound="limits")

    def _ticks(self) -> bool:
        """Whether anything comes of a tick."""
        router, new_id = copy.deepcopy((self.router, self.new_id))
        new_id.attach(router.pool)
        return bool(router.take(Tick(NOW_S))) or form(router, FORMS) != form(self.router, FORMS)

    def on_choice(self, name: str, *args: Any) -> None:
        """Let it happen."""
        getattr(self, f"_{name}")(*args)

    def _tick(self, *time: Any) -> None:
        """``time``: what it ends, for the model of the router."""
        self.take(Tick(NOW_S), time=time)

    def _start(self, slot: bytes) -> None:
        self.router.pool.slots[int(slot[1:])].start_at_s = NOW_S
        self._tick()

    def _settle(self, worker: bytes) -> None:
        """The last words of a dead worker were waited for long enough."""
        self.router.pool.lives[worker].left_s = LONG_AGO_S
        self._tick()

    def _silence(self, worker: bytes) -> None:
        self.router.pool.lives[worker].seen_at = LONG_AGO_S
        self._tick()

    def _stop(self, worker: bytes) -> None:
        """It has ignored a cancel for a long time."""
        for execution in self.router.workforce.workers[worker].live.values():
            if execution.stop_s is not None:
                execution.stop_s = LONG_AGO_S
        self._tick()

    def _lease(self, session: bytes) -> None:
        self._end_lease(session)

    def _end_lease(self, session: bytes) -> None:
        sessions = self.router.sessions.known
        if session in sessions:
            sessions[session].seen_at = LONG_AGO_S
            sessions.move_to_end(session, last=False)
        self._tick("lapse", session)

    def _deadline(self, session: bytes, sequence: int) -> None:
        """Let a deadline be due."""
        self.router._deadlines = [
            (LONG_AGO_S if each[1:] == (session, sequence) else each[0], *each[1:])
            for each in self.router._deadlines
        ]
        heapq.heapify(self.router._deadlines)
        self._tick("late", session, sequence)

    def _forge(self, session: bytes, sequence: int) -> None:
        digest = names.session(0, b"forged")
        request = messages.Request(session, sequence, digest, True, 3, None)
        route = names.route(names.owner(session), 0)
        said = self.take(ClientMessage(route, (messages.encode(request), b"forged"), NOW_S))
        if not any(isinstance(header, messages.Refused) for header in said):
            self.did("", ("broken", "G6", "another payload is taken for the first"))

    def _unwanted(self) -> None:
        """Nobody has waited for so long that the deadline for orphans, or the retention, ends."""
        works = self.router.works
        for generation in (*works.orphans.values(), *works.retained.values()):
            generation.since_s = LONG_AGO_S
        self._tick("unwanted")

    def _expire(self) -> None:
        """The oldest command need not be known any more."""
        said = self.router.works.commands
        command, (answer, _) = next(iter(said.items()))
        said[command] = answer, LONG_AGO_S
        self._tick("expire")

    def _close(self, stage: str) -> None:
        self.take(CloseAsked(NOW_S, ClosingStage[stage]))

    def _sync(self, groups: int) -> None:
        count = len(self.journal.sync(groups))
        self.journal.records = compacted(self.journal.records)
        if self.configuration.instant:
            self.did("", ("synced", count))
        self.take(Saved(self.router.journal.safe + count, NOW_S))

    def _fall(self, kept: int) -> None:
        self.journal.fall(kept)
        self.journal.records = compacted(self.journal.records)
        self.did("", ("fell", *self.journal.records))
        self._make()
        count = self.configuration.clients + (self.configuration.commands > 0)
        for name in ("w0", *map(names.client_name, range(count))):
            self.notify(name, ("fell", self.life))
        self._restore()

    def _restore(self) -> None:
        self.take(Restored(self.journal.records, NOW_S))

    # -- effects --------------------------------------------------------------------

    def take(self, given: RouterInput, *, time: Sequence[Any] = ()) -> list[Any]:
        """Give the router an input, and carry out what it wants.  The headers of what clients
        are told.  ``time``: what ends because it passes."""
        router = self.router
        self.new_id.attach(router.pool)
        with counted_pairs(router.works, PAIRS):
            effects = router.take(given)
            while router.behind:
                effects += router.take(Resume(NOW_S))
        self.calm()
        if not self.configuration.hosts:
            passed = [("time", SERVER, *time)] if time else []
            self.did("", ("turn", *passed, *filter(None, map(_seen, (given, *effects)))))
        said = []
        for effect in effects:
            match effect:
                case ToClient():
                    said.append(self._to_client(effect.route, frames_of(effect.frames)))
                case ToWorker():
                    self._to_worker(effect.worker, frames_of(effect.frames))
                case Spawn():
                    self._spawn(effect)
                case Kill(worker, why):
                    if why.startswith(DIFFERS):
                        self.did("", ("broken", "G1", f"{worker.decode()} is killed: {why}"))
                    self._kill(worker)
                case Lost():
                    self._lost(effect.worker)
                case Save():
                    self._save(effect)
                case ToHost():
                    self._to_host(effect)
                case RecordHosts():
                    self._record(effect)
        asked = self.configuration
        for wrong in audit(router, asked.workers * asked.capacity):
            self.did("", ("broken", "G8", wrong))
        return said

    def _spawn(self, effect: Spawn) -> None:
        self.notify(_slot(effect.worker), ("spawn", effect.worker, effect.incarnation))

    def _kill(self, worker: bytes) -> None:
        self.notify(_slot(worker), ("kill", worker, self.life))

    def _lost(self, worker: bytes) -> None:
        self.say("lost", self.life, worker)

    def _save(self, save: Save) -> None:
        self.group = (*self.group, *save.records)

    def _to_host(self, told: ToHost) -> None:
        raise NotImplementedError

    def _record(self, effect: RecordHosts) -> None:
        raise NotImplementedError

    def on_settled(self) -> None:
        """Records of one step are a group."""
        if self.group:
            self.journal.write(self.group)
            self.group = ()

    def _to_client(self, route: bytes, frames: Frames) -> Any:
        header = header_of(frames)
        if isinstance(header, messages.Unknown) and header.gone:
            self.say("gone", header.session)
        if names.connection_of(route):  # else it is of somebody who is not here
            self.send(f"c{names.owner(route)}", Mail(route, frames))
        return header

    def _to_worker(self, worker: bytes, frames: Frames) -> None:
        self.notify(_slot(worker), WorkerMail(worker, self.life, frames))

    def on_rest(self) -> None:
        """Say what a router at rest should not have."""
        for what in unfinished(self.router):
            self.has("", what)


def _seen(what: RouterInput | RouterEffect) -> tuple[Any, ...] | None:
    """An input or an effect, as the model sees it: kind, actor, and what, of which :class:`Frames`
    become a message and its body; None if it sees nothing of it."""
    match what:
        case ClientMessage():
            return "heard", SERVER, "", frames_of(what.frames)
        case WorkerMessage():
            worker, _, *frames = frames_of(what.frames)
            return "reported", worker.decode(), Frames(frames)
        case CloseAsked():
            return "closing", SERVER
        case Exited():
            return "reaped", what.worker.decode()
        case ToClient():
            return "said", SERVER, "", frames_of(what.frames)
        case Spawn():
            return "spawned", SERVER, what.worker.decode(), what.slot, what.incarnation
        case ToWorker(worker, incarnation):
            return "commanded", worker.decode(), incarnation, Frames(frames_of(what.frames)[1:])
        case Kill():
            return "kills", SERVER, what.worker.decode(), ""
        case Lost():
            return "lost", what.worker.decode()
        case Save():
            return "wrote", SERVER, what.records
    return None


def _slot(worker: bytes) -> str:
    return worker.decode().partition("-")[0]


# -- workers -------------------------------------------------------------------------------------


class RunningCode(NamedTuple):
    """Environment code that runs."""

    number: int
    body: bytes
    session: bytes
    cancelled: bool = False


@dataclasses.dataclass(slots=True)
class ExploredProcess:
    """A worker's process, with the environment code that runs there."""

    id: bytes
    core: WorkerCore
    runs: tuple[RunningCode, ...] = ()

    @property
    def name(self) -> tuple[int, bytes]:
        """The life of the server that started it, and the id that it was started with."""
        return names.process_of(self.core.incarnation)

    @property
    def life(self) -> int:
        """Life of the server that started it."""
        return self.name[0]


class ExploredProcesses(ExploredPart):
    """Processes of workers around their cores.  Environment code in them ends when that is
    chosen."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.processes: dict[bytes, ExploredProcess] = {}

    def spawned(self, worker: bytes, incarnation: Incarnation) -> None:
        """The process of a worker is there, and its environment is set up."""
        limits = ServerLimits(announce_bytes=self.configuration.announce)
        core = WorkerCore(incarnation, limits=limits)
        process = self.processes[worker] = ExploredProcess(worker, core)
        self.did("", ("spawned", self.name, *process.name))
        self.take(process, EnvironmentReady(1, "explored", False))

    def take(self, process: ExploredProcess, given: WorkerInput) -> None:
        """Give a core an input, and carry out what it wants."""
        for effect in process.core.take(given):
            match effect:
                case ToRouter():
                    self.to_router(process, frames_of(effect.frames))
                case BeginRun():
                    session, sequence = effect.request
                    self._run(process, effect.number, (session, sequence), bytes(effect.body))
                case CancelRun():
                    process.runs = tuple(
                        run._replace(cancelled=run.cancelled or run.number == effect.number)
                        for run in process.runs
                    )
                case Exit():
                    self.exits(process)

    def to_router(self, process: ExploredProcess, frames: Frames) -> None:
        """Pass on what a worker says."""
        raise NotImplementedError

    def exits(self, process: ExploredProcess) -> None:
        """A process is to end by itself."""
        raise NotImplementedError

    def _run(
        self, process: ExploredProcess, number: int, request: tuple[bytes, int], body: bytes
    ) -> None:
        if len(process.runs) >= self.configuration.capacity:
            self.did("", ("broken", "G8", f"{process.id.decode()} runs more than it can take"))
        self.say("started", body.decode("ascii", "replace"), (*process.name, number), request)
        process.runs = (*process.runs, RunningCode(number, body, request[0]))

    def end(self, process: ExploredProcess, number: int, status: Status, payload: bytes) -> None:
        """Environment code ends."""
        process.runs = tuple(each for each in process.runs if each.number != number)
        self.ended((*process.name, number))
        self.take(process, OutcomeMade(number, status, payload, None))


class ExploredWorker(ExploredProcesses):
    """A slot: the processes of workers that were started for it, of which one may still end
    when the next one starts.  Where all arrives at once it is chosen when a process that is to end
    ends, and when it is reaped."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.lock: int | None = None
        """The life of the server that waits until no process of an earlier one is there."""
        self.doomed = False
        """Whether its process was killed, or is to exit."""
        self.dead: tuple[bytes, int] | None = None
        """The process that is dead and not reaped."""

    # -- processes --------------------------------------------------------------------

    def on_notice(self, peer: str, what: Any) -> None:
        """The server starts a process here, tells it something, kills it, has fallen, or asks
        whether there is one."""
        match what:
            case WorkerMail(worker, _, frames):
                if worker in self.processes:
                    self.take(self.processes[worker], RouterMessage(frames))
            case ("spawn", worker, incarnation):
                self.spawned(worker, incarnation)
            case ("kill", worker, life):
                self._end_process(worker, life)
            case ("lock", life):
                self.lock = life
                for process in [*self.processes.values()]:
                    if not process.runs:  # an idle worker dies with its server
                        self._die(process.id, process.life)
                self._unlock()
            case ("fell", _):
                self.processes.clear()
                self.doomed, self.dead = False, None

    def _end_process(self, worker: bytes, life: int) -> None:
        if not self.configuration.instant:
            self._die(worker, life)
        elif worker in self.processes:
            self.doomed = True
            self.did("", ("doomed", life, worker))

    def _die(self, worker: bytes, life: int) -> None:
        process = self.processes.get(worker)
        if process is None or process.life != life:
            return
        if self.configuration.instant:
            self.dead, self.doomed = (worker, life), False
        else:
            for run in process.runs:
                self.ended((life, worker, run.number))
            self.notify(SERVER, ("exited", worker, life))
        self.did("", ("died", life, worker))
        del self.processes[worker]
        self._unlock()

    def _unlock(self) -> None:
        if self.lock is not None and not self.processes:
            self.notify(SERVER, ("free", self.lock))
            self.lock = None

    # -- inputs -----------------------------------------------------------------------

    def choices(self) -> Iterator[Choice]:
        """Ends of executions and of processes, and heartbeats."""
        instant = self.configuration.instant
        for worker, process in self.processes.items():
            for run in process.runs:
                yield Choice("end", (worker, run.number, True), when="" if instant else "patient")
                if run.cancelled:
                    yield Choice("end", (worker, run.number, False))
            yield Choice("beat", (worker,), bound="beats")
            if self.lock is None:
                yield Choice("crash", (worker,), bound="crashes")
            if self.lock is not None or self.doomed:
                yield Choice("die", (worker,))
        if self.dead is not None:
            yield Choice("reap", self.dead)

    def on_choice(self, name: str, *args: Any) -> None:
        """Let it happen."""
        if name == "reap":
            self.dead = None
            self.notify(SERVER, ("exited", *args))
            return
        process = self.processes[args[0]]
        match name:
            case "end":
                self._end(process, *args[1:])
            case "beat":
                self.take(process, BeatDue({}))
            case _:
                self._die(process.id, process.life)

    def _end(self, process: ExploredProcess, number: int, result: bool) -> None:
        """Environment code ends: with a result, or, if it was told to, without."""
        body = next(each.body for each in process.runs if each.number == number)
        payload = b"%b@e%d-%b-%d" % (body, process.life, process.id, number)
        if not result:
            info = ErrorInfo("cancelled", Verdict.RAN_AND_FAILED, payload.decode())
            payload = error_records.encode(info)
        self.end(process, number, Status.RESULT if result else Status.CANCELLED, payload)

    def to_router(self, process: ExploredProcess, frames: Frames) -> None:
        """See :meth:`.ExploredProcesses.to_router`."""
        self.notify(SERVER, WorkerMail(process.id, process.life, frames))

    def exits(self, process: ExploredProcess) -> None:
        """See :meth:`.ExploredProcesses.exits`."""
        self._end_process(process.id, process.life)


# -- time ------------------------------------------------------------------------------------


class Time(Actor):
    """True time, which passes by ticks."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.ticks = 0
        self.rounds = 0

    def choices(self) -> Iterator[Choice]:
        """A tick; on the way to rest a round."""
        for clocks in range(1 if self.ticks else self.configuration.clocks):
            yield Choice("tick", (clocks,), bound="ticks")
        if self.rounds < ROUNDS:
            yield Choice("round", when="rest")

    def on_choice(self, name: str, *args: Any) -> None:
        """Let it happen."""
        if name == "tick":
            self._pass(*args)
            return
        self.rounds += 1
        for host in HOSTS[: self.configuration.hosts]:
            self.notify(host, ("round", self.rounds % ROUNDS_OF_A_TICK == 1))
        self.notify(SERVER, ("round",))
        if self.rounds % ROUNDS_OF_A_TICK == 0:
            self._pass(0)

    def _pass(self, clocks: int) -> None:
        """The time passes for all at once; machines come first, so that guards kill in time."""
        self.ticks += 1
        for name, rate in zip((*HOSTS, SERVER), CLOCKS[clocks], strict=True):
            if name not in HOSTS[self.configuration.hosts :]:
                self.notify(name, ("tick", self.ticks, rate if self.ticks == 1 else None))


# -- machines --------------------------------------------------------------------------------


class ExploredMachine(ExploredProcesses):
    """A machine: a host's process, its guard, and its workers."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.ticks, self.rate = 0, SLOW
        self.missed = 0
        """Ticks that its clock has missed: none, as long as it runs while the machine sleeps."""
        self.host: Host | None = None
        self.connections = 0
        self.first_hello: HostMail | None = None
        self.has_lost = False
        """Whether the router of its connection was killed."""
        self.opening = configuration.opening
        """Beats that are still to come before the search begins."""
        self.guard_timer = GuardTimer()
        """Once it is due, it kills at any moment."""
        self.stopped = False
        """Whether the guard is stopped."""
        self.for_guard: tuple[Any, ...] = ()
        """Commands that a stopped guard has not read."""
        self.asleep = False
        self.late: tuple[Any, ...] = ()
        """What has come while it slept."""
        self.cut: tuple[str, ...] = ()
        """Directions in which nothing passes between the host and its router: up, down."""

    def on_start(self) -> None:
        """The host begins, unless it is a second one with the id of the first."""
        self.memberships = names.Ids(names.membership, self.name)
        if not self.configuration.twins or self.name == HOSTS[0]:
            self._begin()

    # -- time -----------------------------------------------------------------------

    def boot_s(self) -> float:
        """The clock of beats and of the guard's timer."""
        return 1000.0 + self.rate * (self.ticks - self.missed) * TICK_S

    def _true_s(self, boot_s: float) -> float:
        return (boot_s - 1000.0) / self.rate + self.missed * TICK_S

    def _passes(self, ticks: int, rate: float | None) -> None:
        """The time passes.  A guard that is as late as may be kills before."""
        dead_by_s = self._true_s(self.guard_timer.deadline_s or 0.0) + GUARD_S
        if self._may_fire() and dead_by_s <= ticks * TICK_S:
            self._fire()
        self.ticks = ticks
        # A clock that stands still in sleep would miss that.
        self.missed += self.asleep and GuardTimer.stands_still()
        if rate is not None:  # all clocks read the same at the beginning, however fast they are
            self.rate = rate
        self.timer()

    def timer(self) -> None:
        """The kernel's timer fires if it is due."""
        if not self.asleep:
            self.guard_timer.look(self.boot_s())

    def _may_fire(self) -> bool:
        """Whether the signal of the timer may kill now: SIGKILL does while the guard is stopped."""
        timer = self.guard_timer
        return timer.is_due and not self.asleep and (timer.kills() or not self.stopped)

    # -- what may happen ---------------------------------------------------------------

    def choices(self) -> Iterator[Choice]:
        """Inputs of the machine, and faults."""
        asked = self.configuration
        if self.asleep:
            yield Choice("wake")
            return
        if self.host is None:
            first = self.name == HOSTS[0] or not asked.twins or self.memberships.drawn
            yield Choice("begin", bound="" if first else "twins")
        if self.stopped:
            yield Choice("resume")
        if self._may_fire():
            yield Choice("fire")
        for worker, process in self.processes.items():
            for run in process.runs:
                yield Choice("end", (worker, run.number), when="patient")
        if not asked.lasting:
            for way in self.cut:
                yield Choice("heal", (way,))
        if self.first_hello is not None:
            yield Choice("again", bound="lates")
        for way in ("up", "down"):
            if way not in self.cut:
                yield Choice("sever", (way,), bound="partitions")
        if self.host is None:
            return
        if self.has_lost:
            yield Choice("connect")
        if self.opening:
            yield Choice("open")
        yield Choice("turn", bound="turns")
        yield Choice("connect", bound="reconnects")
        yield Choice("crash", bound="crashes")
        yield Choice("sleep", bound="sleeps")
        if not self.stopped:
            yield Choice("stop", bound="stops")

    def on_choice(self, name: str, *args: Any) -> None:
        """Let it happen."""
        getattr(self, f"_{name}")(*args)
        self._carry_out()

    def on_message(self, sender: str, message: HostMail) -> None:
        """A message of the router, unless it came for an earlier connection."""
        if "down" in self.cut or self.host is None or message.route != self._route():
            return
        if self.asleep:
            self.late = (*self.late, message)
            return
        self._hear(message)
        self._carry_out()

    def _hear(self, message: HostMail) -> None:
        if self.host is not None and message.route == self._route():
            self.host.message([*message.frames], self.boot_s())

    def on_notice(self, peer: str, what: Any) -> None:
        """The time passes, or the router that it was connected to is dead."""
        match what:
            case ("tick", ticks, rate):
                self._passes(ticks, rate)
            case ("round", is_new):
                self._round(is_new=is_new)
            case ("lost",):
                self.has_lost = True
        self._carry_out()

    def _round(self, *, is_new: bool) -> None:
        """A turn on the way to rest, over a new connection if ``is_new``: what runs ends."""
        if self.host is not None and not self.asleep:
            if is_new:
                self._connect()
            self._turn()
            for process in [*self.processes.values()]:
                for run in process.runs:
                    self._end(process.id, run.number)
                self.take(process, BeatDue({}))

    # -- the host ------------------------------------------------------------------------

    def _route(self) -> bytes:
        return b"%b.%d" % (self.name.encode(), self.connections)

    def _begin(self) -> None:
        """A process of the host starts: its lock proves its earlier memberships dead."""
        host = HOSTS[0] if self.configuration.twins else self.name
        self.host = Host(host, 1, self.memberships, past=self.memberships.all()[-16:])
        self._connect()
        self._carry_out()

    def _connect(self) -> None:
        """There is a new connection."""
        assert self.host is not None
        self.has_lost = False
        self.connections += 1
        self.host.disconnect()
        self.host.connect()

    def _turn(self) -> None:
        """It is time for a beat, and, if no router has answered, for another hello."""
        assert self.host is not None
        self.host.beat(self.boot_s())
        if not self.host.is_joined:
            self.host.connect()

    def _open(self) -> None:
        self.opening -= 1
        self._turn()

    def _again(self) -> None:
        """A copy of the first hello comes late."""
        assert self.first_hello is not None
        self.send(SERVER, self.first_hello)

    def _crash(self) -> None:
        """The host's process is killed, and its guard ends with it."""
        self.host = None
        self._new_guard()
        for process in [*self.processes.values()]:
            self._ended(process)

    def _sleep(self) -> None:
        self.asleep = True
        self.did("", ("slept", self.name))

    def _wake(self) -> None:
        """Timers come first, then what runs."""
        self.asleep = False
        self.timer()
        if self.guard_timer.is_due and self.guard_timer.kills():
            self._fire()
        self.did("", ("woke", self.name))
        late, self.late = self.late, ()
        for message in late:
            self._hear(message)
            self._carry_out()

    def _sever(self, way: str) -> None:
        self.cut = (*self.cut, way)

    def _heal(self, way: str) -> None:
        self.cut = tuple(each for each in self.cut if each != way)

    # -- the guard ----------------------------------------------------------------------

    def _stop(self) -> None:
        self.stopped = True

    def _resume(self) -> None:
        self.stopped = False
        commands, self.for_guard = self.for_guard, ()
        for command in commands:
            self._command(*command)

    def _tell_guard(self, *command: Any) -> None:
        if self.stopped:
            self.for_guard = (*self.for_guard, command)
        else:
            self._command(*command)

    def _command(self, name: str, *args: Any) -> None:
        getattr(self, f"_guard_{name}")(*args)

    def _say_deadline(self, deadline_s: float) -> None:
        self._tell_guard("deadline", self.guard_timer.said(deadline_s, self.boot_s()))

    def _guard_deadline(self, said_s: float) -> None:
        self.guard_timer.told(said_s, self.boot_s())
        self.timer()

    def _guard_start(self, worker: bytes, incarnation: Incarnation) -> None:
        assert self.host is not None
        if not self.guard_timer.may_start() or self.guard_timer.is_due:
            self.host.exited(worker, "no guard starts it")
            return
        self.host.spawned(worker, 1)
        self.spawned(worker, incarnation)

    def _guard_kill(self, worker: bytes) -> None:
        if worker in self.processes:
            self._reaped(self.processes[worker], "it was killed")

    def _fire(self) -> None:
        """The kernel kills the guard, and with it all workers; another one takes its place."""
        waiting = [args[0] for name, *args in self.for_guard if name == "start"]
        self._new_guard()
        for process in [*self.processes.values()]:
            self._reaped(process, "its guard has ended")
        if self.host is None:
            return
        for worker in waiting:
            self.host.exited(worker, "its guard has ended")
        lease = self.host.lease
        if lease.deadline_s is not None and lease.holds(self.boot_s()):
            self._say_deadline(lease.deadline_s)

    def _new_guard(self) -> None:
        self.guard_timer, self.stopped, self.for_guard = GuardTimer(), False, ()

    # -- workers --------------------------------------------------------------------------

    def _reaped(self, process: ExploredProcess, how: str) -> None:
        self._ended(process)
        if self.host is not None:
            self.host.exited(process.id, how)

    def _ended(self, process: ExploredProcess) -> None:
        del self.processes[process.id]
        self.did("", ("died", *process.name))

    def _end(self, worker: bytes, number: int) -> None:
        """Environment code ends with its result."""
        self.end(self.processes[worker], number, Status.RESULT, b"1")

    def to_router(self, process: ExploredProcess, frames: Frames) -> None:
        """See :meth:`.ExploredProcesses.to_router`."""
        assert self.host is not None
        self.host.worker_message(process.id, frames)

    def exits(self, process: ExploredProcess) -> None:
        """See :meth:`.ExploredProcesses.exits`."""
        self._reaped(process, "exit 0")

    # -- effects --------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Carry out what the host wants."""
        if self.host is None:
            return
        self.host._boot_s = self.boot_s()  # what it read last, so that states differ by less
        for effect in wanted(self.host):
            self._effect(effect)

    def _effect(self, effect: Any) -> None:
        match effect:
            case FromHost():
                mail = HostMail(self._route(), frames_of(effect.frames))
                if self.configuration.lates and self.first_hello is None:
                    self.first_hello = mail
                if "up" not in self.cut:
                    self.send(SERVER, mail)
            case Spawn(_, worker, incarnation):
                self._tell_guard("start", worker, incarnation)
            case Kill(worker, _):
                self._tell_guard("kill", worker)
            case TellWorker(worker, frames):
                if worker in self.processes:
                    self.take(self.processes[worker], RouterMessage(frames))
            case SetDeadline(deadline_s):
                self._say_deadline(deadline_s)
            case NewGuard():
                self._new_guard()


# -- the server ------------------------------------------------------------------------------


class HostServer(ExploredServer):
    """A router with its hosts, of one life after another, and the caller of one request."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.ticks, self.rate = 0, FAST
        self.waits: tuple[EpochWait, ...] = ()
        """The records of routers for their successors."""
        self.asked_in: int | None = -1
        """Life of the router that has the caller's request; None: it is answered."""

    def on_start(self) -> None:
        """The first router."""
        self.did("", ("asked", REQUEST))
        self._make()
        self._begin()

    def clock_s(self) -> float:
        """The router's clock, by which it counts leases."""
        return 50.0 + self.rate * self.ticks * TICK_S

    # -- routers that follow each other ---------------------------------------------------

    def _make(self) -> None:
        """The next router, which has not begun."""
        super()._make()
        self.alive = False
        assert self.router.hosts is not None
        self.hosts = self.router.hosts

    def _terms(self) -> LeaseTerms:
        asked = self.configuration
        fence_s = asked.next_fence_s if self.life % 2 else asked.fence_s
        return LeaseTerms(fence_s if asked.lease else NO_LEASE_S, drift=DRIFT, guard_s=GUARD_S)

    def _begin(self) -> None:
        journal = self.configuration.journal
        self.alive = True
        self.take(HostsBefore(self.waits, self.clock_s()))
        if self.life and journal:
            self._restore()
        if journal or not self.waits:
            self._open()

    def _open(self) -> None:
        """Welcome hosts.  Without a journal nothing of the routers before lives any more."""
        earlier, journal = self.hosts.leases.earlier, self.configuration.journal
        self._dead([n for n in range(self.life) if not (journal and names.epoch(n) in earlier)])
        before = [names.epoch(life) for life in range(self.life)]
        self.take(PoolOpened(before, NOW_S))
        self._call()

    def _dead(self, lives: Sequence[int]) -> None:
        if lives:
            self.did("", ("dead", *lives))

    def _fall(self, kept: int = 0) -> None:
        self._make()

    def _replace(self) -> None:
        for host in HOSTS[: self.configuration.hosts]:
            self.notify(host, ("lost",))
        self._begin()
        self._turn_over()

    # -- inputs ---------------------------------------------------------------------------

    def choices(self) -> Iterator[Choice]:
        """The router's turn, if something comes of it, and its end."""
        if not self.alive:
            yield Choice("replace")
            return
        if self._is_due():
            yield Choice("rule")
        yield Choice("fall", bound="falls")

    def _is_due(self) -> bool:
        now_s, leases = self.clock_s(), self.hosts.leases
        unknown = self.router.dispatches.unknown.live_executions
        if not unknown and copy.copy(leases.earlier).take_dead(now_s):
            return True
        if any(s.is_open and not s.life and s.start_at_s <= NOW_S for s in self.router.pool.slots):
            return True
        if any(now_s >= leases._dead_at_s(each) for each in leases.holdings.values()):
            return True
        for host in self.hosts.hosts.values():
            fresh = leases.is_fresh(host.holding, now_s) and not host.broken
            if fresh != host.fresh or (fresh and not host.slots and not host.set_aside):
                return True
        return False

    def on_notice(self, peer: str, what: Any) -> None:
        """The time passes, or nothing else goes on: then pauses end, too."""
        if what[0] == "tick":
            _, self.ticks, rate = what
            self.rate = self.rate if rate is None else rate
        for slot in self.router.pool.slots:
            slot.pause_s = 0.0
            slot.start_at_s = min(slot.start_at_s, NOW_S)

    def on_message(self, sender: str, message: Any) -> None:
        """A message of a host; before hosts are welcome one only hears that its membership is
        over."""
        if self.alive:
            self.take(HostMessage(message.route, message.frames, NOW_S, self.clock_s()))
            if self.router.malformed:
                self.did("", ("broken", "CRASH", "a host sends what its router cannot read"))
            self._go_on()

    def _rule(self) -> None:
        """The router's turn: look who is lost, and who gets work."""
        if self.hosts.is_open:
            self.take(HostsTick(NOW_S, self.clock_s()))
            self._go_on()
        elif self.hosts.leases.earlier.have_ended(self.clock_s()):
            self._open()
            self._turn_over()

    def _go_on(self) -> None:
        """Let the router do what is due after an input about hosts; its own clock stands still."""
        if self.hosts.is_open:
            self.take(Tick(NOW_S))
            self._call()
        self._turn_over()

    def _turn_over(self) -> None:
        """Send hosts what is due, once it is written down who is here."""
        while self.hosts.is_due or self.hosts.is_recording:
            self.take(HostsRecorded("") if self.hosts.is_recording else TurnOver())

    def _follow(self, follows: Iterable[OfHost]) -> None:
        for each in follows:
            if isinstance(each, HostsDead):
                dead = each.dead_epochs
                self._dead([life for life in range(self.life) if names.epoch(life) in dead])
            elif isinstance(each, WorkerBack):
                self._taken(each)

    def _taken(self, back: WorkerBack) -> None:
        """A worker is back; what it runs, and the journal knows, is this router's now."""
        worker = self.router.workforce.workers.get(back.worker)
        live, unknown = {} if worker is None else worker.live, self.router.dispatches.unknown
        known = tuple(n for n, execution in live.items() if execution.session is not unknown)
        self.did("", ("back", names.process_of(back.incarnation), known, self.life))

    # -- the caller -------------------------------------------------------------------------

    def _call(self) -> None:
        """Ask in this life, if what was asked before is known to run no more; under a key in
        any case."""
        asked, before = self.configuration, self.asked_in
        if not self.hosts.is_open or before is None or before == self.life:
            return
        nonce = names.nonce(0, 1)
        session = names.session(self.life, nonce)
        is_keyed = asked.key
        if before >= 0 and not is_keyed:
            old = names.session(before, nonce)
            said = self._say(messages.Sync(old, names.epoch(before), 1, 1, 1, [0, 1]))
            if not any(isinstance(each, messages.Unknown) and each.gone for each in said):
                return
        self.asked_in = self.life
        self._say(messages.Hello(PROTOCOL_VERSION, nonce, 1, "c0", MOST_BYTES, nonce))
        digest = input_digest(BODY, True)
        request = messages.Request(
            session, 0, digest if is_keyed else digest[:16], True, asked.allowance, None,
            earlier=1 if before >= 0 else None,
        )  # fmt: skip
        if is_keyed:
            request = request._replace(namespace=NAMESPACE, key=KEY)
        self._say(request, BODY)

    def _say(self, message: Any, *more: bytes) -> list[Any]:
        return self.hear(
            Mail(names.route(0, 1), Frames((messages.encode(message), *more))), message
        )

    # -- effects ------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let every wait for last words be due, and every start but one after a pause, which lasts
        until the next tick; no lease of the caller."""
        super().calm()
        for slot in self.router.pool.slots:
            if not slot.pause_s and slot.start_at_s < math.inf:
                slot.start_at_s = NOW_S
        for life in self.router.pool.lives.values():
            if life.phase is Phase.REAPED:
                life.left_s = LONG_AGO_S

    def take(self, given: RouterInput, *, time: Sequence[Any] = ()) -> list[Any]:
        """See :meth:`.ExploredServer.take`.  What is written is safe at once."""
        lives = self.router.pool.lives
        self.incarnations = {each: life.incarnation for each, life in lives.items()}
        said = super().take(given)
        if isinstance(given, HostMessage | HostsTick):
            self._follow(self.router.followed)
        while self.group:
            group, self.group = self.group, ()
            self.journal.records = compacted((*self.journal.records, *group))
            said += super().take(Saved(self.router.journal.safe + len(group), NOW_S))
        del self.incarnations
        return said

    def _spawn(self, effect: Spawn) -> None:
        """Its host does it."""

    def _kill(self, worker: bytes) -> None:
        """Its host does it."""

    def _lost(self, worker: bytes) -> None:
        self.say("lost", *names.process_of(self.incarnations[worker]))

    def _to_client(self, route: bytes, frames: Frames) -> Any:
        header = header_of(frames)
        if isinstance(header, messages.Outcome):
            self.did("", ("told", REQUEST, "result"))
            self.asked_in = None
        return header

    def _to_worker(self, worker: bytes, frames: Frames) -> None:
        """Its host tells it."""

    def _record(self, effect: RecordHosts) -> None:
        """Write down what a later server must know."""
        self.waits = effect.waits

    def _to_host(self, told: ToHost) -> None:
        mail = HostMail(told.route, frames_of(told.frames))
        self.send(told.route.decode().partition(".")[0], mail)

    def on_rest(self) -> None:
        """Say nothing: the judge knows what its one caller waits for."""
