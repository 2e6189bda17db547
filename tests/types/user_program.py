"""A user's program, for the type checker alone: each line that is wrong must be found.

The checker is strict, so an ignored error that is none is an error, too.
"""

from __future__ import annotations

import trio

from trio_envserve import CallOptions, Client, Outcome, open_client, open_server, serve


async def right(client: Client) -> None:
    """What a user writes."""
    options: CallOptions = {"model": "oracle", "timeout_s": 5.0, "rerun": True}
    await client.run_rollout({"index": 0}, **options)
    members: list[Outcome] = await client.run_group([1, 2], max_retries=1)
    assert members
    async with client.run_many([1, 2], in_flight=2, max_executions=1) as outcomes:
        async for index, outcome in outcomes:
            assert index >= 0
            assert outcome.ok


async def wrong(client: Client) -> None:
    """What a user mistypes."""
    await client.run_rollout(1, timeout=5)  # type: ignore[call-arg]  # timeout_s
    await client.run_rollout(1, timeout_s="5")  # type: ignore[arg-type]  # a number
    await client.run_group([1], retries=1)  # type: ignore[call-arg]  # max_retries
    async with client.run_many([1], modell="oracle"):  # type: ignore[call-arg]  # model
        pass
    async with open_server("arithmetic", worker=2):  # type: ignore[call-arg]  # workers
        pass
    async with open_client("tcp://localhost:1", array="numpy"):  # type: ignore[call-arg]  # arrays
        pass
    await serve("arithmetic", worker=2)  # type: ignore[call-arg]  # workers


async def started() -> None:
    """A server as a task."""
    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve, "arithmetic")
        assert server.address
