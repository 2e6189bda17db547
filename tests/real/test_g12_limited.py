"""G12: no more permits of a name are held at once than their limit, over workers and hosts, while
workers are killed."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import trio

from tests.real.judge import Judge
from tests.real.support import PATIENCE_S, open_calls, open_server, until
from trio_envserve import open_host

LOCKED = "tests.real.environments:Locked"
CALLS, MOST, KILLS = 64, 4, 6


@pytest.mark.parametrize(
    ("workers", "hosts"), [(1, 0), (8, 0), (0, 2)], ids=["one worker", "eight", "two hosts"]
)
async def test_g12_never_more_than_the_limit_while_workers_are_killed(
    judge: Judge, workers: int, hosts: int
):
    limits: dict[str, Any] = {"start_s": PATIENCE_S, "broken_after": 1000, "max_executions": 50}
    done = 0
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            open_server(
                judge, environment=LOCKED, args={"most": MOST}, workers=workers, hosted=hosts > 0,
                **limits,
            )
        )  # fmt: skip
        for number in range(hosts):
            assert server.hosts_address is not None
            await stack.enter_async_context(
                open_host(server.hosts_address, workers=4, name=f"h{number}")
            )
        calls = await stack.enter_async_context(open_calls(server.address))
        await until(lambda: server.status().ready == (workers or 4 * hosts))

        async def kill() -> None:
            for number in range(KILLS):
                most = (number + 1) * CALLS // (KILLS + 2)
                await until(lambda: done >= most)  # noqa: B023  # it is awaited here
                ready = [each for each in server.stats().per_worker if each.phase == "ready"]
                busy = max(ready, key=lambda each: each.pending, default=None)
                if busy is not None and busy.pid is not None:
                    with suppress(ProcessLookupError):  # it has died meanwhile
                        os.kill(busy.pid, signal.SIGKILL)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            inputs: list[Any] = [{}] * CALLS
            async with calls.client.run_many(inputs, max_executions=50) as outcomes:
                async for _, outcome in outcomes:
                    assert outcome.value["reward"] == 1.0
                    done += 1
        await until(lambda: not server.stats().permits)
        assert server.stats().deaths
    assert done == CALLS
