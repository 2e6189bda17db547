"""Seeds searched for a broken guarantee, with progress; failures made small.

What ``fuzz`` does with the protocol that ships and with another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import trio

from ..retrylab.campaign import Campaign, Found
from .common import Result, Stop, say
from .fuzz_report import count, progress_of

FAILED = 1
"""Exit code when a guarantee broke; of mutants, when one was not caught."""

SHOWN = 3
"""So many failures, of different guarantees, are made small and shown."""


class Searched(NamedTuple):
    """The result of a search."""

    figures: dict[str, Any]
    failures: list[dict[str, Any]]
    interrupted: bool = False

    def result(self, stop: Stop, exit_code: int) -> Result:
        """For the command's end."""
        summary = {**self.figures, "failures": self.failures}
        if self.interrupted:
            return Result(stop.interrupted_code, {**summary, "interrupted": True})
        return Result(exit_code, summary)


async def search(
    fuzzing: Campaign[Any], stop: Stop, examine: Callable[[Found], Awaitable[dict[str, Any]]], *,
    runs: int | None, seconds: float | None,
) -> Searched:  # fmt: skip
    """Search; ``examine`` makes the first failure of each guarantee small, and shows it."""
    began_s = trio.current_time()
    with trio.CancelScope() as searching:
        stop.on_first = searching.cancel
        async with progress_of(fuzzing.tally, runs=runs, seconds=seconds):
            await fuzzing.run()
    figures = fuzzing.tally.figures(trio.current_time() - began_s)
    if searching.cancelled_caught:
        say(f"interrupted after {count(fuzzing.tally.runs, 'run')}")
        return Searched(figures, [], interrupted=True)
    failures = []
    with trio.CancelScope() as shrinking:
        stop.on_first = shrinking.cancel
        firsts = {found.guarantee: found for found in reversed(fuzzing.found)}
        for found in list(firsts.values())[:SHOWN]:
            say(f"seed {found.seed} breaks {found.guarantee}; shrinking it")
            failures.append(await examine(found))
    if shrinking.cancelled_caught:
        say("interrupted while a failure was made small")
        return Searched(figures, [], interrupted=True)
    return Searched(figures, failures)
