"""Shared parts of ``demo`` and ``soak``: a judge reads the logs of a run."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click
import trio

from .common import Result, Stop, put, say
from .options import decorate, json_option
from .render import Table, show_tables

FAILED = 1
"""Exit code when the judge has found a problem."""


def _words(_context: click.Context, _option: click.Parameter, value: str | None) -> list[str]:
    return shlex.split(value or "")


def judged_options(decides: str) -> Callable[[Any], Any]:
    """The options of all three.  ``decides``: what the seed decides."""
    return decorate(
        [
            click.option(
                "--seed", type=int, default=0, show_default=True, help=f"Decides {decides}."
            ),
            click.option(
                "--remote-host", is_flag=True,
                help="Let the workers be those of a host that has joined, on this machine: see "
                "join.",
            ),
            click.option(
                "--keep", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                help="Keep the logs, in a folder that has none yet.",
            ),
            click.option(
                "--server-command", callback=_words, metavar="COMMAND", hidden=True,
                help="What to start as the server, to see it fail with a broken one.",
            ),
            json_option,
        ]
    )  # fmt: skip


class JudgedRun(Protocol):
    """A run that writes logs, which a judge reads when it has ended."""

    directory: Path

    async def run(self) -> None:
        """All of it."""

    def figures(self) -> dict[str, Any]:
        """The judge's, from what is in the folder now."""


async def run_judged(
    run: JudgedRun, show_progress: Callable[[], Awaitable[None]], stop: Stop, *,
    phase: Callable[[], str], tables: Callable[[dict[str, Any]], Sequence[Table]],
    keep: Path | None, as_json: bool, said: Sequence[str] = (),
) -> Result:  # fmt: skip
    """Run, judge the logs, and show the figures: those so far, if a signal has interrupted
    it in a phase.  ``said``: what went wrong, a line each."""
    done = await run_shown(run.run, show_progress, stop)
    for text in said:
        say(text)
    say("judging the logs")
    figures = await trio.to_thread.run_sync(run.figures)
    show_figures(figures, tables, kept=keep and run.directory, as_json=as_json)
    if not done:
        say(f"interrupted in the phase: {phase()}")
        return Result(stop.interrupted_code, figures)
    return judged(figures)


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
