"""A server that closes: what clients hear of it, and that it does end."""

from __future__ import annotations

import trio

from tests.shells.test_memory import ADDRESS, Probe, virtual
from trio_envserve import (
    Health,
    NeverStarted,
    open_client,
    open_server,
)
from trio_envserve.cli.status import status_tables
from trio_envserve.net import MemoryNetwork


@virtual
async def test_who_comes_while_a_server_drains_hears_that_it_is_stopping() -> None:
    network = MemoryNetwork()
    async with (
        open_server(Probe(), bind=ADDRESS, workers=0, network=network) as server,
        open_client(ADDRESS, network=network) as client,
        trio.open_nursery() as nursery,
    ):
        await client.wait_ready()
        nursery.start_soon(client.outcome, [1, 20])
        await trio.sleep(1)
        nursery.start_soon(server.drain, 25)
        await trio.sleep(5)
        async with open_client(ADDRESS, network=network) as late:
            stats = await late.stats()
            assert stats["status"] == "stopping"
            closing = stats["closing"]
            assert (closing["stage"], closing["running"]) == ("draining", 1)
            assert closing["left_s"] == 20.0
            about = {row[0]: row[1] for row in status_tables(stats)[0].rows}
            assert about["status"] == "stopping: the server is stopping (draining)"
            assert about["waits for"] == "1 executions, 0 outcomes, 1 workers"
            assert about["next stage"] == "within 20 s"
            await trio.sleep(1)
            assert late.health() == (Health.UNHEALTHY, "the server is stopping (draining)")
            outcome = await late.outcome([2, 1], timeout_s=2.0)
            assert isinstance(outcome.error, NeverStarted)
            assert "the server is stopping" in str(outcome.error)


@virtual
async def test_who_waits_for_a_server_that_has_stopped_hears_that() -> None:
    network = MemoryNetwork()
    async with open_client(ADDRESS, network=network) as client:
        async with open_server(Probe(), bind=ADDRESS, workers=0, network=network) as server:
            await client.wait_ready()
            await server.drain()
            await trio.sleep(3)  # the front listens to the end of the block
            assert client.health() == (Health.UNHEALTHY, "the server is stopping (closed)")
        await trio.sleep(60)
        assert client.health()[1] == "the server has stopped, and no other is there yet"
        outcome = await client.outcome([1, 1], timeout_s=5.0)
        assert isinstance(outcome.error, NeverStarted)
        assert "the server has stopped" in str(outcome.error)
