"""Shared parts of ``demo``, ``soak`` and ``siege``: a judge reads the logs of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import trio

from .common import Result, Stop, put, say
from .render import Table, show_tables

FAILED = 1
"""Exit code when the judge has found a problem."""

keep_option = click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the logs, in a folder that has none yet.",
)

remote_host_option = click.option(
    "--remote-host",
    is_flag=True,
    help="Let the workers be those of a host that has joined, on this machine: see join.",
)


@contextmanager
def folder(keep: Path | None, verb: str) -> Iterator[Path]:
    """The folder of the logs; a temporary one if they are not kept."""
    if keep is not None:
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix=f"trio-envserve-{verb}-") as name:
            yield Path(name)


async def run_shown(
    run: Callable[[], Awaitable[None]], show_progress: Callable[[], Awaitable[None]], stop: Stop
) -> bool:
    """Run, and show the progress; returns False if a signal has interrupted the run."""
    with trio.CancelScope() as working:
        stop.on_first = working.cancel
        async with trio.open_nursery() as nursery:
            nursery.start_soon(show_progress)
            await run()
            nursery.cancel_scope.cancel()
    return not working.cancelled_caught


def show_figures(
    figures: dict[str, Any], tables: Callable[[dict[str, Any]], Sequence[Table]], *,
    kept: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say where the logs are, and print the figures for people."""
    if kept is not None:
        say(f"the logs are in {kept}")
    if not as_json:
        show_tables(tables(figures), put)


def judged(figures: dict[str, Any]) -> Result:
    """Say what the judge has found, which decides the exit code."""
    for problem in figures["problems"]:
        say(f"FAILED: {problem}")
    return Result(0 if figures["ok"] else FAILED, figures)
