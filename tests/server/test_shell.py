"""The server's shell, on the in-memory network under a virtual clock."""

from __future__ import annotations

import math

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
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import RouterEffect
from trio_envserve.core.router_inputs import ClientMessage, RouterInput, Tick
from trio_envserve.net import MemoryNetwork


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
