"""One request's way through a run, drawn as text.

Theory of operation
-------------------
Four lifelines (:mod:`trio_envserve.retrylab.draw`): its client, the router, whichever worker it
comes to, and the environment's code there.  Only messages that say something about the
request are drawn.  Which those are is learned from the trace as it is read, since a
request gets its id from its client and its dispatch number from its router.

Without a request (a bound, a leak) all requests are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ...core import error_records, messages
from ...core.errors import ProtocolError
from ...core.ranges import Ranges
from ...core.terms import Body, RequestId, Status
from ...retrylab.draw import EVERYWHERE, DiagramRow, Lanes, draw
from ...retrylab.judges import Violation
from ...retrylab.world import ARRIVED, LOST, STRAY, TraceLine
from .network import Frames, said_anywhere

CLIENT, ROUTER, WORKER, ENVIRONMENT = range(4)
COLUMNS = (12, 38, 64, 90)
"""The columns of the lifelines."""

STATEMENTS = ("Sync", "States")
"""How the rows begin of messages that are sent again and again, changed or not."""


Trace: TypeAlias = tuple[TraceLine[Frames], ...]

Line: TypeAlias = TraceLine[messages.MessageRow]
"""A line of a trace, of one message if of any."""

_RUNS = re.compile(r"runs (\S+ )?\(\S+\) as (\d+)")


def sequence(trace: Trace, violation: Violation) -> list[str]:
    """The drawing's lines, its heading first and the violation last."""
    lines: list[Line] = [
        TraceLine(at_s, who, what, each)
        for at_s, who, what, frames in trace
        for each in ((None,) if frames is None else said_anywhere(frames))
    ]
    reader = _Reader(violation, lines)
    lanes = Lanes((reader.client or "client", "router", "worker", "environment"), COLUMNS)
    return draw(reader.rows(lines), lanes, statements=STATEMENTS)


class _Reader:
    """Reads a trace and picks what is about one request."""

    def __init__(self, violation: Violation, trace: Sequence[Line]) -> None:
        self._key = violation.key
        asked = f"asks {violation.key}:"
        askers = (r.who for r in trace if r.message is None and r.what.startswith(asked))
        self.client = next(askers, "")
        """The client that has made the call; empty if it is a hostile one."""
        self._violation = violation
        self._ids = self._ids_of(trace)
        self._dispatches: set[tuple[str, int]] = set()
        self._workers: set[str] = set()

    def _ids_of(self, trace: Sequence[Line]) -> set[RequestId]:
        """Known from the beginning: a cancel may come before its request."""
        start = f"{self._key}|".encode()
        ids: set[RequestId] = set()
        for record in trace:
            message, body = record.message or (None, None)
            its = self._key and body is not None and bytes(body[: len(start)]) == start
            if its and isinstance(message, messages.Request):
                ids.add(RequestId(message.session, message.sequence))
        return ids

    def rows(self, trace: Sequence[Line]) -> Iterator[DiagramRow]:
        """From when it was asked for until it is violated."""
        began = not self.client  # what a hostile client sends is asked for by nobody
        for record in trace:
            if record.message is None:
                began = began or record.what.startswith(f"asks {self._key}:")
                if record.who == "VIOLATION":
                    yield DiagramRow(
                        record.at_s, EVERYWHERE, f"{self._violation.guarantee}: broken"
                    )
                    if record.what == self._violation:
                        return
                elif began:
                    yield from self._note(record)
            elif began:
                yield from self._carried(record)

    # -- what happened --------------------------------------------------------

    def _note(self, record: Line) -> Iterator[DiagramRow]:
        at_s, who, what = record.at_s, record.who, record.what
        if who == "fault":
            yield DiagramRow(at_s, EVERYWHERE, what)
        elif "/" in who:
            yield from self._at_worker(record, who.partition("/")[2])
        elif who.startswith("server"):
            if what == "starts" or what.startswith("dies"):
                yield DiagramRow(at_s, ROUTER, f"{who} {what}")
            elif what.endswith("lease ended"):
                yield DiagramRow(at_s, ROUTER, "lease ended")
            elif what.startswith("takes ") or " is killed" in what:
                name = what.split()[1]
                if not self._key or f"{who}/{name}" in self._workers:
                    yield DiagramRow(at_s, ROUTER, what.removeprefix("worker "))
        elif self._about(what):
            yield DiagramRow(at_s, CLIENT, self._short(what))

    def _at_worker(self, record: Line, name: str) -> Iterator[DiagramRow]:
        if record.what.startswith("dies"):
            if record.who in self._workers or not self._key:
                yield DiagramRow(record.at_s, WORKER, f"{name} {record.what}")
        elif self._about(record.what):
            text = _RUNS.sub(r"runs \1#\2", self._short(record.what))
            yield DiagramRow(record.at_s, ENVIRONMENT, text, at=name)

    def _about(self, what: str) -> bool:
        words = what.replace(":", " ").split()
        if not self._key:
            return what.startswith(("asks", "cancels", "runs")) or " ends: " in what
        return " ".join(self._key.split(":")) in " ".join(words)

    def _short(self, what: str) -> str:
        """Without the name of the call, which all of it is about."""
        return what.replace(f"{self._key} ", "") if self._key else what

    # -- messages -------------------------------------------------------------

    def _carried(self, record: Line) -> Iterator[DiagramRow]:
        assert record.message is not None
        message, body = record.message
        up = record.what in (ARRIVED[True], STRAY[True], LOST[True])
        of_worker = "/" in record.who
        if of_worker:
            text = self._of_worker(record.who, message, body)
        else:
            text = self._of_client(message, body)
        if text:
            ends = (WORKER, ROUTER) if of_worker else (CLIENT, ROUTER)
            start, to = ends if up else ends[::-1]
            name = record.who.partition("/")[2]
            lost, late = record.what in LOST, record.what == STRAY[True]
            yield DiagramRow(record.at_s, start, text, to, lost=lost, late=late, at=name)

    def _known(self, session: bytes, sequence: int) -> bool:
        return not self._key or RequestId(session, sequence) in self._ids

    def _of_client(self, message: messages.Message, body: Body | None) -> str:
        """The words of a message between client and router about the request."""
        session = getattr(message, "session", b"")
        match message:
            case messages.Request():
                if not self._known(session, message.sequence):
                    return ""
                other = self._key and not bytes(body or b"").startswith(f"{self._key}|".encode())
                return f"Request {message.sequence}" + ", other body" * bool(other)
            case messages.Outcome() | messages.Refused() | messages.Cancel() | messages.Cancelled():
                if not self._known(session, message.sequence):
                    return ""
                name = type(message).__name__
                if not self._key and name.startswith("Cancel"):
                    return name  # a hostile client has many
                return f"{name} {message.sequence}{_more(message, body)}"
            case messages.Unknown():
                if self._key and not any(id.session == session for id in self._ids):
                    return ""
                return "Unknown, gone" if message.gone else "Unknown"
        return self._statement(session, message)

    def _statement(self, session: bytes, message: messages.Message) -> str:
        """Messages that speak of many: what of this request?"""
        if not self._key:
            return ""
        mine = sorted(id.sequence for id in self._ids if id.session == session)
        words: list[str] = []
        match message:
            case messages.Finish():
                finished = Ranges.from_flat(message.finished)
                words = [f"Finish {n}" for n in mine if n in finished]
            case messages.Sync():
                pending = Ranges.from_flat(message.pending)
                for n in mine:
                    if n < message.next:
                        words.append(f"Sync {n} {'pending' if n in pending else 'finished'}")
            case messages.Synced():
                missing = Ranges.from_flat(message.missing)
                words = [f"Synced {n} missing" for n in mine if n in missing]
        return ", ".join(words)

    def _of_worker(self, who: str, message: messages.Message, body: Body | None) -> str:
        """The words of a message between router and worker about the request."""
        if isinstance(message, (messages.Dispatch, messages.WorkerOutcome)):
            if not self._known(message.session, message.sequence):
                return ""
            self._dispatches.add((who, message.number))
            self._workers.add(who)
            name = "Dispatch" if isinstance(message, messages.Dispatch) else "Outcome"
            return f"{name} #{message.number}{_more(message, body)}"
        mine = sorted(number for worker, number in self._dispatches if worker == who)
        words: list[str] = []
        match message:
            case messages.Stop():
                numbers = Ranges.from_flat(message.numbers)
                words = [f"Stop #{n}" for n in mine if n in numbers]
        return ", ".join(words)


def _more(message: messages.Message, body: Body | None) -> str:
    """The kind of an outcome, a refusal, an answer."""
    match message:
        case messages.Outcome() | messages.WorkerOutcome():
            if message.status == Status.RESULT:
                return " result"
            try:
                return f" {error_records.decode(body or b'').code}"
            except (ProtocolError, ValueError):
                return " error"
        case messages.Refused():
            return f" {message.code}"
        case messages.Cancelled():
            return ": it ran" if message.started else ": never ran"
    return ""
