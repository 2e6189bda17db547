"""The pictures of the states of a work and of the layers, as SVG.

Theory of operation
-------------------
No arrow is written down here.  Arrows of the states are found: a work with a key is brought
into each state, given each input, and asked where it is.  Arrows of the layers are the rule
that ``tests/test_layers.py`` checks.
"""

from __future__ import annotations

import html
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trio_envserve.core import messages
from trio_envserve.core.key_records import KeyAct, Keyed, KeyName
from trio_envserve.core.requests import RetainedOutcome
from trio_envserve.core.router import Router
from trio_envserve.core.work import Ticket, Work, WorkInput, Works, WorkState

from .tables import DOCS

# Column of each layer in the picture from left to right, so that no line crosses a box.
# Its height follows from the rule.
COLUMN_OF_LAYER: Mapping[str, int] = {
    "net": 0, "client": 0, "core": 1, "testing": 0, "lab": 1, "cli": 1, "models": 2, "envs": 2,
    "worker": 2, "server": 2, "doors": 2, "evals": 0, "json_values": 1, "logs": 4,
}  # fmt: skip


NAME = KeyName(b"drawn", b"key")


def _prepared(state: WorkState, *, rerun: bool) -> tuple[Works, Work | None]:
    """A router's works, and its work under one name, which is in this state."""
    router = Router(epoch=b"e" * 16, slots=1, now_s=0.0, new_id=lambda: b"i" * 16)
    works = router.works
    if state is WorkState.ABSENT:
        return works, None
    work = _opened(works, 0, rerun=rerun)
    if state in (WorkState.RUNNING, WorkState.COMPLETED, WorkState.HELD):
        _give(works, work, WorkInput.DISPATCH)
    if state is WorkState.COMPLETED:
        _give(works, work, WorkInput.REPORT)
    if state is WorkState.HELD:
        _give(works, work, WorkInput.CANCEL)
        work = _opened(works, 1, rerun=rerun)
    if state is WorkState.CLOSED:
        _give(works, work, WorkInput.DISPATCH)
        _give(works, work, WorkInput.CANCEL)
    if state is WorkState.ARCHIVED:
        work.state = state  # only a journal brings one there
    assert work.state is state
    return works, work


def _opened(works: Works, sequence: int, *, rerun: bool) -> Work:
    session = works.sessions.open(b"s" * 16, b"c" * 16, b"n" * 16, "drawn", b"route", 1, 0.0)
    assert session is not None
    asked = Keyed(KeyAct.ASK, NAME)
    ask = messages.Request(session.id, sequence, b"d" * 32, rerun, 4, None)
    assert works.request(session, ask, b"body", asked, b"route") is not None
    return works.open[NAME]


def _give(works: Works, work: Work | None, given: WorkInput) -> None:
    """One input, with what it comes with."""
    ticket = next(iter(work.tickets), None) if work is not None else None
    session = works.sessions.open(b"s" * 16, b"c" * 16, b"n" * 16, "drawn", b"route", 1, 0.0)
    assert session is not None
    another = Ticket(session, 9, b"d" * 32, 4, Keyed(KeyAct.ASK, NAME))
    ask = messages.Request(session.id, 9, b"d" * 32, None, 4, None)
    if given in (WorkInput.ASK, WorkInput.CLASH, WorkInput.ATTACH):
        arg: Any = (another, ask, b"body")
    elif given in (WorkInput.LEAVE, WorkInput.LOSE):
        arg = ticket
    elif given is WorkInput.QUIT:
        later = works.sessions.open(b"l" * 16, b"c" * 16, b"l" * 16, "drawn", b"route", 1, 0.0)
        assert later is not None
        arg = Ticket(later, 0, b"d" * 32, 0, Keyed(KeyAct.LEAVE, NAME))
    elif given is WorkInput.DISPATCH:
        arg = object()
    elif given in (WorkInput.REPORT, WorkInput.READ):
        arg = _kept()
    elif given in (WorkInput.DEAD, WorkInput.ANSWER):
        arg = _no_outcome
    else:
        arg = ""
    works.step(work, given, arg)


def arrows() -> dict[tuple[WorkState, WorkState], list[str]]:
    """Inputs that lead from one state to another, found by trying."""
    found: dict[tuple[WorkState, WorkState], list[str]] = {}
    never = Works.TABLE[WorkInput.DISPATCH][WorkState.ABSENT]
    for row, cells in Works.TABLE.items():
        for state in WorkState:
            if cells[state] is never or state is WorkState.ARCHIVED:
                continue
            for rerun in (False, True):
                works, work = _prepared(state, rerun=rerun)
                _give(works, work, row)
                after = _after(works, work)
                label = row.value
                if row is WorkInput.DEAD and state is WorkState.RUNNING:
                    label += ", consent left" if rerun else ", no consent"
                if after is not state and label not in found.setdefault((state, after), []):
                    found[state, after].append(label)
    return {pair: labels for pair, labels in found.items() if labels}


def _after(works: Works, work: Work | None) -> WorkState:
    if work is None:
        opened = works.open.get(NAME)
        return WorkState.ABSENT if opened is None else opened.state
    return work.state


def _no_outcome(work: Any) -> RetainedOutcome:
    return _kept()


def _kept() -> RetainedOutcome:
    return RetainedOutcome.made(messages.Outcome(b"s" * 16, 0, 0, "", None, 0), b"")


_STYLE = (
    "text{font-family:sans-serif;font-size:13px;fill:#1c2733}"
    ".box{fill:#e8f0fa;stroke:#2b5f9e;stroke-width:1.5}"
    ".arrow{fill:none;stroke:#5a6b7d;stroke-width:1.5;marker-end:url(#head)}"
    ".small{font-size:11px;fill:#3d4d5c}"
)
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#5a6b7d"/></marker></defs>'
)


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style>{_HEAD}"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _text(x: float, y: float, lines: Sequence[str], small: bool = True) -> str:
    css = ' class="small"' if small else ""
    return "".join(
        f'<text x="{x:g}" y="{y + 13 * row:g}" text-anchor="middle"{css}>{html.escape(line)}</text>'
        for row, line in enumerate(lines)
    )


def states_svg() -> str:
    """States of a work, and the inputs that lead from one to another."""
    step, box, middle = 190, 96, 300
    order = (
        WorkState.ABSENT, WorkState.HELD, WorkState.WAITING, WorkState.RUNNING,
        WorkState.COMPLETED, WorkState.CLOSED,
    )  # fmt: skip
    x = {state: 70 + step * index for index, state in enumerate(order)}
    parts = []
    for (start, stop), labels in arrows().items():
        span = order.index(stop) - order.index(start)
        if span == 1:
            parts.append(
                f'<path class="arrow" d="M{x[start] + box / 2} {middle}H{x[stop] - box / 2 - 2}"/>'
            )
            parts.append(_text((x[start] + x[stop]) / 2, middle + 34, labels))
            continue
        back = span < 0
        # The longer an arc, the higher, so that labels of others find room below it.
        height, side = (100, 1) if back else (30 + 66 * span, -1)
        edge = middle + side * 20
        apex = middle + side * height
        from_x, to_x = x[start] + (-14 if back else 14), x[stop] + (14 if back else -14)
        parts.append(
            f'<path class="arrow" d="M{from_x} {edge}C{from_x} {apex} {to_x} {apex} '
            f'{to_x} {edge + side * 2}"/>'
        )
        text_y = middle + side * (20 + (height - 20) * 0.75)
        text_y += 16 if back else -4 - 13 * (len(labels) - 1)
        parts.append(_text((from_x + to_x) / 2, text_y, labels))
    for state in order:
        parts.append(
            f'<rect class="box" x="{x[state] - box / 2}" y="{middle - 20}" width="{box}" '
            f'height="40" rx="8"/>'
        )
        parts.append(_text(x[state], middle + 5, [state.value], small=False))
    title = "The states of a work"
    return _svg(x[WorkState.CLOSED] + 70, middle + 125, title, parts)


def may_import() -> dict[str, set[str]]:
    """The rule of the layers, as the test has it."""
    path = DOCS.parent / "tests" / "test_layers.py"
    spec = importlib.util.spec_from_file_location("_drawn_layers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its classes look themselves up there
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    rule: dict[str, set[str]] = module.MAY_IMPORT
    return {layer: {one.partition(".")[0] for one in may} - {layer} for layer, may in rule.items()}


def _heights(rule: Mapping[str, set[str]]) -> dict[str, int]:
    heights: dict[str, int] = {}
    for layer, below in rule.items():  # the rule is in order: the test sees to it
        heights[layer] = 1 + max((heights[one] for one in below), default=-1)
    return heights


def _columns(heights: Mapping[str, int]) -> dict[str, int]:
    """A column for each layer: its own if that is free at its height, else the next free one."""
    columns: dict[str, int] = {}
    taken: set[tuple[int, int]] = set()
    for layer in sorted(heights, key=lambda layer: layer not in COLUMN_OF_LAYER):
        column = COLUMN_OF_LAYER.get(layer, 3)
        while (column, heights[layer]) in taken:
            column += 1
        taken.add((column, heights[layer]))
        columns[layer] = column
    return columns


def _needed(rule: Mapping[str, set[str]], layer: str) -> set[str]:
    """Layers below a layer, but for those below another of them (fewer lines)."""
    below = rule[layer]
    return {one for one in below if not any(one in rule[other] for other in below)}


def layers_svg() -> str:
    """The layers, and which may import which."""
    rule = may_import()
    heights = _heights(rule)
    rows = max(heights.values()) + 1
    gap, box_w, box_h = 78, 110, 38
    columns = _columns(heights)
    place = {
        layer: (75 + 130 * columns[layer], 30 + gap * (rows - 1 - height))
        for layer, height in heights.items()
    }
    parts = []
    for layer in rule:
        from_x, from_y = place[layer]
        for one in sorted(_needed(rule, layer)):
            to_x, to_y = place[one]
            parts.append(
                f'<path class="arrow" d="M{from_x:g} {from_y + box_h:g}L{to_x:g} {to_y - 2:g}"/>'
            )
    for layer, (x, y) in place.items():
        parts.append(
            f'<rect class="box" x="{x - box_w / 2:g}" y="{y:g}" width="{box_w}" '
            f'height="{box_h}" rx="8"/>'
        )
        parts.append(_text(x, y + 24, [layer], small=False))
    title = "The layers: an arrow points to what a layer may import"
    return _svg(150 + 130 * max(columns.values()), 40 + gap * rows, title, parts)
