"""Two callers, one key, and the server between them, as actors.

Theory of operation
-------------------
The server and its worker are the cores that ship.  Callers are played, since a client adds
nothing that could not arrive from another: a request may come at any moment, again, in another
session, or never.  Nothing is on its way (:attr:`.Bounds.instant`): what is said is dealt with
at once, and that something comes late is that it is said late.  So there are few states, all of
them the server's.  :class:`KeyJudge` says for each step what must come of it.

All that a step has written to the journal is a group: groups become safe one by one, or all at
once, at any time.  The server may fall at any time: then any number of the groups that were not
safe, from the first on, are there nevertheless, and the next server is given what is.  Its
sessions are new, the worker is dead, and the callers come back.

*The judge* is a model of one key, written from the rules (``docs/protocol.md``), and knows
nothing of the table of the core: for each step it says who is to be told what, which generation
may run, and what is to be stopped; anything else is a violation. With a journal, what it says
that somebody is told is told once the records that were written until then are safe, and no
earlier, but for an outcome that was safe before; an execution is sent once the record of its
start is. After each step the records say what the model says. So when the server falls, what is
left of them is what the model goes on from.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import cbor2

from ...core import error_records, messages
from ...core.calls import grant
from ...core.closing import ClosingStage
from ...core.journal import (
    KINDS,
    Cancelled,
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Started,
    plain_of,
    record_of,
)
from ...core.key_records import KeyAct, Tag, input_digest
from ...core.limits import ANNOUNCE_BYTES, ServerLimits, WireLimits
from ...core.router import Router
from ...core.router_effects import RouterEffect, Save
from ...core.router_inputs import (
    CloseAsked,
    Exited,
    Restored,
    RouterInput,
    Saved,
    WorkerMessage,
)
from ...core.terms import Status
from ...core.worker_inputs import BeatDue, OutcomeMade
from ...retrylab import Actor, Bounds, Choice, Event, Judge, Rule, System, Violation
from ...retrylab.system import SETTLED
from ...retrylab.values import Forms
from ..simulation.bounds import unfinished
from ..simulation.coverage import KeyPair, counted_keys
from . import names
from .calls import (
    CONFIGURATION_RULE,
    LONG_AGO_S,
    NOW_S,
    SERVER,
    SYSTEM_FORMS,
    Described,
    Process,
    Request,
    Running,
    Server,
    Worker,
    header_of,
)
from .rules import FORMS
from .wire import Frames, Mail, WorkerMail, describe

NAMESPACE, KEY = b"a", b"k"
INPUT, OTHER = b"x", b"y"
"""The input that is asked under the key, and another one."""
MOST_BYTES = 1 << 20

PAIRS: Counter[KeyPair] = Counter()
"""How often each input came to a generation of a key in each state, in all searches of this
process since it was cleared; no part of any state."""

Told: TypeAlias = tuple[Any, ...]
"""``("result", body)``, ``("error", code)``, ``("cancelled", started)``, ``("refused",
code)``, ``("said", generation, started, finished)``; to a cancel ``("left", started)``."""

Row: TypeAlias = tuple[Any, ...]
"""A record as plain values, its kind first: records of two kinds may be equal tuples."""

_OPENED, _CLOSED = KINDS.index(Opened), KINDS.index(Closed)
_OF_COMMANDS = KINDS.index(Cancelled), KINDS.index(Commanded)


def compacted(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Records without generations that are closed, but for the number of the last."""
    closed = {number for kind, number, *_ in rows if kind == _CLOSED}
    last = max((number for kind, number, *_ in rows if kind == _OPENED), default=-1)
    return tuple(
        row for row in rows
        if row[0] in _OF_COMMANDS or row[1] not in closed
        or (row[1] == last and row[0] in (_OPENED, _CLOSED))
    )  # fmt: skip


def told_of(outcome: messages.Outcome, payload: bytes) -> Told:
    """Answer of an outcome to who waited."""
    if outcome.status == Status.RESULT:
        if payload[:1].isdigit():
            return "result", payload
        record = cbor2.loads(payload)
        return "said", record["generation"], record["started"], record.get("finished", False)
    code = error_records.decode(payload).code
    if outcome.status == Status.CANCELLED:
        return "cancelled", code != "never-started"
    return "error", code


# -- callers -------------------------------------------------------------------------------------


class Said(NamedTuple):
    """A request of a caller that is not over for it."""

    sequence: int
    frames: Frames
    input: bytes
    """Empty if it did not send any."""
    told: Told | None = None


class BaseCaller(Actor):
    """A process that makes requests in a session, or the next one that has its name."""

    def __init__(self, configuration: KeyConfiguration) -> None:
        self.configuration = configuration
        self.sessions = 0
        """Number of sessions so far."""
        self.here = False
        """Whether the last of them is in use."""
        self.life = 0
        """Life of the server."""
        self.next = 0
        self.said: tuple[Said, ...] = ()

    @property
    def index(self) -> int:
        """Number in its name; that of the one who commands is behind all others."""
        return int(self.name[1:])

    @property
    def session(self) -> bytes:
        """Session in use."""
        return names.session(self.life, names.nonce(self.index, self.sessions))

    def on_start(self) -> None:
        """Open a session."""
        self._back()

    def on_choice(self, name: str, *args: Any) -> None:
        """Let it happen."""
        getattr(self, f"_{name}")(*args)

    def _back(self) -> None:
        """A process of this caller opens a session."""
        self.sessions, self.here, self.next = self.sessions + 1, True, 0
        nonce = names.nonce(self.index, self.sessions)
        self._send(messages.Hello(1, nonce, 1, names.client_name(self.index), MOST_BYTES))

    def _send(self, message: Any, *more: bytes) -> None:
        self._transmit(Frames((messages.encode(message), *more)))

    def _transmit(self, frames: Frames) -> None:
        self.send(SERVER, Mail(names.route(self.index, self.sessions), frames))

    def _request(
        self, act: KeyAct, body: bytes = b"", tag: Tag = b"", *, earlier: int | None = None,
        gone: bool = True,
    ) -> None:  # fmt: skip
        asked = self.configuration
        limit_s = 60.0 if asked.limits and act is KeyAct.ASK else None
        message = messages.KeyedRequest(
            self.session, self.next, input_digest(body, asked.consent), asked.consent,
            asked.allowance, limit_s, b"c%d" % self.index + b"." * 14, act, NAMESPACE, KEY, tag,
            earlier, gone,
        )  # fmt: skip
        frames = Frames((messages.encode(message), body))
        self.said = (*self.said, Said(self.next, frames, body))
        self.next += 1
        self._transmit(frames)

    def on_message(self, sender: str, message: Mail) -> None:
        """A message of the server."""
        header = header_of(message.frames)
        match header:
            case messages.Outcome():
                told = told_of(header, message.frames[1])
            case messages.Refused():
                told = "refused", header.code
            case messages.Cancelled():
                to = "cancel", (header.session, header.sequence)
                self.did("", ("told", to, ("left", header.started)))
                return
            case _:
                return
        self.did("", ("told", (header.session, header.sequence), told))
        if self.here and header.session == self.session:
            over = told[0] == "refused"
            self.said = tuple(
                each._replace(told=told) if each.sequence == header.sequence else each
                for each in self.said if not (over and each.sequence == header.sequence)
            )  # fmt: skip
            self._heard(header.sequence)

    def _heard(self, sequence: int) -> None:
        """A request was told something."""

    def _take(self, sequence: int) -> None:
        """Its caller has what it was told."""
        self.did("", ("left", (self.session, sequence)))
        self._drop(sequence)
        self._send(messages.Finish(self.session, [sequence, sequence + 1]))

    def _drop(self, sequence: int) -> None:
        self.said = tuple(each for each in self.said if each.sequence != sequence)

    def on_notice(self, peer: str, what: Any) -> None:
        """The server has fallen, and another one is there."""
        if what[0] == "fell":
            self.here, self.life, self.said = False, what[1], ()


class Commander(BaseCaller):
    """Cancels and forgets by key: with an id, or naming any generation."""

    def __init__(self, configuration: KeyConfiguration) -> None:
        super().__init__(configuration)
        self.commands: tuple[tuple[int, bytes], ...] = ()
        """The acts and ids that were used."""

    def choices(self) -> Iterator[Choice]:
        """Commands, and commands that come again, in whatever session."""
        for act in (KeyAct.CANCEL, KeyAct.FORGET):
            for tag in (b"t%d" % len(self.commands), *range(2)):
                yield Choice("command", (int(act), tag), bound="commands")
        for command in self.commands:
            yield Choice("copy", command, bound="copies")

    def _command(self, act: int, tag: Tag) -> None:
        if isinstance(tag, bytes):
            self.commands = (*self.commands, (act, tag))
        self._copy(act, tag)

    def _copy(self, act: int, tag: Tag) -> None:
        if not self.here:
            self._back()
        forget = act == KeyAct.FORGET
        self.did("", ("commanded", (self.session, self.next), act, tag, forget))
        self._request(KeyAct(act), tag=tag)

    def _heard(self, sequence: int) -> None:
        self._take(sequence)


class Caller(BaseCaller):
    """Asks for the work of the key, and whatever a caller may do besides."""

    def __init__(self, configuration: KeyConfiguration) -> None:
        super().__init__(configuration)
        self.asked = 0
        """How often it has asked, not counting what was issued again."""
        self.lost = False
        """Whether it has asked in a session that is over, and has no outcome."""
        self.left: tuple[bytes, ...] = ()
        """Sessions of processes that died, whose leases have not ended."""
        self.may_ask = True
        """Whether the server knows what the environment consents to, or knows the key: before,
        whoever issues a request again is refused for now."""
        self.withdrawn: tuple[int, ...] = ()

    def choices(self) -> Iterator[Choice]:
        """Everything that a caller may do."""
        for session in self.left:
            yield Choice("lease", (session,))
        if not self.here:
            yield Choice("back")
            return
        if self.asked < self.configuration.asks:
            yield Choice("ask", (INPUT,))
        if self.lost and self.may_ask:
            yield from (Choice("again", (True,)), Choice("again", (False,)), Choice("withdraw"))
        for said in self.said:
            if said.told is not None:
                yield Choice("take", (said.sequence,))
            yield Choice("cancel", (said.sequence,), bound="cancels")
            yield Choice("repeat", (said.sequence,), bound="repeats")
        yield Choice("ask", (OTHER,), bound="others")
        yield Choice("attach", bound="attaches")
        yield Choice("lease", (self.session,), bound="leases")
        yield Choice("gone", bound="deaths")
        yield Choice("goodbye", bound="goodbyes")

    def _token(self) -> bytes:
        return b"c%d" % self.index + b"." * 14

    def _ask(self, input: bytes) -> None:
        self.asked += input == INPUT
        self.did("", ("asked", (self.session, self.next), self._token(), input))
        self._request(KeyAct.ASK, input)

    def _again(self, gone: bool) -> None:
        """Issue again what it asked in a session that is over; ``gone``: proven over."""
        self.lost = False
        self.did("", ("asked", (self.session, self.next), self._token(), INPUT, 1, gone))
        self._request(KeyAct.ASK, INPUT, earlier=1, gone=gone)

    def _withdraw(self) -> None:
        """It wants nothing of what it asked in an earlier session."""
        self.lost = False
        self.did("", ("withdrew", (self.session, self.next), self._token()))
        self.withdrawn = (*self.withdrawn, self.next)
        self._request(KeyAct.WITHDRAW)

    def _heard(self, sequence: int) -> None:
        if sequence in self.withdrawn:
            self.withdrawn = tuple(each for each in self.withdrawn if each != sequence)
            self._take(sequence)

    def _attach(self) -> None:
        self.did("", ("attached", (self.session, self.next)))
        self._request(KeyAct.ATTACH)

    def _repeat(self, sequence: int) -> None:
        """A transmission comes again."""
        said = next(each for each in self.said if each.sequence == sequence)
        self.did("", ("repeated", (self.session, sequence), said.told))
        self._transmit(said.frames)

    def _cancel(self, sequence: int) -> None:
        self.did("", ("cancelled", (self.session, sequence)))
        self._drop(sequence)
        self._send(messages.KeyedCancel(self.session, sequence))

    def _goodbye(self) -> None:
        session = self.session
        self.here, self.said = False, ()
        self.did("", ("said_goodbye", session))
        self._send(messages.Goodbye(session))

    def _gone(self) -> None:
        """Its process dies, and its session stays until the lease ends."""
        self._leave((*self.left, self.session))

    def _lease(self, session: bytes) -> None:
        """A lease ends: of the session in use, or of one that was left."""
        if session in self.left:
            self.left = tuple(each for each in self.left if each != session)
        else:
            self._leave(self.left)
        self.did("", ("lost", session))
        self.notify(SERVER, ("lease", session))

    def _leave(self, left: tuple[bytes, ...]) -> None:
        waits = any(each.input == INPUT and each.told is None for each in self.said)
        self.here, self.said, self.lost, self.left = False, (), self.lost or waits, left

    def on_notice(self, peer: str, what: Any) -> None:
        """The server may be asked again, or not, or has fallen."""
        if what[0] == "fell":
            self._leave(())
        if what[0] == "ready":
            self.may_ask = what[1]
        super().on_notice(peer, what)


# -- the server ----------------------------------------------------------------------------------


class KeyServer(Server):
    """A router with keys, and its journal if it may fall."""

    configuration: Any

    def __init__(self, configuration: KeyConfiguration) -> None:
        super().__init__(configuration)  # type: ignore[arg-type]  # what it needs of it is here
        self.life = 0
        self.safe: tuple[Row, ...] = ()
        self.written: tuple[tuple[Row, ...], ...] = ()
        """Groups of records that a fall of the server may lose, from any of them on."""
        self.group: tuple[Row, ...] = ()
        """The records that this step has written so far."""
        self.ready = True

    def on_start(self) -> None:
        """A server whose worker is ready."""
        self._begin()
        self._start(b"w0")

    def _begin(self) -> None:
        self.new_id = names.ServerIds(self.life)
        self.router = Router(
            epoch=names.epoch(self.life), slots=1, now_s=NOW_S, new_id=self.new_id,
            limits=ServerLimits(worker_capacity=2, session_share=1.0), wire=WireLimits(),
            journaled=self.configuration.falls > 0,
        )  # fmt: skip
        if self.life:
            self.new_id.attach(self.router.pool)
            self.router.take(Restored(tuple(map(record_of, self.safe)), NOW_S))
        else:
            self._open()
        self.calm()

    def calm(self) -> None:
        """Let nothing of keys be due, either."""
        super().calm()
        for generation in self.router.keys.generations.values():
            generation.since_s = NOW_S

    def on_message(self, sender: str, message: Mail | WorkerMail) -> None:
        """A message of a caller or the worker."""
        if isinstance(message, WorkerMail):
            self.take(WorkerMessage((message.worker, *message.frames), NOW_S))
        else:
            self.hear(message, header_of(message.frames))

    def on_notice(self, peer: str, what: Any) -> None:
        """The worker is dead, or a lease ends."""
        match what:
            case ("lease", session):
                sessions = self.router.cache.sessions
                if session in sessions:
                    sessions[session].heard_s = LONG_AGO_S
                    sessions.move_to_end(session, last=False)
                self._tick()
            case ("exited", worker, life) if life == self.life:
                self.take(Exited(worker, NOW_S, "it ended"))

    def choices(self) -> Iterator[Choice]:
        """Timers, the journal, and the end of the server."""
        router, keys = self.router, self.router.keys
        timers = ("settle",) if router.pool.lives else ("start",)  # one worker at a time
        yield from (each for each in super().choices() if each.name in timers)
        if keys.orphans or keys.retained:
            yield Choice("unwanted")
        if keys.commands.said:
            yield Choice("expire")
        if self.life and router.starting:
            yield Choice("open")
        for groups in sorted({1, len(self.written)} if self.written else ()):
            yield Choice("sync", (groups,))
        sessions = router.cache.sessions
        for _, session, sequence in router.dispatcher.deadlines.heap:
            entry = session in sessions and sessions[session].entries.get(sequence)
            if entry and entry.kept is None:
                yield Choice("limit", (session, sequence), bound="limits")
        for kept in range(len(self.written) + 1):
            yield Choice("fall", (kept,), bound="falls")
        for stage in ("DRAINING", "CANCELLING"):
            yield Choice("close", (stage,), bound="closes")

    def _unwanted(self) -> None:
        """Nobody has waited for so long that the deadline for orphans, or the retention, ends."""
        self.did("", ("unwanted",))
        keys = self.router.keys
        for generation in (*keys.orphans.values(), *keys.retained.values()):
            generation.since_s = LONG_AGO_S
        self._tick()

    def _expire(self) -> None:
        """The oldest command need not be known any more."""
        self.did("", ("expired",))
        said = self.router.keys.commands.said
        command, (answer, _) = next(iter(said.items()))
        said[command] = answer, LONG_AGO_S
        self._tick()

    def _limit(self, session: bytes, sequence: int) -> None:
        self.did("", ("out_of_time", (session, sequence)))
        self._pass(session, sequence)

    def _close(self, stage: str) -> None:
        self.did("", ("closed", stage == "CANCELLING"))
        self.take(CloseAsked(NOW_S, ClosingStage[stage]))

    def _start(self, slot: bytes) -> None:
        if self.configuration.falls:
            self.did("", ("went_on",))
        super()._start(slot)

    def _sync(self, groups: int) -> None:
        safe, self.written = self.written[:groups], self.written[groups:]
        rows = [row for group in safe for row in group]
        self.safe = compacted((*self.safe, *rows))
        self.did("", ("synced", groups))
        self.take(Saved(self.router.dispatcher.journal.safe + len(rows), NOW_S))

    def _fall(self, kept: int) -> None:
        rows = [row for group in self.written[:kept] for row in group]
        self.safe, self.written = compacted((*self.safe, *rows)), ()
        self.did("", ("fell", kept))
        self.life += 1
        self.notify("w0", ("fell", self.life))
        for name in self.others():
            self.notify(name, ("fell", self.life))
        self._begin()
        self._say_ready()

    def others(self) -> list[str]:
        """Names of all callers."""
        count = self.configuration.callers + (self.configuration.commands > 0)
        return [f"c{number}" for number in range(count)]

    # -- effects ----------------------------------------------------------------------

    def take(self, given: RouterInput, *, repairs: bool = False) -> list[Any]:
        """See :meth:`.Server.take`."""
        with counted_keys(self.router.keys, PAIRS):
            said = super().take(given)
        self._say_ready()
        return said

    def _say_ready(self) -> None:
        if not self.configuration.falls:
            return
        ready = bool(self.router.workforce.environment) or bool(self.router.keys.open)
        if ready != self.ready:
            self.ready = ready
            for name in self.others():
                self.notify(name, ("ready", ready))

    def _more(self, effect: RouterEffect) -> None:
        if isinstance(effect, Save):
            rows = tuple(tuple(plain_of(each)) for each in effect.records)
            self.did("", ("recorded", rows))
            self.group = (*self.group, *rows)

    def on_settled(self) -> None:
        """Records of one step are a group."""
        if self.group:
            self.written, self.group = (*self.written, self.group), ()

    def _kill(self, worker: bytes) -> None:
        self.notify("w0", ("kill", worker, self.life))

    def _lost(self, worker: bytes) -> None:
        self.did("", ("worker_lost",))

    def _to_client(self, route: bytes, frames: Frames) -> Any:
        self.send(f"c{names.owner(route)}", Mail(route, frames))
        return header_of(frames)

    def _to_worker(self, worker: bytes, frames: Frames, *, repairs: bool) -> None:
        header = header_of(frames)
        if isinstance(header, messages.Dispatch):
            self.did("", ("dispatched", header.number, header.sequence, frames[2]))
        self.send("w0", WorkerMail(worker, self.life, frames))

    def on_rest(self) -> None:
        """Say what a router at rest should not have."""
        for what in unfinished(self.router):
            self.has("", what)


# -- the worker ----------------------------------------------------------------------------------


class KeyWorker(Worker):
    """The one worker, whose process is reaped when that is chosen."""

    configuration: Any

    def __init__(self, configuration: KeyConfiguration) -> None:
        super().__init__(configuration)  # type: ignore[arg-type]  # what it needs of it is here
        self.doomed = False
        """Whether it was killed, or is to exit."""
        self.dead: tuple[bytes, int] | None = None
        """The process that is dead and not reaped."""

    def on_notice(self, peer: str, what: Any) -> None:
        """The server starts a process, kills it, or has fallen."""
        match what:
            case ("spawn", worker, life, incarnation):
                process = self._made(worker, life, incarnation)
                self.doomed = False
                self.did("", ("serving", True))
                self._take(process, self._ready())
            case ("kill", worker, _) if worker in self.processes:
                self._doom()
            case ("fell", _):
                self.processes.clear()
                self.doomed, self.dead = False, None

    def _doom(self) -> None:
        self.doomed = True
        self.did("", ("serving", False))

    def choices(self) -> Iterator[Choice]:
        """Ends of executions and of the process."""
        for worker, process in self.processes.items():
            for run in process.runs:
                yield Choice("end", (worker, run.number, True))
                if run.cancelled:
                    yield Choice("end", (worker, run.number, False))
            yield Choice("crash", (worker,), bound="crashes")
            if self.doomed:
                yield Choice("die", (worker,))
        if self.dead is not None:
            yield Choice("reap", self.dead)

    def on_choice(self, name: str, *args: Any) -> None:
        """Let it happen."""
        if name == "reap":
            self.dead = None
            self.notify(SERVER, ("exited", *args))
        else:
            super().on_choice(name, *args)

    def _die(self, worker: bytes, life: int) -> None:
        self.did("", ("serving", False))
        self.dead, self.doomed = (worker, life), False
        del self.processes[worker]

    def _exit(self, process: Process) -> None:
        self._doom()

    def _heard(self, process: Process, frames: Frames) -> None:
        """Here a stop is judged by what goes on."""

    def _stopping(self, process: Process, number: int) -> None:
        self.did("", ("stopping", number))

    def _begin(
        self, process: Process, number: int, request: tuple[bytes, int], body: bytes
    ) -> None:
        process.runs = (*process.runs, Running(number, b"%d" % request[1], request[0]))

    def _end(self, process: Process, number: int, result: bool) -> None:
        """Environment code ends, and with the next heartbeat the router says that it knows."""
        run = next(each for each in process.runs if each.number == number)
        process.runs = tuple(each for each in process.runs if each is not run)
        payload = b"%b@%d" % (run.body, number)
        self.did("", ("over", number, payload))
        status = Status.RESULT if result else Status.CANCELLED
        self._take(process, OutcomeMade(number, status, payload, None))
        if not process.core.acknowledged:
            self._take(process, self._ready())
        self._take(process, BeatDue({}))


# -- the judge -----------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """A request that waits for the key."""

    request: Request
    caller: bytes


class Open(NamedTuple):
    """The open generation of the key."""

    number: int
    input: bytes
    earlier: int
    held: bool
    """Whether an execution of the generation before lives."""
    starts: int = 0
    live: bool = False
    outcome: Told | None = None
    waiters: tuple[Waiting, ...] = ()
    lost: tuple[bytes, ...] = ()
    """Callers whose lease ended while they waited."""
    watchers: tuple[Request, ...] = ()
    callers: tuple[bytes, ...] = ()
    """Those of which a journal says that they may count."""
    unsent: bool = False
    """Whether its start is written, and it waits for that to be safe."""
    left: bool = False
    """Whether a journal has left it, and nobody knows yet whether it may go on."""
    counted: bool = False
    """Whether a journal has left it, so all that is left of its allowance may be started."""

    @property
    def started(self) -> bool:
        """Whether it may have run."""
        return self.starts > 0 or self.earlier > 0


class KeyPast(NamedTuple):
    """The past of the key: what a journal has."""

    opened: int = 0
    """How many generations there were."""
    open: Open | None = None
    ending: int | None = None
    """A closed generation whose execution lives."""
    early: Tag | None = None
    """The cancel that hits the next request."""
    said: tuple[tuple[tuple[int, Tag], Told], ...] = ()
    """The answers to commands with ids of their own."""
    closing: bool = False
    """Whether the server drains."""


class KeyJudge(Judge):
    """What must hold of a key.  Actors tell it what happens by events without a request, whose
    value is the name of a method and its arguments."""

    def __init__(self, consent: bool, allowance: int) -> None:
        self._consent = consent
        self._allowance = allowance
        self._become(KeyPast())
        self.runs: dict[int, tuple[int, bool]] = {}
        """Generation of each execution on the worker, and whether it was told to stop."""
        self.serves = False
        """Whether the worker lives, and is not to end."""
        self._forget_step()
        self.left_over: tuple[str, ...] = ()
        """The contents that a router has at rest."""

    def _become(self, past: KeyPast) -> None:
        self.opened, self.open, self.ending, self.early, self.said, self.closing = past

    def _forget_step(self) -> None:
        self._in_vain = False
        """Whether the time has ended for which work goes on that nobody waits for."""
        self._due: dict[Any, Told] = {}
        """The answers that are due in this step, by who is to be told."""
        self.heard: dict[Any, Told] = {}
        """The answers that were given, by who was told."""
        self.violations: list[tuple[str, str]] = []

    def see(self, event: Event) -> list[Violation]:
        """Violations that an event shows."""
        if event.kind == "has":
            self.left_over = (*self.left_over, event.what)
        elif event.what == SETTLED:
            live = {number: stopped for number, stopped in self.runs.values() if self.serves}
            self.settle(live, self.serves and len(live) < 2)
            found = self.violations
            self._forget_step()
            return [event.breaks(*each) for each in found]
        elif event.kind == "did":
            name, *given = event.what
            getattr(self, name)(*given)
        return []

    def rest(self, at_s: float) -> list[Violation]:
        """Violations by what a router still has at rest."""
        return [Violation("G8", at_s, what) for what in self.left_over]

    def violation(self, guarantee: str, text: str) -> None:
        """A guarantee does not hold."""
        self.violations.append((guarantee, text))

    broken = violation

    def past(self) -> KeyPast:
        """Its past, as a journal has it."""
        return KeyPast(self.opened, self.open, self.ending, self.early, self.said, self.closing)

    # -- the worker -----------------------------------------------------------------

    def dispatched(self, run: int, number: int, input: bytes) -> None:
        """An execution of a generation is sent: it counts, whether or not the worker gets it."""
        self.started(number, input, [each for each, _ in self.runs.values()])
        self.runs[run] = number, False

    def stopping(self, run: int) -> None:
        """Environment code is told to stop."""
        self.runs[run] = self.runs[run][0], True

    def over(self, run: int, payload: bytes) -> None:
        """Environment code ends."""
        number, _ = self.runs.pop(run)
        self.ended(number, ("result", payload))

    def serving(self, serves: bool) -> None:
        """A worker is there, or is not, or is to end."""
        self.serves = serves

    def worker_lost(self) -> None:
        """Executions of the worker are proven over."""
        for number, _ in self.runs.values():
            self.ended(number, None)
        self.runs = {}

    # -- what callers do ----------------------------------------------------------

    def asked(
        self, request: Request, caller: bytes, input: bytes, earlier: int = 0, gone: bool = True
    ) -> None:
        """A request with its input; issued again if earlier executions are possible."""
        if self.open is None:
            may = not earlier or (gone and self._consent and earlier < self._allowance)
            if not may:
                self._due[request] = ("refused", "unknown-key")
                return
            if self.early is not None:
                self.early = None
                self._due[request] = ("cancelled", earlier > 0)
                return
            self.open = Open(self.opened, input, earlier, self.ending is not None)
            self.opened += 1
        elif self.open.input != input:
            self._due[request] = ("refused", "key-conflict")
            return
        self._return(caller, request[0])
        self.open = here = self.open._replace(
            waiters=(*self.open.waiters, Waiting(request, caller))
        )
        if here.outcome is not None:
            self._due[request] = here.outcome
        self._stop_if_closing()

    def attached(self, request: Request) -> None:
        """A request without its input."""
        if self.open is None:
            self._due[request] = ("refused", "unknown-key")
        elif self.open.outcome is not None:
            self._due[request] = self.open.outcome
        else:
            self.open = self.open._replace(watchers=(*self.open.watchers, request))

    def left(self, request: Request) -> bool:
        """It is cancelled, or has its outcome.  Whether the work may have been started."""
        here = self.open
        if here is None or not self._take_away(request):
            return True
        self._who_waits()
        return self.open is not None or here.started

    def cancelled(self, request: Request) -> None:
        """Its caller gives up."""
        self._due["cancel", request] = ("left", self.left(request))

    def out_of_time(self, request: Request) -> None:
        """Its deadline has passed."""
        started = self.left(request)
        self._due[request] = ("error", "no-answer" if started else "never-started")

    def lost(self, session: bytes) -> None:
        """The lease of a session has ended: its waiters go on counting."""
        here = self.open
        if here is None:
            return
        mine = [w for w in here.waiters if w.request[0] == session]
        if mine:
            callers = {*here.lost, *(w.caller for w in mine)}
            self.open = here._replace(lost=tuple(sorted(callers)))
        if self._take_away_all(session):
            self._who_waits()

    def said_goodbye(self, session: bytes) -> None:
        """A session has ended: all that it asked for leaves."""
        if self._take_away_all(session):
            self._who_waits()

    def withdrew(self, request: Request, caller: bytes) -> None:
        """A caller that is back wants nothing that it asked for in other sessions."""
        here, started = self.open, True
        if here is not None and self._return(caller, request[0]):
            self._who_waits()
            started = self.open is not None or here.started
        self._due[request] = ("said", None, started, False)

    def commanded(self, request: Request, act: int, tag: Tag, forget: bool) -> None:
        """A cancel or a forget by key."""
        here, answer = self.open, cast(Told, ("said", None, True, False))
        known = dict(self.said).get((act, tag))
        if known is not None:
            self._due[request] = known
            return
        if here is not None and (tag == here.number or isinstance(tag, bytes)):
            if here.outcome is not None and not forget:
                answer = ("said", None, True, True)
            else:
                answer = ("said", here.number, here.started, False)
                self._close()
        elif here is None and isinstance(tag, bytes) and not forget and self.ending is None:
            self.early = tag
        if isinstance(tag, bytes):
            self.said = (*self.said, ((act, tag), answer))
        self._due[request] = answer

    def repeated(self, request: Request, before: Told | None) -> None:
        """A request is sent once more, after it was told this."""
        if before is not None:
            self._due[request] = before

    # -- what becomes of the work -------------------------------------------------

    def started(self, number: int, input: bytes, live: Iterable[int]) -> None:
        """Environment code begins."""
        for other in live:
            self.violation("G1", f"generation {number} starts, and {other} lives")
        here = self.open
        if here is None or here.number != number:
            what = "is not open" if here is None else f"and {here.number} is open"
            self.violation("G2" if here is None else "G4", f"generation {number} starts, {what}")
            return
        if here.outcome is not None:
            self.violation("G4", f"generation {number} starts, and has its outcome")
        if here.input != input:
            self.violation("G6", f"generation {number} starts with another input")
        if here.starts >= (self._most(here) if self._consent else 1):
            self.violation("G2", f"generation {number} starts for the {here.starts + 1}. time")
        self.open = here._replace(starts=here.starts + 1, live=True)

    def _most(self, here: Open) -> int:
        """How many executions this epoch may start of it, with consent."""
        left = self._allowance - here.earlier
        return left if here.counted else grant(left)

    def ended(self, number: int, outcome: Told | None) -> None:
        """An execution is over: reported with this outcome, or its worker is dead."""
        here = self.open
        if number == self.ending:
            self.ending = None
            if here is not None:
                self.open = here._replace(held=False)
                self._stop_if_closing()
            return
        if here is None or here.number != number:
            return
        self.open = here = here._replace(live=False)
        if outcome is None:
            more = self._consent and here.starts < self._most(here)
            if more and not self.closing:
                return
            outcome = ("error", "worker-lost")
        self._complete(outcome)

    def _complete(self, outcome: Told) -> None:
        here = self.open
        assert here is not None
        if here.outcome is not None:
            return
        for request in (*(w.request for w in here.waiters), *here.watchers):
            self._due[request] = outcome
        self.open = here._replace(outcome=outcome, watchers=())

    def unwanted(self) -> None:
        """Nobody waits, and the time for that is over."""
        here, self._in_vain = self.open, True
        if here is None or here.waiters:
            return
        if here.lost:
            self.open = here._replace(lost=())
            self._who_waits()
        else:
            self._close()

    def expired(self) -> None:
        """The oldest command need not be known any more."""
        ((_, tag), _), self.said = self.said[0], self.said[1:]
        if self.early == tag:
            self.early = None

    def closed(self, cancelling: bool) -> None:
        """The server begins no work any more, and ends what runs."""
        self.closing = True
        self._stop_if_closing()
        if cancelling and self.open is not None and self.open.live:
            self._complete(("cancelled", True))

    def _stop_if_closing(self) -> None:
        """Retain nothing that never ran."""
        here = self.open
        if not self.closing or here is None or here.live or here.held or here.outcome:
            return
        self._complete(("error", "worker-lost" if here.starts else "stopping"))
        if not here.started:
            self.open = None

    # -- who waits ----------------------------------------------------------------

    def _return(self, caller: bytes, session: bytes) -> bool:
        """A caller is in this session now: what it asked in others counts no more."""
        here = self.open
        assert here is not None
        old = [w for w in here.waiters if w.caller == caller and w.request[0] != session]
        moved = () if here.outcome is not None else tuple(w.request for w in old)
        self.open = here._replace(
            lost=tuple(other for other in here.lost if other != caller),
            waiters=tuple(w for w in here.waiters if w not in old),
            watchers=(*here.watchers, *moved),
        )
        return bool(old) or caller in here.lost

    def _take_away(self, request: Request) -> bool:
        here = self.open
        assert here is not None
        rest = tuple(w for w in here.waiters if w.request != request)
        self.open = here._replace(
            waiters=rest, watchers=tuple(w for w in here.watchers if w != request)
        )
        return len(rest) < len(here.waiters)

    def _take_away_all(self, session: bytes) -> bool:
        if self.open is None:
            return False
        requests = [w.request for w in self.open.waiters] + list(self.open.watchers)
        mine = [request for request in requests if request[0] == session]
        counted = [self._take_away(request) for request in mine]  # all of them
        return any(counted)

    def _who_waits(self) -> None:
        """Nobody counts any more, and there is no outcome: that is the end."""
        here = self.open
        if here is not None and not (here.waiters or here.lost or here.outcome):
            self._close()

    def _close(self) -> None:
        here, self.open = self.open, None
        assert here is not None
        if here.outcome is None:
            for request in (*(w.request for w in here.waiters), *here.watchers):
                self._due[request] = ("cancelled", here.started)
        if here.live:
            self.ending = here.number

    # -- whether the server does the same -------------------------------------------

    def told(self, to: Any, what: Told) -> None:
        """A caller is told something."""
        if self.heard.setdefault(to, what) != what:
            self.violation("G3", f"{to} is told {self.heard[to]}, and {what}")

    def settle(self, live: dict[int, bool], free: bool) -> None:
        """The step is over: ``live`` are the generations that run, and whether they are to
        stop; ``free``: a worker waits for work."""
        for to in {**self._due, **self.heard}:
            due, told = self._due.get(to), self.heard.get(to)
            if due != told:
                self.violation(_breaks(due, told), f"{to} is due {due}, and is told {told}")
        here = self.open
        for number, stopped in live.items():
            wanted = here is not None and here.number == number and here.outcome is None
            if wanted == stopped:
                what = "is stopped, and wanted" if wanted else "goes on, and nobody wants it"
                guarantee = "G8" if self._in_vain and not stopped else "G7"
                self.violation(guarantee, f"generation {number} {what}")
        if here is None or self.closing or not free:
            return
        if not (here.held or here.live or here.outcome):
            self.violation("G9", f"generation {here.number} waits, and a worker is free")


def _breaks(due: Told | None, told: Told | None) -> str:
    """The guarantee that is broken by telling this in the place of that."""
    kinds = {each[0] for each in (due, told) if each is not None}
    codes = {each[1] for each in (due, told) if each is not None and each[0] == "refused"}
    if "key-conflict" in codes:
        return "G6"
    if due == ("refused", "unknown-key"):
        return "G2"
    if told == ("refused", "unknown-key"):
        return "G4"
    if kinds & {"cancelled", "said", "left"}:
        return "G7"
    return "G9" if told is None else "G3"


OF_KEYS = {
    "_consent": Rule("the same in every state"),
    "_allowance": Rule("the same in every state"),
}


Due: TypeAlias = dict[Any, Told]

_STARTED, _COMPLETED, _CLOSED = map(KINDS.index, (Started, Completed, Closed))


def past_of(rows: Iterable[Row]) -> KeyPast:
    """The past of the key, as its journal has it."""
    past, here = KeyPast(), None
    for record in map(record_of, rows):
        match record:
            case Opened(number):
                here = Open(number, bytes(record.body), record.earlier, held=False, left=True)
                here = here._replace(callers=(record.caller,), counted=True)
                past = past._replace(opened=number + 1)
            case Joined(_, caller) if here is not None:
                here = here._replace(callers=tuple(sorted({*here.callers, caller})))
            case Started() if here is not None:
                here = here._replace(earlier=here.earlier + 1)
            case Completed(_, (header, payload)) if here is not None:
                outcome = messages.decode(header, most_bytes=MOST_BYTES)
                assert isinstance(outcome, messages.Outcome)
                here = here._replace(outcome=told_of(outcome, bytes(payload)), left=False)
            case Closed():
                here = None
            case Cancelled():
                past = past._replace(early=None)
            case Commanded():
                act = int(KeyAct.FORGET if record.forget else KeyAct.CANCEL)
                answer = "said", record.generation, record.started, record.finished
                past = past._replace(
                    said=(*past.said, ((act, record.tag), answer)),
                    early=record.tag if record.early else past.early,
                )
    if here is not None:
        here = here._replace(lost=tuple(sorted(here.callers)))
    return past._replace(open=here)


class Group(NamedTuple):
    """Records that were written together, and are not safe."""

    rows: tuple[Row, ...]
    due: tuple[tuple[Any, Told], ...]
    """The answers to callers once they are."""


class DiskJudge(KeyJudge):
    """The same with what is written and not safe."""

    def __init__(self, consent: bool, allowance: int) -> None:
        super().__init__(consent, allowance)
        self.safe: tuple[Row, ...] = ()
        self.written: list[Group] = []

    def _forget_step(self) -> None:
        super()._forget_step()
        self._new: list[Row] = []
        """The records that this step has written."""
        self._safe_now: Due = {}
        """The answers to callers that are due since groups have become safe in this step."""
        self._if_it_ends: set[Any] = set()
        """The callers that are told at once, unless this step ends a generation."""

    # -- the disk -------------------------------------------------------------------

    def recorded(self, rows: Sequence[Row]) -> None:
        """The server has these records written."""
        for kind, number, *_ in rows:
            if kind == _STARTED:
                self._start(number)
        self._new += rows

    def _start(self, number: int) -> None:
        here = self.open
        super().started(number, b"" if here is None else here.input, ())
        if self.open is not None and self.open.number == number:
            self.open = self.open._replace(unsent=True)

    def synced(self, groups: int) -> None:
        """Number of the groups, from the first on, that are safe now."""
        safe, self.written = self.written[:groups], self.written[groups:]
        for group in safe:
            self._safe_now.update(group.due)
        rows = [row for group in safe for row in group.rows]
        self.safe = compacted((*self.safe, *rows))

    def fell(self, kept: int) -> None:
        """The server has fallen, and so many groups that were not safe are there."""
        rows = [row for group in self.written[:kept] for row in group.rows]
        self.safe, self.written = compacted((*self.safe, *rows)), []
        self._become(past_of(self.safe))
        self.runs, self.serves = {}, False

    def worker_lost(self) -> None:
        """Executions of the worker are over, the one that was not sent, too."""
        super().worker_lost()
        self.never_sent()

    def went_on(self) -> None:
        """A worker has said what its environment consents to: what was left goes on, or ends."""
        here = self.open
        if here is None or not here.left:
            return
        self.open = here._replace(left=False)
        may = self._consent and here.earlier < self._allowance
        if here.earlier and not may:
            self._complete(("error", "worker-lost"))

    # -- what callers do --------------------------------------------------------------

    def asked(
        self, request: Request, caller: bytes, input: bytes, earlier: int = 0, gone: bool = True
    ) -> None:
        """And its caller counts after a fall, too, until it has an outcome."""
        super().asked(request, caller, input, earlier, gone)
        here = self.open
        if here is not None and here.outcome is None and here.input == input:
            self.open = here._replace(callers=tuple(sorted({*here.callers, caller})))

    def cancelled(self, request: Request) -> None:
        """It is told so once it is safe what has ended by that, or before."""
        if not self._is_decided(request):
            self._if_it_ends.add(("cancel", request))
        super().cancelled(request)
        self._forget((request,))

    def out_of_time(self, request: Request) -> None:
        """It is too late for a deadline when the answer waits for the journal."""
        if not self._is_decided(request):
            self._if_it_ends.add(request)
            super().out_of_time(request)

    def lost(self, session: bytes) -> None:
        """The lease of a session has ended, and nobody of it is told anything more."""
        super().lost(session)
        self._forget_session(session)

    def said_goodbye(self, session: bytes) -> None:
        """The same."""
        super().said_goodbye(session)
        self._forget_session(session)

    def _is_decided(self, request: Request) -> bool:
        """Whether what it is told waits for the journal."""
        to = {to for group in self.written for to, _ in group.due}
        return request in to or ("cancel", request) in to

    def _forget(self, requests: Iterable[Any]) -> None:
        """These are told nothing more."""
        gone = set(requests)
        self.written = [
            group._replace(due=tuple(each for each in group.due if each[0] not in gone))
            for group in self.written
        ]

    def _forget_session(self, session: bytes) -> None:
        to = {to for group in self.written for to, _ in group.due}
        self._forget(each for each in to if _request_of(each)[0] == session)

    # -- what becomes of the work ------------------------------------------------------

    def started(self, number: int, input: bytes, live: Iterable[int]) -> None:
        """An execution is sent: its start must be safe."""
        here = self.open
        unsafe = [row for group in self.written for row in group.rows]
        if (_STARTED, number) in (*unsafe, *self._new):
            self.violation("G11", f"generation {number} is sent before its start is safe")
        elif here is None or here.number != number or not here.unsent:
            self.violation("G11", f"generation {number} is sent, and no record says that it starts")
        else:
            self.open = here._replace(unsent=False)
        for other in live:
            self.violation("G1", f"generation {number} is sent, and {other} lives")

    def never_sent(self) -> None:
        """The worker for which an execution waited is dead."""
        here = self.open
        if here is not None and here.unsent:
            self.open = here._replace(unsent=False)
            self.ended(here.number, None)

    def _close(self) -> None:
        here = self.open
        if here is not None and here.unsent:  # what was not sent does not live
            self.open = here._replace(unsent=False, live=False)
        super()._close()

    # -- whether the server does the same -----------------------------------------------

    def settle(self, live: dict[int, bool], free: bool) -> None:
        """Have all that is due wait for the last group that was written."""
        ends = any(row[0] == _CLOSED for row in self._new)
        due, later = dict(self._safe_now), []
        known = self._safe_outcome()
        for to, told in self._due.items():
            at_once = told[0] == "refused" or told == known
            at_once |= to in self._if_it_ends and not ends
            if at_once or not (self._new or self.written):
                due[to] = told
            else:
                later.append((to, told))
        if self._new:
            self.written.append(Group(tuple(self._new), tuple(later)))
        elif later:
            last = self.written[-1]
            self.written[-1] = last._replace(due=(*last.due, *later))
        waits = {to for group in self.written for to, _ in group.due}
        for to in self.heard.keys() & waits - due.keys():
            due[to] = self.heard[to]
            self.violation("G11", f"{to} is told {due[to]} before that is safe")
        self._due = due
        super().settle(live, free)
        self._compare()

    def _safe_outcome(self) -> Told | None:
        here = self.open
        if here is None or here.outcome is None:
            return None
        is_safe = any(row[:2] == (_COMPLETED, here.number) for row in self.safe)
        return here.outcome if is_safe else None

    def _compare(self) -> None:
        """The records say what has happened."""
        unsafe = [row for group in self.written for row in group.rows]
        said, is_so = past_of((*self.safe, *unsafe)), self.past()
        if _known(said) != _known(is_so):
            self.violation("G11", f"the records say {_known(said)}, and it is {_known(is_so)}")


def _request_of(to: Any) -> Request:
    request: Request = to[1] if to[0] == "cancel" else to
    return request


def _known(past: KeyPast) -> tuple[int, Tag | None, tuple[Any, ...]]:
    """The facts that a journal must have."""
    here = past.open
    if here is None:
        return past.opened, past.early, ()
    executions = here.earlier + here.starts
    open_ = here.number, here.input, executions, here.outcome, here.callers
    return past.opened, past.early, open_


# -- configurations ------------------------------------------------------------------------------

KEY_FORMS: Forms = {
    **FORMS, KeyJudge: OF_KEYS, DiskJudge: OF_KEYS, Caller: CONFIGURATION_RULE,
    Commander: CONFIGURATION_RULE, KeyWorker: CONFIGURATION_RULE, KeyServer: SYSTEM_FORMS[Server],
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyConfiguration(Described):
    """Callers, one key, one worker, and how much may happen.  What
    has no bound here is free: taking outcomes, coming back in a new session, issuing
    again or withdrawing there, ends of executions and of times."""

    ALWAYS: ClassVar = ("callers", "asks")
    BOUNDED: ClassVar = (
        "others", "attaches", "commands", "copies", "repeats", "cancels", "limits", "leases",
        "deaths", "goodbyes", "crashes", "closes", "falls",
    )  # fmt: skip

    name: str
    callers: int = 2
    asks: int = 1
    """How often each caller asks by itself."""
    consent: bool = False
    allowance: int = 3

    others: int = 0
    """A caller asks with another input."""
    attaches: int = 0
    commands: int = 0
    """A cancel or a forget by key: with an id, or naming any generation."""
    copies: int = 0
    """A command comes again."""
    repeats: int = 0
    """A request comes again."""
    cancels: int = 0
    """A caller gives up."""
    limits: int = 0
    """The deadline of a request passes."""
    leases: int = 0
    deaths: int = 0
    """A caller's process dies and is started again; its session stays."""
    goodbyes: int = 0
    crashes: int = 0
    """The worker dies."""
    closes: int = 0
    """The server closes, with a drain or without."""
    falls: int = 0
    """The server falls, and the next one has what is left of its journal: it has one if it may
    fall."""

    workers: ClassVar = 1
    capacity: ClassVar = 2
    recycle: ClassVar[int | None] = None
    announce: ClassVar = ANNOUNCE_BYTES
    declared: ClassVar = False

    def system(self) -> System:
        """It as a system."""
        callers = [f"c{number}" for number in range(self.callers)]
        judge = partial(DiskJudge if self.falls else KeyJudge, self.consent, self.allowance)
        actors: dict[str, Callable[[], Actor]] = {
            SERVER: partial(KeyServer, self), "w0": partial(KeyWorker, self),
            **dict.fromkeys(callers, partial(Caller, self)),
        }  # fmt: skip
        if self.commands:
            actors[f"c{self.callers}"] = partial(Commander, self)
        return System(
            actors=actors, asks=lambda random: (), judges=[judge], faults=(), alike=[callers],
            forms=KEY_FORMS, describe=describe,
            bounds=Bounds(
                asks=0, faults=sum(self.bounds.values()), each=self.bounds, instant=True,
                most_states=50_000_000,
            ),
        )  # fmt: skip


KEY_TABLE: tuple[KeyConfiguration, ...] = (
    KeyConfiguration(name="keys-shared", attaches=1, repeats=1, crashes=1),
    KeyConfiguration(name="keys-other", others=1, crashes=1),
    KeyConfiguration(name="keys-held", others=1, commands=1),
    KeyConfiguration(name="keys-cancel", attaches=1, cancels=1),
    KeyConfiguration(name="keys-command", commands=1, copies=1),
    KeyConfiguration(name="keys-waiting", commands=1, cancels=1, crashes=1),
    KeyConfiguration(name="keys-lease", leases=1, crashes=1, consent=True),
    KeyConfiguration(name="keys-back", deaths=1, cancels=1),
    KeyConfiguration(name="keys-goodbye", goodbyes=1, limits=1),
    KeyConfiguration(name="keys-rerun", crashes=2, consent=True, allowance=4),
    KeyConfiguration(name="keys-close", closes=1, crashes=1),
    KeyConfiguration(name="keys-disk", falls=1, consent=True, allowance=1),
    # A bit of everything, and much of it.
    KeyConfiguration(name="keys", commands=1, leases=1, cancels=1),
    KeyConfiguration(name="keys-nightly", commands=1, leases=1, cancels=1, attaches=1),
    KeyConfiguration(name="keys-disk-nightly", falls=2, consent=True, allowance=2),
)
"""Those with keys."""
