"""Two that are compared: they take turns in short windows.

What a machine does besides falls on both.  The ratio of a round is the median of its pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, final

import trio

from tests.cost.cases import Figures, Load
from tests.cost.judge import Judge
from tests.cost.measure import module, spent
from trio_envserve.lab.proc import children, cpu_s
from trio_envserve.lab.programs import Program, open_program

Pairs: TypeAlias = "list[tuple[float, float]]"


@final
class Meter:
    """A client, and the processes whose time its calls take."""

    def __init__(self, judge: Judge, client: Program, pids: Sequence[int]) -> None:
        self._judge = judge
        self._client = client
        self._pids = pids

    async def figures(self, load: Load, seconds: float) -> dict[str, Any]:
        """One load, judged."""
        figures = await self._client.ask(load.record(seconds, self._judge.next_call))
        self._judge.load(figures)
        return figures

    async def cost_us(self, load: Load, seconds: float, tail_s: float = 0.0) -> float | None:
        """Processor time for each call of a load, with what is left to do for so long after
        it; None where that cannot be known."""
        before = [cpu_s(pid) for pid in self._pids]
        figures = await self.figures(load, seconds)
        await trio.sleep(tail_s)  # not to wait: it is a part of what is measured
        took_s = spent(before, [cpu_s(pid) for pid in self._pids])
        return None if took_s is None else 1e6 * took_s / figures["answered"]

    async def per_s(self, load: Load, seconds: float) -> float:
        """Calls a second."""
        figures = await self.figures(load, seconds)
        return float(figures["answered"] / figures["seconds"])


@asynccontextmanager
async def open_meter(
    judge: Judge, server: Program, address: str, *arguments: str, workers: bool = True
) -> AsyncGenerator[Meter, None]:
    """A client of a server, ready.  Its calls take time of both, and of the server's workers."""
    async with open_program(module("client", address, *arguments)) as client:
        await client.line()
        pids = [server.pid, client.pid, *(children(server.pid) if workers else ())]
        yield Meter(judge, client, pids)


async def in_turn(
    count: int, one: Callable[[], Awaitable[float | None]],
    other: Callable[[], Awaitable[float | None]],
) -> Pairs:  # fmt: skip
    """So many pairs of what both come to; in every second one ``one`` comes first.  None at
    all if something cannot be known."""
    pairs: Pairs = []
    for number in range(count):
        first = await one() if number % 2 else None
        second = await other()
        first = first if number % 2 else await one()
        if first is None or second is None:
            return []
        pairs.append((first, second))
    return pairs


def compared(pairs: Pairs, one: str, other: str, ratio: str) -> Figures:
    """The medians by these names, if there are any pairs."""
    if not pairs:
        return {}
    return {
        one: statistics.median(first for first, _ in pairs),
        other: statistics.median(second for _, second in pairs),
        ratio: statistics.median(first / second for first, second in pairs),
    }
