"""Reading a journal: its records, and all that is wrong with it.

Nothing here writes.  A record is taken for what it says only if its sum is right; what is
wrong is told in words, with the key where that is known.
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ...core.errors import ServerStartError
from ...core.journal import Closed, Completed, Opened, Record, StateSaved
from .folder import BODIES, DATABASE, SAFE
from .rows import (
    APPLICATION,
    SCHEMA,
    SCHEMA_WITH_RESOURCES,
    SCHEMA_WITH_STATES,
    Row,
    State,
    digest_of,
    read_row,
    unpack_state,
)
from .store import connect, number_of, read_safe

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
    if not row.is_whole():
        found.problems.append(f"{DATABASE}: row {row.row!r} was changed")
        found.is_known = False
        return
    body, is_lost = row.body, False
    if row.file:
        found.files.add(str(row.row))
        body = _body(folder / BODIES / str(row.row), row)
        is_lost = body is None
    found.entries.append(JournalEntry(row, read_row(row, body), is_lost))


def _body(path: Path, row: Row) -> bytes | None:
    try:
        body = path.read_bytes()
    except OSError:
        return None
    return body if digest_of(body) == row.body else None


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
