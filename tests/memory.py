"""Server and client shells on the in-memory network, under a virtual clock.

No sockets, no processes: the environment runs in this process (``workers=0``)
and hours pass in milliseconds.  What needs real ones has the fixture ``judge``.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import MockClock

from trio_envserve import (
    Client,
    KeyLimits,
    Rollout,
    Server,
    ServerLimits,
    open_client,
    open_server,
)
from trio_envserve.net import MemoryNetwork

ADDRESS = "memory:server"


def virtual(test: Callable[..., Any]) -> Callable[..., None]:
    """Run an async test on a clock that jumps when nothing else can happen."""

    @functools.wraps(test)  # so that it is of the file where it is written
    def run(*args: Any, **options: Any) -> None:
        async def limited() -> None:
            with trio.fail_after(100_000):
                await test(*args, **options)

        trio.run(limited, clock=MockClock(autojump_threshold=0))

    return run


@asynccontextmanager
async def pair(
    environment: Any, *, network: MemoryNetwork | None = None, server: ServerLimits | None = None,
    keys: KeyLimits | None = None, **options: Any,
) -> AsyncIterator[tuple[Server, Client]]:  # fmt: skip
    """A server with these limits that runs its rollouts here, and a client of it with these
    options."""
    network = network or MemoryNetwork()
    async with (
        open_server(
            environment, bind=ADDRESS, workers=0, network=network, limits=server, keys=keys
        ) as s,
        open_client(ADDRESS, network=network, **options) as client,
    ):
        yield s, client


async def echo(rollout: Rollout) -> Any:
    return rollout.input


class Probe:
    """An environment that does what its input says, and counts."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.ended: list[tuple[Any, str]] = []
        self.gate = trio.Event()

    async def run_rollout(self, rollout: Rollout) -> Any:
        key, do = rollout.input
        self.started.append(key)
        try:
            value = await self._do(do)
        except trio.Cancelled:
            self.ended.append((key, "cancelled"))
            raise
        self.ended.append((key, "done"))
        return value

    async def _do(self, do: Any) -> Any:
        if do == "wait":
            await self.gate.wait()
        elif do == "raise":
            raise ValueError("no good")
        elif do == "object":
            return object()
        elif isinstance(do, (int, float)):
            await trio.sleep(do)
        return {"did": do}
