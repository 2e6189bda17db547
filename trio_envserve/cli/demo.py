"""The verb ``demo``: the main job, while everything goes wrong.

Runs :func:`~trio_envserve.lab.demo.run.run_demo`, shows where it stands, and
explains the judge's figures.
"""

from __future__ import annotations

import logging
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import trio

from ..lab.demo.process import SERVER_COMMAND
from ..lab.demo.run import ROLLOUTS_LEAST, WORKERS_MOST, DemoOptions, Progress, run_demo
from .common import Result, Stop, json_option, put, run_verb, say
from .render import Table, show_tables

FAILED = 1
"""Exit code when something ran twice or was lost, or too little was shown."""

_EPILOG = """\b
Exit codes:
  0  nothing ran twice, nothing was lost, and every fault did happen
  1  something did, or was, or did not
  2  wrong usage
  3  the server could not be started
  130, 143  interrupted (Ctrl-C, SIGTERM)
"""

_ROWS = (
    ("asked", "rollouts the callers asked for, each once"),
    ("answered", "calls that ended with an outcome"),
    ("lost", "rollouts without a right result in their caller's hands"),
    ("started", "rollouts that ran, says the environment"),
    ("started_twice", "starts that were a second run and had no right to be"),
    ("rerun_with_consent", "runs after a proven death, which the caller had allowed"),
    ("rerun_too_early", "of those, begun before the death was proven"),
    ("connections_cut", "connections cut by the proxy, of all kinds"),
    ("cuts_before_receipt", "times an outcome was on its way to a caller when cut"),
    ("received_after_cut", "outcomes withheld by such a cut, received after it"),
    ("worker_restarts", "workers killed with 20 executions or more on them, and replaced"),
    ("server_restarts", "times the server was killed, and replaced at its address"),
    ("replayed", "outcomes sent again: received by callers or withheld by a cut"),
    ("coalesced", "duplicates taken while their first ran, and answered by nothing of their own"),
    ("seconds", "how long it all took"),
)


@click.command(epilog=_EPILOG)
@click.option(
    "--rollouts",
    type=click.IntRange(min=ROLLOUTS_LEAST),
    default=1000,
    show_default=True,
    help="How many rollouts are asked for.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Decides what goes wrong in which order."
)
@click.option(
    "--workers",
    type=click.IntRange(2, WORKERS_MOST),
    default=2,
    show_default=True,
    help="Worker processes.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the logs, in a folder that has none yet.",
)
@click.option(
    "--seconds-limit",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Then it is ended; what has no answer is lost.",
)
@click.option(
    "--server-command",
    metavar="COMMAND",
    hidden=True,
    help="What to start as the server, to see the demo fail with a broken one.",
)
@json_option
def demo(
    rollouts: int, seed: int, workers: int, keep: Path | None, seconds_limit: float,
    server_command: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Run 1,000 rollouts while connections are cut and processes are killed.

    Serves the built-in environment in processes of its own and asks it for rollouts
    through a proxy that cuts connections, also between an outcome and its receipt.
    Workers are killed while at least 20 executions live on them, and so is the
    server, once. Then a part that trusts nobody recounts what happened from three
    logs on disk: the environment's, the callers', the killer's.

    \b
    Examples:
      trio-envserve demo
      trio-envserve demo --seed 7 --keep logs
      python -m trio_envserve.lab.demo.judge_logs logs
    """  # noqa: D301  # click wants the character itself
    command = shlex.split(server_command) if server_command else SERVER_COMMAND

    async def main(stop: Stop) -> Result:
        with _folder(keep) as directory:
            options = DemoOptions(
                directory=directory, rollouts=rollouts, seed=seed, workers=workers,
                seconds_limit=seconds_limit, server_command=command,
            )  # fmt: skip
            return await _run(options, stop, as_json=as_json, kept=keep is not None)

    return run_verb(main, as_json=as_json)


async def _run(options: DemoOptions, stop: Stop, *, as_json: bool, kept: bool) -> Result:
    progress = Progress(options.rollouts)
    figures: dict[str, Any] | None = None
    # What the clients say of lost connections is what this is about, and no news.
    logging.getLogger("trio_envserve").addHandler(logging.NullHandler())
    with trio.CancelScope() as working:
        stop.on_first = working.cancel
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_show_progress, progress)
            figures = await run_demo(options, progress)
            nursery.cancel_scope.cancel()
    if figures is None:
        say(f"interrupted after {progress.answered} of {progress.rollouts} rollouts")
        summary = {"ok": False, "asked": progress.asked, "answered": progress.answered}
        return Result(stop.interrupted_code, summary)
    if kept:
        say(f"the logs are in {options.directory}")
    if not as_json:
        show_tables([_table(figures, options)], put)
    for problem in figures["problems"]:
        say(f"FAILED: {problem}")
    return Result(0 if figures["ok"] else FAILED, figures)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="trio-envserve-demo-") as name:
            yield Path(name)


def _table(figures: dict[str, Any], options: DemoOptions) -> Table:
    verdict = "passed" if figures["ok"] else "FAILED"
    rows = [(f"{name.replace('_', ' ')}: {text}", str(figures.get(name))) for name, text in _ROWS]
    return Table(f"demo {verdict} (seed {options.seed}), judged from its logs", (), rows)


# -- progress -----------------------------------------------------------------


async def _show_progress(progress: Progress) -> None:
    """A bar on a terminal; else a line for each thing that happens."""
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
