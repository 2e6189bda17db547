"""The special cases of calls: those with keys beside those without, HTTP beside a handler.

Theory of operation
-------------------
Each compares two loads that take turns in short windows, several times in a round: what a
machine does besides falls on both.  The ratio of a round is the median of its pairs.

What a call with a key takes does not end with its answer: its outcome is retained, and
dropped when its retention is over.  So retention is short here, and each window is looked
at until it is over, that without keys as long.
"""

from __future__ import annotations

import statistics
from importlib.util import find_spec

import trio

from ..programs import Program, module, open_program
from .cases import Figures, Load, Size
from .judge import Judge
from .measure import children, cpu_s, spent
from .rigs import bench_server, open_server_program

RETENTION_S = 0.5
TAIL_S = 1.0
"""After the load of a window: retention, and the tick that ends it."""

PLAIN_CALLS = Load(256)
KEYED_CALLS = Load(256, keyed=True)
CONNECTIONS = Load(256, clients=256)


async def keyed_calls(judge: Judge, size: Size) -> Figures:
    """What a call with a key costs all processes together, and over one without."""
    command = [*bench_server(judge, 1), "--limit", f"retention_s={RETENTION_S}"]
    async with (
        open_server_program(command) as (server, address),
        open_program(module("bench.client", address)) as client,
    ):
        await client.line()
        pids = [server.pid, client.pid, *children(server.pid)]
        for load in (PLAIN_CALLS, KEYED_CALLS):
            await _cost_us(judge, client, pids, load, size.window_s / 2)
        pairs: list[tuple[float, float]] = []
        for number in range(size.pairs):
            loads = [PLAIN_CALLS, KEYED_CALLS]
            if number % 2:
                loads.reverse()
            cost_us = {
                load.keyed: await _cost_us(judge, client, pids, load, size.window_s)
                for load in loads
            }
            without, keyed = cost_us[False], cost_us[True]
            if without is None or keyed is None:
                return {}
            pairs.append((without, keyed))
    return {
        "plain_us": statistics.median(without for without, _ in pairs),
        "keyed_us": statistics.median(keyed for _, keyed in pairs),
        "keyed_over_plain": statistics.median(keyed / without for without, keyed in pairs),
    }


async def _cost_us(
    judge: Judge, client: Program, pids: list[int], load: Load, seconds: float
) -> float | None:
    """Processor time for each call of a load, until nothing of it is left to do."""
    before = [cpu_s(pid) for pid in pids]
    figures = await client.ask(load.record(seconds, judge.next_call))
    await trio.sleep(TAIL_S)  # not to wait: it is a part of what is measured
    took_s = spent(before, [cpu_s(pid) for pid in pids])
    judge.load(figures)
    return None if took_s is None else 1e6 * took_s / figures["answered"]


async def http_rollouts(judge: Judge, size: Size) -> Figures:
    """The rate of ``POST /v1/rollouts`` over that of a handler that does nothing, with as
    many connections; and what a request takes of the process that speaks HTTP."""
    if find_spec("hypercorn") is None:
        return {}
    command = [*bench_server(judge, 1), "--http", "127.0.0.1:0"]
    async with (
        open_program(command, terminate=True) as server,
        open_program(module("bench.http_bare")) as handler,
        open_program(module("bench.http_client")) as client,
    ):
        url = (await server.event("serving"))["http"]
        await server.event("ready")
        places = {"ours": (server.pid, url), "bare": (handler.pid, (await handler.line())["http"])}
        await client.line()
        rates: dict[str, list[float]] = {"ours": [], "bare": []}
        costs_us: dict[str, list[float]] = {"ours": [], "bare": []}
        for number in range(size.pairs + 1):
            for who in ("ours", "bare") if number % 2 else ("bare", "ours"):
                pid, place = places[who]
                record = CONNECTIONS.record(size.window_s, judge.next_call)
                before = cpu_s(pid)
                figures = await client.ask({**record, "url": place})
                took_s = spent([before], [cpu_s(pid)])
                if who == "ours":
                    judge.load(figures)
                if number:  # the first is to warm up
                    rates[who].append(figures["answered"] / figures["seconds"])
                    costs_us[who].append(1e6 * (took_s or 0.0) / figures["answered"])
    found: Figures = {
        "rate_over_bare": statistics.median(
            ours / bare for ours, bare in zip(rates["ours"], rates["bare"], strict=True)
        ),
        "per_s": statistics.median(rates["ours"]),
        "bare_per_s": statistics.median(rates["bare"]),
    }
    if all(costs_us["ours"] + costs_us["bare"]):
        found["server_us"] = statistics.median(costs_us["ours"])
        found["bare_us"] = statistics.median(costs_us["bare"])
    return found
