"""A server that closes: what clients hear of it, and that it does end."""

from __future__ import annotations

import pytest
import trio

from tests.memory import ADDRESS, Probe, pair, virtual
from trio_envserve import (
    Client,
    Health,
    NeverStarted,
    Rollout,
    ServerHealth,
    ServerLimits,
    ServerNotClosed,
    ServerStatus,
    WireLimits,
    open_client,
    open_server,
)
from trio_envserve.cli.status import status_tables
from trio_envserve.core import deadlines
from trio_envserve.host import workers
from trio_envserve.net import MemoryNetwork


@virtual
async def test_who_comes_while_a_server_drains_hears_that_it_is_stopping() -> None:
    network = MemoryNetwork()
    async with (
        pair(Probe(), network=network) as (server, client),
        trio.open_nursery() as nursery,
    ):
        await client.wait_ready()
        nursery.start_soon(client.outcome, [1, 20])
        await trio.sleep(1)
        nursery.start_soon(server.drain, 25)
        await trio.sleep(5)
        async with open_client(ADDRESS, network=network) as late:
            stats = await late.stats()
            assert stats.status is ServerStatus.STOPPING
            closing = stats.closing
            assert closing is not None
            assert (closing.stage.value, closing.running) == ("draining", 1)
            assert closing.left_s == 20.0
            about = {row[0]: row[1] for row in status_tables(stats.to_record())[0].rows}
            assert about["status"] == "stopping: the server is stopping (draining)"
            assert about["waits for"] == "1 executions, 0 outcomes, 1 workers"
            assert about["next stage"] == "within 20 s"
            await trio.sleep(1)
            reason = "the server is stopping (draining)"
            assert late.health() == ServerHealth(Health.UNHEALTHY, reason)
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
            reason = "the server is stopping (closed)"
            assert client.health() == ServerHealth(Health.UNHEALTHY, reason)
        await trio.sleep(60)
        assert client.health().reason == "the server has stopped, and no other is there yet"
        outcome = await client.outcome([1, 1], timeout_s=5.0)
        assert isinstance(outcome.error, NeverStarted)
        assert "the server has stopped" in str(outcome.error)


class Deaf:
    """Its rollouts end when the test says so, and not when they are cancelled."""

    def __init__(self) -> None:
        self.release = trio.Event()
        self.ended = trio.Event()

    async def run_rollout(self, rollout: Rollout) -> float:
        with trio.CancelScope(shield=True):
            await self.release.wait()
        self.ended.set()
        return 1.0


@virtual
async def test_b5_code_in_this_process_that_ignores_its_cancellation_is_left_and_named() -> None:
    deaf, limits, network = Deaf(), ServerLimits(), MemoryNetwork()
    raised: BaseException | None = None
    told: list[str] = []

    async def ask(client: Client) -> None:
        told.append(str((await client.outcome(1)).error))

    async def let_go() -> None:
        await trio.sleep(3600)  # or the old code would never come back
        deaf.release.set()

    async with open_client(ADDRESS, network=network, name="trainer") as client:
        async with trio.open_nursery() as nursery, trio.open_nursery() as callers:
            nursery.start_soon(let_go)
            try:
                async with open_server(deaf, bind=ADDRESS, workers=0, network=network):
                    await client.wait_ready()
                    callers.start_soon(ask, client)
                    await trio.sleep(1)
                    began_s = trio.current_time()
            except ServerNotClosed as error:
                raised = error
            took_s = trio.current_time() - began_s
            assert took_s <= 2 * limits.stop_s + limits.reap_s + WireLimits().flush_s + 1.0
            assert isinstance(raised, ServerNotClosed)
            for named in ("w0-1", "#0 of trainer", "await self.release.wait()"):
                assert named in str(raised)
            nursery.cancel_scope.cancel()
    assert told == ["the server stopped while it ran [worker w0-1] (it may have run)"]
    deaf.release.set()
    await deaf.ended.wait()


@virtual
async def test_a_block_that_fails_beside_what_is_left_behind_raises_both() -> None:
    deaf = Deaf()
    with pytest.RaisesGroup(KeyError, ServerNotClosed):
        async with pair(deaf) as (_, client):
            await client.wait_ready()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.outcome, 1)
                await trio.sleep(1)
                nursery.cancel_scope.cancel()
            raise KeyError("mine")
    deaf.release.set()
    await deaf.ended.wait()


@virtual
async def test_a_flaw_of_the_worker_in_this_process_ends_the_server() -> None:
    async def flawed(*args: object, **options: object) -> bool:
        raise RuntimeError("a flaw")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "run_worker", flawed)
        with pytest.raises(RuntimeError, match="a flaw"):
            async with open_server(Probe(), bind=ADDRESS, workers=0, network=MemoryNetwork()):
                await trio.sleep(60)


@virtual
async def test_a_server_that_is_behind_has_turns_until_all_are_answered() -> None:
    """It would have gone on with its next tick only, one answer for each."""
    limits = ServerLimits(worker_capacity=1, tick_s=1.0)
    async with (
        pair(Probe(), server=limits) as (server, client),
        trio.open_nursery() as nursery,
    ):
        await client.wait_ready()
        for _ in range(20):
            nursery.start_soon(client.outcome, [1, 60])
        await trio.sleep(2)
        assert server.stats().waiting == 19
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deadlines, "ANSWERS_AT_ONCE", 1)
            nursery.start_soon(server.drain, 30)
            await trio.sleep(0.5)
            assert server.stats().waiting == 0
            assert server.stats().closing is not None
        nursery.cancel_scope.cancel()
