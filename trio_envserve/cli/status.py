"""The verb ``status``: a server's statistics, what is late there, and where its code stands."""

from __future__ import annotations

import dataclasses
import shlex
import signal
import sys
from collections.abc import Mapping
from typing import Any

import trio

from ..client import Client, open_client
from ..client.options import DEFAULT_NAMESPACE
from ..client.places import WAITS, places
from ..core.errors import ConfigError, ServerNotReady
from ..core.health import ServerStatus
from ..core.pages import RunningPage, RunningRollout
from ..evals.plain import plain_line
from ..options import option
from .at_server import leave_out_warnings, no_answer, reached
from .common import (
    AT_ONCE,
    NO_SERVER,
    NOT_STARTED,
    OK,
    ROLLOUT_ERRORS,
    CommandError,
    Result,
    Stop,
    emit,
    put,
)
from .options import OfKeys
from .render import Table, duration, rich_tables, show_tables
from .results import calls_words, tokens_words
from .verbs import verb

STACK_S = 10.0
"""Time that a worker may take to report where its code stands, in seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status(OfKeys):
    """The options of ``status``."""

    slow: int | None = option(
        None, "Show the N rollouts that have run longest, too.", least=1, common=True
    )
    stack: str | None = option(
        None, "Show where the code of the rollout under KEY stands. KEY may also be the id of a "
        "request, as --slow shows it for what has no key.", metavar="KEY", common=True,
    )  # fmt: skip
    ready: bool = option(False, "For probes: say whether it is ready, and exit so.", common=True)
    watch: bool = option(False, "Show the status again and again, until Ctrl-C.", common=True)
    every_s: float = option(1.0, "With --watch, how often.", least=0.1)


@verb(
    Status,
    {
        OK: "the server answered; with --ready: a worker is ready, and it takes new work",
        AT_ONCE: "with --ready: it is starting, silent, broken or stopping; the line says why",
        NOT_STARTED: NO_SERVER,
        ROLLOUT_ERRORS: "with --stack: nothing runs under KEY, or its worker is silent",
    },
    takes_address=True,
)
async def status(asked: Status, stop: Stop) -> Result:
    """Show what the server at ADDRESS is doing: its requests, cache and workers.

    Without ADDRESS it is tcp://127.0.0.1:5555, where `serve` is by default.

    Examples:
      trio-envserve status tcp://127.0.0.1:5555 --slow 20
      trio-envserve status --stack run-8/step-12/7
      trio-envserve status tcp://127.0.0.1:5555 --json | jq .per_worker
      trio-envserve status tcp://127.0.0.1:5555 --ready || echo not now

    With --json the object has the server's statistics; with --watch there is one
    object a line, and with --slow the object has a field "slow". The exit code is 0
    if the server answered, whatever its status; the field "status" is ready,
    starting, silent, broken or stopping.

    With --ready the exit code is the answer, and a line says why.

    With --stack the text has the rollout's tasks of trio, its thread or its tasks of asyncio,
    and the place where the worker's event loop stands, if that is late. Nothing is disturbed,
    and the worker answers while its loop is blocked.
    """
    if asked.ready + asked.watch + (asked.stack is not None) > 1:
        raise ConfigError("--ready, --watch and --stack show three things: give one")
    if asked.stack is not None:
        return await _show_stack(asked, asked.stack, stop)
    last: dict[str, Any] = {}
    leave_out_warnings()
    with trio.CancelScope() as work:
        stop.on_first = work.cancel
        async with open_client(
            asked.address, name="status", transport=asked.transport, curve=asked.client_keys
        ) as client:
            last = await _stats(client, asked)
            if asked.watch:
                await _watch(client, asked, last)
            elif asked.ready:
                return _ready(last, asked.as_json)
            elif not asked.as_json:
                show_tables(status_tables(last), put)
    # Ctrl-C is the normal end of a watch.
    if stop.asked.is_set() and not (asked.watch and stop.number == signal.SIGINT and last):
        return Result(stop.interrupted_code, last)
    return Result(OK, last)


def _ready(stats: dict[str, Any], as_json: bool) -> Result:
    """The answer to a probe."""
    ready = stats["status"] == ServerStatus.READY.value
    if not as_json:
        put(" and ".join([state_of(stats), *(f"{name} {text}" for name, text in _closing(stats))]))
    return Result(OK if ready else AT_ONCE, stats)


def state_of(stats: dict[str, Any]) -> str:
    """The status and its reason on one line."""
    state, reason = str(stats["status"]), stats["reason"]
    return f"{state}: {_first_line(reason)}" if reason else state


async def _stats(client: Client, asked: Status) -> dict[str, Any]:
    with trio.move_on_after(asked.wait_s):
        stats = (await client.stats()).to_record()
        return stats if asked.slow is None else {**stats, "slow": await oldest(client, asked.slow)}
    raise no_answer(asked, client)


async def _watch(client: Client, asked: Status, last: dict[str, Any]) -> None:
    """Show ``last``, then go on while it is read; ``last`` is kept up to date."""

    async def look() -> None:
        await trio.sleep(asked.every_s)
        last.update(await _stats(client, asked))

    if asked.as_json or not sys.stdout.isatty():
        while emit(last) if asked.as_json else show_tables(status_tables(last), put):
            await look()
        return
    from rich.live import Live

    with Live(rich_tables(status_tables(last)), auto_refresh=False) as live:
        while True:
            live.update(rich_tables(status_tables(last)), refresh=True)
            await look()


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
    """Rows on the number of workers: how many there are, and where it may change, its range and
    last change."""
    ready = f"{stats['ready']} of {stats['workers']}"
    if stats["workers_least"] == stats["workers_most"]:
        return [("workers ready", ready)]
    bounds = f"{stats['workers_least']}..{stats['workers_most']}"
    return [
        ("workers ready", f"{ready} (of {bounds})"),
        *([("resized", stats["resized"])] if stats["resized"] else []),
    ]


def worker_table(stats: dict[str, Any]) -> Table:
    """The table of the workers."""
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
    """Tables of the present and the past hosts; nothing without any."""
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


# -- the slowest rollouts ------------------------------------------------------------

_COLUMNS = "key or request", "age", "p50", "worker", "execution", "note", "where it stands"
LINES = 5
"""Number of the oldest rollouts whose workers are asked for their line."""
LINE_S = 1.0


async def oldest(client: Client, most: int) -> dict[str, Any]:
    """The longest running rollouts as plain data, which ``--json`` adds.  The oldest of them with
    the line of their code."""
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
    """The name that ``key cancel`` and ``status --stack`` take; of a request without a
    key its id."""
    if row["key"] is None:
        return str(row["request"])
    name = shlex.quote(row["key"])
    if row["namespace"] == DEFAULT_NAMESPACE:
        return name
    return f"{name} --namespace {shlex.quote(row['namespace'])}"


def slow_table(slow: dict[str, Any]) -> Table:
    """The table of the longest running rollouts, for people."""
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


# -- where a rollout stands -----------------------------------------------------------


async def _show_stack(asked: Status, key: str, stop: Stop) -> Result:
    with trio.CancelScope() as work:
        stop.on_first = work.cancel
        async with reached(asked, "stack") as client:
            row = await _find(client, key, asked.namespace)
            text = None if row is None else await _ask(client, row)
            if row is None or text is None:
                raise CommandError(
                    f"nothing runs under {key} in namespace {asked.namespace}; `trio-envserve "
                    f"status {asked.address} --slow 20` shows what runs",
                    ROLLOUT_ERRORS,
                )
            if not asked.as_json:
                put(f"{key} has run on worker {row.worker} for {row.age_s:.1f} s")
                if row.note.get(WAITS):
                    put(plain_line(f"it waits {row.note[WAITS]}"))
                put("\n".join(plain_line(line) for line in text.splitlines()))
            about: dict[str, Any] = {
                "key": row.key, "namespace": row.namespace, "request": row.request,
                "worker": row.worker, "age_s": row.age_s, "note": dict(row.note),
                "stack": text,
            }  # fmt: skip
            return Result(OK, about)
    return Result(stop.interrupted_code, {})


async def _find(client: Client, key: str, namespace: str) -> RunningRollout | None:
    """The rollout that runs under the key, or as this request."""
    first: int | None = 0
    while first is not None:
        page = await client.list_running(first=first)
        for row in page.running:
            if (row.namespace, row.key) == (namespace, key):
                return row
            if row.key is None and row.request == key:
                return row
        first = page.next
    return None


async def _ask(client: Client, row: RunningRollout) -> str | None:
    try:
        return await client.stack(row.number, timeout_s=STACK_S)
    except ServerNotReady as error:
        raise CommandError(
            f"worker {row.worker} does not say where it stands: it is stopped, or is no worker "
            f"of this package ({error})", ROLLOUT_ERRORS,
        ) from None  # fmt: skip
