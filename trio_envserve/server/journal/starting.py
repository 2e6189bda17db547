"""What a server needs of a journal when it starts, of which most stays on the disk.

Theory of operation
-------------------
Nearly all generations have their outcomes: of each only what decides is taken, packed
(:mod:`trio_envserve.core.resting`).  Rows are read in their order, once, and none is held
for longer than its generation is open; so a million keys take seconds and little memory.
Every row is checked by its sum.  A body in a file is checked when somebody asks for it;
here it must be there.

Where anything is wrong this says nothing: :func:`~.reading.read_all` knows the words.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Final

import cbor2

from ...core.journal import KINDS, Completed, Opened, Started
from ...core.key_records import KeyName
from ...core.resting import RestedFields, pack
from .folder import BODIES
from .reading import Found, _check_pages, _take, read_state
from .rows import Row, sum_of
from .store import read_safe

_OPENED: Final = KINDS.index(Opened)
_STARTED: Final = KINDS.index(Started)
_COMPLETED: Final = KINDS.index(Completed)
_ALL = "SELECT row, number, uptime_s, record, file, body, sum FROM records ORDER BY row"


class _Wrong(Exception):
    """The journal is not whole."""


class _Open:
    """A generation without an outcome, as far as was read."""

    __slots__ = ("asked", "executions", "rows")

    def __init__(self, asked: list[Any], row: Row) -> None:
        self.asked = asked
        self.rows = [row]
        self.executions = int(asked[7])


def read_start(folder: Path, connection: sqlite3.Connection) -> Found | None:
    """What is open, and what rests; None if anything is wrong, or may be."""
    try:
        found = Found(read_state(connection))
        _Reading(folder, found).read(connection)
        return None if _check_pages(connection) else found
    except (sqlite3.Error, OSError, ValueError, TypeError, LookupError, OverflowError, _Wrong):
        return None


class _Reading:
    def __init__(self, folder: Path, found: Found) -> None:
        assert found.state is not None
        self._folder = folder
        self._found = found
        self._state = found.state
        self._open: dict[int, _Open] = {}
        self._others: list[Row] = []
        """Of commands, and of what cannot rest."""
        self._named = set(os.listdir(folder / BODIES))

    def read(self, connection: sqlite3.Connection) -> None:
        """All of it."""
        safe = read_safe(self._folder)
        if safe is None or safe[0] > self._state.records:
            raise _Wrong
        all_sums = self._state.all_sums
        for values in connection.execute(_ALL):
            row = Row(*values)
            if row.sum != sum_of(*values[:-1]):
                raise _Wrong
            all_sums ^= int.from_bytes(row.sum, "little")
            self._row(row)
        if all_sums:
            raise _Wrong
        self._take_open()

    def _row(self, row: Row) -> None:
        if row.file:
            name = str(row.row)
            self._found.files.add(name)
            if name not in self._named:
                raise _Wrong
        if row.number is None:
            self._others.append(row)
            return
        plain: list[Any] = cbor2.loads(row.record)
        if plain[0] == _OPENED:
            self._open[row.number] = _Open(plain, row)
            return
        one = self._open[row.number]
        one.executions += plain[0] == _STARTED
        one.rows.append(row)
        if plain[0] == _COMPLETED:
            del self._open[row.number]
            self._rest(one, plain)

    def _rest(self, one: _Open, completed: list[Any]) -> None:
        _, number, namespace, key, digest, rerun, *_, body_bytes = one.asked
        _, _, header, payload_bytes = completed
        packed = pack(
            RestedFields(
                number, 0.0, 0.0, len(header) + payload_bytes, body_bytes, one.executions, rerun,
                digest, KeyName(namespace, key),
            )
        )  # fmt: skip
        if packed is None:
            self._others += one.rows
        else:
            self._found.at_rest.append(packed)

    def _take_open(self) -> None:
        rows = [*self._others, *(row for one in self._open.values() for row in one.rows)]
        for row in sorted(rows, key=lambda row: row.row):
            _take(self._folder, row, self._found)
        if self._found.problems or any(entry.body_is_lost for entry in self._found.entries):
            raise _Wrong
