"""The verb ``status``: shows a server's statistics."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click
import trio

from ..client import Client, open_client
from ..core.health import ServerStatus
from ..net import Transport
from .at_server import AtServer, address_option, leave_out_warnings, no_answer
from .common import (
    AT_ONCE,
    NO_SERVER,
    NOT_STARTED,
    OK,
    CommandError,
    Result,
    Stop,
    emit,
    epilog,
    put,
    run_verb,
)
from .options import asked_curve, client_options, json_option
from .render import Table, rich_tables, show_tables
from .results import calls_words, tokens_words
from .slow import oldest, slow_table


@click.command(
    cls=AtServer,
    epilog=epilog(
        {
            OK: "the server answered; with --ready: a worker is ready, and it takes new work",
            AT_ONCE: "with --ready: it is starting, silent, broken or stopping; the line says why",
            NOT_STARTED: NO_SERVER,
        }
    ),
)
@address_option
@click.option(
    "--ready", is_flag=True,
    help="For probes: say in a line whether the server is ready, and end with the exit code.",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Show the status again and again, until Ctrl-C.")
@click.option(
    "--every-s", type=click.FloatRange(min=0.1), default=1.0, show_default=True,
    help="With --watch, how often.",
)  # fmt: skip
@click.option(
    "--wait-s", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True,
    help="How long to wait for an answer.",
)  # fmt: skip
@click.option(
    "--slow", type=click.IntRange(min=1), metavar="N",
    help="Show the N rollouts that have run longest, too.",
)  # fmt: skip
@client_options
@json_option
def status(
    address: str, ready: bool, watch: bool, every_s: float, wait_s: float, slow: int | None,
    transport: Transport, as_json: bool,
) -> int:  # fmt: skip
    """Show what the server at ADDRESS is doing: its requests, cache and workers.

    Without ADDRESS it is tcp://127.0.0.1:5555, where `serve` is by default.

    \b
    Examples:
      trio-envserve status
      trio-envserve status tcp://127.0.0.1:5555 --json | jq .per_worker
      trio-envserve status tcp://127.0.0.1:5555 --slow 20
      trio-envserve status tcp://127.0.0.1:5555 --ready || echo not now

    With --json the object has the server's statistics; with --watch there is one
    object a line, and with --slow the object has a field "slow". The exit code is 0
    if the server answered, whatever its status; the field "status" is ready,
    starting, silent, broken or stopping.

    With --ready the exit code is the answer, and a line says why.
    """  # noqa: D301  # click wants the character itself
    if ready and watch:
        raise click.UsageError("--ready looks once, --watch again and again: give one")

    async def main(stop: Stop) -> Result:
        last: dict[str, Any] = {}
        leave_out_warnings()
        with trio.CancelScope() as work:
            stop.on_first = work.cancel
            async with open_client(
                address, name="status", transport=transport, curve=asked_curve()
            ) as client:
                last = await _stats(client, address, wait_s, slow)
                if watch:
                    await _watch(client, address, wait_s, every_s, last, as_json, slow)
                elif ready:
                    return _ready(last, as_json)
                elif not as_json:
                    show_tables(status_tables(last), put)
        # Ctrl-C is the normal end of a watch.
        if stop.asked.is_set() and not (watch and stop.number == signal.SIGINT and last):
            return Result(stop.interrupted_code, last)
        return Result(OK, last)

    return run_verb(main, as_json=as_json)


def _ready(stats: dict[str, Any], as_json: bool) -> Result:
    """The answer to a probe."""
    ready = stats["status"] == ServerStatus.READY.value
    if not as_json:
        put(" and ".join([state_of(stats), *(f"{name} {text}" for name, text in _closing(stats))]))
    return Result(OK if ready else AT_ONCE, stats)


def state_of(stats: dict[str, Any]) -> str:
    """Its status and the reason, on one line."""
    state, reason = str(stats["status"]), stats["reason"]
    return f"{state}: {_first_line(reason)}" if reason else state


async def _stats(client: Client, address: str, wait_s: float, slow: int | None) -> dict[str, Any]:
    with trio.move_on_after(wait_s):
        stats = (await client.stats()).to_record()
        return stats if slow is None else {**stats, "slow": await oldest(client, slow)}
    why = client.health().reason
    raise CommandError(no_answer(address, wait_s, why), NOT_STARTED)


async def _watch(
    client: Client, address: str, wait_s: float, every_s: float, last: dict[str, Any],
    as_json: bool, slow: int | None,
) -> None:  # fmt: skip
    """Show ``last``, then go on while it is read; ``last`` is kept up to date."""
    if as_json or not sys.stdout.isatty():
        while emit(last) if as_json else show_tables(status_tables(last), put):
            await trio.sleep(every_s)
            last.update(await _stats(client, address, wait_s, slow))
        return
    from rich.live import Live

    with Live(rich_tables(status_tables(last)), auto_refresh=False) as live:
        while True:
            live.update(rich_tables(status_tables(last)), refresh=True)
            await trio.sleep(every_s)
            last.update(await _stats(client, address, wait_s, slow))


def status_tables(stats: dict[str, Any]) -> list[Table]:
    """The server's statistics for people."""
    cache = stats["cache"]
    server = [
        ("status", state_of(stats)),
        *_closing(stats),
        *([("paused", _first_line(stats["paused"]))] if stats.get("paused") else []),
        ("environment", str(stats["environment"]) or "-"),
        *pool_rows(stats),
        ("worker restarts", str(stats["worker_restarts"])),
        ("sessions", str(stats["sessions"])),
        ("waiting, running", f"{stats['waiting']}, {stats['running']}"),
        *_model_calls(stats),
        ("keys", f"{stats['keys']} ({stats['keys_bytes'] / 1024:.1f} KiB)"),
        *_resting(stats),
        ("router lag p99", _milliseconds(stats.get("router_lag_p99_s"))),
        ("malformed messages", str(stats["malformed"])),
        ("epoch", str(stats["epoch"])[:8]),
    ]
    cached = [
        ("outcomes kept", f"{stats['kept']} ({stats['kept_bytes'] / 1024:.1f} KiB)"),
        ("requests entered", str(cache["entered"])),
        ("duplicates coalesced", str(cache["coalesced"])),
        ("outcomes replayed", str(cache["replayed"])),
        ("refused", str(cache["refused_for_now"] + cache["conflicts"] + cache["spent"])),
        ("completed", str(cache["completed"])),
        ("finished", str(cache["finished"])),
        ("cancelled", str(cache["cancelled"])),
        ("reruns by consent", str(cache["reruns"])),
    ]
    return [
        Table(f"server at {stats['address']}", (), server),
        Table("cache", (), cached),
        *host_tables(stats),
        worker_table(stats),
        *([slow_table(stats["slow"])] if "slow" in stats else []),
    ]


def pool_rows(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """How many workers there are, and where that may change, how far and why it has."""
    ready = f"{stats['ready']} of {stats['workers']}"
    if stats["workers_least"] == stats["workers_most"]:
        return [("workers ready", ready)]
    bounds = f"{stats['workers_least']}..{stats['workers_most']}"
    return [
        ("workers ready", f"{ready} (of {bounds})"),
        *([("resized", stats["resized"])] if stats["resized"] else []),
    ]


def worker_table(stats: dict[str, Any]) -> Table:
    """Its workers."""
    columns = (
        "worker", "pid", "phase", "pending", "capacity", "done", "failed", "restarts", "lag p99",
        "MiB",
    )  # fmt: skip
    workers = [
        (
            str(w["worker"]), str(w["pid"]), _phase(w), str(w["pending"]),
            str(w.get("capacity") or ""), str(w["done"]), str(w["failed"]), str(w["restarts"]),
            _milliseconds(w.get("loop_lag_p99_s")), str(w["memory_bytes"] >> 20),
        )
        for w in stats["per_worker"]
    ]  # fmt: skip
    return Table("workers", columns, workers)


def host_tables(stats: dict[str, Any]) -> list[Table]:
    """Its hosts, and the last ones that are not here; nothing without any."""
    columns = ("host", "state", "ready", "running", "heard", "lost in", "load", "free MiB", "why")
    hosts = [
        (
            str(h["host"]), str(h["state"]), f"{h['ready']} of {h['slots']}", str(h["running"]),
            f"{h['heard_s']:.1f} s ago", f"{h['lost_s']:.1f} s", f"{h['load']:.2f}",
            str(h["memory_bytes"] >> 20), _first_line(h["why"]) if h["why"] else "",
        )
        for h in stats.get("hosts", ())
    ]  # fmt: skip
    past = [
        (str(p["host"]), str(p["state"]), f"{p['age_s']:.0f} s ago", _first_line(p["why"]))
        for p in reversed(stats.get("past_hosts", ()))
    ]
    return [
        *([Table("hosts", columns, hosts, left=(0, 1, 8))] if hosts else []),
        *(
            [Table("hosts that are not here", ("host", "state", "when", "why"), past, left=(0, 3))]
            if past
            else []
        ),
    ]


def _closing(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """The work that a stopping server waits for."""
    closing = stats.get("closing")
    if not closing:
        return []
    names = {"running": "executions", "outcomes": "outcomes", "workers": "workers"}
    left = ", ".join(f"{closing[key]} {name}" for key, name in names.items())
    return [("waits for", left), ("next stage", f"within {closing['left_s']:g} s")]


def _resting(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """Keys of a server with a journal whose outcomes are there only."""
    keys = stats.get("journal_keys")
    if not keys:
        return []
    mib = stats["journal_bytes"] / 2**20
    return [
        (
            "keys in the journal",
            f"{keys} of at most {stats['bounds']['journal_keys']}, "
            f"{mib:.1f} of {stats['bounds']['journal_bytes'] / 2**20:.0f} MiB",
        )
    ]


def _model_calls(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """The totals of the rollouts' model calls, if there were any."""
    usage, took = stats["model_usage"], dict(stats["model_calls"])
    sum_s, ended = took.pop("sum_s", 0.0), sum(took.values())
    if not ended:
        return []
    return [
        ("model calls", calls_words(usage)),
        ("mean model call", f"{sum_s / ended:.3g} s"),
        ("tokens", tokens_words(usage)),
    ]


def _phase(worker: dict[str, Any]) -> str:
    marks = [mark for mark in ("silent", "blocked") if worker.get(mark)]
    return ", ".join([str(worker["phase"]), *marks])


def _first_line(text: Any) -> str:
    lines = [line for line in str(text).splitlines() if line.strip()]
    # The last line of a traceback says what happened.
    return " ... ".join([lines[0], lines[-1]] if len(lines) > 1 else lines)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f} ms"
