"""The verbs ``status`` and ``top``: a server's statistics, what is late there, and where its code
stands; once, or again and again as the live page has it."""

from __future__ import annotations

import dataclasses
import shlex
from collections import deque
from collections.abc import Mapping
from typing import Any

import trio

from ..client import Client
from ..client.options import DEFAULT_NAMESPACE
from ..client.standing import WAITS, standing
from ..core.errors import ConfigError, EnvServeError, ServerNotReady
from ..core.health import ServerStatus
from ..core.status import RunningPage, RunningRollout, ServerStats
from ..evals.plain import plain_line
from ..evals.statistics import sparkline
from ..options import option
from ..pages.tables import (
    DEATHS,
    RECORDS,
    Table,
    cell,
    duration,
    first_and_last,
    tables_of,
)
from .at_server import (
    AtServer,
    OfKeys,
    address_argument,
    reached,
)
from .common import (
    AT_ONCE,
    NO_SERVER,
    NOT_STARTED,
    OK,
    ROLLOUT_ERRORS,
    CommandError,
    Result,
    StopRequest,
)
from .render import calls_words, figures, keep_showing, tokens_words
from .verbs import verb

STACK_S = 10.0
"""Time that a worker may take to report where its code stands, in seconds."""
ANSWER_S = 2.0
"""A server that takes longer to answer is shown as silent."""
HISTORY = 60
"""Number of rates that are drawn."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatusOptions(OfKeys):
    """The options of ``status``."""

    address: str = address_argument()
    slow: int | None = option(
        None, "Show the N rollouts that have run longest, too.", least=1, common=True
    )
    stack: str | None = option(
        None, "Show where the code of the rollout under KEY stands. KEY may also be the id of a "
        "request, as --slow shows it for what has no key.", metavar="KEY", common=True,
    )  # fmt: skip
    ready: bool = option(False, "For probes: say whether it is ready, and exit so.", common=True)


@verb(
    StatusOptions,
    {
        OK: "the server answered; with --ready: a worker is ready, and it takes new work",
        AT_ONCE: "with --ready: it is starting, silent, broken or stopping; the line says why",
        NOT_STARTED: NO_SERVER,
        ROLLOUT_ERRORS: "with --stack: nothing runs under KEY, or its worker is silent",
    },
)
async def status(asked: StatusOptions, stop: StopRequest) -> Result:
    """Show what the server at ADDRESS is doing: its requests, cache and workers.

    Without ADDRESS it is that of the variable TRIO_ENVSERVE_ADDRESS, which `run-with` sets,
    or else tcp://127.0.0.1:5555, where `serve` is by default.

    Examples:
      trio-envserve status tcp://127.0.0.1:5555 --slow 20
      trio-envserve status --stack run-8/step-12/7
      trio-envserve status tcp://127.0.0.1:5555 --json | jq .per_worker
      trio-envserve status tcp://127.0.0.1:5555 --ready || echo not now

    With --json the object has the server's statistics, and with --slow a field "slow". The
    exit code is 0 if the server answered, whatever its status; the field "status" is ready,
    starting, silent, broken or stopping. `top` shows it again and again.

    With --ready the exit code is the answer, and a line says why.

    With --stack the text has the rollout's tasks of trio, its thread or its tasks of asyncio,
    and the place where the worker's event loop stands, if that is late. Nothing is disturbed,
    and the worker answers while its loop is blocked.
    """
    if asked.ready and asked.stack is not None:
        raise ConfigError("--ready and --stack show two things: give one")
    if asked.stack is not None:
        return await _stack(asked, asked.stack)
    async with reached(asked, "status") as client:
        stats = (await client.stats(asked.wait_s)).to_record()
        if asked.slow is not None:
            stats["slow"] = await oldest(client, asked.slow)
    if not asked.ready:
        return Result(OK, stats, status_tables(stats))
    is_ready = stats["status"] == ServerStatus.READY.value
    line = " and ".join([state_of(stats), *(f"{name} {text}" for name, text in _closing(stats))])
    return Result(OK if is_ready else AT_ONCE, stats, [line])


_NUMBERS = [
    field.name for field in dataclasses.fields(ServerStats)
    if (stat := field.metadata.get("stat")) is not None and stat.kind != "histogram"
    and field.name not in ("waiting", "running")
    and not field.name.startswith(("ready", "workers"))
]  # fmt: skip
"""The declared numbers of a server that have no row of their own."""


def state_of(stats: Mapping[str, Any]) -> str:
    """The status and its reason on one line."""
    state, reason = stats["status"], stats["reason"]
    return f"{state}: {first_and_last(reason)}" if reason else f"{state}"


def status_tables(stats: dict[str, Any]) -> list[Table]:
    """The server's statistics for people."""
    server = [
        ("status", state_of(stats)),
        *_closing(stats),
        *figures(stats, "paused", "journal", zeros=False),
        *figures(stats, "environment"),
        *pool_rows(stats),
        *figures(stats, "waiting", "running"),
        *figures(stats, *_NUMBERS, zeros=False),
        *_model_calls(stats),
        *figures(stats, "router_lag_p99_s"),
        ("epoch", stats["epoch"][:8]),
    ]
    counted = figures(stats["cache"], *stats["cache"], zeros=False)
    return [
        Table(f"server at {stats['address']}", (), server),
        *([Table("requests since its start", (), counted)] if counted else []),
        *tables_of(stats, *RECORDS),
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
        *figures(stats, "resized", zeros=False),
    ]


def _closing(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """The work that a stopping server waits for."""
    closing = stats.get("closing")
    if not closing:
        return []
    names = {"running": "executions", "outcomes": "outcomes", "workers": "workers"}
    if closing["resources"]:
        names["resources"] = "resources"
    left = ", ".join(f"{closing[key]} {name}" for key, name in names.items())
    return [("waits for", left), ("next stage", f"within {closing['left_s']:g} s")]


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
            lines = await standing(client, found, most=LINES, timeout_s=LINE_S)
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
    typical = cell("typical_s", slow["typical_s"])
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


async def _stack(asked: StatusOptions, key: str) -> Result:
    async with reached(asked, "stack") as client:
        row = await _find(client, key, asked.namespace)
        text = None if row is None else await _ask(client, row)
    if row is None or text is None:
        raise CommandError(
            f"nothing runs under {key} in namespace {asked.namespace}; `trio-envserve "
            f"status {asked.address} --slow 20` shows what runs",
            ROLLOUT_ERRORS,
        )
    lines = [f"{key} has run on worker {row.worker} for {row.age_s:.1f} s"]
    if row.note.get(WAITS):
        lines.append(f"it waits {row.note[WAITS]}")
    about = {
        "key": row.key, "namespace": row.namespace, "request": row.request,
        "worker": row.worker, "age_s": row.age_s, "note": dict(row.note), "stack": text,
    }  # fmt: skip
    return Result(OK, about, ["\n".join(map(plain_line, [*lines, *text.splitlines()]))])


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


# -- again and again ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top(AtServer):
    """The options of ``top``."""

    address: str = address_argument()
    rows: int = option(10, "Show the N slowest rollouts.", least=1, most=100, common=True)
    every_s: float = option(1.0, "How often to look.", least=0.1, common=True)


@verb(Top, {NOT_STARTED: NO_SERVER})
async def top(asked: Top, stop: StopRequest) -> Result:
    """Watch the server at ADDRESS: queue, rates, slowest rollouts, workers, failures.

    Without ADDRESS it is that of the variable TRIO_ENVSERVE_ADDRESS, which `run-with` sets,
    or else tcp://127.0.0.1:5555, where `serve` is by default.

    It is what the live page of `serve --http` shows. Ctrl-C ends it. If standard
    output is no terminal, it prints a block of text each time; with --json an object a
    line, with the statistics of `status`, a field "slow" and a field "rates".

    Example:
      trio-envserve top
    """
    watch = Watch()
    stop.so_far = lambda: Result(OK, watch.last)
    async with reached(asked, "top") as client:
        await watch.look(client, asked.rows)
        await keep_showing(
            lambda: top_tables(watch), lambda: watch.look(client, asked.rows),
            every_s=asked.every_s, record=watch.record if asked.as_json else None,
        )  # fmt: skip
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

    async def look(self, client: Client, rows: int) -> None:
        """Ask the server how it is."""
        try:
            with trio.fail_after(2 * ANSWER_S):
                stats = (await client.stats(ANSWER_S)).to_record()
                stats["slow"] = await oldest(client, rows)
        except (EnvServeError, trio.TooSlowError) as error:
            self.silent = str(error) or "no answer"
        else:
            self.saw(stats, trio.current_time())

    def saw(self, stats: dict[str, Any], now_s: float) -> None:
        """Take what the server has said."""
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

    def record(self) -> dict[str, Any]:
        """The last view for programs."""
        return {**self.last, "silent": self.silent} if self.silent else self.last


def _failed(stats: Mapping[str, Any]) -> float:
    return float(sum(stats["failures"].values()))


def top_tables(watch: Watch) -> list[Table]:
    """The last view for people."""
    stats = watch.last
    if not stats:
        return [Table("no answer", (), [("why", watch.silent)])]
    rates, failures = stats["rates"], stats["failures"]
    completed, failed = _rate(rates["completed"]), _rate(rates["failed"])
    server = [
        ("status", f"silent: {watch.silent}" if watch.silent else state_of(stats)),
        *figures(stats, "paused", "journal", zeros=False),
        *pool_rows(stats),
        *figures(stats, "waiting", "running", "kept"),
        ("completed", f"{completed}  {sparkline([round(100 * rate) for rate in watch.rates])}"),
        ("failed", f"{failed}; " + ", ".join(f"{name} {n:g}" for name, n in failures.items())),
    ]
    return [
        Table(f"{stats['environment'] or 'server'} at {stats['address']}", (), server, left=(0, 1)),
        slow_table(stats["slow"]),
        *tables_of(stats, *RECORDS, DEATHS),
    ]


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}/s"
