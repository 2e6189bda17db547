"""What a program is told of a server comes in frozen records."""

import dataclasses

import pytest
import trio

from trio_envserve import (
    ClosingStage,
    Health,
    ServerHealth,
    ServerStats,
    ServerStatus,
    StatusRecord,
    open_client,
    open_server,
)
from trio_envserve.net import MemoryNetwork


async def serve_and_ask():
    """What a server says of itself, and what its client says of it, once it is ready."""
    network = MemoryNetwork()
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, network=network, bind="memory:s") as server:
            async with open_client(server.address, network=network) as client:
                starting = client.health()
                await client.wait_ready()
                return starting, client.health()


def check_frozen(record):
    name = dataclasses.fields(record)[0].name
    assert not hasattr(record, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, name, None)


async def test_the_health_of_a_server_is_a_record_and_no_pair():
    starting, ready = await serve_and_ask()
    assert starting == ServerHealth(Health.STARTING, "no answer yet")
    assert (ready.health, ready.reason) == (Health.HEALTHY, "")
    check_frozen(ready)


async def test_the_status_of_a_server_is_a_record_and_its_closing_too():
    network = MemoryNetwork()
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, network=network, bind="memory:s") as server:
            await server.wait_ready()
            ready = server.status()
            await server.drain()
            closing = server.status().closing
    assert ready == StatusRecord(
        status=ServerStatus.READY, reason="", ready=1, workers=1, environment="arithmetic",
        rerun=False,
    )  # fmt: skip
    assert closing is not None
    assert closing.stage is not ClosingStage.SERVING
    check_frozen(ready)
    check_frozen(closing)


async def test_the_statistics_of_a_server_are_records_on_both_sides():
    network = MemoryNetwork()
    with trio.fail_after(60):
        async with open_server("arithmetic", workers=0, network=network, bind="memory:s") as server:
            async with open_client(server.address, network=network) as client:
                await client.run_rollout({"index": 0})
                told, own = await client.stats(), server.stats()
    assert isinstance(told, ServerStats)
    assert (told.cache, told.environment) == (own.cache, "arithmetic")
    assert own.more["address"] == "memory:s"
    assert list(told.to_record()) == list(own.to_record())
    for record in (own, own.cache, own.per_worker[0]):
        check_frozen(record)
