"""The special cases of calls: of two kinds, or of two servers, beside each other
(:mod:`.pairs`).

Theory of operation
-------------------
``keyed-calls``: what a call with a key takes does not end with its answer: its outcome is
retained, and dropped when its retention is over.  So retention is short here, and each window
is looked at until it is over, that without keys as long.

``curve-64`` compares two servers, one of which wants keys of its clients.  What counts is the
processor time of client and router: workers know nothing of keys.

``visible-calls`` compares two servers: one has the door for HTTP, one viewer of the live page
and scrapes of its metrics, the other none of these.  ``event-readers`` compares windows of one
server: while many read its events and some of them are stuck, and while nobody does.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import trio

from tests.cost.cases import Figures, Load, Size
from tests.cost.judge import Judge
from tests.cost.measure import module, spent
from tests.cost.pairs import compared, in_turn, open_meter
from tests.cost.rigs import bench_server, open_server_program
from trio_envserve.lab.proc import cpu_s
from trio_envserve.lab.programs import open_program
from trio_envserve.net.keypairs import KeyPair, write_whole
from trio_envserve.server.curve import CLIENTS, SERVER_FILE

RETENTION_S = 0.5
TAIL_S = 1.0
"""After the load of a window: retention, and the tick that ends it."""
SCRAPE_S = 1.0
"""More often than any Prometheus does."""
WARM_S = 0.3

PLAIN_CALLS = Load(256)
KEYED_CALLS = Load(256, keyed=True)
FEW_CALLS = Load(64)
CONNECTIONS = Load(256, clients=256)


async def keyed_calls(judge: Judge, size: Size) -> Figures:
    """The costs of a call with a key in all processes together, and over one without."""
    command = [*bench_server(judge, 1), "--limit", f"retention_s={RETENTION_S}"]
    async with (
        open_server_program(command) as (server, address),
        open_meter(judge, server, address) as meter,
    ):
        for load in (PLAIN_CALLS, KEYED_CALLS):
            await meter.cost_us(load, size.window_s / 2, TAIL_S)
        pairs = await in_turn(
            size.pairs,
            lambda: meter.cost_us(KEYED_CALLS, size.window_s, TAIL_S),
            lambda: meter.cost_us(PLAIN_CALLS, size.window_s, TAIL_S),
        )
    return compared(pairs, "keyed_us", "plain_us", "keyed_over_plain")


# -- keys of clients --------------------------------------------------------------


async def curve_64(judge: Judge, size: Size) -> Figures:
    """The time of 64 calls in flight with keys of CURVE, and over that without."""
    if find_spec("nacl") is None:  # the extra curve
        return {}
    folder, file = _write_keys(judge.folder)
    sealed = [*bench_server(judge, 1), "--curve", str(folder)]
    async with (
        open_server_program(sealed) as (with_keys, address),
        open_server_program(bench_server(judge, 1)) as (without, other),
        open_meter(judge, with_keys, address, str(file), workers=False) as keyed,
        open_meter(judge, without, other, workers=False) as keyless,
    ):
        for each in (keyed, keyless):
            await each.cost_us(FEW_CALLS, size.window_s / 2)  # to warm it
        pairs = await in_turn(
            size.pairs,
            lambda: keyed.cost_us(FEW_CALLS, size.window_s),
            lambda: keyless.cost_us(FEW_CALLS, size.window_s),
        )
    ratios = [one / other for one, other in pairs]
    if not ratios:
        return {}
    return {
        **compared(pairs, "curve_us", "keyless_us", "curve_over_keyless"),
        "least_over_keyless": min(ratios), "most_over_keyless": max(ratios),
    }  # fmt: skip


def _write_keys(folder: Path) -> tuple[Path, Path]:
    """The folder of a server's keys with one client, and the file of that."""
    server, client = KeyPair.new(), KeyPair.new()
    keys, file = folder / "keys", folder / "bench.key"
    (keys / CLIENTS).mkdir(parents=True, exist_ok=True)
    write_whole(keys / SERVER_FILE, f'secret = "{server.secret}"\n', 0o600)
    right = f'public = "{client.public}"\nroles = ["submit"]\n'
    write_whole(keys / CLIENTS / "bench.toml", right, 0o644)
    own = f'server = "{server.public}"\nsecret = "{client.secret}"\n'
    write_whole(file, own, 0o600)
    return keys, file


# -- HTTP -------------------------------------------------------------------------


async def http_rollouts(judge: Judge, size: Size) -> Figures:
    """The rate of ``POST /v1/rollouts`` over that of a handler that does nothing, with as
    many connections; and what a request takes of the process that speaks HTTP."""
    if find_spec("hypercorn") is None:
        return {}
    command = [*bench_server(judge, 1), "--http", "127.0.0.1:0"]
    async with (
        open_program(command, terminate=True) as server,
        open_program(module("http_bare")) as handler,
        open_program(module("http_client")) as client,
    ):
        url = (await server.event("serving"))["http"]
        await server.event("ready")
        places = {"ours": (server.pid, url), "bare": (handler.pid, (await handler.line())["http"])}
        await client.line()
        costs_us: dict[str, list[float]] = {"ours": [], "bare": []}

        async def per_s(who: str) -> float:
            pid, place = places[who]
            record = CONNECTIONS.record(size.window_s, judge.next_call)
            before = cpu_s(pid)
            figures = await client.ask({**record, "url": place})
            took_s = spent([before], [cpu_s(pid)])
            if who == "ours":
                judge.load(figures)
            costs_us[who].append(1e6 * (took_s or 0.0) / figures["answered"])
            return float(figures["answered"] / figures["seconds"])

        pairs = await in_turn(size.pairs + 1, lambda: per_s("ours"), lambda: per_s("bare"))
    found = compared(pairs[1:], "per_s", "bare_per_s", "rate_over_bare")  # the first is to warm up
    if all(costs_us["ours"] + costs_us["bare"]):
        found["server_us"] = statistics.median(costs_us["ours"][1:])
        found["bare_us"] = statistics.median(costs_us["bare"][1:])
    return found


# -- who looks at a server ----------------------------------------------------------


async def visible_calls(judge: Judge, size: Size) -> Figures:
    """The costs of calls at a server with metrics, page and a viewer, and at one without."""
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
            open_meter(judge, seen, serving["address"]) as meter,
            open_meter(judge, bare, bare_address) as bare_meter,
            _readers(serving["http"], 1, 0, SCRAPE_S),
        ):
            pairs = await in_turn(
                size.pairs + 1,
                lambda: meter.cost_us(PLAIN_CALLS, size.window_s),
                lambda: bare_meter.cost_us(PLAIN_CALLS, size.window_s),
            )
    # The first is to warm up.
    return compared(pairs[1:], "visible_us", "unseen_us", "visible_over_unseen")


async def event_readers(judge: Judge, size: Size) -> Figures:
    """The p99 of calls while many read events and some are stuck, over that while none does."""
    if find_spec("h11") is None:
        return {}
    command = [*bench_server(judge, 1), "--http", "127.0.0.1:0"]
    async with open_program(command, terminate=True) as server:
        serving = await server.event("serving")
        await server.event("ready")
        async with open_meter(judge, server, serving["address"]) as meter:

            async def p99_ms(readers: int) -> float:
                async with _readers(serving["http"], readers - readers // 4, readers // 4):
                    return float((await meter.figures(FEW_CALLS, size.readers_s))["p99_ms"])

            await meter.figures(FEW_CALLS, WARM_S)
            pairs = await in_turn(size.pairs, lambda: p99_ms(size.readers), lambda: p99_ms(0))
    return compared(pairs, "read_p99_ms", "unread_p99_ms", "read_over_unread")


@asynccontextmanager
async def _readers(
    url: str, reading: int, stuck: int, scrape_s: float = 0.0
) -> AsyncGenerator[None, None]:
    """Have so many that look, until the block ends."""
    command = module("event_readers", url, str(reading), str(stuck), str(scrape_s))
    async with open_program(command) as readers:
        await readers.line()
        yield
        if readers.process.poll() is not None:
            raise trio.BrokenResourceError(f"who looks has ended:\n{readers.last_words()}")
