"""The part of a journal that a server needs at its start; most stays on the disk.

Theory of operation
-------------------
Nearly all generations have their outcomes: of each only what decides is taken, packed
(:mod:`trio_envserve.core.archive`).  Rows are read in their order, once, and none is held
for longer than its generation is open; so a million keys take seconds and little memory.
Every row is checked by its sum.  A body in a file is checked when somebody asks for it;
here it must be there.

Meanwhile a thread lets SQLite check its pages, without Python's lock and over a connection
of its own: nobody writes yet.  It is the whole check, since a quick one leaves out whether an
index has each row, and no sum of a row says that.

Where anything is wrong this says nothing: :func:`~.reading.read_all` knows the words.
"""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import cbor2

from ...core.archive import pack
from ...core.journal import KINDS, Completed, Opened, Started
from .folder import BODIES
from .reading import JournalContents, _check_pages, _take, read_state
from .rows import RESOURCES_FROM, Row, whole_sums
from .store import connect, read_safe

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
            _Reading(folder, found).read(connection)
            return None if problems.result() else found
    except (sqlite3.Error, OSError, ValueError, TypeError, LookupError, OverflowError, _Wrong):
        return None


def _problems_of_pages(folder: Path) -> list[str]:
    with closing(connect(folder, mode="ro")) as connection:
        return _check_pages(connection)


class _Reading:
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
