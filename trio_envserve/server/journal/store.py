"""The files of a journal, as they are written.  Synchronous: a thread calls it.

Theory of operation
-------------------
A group of records is one transaction, with the row of the state.  A body in a file is safe
before its row: written beside its place, synced, renamed, the folder synced.  Files of rows
that are gone are removed after that is safe.  What fails changes nothing here, and the same
group may be committed again: its rows then have the same numbers.

Most calls are opened and started in one group.  Such a start gets no row: the row of its
generation says that one execution was started before, and that one less may be started,
which is the same to whoever reads it later.  What is closed comes last in its group, all of
it together: nothing follows it.

What is written to a file that nobody finds any more is not safe, though the disk has synced
it.  So each commit looks whether the database and its log are still where they were, and
whether the last commit was its own: locks that somebody has removed keep nobody out.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, final

from ...core.journal import (
    Closed,
    Completed,
    Opened,
    Record,
    ResourceGone,
    Started,
    StateSaved,
)
from ...core.terms import Body
from .folder import BODIES, DATABASE, SAFE, beside, sync_folder
from .rows import (
    APPLICATION,
    RESOURCES_FROM,
    SCHEMA,
    STATES,
    TABLES,
    Packed,
    Row,
    State,
    number_of,
    pack_rows,
    pack_state,
    schema_of,
)

LOG = f"{DATABASE}-wal"
NUMBERED = "WHERE number IN (%s)"
OLD_STATES = f"{NUMBERED} AND {STATES}"
OLD_COMMANDS = "WHERE number IS NULL AND uptime_s < %s"
GET_STATE = "SELECT state FROM state WHERE id = 1"
PUT_STATE = "INSERT OR REPLACE INTO state VALUES (1, ?, ?)"
_MOST_TOGETHER = 128
"""Rows of one statement, with a variable for each value: SQLite before 3.32 takes 999."""
PRUNE_EVERY = 256
"""Old commands are dropped after so many records."""

_DIGITS = 20
"""Digits of each number in ``safe``, which so never gets longer and needs no further space."""
_WRITTEN_SAFE = re.compile(rf"([0-9]{{{_DIGITS}}}) ([0-9]{{{_DIGITS}}}) (.*)\n")
"""What :func:`write_safe` writes: of one that was cut nothing is read."""


class Safe(NamedTuple):
    """Note of how much there is, which is never ahead of what was committed."""

    records: int
    """Number of records that there have ever been."""
    next_number: int
    """Number of the next generation."""
    journal: str
    """Name of the journal, drawn when it was made."""


class FileNotSynced(OSError):
    """Whether a file is safe can never be known any more."""


class TakenOver(OSError):
    """Another process has written to the journal."""


@final
class Store:
    """A journal that may be written."""

    def __init__(
        self, folder: Path, connection: sqlite3.Connection, state: State, command_s: float
    ) -> None:
        self.folder = folder
        self.state = state
        """As it is on disk."""
        self._connection = connection
        self._command_s = command_s
        """So long commands are kept."""
        self._pruned = state.records
        self._last = connection.execute(GET_STATE).fetchone()
        """The state after the last commit."""
        (self._schema,) = connection.execute("PRAGMA user_version").fetchone()
        self._files = {name: _identity(folder / name) for name in (DATABASE, LOG)}
        """Identity of the database and of its log; None: not known yet."""
        noted = read_safe(folder)
        self._name = noted.journal if noted else ""
        self._noted = [folder, *beside(folder)]

    def commit(self, records: Sequence[Record], uptime_s: float) -> None:
        """Make these safe, after all earlier ones.  OSError or sqlite3.Error if that has
        failed; nothing has changed then."""
        state = self.state._replace(uptime_s=uptime_s)
        gone: list[int] = []
        kept, closed = sorted_out(records)
        stale = without_states(kept)
        schema = max(self._schema, schema_of(kept))
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._check_ours()
            if schema > self._schema:
                self._connection.execute(f"PRAGMA user_version = {schema}")
            elif schema > SCHEMA and stale:
                state = self._remove(OLD_STATES, stale, state, gone)
            state = self._put(kept, state)
            if closed:
                state = state._replace(records=state.records + len(closed))
                state = self._remove(NUMBERED, closed, state, gone)
            if state.records - self._pruned >= PRUNE_EVERY:
                self._pruned = state.records
                old_s = uptime_s - self._command_s
                state = self._remove(OLD_COMMANDS, [old_s], state, gone)
            packed = pack_state(state)
            self._connection.execute(PUT_STATE, packed)
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # some errors have rolled it back already
                self._connection.execute("ROLLBACK")
            raise
        self.state, self._last, self._schema = state, packed[:1], schema
        if self._files[LOG] is None:
            self._files[LOG] = _identity(self.folder / LOG)
        self.note()
        for row_number in gone:
            with suppress(OSError):  # the next server removes what nothing names
                (self.folder / BODIES / str(row_number)).unlink()

    def note(self) -> None:
        """Note outside the database, in the folder and beside it, how much there is."""
        noted = Safe(self.state.records, self.state.next_number, self._name)
        for folder in self._noted:
            write_safe(folder, noted)

    def _check_ours(self) -> None:
        """OSError if the files were taken away, or somebody else has written to them."""
        for name, known in self._files.items():
            if known is not None and _identity(self.folder / name) != known:
                why = f"{name} was removed, moved or replaced while the server uses it"
                raise OSError(errno.ESTALE, why)
        if self._connection.execute(GET_STATE).fetchone() != self._last:
            raise TakenOver(errno.ESTALE, f"another process has written to {DATABASE}")

    def _put(self, records: Sequence[Record], state: State) -> State:
        """Add rows, and the files beside them."""
        packed = pack_rows(records, state.records, state.uptime_s)
        for row, body in packed.bodies.items():
            write_body(self.folder / BODIES, row, body)
        if packed.bodies:
            _sync(self.folder / BODIES)
        insert(self._connection, packed.values)
        opened = [record.number for record in records if isinstance(record, Opened)]
        return state._replace(
            records=state.records + len(records),
            all_sums=state.all_sums ^ packed.sums,
            next_number=opened[-1] + 1 if opened else state.next_number,
        )

    def _remove(
        self, which: str, values: Sequence[float], state: State, gone: list[int]
    ) -> State:  # fmt: skip
        """Remove rows.  ``gone`` gets those that had a file."""
        all_sums = state.all_sums
        for first, end in portions(len(values)):
            some = values[first:end]
            where = which % ", ".join("?" * len(some))
            found = self._connection.execute(f"SELECT row, file, sum FROM records {where}", some)
            for row, file, sum in found.fetchall():
                all_sums ^= number_of(sum)
                if file:
                    gone.append(row)
            self._connection.execute(f"DELETE FROM records {where}", some)
        return state._replace(all_sums=all_sums)

    def compact(self) -> None:
        """Give back the room of rows that are gone."""
        self._connection.execute("VACUUM")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


def insert(connection: sqlite3.Connection, values: Sequence[Any]) -> None:
    """Add rows, given as their values, one after the other."""
    columns = len(Row._fields)
    for first, end in portions(len(values) // columns):
        rows_sql = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * (end - first))
        some = values[first * columns : end * columns]
        connection.execute(f"INSERT INTO records VALUES {rows_sql}", some)


def portions(count: int) -> Iterator[tuple[int, int]]:
    """From where to where, in as few as powers of two can be: each is one statement, which lets
    go of Python's lock several times, and where another thread is busy it may wait 5 ms each
    time until it has that again.  Of few sizes, so that each statement is made once."""
    first = 0
    while first < count:
        end = first + min(_MOST_TOGETHER, 1 << ((count - first).bit_length() - 1))
        yield first, end
        first = end


def sorted_out(records: Iterable[Record]) -> tuple[list[Record], list[int]]:
    """The records that get a row, and the numbers of those that are closed, or gone."""
    rows: list[Record] = []
    closed: list[int] = []
    opened: dict[int, tuple[int, Opened]] = {}
    for record in records:
        if isinstance(record, Started) and record.number in opened:
            index, earlier = opened.pop(record.number)
            rows[index] = Opened._make((
                *earlier[:5], earlier.allowance - 1, earlier.earlier + 1, earlier.caller,
                earlier.body, record.incarnation, record.dispatch, earlier.execution_s,
                earlier.grace_s,
            ))  # fmt: skip
        elif isinstance(record, Closed):
            closed.append(record.number)
        elif isinstance(record, ResourceGone):
            closed.append(RESOURCES_FROM + record.resource)
        else:
            if isinstance(record, Opened):
                opened[record.number] = len(rows), record
            rows.append(record)
    return rows, closed


def without_states(rows: list[Record]) -> list[int]:
    """Take out of these records the states that later ones replace, or end.  Returns the numbers
    of the generations of which earlier states go, too."""
    newest: dict[int, Record] = {}
    for record in rows:
        if isinstance(record, (StateSaved, Completed)):
            newest[record.number] = record
    if newest:
        rows[:] = [
            record for record in rows
            if not isinstance(record, StateSaved) or newest[record.number] is record
        ]  # fmt: skip
    return list(newest)


def connect(folder: Path, *, mode: str) -> sqlite3.Connection:
    """Open the database: ``rw``, ``ro``, or ``rwc`` to make it.  The threads that use it
    take turns."""
    connection = sqlite3.connect(
        f"{(folder / DATABASE).absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None,
        check_same_thread=False, timeout=5.0,
    )  # fmt: skip
    try:
        # What a corrupt file says of itself is not believed, and what it names not run.
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def create(folder: Path, state: State, packed: Packed | None = None, schema: int = SCHEMA) -> None:
    """Make the files of a journal in a folder that has none, with these rows.  ``safe``
    comes last: without it nothing was ever there."""
    bodies = folder / BODIES
    bodies.mkdir(mode=0o700, exist_ok=True)
    connection = connect(folder, mode="rwc")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {schema}")
        for table in TABLES:
            connection.execute(table)
        if packed is not None:
            for row, body in packed.bodies.items():
                write_body(bodies, row, body)
            insert(connection, packed.values)
        connection.execute(PUT_STATE, pack_state(state))
        sync_folder(bodies)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    noted = read_safe(folder)  # of a journal that is repaired
    name = noted.journal if noted else secrets.token_hex(8)
    (folder / SAFE).touch(mode=0o600)
    write_safe(folder, Safe(state.records, state.next_number, name))
    sync_folder(folder)


def write_body(bodies: Path, row: int, body: Body) -> None:
    """Write a body's file, and make safe what is in it."""
    beside = bodies / f"{row}.new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(body).cast("B")
        while view:
            view = view[os.write(fd, view) :]
        try:
            os.fsync(fd)
        except OSError as error:
            raise FileNotSynced(error.errno, error.strerror, str(beside)) from error
    finally:
        os.close(fd)
    os.replace(beside, bodies / str(row))


def _sync(bodies: Path) -> None:
    try:
        sync_folder(bodies)
    except OSError as error:
        raise FileNotSynced(error.errno, error.strerror, str(bodies)) from error


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is, if there is one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def write_safe(folder: Path, noted: Safe) -> None:
    """Note outside the database what it has, also if somebody has removed the file.  Without
    this a loss is not seen, but there is none: so it is no failure."""
    with suppress(OSError):
        fd = os.open(folder / SAFE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            numbers = f"{noted.records:0{_DIGITS}} {noted.next_number:0{_DIGITS}}"
            text = f"{numbers} {noted.journal}\n"
            os.pwrite(fd, text.encode(), 0)
        finally:
            os.close(fd)


def read_safe(folder: Path) -> Safe | None:
    """The note in a folder; None if there is none that can be read."""
    try:
        found = _WRITTEN_SAFE.match((folder / SAFE).read_text("ascii"))
    except (OSError, ValueError):
        return None
    return None if found is None else Safe(int(found[1]), int(found[2]), found[3])


def is_final(error: Exception) -> bool:
    """Whether it is of no use to try again: after an error of a sync nobody knows what is
    safe, and what another process has written is not known here."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return isinstance(error, FileNotSynced | TakenOver) or "FSYNC" in name
