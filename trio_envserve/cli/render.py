"""Tables and progress: rich on a terminal, plain text everywhere else.

rich is imported only to write to a terminal: it takes longer to import than the rest
of a verb.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO, TypeAlias

import trio

from ..evals.plain import plain_line

PLAIN_EVERY_S = 5.0
"""The pause between lines of progress if there is no terminal."""


class Table(NamedTuple):
    """A table for people.  Text of others may be in it: what a terminal would act on is
    shown as an escape."""

    title: str
    columns: tuple[str, ...]
    """Headings; empty for a table of names and values."""
    rows: Sequence[Sequence[str]]
    left: tuple[int, ...] = (0,)
    """The columns that are aligned left; the others are aligned right."""


Advance: TypeAlias = Callable[[bool], None]
"""Count one outcome; True if it is an error."""


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


@contextmanager
def progress(total: int, what: str, stream: TextIO) -> Iterator[Advance]:
    """While the block lasts: a bar on a terminal, otherwise a line every few seconds
    and one at the end."""
    with _bar(total, what, stream) if stream.isatty() else _lines(total, what, stream) as advance:
        yield advance


@contextmanager
def _bar(total: int, what: str, stream: TextIO) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    errors = 0
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[errors]} errors"), TextColumn("{task.fields[rate]:.0f}/s"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task(what, total=total, errors=0, rate=0.0)
        began_s = trio.current_time()
        done = 0

        def advance(error: bool) -> None:
            nonlocal done, errors
            done, errors = done + 1, errors + error
            rate = done / max(trio.current_time() - began_s, 1e-9)
            bar.update(task, completed=done, errors=errors, rate=rate)

        yield advance


@contextmanager
def _lines(total: int, what: str, stream: TextIO) -> Iterator[Advance]:
    done = errors = 0
    began_s = said_s = trio.current_time()

    def say() -> None:
        took_s = max(trio.current_time() - began_s, 1e-9)
        print(
            f"{what}: {done}/{total} done, {errors} errors, {done / took_s:.0f}/s, {took_s:.1f} s",
            file=stream, flush=True,
        )  # fmt: skip

    def advance(error: bool) -> None:
        nonlocal done, errors, said_s
        done, errors = done + 1, errors + error
        if trio.current_time() - said_s >= PLAIN_EVERY_S:
            said_s = trio.current_time()
            say()

    try:
        yield advance
    finally:
        say()


def duration(seconds: float) -> str:
    """A time for people: ``7 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
