"""The output of ``fuzz``: its progress, the figures of its runs, the caught mutants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from ..core.work import WorkInput, WorkState
from ..lab.simulation.coverage import name_of
from ..lab.simulation.target import Tally
from ..retrylab.target import BaseTally, Catch
from .render import Table, progress


def count(number: int, what: str) -> str:
    """``1 run``, ``2 runs``, ``2 processes``."""
    return f"{number:,} {what}" + ("es" if what.endswith("s") else "s") * (number != 1)


# -- progress -----------------------------------------------------------------


def progress_of(
    tally: BaseTally[Any], *, runs: int | None, seconds: float | None
) -> AbstractAsyncContextManager[None]:
    """While the block lasts: how far the runs are."""
    began_s = trio.current_time()

    def line() -> str:
        took_s = trio.current_time() - began_s
        return (
            f"{count(tally.runs, 'run')}, {tally.runs / max(took_s, 0.1):.0f} a second, "
            f"{tally.virtual_s / 3600:.2f} simulated hours, {count(tally.violating, 'failure')}"
        )

    def part() -> float:
        if seconds is not None:
            return (trio.current_time() - began_s) / seconds
        return tally.runs / runs if runs else 0.0

    return progress(line, part)


# -- tables -------------------------------------------------------------------


def run_tables(tally: Tally, figures: dict[str, Any]) -> list[Table]:
    """The figures of many runs."""
    rows = [
        ("of the runs harsh", f"{tally.harsh:,}"),
        ("executions", f"{tally.executions:,}"),
    ]
    return [*any_tables(tally, figures, rows), pairs_table(tally.every_pair())]


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


def pairs_table(times: Mapping[str, int], how: str = "how often") -> Table:
    """The table of how often each input came to a work in each state: inputs down, states across;
    ``-`` is what cannot occur."""

    def shown(pair: str) -> str:
        return f"{times[pair]:,}" if pair in times else "-"

    rows = [
        (each.value, *(shown(name_of((state, each))) for state in WorkState)) for each in WorkInput
    ]
    title = f"{how} each input came to a work in each state"
    return Table(title, ("input", *(state.value for state in WorkState)), rows)


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
