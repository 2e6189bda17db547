"""The verb ``top``: what the live page shows, in a terminal."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import click
import trio

from ..client import Client
from ..core.errors import EnvServeError
from ..evals.statistics import sparkline
from ..net import Transport
from .at_server import AtServer, address_option, reached, wait_option
from .common import NO_SERVER, NOT_STARTED, OK, Result, Stop, emit, epilog, put, run_verb
from .keys import duration
from .options import client_options, json_option
from .render import Table, rich_tables, tables_text
from .slow import oldest, slow_table
from .status import host_tables, pool_rows, state_of, worker_table

ANSWER_S = 2.0
"""A server that takes longer to answer is shown as silent."""
HISTORY = 60
"""So many rates are drawn."""
DEATHS = 5


@click.command(cls=AtServer, epilog=epilog({NOT_STARTED: NO_SERVER}))
@address_option
@click.option(
    "--rows", type=click.IntRange(min=1, max=100), default=10, show_default=True, metavar="N",
    help="Show the N slowest rollouts.",
)  # fmt: skip
@click.option(
    "--every-s", type=click.FloatRange(min=0.1), default=1.0, show_default=True,
    help="How often to look.",
)  # fmt: skip
@wait_option
@client_options
@json_option
def top(
    address: str, rows: int, every_s: float, wait_s: float, transport: Transport, as_json: bool
) -> int:
    """Watch the server at ADDRESS: queue, rates, slowest rollouts, workers, failures.

    Without ADDRESS it is tcp://127.0.0.1:5555, where `serve` is by default.

    It is what the live page of `serve --http` shows. Ctrl-C ends it. If standard
    output is no terminal, it prints a block of text each time; with --json an object a
    line, with the statistics of `status`, a field "slow" and a field "rates".

    \b
    Example:
      trio-envserve top
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        watch = Watch()
        with trio.CancelScope() as work:
            stop.on_first = work.cancel
            async with reached(address, transport, wait_s, "top") as client:
                await _look(client, watch, rows)
                await _show(client, watch, rows, every_s, as_json=as_json)
        return Result(OK, watch.last)

    return run_verb(main, as_json=as_json)


class Watch:
    """The last view, and the rates before."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        self.silent = ""
        """Why the server says nothing; empty if it does."""
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
