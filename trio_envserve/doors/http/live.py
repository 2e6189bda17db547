"""The live page, and what it shows: ``GET /`` and ``GET /v1/events``.

Theory of operation
-------------------
While anybody looks, one task asks the server once a second, and makes one *view* of the answers:
a line of JSON of at most :data:`VIEW_BYTES`, the same bytes for all.  Each viewer's own task
sends the newest view whenever it is ready for one; so who reads slowly gets fewer, and who reads
nothing is cut off by the connection's limit (``write_s``).  A view says all there is: none
depends on the one before, but for the percentiles of the last half minute.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import deque
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, final

import trio

from ...client import Client
from ...client.standing import standing
from ...core.durations import Durations
from ...core.errors import EnvServeError
from ...core.status import RunningPage, ServerStats
from ...pages import assemble
from ...pages.tables import DEATHS, RECORDS, WORKERS, page_table
from ..limits import HttpLimits
from .connections import Exchange
from .problems import LATER, Problem
from .turns import RUNNING_US, SCRAPED_WORKER_US, VIEW_US, Turns

EVENTS: Final = "text/event-stream"
HTML: Final = "text/html; charset=utf-8"

_HTML, _STYLE, _SCRIPT = (
    (files(__package__) / "page" / f"live.{kind}").read_text("utf-8")
    for kind in ("html", "css", "js")
)
_ASSEMBLED: Final = assemble(_HTML, style=_STYLE, script=_SCRIPT)
PAGE: Final = _ASSEMBLED.text.encode()
"""The page, as it is sent, and HEADERS, which go with it."""
HEADERS: Final = (
    (
        b"content-security-policy",
        f"{_ASSEMBLED.policy}; connect-src 'self'; frame-ancestors 'none'".encode(),
    ),
    (b"referrer-policy", b"no-referrer"),
)

EVERY_S: Final = 1.0
VIEW_BYTES: Final = 60 * 1024
"""Most bytes of a view; with its frame an event has at most 64 kB."""
SLOW_ROWS: Final = 20
LINES: Final = 3
"""Number of the slowest rollouts whose workers are asked where the code stands."""
LINE_S: Final = 0.5
NO_LINES: Final[Mapping[int, str]] = {}
ROWS_MOST: Final = 256
"""Most rows of a table of records."""
TABLES: Final = (*RECORDS, DEATHS)
LATENCY_VIEWS: Final = 30
"""Number of views over which the percentiles of the chart are."""
TEXT_CHARACTERS: Final = 400
"""Most characters of a note's value, a reason or a stack."""


@final
class Live:
    """Makes the views, while :meth:`run` runs."""

    def __init__(self, client: Client, limits: HttpLimits, turns: Turns, *, tokens: bool) -> None:
        self._client = client
        self._limits = limits
        self._turns = turns
        self._tokens = tokens
        self._viewers = 0
        self._view = b""
        self._lines: Mapping[int, str] = {}
        self._latency = Latency()
        self._number = 0
        """The number of the newest view."""
        self._wanted = trio.Event()
        """Set while there are viewers."""
        self._changed = trio.lowlevel.ParkingLot()
        self._over = False

    def close(self) -> None:
        """End what the viewers are sent."""
        self._over = True
        self._changed.unpark_all()

    async def page(self, exchange: Exchange) -> None:
        """The page itself."""
        await exchange.answer(200, HTML, PAGE, HEADERS)

    async def events(self, exchange: Exchange) -> None:
        """The newest view, again and again."""
        if self._viewers >= self._limits.viewers:
            raise Problem("busy", f"{self._limits.viewers} look already", LATER)
        self._viewers += 1
        self._wanted.set()
        try:
            await exchange.unless_hung_up(lambda: self._send(exchange))
        finally:
            self._viewers -= 1

    async def _send(self, exchange: Exchange) -> None:
        # Proxies are not to collect it.
        await exchange.begin(200, EVENTS, [(b"x-accel-buffering", b"no")])
        seen = self._number - bool(self._view)  # the last one at once
        while not self._over and exchange.method != "HEAD":
            if seen == self._number:
                await self._changed.park()
                continue
            seen, view = self._number, self._view
            await exchange.take_turn(VIEW_US)
            await exchange.send_piece(view, more=True)
        await exchange.send_piece(b"", more=False)

    async def run(self) -> None:
        """Make views while somebody looks, until cancelled."""
        while True:
            if not self._viewers:
                self._wanted, self._view = trio.Event(), b""
                self._latency = Latency()
                await self._wanted.wait()
            began_s = trio.current_time()
            seen = await self._ask()
            workers = 0 if seen[0] is None else len(seen[0].per_worker)
            await self._turns.take(workers * SCRAPED_WORKER_US + SLOW_ROWS * RUNNING_US)
            self._number += 1
            made = view(*seen, tokens=self._tokens, lines=self._lines)
            if seen[0] is not None:
                made["latency"] = self._latency.add(seen[0])
            self._view = event(made, self._number)
            self._changed.unpark_all()
            await trio.sleep_until(began_s + EVERY_S)

    async def _ask(self) -> tuple[ServerStats | None, RunningPage | None, str]:
        """The server's answers, or the reason why there are none."""
        try:
            stats = await self._client.stats(self._limits.view_s)
            page = await self._client.list_running(timeout_s=self._limits.view_s)
        except EnvServeError as error:
            return None, None, str(error)
        self._lines = await standing(self._client, page.running, most=LINES, timeout_s=LINE_S)
        return stats, page, ""


def view(
    stats: ServerStats | None, page: RunningPage | None, why: str, *, tokens: bool,
    lines: Mapping[int, str] = NO_LINES,
) -> dict[str, Any]:  # fmt: skip
    """The view, as plain data.  ``tokens``: whether the door asks for them;
    ``lines``: where some of the rollouts stand."""
    found: dict[str, Any] = {"at_s": time.time(), "tokens": tokens, "why": _cut(why)}
    if stats is None or page is None:
        return found
    return {
        **found, **_plain(stats),
        "status": stats.status.value, "epoch": stats.epoch[:8],
        "address": str(stats.more.get("address", "")),
        "closing": None if stats.closing is None else stats.closing.stage.value,
        "bounds": dict(stats.bounds), "failures": dict(stats.failures),
        "counts": _plain(stats.cache), "model_failed": stats.model_usage.get("failed", 0),
        "tables": _tables(stats),
        "slow": [
            {
                **_plain(each), "key": each.key, "namespace": each.namespace,
                "line": lines.get(each.number, ""),
                "note": {name: _short(value) for name, value in each.note.items()},
            }
            for each in page.running[:SLOW_ROWS]
        ],
        "total": page.total, "typical_s": page.typical_s,
    }  # fmt: skip


def _tables(stats: ServerStats) -> list[dict[str, Any]]:
    """The tables of records that have rows, and that of the workers, which also says that there
    are none; ``more`` records are not shown."""
    records = {kind.field: getattr(stats, kind.field) for kind in TABLES}
    some = {name: each[:ROWS_MOST] for name, each in records.items()}
    plain = dataclasses.replace(stats, **some).to_record()
    tables = [page_table(plain, kind) for kind in TABLES if some[kind.field] or kind is WORKERS]
    for table in tables:
        name = table["field"]
        table["rows"] = [list(map(_cut, row)) for row in table["rows"]]
        table["more"] = len(records[name]) - len(some[name])
    return tables


def _plain(record: Any) -> dict[str, Any]:
    """The numbers and texts of a record, by their names."""
    found = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {
        name: _cut(value) if isinstance(value, str) else value for name, value in found.items()
        if value is None or isinstance(value, (str, int, float))
    }  # fmt: skip


@final
class Latency:
    """Percentiles of how long rollouts took and waited lately, for the chart."""

    def __init__(self) -> None:
        self._before: deque[tuple[Durations, Durations]] = deque(maxlen=LATENCY_VIEWS)
        self._epoch = ""

    def add(self, stats: ServerStats) -> dict[str, float | None]:
        """The percentiles since the oldest of the last views, in seconds; None where nothing
        ended, or began, since."""
        runs, waits = Durations(), Durations()
        runs.take(stats.runs)
        waits.take(stats.waits)
        if stats.epoch != self._epoch:
            self._before.clear()
        self._epoch = stats.epoch
        first_runs, first_waits = self._before[0] if self._before else (runs, waits)
        self._before.append((runs, waits))
        return {
            "p50": runs.quantile(0.5, first_runs), "p99": runs.quantile(0.99, first_runs),
            "wait_p99": waits.quantile(0.99, first_waits),
        }  # fmt: skip


def event(view: dict[str, Any], number: int) -> bytes:
    """A view as an event.  Where it would be too large, rows of its largest table are left out."""
    while True:
        data = json.dumps(view, separators=(",", ":"), allow_nan=False).encode()
        if len(data) <= VIEW_BYTES:
            return b"id: %d\ndata: %s\n\n" % (number, data)
        view["slow"] = view["slow"][: max(1, len(view["slow"]) // 2)]
        table = max(view["tables"], key=lambda each: len(json.dumps(each["rows"])))
        rows = table["rows"]
        left = len(rows) // 2
        table |= {"rows": rows[:left], "more": table["more"] + len(rows) - left}


def _cut(text: str) -> str:
    """The end of a text: of a stack or a traceback that says the most."""
    return text if len(text) <= TEXT_CHARACTERS else "…" + text[-TEXT_CHARACTERS:]


def _short(value: object) -> object:
    if isinstance(value, str):
        return value[:TEXT_CHARACTERS]
    # JavaScript has no larger whole numbers.
    return str(value) if type(value) is int and abs(value) >= 2**53 else value
