"""One request's way through a run, drawn as text.

Theory of operation
-------------------
Four lifelines: its client, the router, whichever worker it comes to, and the
environment's code there.  A row is a message (from lane to lane, at its arrival)
or something that happened (a word in its lane).  Of all messages only those that
say something about the request are drawn: which those are is learned from the
trace as it is read, since a request gets its id from its client and its dispatch
number from its router.  Rows that only repeat the last one are counted.

Without a request (a bound, a leak) all requests are drawn.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from ...core import error_records, messages
from ...core.errors import ProtocolError
from ...core.ranges import Ranges
from ...core.terms import RequestId, Status
from ..simulation.judge import Violation
from ..simulation.network import LOST, STRAY, Record, message_of

WIDTH = 100
CLIENT, ROUTER, WORKER, ENVIRONMENT = range(4)
LANES = (12, 38, 64, 90)
"""The columns of the lifelines."""

MOST_ROWS = 50
FIRST_ROWS = 10
"""Of a drawing that is too long, the rows after these are left out."""

STATEMENTS = ("Sync", "State")
"""Messages that are sent again and again, whether or not anything has changed."""


_RUNS = re.compile(r"runs (\S+ )?\(\S+\) as (\d+)")


@dataclasses.dataclass(slots=True)
class Row:
    """One line of the drawing, before it is drawn."""

    at_s: float
    lane: int
    """Where it happened; for a message the left one of its two lanes."""
    text: str
    arrow: str = ""
    """``>`` or ``<``; none if it is no message."""
    lost: bool = False
    late: bool = False
    at: str = ""
    """Which worker, for the lanes that stand for any."""
    times: int = 1

    def repeats(self, other: Row) -> bool:
        """Whether it is the same once more."""
        return dataclasses.replace(other, at_s=self.at_s, times=self.times) == self

    def __str__(self) -> str:
        columns = [" "] * WIDTH
        for column in LANES:
            columns[column] = "|"
        _put(columns, 0, f"{self.at_s:9.3f}")
        text = self.text if self.times == 1 else f"{self.text} x{self.times}"
        if not self.arrow:
            self._note(columns, text)
        else:
            self._message(columns, text)
        return "".join(columns).rstrip()

    def _note(self, columns: list[str], text: str) -> None:
        if self.lane < 0:  # of the whole world
            _put(columns, 11, f" {text} ".center(WIDTH - 11, "~"))
        elif self.lane == ENVIRONMENT:
            text = text[: LANES[ENVIRONMENT] - LANES[WORKER] - 3]
            _put(columns, LANES[ENVIRONMENT] - len(text) - 1, f"{text} *")
            _put(columns, LANES[ENVIRONMENT] + 2, self.at)
        else:
            _put(columns, LANES[self.lane], f"* {text} ")

    def _message(self, columns: list[str], text: str) -> None:
        left, right = LANES[self.lane] + 1, LANES[self.lane + 1]
        line, room = ("~" if self.late else "-"), right - left
        end = "x     " if self.lost else ">"
        text = f"{line} {text[: room - len(end) - 5]} "
        drawn = text + line * (room - len(text) - len(end)) + end
        if self.arrow == "<":
            words = drawn[len(line) + 1 : len(text) - 1]
            ending = "     x" if self.lost else "<"
            drawn = ending + line * (room - len(text) - len(end)) + f" {words} {line}"
        _put(columns, left, drawn)
        if self.lane == ROUTER:
            _put(columns, LANES[WORKER] + 2, self.at)


def _put(columns: list[str], at: int, text: str) -> None:
    text = text[: WIDTH - at]
    columns[at : at + len(text)] = text


def sequence(trace: tuple[Record, ...], violation: Violation) -> list[str]:
    """The drawing's lines, its heading first and the violation last."""
    rows: list[Row] = []
    reader = _Reader(violation, trace)
    for row in reader.rows(trace):
        before = _same_before(rows, row)
        if before is None:
            rows.append(row)
        else:
            before.times += 1
    left_out = max(0, len(rows) - MOST_ROWS)
    if left_out:
        text = f"{left_out} rows left out"
        rows[FIRST_ROWS : FIRST_ROWS + left_out] = [Row(rows[FIRST_ROWS].at_s, -1, text)]
    heading = [" "] * WIDTH
    _put(heading, 2, "seconds")
    names = (reader.client or "client", "router", "worker", "environment")
    for column, name in zip(LANES, names, strict=True):
        _put(heading, max(10, column - len(name) // 2), name)
    return ["".join(heading).rstrip(), *map(str, rows)]


def _same_before(rows: list[Row], row: Row) -> Row | None:
    """The row that this one only repeats: the last, or for a statement the last
    of its kind, with nothing but statements since."""
    for before in reversed(rows):
        if before.repeats(row):
            return before
        if not (row.text.startswith(STATEMENTS) and before.text.startswith(STATEMENTS)):
            return None
    return None


class _Reader:
    """Reads a trace and picks what is about one request."""

    def __init__(self, violation: Violation, trace: tuple[Record, ...]) -> None:
        self._key = violation.key
        asked = f"asks {violation.key}:"
        askers = (r.who for r in trace if r.frames is None and r.what.startswith(asked))
        self.client = next(askers, "")
        """Whose call it is; nobody's, if it is a hostile client's."""
        self._violation = violation
        self._ids = self._ids_of(trace)
        self._dispatches: set[tuple[str, int]] = set()
        self._workers: set[str] = set()

    def _ids_of(self, trace: tuple[Record, ...]) -> set[RequestId]:
        """Known from the beginning: a cancel may come before its request."""
        start = f"{self._key}|".encode()
        ids: set[RequestId] = set()
        for record in trace:
            if self._key and record.frames and bytes(record.frames[-1][: len(start)]) == start:
                message = message_of(record.frames)
                if isinstance(message, messages.Request):
                    ids.add(RequestId(message.session, message.sequence))
        return ids

    def rows(self, trace: tuple[Record, ...]) -> Iterator[Row]:
        """From when it was asked for until it is violated."""
        began = not self.client  # what a hostile client sends is asked for by nobody
        for record in trace:
            if record.frames is None:
                began = began or record.what.startswith(f"asks {self._key}:")
                if record.who == "VIOLATION":
                    yield Row(record.at_s, -1, f"{self._violation.guarantee}: broken")
                    if record.what == self._violation:
                        return
                elif began:
                    yield from self._note(record)
            elif began:
                yield from self._carried(record)

    # -- what happened --------------------------------------------------------

    def _note(self, record: Record) -> Iterator[Row]:
        at_s, who, what = record.at_s, record.who, record.what
        if who == "fault":
            yield Row(at_s, -1, what)
        elif "/" in who:
            yield from self._at_worker(record, who.partition("/")[2])
        elif who.startswith("server"):
            if what == "starts" or what.startswith("dies"):
                yield Row(at_s, ROUTER, f"{who} {what}")
            elif what.endswith("lease ended"):
                yield Row(at_s, ROUTER, "lease ended")
            elif what.startswith("takes ") or " is killed" in what:
                name = what.split()[1]
                if not self._key or f"{who}/{name}" in self._workers:
                    yield Row(at_s, ROUTER, what.removeprefix("worker "))
        elif self._about(what):
            yield Row(at_s, CLIENT, self._short(what))

    def _at_worker(self, record: Record, name: str) -> Iterator[Row]:
        if record.what.startswith("dies"):
            if record.who in self._workers or not self._key:
                yield Row(record.at_s, WORKER, f"{name} {record.what}")
        elif self._about(record.what):
            text = _RUNS.sub(r"runs \1#\2", self._short(record.what))
            yield Row(record.at_s, ENVIRONMENT, text, at=name)

    def _about(self, what: str) -> bool:
        words = what.replace(":", " ").split()
        if not self._key:
            return what.startswith(("asks", "cancels", "runs")) or " ends: " in what
        return " ".join(self._key.split(":")) in " ".join(words)

    def _short(self, what: str) -> str:
        """Without the name of the call, which all of it is about."""
        return what.replace(f"{self._key} ", "") if self._key else what

    # -- messages -------------------------------------------------------------

    def _carried(self, record: Record) -> Iterator[Row]:
        assert record.frames is not None
        message = message_of(record.frames)
        if message is None:
            return
        up = record.what in ("->", STRAY, LOST[True])
        of_worker = "/" in record.who
        if of_worker:
            text = self._of_worker(record, message)
        else:
            text = self._of_client(record, message)
        if text:
            # A worker is to the right of its router, a client to the left.
            arrow = "<" if up == of_worker else ">"
            lane = ROUTER if of_worker else CLIENT
            name = record.who.partition("/")[2]
            lost = record.what in LOST
            yield Row(record.at_s, lane, text, arrow, lost=lost, late=record.what == STRAY, at=name)

    def _known(self, session: bytes, sequence: int) -> bool:
        return not self._key or RequestId(session, sequence) in self._ids

    def _of_client(self, record: Record, message: messages.Message) -> str:
        """What a message between client and router says of the request."""
        session = getattr(message, "session", b"")
        match message:
            case messages.Request():
                assert record.frames is not None
                if not self._known(session, message.sequence):
                    return ""
                body = bytes(record.frames[1])
                other = self._key and not body.startswith(f"{self._key}|".encode())
                return f"Request {message.sequence}" + ", other body" * bool(other)
            case messages.Outcome() | messages.Refused() | messages.Cancel() | messages.Cancelled():
                if not self._known(session, message.sequence):
                    return ""
                name = type(message).__name__
                if not self._key and name.startswith("Cancel"):
                    return name  # a hostile client has many
                return f"{name} {message.sequence}{_more(message, record)}"
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

    def _of_worker(self, record: Record, message: messages.Message) -> str:
        """What a message between router and worker says of the request."""
        who = record.who
        if isinstance(message, (messages.Dispatch, messages.WorkerOutcome)):
            if not self._known(message.session, message.sequence):
                return ""
            self._dispatches.add((who, message.number))
            self._workers.add(who)
            name = "Dispatch" if isinstance(message, messages.Dispatch) else "Outcome"
            return f"{name} #{message.number}{_more(message, record)}"
        mine = sorted(number for worker, number in self._dispatches if worker == who)
        words: list[str] = []
        match message:
            case messages.Stop() | messages.Missing() | messages.Declined():
                numbers = Ranges.from_flat(message.numbers)
                words = [f"{type(message).__name__} #{n}" for n in mine if n in numbers]
            case messages.State() if self._key:
                live = Ranges.from_flat(message.live)
                stop = Ranges.from_flat(message.cancelled)
                for n in mine:
                    state = "to stop" if n in stop else "live" if n in live else "over"
                    words.append(f"State #{n} {state}")
        return ", ".join(words)


def _more(message: messages.Message, record: Record) -> str:
    """What kind of an outcome, a refusal, an answer."""
    match message:
        case messages.Outcome() | messages.WorkerOutcome():
            if message.status == Status.RESULT:
                return " result"
            assert record.frames is not None
            try:
                return f" {error_records.decode(record.frames[-1]).code}"
            except (ProtocolError, ValueError):
                return " error"
        case messages.Refused():
            return f" {message.code}"
        case messages.Cancelled():
            return ": it ran" if message.started else ": never ran"
    return ""
