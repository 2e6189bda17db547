"""Reading one outcome from a journal, while its server writes others.  Synchronous: a thread
calls it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ...core.journal import Completed
from ...core.terms import Body
from .folder import BODIES, DATABASE
from .reading import _body
from .rows import Row, read_row
from .store import connect

_NEWEST = "SELECT * FROM records WHERE number = ? ORDER BY row DESC LIMIT 1"


class LoadedOutcome(NamedTuple):
    """The outcome of a generation, as the journal has it."""

    number: int
    frames: tuple[Body, ...] = ()
    """None if it could not be read."""
    why: str = ""


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
    if not row.is_whole():
        return LoadedOutcome(number, (), f"{DATABASE}: row {row.row!r} was changed")
    body = row.body
    if row.file:
        body = _body(folder / BODIES / str(row.row), row)
        if body is None:
            return LoadedOutcome(number, (), f"{BODIES}/{row.row} is missing or was changed")
    record = read_row(row, body)
    if not isinstance(record, Completed):
        return LoadedOutcome(number, (), f"{DATABASE}: the row of its outcome is not there")
    return LoadedOutcome(number, record.frames)
