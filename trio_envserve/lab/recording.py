"""Recordings of servers, read and replayed: an incident as a regression test.

::

    from trio_envserve.lab.recording import replay

    played = replay("incident.rec")
    assert played.identical

Theory of operation
-------------------
A file is believed in nothing before it has been looked at (:func:`read`); what its records mean
is where they are written (:mod:`trio_envserve.server.recording.records`).

What a router did follows from its inputs, so :class:`Player` gives them to a new one, with the
ids that the first had drawn, and compares the hashes of the effects and of the state wherever
there is one.  Bodies that were not recorded are replaced by as many zeros, which the router
cannot tell.

The story of one request (:class:`RequestWatch`) is who sent what to whom, and when.  A request
is known by its session's first bytes, as logs show them, and its sequence.  Each moment of a
replay is searched for what concerns it: messages that name it, statements that include it, stops
of its executions, the end of their workers.  A request that names a key has no executions of its
own: its story says which request of the server's own does the work, whose story can be asked
for, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import cbor2

from ..core import messages
from ..core.errors import ConfigError, ProtocolError
from ..core.key_records import KeyAct, KeyName
from ..core.lease import LeaseTerms
from ..core.limits import KeyLimits, ServerLimits, WireLimits
from ..core.ranges import Ranges
from ..core.router import Router
from ..core.router_effects import Kill, Lost, RouterEffect, ToClient, ToWorker
from ..core.router_inputs import (
    ClientMessage,
    Exited,
    HostMessage,
    HostsTick,
    OfHost,
    RouterInput,
    WorkerMessage,
)
from ..core.strict_cbor import NO_TAGS
from ..core.terms import ID_BYTES, Status, short
from ..core.work import WorkState
from ..server.recording import records

MAX_DEPTH = 8


class BadRecording(ConfigError):
    """It is no recording, or cannot be read any further."""


# -- its file ---------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class RecordedInput:
    """One input of the router."""

    step: int
    """Its number, from 1."""
    at_s: float
    """Seconds since the router was made."""
    given: RouterInput
    """The input itself.  A frame that was not recorded has as many zeros."""
    drawn: list[bytes] = dataclasses.field(default_factory=list)
    """Ids that the router drew for it."""
    claims: list[str] = dataclasses.field(default_factory=list)
    """Why hosts may not have their names, where the router asked for that; empty if they may."""
    raised: str = ""
    """The type of what the router raised."""


class RecordedMark(NamedTuple):
    """A check, of the effects or of the state, or the end of the recording."""

    code: int
    step: int
    what: Any
    """The hash; or why the recording ends, empty if the server did."""


Part: TypeAlias = RecordedInput | RecordedMark


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Iterator[Part]]:
    """The header of a recording, and what follows.

    A record that was cut off at the end of the file (the server was killed) is left out.
    BadRecording for anything else that is wrong.
    """
    path = Path(path)
    items = _records(path)
    first = next(items, None)
    if first is None:
        raise BadRecording(f"{path} is empty")
    try:
        about = records.about_of(first[1])
    except ValueError as error:
        raise BadRecording(f"{path} {error}") from None
    return about, _parts(path, items, about["began_s"])


def load(path: str | os.PathLike[str]) -> Iterator[RecordedInput]:
    """The inputs of a recording, in order; nothing is played.

    BadRecording (a ConfigError) if it is none, as soon as that is known.
    """
    _, parts = read(path)
    return (part for part in parts if isinstance(part, RecordedInput))


def _parts(path: Path, items: Iterator[tuple[int, Any]], began_s: float) -> Iterator[Part]:
    step, now_s = 0, began_s
    pending: RecordedInput | None = None
    for at, record in items:
        try:
            part = _part(record, step, pending)
        except Exception as error:  # whatever bad data raises where a record is made of it
            raise BadRecording(f"{path} is damaged at byte {at}: {error!r}") from None
        if part is None:
            continue
        if pending is not None:
            yield pending
            pending = None
        if isinstance(part, RecordedInput):
            now_s = max(now_s, getattr(part.given, "now_s", now_s))
            step, part.at_s, pending = part.step, now_s - began_s, part
        else:
            yield part
    if pending is not None:
        yield pending


def _part(record: Any, step: int, pending: RecordedInput | None) -> Part | None:
    """The entry that a record begins; None if it belongs to the input before it."""
    if type(record) is not list or not record or type(record[0]) is not int:
        raise ValueError("not a record that is known")
    code = record[0]
    if code in records.INPUTS:
        return RecordedInput(step + 1, 0.0, records.input_of(record))
    if code == records.HEADER:
        raise ValueError("a second header")
    fields = records.mark_of(record)
    if code not in (records.DRAWN, records.CLAIM, records.RAISED):
        return RecordedMark(code, *fields)
    if pending is None:
        raise ValueError("it belongs to no input")
    if code == records.DRAWN:
        pending.drawn.append(fields[0])
    elif code == records.CLAIM:
        pending.claims.append(fields[0])
    else:
        pending.raised = fields[0]
    return None


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """The place of each record, and the record."""
    try:
        with path.open("rb") as stream:
            yield from _decoded(path, stream)
    except OSError as error:
        raise BadRecording(f"cannot read {path}: {error.strerror or error}") from None


def _decoded(path: Path, stream: BinaryIO) -> Iterator[tuple[int, Any]]:
    decoder = cbor2.CBORDecoder(
        stream, max_depth=MAX_DEPTH, allow_indefinite=False, semantic_decoders=NO_TAGS
    )
    size = os.fstat(stream.fileno()).st_size
    at = 0
    while at < size:
        try:
            record = decoder.decode()
        except cbor2.CBORDecodeEOF:
            if not at:
                raise BadRecording(f"{path} is no recording: it has no whole record") from None
            return
        except Exception as error:  # cbor2 documents no complete list of what bad data raises
            why = f"is damaged at byte {at}" if at else "is no recording"
            raise BadRecording(f"{path} {why}: {type(error).__name__}") from None
        yield at, record
        at = stream.tell()


# -- its replay -------------------------------------------------------------------


class Moment(NamedTuple):
    """An input and what came of it."""

    input: RecordedInput
    effects: list[RouterEffect]
    router: Router
    """In the state after it."""


class Difference(NamedTuple):
    """The first place where a replay did something else than the recorded router."""

    after: int
    """The last step up to which they are known to agree."""
    step: int
    """The step at which the difference shows."""
    what: str

    def __str__(self) -> str:
        where = f"step {self.step}"
        if self.step > self.after + 1:
            where = f"steps {self.after + 1} to {self.step}"
        return f"{where}: {self.what}"


class Player:
    """Plays a recording, once.  BadRecording if it is no recording."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        self.about, self._parts = read(path)
        """The header: the server, its limits."""
        self.router = self._new_router()
        """In the state after the last input."""
        self.step = 0
        """The last input that was played."""
        self.at_s = 0.0
        """Seconds from the making of the recorded router to that input."""
        self.checks = 0
        self.checked = 0
        """The step of the last check that agreed."""
        self.difference: Difference | None = None
        self.raised: Exception | None = None
        """The error that the router raised; nothing was played after that."""
        self.ended = False
        """The server ended in order, and the recording with it."""
        self.stopped = ""
        """Why the recording ends before the server did, if it says so."""
        self._hash = records.EffectsHash()
        self._drawn: deque[bytes] = deque()
        self._claims: deque[str] = deque()
        self._made = 0
        """Ids that the recorded router had not drawn."""

    @property
    def identical(self) -> bool | None:
        """Whether all that was played did what was recorded; None if nothing says so."""
        if self.difference is not None:
            return False
        return True if self.checks else None

    def moments(
        self, *, until_step: int | None = None, until_s: float | None = None
    ) -> Iterator[Moment]:
        """Play, input by input, up to the last one that is wanted, or the end."""
        before: RecordedInput | None = None
        for part in self._parts:
            if before is not None:
                yield self._play(before, last=False)
                before = None
                if self.raised is not None:
                    return
            if isinstance(part, RecordedMark):
                self._compare(part)
                continue
            too_far = until_step is not None and part.step > until_step
            if too_far or (until_s is not None and part.at_s > until_s):
                return
            before = part
        if before is not None:
            yield self._play(before, last=not before.raised)

    def _compare(self, mark: RecordedMark) -> None:
        if mark.code == records.END:
            self.ended, self.stopped = not mark.what, mark.what
            return
        if self.difference is not None:
            return
        effects = mark.code == records.CHECK
        found = self._hash.digest() if effects else records.state_digest(self.router)
        if found == mark.what:
            self.checks += 1
            self.checked = mark.step
        else:
            self._differ("the effects differ" if effects else "the state differs")

    def _differ(self, what: str) -> None:
        if self.difference is None:
            self.difference = Difference(self.checked, self.step, what)

    def _play(self, one: RecordedInput, *, last: bool) -> Moment:
        """``last``: the file ends after it, so what belongs to it may be missing."""
        self.step, self.at_s = one.step, one.at_s
        known = self.difference
        self._drawn.extend(one.drawn)
        self._claims.extend(one.claims)
        effects: list[RouterEffect] = []
        try:
            effects = self.router.take(one.given)
        except Exception as error:  # whatever a flaw makes it raise is what is looked for
            self.raised = error
            if type(error).__name__ != one.raised:
                self._differ(f"the router raises {type(error).__name__}: {error}")
        else:
            if one.raised:
                self._differ(f"the router raised {one.raised}, and does not now")
        if self._drawn:
            self._differ("the router draws fewer ids")
            self._drawn.clear()
        if self._claims:
            self._differ("the router asks for fewer names of hosts")
            self._claims.clear()
        if last:
            self.difference = known
        self._hash.add(effects)
        return Moment(one, effects, self.router)

    def _new_id(self) -> bytes:
        if self._drawn:
            return self._drawn.popleft()
        self._differ("the router draws more ids")
        self._made += 1
        return blake2b(self._made.to_bytes(8, "big"), digest_size=ID_BYTES).digest()

    def _claim(self, route: bytes, name: str) -> str:
        if self._claims:
            return self._claims.popleft()
        self._differ("the router asks for more names of hosts")
        return ""

    def _new_router(self) -> Router:
        """As the recorded one was when it was new."""
        about = self.about
        hosts = about.get("hosts") or {"lease": None, "needs": None, "claims": False}
        try:
            return Router(
                epoch=about["epoch"], slots=records.slots_of(about["slots"]),
                now_s=about["began_s"],
                new_id=self._new_id, limits=_limits(ServerLimits, about["limits"]),
                wire=_limits(WireLimits, about["wire"]),
                keys=_limits(KeyLimits, about.get("keys", {})), heartbeats=about["heartbeats"],
                journaled=about.get("journaled", False), resting=about.get("resting", False),
                lease=None if hosts["lease"] is None else LeaseTerms(*hosts["lease"]),
                needs=hosts["needs"],
                claim=self._claim if hosts["claims"] else None,
            )  # fmt: skip
        except ConfigError as error:
            raise BadRecording(f"{self.path}: a limit is not right: {error}") from None


def _limits(kind: Any, given: dict[str, Any]) -> Any:
    """Limits of another version may have other names: those are left out."""
    return kind(**{name: value for name, value in given.items() if name in kind.__slots__})


def replay(
    path: str | os.PathLike[str], *, until_step: int | None = None, until_s: float | None = None
) -> Player:
    """Play a recording, up to a step or a time if one is given, through this version.

    A replay by another version goes on after the first difference: what it comes
    to can be looked at.  BadRecording (a ConfigError) if it is no recording.
    """
    player = Player(path)
    for _ in player.moments(until_step=until_step, until_s=until_s):
        pass
    return player


# -- the story of one request -----------------------------------------------------

CLIENT, ROUTER, KEY = "client", "router", "key"
WANTED = "sync: it is wanted"

_WAITING_ACTS = (KeyAct.ASK, KeyAct.ATTACH)
_ACTS = {
    KeyAct.ASK: "ask of a key", KeyAct.ATTACH: "attach to a key", KeyAct.CANCEL: "cancel of a key",
    KeyAct.FORGET: "forget of a key", KeyAct.LEAVE: "leave of a key",
}  # fmt: skip


class RequestName(NamedTuple):
    """The name of the request to follow."""

    prefix: str
    """The session's first hexadecimal digits."""
    sequence: int

    @classmethod
    def parse(cls, text: str) -> RequestName:
        """From ``SESSION/SEQUENCE``, or with ``#`` as logs have it.  ConfigError."""
        session, _, sequence = text.replace("#", "/").rpartition("/")
        try:
            bytes.fromhex(session + "0" * (len(session) % 2))
            number = int(sequence)
        except ValueError:
            number = -1
        if not session or number < 0:
            raise ConfigError(
                f"a request is SESSION/SEQUENCE, such as 1f2e3d4c/7 (the session as in logs), "
                f"not {text!r}"
            )
        return cls(session.lower(), number)


class RecordedArrow(NamedTuple):
    """One arrow: from whom to whom."""

    at_s: float
    step: int
    source: str
    target: str
    """:data:`CLIENT`, :data:`ROUTER`, :data:`KEY`, or the name of a worker."""
    what: str
    state: str
    """The state of the request after the step."""


@dataclasses.dataclass(slots=True)
class _Story:
    """The story of the request in one session that the prefix fits."""

    events: list[RecordedArrow] = dataclasses.field(default_factory=list)
    running: defaultdict[bytes, set[int]] = dataclasses.field(
        default_factory=lambda: defaultdict(set)
    )
    """The numbers of its executions, by worker, those being stopped included."""
    open: bool = False
    """The client did not say yet that it is finished."""


class RequestWatch:
    """Sees every :class:`Moment` of a replay, keeps what concerns one request."""

    def __init__(self, name: RequestName) -> None:
        self.name = name
        self._stories: defaultdict[bytes, _Story] = defaultdict(_Story)

    def see(self, moment: Moment) -> None:
        """The next moment."""
        one, at = moment.input, (moment.input.at_s, moment.input.step)
        followed = moment.router.followed
        found = [*self._of_input(one.given, followed), *self._of_key(moment)]
        # A loss is told last, and is the reason for the rest.
        for effect in sorted(moment.effects, key=lambda each: not isinstance(each, Lost)):
            found += self._of_effect(effect)
        for session, source, target, what in found:
            if what == WANTED and len(found) == 1:
                continue  # each second there is one; those that are answered tell something
            story = self._stories[session]
            state = self._state(moment, session)
            story.events.append(RecordedArrow(*at, source, target, what, state))

    def events(self) -> list[RecordedArrow]:
        """All of it.  ConfigError if there is no such request, or more than one."""
        sessions = [session for session, story in self._stories.items() if story.events]
        if not sessions:
            raise ConfigError(f"no request {self.name.prefix}/{self.name.sequence} was seen")
        if len(sessions) > 1:
            fit = ", ".join(session.hex()[:12] for session in sessions)
            raise ConfigError(f"session {self.name.prefix} is one of {fit}: give more digits")
        return self._stories[sessions[0]].events

    def _state(self, moment: Moment, session: bytes) -> str:
        router, sequence = moment.router, self.name.sequence
        known = router.sessions.known.get(session)
        if known is not None:
            return known.standing(sequence)
        work = router.works.generations.get(sequence)
        return "finished" if work is None or work.account.id != session else work.state.value

    # -- inputs and effects -----------------------------------------------------

    def _of_input(
        self, given: RouterInput | OfHost, followed: Iterable[OfHost]
    ) -> Iterator[tuple[bytes, str, str, str]]:
        match given:
            case ClientMessage(_, frames):
                for message, body in self._rows(frames):
                    for session, what in self._words(message, body):
                        yield session, CLIENT, ROUTER, what
            case WorkerMessage(frames):
                worker, rows = bytes(frames[0]), self._rows(frames[3:])
                if len(frames) == 3:
                    rows = iter([(_message(frames[2]), None)])
                for message, body in rows:
                    for session, what in self._words(message, body, worker):
                        yield session, _name(worker), ROUTER, what
            case Exited(worker, _, how):
                for session in self._running(worker):
                    yield session, _name(worker), ROUTER, f"its process has ended: {how}"
            case HostMessage() | HostsTick():
                for each in followed:
                    yield from self._of_input(each, ())

    def _of_key(self, moment: Moment) -> Iterator[tuple[bytes, str, str, str]]:
        given, router = moment.input.given, moment.router
        rows = self._rows(given.frames) if isinstance(given, ClientMessage) else ()
        for message, _ in rows:
            if not isinstance(message, messages.Request) or message.key is None:
                continue
            waits = (message.act or 0) in _WAITING_ACTS
            if not waits or message.sequence != self.name.sequence:
                continue
            work = router.works.open.get(KeyName(message.namespace or b"", message.key))
            if work is not None and work.state in (WorkState.WAITING, WorkState.RUNNING):
                name = f"{short(work.account.id)}/{work.number}"
                yield message.session, ROUTER, KEY, f"its work is request {name}"

    def _of_effect(self, effect: Any) -> Iterator[tuple[bytes, str, str, str]]:
        match effect:
            case ToClient(_, message, body):
                for session, what in self._words(message, body):
                    yield session, ROUTER, CLIENT, what
            case ToWorker(worker, _, message, body):
                for session, what in self._words(message, body, worker):
                    yield session, ROUTER, _name(worker), what
            case Kill(worker, why):
                for session in self._running(worker):
                    yield session, ROUTER, _name(worker), f"kill: {why}"
            case Lost(worker, why):
                for session, numbers in self._running(worker).items():
                    yield session, _name(worker), ROUTER, f"lost: {why}"
                    numbers.clear()

    def _running(self, worker: bytes) -> dict[bytes, set[int]]:
        """Numbers of the executions that the request has there, by session."""
        stories = self._stories.items()
        return {id_: each.running[worker] for id_, each in stories if each.running[worker]}

    # -- messages -------------------------------------------------------------

    def _words(
        self, message: Any, body: Any, worker: bytes = b""
    ) -> Iterator[tuple[bytes, str]]:  # fmt: skip
        """What a message says of the request, by the session.  ``worker``: who says it, or is
        told; empty: a client."""
        match message:
            case messages.Stop():
                for session, numbers in self._running(worker).items():
                    for number in sorted(numbers & set(Ranges.from_flat(message.numbers))):
                        yield session, f"stop {number}"
            case _ if message is not None and self._is_meant(message):
                if what := self._of_session(message, body, worker):
                    yield message.session, what

    def _of_session(self, message: Any, body: Any, worker: bytes) -> str:
        """What a message of a session that is meant says of the request."""
        sequence, story = self.name.sequence, self._stories[_session(message)]
        its_own = getattr(message, "sequence", sequence) == sequence
        match message:
            case messages.Request() if its_own:
                story.open = True
                act = "request" if message.key is None else _ACTS[KeyAct(message.act or 0)]
                return f"{act}, {len(body)} bytes"
            case messages.Cancel() if its_own:
                return "cancel"
            case messages.Finish() if sequence in Ranges.from_flat(message.finished):
                story.open = False
                return "finish"
            case messages.Sync() if story.open:
                if sequence in Ranges.from_flat(message.pending):
                    return WANTED
                if sequence < message.next:
                    story.open = False
                    return "sync: it is finished"
            case messages.Goodbye() if story.open:
                return "goodbye"
            case messages.Outcome() if its_own:
                return f"outcome, {_status(message.status)}{_size(body)}"
            case messages.Refused() if its_own:
                return f"refused: {message.code}"
            case messages.Cancelled() if its_own:
                return f"cancelled, {'started' if message.started else 'never started'}"
            case messages.Synced() if sequence in Ranges.from_flat(message.missing):
                return "it is missing"
            case messages.Unknown() if story.open:
                return "the session is unknown"
            case messages.Dispatch() if its_own:
                story.running[worker].add(message.number)
                return f"dispatch {message.number}{_size(body)}"
            case messages.WorkerOutcome() if its_own:
                story.running[worker].discard(message.number)
                return f"outcome {message.number}, {_status(message.status)}{_size(body)}"
        return ""

    def _rows(self, frames: Any) -> Iterator[tuple[Any, Any]]:
        """The messages of these frames that are of a session that is meant."""
        prefix = self.name.prefix
        whole = bytes.fromhex(prefix[: len(prefix) // 2 * 2])
        if not frames or type(frames[0]) is not bytes or whole not in frames[0]:
            return
        with contextlib.suppress(ProtocolError):
            for message, body in messages.read(frames, most_bytes=len(frames[0])):
                if self._is_meant(message):
                    yield message, body

    def _is_meant(self, message: Any) -> bool:
        """Whether it is of a session that is meant."""
        return _session(message).hex().startswith(self.name.prefix)


def _message(header: Any) -> Any:
    try:
        return messages.decode(header, most_bytes=len(header))
    except (ProtocolError, TypeError):
        return None


def _session(message: Any) -> bytes:
    session: bytes = getattr(message, "session", b"")
    return session


def _name(worker: bytes) -> str:
    return worker.decode("ascii", "replace")


def _status(status: int) -> str:
    return Status(status).name.lower() if messages.is_status(status) else f"status {status}"


def _size(body: Any) -> str:
    return "" if body is None else f", {len(body)} bytes"


def sequence_text(events: list[RecordedArrow], name: RequestName) -> str:
    """The events as a sequence diagram of plain text."""
    left, right = 36, 48
    lines = [
        f"request {name.prefix}/{name.sequence}",
        f"  {'seconds':>12} {'step':>9}  {CLIENT:<{left}} {ROUTER:^11} {'worker':>{right}}",
    ]
    before = ""
    for event in events:
        state = event.state if event.state != before else ""
        before = event.state or before
        client = worker = ""
        if CLIENT in (event.source, event.target):
            client = _arrow(event.what, left, to_right=event.source == CLIENT)
        else:
            to_right = event.source == ROUTER
            whose = event.target if to_right else event.source
            worker = f"{_arrow(event.what, right - 8, to_right=to_right)} {whose}"
        start = f"  {event.at_s:12.6f} {event.step:>9}  {client:<{left}} {state:^11} {worker}"
        lines.append(start.rstrip())
    return "\n".join(lines)


def _arrow(what: str, width: int, *, to_right: bool) -> str:
    room = width - 6
    text = what if len(what) <= room else f"{what[: room - 3]}..."
    line = "-" * (width - len(text) - 4)
    return f"- {text} {line}>" if to_right else f"<{line} {text} -"
