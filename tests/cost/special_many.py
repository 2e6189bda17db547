"""The special cases of many: clients that ask nothing, and requests that wait or run.

Theory of operation
-------------------
One client makes all requests, and cancels half of them, every second one, and then the
other half.  Its requests are submitted to its driver, as ``run_many`` does, so that the
client needs no task for each.  What the server's process spends is read from /proc; its
ticks, the client's pings and the questions for statistics meanwhile are a part of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, final

import trio

from tests.cost.cases import Figures, Load, Size
from tests.cost.judge import Judge
from tests.cost.measure import module, share_of_core, spent
from tests.cost.rigs import SPEC, bench_server, open_server_program
from trio_envserve.client import Client, open_client
from trio_envserve.client.driver import Ended
from trio_envserve.client.options import checked
from trio_envserve.core import messages
from trio_envserve.core.errors import EnvServeError
from trio_envserve.core.limits import WireLimits
from trio_envserve.lab.proc import cpu_s, resident_bytes
from trio_envserve.lab.programs import Program, open_program

PAYLOAD_BYTES = 200
SYNCS = 10
"""Statements that are timed together."""

WARM = 200
"""Requests before memory is first looked at."""

SETTLE_S = 0.5
"""For what is let go of late."""

AT_ONCE = 1000
"""Requests that are submitted before other tasks have a turn."""


async def idle_clients(judge: Judge, size: Size) -> Figures:
    """How much of a core the server needs for clients that ask nothing."""
    async with open_server_program(bench_server(judge, 1)) as (server, address):
        async with open_program(module("client", address)) as client:
            await client.line()
            load = Load(size.clients, clients=size.clients)
            judge.load(await client.ask(load.record(0.0, judge.next_call)))
            await trio.sleep(2 * size.idle_s)  # until they say as little as they ever will
            share = await share_of_core(server.pid, size.idle_s)
    return {} if share is None else {"core_percent": 100 * share}


async def many_waiting(judge: Judge, size: Size) -> Figures:
    """The costs of many requests that wait for a worker."""
    return await _many(judge, size, capacity=1)


async def many_running(judge: Judge, size: Size) -> Figures:
    """The costs of many requests that run."""
    return await _many(judge, size, capacity=size.requests)


async def _many(judge: Judge, size: Size, *, capacity: int) -> Figures:
    count = size.requests
    async with _open_large(judge, count, capacity) as (server, client):
        crowd = _Crowd(client)
        warm = await crowd.ask(judge.next_call, min(WARM, count))
        await crowd.cancel(warm, left=0)
        judge.cancelled(len(warm))
        await trio.sleep(SETTLE_S)
        empty_bytes = resident_bytes(server.pid)
        numbers = await crowd.ask(judge.next_call, count)
        await trio.sleep(SETTLE_S)
        grown_bytes = resident_bytes(server.pid) - empty_bytes
        before = cpu_s(server.pid)
        await crowd.cancel(numbers[1::2], left=len(numbers[::2]))
        between = cpu_s(server.pid)
        await crowd.state(SYNCS)
        after = cpu_s(server.pid)
        await crowd.cancel(numbers[::2], left=0)
        end = cpu_s(server.pid)
        judge.cancelled(count)
    cancel_s, sync_s = spent([before, after], [between, end]), spent([between], [after])
    if cancel_s is None or sync_s is None:
        return {}
    return {
        "bytes_each": grown_bytes / count,
        "sync_ms": 1e3 * sync_s / SYNCS,
        "cancel_us": 1e6 * cancel_s / count,
    }


@asynccontextmanager
async def _open_large(
    judge: Judge, count: int, capacity: int
) -> AsyncGenerator[tuple[Program, Client], None]:
    """A server that takes so many requests of one client, and the client.  One worker
    may take a while to cancel all of them; it is not to be killed for that."""
    room = 2 * count
    wire = {"header_bytes": 20 * room, "peer_queue_messages": max(10_000, 2 * room)}
    options: dict[str, Any] = {
        "environment": SPEC,
        "args": {"log": str(judge.folder)},
        "limits": {
            "window": room, "queue": room, "kept_outcomes": 2 * room, "session_share": 1.0,
            "worker_capacity": capacity, "cancel_grace_s": 300.0, "cancel_kill_s": 300.0,
        },
        "wire": wire,
    }  # fmt: skip
    async with open_program(module("large_server", options)) as server:
        address = (await server.event("serving"))["address"]
        await server.event("ready")
        async with open_client(address, wire=WireLimits(**wire)) as client:
            await client.wait_ready()
            yield server, client


@final
class _Crowd:
    """Many requests of one client, none of which ends by itself."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._driver = client._driver
        self._ended: list[Ended] = []

    async def ask(self, first: int, count: int) -> list[int]:
        """Make requests that would take an hour, numbered from ``first``, and wait until
        all are at the server; the numbers of their calls."""
        now_s = trio.current_time()
        calls: list[int] = []
        payload = bytes(PAYLOAD_BYTES)
        for number in range(first, first + count):
            asked = checked({"call": number, "response": 1, "sleep_s": 3600, "payload": payload})
            body = asked.encoded(WireLimits())
            calls.append(self._driver.submit(body, now_s, asked.terms, self._ended.append))
            if not len(calls) % AT_ONCE:
                await trio.lowlevel.checkpoint()
        await self._until(count)
        return calls

    async def cancel(self, calls: Sequence[int], *, left: int) -> None:
        """Cancel calls, and wait until the server has stopped them."""
        self._driver.cancel(calls)
        await self._until(left)

    async def state(self, times: int) -> None:
        """State what the client holds so many times, and wait until the server has
        answered."""
        core, socket = self._driver.core, self._driver._socket
        assert socket is not None
        for _ in range(times):
            for sync in core.sessions.syncs(core.pings.connections, 0):
                socket.send_nowait((messages.encode(sync),))
        await self._client.stats()  # it comes behind them

    async def _until(self, count: int) -> None:
        """Wait until so many requests wait or run."""
        while True:
            stats = await self._client.stats()
            if self._ended:
                raise EnvServeError(f"a rollout of an hour has ended: {self._ended[0]!r}")
            if stats.waiting + stats.running == count:
                return
            await trio.sleep(0.05)
