"""A sequence diagram as text: lifelines side by side, time downwards.

Theory of operation
-------------------
A :class:`Row` is a message (from lane to lane, at its arrival) or something that
happened (a word in its lane, or across all of them).  Rows that only repeat an earlier
one are counted.  The caller knows the messages, and says which rows there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

WIDTH = 100

MOST_ROWS = 50
FIRST_ROWS = 10
"""Most rows of a drawing, and how many of them come before those that are left out."""

EVERYWHERE = -1
"""The lane of what happens to the whole world."""


class Lanes(NamedTuple):
    """The lifelines, from left to right."""

    names: tuple[str, ...]
    columns: tuple[int, ...]


@dataclasses.dataclass(slots=True)
class Row:
    """One line of the drawing, before it is drawn."""

    at_s: float
    lane: int
    """Where it happened; of a message, where it comes from."""
    text: str
    to: int | None = None
    """Where a message goes; None if it is no message."""
    lost: bool = False
    late: bool = False
    at: str = ""
    """The actor, in a lane that stands for several."""
    times: int = 1

    def repeats(self, other: Row) -> bool:
        """Whether it is the same once more."""
        return dataclasses.replace(other, at_s=self.at_s, times=self.times) == self


def draw(rows: Iterable[Row], lanes: Lanes, *, statements: tuple[str, ...] = ()) -> list[str]:
    """The drawing's lines, its heading first.

    Rows that begin with one of the ``statements`` are sent again and again, whether
    or not anything has changed.
    """
    kept: list[Row] = []
    for row in rows:
        before = _same_before(kept, row, statements)
        if before is None:
            kept.append(row)
        else:
            before.times += 1
    left_out = max(0, len(kept) - MOST_ROWS)
    if left_out:
        text = f"{left_out} rows left out"
        hidden = Row(kept[FIRST_ROWS].at_s, EVERYWHERE, text)
        kept[FIRST_ROWS : FIRST_ROWS + left_out] = [hidden]
    return [_heading(lanes), *(_line(row, lanes) for row in kept)]


def _same_before(rows: list[Row], row: Row, statements: tuple[str, ...]) -> Row | None:
    """The row that this one only repeats: the last, or for a statement the last
    of its kind, with nothing but statements since."""
    for before in reversed(rows):
        if before.repeats(row):
            return before
        if not (row.text.startswith(statements) and before.text.startswith(statements)):
            return None
    return None


def _heading(lanes: Lanes) -> str:
    columns = [" "] * WIDTH
    _put(columns, 2, "seconds")
    for column, name in zip(lanes.columns, lanes.names, strict=True):
        _put(columns, max(10, column - len(name) // 2), name)
    return "".join(columns).rstrip()


def _line(row: Row, lanes: Lanes) -> str:
    columns = [" "] * WIDTH
    for column in lanes.columns:
        columns[column] = "|"
    _put(columns, 0, f"{row.at_s:9.3f}")
    text = row.text if row.times == 1 else f"{row.text} x{row.times}"
    if row.to is not None:
        _put_message(columns, row, row.to, text, lanes)
    elif row.lane == EVERYWHERE:
        _put(columns, 11, f" {text} ".center(WIDTH - 11, "~"))
    else:
        _put_note(columns, row, text, lanes)
    return "".join(columns).rstrip()


def _put_note(columns: list[str], row: Row, text: str, lanes: Lanes) -> None:
    here = lanes.columns[row.lane]
    if 0 < row.lane == len(lanes.columns) - 1:  # there is room to the left only
        text = text[: max(0, here - lanes.columns[row.lane - 1] - 3)]
        _put(columns, here - len(text) - 1, f"{text} *")
        _put(columns, here + 2, row.at)
    else:
        _put(columns, here, f"* {text} ")


def _put_message(columns: list[str], row: Row, to: int, text: str, lanes: Lanes) -> None:
    left, right = lanes.columns[min(row.lane, to)] + 1, lanes.columns[max(row.lane, to)]
    line, room = ("~" if row.late else "-"), right - left
    start, end = ("     x", "x     ") if row.lost else ("<", ">")
    words = text[: max(0, room - len(end) - 5)]
    said = len(words) + 3 if words else 0
    middle = line * (room - said - len(end))
    if to < row.lane:
        drawn = start[:room] + middle + (f" {words} {line}" if words else "")
    else:
        drawn = (f"{line} {words} " if words else "") + middle + end[:room]
    _put(columns, left, drawn)
    _put(columns, right + 2, row.at)


def _put(columns: list[str], at: int, text: str) -> None:
    text = text[: WIDTH - at]
    columns[at : at + len(text)] = text
