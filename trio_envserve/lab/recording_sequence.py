"""The story of one request in a recording: who sent what to whom, and when.

Theory of operation
-------------------
A request is known by its session's first bytes, as logs show them, and its
sequence.  Each moment of a replay is searched for what concerns it: messages
that name it, statements that include it, stops of its executions, the end of
their workers.

A request that names a key has no executions of its own: its story says which request
of the server's own does the work, whose story can be asked for, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..core import messages
from ..core.errors import ConfigError, ProtocolError
from ..core.key_records import KeyAct, KeyName
from ..core.ranges import Ranges
from ..core.requests import RequestState
from ..core.router_effects import Kill, Lost, ToClient, ToWorker
from ..core.router_inputs import ClientMessage, Exited, WorkerMessage
from ..core.terms import Status, short
from .recording import Moment, RecordedInput

CLIENT, ROUTER, KEY = "client", "router", "key"
WANTED = "sync: it is wanted"

_WAITING_ACTS = (KeyAct.ASK, KeyAct.ATTACH)
_ACTS = {
    KeyAct.ASK: "ask of a key",
    KeyAct.ATTACH: "attach to a key",
    KeyAct.CANCEL: "cancel of a key",
    KeyAct.FORGET: "forget of a key",
    KeyAct.WITHDRAW: "withdrawal of a key",
}


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


class Event(NamedTuple):
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

    events: list[Event] = dataclasses.field(default_factory=list)
    running: dict[bytes, set[int]] = dataclasses.field(default_factory=dict)
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
        found = [*self._of_input(one), *self._of_key(moment)]
        # A loss is told last, and is the reason for the rest.
        for effect in sorted(moment.effects, key=lambda each: not isinstance(each, Lost)):
            found += self._of_effect(effect)
        for session, source, target, what in found:
            if what == WANTED and len(found) == 1:
                continue  # each second there is one; those that are answered tell something
            story = self._stories[session]
            state = self._state(moment, session)
            story.events.append(Event(*at, source, target, what, state))

    def events(self) -> list[Event]:
        """All of it.  ConfigError if there is no such request, or more than one."""
        sessions = [session for session, story in self._stories.items() if story.events]
        if not sessions:
            raise ConfigError(f"no request {self.name.prefix}/{self.name.sequence} was seen")
        if len(sessions) > 1:
            fit = ", ".join(session.hex()[:12] for session in sessions)
            raise ConfigError(f"session {self.name.prefix} is one of {fit}: give more digits")
        return self._stories[sessions[0]].events

    def _state(self, moment: Moment, session: bytes) -> str:
        known, sequence = moment.router.cache.sessions.get(session), self.name.sequence
        if known is None or (known.own and sequence not in known.entries):
            return RequestState.FINISHED.value
        return known.state(sequence).value

    # -- inputs ---------------------------------------------------------------

    def _of_input(self, one: RecordedInput) -> Iterator[tuple[bytes, str, str, str]]:
        match one.given:
            case ClientMessage(_, frames):
                for message, body in self._rows(frames):
                    yield from self._of_client(message, body)
            case WorkerMessage(frames):
                yield from self._of_worker(frames)
            case Exited(worker, _, how):
                for session, story in self._stories.items():
                    if story.running.get(worker):
                        yield session, _name(worker), ROUTER, f"its process has ended: {how}"

    def _of_client(self, message: Any, body: Any) -> Iterator[tuple[bytes, str, str, str]]:
        sequence = self.name.sequence
        what = ""
        match message:
            case messages.Request(sequence=number) if number == sequence:
                what = f"request, {len(body)} bytes"
                self._stories[message.session].open = True
            case messages.KeyedRequest(sequence=number) if number == sequence:
                what = f"{_ACTS[KeyAct(message.act)]}, {len(body)} bytes"
                self._stories[message.session].open = True
            case messages.Cancel(sequence=number) if number == sequence:
                what = "cancel"
            case messages.Finish() if sequence in Ranges.from_flat(message.finished):
                what = "finish"
                self._stories[message.session].open = False
            case messages.Sync() if self._stories[message.session].open:
                if sequence in Ranges.from_flat(message.pending):
                    what = WANTED
                elif sequence < message.next:
                    what = "sync: it is finished"
                    self._stories[message.session].open = False
            case messages.Goodbye() if self._stories[message.session].open:
                what = "goodbye"
        if what:
            yield message.session, CLIENT, ROUTER, what

    def _of_key(self, moment: Moment) -> Iterator[tuple[bytes, str, str, str]]:
        given, router = moment.input.given, moment.router
        rows = self._rows(given.frames) if isinstance(given, ClientMessage) else ()
        for message, _ in rows:
            asks = isinstance(message, messages.KeyedRequest) and message.act in _WAITING_ACTS
            if not asks or message.sequence != self.name.sequence:
                continue
            generation = router.keys.open.get(KeyName(message.namespace, message.key))
            for session in router.cache.sessions.values():
                if generation is not None and session.own and generation.number in session.entries:
                    work = f"{short(session.id)}/{generation.number}"
                    yield message.session, ROUTER, KEY, f"its work is request {work}"

    def _of_worker(self, frames: Any) -> Iterator[tuple[bytes, str, str, str]]:
        worker = frames[0]
        if len(frames) == 5:
            for message, body in self._rows(frames[3:]):
                ours = isinstance(message, messages.WorkerOutcome)
                if ours and message.sequence == self.name.sequence:
                    what = f"outcome {message.number}, {_status(message.status)}{_size(body)}"
                    yield message.session, _name(worker), ROUTER, what
                    self._ran(message.session, worker, message.number)
            return
        if len(frames) != 3:
            return
        for session, story in self._stories.items():
            numbers = story.running.get(worker)
            message = _decoded(frames[2]) if numbers else None
            if isinstance(message, messages.Missing | messages.Declined):
                for number in sorted((numbers or set()) & set(Ranges.from_flat(message.numbers))):
                    what = type(message).__name__.lower()
                    yield session, _name(worker), ROUTER, f"{what} {number}"
                    if what == "declined":
                        self._ran(session, worker, number)

    def _ran(self, session: bytes, worker: bytes, number: int) -> None:
        self._stories[session].running.get(worker, set()).discard(number)

    # -- effects --------------------------------------------------------------

    def _of_effect(self, effect: Any) -> list[tuple[bytes, str, str, str]]:
        match effect:
            case ToClient(_, message, body):
                if not self._is_meant(message):
                    return []
                what = self._to_client(message, body)
                return [(_session(message), ROUTER, CLIENT, what)] if what else []
            case ToWorker(worker, _, message, body):
                return list(self._to_worker(worker, message, body))
            case Kill(worker, why):
                return [
                    (session, ROUTER, _name(worker), f"kill: {why}")
                    for session, story in self._stories.items()
                    if story.running.get(worker)
                ]
            case Lost(worker, why):
                return [
                    (session, _name(worker), ROUTER, f"lost: {why}")
                    for session, story in self._stories.items()
                    if story.running.pop(worker, None)
                ]
        return []

    def _to_client(self, message: Any, body: Any) -> str:
        match message:
            case messages.Outcome() if message.sequence == self.name.sequence:
                return f"outcome, {_status(message.status)}{_size(body)}"
            case messages.Refused() if message.sequence == self.name.sequence:
                return f"refused: {message.code}"
            case messages.Cancelled() if message.sequence == self.name.sequence:
                return f"cancelled, {'started' if message.started else 'never started'}"
            case messages.Synced() if self.name.sequence in Ranges.from_flat(message.missing):
                return "it is missing"
            case messages.Unknown() if self._stories[message.session].open:
                return "the session is unknown"
        return ""

    def _to_worker(
        self, worker: bytes, message: Any, body: Any
    ) -> Iterator[tuple[bytes, str, str, str]]:
        if isinstance(message, messages.Dispatch):
            if self._is_meant(message) and message.sequence == self.name.sequence:
                running = self._stories[message.session].running
                running.setdefault(worker, set()).add(message.number)
                what = f"dispatch {message.number}{_size(body)}"
                yield message.session, ROUTER, _name(worker), what
            return
        for session, story in self._stories.items():
            numbers = story.running.get(worker)
            if numbers and isinstance(message, messages.Stop):
                for number in sorted(numbers & set(Ranges.from_flat(message.numbers))):
                    yield session, ROUTER, _name(worker), f"stop {number}"

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


def _decoded(header: Any) -> Any:
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


def sequence_text(events: list[Event], name: RequestName) -> str:
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
