"""Tables and progress: rich on a terminal, plain text everywhere else.

rich is imported only to write to a terminal: it takes longer to import than the rest
of a verb.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

from ..evals.plain import plain_line
from .common import say

PLAIN_EVERY_S = 5.0
"""The pause between lines of progress if there is no terminal."""
DRAWN_EVERY_S = 0.1
"""The pause between two pictures of it on a terminal."""


class Table(NamedTuple):
    """A table for people.  Text of others may be in it: what a terminal would act on is
    shown as an escape."""

    title: str
    columns: tuple[str, ...]
    """Headings; empty for a table of names and values."""
    rows: Sequence[Sequence[str]]
    left: tuple[int, ...] = (0,)
    """The columns that are aligned left; the others are aligned right."""


def tables_text(tables: Sequence[Table]) -> str:
    """The tables as aligned plain text."""
    parts = []
    for table in tables:
        rows = [list(table.columns)] if table.columns else []
        rows += [[plain_line(cell) for cell in row] for row in table.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [plain_line(table.title)]
        for row in rows:
            cells = [
                cell.ljust(width) if number in table.left else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append(f"  {'  '.join(cells)}".rstrip())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def rich_tables(tables: Sequence[Table]) -> Any:
    """The tables as one object that rich can print."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    made = []
    for table in tables:
        shown = RichTable(
            title=Text(plain_line(table.title)), title_justify="left", box=box.SIMPLE_HEAD,
            show_header=bool(table.columns),
        )  # fmt: skip
        width = len(table.columns) or (len(table.rows[0]) if table.rows else 0)
        for index in range(width):
            heading = table.columns[index] if table.columns else ""
            shown.add_column(Text(heading), justify="left" if index in table.left else "right")
        for row in table.rows:
            shown.add_row(*(Text(plain_line(cell)) for cell in row))
        made.append(shown)
    return Group(*made)


def show_tables(tables: Sequence[Table], put: Callable[[str], bool]) -> bool:
    """Print tables on standard output; ``put`` prints plain text there.

    Returns whether they may be read, as ``put`` does.
    """
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(rich_tables(tables))
        return True
    return put(tables_text(tables))


@asynccontextmanager
async def progress(line: Callable[[], str], part: Callable[[], float]) -> AsyncIterator[None]:
    """While the block lasts, how far it is on standard error: a line of text, beside a bar on a
    terminal, otherwise every few seconds.  ``part`` is how much of it is done."""

    async def show() -> None:
        while not sys.stderr.isatty():
            await trio.sleep(PLAIN_EVERY_S)
            say(line())
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (BarColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=1.0)
            while True:
                bar.update(task, completed=min(1.0, part()), description=line())
                await trio.sleep(DRAWN_EVERY_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(show)
        yield
        nursery.cancel_scope.cancel()


def duration(seconds: float) -> str:
    """A time for people: ``7 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
