"""The executions that have run longest, for ``status --slow``."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from ..client import Client
from ..client.options import DEFAULT_NAMESPACE
from ..client.places import WAITS, places
from ..core.pages import RunningPage, RunningRollout
from .keys import duration
from .render import Table

_COLUMNS = "key or request", "age", "p50", "worker", "execution", "note", "where it stands"
LINES = 5
"""Of so many of the oldest their workers are asked for the line."""
LINE_S = 1.0


async def oldest(client: Client, most: int) -> dict[str, Any]:
    """So many that have run longest, as plain data: what ``--json`` adds.  The oldest of them
    with the line of their code."""
    found: list[RunningRollout] = []
    first = 0
    while True:
        page: RunningPage = await client.list_running(first=first)
        found += page.running[: most - len(found)]
        if page.next is None or len(found) == most:
            lines = await places(client, found, most=LINES, timeout_s=LINE_S)
            return {
                "running": [
                    {**dataclasses.asdict(each), "line": lines.get(each.number, "")}
                    for each in found
                ],
                "total": page.total,
                "typical_s": page.typical_s,
            }
        first = page.next


def name_of(row: Mapping[str, Any]) -> str:
    """The name that the commands ``cancel`` and ``stack`` take; of a request without a
    key its id."""
    if row["key"] is None:
        return str(row["request"])
    name = shlex.quote(row["key"])
    if row["namespace"] == DEFAULT_NAMESPACE:
        return name
    return f"{name} --namespace {shlex.quote(row['namespace'])}"


def slow_table(slow: dict[str, Any]) -> Table:
    """The same for people."""
    typical_s = slow["typical_s"]
    typical = "-" if typical_s is None else duration(typical_s)
    rows = [_row(each, typical) for each in slow["running"]]
    title = f"oldest {len(rows)} of {slow['total']} that run"
    return Table(title, _COLUMNS, rows, left=(0, 5, 6)) if rows else Table("nothing runs", (), [])


def _row(row: dict[str, Any], typical: str) -> tuple[str, ...]:
    executions = row["state"] if row["executions"] is None else str(row["executions"])
    note = " ".join(f"{name}={value}" for name, value in row["note"].items() if name != WAITS)
    frames = [line.strip() for line in row["where"].splitlines() if line.strip()]
    blocked = [line for line in frames if line.startswith("File ")]
    where = row.get("line") or (blocked or frames or [""])[-1]
    return name_of(row), duration(row["age_s"]), typical, row["worker"], executions, note, where
