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

    def __init__(self, asked: list[Any]) -> None:
        self.asked = asked
        self.rows: list[tuple[Any, ...]] = []
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
            if values[-1] != sum_of(*values[:-1]):
                raise _Wrong
            all_sums ^= int.from_bytes(values[-1], "little")
            self._row(*values)
        if all_sums:
            raise _Wrong
        self._take_open()

    def _row(
        self, row: int, number: int | None, uptime_s: float, record: bytes, file: int,
        body: bytes | None, sum: bytes,
    ) -> None:  # fmt: skip
        if file:
            name = str(row)
            self._found.files.add(name)
            if name not in self._named:
                raise _Wrong
        if number is None:
            self._others.append(Row(row, number, uptime_s, record, file, body, sum))
            return
        kind = record[1]  # a list of a few, and its first is a small number
        one = self._open.get(number)
        if kind == _OPENED:
            one = self._open[number] = _Open(cbor2.loads(record))
        elif one is None:
            raise _Wrong
        one.executions += kind == _STARTED
        one.rows.append((row, number, uptime_s, record, file, body, sum))
        if kind == _COMPLETED:
            del self._open[number]
            self._rest(one, cbor2.loads(record))

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
            self._others += (Row(*row) for row in one.rows)
        else:
            self._found.at_rest.append(packed)

    def _take_open(self) -> None:
        rows = [*self._others, *(Row(*row) for one in self._open.values() for row in one.rows)]
        for row in sorted(rows, key=lambda row: row.row):
            _take(self._folder, row, self._found)
        if self._found.problems or any(entry.body_is_lost for entry in self._found.entries):
            raise _Wrong
