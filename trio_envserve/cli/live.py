"""The progress of an evaluation, for people: a live view on a terminal, a line now and
then everywhere else.

The view is drawn by a task, four times a second, from what the evaluation counts.  The executions
on each worker, and the totals of model calls, are the server's figures, and are asked for once a
second.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TextIO

import trio

from ..client import Client
from ..client.places import WAITS
from ..core.errors import EnvServeError
from ..core.status import ServerStats
from ..evals.plain import plain_line
from ..evals.run import Evaluation
from ..evals.statistics import bar, histogram, sparkline
from .render import PLAIN_EVERY_S
from .results import calls_words, tokens_words

DRAWN_EVERY_S = 0.25
ASKED_EVERY_S = 1.0
WORKERS = 16
"""Most workers that have a bar of their own."""

_WIDTH = 24
_NAME = 24


@dataclasses.dataclass
class Seen:
    """The server's last status."""

    before: Mapping[str, float]
    """The totals of its model calls when the evaluation began."""
    running: dict[str, int] = dataclasses.field(default_factory=dict)
    """The number of rollouts on each worker; empty while nothing is known."""
    usage: dict[str, float] = dataclasses.field(default_factory=dict)
    """The totals of its model calls since then."""
    waits: str = ""
    """Text on the thing for which the oldest waiting rollout waits."""

    def take(self, stats: ServerStats) -> None:
        """Take what it says now."""
        self.running = {each.worker: each.pending for each in stats.per_worker}
        usage = stats.model_usage
        # A server that was started anew counts anew.
        self.usage = {n: max(count - self.before.get(n, 0), 0) for n, count in usage.items()}


@asynccontextmanager
async def shown(
    evaluation: Evaluation, client: Client, title: str, before: ServerStats,
    stream: TextIO | None = None,
) -> AsyncIterator[None]:  # fmt: skip
    """Show how far an evaluation is until the block ends."""
    stream = sys.stderr if stream is None else stream
    async with trio.open_nursery() as nursery:
        if stream.isatty():
            seen = Seen(before.model_usage)
            nursery.start_soon(_keep_drawing, evaluation, client, title, seen, stream)
        else:
            nursery.start_soon(_keep_saying, evaluation, client, stream)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
    if not stream.isatty():
        print(progress_line(evaluation), file=stream, flush=True)


async def _keep_saying(evaluation: Evaluation, client: Client, stream: TextIO) -> None:
    while True:
        await trio.sleep(PLAIN_EVERY_S)
        waits = await _waits(client)
        print(progress_line(evaluation, waits), file=stream, flush=True)


async def _waits(client: Client) -> str:
    """Text on the thing for which the oldest waiting rollout waits; empty if none is known."""
    try:
        page = await client.list_running(timeout_s=ASKED_EVERY_S)
    except EnvServeError:
        return ""  # the server does not answer
    return next((f"{row.note[WAITS]}" for row in page.running if row.note.get(WAITS)), "")


async def _keep_drawing(
    evaluation: Evaluation, client: Client, title: str, seen: Seen, stream: TextIO
) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=stream), auto_refresh=False, transient=True) as live:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_asking, client, seen)
            while True:
                live.update(view(evaluation, seen, title), refresh=True)
                await trio.sleep(DRAWN_EVERY_S)


async def _keep_asking(client: Client, seen: Seen) -> None:
    while True:
        try:
            seen.take(await client.stats(ASKED_EVERY_S))
            seen.waits = await _waits(client)
        except EnvServeError:
            seen.running, seen.waits = {}, ""  # it does not answer
        await trio.sleep(ASKED_EVERY_S)


def progress_line(evaluation: Evaluation, waits: str = "") -> str:
    """How far it is, and what its oldest rollout waits for, on one line."""
    progress, tally = evaluation.progress, evaluation.tally
    mean = tally.reward_sum / tally.reward_count if tally.reward_count else None
    reward = "" if mean is None else f", mean reward {mean:.4g}"
    left = "" if progress.ended_s or not progress.left_s else f", {clock(progress.left_s)} left"
    return (
        f"eval: {progress.done}/{progress.total} done, {tally.errors} errors{reward}, "
        f"{progress.rate:.1f}/s, {progress.seconds:.1f} s{left}"
        f"{plain_line(f'; waits {waits}') if waits else ''}"
    )


def view(evaluation: Evaluation, seen: Seen, title: str) -> Any:
    """The live view, as rich prints it."""
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    progress, tally = evaluation.progress, evaluation.tally
    about = Table.grid(padding=(0, 2))
    done = Table.grid(padding=(0, 1))
    done.add_row(
        ProgressBar(max(progress.total, 1), progress.done, width=40),
        Text(f"{progress.done} of {progress.total}"),
    )
    left = "…" if progress.left_s is None else clock(progress.left_s)
    about.add_row(Text("rollouts", "bold"), done)
    about.add_row(Text("rate", "bold"), Text(f"{progress.rate:.1f}/s, {left} left"))
    about.add_row(Text("reward", "bold"), Text(_rewards(evaluation)))
    if seen.usage.get("calls") or seen.usage.get("failed"):
        about.add_row(Text("model calls", "bold"), Text(calls_words(seen.usage)))
    if seen.usage.get("prompt_tokens") or seen.usage.get("completion_tokens"):
        tokens = tokens_words(seen.usage, progress.seconds)
        about.add_row(Text("tokens", "bold"), Text(tokens))
    if seen.waits:
        about.add_row(Text("waits", "bold"), Text(plain_line(seen.waits)))
    if tally.errors:
        faults = ", ".join(f"{fault} {n}" for fault, n in tally.by_fault.most_common() if n)
        about.add_row(Text("errors", "bold red"), Text(f"{tally.errors}: {faults}", "red"))
    workers = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("worker", "done"):
        workers.add_column(heading)
    for heading in ("", "running"):
        workers.add_column(heading, justify="right")
    for name, finished, runs in _by_worker(evaluation, seen.running):
        most = max(1, *tally.by_worker.values(), 1)
        line = Text(bar(finished, most, _WIDTH).ljust(_WIDTH), "green")
        workers.add_row(Text(name), line, Text(str(finished)), Text(runs))
    return Panel(Group(about, workers), title=Text(plain_line(title)), title_align="left")


def _rewards(evaluation: Evaluation) -> str:
    tally = evaluation.tally
    if not tally.reward_count:
        return "none yet"
    shape = sparkline([each.number for each in histogram(tally.rewards()[-2000:])])
    return f"mean {tally.reward_sum / tally.reward_count:.4g} of {tally.reward_count}  {shape}"


def _by_worker(evaluation: Evaluation, running: dict[str, int]) -> list[tuple[str, int, str]]:
    """A row for each worker: its name, what it has done, what it runs."""
    done = evaluation.tally.by_worker
    names = sorted({name for name in (*done, *running) if name})
    # Those that live first: each death brings a new name.
    names = sorted(names, key=lambda name: name not in running)[:WORKERS]
    return [
        (plain_line(n, _NAME), done[n], str(running[n]) if n in running else "-") for n in names
    ]


def clock(seconds: float) -> str:
    """Seconds for people: ``1:05`` or ``2:00:07``."""
    whole = int(min(seconds, 359_999))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
