"""Two callers, one key, and the server between them, as actors.

Theory of operation
-------------------
The server and its worker are the cores that ship.  Callers are played, since a client adds
nothing that could not arrive from another: a request may come at any moment, again, in another
session, or never.  Nothing is on its way (:attr:`.Bounds.instant`): what is said is dealt with
at once, and that something comes late is that it is said late.  So there are few states, all of
them the server's.  :mod:`.keyed_judge` says for each step what must come of it.

All that a step has written to the journal is a group: groups become safe one by one, or all at
once, at any time.  The server may fall at any time: then any number of the groups that were not
safe, from the first on, are there nevertheless, and the next server is given what is.  Its
sessions are new, the worker is dead, and the callers come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import cbor2

from ...core import error_records, messages
from ...core.closing import ClosingStage
from ...core.journal import KINDS, Cancelled, Closed, Commanded, Opened, plain_of, record_of
from ...core.key_records import KeyAct, Tag, input_digest
from ...core.limits import ServerLimits, WireLimits
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
from ...retrylab import Actor, Choice
from ..simulation.bounds import unfinished
from ..simulation.coverage import KeyPair, counted_keys
from . import names
from .actors import LONG_AGO_S, NOW_S, SERVER, Process, Running, Server, Worker, header_of
from .wire import Frames, Mail, WorkerMail

if TYPE_CHECKING:
    from .configurations import KeyConfiguration

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


# -- callers ----------------------------------------------------------------------------------


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


# -- the server -------------------------------------------------------------------------------


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


# -- the worker -------------------------------------------------------------------------------


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
