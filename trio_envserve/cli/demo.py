"""The verb ``demo``: the main job, under faults.

Runs :func:`~trio_envserve.lab.demo.run.run_demo`, shows its progress, and explains
the judge's figures.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from ..lab.demo.run import ROLLOUTS_LEAST, WORKERS_MOST, DemoOptions, Progress, run_demo
from ..lab.processes import TRIO_ENVSERVE
from .common import Result, Stop, exit_codes, run_verb, say
from .judged import folder, judged, judged_options, run_shown, show_figures
from .render import Table

_EPILOG = exit_codes(
    "nothing ran twice, nothing was lost, and every fault did happen",
    "something ran twice or was lost, or a fault did not happen",
    "the server could not be started",
)

_ROWS = (
    ("asked", "rollouts the callers asked for, each once"),
    ("answered", "calls that ended with an outcome"),
    ("lost", "rollouts whose caller has no right result"),
    ("started", "rollouts that ran, by the environment's log"),
    ("started_twice", "second runs without consent"),
    ("rerun_with_consent", "second runs with consent, after a proven death"),
    ("rerun_too_early", "second runs with consent, before the death was proven"),
    ("connections_cut", "connections that the proxy cut"),
    ("cuts_before_receipt", "cuts with an outcome on its way to a caller"),
    ("received_after_cut", "outcomes withheld by such a cut, received later"),
    ("worker_restarts", "workers killed with 20 executions or more, and replaced"),
    ("server_restarts", "times the server was killed, and replaced at its address"),
    ("host_restarts", "times the remote host was killed, and another one joined"),
    ("replayed", "outcomes sent again: received by callers or withheld by a cut"),
    ("coalesced", "duplicates received while the first ran, without an answer of their own"),
    ("seconds", "the duration"),
)


@click.command(epilog=_EPILOG)
@click.option(
    "--rollouts", type=click.IntRange(min=ROLLOUTS_LEAST), default=1000, show_default=True,
    help="How many rollouts to ask for.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(2, WORKERS_MOST), default=2, show_default=True,
    help="Worker processes.",
)  # fmt: skip
@click.option(
    "--seconds-limit", type=click.FloatRange(min=1), default=60.0, show_default=True,
    help="End the demo after so long; calls without an answer are lost.",
)  # fmt: skip
@judged_options("what goes wrong in which order")
def demo(
    rollouts: int, seed: int, workers: int, remote_host: bool, keep: Path | None,
    seconds_limit: float, server_command: Sequence[str], as_json: bool,
) -> int:  # fmt: skip
    """Run 1,000 rollouts while connections are cut and processes are killed.

    The demo serves the built-in environment in processes of its own and asks for
    rollouts through a proxy that cuts connections, also between an outcome and its
    receipt. It kills workers with at least 20 live executions, and once the server.
    Then a separate program counts what happened from three logs on disk: the
    environment's, the callers', the killer's.

    \b
    Examples:
      trio-envserve demo
      trio-envserve demo --seed 7 --keep logs
      python -m trio_envserve.lab.demo.judge_logs logs
    """  # noqa: D301  # click wants the character itself

    async def main(stop: Stop) -> Result:
        with folder(keep, "demo") as directory:
            options = DemoOptions(
                directory=directory, rollouts=rollouts, seed=seed, workers=workers,
                seconds_limit=seconds_limit, remote_host=remote_host,
                server_command=server_command or TRIO_ENVSERVE,
            )  # fmt: skip
            return await _run(options, stop, as_json=as_json, kept=keep)

    return run_verb(main, as_json=as_json)


async def _run(options: DemoOptions, stop: Stop, *, as_json: bool, kept: Path | None) -> Result:
    progress = Progress(options.rollouts)
    figures: dict[str, Any] | None = None
    # The demo cuts connections, so the clients' warnings about them are not shown.
    logging.getLogger("trio_envserve").addHandler(logging.NullHandler())

    async def run() -> None:
        nonlocal figures
        figures = await run_demo(options, progress)

    await run_shown(run, partial(_show_progress, progress), stop)
    if figures is None:
        say(f"interrupted after {progress.answered} of {progress.rollouts} rollouts")
        summary = {"ok": False, "asked": progress.asked, "answered": progress.answered}
        return Result(stop.interrupted_code, summary)
    show_figures(figures, partial(_tables, options), kept=kept, as_json=as_json)
    return judged(figures)


def _tables(options: DemoOptions, figures: dict[str, Any]) -> list[Table]:
    how = "passed" if figures["ok"] else "FAILED"
    rows = [
        (f"{name.replace('_', ' ')}: {text}", str(figures.get(name))) for name, text in _ROWS
        if name != "host_restarts" or name in figures
    ]  # fmt: skip
    return [Table(f"demo {how} (seed {options.seed}), judged from its logs", (), rows)]


# -- progress -----------------------------------------------------------------


async def _show_progress(progress: Progress) -> None:
    """A bar on a terminal; otherwise a line for each event."""
    if not sys.stderr.isatty():
        await _follow(progress, lambda text: say(f"{_count(progress)}: {text}"), lambda: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("answered", total=progress.rollouts)
        await _follow(
            progress, bar.console.print, lambda: bar.update(task, completed=progress.answered)
        )


async def _follow(
    progress: Progress, tell: Callable[[str], None], advance: Callable[[], None]
) -> None:
    told = 0
    while True:
        for text in progress.said[told:]:
            tell(text)
        told = len(progress.said)
        advance()
        await trio.sleep(0.1)


def _count(progress: Progress) -> str:
    return f"{progress.answered}/{progress.rollouts}"
