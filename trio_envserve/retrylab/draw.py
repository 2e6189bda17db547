"""A failure as text: its schedule, and a sequence diagram of its run.

Theory of operation
-------------------
A diagram has lifelines side by side, and time downwards.  A :class:`DiagramRow` is a message
(from lane to lane, at its arrival) or something that happened (a word in its lane, or
across all of them).  Rows that only repeat an earlier one are counted.  :func:`draw`
gets the rows; :func:`sequence` makes them from the trace of a system's run: a lifeline for
each actor that has a part in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple, TypeAlias

from . import author
from .author import raised
from .judges import Violation
from .system import FAULT, BrokenSystem, Envelope, Piece, System
from .world import LOST, STRAY, TraceLine

WIDTH = 100

MOST_ROWS = 50
FIRST_ROWS = 10
"""Most rows of a drawing, and the number of them before those that are left out."""

EVERYWHERE = -1
"""Lane of an event of the whole world."""


class Lanes(NamedTuple):
    """The lifelines, from left to right."""

    names: tuple[str, ...]
    columns: tuple[int, ...]


@dataclasses.dataclass(slots=True)
class DiagramRow:
    """One line of the drawing, before it is drawn."""

    at_s: float
    lane: int
    """Index of the lifeline that it happened in; of a message, of its sender's."""
    text: str
    to: int | None = None
    """Index of the receiver's lifeline; None for a row that is no message."""
    lost: bool = False
    late: bool = False
    at: str = ""
    """Name of the actor, in a lane that stands for several."""
    times: int = 1

    def repeats(self, other: DiagramRow) -> bool:
        """Whether the other row differs in nothing but its time and its count."""
        return dataclasses.replace(other, at_s=self.at_s, times=self.times) == self


def draw(
    rows: Iterable[DiagramRow], lanes: Lanes, *, statements: tuple[str, ...] = ()
) -> list[str]:
    """The drawing's lines, its heading first.

    Rows that begin with one of the ``statements`` are sent again and again, whether
    or not anything has changed.
    """
    kept: list[DiagramRow] = []
    for row in rows:
        before = _same_before(kept, row, statements)
        if before is None:
            kept.append(row)
        else:
            before.times += 1
    left_out = max(0, len(kept) - MOST_ROWS)
    if left_out:
        text = f"{left_out} rows left out"
        hidden = DiagramRow(kept[FIRST_ROWS].at_s, EVERYWHERE, text)
        kept[FIRST_ROWS : FIRST_ROWS + left_out] = [hidden]
    return [_heading(lanes), *(_line(row, lanes) for row in kept)]


def _same_before(
    rows: list[DiagramRow], row: DiagramRow, statements: tuple[str, ...]
) -> DiagramRow | None:
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


def _line(row: DiagramRow, lanes: Lanes) -> str:
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


def _put_note(columns: list[str], row: DiagramRow, text: str, lanes: Lanes) -> None:
    here = lanes.columns[row.lane]
    if 0 < row.lane == len(lanes.columns) - 1:  # there is room to the left only
        text = text[: max(0, here - lanes.columns[row.lane - 1] - 3)]
        _put(columns, here - len(text) - 1, f"{text} *")
        _put(columns, here + 2, row.at)
    else:
        _put(columns, here, f"* {text} ")


def _put_message(columns: list[str], row: DiagramRow, to: int, text: str, lanes: Lanes) -> None:
    left, right = lanes.columns[min(row.lane, to)] + 1, lanes.columns[max(row.lane, to)]
    line, width = ("~" if row.late else "-"), right - left
    start, end = ("     x", "x     ") if row.lost else ("<", ">")
    words = text[: max(0, width - len(end) - 5)]
    taken = len(words) + 3 if words else 0
    middle = line * (width - taken - len(end))
    if to < row.lane:
        drawn = start[:width] + middle + (f" {words} {line}" if words else "")
    else:
        drawn = (f"{line} {words} " if words else "") + middle + end[:width]
    _put(columns, left, drawn)
    _put(columns, right + 2, row.at)


def _put(columns: list[str], at: int, text: str) -> None:
    text = text[: WIDTH - at]
    columns[at : at + len(text)] = text


COLUMNS = 96
MOST_LINES = 25
"""Most moments of a schedule that are shown."""


def timetable(moments: Iterable[tuple[float, str]]) -> list[str]:
    """Lines of the first :data:`MOST_LINES` moments of a run, in order."""
    shown = sorted(moments)
    lines: list[str] = []
    for at_s, what in shown[:MOST_LINES]:
        lines += wrap(f"{at_s:6.2f} s  {what}", COLUMNS, subsequent_indent=" " * 12)
    if len(shown) > MOST_LINES:
        lines.append(f"          and {len(shown) - MOST_LINES} more")
    return lines


def listed(what: str, items: Sequence[str]) -> list[str]:
    """Lines of ``what: one, another``; none if there are no items."""
    line = f"{what}: {', '.join(items)}"
    return wrap(line, COLUMNS, subsequent_indent="  ") if items else []


DRAWN = (
    "asks ", "does ", "is told ", "begins ", "ends ", "is stopped", "goes on", "dies: ", "starts",
)  # fmt: skip
"""Beginnings of the records about an actor that are drawn."""

FIRST_COLUMN, LAST_COLUMN = 12, WIDTH - 10

Trace: TypeAlias = Iterable[TraceLine[Envelope]]


def sequence(system: System, trace: Trace, violation: Violation) -> list[str]:
    """The drawing's lines, its heading first and the violation last."""
    names = list(system.actors)
    rows = list(_rows(system, trace, violation))
    seen = {lane for row in rows for lane in (row.lane, row.to) if lane is not None}
    shown = [lane for lane in range(len(names)) if lane in seen] or [0]
    for row in rows:
        row.lane = shown.index(row.lane) if row.lane in shown else EVERYWHERE
        row.to = None if row.to is None else shown.index(row.to)
    return draw(rows, lanes([names[lane] for lane in shown]))


def lanes(names: list[str]) -> Lanes:
    """Lifelines of these names, side by side over the whole width."""
    width = (LAST_COLUMN - FIRST_COLUMN) / max(1, len(names) - 1)
    columns = (FIRST_COLUMN + round(index * width) for index in range(len(names)))
    return Lanes(tuple(names), tuple(columns))


def _rows(system: System, trace: Trace, violation: Violation) -> Iterator[DiagramRow]:
    """Rows from the beginning of the run to the violation."""
    lane_of = {name: lane for lane, name in enumerate(system.actors)}
    lives = dict.fromkeys(lane_of, 0)
    for record in trace:
        if record.at_s > violation.at_s:
            break
        if record.message is not None:
            envelope = record.message
            text = _described(system.describe, envelope)
            if text:
                yield DiagramRow(
                    record.at_s, lane_of[envelope.sender], text, lane_of[envelope.to],
                    lost=record.what in LOST, late=record.what in STRAY,
                )  # fmt: skip
        elif record.who == FAULT:
            yield DiagramRow(record.at_s, EVERYWHERE, record.what)
        elif record.who in lane_of and record.what.startswith(DRAWN):
            if record.what == "starts":
                lives[record.who] += 1
                if lives[record.who] == 1:
                    continue  # the first start, which every actor has
            yield DiagramRow(record.at_s, lane_of[record.who], _short(record.what))
    yield DiagramRow(violation.at_s, EVERYWHERE, f"{violation.guarantee}: broken")


def _short(what: str) -> str:
    if what == "starts":
        return "starts again"
    return what.replace("dies: killed", "is killed").replace("dies: power lost", "loses power")


def _described(describe: Callable[[object], str], envelope: Envelope) -> str:
    if isinstance(envelope.message, Piece):
        return " ".join(envelope.message.text().split())
    ended = author.call(describe, envelope.message)
    if ended.error is not None:
        raise BrokenSystem(f"describe raised:\n{raised(ended.error)}")
    if not isinstance(ended.value, str):
        raise BrokenSystem(f"describe gives a str, not {ended.value!r}")
    return " ".join(ended.value.split())  # in one line
