"""Tools for a journal without a server: look, check, repair, adopt, compact.

Looking takes no lock: a server may use the folder meanwhile, and what it removes then is
left out.  All else needs the folder for itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ServerStartError
from ...core.journal import (
    Left,
    LeftResource,
    Opened,
    Record,
    Remains,
    ResourceOpened,
    remains_of,
)
from .folder import DATABASE, beside, identity_of
from .opening import damaged, lock, open_folder, unlock, words
from .reading import JournalContents, check_kind, read_all, read_state
from .repair import Repaired, repair
from .rows import RESOURCES_FROM, Row, State, number_of, pack_rows, pack_state, read_row
from .store import PUT_STATE, Safe, connect, insert, read_safe, write_safe


class Kept(NamedTuple):
    """A generation in a journal."""

    left: Left
    opened_s: float
    """Moment at which it was opened, in seconds that servers were up."""
    body_is_lost: bool

    @property
    def executions(self) -> int:
        """Executions that may have been started, in all epochs."""
        return self.left.executions + self.left.opened.earlier

    @property
    def state(self) -> str:
        """``waiting``, ``started`` or ``completed``."""
        if self.left.frames is not None:
            return "completed"
        return "started" if self.executions else "waiting"

    @property
    def size_bytes(self) -> int:
        """Bytes of input and outcome."""
        return len(self.left.opened.body) + sum(map(len, self.left.frames or ()))


class KeptResource(NamedTuple):
    """A resource in a journal that is not gone."""

    left: LeftResource
    age_s: float
    """Time that servers were up since it was intended."""

    @property
    def state(self) -> str:
        """``intended``, ``held`` by its execution, ``waiting`` for a worker that destroys it, or
        ``cleaning``."""
        left = self.left
        if not left.incarnation:
            return "waiting"
        if left.turn:
            return "cleaning"
        return "intended" if left.handle is None else "held"


def kept(found: JournalContents) -> list[Kept]:
    """The generations that can be read, in the order in which they were opened."""
    left, began, lost = _readable(found)
    return [Kept(each, began[n], n in lost) for n, each in left.generations.items()]


def kept_resources(found: JournalContents) -> list[KeptResource]:
    """The resources that can be read and are not gone, in the order of their intents."""
    left, began, _ = _readable(found)
    known_s = 0.0 if found.state is None else found.state.uptime_s
    now_s = max([known_s, *(entry.row.uptime_s for entry in found.entries)])
    return [
        KeptResource(each, now_s - began[RESOURCES_FROM + n]) for n, each in left.resources.items()
    ]


def _readable(found: JournalContents) -> tuple[Remains, dict[int | None, float], set[int | None]]:
    """What is left of the generations and resources whose first records can be read.  By the
    numbers of their rows: when each began, and those of which a body is lost."""
    began: dict[int | None, float] = {}
    lost: set[int | None] = set()
    records: list[Record] = []
    for entry in found.entries:
        number = entry.row.number
        if isinstance(entry.record, Opened | ResourceOpened):
            began[number] = entry.row.uptime_s
        if number in began:  # commands have no number
            records.append(entry.record)
            if entry.body_is_lost:
                lost.add(number)
    return remains_of(records), began, lost


def look(folder: Path) -> JournalContents:
    """The contents of a folder.  Raises ServerStartError if that is no journal."""
    _need(folder)
    with _connected(folder, "ro") as connection:
        connection.execute("BEGIN")  # one moment of it
        check_kind(folder, connection)
        return read_all(folder, connection)


def check(folder: Path) -> list[str]:
    """All that is wrong.  Raises ServerStartError if it is in use, or no journal."""
    with _locked(folder):
        try:
            return look(folder).problems
        except ServerStartError as refused:
            if isinstance(refused.__cause__, sqlite3.DatabaseError):
                return [f"{DATABASE}: {refused.__cause__}"]
            raise


def mend(folder: Path) -> Repaired:
    """Keep what can be proven.  Raises ServerStartError."""
    with _locked(folder), words(folder):
        return repair(folder, identity_of(folder))


def adopt(folder: Path) -> int:
    """Take it over from elsewhere; how often that has been done.  Raises ServerStartError."""
    with _locked(folder), _connected(folder, "rw") as connection:
        check_kind(folder, connection)
        try:
            state = read_state(connection)
        except ValueError as error:
            raise ServerStartError(damaged(folder, [f"{DATABASE}: {error}"])) from error
        identity = identity_of(folder)
        connection.execute("BEGIN IMMEDIATE")
        if identity.host != state.identity.host:
            state = _move_resources(connection, state, identity.host)
        state = state._replace(adopted=state.adopted + 1, identity=identity)
        connection.execute(PUT_STATE, pack_state(state))
        connection.execute("COMMIT")
        noted = read_safe(folder)
        for where in beside(folder):
            write_safe(
                where, Safe(state.records, state.next_number, noted.journal if noted else "")
            )
        return state.adopted


def _move_resources(connection: sqlite3.Connection, state: State, machine: str) -> State:
    """Let the resources that only the server's own machine can destroy be those of a host with that
    machine's id: they are not on this one.  Those that this one has left elsewhere are its own
    again."""
    hosts: dict[str | None, str] = {"": state.identity.host, machine: ""}
    found = connection.execute(f"SELECT * FROM records WHERE number >= {RESOURCES_FROM}")
    for row in map(Row._make, found.fetchall()):
        record = read_row(row, None) if row.is_whole() else None
        if isinstance(record, ResourceOpened) and record.host in hosts:
            moved = record._replace(host=hosts[record.host])
            packed = pack_rows([moved], row.row - 1, row.uptime_s)
            connection.execute("DELETE FROM records WHERE row = ?", [row.row])
            insert(connection, packed.values)
            sums = state.all_sums ^ number_of(row.sum) ^ packed.sums
            state = state._replace(all_sums=sums)
    return state


def compact(folder: Path, command_s: float) -> tuple[int, int]:
    """Give back room; the bytes of the database before and after.  Raises ServerStartError."""
    _need(folder)
    opened = open_folder(folder, command_s)
    try:
        with words(folder):
            before = _size(folder)
            opened.store.compact()
            return before, _size(folder)
    finally:
        opened.store.close()
        unlock(opened.locks)


def _size(folder: Path) -> int:
    parts = (folder / DATABASE, folder / f"{DATABASE}-wal")
    return sum(part.stat().st_size for part in parts if part.exists())


def _need(folder: Path) -> None:
    """Nothing is made here by mistake."""
    if not folder.is_dir():
        raise ServerStartError(f"there is no folder {folder}")
    if not (folder / DATABASE).exists() and not (folder / "safe").exists():
        raise ServerStartError(f"there is no journal in {folder}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    _need(folder)
    locks = lock(folder)
    try:
        yield
    finally:
        unlock(locks)


@contextmanager
def _connected(folder: Path, mode: str) -> Iterator[sqlite3.Connection]:
    with words(folder):
        connection = connect(folder, mode=mode)
        try:
            yield connection
        finally:
            connection.close()
