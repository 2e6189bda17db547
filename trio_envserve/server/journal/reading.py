"""Reading a journal: its records and all that is wrong with it, what a server needs at its start,
and one outcome.  Synchronous: a thread calls it.

Theory of operation
-------------------
Nothing here writes.  A record is taken for what it says only if its sum is right; what is
wrong is told in words, with the key where that is known.

*At its start* (:func:`read_start`) a server leaves most on the disk.  Nearly all generations have
their outcomes: of each only what decides is taken, packed (:mod:`trio_envserve.core.archive`).
Rows are read in their order, once, and none is held for longer than its generation is open; so a
million keys take seconds and little memory.  Every row is checked by its sum.  A body in a file is
checked when somebody asks for it; here it must be there.  Meanwhile a thread lets SQLite check its
pages, without Python's lock and over a connection of its own: nobody writes yet.  It is the whole
check, since a quick one leaves out whether an index has each row, and no sum of a row says that.
Where anything is wrong this says nothing: :func:`read_all` knows the words.
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import cbor2

from ...core.archive import pack
from ...core.errors import ServerStartError
from ...core.journal import KINDS, Closed, Completed, Opened, Record, Started, StateSaved
from ...core.terms import Body
from .folder import BODIES, DATABASE, SAFE
from .rows import (
    APPLICATION,
    RESOURCES_FROM,
    SCHEMA,
    SCHEMA_WITH_RESOURCES,
    SCHEMA_WITH_STATES,
    Row,
    State,
    digest_of,
    number_of,
    read_row,
    unpack_state,
    whole_sums,
)
from .store import connect, read_safe

SHOWN = 10
"""Most problems in one message."""


@dataclasses.dataclass(slots=True)
class JournalEntry:
    """A record, and its place in the journal."""

    row: Row
    record: Record
    body_is_lost: bool = False
    """Whether the file of its body is missing or was changed; the body is zeros of its length."""


@dataclasses.dataclass(slots=True)
class JournalContents:
    """All that was read."""

    state: State | None = None
    entries: list[JournalEntry] = dataclasses.field(default_factory=list)
    """The whole ones, the oldest first."""
    problems: list[str] = dataclasses.field(default_factory=list)
    is_known: bool = True
    """Whether all records are there, but for bodies: nobody can say else what is missing."""
    files: set[str] = dataclasses.field(default_factory=set)
    """The names of the bodies that rows name."""
    at_rest: list[bytes] = dataclasses.field(default_factory=list)
    """Generations with outcomes, packed, which then are not among the entries."""

    def records(self) -> Iterator[Record]:
        """Records for the router.  Numbers of generations go on where they were."""
        assert self.state is not None
        if self.state.next_number:
            yield Closed(self.state.next_number - 1)
        for entry in self.entries:
            yield entry.record


def is_new(folder: Path) -> bool:
    """Whether nothing was ever saved there: a server may have ended while it made it."""
    if (folder / SAFE).exists():
        return False
    bodies = folder / BODIES
    if bodies.is_dir() and os.listdir(bodies):
        return False
    if not (folder / DATABASE).exists():
        return True
    connection = connect(folder, mode="ro")
    try:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return not tables or read_state(connection).records == 0
    except (sqlite3.Error, ValueError):
        return False
    finally:
        connection.close()


def check_kind(folder: Path, connection: sqlite3.Connection) -> None:
    """Raises ServerStartError for what this version cannot read; sqlite3.Error if it cannot
    be known."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION and (application or tables):
        raise ServerStartError(
            f"{folder / DATABASE} is a database of another program; name another folder"
        )
    if schema not in (0, SCHEMA, SCHEMA_WITH_STATES, SCHEMA_WITH_RESOURCES):
        which = "a later" if schema > SCHEMA else "an earlier"
        raise ServerStartError(
            f"the journal {folder} was written by {which} version (its schema is {schema}, and "
            f"this one knows {SCHEMA_WITH_RESOURCES}): use that version, or name another folder"
        )


def read_state(connection: sqlite3.Connection) -> State:
    """Raises sqlite3.Error or ValueError if it is damaged."""
    found = connection.execute("SELECT state, sum FROM state WHERE id = 1").fetchone()
    if found is None or not all(isinstance(each, bytes) for each in found):
        raise ValueError("the row of the state is missing")
    return unpack_state(*found)


def read_all(folder: Path, connection: sqlite3.Connection) -> JournalContents:
    """All that can be read, and what is wrong."""
    found = JournalContents()
    try:
        found.state = read_state(connection)
    except (sqlite3.Error, ValueError) as error:
        found.problems.append(f"{DATABASE}: {error}")
        found.is_known = False
    rows = _read_rows(connection, found)
    rows.sort(key=lambda row: row.row)
    if found.is_known:
        found.problems += _check_pages(connection)
    for row in rows:
        _take(folder, row, found)
    _check_whole(folder, found)
    for entry in found.entries:
        if entry.body_is_lost:
            found.problems.append(f"{BODIES}/{entry.row.row}: {_lost(entry, found)}")
    return found


def _read_rows(connection: sqlite3.Connection, found: JournalContents) -> list[Row]:
    """Rows that SQLite can read: from the first on until it fails, then from the last back."""
    rows: dict[int, Row] = {}
    for order in ("ASC", "DESC"):
        try:
            for values in connection.execute(f"SELECT * FROM records ORDER BY row {order}"):
                if values[0] in rows:
                    return list(rows.values())
                rows[values[0]] = Row(*values)
        except (sqlite3.Error, TypeError) as error:
            if found.is_known:
                found.problems.append(f"{DATABASE}: {error}")
                found.is_known = False
            continue
        if order == "ASC":
            break
    return list(rows.values())


def _check_pages(connection: sqlite3.Connection) -> list[str]:
    """Whether indexes and tables agree: a row that is found no more is removed no more."""
    try:
        found = connection.execute(f"PRAGMA integrity_check({SHOWN})").fetchall()
    except sqlite3.Error as error:
        return [f"{DATABASE}: {error}"]
    return [f"{DATABASE}: {text}" for (text,) in found if text != "ok"]


def _take(folder: Path, row: Row, found: JournalContents) -> None:
    entry = _entry(folder, row)
    if entry is None:
        found.problems.append(_changed(row))
        found.is_known = False
        return
    if row.file:
        found.files.add(str(row.row))
    found.entries.append(entry)


def _entry(folder: Path, row: Row) -> JournalEntry | None:
    """The record of a row, with its body; None if the row was changed."""
    if not row.is_whole():
        return None
    body = row.body
    if row.file:
        try:
            body = (folder / BODIES / str(row.row)).read_bytes()
        except OSError:
            body = None
        if body is not None and digest_of(body) != row.body:
            body = None
    return JournalEntry(row, read_row(row, body), bool(row.file) and body is None)


def _changed(row: Row) -> str:
    return f"{DATABASE}: row {row.row!r} was changed"


def _check_whole(folder: Path, found: JournalContents) -> None:
    """Whether records are missing of which nothing is seen."""
    safe = read_safe(folder)
    if safe is None:
        found.problems.append(f"{SAFE}: it is missing or was changed, and says how much there was")
    if found.state is None:
        return
    known = found.state.records
    if safe is not None and safe[0] > known:
        found.problems.append(
            f"{DATABASE}: the last {safe[0] - known} of {safe[0]} records are missing; it was cut "
            f"off or put back, or {DATABASE}-wal was removed or cut off"
        )
        found.is_known = False
    all_sums = found.state.all_sums
    for entry in found.entries:
        all_sums ^= number_of(entry.row.sum)
    if all_sums and found.is_known:
        found.problems.append(f"{DATABASE}: rows were removed or added")
        found.is_known = False


def _lost(entry: JournalEntry, found: JournalContents) -> str:
    record = entry.record
    number = entry.row.number
    what = "the input"
    if isinstance(record, (Completed, StateSaved)):
        what = "the outcome" if isinstance(record, Completed) else "the saved state"
    for other in found.entries:
        if other.row.number == number and isinstance(other.record, Opened):
            return f"{what} of {name_of(other.record)} is missing or was changed"
    return f"{what} of generation {number} is missing or was changed"


def name_of(opened: Opened) -> str:
    """The key of a generation, for people."""
    namespace, key = (
        part.decode("utf-8", "backslashreplace") for part in (opened.namespace, opened.key)
    )
    return f"key {key!r} in namespace {namespace!r}"


def told(problems: list[str]) -> str:
    """A message with the first problems."""
    text = "; ".join(problems[:SHOWN])
    more = len(problems) - SHOWN
    return f"{text}; and {more} more" if more > 0 else text


# -- at the start ------------------------------------------------------------

_OPENED: Final = KINDS.index(Opened)
_STARTED: Final = KINDS.index(Started)
_COMPLETED: Final = KINDS.index(Completed)
_WITHOUT_START: Final = len(("allowance", "earlier", "caller"))
_ALL = "SELECT row, number, uptime_s, record, file, body, sum FROM records ORDER BY row"

AT_ONCE = 256
"""Rows that are checked together."""

_Values: TypeAlias = tuple[Any, ...]
"""Values of a row."""


class _Wrong(Exception):
    """The journal is not whole."""


def read_start(folder: Path, connection: sqlite3.Connection) -> JournalContents | None:
    """The open records and those at rest; None if anything is wrong, or may be."""
    try:
        with ThreadPoolExecutor(1) as beside:
            problems = beside.submit(_problems_of_pages, folder)
            found = JournalContents(read_state(connection))
            _Start(folder, found).read(connection)
            return None if problems.result() else found
    except (sqlite3.Error, OSError, ValueError, TypeError, LookupError, OverflowError, _Wrong):
        return None


def _problems_of_pages(folder: Path) -> list[str]:
    with closing(connect(folder, mode="ro")) as connection:
        return _check_pages(connection)


class _Start:
    def __init__(self, folder: Path, found: JournalContents) -> None:
        assert found.state is not None
        self._folder = folder
        self._found = found
        self._state = found.state
        self._open: dict[int, list[_Values]] = {}
        """The rows of each generation without an outcome, as far as was read."""
        self._others: list[_Values] = []
        """Values of commands, resources, and generations that are no finished keys."""
        self._named = set(os.listdir(folder / BODIES))

    def read(self, connection: sqlite3.Connection) -> None:
        """All of it."""
        safe = read_safe(self._folder)
        if safe is None or safe[0] > self._state.records:
            raise _Wrong
        all_sums = self._state.all_sums
        cursor = connection.execute(_ALL)
        while some := cursor.fetchmany(AT_ONCE):
            sums = whole_sums(some)
            if sums is None:
                raise _Wrong
            all_sums ^= sums
            self._take_some(some)
        if all_sums:
            raise _Wrong
        self._take_open()

    def _take_some(self, some: list[_Values]) -> None:
        open_ = self._open
        for values in some:
            row, number, _, record, file, *_ = values
            if file:
                self._has_file(str(row))
            if number is None or number >= RESOURCES_FROM:
                self._others.append(values)
                continue
            kind = record[1]  # a list of a few, and its first is a small number
            if kind == _OPENED:
                open_[number] = [values]
                continue
            rows = open_[number]  # else a row is missing: a LookupError
            rows.append(values)
            if kind == _COMPLETED:
                del open_[number]
                self._rest(rows)

    def _has_file(self, name: str) -> None:
        self._found.files.add(name)
        if name not in self._named:
            raise _Wrong

    def _rest(self, rows: list[_Values]) -> None:
        asked = cbor2.loads(rows[0][3])
        _, number, namespace, key, digest, rerun, *more, body_bytes = asked
        _, _, header, payload_bytes = cbor2.loads(rows[-1][3])
        # A first start may stand in its row, with the life of its worker.
        executions = int(any(more[_WITHOUT_START : _WITHOUT_START + 1]))
        for values in rows:
            executions += values[3][1] == _STARTED
        packed = pack(
            number, 0.0, 0.0, len(header) + payload_bytes, body_bytes, executions, rerun, digest,
            namespace, key,
        )  # fmt: skip
        if packed is None:
            self._others += rows
        else:
            self._found.at_rest.append(packed)

    def _take_open(self) -> None:
        rows = [*self._others, *chain.from_iterable(self._open.values())]
        for values in sorted(rows, key=itemgetter(0)):
            _take(self._folder, Row(*values), self._found)
        if self._found.problems or any(entry.body_is_lost for entry in self._found.entries):
            raise _Wrong


# -- one outcome -------------------------------------------------------------

_NEWEST = "SELECT * FROM records WHERE number = ? ORDER BY row DESC LIMIT 1"


class LoadedOutcome(NamedTuple):
    """The outcome of a generation, as the journal has it."""

    number: int
    frames: tuple[Body, ...] = ()
    """Header and payload; empty if the outcome could not be read."""
    why: str = ""
    """Reason why it could not be read; empty if it was."""


def read_outcomes(folder: Path, numbers: Sequence[int]) -> list[LoadedOutcome]:
    """The outcomes of these generations, or why each of them cannot be read."""
    try:
        with closing(connect(folder, mode="ro")) as connection:
            return [_outcome(folder, connection, number) for number in numbers]
    except (sqlite3.Error, OSError) as error:
        return [LoadedOutcome(number, (), f"{DATABASE}: {error}") for number in numbers]


def _outcome(folder: Path, connection: sqlite3.Connection, number: int) -> LoadedOutcome:
    try:
        values = connection.execute(_NEWEST, (number,)).fetchone()
    except sqlite3.Error as error:
        return LoadedOutcome(number, (), f"{DATABASE}: {error}")
    if values is None:
        return LoadedOutcome(number, (), f"{DATABASE}: its rows are not there")
    row = Row(*values)
    entry = _entry(folder, row)
    if entry is None:
        return LoadedOutcome(number, (), _changed(row))
    if entry.body_is_lost:
        return LoadedOutcome(number, (), f"{BODIES}/{row.row} is missing or was changed")
    if not isinstance(entry.record, Completed):
        return LoadedOutcome(number, (), f"{DATABASE}: the row of its outcome is not there")
    return LoadedOutcome(number, entry.record.frames)
