"""Calls on the in-memory network: each has its outcome, whatever is cut, lost or late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.memory import ADDRESS, Probe, pair, virtual
from trio_envserve import ExecutionLimit, ServerLimits, open_client, open_server
from trio_envserve.core.messages import Finish, read
from trio_envserve.net import MemoryNetwork


async def until(condition: Callable[[], object], most_s: float = 10.0) -> None:
    """Wait until it holds, but no longer than this."""
    with trio.fail_after(most_s):
        while not condition():
            await trio.sleep(0.01)


@virtual
async def test_g4_every_answer_lost_once_is_replayed() -> None:
    probe = Probe()
    lost: set[bytes] = set()

    def lose_first(direction: str, route: bytes, frames: Any) -> bool:
        if len(frames) == 2 and direction == "to_dealer" and bytes(frames[0]) not in lost:
            lost.add(bytes(frames[0]))
            return False
        return True

    network = MemoryNetwork()
    async with pair(probe, network=network) as (_, client):
        await client.wait_ready()
        network.filter = lose_first
        async with client.run_many([[i, 0.5] for i in range(20)]) as outcomes:
            got = {index: outcome.unwrap() async for index, outcome in outcomes}
    assert sorted(got) == list(range(20))
    assert sorted(probe.started) == list(range(20))
    assert lost


@virtual
async def test_tasks_that_were_cancelled_in_one_turn_told_the_server_one_by_one() -> None:
    probe = Probe()
    network = MemoryNetwork()
    finishes: list[Finish] = []

    def watch(direction: str, route: bytes, frames: Any) -> bool:
        message, _ = read(frames, most_bytes=1 << 16)[0]
        if isinstance(message, Finish):
            finishes.append(message)
        return True

    async with pair(probe, network=network) as (_, client):
        network.filter = watch
        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(client.run_rollout, [number, "wait"])
            await until(lambda: len(probe.started) == 9)
            nursery.cancel_scope.cancel()
        await until(lambda: len(probe.ended) == 9)
    assert [finish.finished for finish in finishes] == [[0, 9]]


@virtual
async def test_g7_a_cancel_that_is_lost_is_repaired() -> None:
    probe = Probe()
    network = MemoryNetwork()
    async with pair(probe, network=network) as (_, client):
        with trio.move_on_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run_rollout, ["a", "wait"])
                await trio.sleep(4)
                network.filter = lambda direction, route, frames: False
        network.filter = None
        await until(lambda: probe.ended)
    assert probe.ended == [("a", "cancelled")]


@virtual
async def test_a_limit_of_an_execution_leaves_out_what_a_call_has_waited() -> None:
    probe = Probe()
    async with pair(probe, server=ServerLimits(worker_capacity=1)) as (_, client):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_rollout, ["a", 60])
            await trio.sleep(1)
            began_s = trio.current_time()
            with pytest.raises(ExecutionLimit, match="the 5 s that the call lets"):
                await client.run_rollout(["b", "wait"], execution_s=5)
            assert 59 < trio.current_time() - began_s < 70
    assert probe.started == ["a", "b"]
    assert probe.ended == [("a", "done"), ("b", "cancelled")]


@virtual
async def test_a_client_whose_block_is_cancelled_from_outside_still_tells_the_server() -> None:
    probe = Probe()
    network = MemoryNetwork()
    async with open_server(probe, bind=ADDRESS, workers=0, network=network) as server:
        with trio.move_on_after(5):
            async with open_client(ADDRESS, network=network) as client:
                await client.run_rollout(["a", "wait"])
        await trio.sleep(1)
        assert probe.ended == [("a", "cancelled")]
        assert not server.stats().sessions
