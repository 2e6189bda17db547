"""What the door holds of the values that its callers send."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
import trio
import trio.testing

from tests.doors.http.door import JSON, Runs, asking, open_all, open_door, raw
from trio_envserve import ServerLimits

CALLS = 20
MARK = "the mark of a value"


def values() -> set[int]:
    """Of the calls below, those whose values are in this process."""
    gc.collect()
    everything = gc.get_objects()
    return {each["call"] for each in everything if type(each) is dict and MARK in each}


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "call-%d"}], ids=["plain", "keyed"])
async def test_g10_values_of_calls_that_wait_took_thirty_times_their_bodies(
    headers: dict[str, str],
):
    runs = Runs(go_on=False)

    async def post(client: Any, call: int) -> None:
        sent = {name: json.dumps(value % call) for name, value in headers.items()}
        body = b'{"input": {"call": %d, "the mark of a value": []}}' % call  # is no value here
        got = await client.post("/v1/rollouts", content=body, headers=sent | JSON)
        assert got.status_code == 200

    async with open_all(runs, limits=ServerLimits(worker_capacity=1)) as opened:
        async with trio.open_nursery() as nursery:
            for call in range(CALLS):
                nursery.start_soon(post, opened.http, call)
            while opened.server.stats().cache.requests < CALLS:
                await trio.lowlevel.checkpoint()
            runs.started.clear()
            held = values()
            runs.may_end.set()
    assert len(held) <= 1  # that of the one that runs


async def test_g8_outcomes_of_a_batch_that_nobody_reads_are_not_decoded():
    """Each batch held the value of the outcome after the one that was under way."""
    is_read_no_more = trio.Event()

    async def environment(rollout: Any) -> dict[str, Any]:
        if rollout.input == 0:
            return {"pad": "x" * 20_000_000}  # far more than the kernel takes for a peer
        await is_read_no_more.wait()
        return {"call": rollout.input, MARK: []}

    async with open_door(environment) as door, raw(door) as peer, asking(door) as client:
        await peer.post({"inputs": [0, 1, 2]}, path="/v1/batches")
        begun = b""
        while len(begun) < 1000:  # the first line
            begun += await peer.stream.receive_some()
        is_read_no_more.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.post("/v1/rollouts", json={"input": 3})  # comes after those
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert values() == set()
