"""The verb ``top``: what the live page shows, in a terminal."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import trio

from ..client import Client
from ..core.errors import EnvServeError
from ..evals.statistics import sparkline
from ..options import option
from .at_server import reached
from .common import NO_SERVER, NOT_STARTED, OK, Result, Stop, emit, put
from .options import AtServer
from .render import Table, duration, rich_tables, tables_text
from .status import host_tables, oldest, pool_rows, slow_table, state_of, worker_table
from .verbs import verb

ANSWER_S = 2.0
"""A server that takes longer to answer is shown as silent."""
HISTORY = 60
"""Number of rates that are drawn."""
DEATHS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top(AtServer):
    """The options of ``top``."""

    rows: int = option(10, "Show the N slowest rollouts.", least=1, most=100, common=True)
    every_s: float = option(1.0, "How often to look.", least=0.1, common=True)


@verb(Top, {NOT_STARTED: NO_SERVER}, takes_address=True)
async def top(asked: Top, stop: Stop) -> Result:
    """Watch the server at ADDRESS: queue, rates, slowest rollouts, workers, failures.

    Without ADDRESS it is tcp://127.0.0.1:5555, where `serve` is by default.

    It is what the live page of `serve --http` shows. Ctrl-C ends it. If standard
    output is no terminal, it prints a block of text each time; with --json an object a
    line, with the statistics of `status`, a field "slow" and a field "rates".

    Example:
      trio-envserve top
    """
    watch = Watch()
    with trio.CancelScope() as work:
        stop.on_first = work.cancel
        async with reached(asked, "top") as client:
            await _look(client, watch, asked.rows)
            await _show(client, watch, asked.rows, asked.every_s, as_json=asked.as_json)
    return Result(OK, watch.last)


class Watch:
    """The last view, and the rates before."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        self.silent = ""
        """Reason for which the server does not answer; empty if it does."""
        self.rates: deque[float] = deque(maxlen=HISTORY)
        """Rollouts completed in a second."""
        self._before: tuple[float, Mapping[str, Any]] | None = None

    def saw(self, stats: dict[str, Any], now_s: float) -> None:
        """The server has said this."""
        before, self._before = self._before, (now_s, stats)
        if before is not None and before[1]["epoch"] == stats["epoch"]:
            took_s = max(now_s - before[0], 0.001)
            since = {
                "completed": stats["cache"]["completed"] - before[1]["cache"]["completed"],
                "failed": _failed(stats) - _failed(before[1]),
            }
            rates = {name: round(max(0, n) / took_s, 3) for name, n in since.items()}
            self.rates.append(rates["completed"])
        else:
            rates = {"completed": None, "failed": None}
            self.rates.clear()
        self.silent, self.last = "", {**stats, "rates": rates}


def _failed(stats: Mapping[str, Any]) -> float:
    return float(sum(stats["failures"].values()))


async def _look(client: Client, watch: Watch, rows: int) -> None:
    try:
        with trio.fail_after(2 * ANSWER_S):
            stats = (await client.stats(ANSWER_S)).to_record()
            stats["slow"] = await oldest(client, rows)
    except (EnvServeError, trio.TooSlowError) as error:
        watch.silent = str(error) or "no answer"
    else:
        watch.saw(stats, trio.current_time())


async def _show(client: Client, watch: Watch, rows: int, every_s: float, *, as_json: bool) -> None:
    """Show what was seen, and look again, as long as it is read."""
    if as_json or not sys.stdout.isatty():
        while emit(_record(watch)) if as_json else put(tables_text(top_tables(watch)) + "\n"):
            await trio.sleep(every_s)
            await _look(client, watch, rows)
        return
    from rich.live import Live

    with Live(rich_tables(top_tables(watch)), auto_refresh=False, screen=True) as live:
        while True:
            live.update(rich_tables(top_tables(watch)), refresh=True)
            await trio.sleep(every_s)
            await _look(client, watch, rows)


def _record(watch: Watch) -> dict[str, Any]:
    return {**watch.last, "silent": watch.silent} if watch.silent else watch.last


def top_tables(watch: Watch) -> list[Table]:
    """All there is to see, for people."""
    stats = watch.last
    if not stats:
        return [Table("no answer", (), [("why", watch.silent)])]
    rates, bounds, failures = stats["rates"], stats["bounds"], stats["failures"]
    completed, failed = _rate(rates["completed"]), _rate(rates["failed"])
    server = [
        ("status", f"silent: {watch.silent}" if watch.silent else state_of(stats)),
        *([("paused", stats["paused"])] if stats["paused"] else []),
        *pool_rows(stats),
        *(
            (name, f"{stats[name]} of {bounds[name]:g}")
            for name in ("waiting", "running", "kept") if name in bounds
        ),
        ("completed", f"{completed}  {sparkline([round(100 * rate) for rate in watch.rates])}"),
        ("failed", f"{failed}; " + ", ".join(f"{name} {n:g}" for name, n in failures.items())),
    ]  # fmt: skip
    deaths = [
        (each["worker"], f"{duration(each['age_s'])} ago", str(each["lost"]), each["why"])
        for each in stats["deaths"][: -DEATHS - 1 : -1]
    ]
    columns = ("worker", "ended", "lost", "why")
    return [
        Table(f"{stats['environment'] or 'server'} at {stats['address']}", (), server, left=(0, 1)),
        slow_table(stats["slow"]),
        *host_tables(stats),
        worker_table(stats),
        *([Table("ends of workers", columns, deaths, left=(0, 3))] if deaths else []),
    ]


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}/s"
