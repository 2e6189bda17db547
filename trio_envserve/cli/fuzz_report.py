"""The output of ``fuzz``: its progress, the figures of its runs, the caught mutants."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from ..core.work import WorkInput, WorkState
from ..lab.simulation.target import Tally
from ..retrylab.target import BaseTally, Catch
from .common import say
from .render import PLAIN_EVERY_S, Table

LOOK_S = 0.1


def count(number: int, what: str) -> str:
    """``1 run``, ``2 runs``, ``2 processes``."""
    return f"{number:,} {what}" + ("es" if what.endswith("s") else "s") * (number != 1)


# -- progress -----------------------------------------------------------------


@asynccontextmanager
async def progress_of(
    tally: BaseTally[Any], *, runs: int | None, seconds: float | None
) -> AsyncIterator[None]:
    """While the block lasts: a bar on a terminal, otherwise a line every few seconds."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_show, tally, runs, seconds)
        yield
        nursery.cancel_scope.cancel()


async def _show(tally: BaseTally[Any], runs: int | None, seconds: float | None) -> None:
    began_s = trio.current_time()

    def line() -> str:
        took_s = trio.current_time() - began_s
        return (
            f"{count(tally.runs, 'run')}, {tally.runs / max(took_s, 0.1):.0f} a second, "
            f"{tally.virtual_s / 3600:.2f} simulated hours, {count(tally.violating, 'failure')}"
        )

    if not sys.stderr.isatty():
        while True:
            await trio.sleep(PLAIN_EVERY_S)
            say(line())
    await _bar(line, lambda: _part(tally, began_s, runs, seconds))


def _part(tally: BaseTally[Any], began_s: float, runs: int | None, seconds: float | None) -> float:
    """How much of it is done."""
    if seconds is not None:
        return (trio.current_time() - began_s) / seconds
    return tally.runs / runs if runs else 0.0


async def _bar(line: Callable[[], str], part: Callable[[], float]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        while True:
            bar.update(task, completed=min(1.0, part()), description=line())
            await trio.sleep(LOOK_S)


# -- tables -------------------------------------------------------------------


def run_tables(tally: Tally, figures: dict[str, Any]) -> list[Table]:
    """The figures of many runs."""
    rows = [
        ("of the runs harsh", f"{tally.harsh:,}"),
        ("executions", f"{tally.executions:,}"),
    ]
    return [*any_tables(tally, figures, rows), table_of_pairs(tally.every_pair())]


def any_tables(
    tally: BaseTally[Any], figures: dict[str, Any], more: Sequence[tuple[str, str]] = ()
) -> list[Table]:
    """The totals of many runs of any protocol."""
    average, least = figures["average"], figures["least"]
    rows = [
        ("runs", f"{tally.runs:,}"),
        ("runs in which a guarantee broke", f"{tally.violating:,}"),
        ("seconds", f"{figures['seconds']:.1f}"),
        ("runs a minute", f"{figures['runs_per_minute']:,.0f}"),
        ("simulated hours", f"{figures['simulated_hours']:.2f}"),
        ("events", f"{tally.events:,}"),
        *more,
        *(
            (f"{name} of a run: average, least", f"{average[name]:.1f}, {least.get(name, 0)}")
            for name in tally.SIZES
        ),
    ]
    how = "FAILED" if tally.violating else "passed"
    faults = [(name, f"{times:,}") for name, times in figures["faults"].items()]
    return [
        Table(f"fuzz {how} (seeds from {figures['seed']})", (), rows),
        Table("how often each fault struck", (), faults),
    ]


def table_of_pairs(times: Mapping[str, int]) -> Table:
    """How often each input came to a work in each state: inputs down, states across; ``-`` is
    what cannot occur."""
    names = [state.value for state in WorkState]
    rows = [
        (input.value, *(_times(times.get(f"{name}: {input.value}")) for name in names))
        for input in WorkInput
    ]
    return Table("how often each input came to a work in each state", ("input", *names), rows)


def _times(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def catches_table(catches: Sequence[Catch]) -> Table:
    """How each mutant was caught."""
    rows = [
        (
            catch.name,
            catch.guarantee or "NOT CAUGHT",
            str(catch.runs),
            f"{catch.seconds:.1f}",
            "" if catch.seed is None else str(catch.seed),
            "clean" if catch.clean else "FAILS TOO",
        )
        for catch in catches
    ]
    caught = sum(catch.caught for catch in catches)
    title = f"{caught} of {count(len(catches), 'mutant')} caught"
    return Table(title, ("mutant", "by", "runs", "seconds", "seed", "without it"), rows)
