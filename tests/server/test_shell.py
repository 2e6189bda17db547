"""The server's shell, on the in-memory network under a virtual clock."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing

from tests.memory import ADDRESS, Probe, pair, virtual
from trio_envserve import (
    Rollout,
    ServerLimits,
    ServerNotReady,
    open_client,
    open_server,
)
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import AskWorker, RouterEffect, Spawn
from trio_envserve.core.router_inputs import ClientMessage, RouterInput, Tick
from trio_envserve.host.workers import Felt, Heard, InProcessWorkers, Started
from trio_envserve.net import MemoryNetwork
from trio_envserve.server import opening


@virtual
async def test_g7_a_client_that_vanishes_has_its_work_cancelled_after_its_lease() -> None:
    probe = Probe()
    network = MemoryNetwork()
    async with pair(probe, server=ServerLimits(lease_s=30), network=network) as (server, client):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_rollout, ["a", "wait"])
            await trio.sleep(4)
            network.partition(ADDRESS)
            await trio.sleep(20)
            assert not probe.ended
            await trio.sleep(20)
            assert probe.ended == [("a", "cancelled")]
            assert not server.stats().sessions
            nursery.cancel_scope.cancel()


# -- a server that is waited for --------------------------------------------------


class Slow:
    """Takes 20 s to set up."""

    async def setup(self) -> None:
        await trio.sleep(20)

    async def run_rollout(self, rollout: Rollout) -> str:
        return "done"


@virtual
async def test_who_waits_for_a_server_is_told_after_the_limit_what_is_known() -> None:
    async with open_server(Slow(), bind=ADDRESS, workers=0, network=MemoryNetwork()) as server:
        began_s = trio.current_time()
        with pytest.raises(ServerNotReady, match="not ready after 2 s: "):
            await server.wait_ready(2)
        assert trio.current_time() == began_s + 2
        assert not server.status().ready
        await server.wait_ready()
        assert 19 < trio.current_time() - began_s < 22
        assert server.status().ready


# -- its loop ---------------------------------------------------------------------


async def test_what_has_arrived_is_taken_in_before_a_tick_says_how_late_it_is(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stop of its process a server took the sign of life that it had not read for one
    that had not come."""
    seen: list[type] = []
    take = Router.take

    def taken(self: Router, given: RouterInput) -> list[RouterEffect]:
        if isinstance(given, (ClientMessage, Tick)):
            seen.append(type(given))
        return take(self, given)

    network = MemoryNetwork()
    limits = ServerLimits(tick_s=1.0)
    monkeypatch.setattr(Router, "take", taken)
    async with (
        open_server(Probe(), bind=ADDRESS, workers=0, network=network, limits=limits) as server,
        open_client(ADDRESS, network=network) as client,
    ):
        await client.wait_ready()
        firsts = []
        autojump_clock.autojump_threshold = math.inf
        for _ in range(10):  # the order in which tasks of one turn run is drawn
            await trio.testing.wait_all_tasks_blocked()
            seen.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.stats)  # it asks in its first step
                await trio.lowlevel.checkpoint()
                autojump_clock.jump(1.5)
                await trio.testing.wait_all_tasks_blocked()
            firsts.append(seen[:1])
        autojump_clock.autojump_threshold = 0
        assert firsts == 10 * [[ClientMessage]]
        assert server.stats().more["router_lag_max_s"] == 0.5


# -- what it says ------------------------------------------------------------------


@virtual
async def test_where_a_rollout_of_this_process_stands_is_told_at_once() -> None:
    async with pair(Probe()) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(client.outcome, ["a", "wait"])
        await trio.sleep(1)
        (running,) = (await client.list_running()).running
        began_s = trio.current_time()
        text = await client.stack(running.number)
        assert trio.current_time() == began_s
        assert text is not None
        assert "await self.gate.wait()" in text
        nursery.cancel_scope.cancel()


class BeatingWorkers:
    """Workers in this process that have heartbeats, and say in them where an execution stands,
    as processes do."""

    heartbeats = True

    def __init__(self, *given: Any) -> None:
        self._own = InProcessWorkers(*given)
        self.kill, self.where = self._own.kill, self._own.where
        self.send_many_nowait = self._own.send_many_nowait
        self._asked: AskWorker | None = None

    async def live(self, spawn: Spawn, started: Started, heard: Heard, felt: Felt) -> str:
        async def beat() -> None:
            while True:
                ask, self._asked = self._asked, None
                asked = () if ask is None else (ask.number, f"{ask.request} stands here")
                felt(Heartbeat(0.25, 7 << 20, "in a loop", *asked))
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat)
            how = await self._own.live(spawn, started, heard, felt)
            nursery.cancel_scope.cancel()
        return how

    def stack(self, ask: AskWorker) -> str | None:
        self._asked = ask
        return None


@virtual
async def test_where_a_rollout_of_a_process_stands_is_told_with_its_next_heartbeat() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "InProcessWorkers", BeatingWorkers)
        async with pair(Probe()) as (server, client), trio.open_nursery() as nursery:
            nursery.start_soon(client.outcome, ["a", "wait"])
            await trio.sleep(8)  # a worker without heartbeats would be suspect
            assert server.status().ready
            (worker,) = server.stats().per_worker
            assert (worker.memory_bytes, worker.lag_s) == (7 << 20, 0.25)
            (running,) = (await client.list_running()).running
            began_s = trio.current_time()
            text = await client.stack(running.number)
            assert 0 < trio.current_time() - began_s <= 1
            assert text is not None
            assert "stands here" in text
            nursery.cancel_scope.cancel()
