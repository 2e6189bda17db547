"""What a program is told of a server comes in frozen records."""

import dataclasses

import pytest

from tests.memory import ADDRESS, pair, virtual
from trio_envserve import (
    ClosingStage,
    Health,
    ServerHealth,
    ServerStats,
    ServerStatus,
    StatusRecord,
)


@virtual
async def test_what_is_told_of_a_server_comes_in_frozen_records():
    async with pair("arithmetic") as (server, client):
        assert client.health() == ServerHealth(Health.STARTING, "no answer yet")
        await client.wait_ready()
        health, status = client.health(), server.status()
        await client.run_rollout({"index": 0})
        told, own = await client.stats(), server.stats()
        await server.drain()
        closing = server.status().closing
    assert (health.health, health.reason) == (Health.HEALTHY, "")
    assert status == StatusRecord(
        status=ServerStatus.READY, reason="", ready=1, workers=1, environment="arithmetic",
        rerun=False,
    )  # fmt: skip
    assert isinstance(told, ServerStats)
    assert (told.cache, told.environment) == (own.cache, "arithmetic")
    assert own.more["address"] == ADDRESS
    assert list(told.to_record()) == list(own.to_record())
    assert closing is not None
    assert closing.stage is not ClosingStage.SERVING
    for record in (health, status, closing, own, own.cache, own.per_worker[0]):
        assert not hasattr(record, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, dataclasses.fields(record)[0].name, None)
