"""The keys of a journal, after a crash at any record.

A record is there only if all before it are, but for what is over: the records of a closed
generation may be gone, and those of old commands.  So each prefix of what was appended is a
history that could have been, and what the world has seen is in each that can be found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from .journal import Closed, Commanded, Completed, Joined, Opened, Record, Started
from .terms import Body, Incarnation


@dataclasses.dataclass(slots=True)
class Left:
    """A generation that was open."""

    opened: Opened
    callers: set[bytes]
    """The callers that may count for it."""
    executions: int = 0
    """Starts that are recorded, of all epochs with this journal."""
    frames: tuple[Body, ...] | None = None
    """Frames of its outcome; None: it has none."""
    last: tuple[Incarnation, int] = b"", 0
    """The life of the worker to which the last one of them was dispatched, and its number
    there."""


@dataclasses.dataclass(slots=True)
class Remains:
    """All that a journal has left."""

    generations: dict[int, Left]
    commands: list[Commanded]
    next_number: int


def remains_of(records: Iterable[Record]) -> Remains:
    """Read a journal, the oldest record first."""
    left = Remains({}, [], 0)
    for record in records:
        _read(left, record)
    return left


def _read(left: Remains, record: Record) -> None:
    match record:
        case Opened():
            left.generations[record.number] = _opened(record)
            left.next_number = max(left.next_number, record.number + 1)
        case Joined(number, caller):
            left.generations[number].callers.add(caller)
        case Started(number, incarnation, dispatch):
            left.generations[number].executions += 1
            left.generations[number].last = incarnation, dispatch
        case Completed(number, frames):
            left.generations[number].frames = frames
        case Closed(number):
            left.generations.pop(number, None)
            left.next_number = max(left.next_number, number + 1)
        case _:
            left.commands.append(record)


def _opened(record: Opened) -> Left:
    """Generation as its opening record has it.  A first start may stand there too, as one of the
    earlier executions and one that is allowed no more."""
    last = record.incarnation, record.dispatch
    if not record.incarnation:
        return Left(record, {record.caller}, last=last)
    before = record._replace(
        allowance=record.allowance + 1, earlier=record.earlier - 1, incarnation=b"", dispatch=0
    )
    return Left(before, {record.caller}, executions=1, last=last)
