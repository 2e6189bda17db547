"""Tables for people: those of a server's statistics are the same on a terminal and on a page.

Theory of operation
-------------------
A :class:`RecordsTable` says which fields of which records are shown, and how the heading is.  The
words of a column and the text of a cell follow from the name of the field and its unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A table for people.  Text of others may be in it: what a terminal would act on is
    shown as an escape."""

    title: str
    columns: tuple[str, ...]
    """Headings; empty for a table of names and values."""
    rows: Sequence[Sequence[str]]
    left: tuple[int, ...] = (0,)
    """The columns that are aligned left; the others are aligned right."""


# -- records -------------------------------------------------------------------


def records_table(
    title: str, records: Sequence[Mapping[str, Any]], names: Sequence[str], *, left: Sequence[str]
) -> Table:
    """A row for each record, with these fields of it."""
    rows = [[cell(name, each.get(name)) for name in names] for each in records]
    columns = tuple(map(words, names))
    return Table(title, columns, rows, tuple(names.index(name) for name in left))


def words(name: str) -> str:
    """The name of a field for people, without its unit."""
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def cell(name: str, value: Any) -> str:
    """A value for people, by the unit that ends its field's name."""
    if value is None or value in ("", ()):
        return "-"
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, str):
        return first_and_last(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_s"):
        return duration(value) if not 0 < value < 1 else f"{value * 1e3:.1f} ms"
    if name.endswith("_bytes"):
        return f"{value / 2**20:.1f} MiB" if value >= 2**20 else f"{value / 2**10:.1f} KiB"
    if name in ("pid", "generation"):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def first_and_last(text: str) -> str:
    """A text on one line.  The last line of a traceback says what happened."""
    lines = [line for line in text.splitlines() if line.strip()]
    return " ... ".join([lines[0], lines[-1]] if len(lines) > 1 else lines)


def duration(seconds: float) -> str:
    """A time for people: ``7 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


# -- a server's statistics ------------------------------------------------------


class RecordsTable(NamedTuple):
    """A table of records in a server's statistics."""

    field: str
    title: str
    columns: tuple[str, ...]
    left: tuple[str, ...]
    """The columns that are aligned left."""
    newest: int = 0
    """Most rows on a terminal, the last record first; 0: all, in their order."""


WORKERS = RecordsTable(
    "per_worker", "workers",
    ("worker", "pid", "phase", "pending", "capacity", "done", "failed", "restarts",
     "loop_lag_p99_s", "memory_bytes"),
    ("worker", "phase"),
)  # fmt: skip
RECORDS = (
    RecordsTable(
        "hosts", "hosts",
        ("host", "state", "ready", "slots", "running", "beat_age_s", "lost_s", "load",
         "memory_bytes", "why"),
        ("host", "state", "why"),
    ),
    RecordsTable(
        "past_hosts", "hosts that are not here", ("host", "state", "age_s", "why"),
        ("host", "state", "why"), newest=20,
    ),
    RecordsTable("permits", "permits", ("name", "held", "limit", "waiting"), ("name",)),
    RecordsTable(
        "resources_held", "resources",
        ("name", "kind", "state", "age_s", "request", "worker", "tries", "why"),
        ("name", "kind", "state", "request", "worker", "why"),
    ),
    WORKERS,
)  # fmt: skip
DEATHS = RecordsTable(
    "deaths", "ends of workers", ("worker", "age_s", "lost", "why"), ("worker", "why"), newest=5
)


_BAD = {"quiet", "set aside", "leaving", "refused", "lost", "stuck", "silent", "blocked"}


def tables_of(stats: Mapping[str, Any], *kinds: RecordsTable) -> list[Table]:
    """Those of these tables that have rows."""
    return [
        records_table(kind.title, rows[: kind.newest or None], kind.columns, left=kind.left)
        for kind in kinds
        if (rows := _rows(stats, kind))
    ]


def page_table(stats: Mapping[str, Any], kind: RecordsTable) -> dict[str, Any]:
    """A table as a page has it: all records as texts, and which of these are ``bad`` news, each by
    row and column."""
    rows = _rows(stats, kind)
    shown = records_table(kind.title, rows, kind.columns, left=kind.left)
    bad = [
        (row, column)
        for row, each in enumerate(rows)
        for column, name in enumerate(kind.columns)
        if _is_bad(name, each.get(name))
    ]
    return {"field": kind.field, **shown._asdict(), "bad": bad}


def _rows(stats: Mapping[str, Any], kind: RecordsTable) -> list[dict[str, Any]]:
    rows = list(stats.get(kind.field, ()))
    if kind.newest:
        rows.reverse()
    if kind is WORKERS:
        rows = [{**w, "phase": _phase(w)} for w in sorted(rows, key=itemgetter("slot"))]
    return rows


def _phase(worker: Mapping[str, Any]) -> str:
    """What a worker does, and what is wrong with it: a blocked one cannot say how late it is."""
    marks = [worker["phase"]]
    if worker.get("silent"):
        marks.append("silent")
    if worker.get("blocked"):
        marks.append(f"blocked for {duration(worker['lag_s'])}")
    return ", ".join(marks)


def _is_bad(name: str, value: Any) -> bool:
    if name in ("state", "phase"):
        return not _BAD.isdisjoint(mark.partition(" for ")[0] for mark in value.split(", "))
    return name in ("failed", "lost") and bool(value)
