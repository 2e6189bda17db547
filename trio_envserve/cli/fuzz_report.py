"""The output of ``fuzz``: its progress, the figures of its runs, the caught mutants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from ..core.key_records import GenerationState
from ..core.key_table import KeyInput
from ..core.request_table import RequestInput
from ..core.requests import RequestState
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
    return [*any_tables(tally, figures, rows), *pair_tables(tally)]


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


def pair_tables(tally: Tally) -> list[Table]:
    """How often each input came in each state."""
    often = "how often each input came to a {} in each state"
    requests, keys = tally.every_pair(), tally.every_key_pair()
    return [
        pairs_table(often.format("request"), RequestInput, RequestState, requests),
        pairs_table(often.format("generation of a key"), KeyInput, GenerationState, keys),
    ]


def pairs_table(
    title: str, inputs: Iterable[Any], states: Iterable[Any], times: Mapping[str, int]
) -> Table:
    """Inputs down, states across; ``-`` is what cannot occur."""

    def shown(pair: str) -> str:
        return f"{times[pair]:,}" if pair in times else "-"

    states = list(states)
    rows = [(each.value, *(shown(name_of((state, each))) for state in states)) for each in inputs]
    return Table(title, ("input", *(state.value for state in states)), rows)


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
