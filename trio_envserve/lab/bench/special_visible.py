"""The special cases of a server that is looked at: what the looking costs those who call.

Theory of operation
-------------------
``visible-calls`` compares two servers that take turns in short windows, as in
:mod:`.special_journal`: one has the door for HTTP, one viewer of the live page and scrapes of
its metrics, the other none of these.  ``event-readers`` compares windows of one server:
while many read its events and some of them are stuck, and while nobody does.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec

import trio

from ..programs import Program, module, open_program
from .cases import Figures, Load, Size
from .judge import Judge
from .measure import children, cpu_s, spent
from .rigs import bench_server, open_server_program

SCRAPE_S = 1.0
"""More often than any Prometheus does."""
VISIBLE_CALLS = Load(256)
READ_CALLS = Load(64)
WARM_S = 0.3


async def visible_calls(judge: Judge, size: Size) -> Figures:
    """What calls take of a server with metrics, page and a viewer, and of one without."""
    if find_spec("prometheus_client") is None:
        return {}
    visible = [*bench_server(judge, 1), "--http", "127.0.0.1:0"]
    async with (
        open_program(visible, terminate=True) as seen,
        open_server_program(bench_server(judge, 1)) as (bare, bare_address),
    ):
        serving = await seen.event("serving")
        await seen.event("ready")
        async with (
            open_program(module("bench.client", serving["address"])) as client,
            open_program(module("bench.client", bare_address)) as bare_client,
            _readers(serving["http"], 1, 0, SCRAPE_S),
        ):
            rigs = {"with": (seen, client), "without": (bare, bare_client)}
            for _, each in rigs.values():
                await each.line()
            pairs = [
                await _pair(judge, rigs, size, first="with" if number % 2 else "without")
                for number in range(size.pairs + 1)
            ][1:]  # the first is to warm up
    whole = [(one, other) for one, other in pairs if one is not None and other is not None]
    if len(whole) < len(pairs):
        return {}
    return {
        "visible_us": statistics.median(one for one, _ in whole),
        "unseen_us": statistics.median(other for _, other in whole),
        "visible_over_unseen": statistics.median(one / other for one, other in whole),
    }


async def _pair(
    judge: Judge, rigs: dict[str, tuple[Program, Program]], size: Size, *, first: str
) -> tuple[float | None, float | None]:
    """What a call takes with viewers and without, in windows one after the other."""
    took: dict[str, float | None] = {}
    for name in sorted(rigs, key=lambda each: each != first):
        server, client = rigs[name]
        pids = [server.pid, client.pid, *children(server.pid)]
        before = [cpu_s(pid) for pid in pids]
        figures = await client.ask(VISIBLE_CALLS.record(size.window_s, judge.next_call))
        took_s = spent(before, [cpu_s(pid) for pid in pids])
        judge.load(figures)
        took[name] = None if took_s is None else 1e6 * took_s / figures["answered"]
    return took["with"], took["without"]


async def event_readers(judge: Judge, size: Size) -> Figures:
    """The p99 of calls while many read events and some are stuck, over that while none does."""
    if find_spec("h11") is None:
        return {}
    command = [*bench_server(judge, 1), "--http", "127.0.0.1:0"]
    async with open_program(command, terminate=True) as server:
        serving = await server.event("serving")
        await server.event("ready")
        async with open_program(module("bench.client", serving["address"])) as client:
            await client.line()
            await _p99_ms(judge, client, WARM_S)
            pairs: list[tuple[float, float]] = []
            for number in range(size.pairs):
                found: dict[bool, float] = {}
                for read in (True, False) if number % 2 else (False, True):
                    readers = size.readers if read else 0
                    async with _readers(serving["http"], readers - readers // 4, readers // 4):
                        found[read] = await _p99_ms(judge, client, size.readers_s)
                pairs.append((found[True], found[False]))
    return {
        "read_p99_ms": statistics.median(one for one, _ in pairs),
        "unread_p99_ms": statistics.median(other for _, other in pairs),
        "read_over_unread": statistics.median(one / other for one, other in pairs),
    }


async def _p99_ms(judge: Judge, client: Program, seconds: float) -> float:
    figures = await client.ask(READ_CALLS.record(seconds, judge.next_call))
    judge.load(figures)
    return float(figures["p99_ms"])


@asynccontextmanager
async def _readers(
    url: str, reading: int, stuck: int, scrape_s: float = 0.0
) -> AsyncGenerator[None, None]:
    """Have so many that look, until the block ends."""
    command = module("bench.event_readers", url, str(reading), str(stuck), str(scrape_s))
    async with open_program(command) as readers:
        await readers.line()
        yield
        if readers.process.poll() is not None:
            raise trio.BrokenResourceError(f"who looks has ended:\n{readers.last_words()}")
