"""Output: lines for people and for programs; tables and progress, which are rich on a terminal
and plain text everywhere else.

rich is imported only to write to a terminal: it takes longer to import than the rest
of a verb.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TextIO

import trio

from ..evals.files import NotWritten, Overview
from ..evals.plain import plain_line, plain_text
from ..evals.records import failure_line
from ..evals.statistics import bar
from ..pages.tables import Table, cell, records_table, words

PLAIN_EVERY_S = 5.0
"""The pause between lines of progress if there is no terminal."""
DRAWN_EVERY_S = 0.25
"""The pause between two pictures of it on a terminal."""
_BAR = 40
_MESSAGE = 70
_WORKER = 12


# -- lines --------------------------------------------------------------------


def say(text: str) -> None:
    """A line for people, on standard error, without what a terminal would act on."""
    with contextlib.suppress(OSError):  # nobody reads it any more: this is no failure
        print(f"trio-envserve: {plain_text(text)}", file=sys.stderr, flush=True)


def say_notes(path: str, found: Overview) -> None:
    """Say what the figures of a file of results do not show."""
    for note in found.notes:
        say(f"{path}: {note}")


def emit(record: dict[str, Any]) -> bool:
    """Print an object as one line of standard output, flushed; see :func:`put`."""
    return put(json.dumps(record, allow_nan=False))


def put(text: str) -> bool:
    """Print text on standard output, flushed.

    Returns whether it may be read: False once, when the reader has gone.  Raises NotWritten, once,
    if there is no room for it.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        problem = put_no_more(error)
        if not isinstance(error, BrokenPipeError):
            raise problem from None
        return False  # the reader has enough (`| head -1`)
    return True


def put_no_more(error: OSError) -> NotWritten:
    """Throw away what is printed from now on, and return the error for that."""
    # Python would complain again when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return NotWritten(f"standard output: {error.strerror}")


def is_terminal(*streams: TextIO | None) -> bool:
    """Whether standard streams of this process, which may be closed, are those of a terminal."""
    return all(stream is not None and stream.isatty() for stream in streams)


# -- tables -------------------------------------------------------------------


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


def show(*parts: Table | str) -> bool:
    """Print tables and texts on standard output; returns whether they may be read, as
    :func:`put` does."""
    if is_terminal(sys.stdout):
        from rich.console import Console

        for part in parts:
            if isinstance(part, Table):
                Console().print(rich_tables([part]))
            else:
                put(part)
        return True
    texts = (tables_text([part]) if isinstance(part, Table) else part for part in parts)
    return not parts or put("\n\n".join(texts))


# -- progress -----------------------------------------------------------------


@asynccontextmanager
async def progress(
    line: Callable[[], str], part: Callable[[], float] | None = None,
    tables: Callable[[], Sequence[Table]] | None = None,
) -> AsyncIterator[None]:  # fmt: skip
    """While the block lasts, how far it is on standard error: a line of text every few seconds;
    on a terminal beside a bar, or tables in its place.  ``part`` is how much of it is done, if
    anybody knows how much there is."""

    async def show() -> None:
        while not is_terminal(sys.stderr):
            await trio.sleep(PLAIN_EVERY_S)
            say(line())
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        def drawn() -> Any:
            if tables is not None:
                return rich_tables(tables())
            done = "" if part is None else f"{bar(min(part(), 1.0), 1.0, _BAR).ljust(_BAR)} "
            return Text(done + line())

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            while True:
                live.update(drawn(), refresh=True)
                await trio.sleep(DRAWN_EVERY_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(show)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()


async def keep_showing(
    seen: Callable[[], Sequence[Table]], look: Callable[[], Awaitable[object]], *, every_s: float,
    record: Callable[[], dict[str, Any]] | None,
) -> None:  # fmt: skip
    """Show what was seen, and look again, as long as it is read: on a screen of its own on a
    terminal, elsewhere one below the other; or as ``record``, for programs."""
    if record is not None or not is_terminal(sys.stdout):
        while emit(record()) if record else put(tables_text(seen()) + "\n"):
            await trio.sleep(every_s)
            await look()
        return
    from rich.live import Live

    with Live(rich_tables(seen()), auto_refresh=False, screen=True) as live:
        while True:
            live.update(rich_tables(seen()), refresh=True)
            await trio.sleep(every_s)
            await look()


# -- values -------------------------------------------------------------------


def figures(
    record: Mapping[str, Any], *names: str, zeros: bool = True
) -> list[tuple[str, str]]:  # fmt: skip
    """Rows of these fields of a record, those that it has; with their bounds, if it has them.
    Without ``zeros``, what is 0 is left out."""
    bounds = record.get("bounds", {})
    return [
        (
            words(name) + " size" * name.endswith("_bytes"),
            cell(name, record[name])
            + (f" of {cell(name, bounds[name])}" if name in bounds else ""),
        )
        for name in names if name in record and (zeros or record[name])
    ]  # fmt: skip


def rollouts_table(title: str, rollouts: Sequence[Mapping[str, Any]], *names: str) -> Table:
    """A row for each rollout, as :func:`..evals.tally.shown` has it; errors, if there are any."""
    rows = [
        {**one, "input": one["index"], "worker": plain_line(one["worker"], _WORKER),
         "error": one["error"] and plain_line(failure_line(one["error"]), _MESSAGE)}
        for one in rollouts
    ]  # fmt: skip
    if not any(row["error"] for row in rows):
        names = tuple(name for name in names if name != "error")
    left = [name for name in names if name in (names[0], "worker", "error")]
    return records_table(title, rows, names, left=left)


def calls_words(usage: Mapping[str, float]) -> str:
    """Model calls as counted by a server: how many there were, and what went wrong."""
    odd = [
        f"{usage[name]:,.0f} {words}"
        for name, words in (("failed", "failed"), ("retries", "sent again"))
        if usage.get(name)
    ]
    calls = f"{usage.get('calls', 0):,.0f}"
    return f"{calls} ({', '.join(odd)})" if odd else calls


def tokens_words(usage: Mapping[str, float], seconds: float = 0.0) -> str:
    """Their tokens; with the seconds that they took, the rate at which they were written."""
    written = usage.get("completion_tokens", 0)
    rate = f" ({written / seconds:,.0f}/s)" if seconds and written else ""
    return f"{usage.get('prompt_tokens', 0):,.0f} read, {written:,.0f} written{rate}"


def number_of(value: float | None) -> str:
    """A figure; ``-`` if there is none."""
    return "-" if value is None else f"{value:.4g}"
