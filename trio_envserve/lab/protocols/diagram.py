"""A run drawn as text: a lifeline for each actor that has a part in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from ... import foreign
from ..kit.diagram import EVERYWHERE, WIDTH, Lanes, Row, draw
from ..kit.events import Record
from ..kit.network import LOST, STRAY
from ..kit.violation import Violation
from .interface import FAULT, BrokenProtocol, Protocol
from .tracebacks import raised
from .world import Envelope

DRAWN = ("asks ", "does ", "is told ", "is stopped", "goes on", "dies: ", "starts")
"""The beginnings of the records that are drawn, of those about an actor."""

FIRST_COLUMN, LAST_COLUMN = 12, WIDTH - 10

Trace: TypeAlias = Iterable[Record[Envelope]]


def sequence(protocol: Protocol, trace: Trace, violation: Violation) -> list[str]:
    """The drawing's lines, its heading first and the violation last."""
    names = list(protocol.actors)
    rows = list(_rows(protocol, trace, violation))
    seen = {lane for row in rows for lane in (row.lane, row.to) if lane is not None}
    shown = [lane for lane in range(len(names)) if lane in seen] or [0]
    for row in rows:
        row.lane = shown.index(row.lane) if row.lane in shown else EVERYWHERE
        row.to = None if row.to is None else shown.index(row.to)
    return draw(rows, lanes([names[lane] for lane in shown]))


def lanes(names: list[str]) -> Lanes:
    """Side by side over the whole width."""
    room = (LAST_COLUMN - FIRST_COLUMN) / max(1, len(names) - 1)
    columns = (FIRST_COLUMN + round(index * room) for index in range(len(names)))
    return Lanes(tuple(names), tuple(columns))


def _rows(protocol: Protocol, trace: Trace, violation: Violation) -> Iterator[Row]:
    """From the beginning to where it broke."""
    lane_of = {name: lane for lane, name in enumerate(protocol.actors)}
    lives = dict.fromkeys(lane_of, 0)
    for record in trace:
        if record.at_s > violation.at_s:
            break
        if record.message is not None:
            envelope = record.message
            text = _described(protocol.describe, envelope)
            if text:
                yield Row(
                    record.at_s, lane_of[envelope.sender], text, lane_of[envelope.to],
                    lost=record.what in LOST, late=record.what in STRAY,
                )  # fmt: skip
        elif record.who == FAULT:
            yield Row(record.at_s, EVERYWHERE, record.what)
        elif record.who in lane_of and record.what.startswith(DRAWN):
            if record.what == "starts":
                lives[record.who] += 1
                if lives[record.who] == 1:
                    continue  # as everybody does
            yield Row(record.at_s, lane_of[record.who], _short(record.what))
    yield Row(violation.at_s, EVERYWHERE, f"{violation.guarantee}: broken")


def _short(what: str) -> str:
    return {"starts": "starts again"}.get(what, what.replace("dies: killed", "is killed"))


def _described(describe: Callable[[object], str], envelope: Envelope) -> str:
    ended = foreign.call(describe, envelope.message)
    if ended.error is not None:
        raise BrokenProtocol(f"describe raised:\n{raised(ended.error)}")
    if not isinstance(ended.value, str):
        raise BrokenProtocol(f"describe gives a str, not {ended.value!r}")
    return " ".join(ended.value.split())  # in one line
