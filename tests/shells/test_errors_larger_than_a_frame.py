"""An error whose texts were larger than a frame could not be sent, so that its
call waited for ever (found while writing down what a frame may hold)."""

from __future__ import annotations

import trio
import trio.testing

from trio_envserve import (
    Rollout,
    RolloutFailed,
    ServerLimits,
    WireLimits,
    open_client,
    open_server,
)
from trio_envserve.net import MemoryNetwork

WIRE = WireLimits(message_bytes=8 * 1024, header_bytes=8 * 1024)
LIMITS = ServerLimits(window=100)


def test_an_error_larger_than_a_frame_is_clipped():
    async def fail(rollout: Rollout) -> None:
        raise ValueError("long " * 10_000)

    async def main() -> None:
        network = MemoryNetwork()
        with trio.fail_after(600):
            async with open_server(
                fail, workers=0, network=network, bind="memory:s", wire=WIRE, limits=LIMITS
            ) as server:
                async with open_client(server.address, network=network, wire=WIRE) as client:
                    outcome = await client.outcome("anything")
        assert isinstance(outcome.error, RolloutFailed)
        assert "long long" in str(outcome.error)
        assert "left out" in str(outcome.error)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
