"""Failures that servers of this kind are known for, and that show in the shells: 11, 14, 16.

Time is virtual, so "for ever" is some minutes here and takes none.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from tests.memory import Probe, pair, virtual
from trio_envserve import Client, Rollout, ServerNotClosed
from trio_envserve.core import messages
from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.core.messages import ROW_BYTES
from trio_envserve.net import MemoryNetwork

FOR_EVER_S = 120.0


async def ask(client: Client, input: Any) -> Any:
    """The result, or the error, or None for a caller that waits for ever."""
    with trio.move_on_after(FOR_EVER_S):
        outcome = await client.outcome(input)
        return outcome.value if outcome.ok else outcome.error
    return None


@virtual
async def test_failure_11_answer_is_lost_in_a_connection_cut_for_an_instant() -> None:
    """See the test of the same number without shells; here the outcome itself is what
    goes down with the connection, which is there again in an instant."""
    network, probe, cuts = MemoryNetwork(), Probe(), 0
    async with pair(probe, network=network) as (_, client):
        await client.wait_ready()

        def cut_with_outcome(direction: str, route: bytes, frames: Any) -> bool:
            nonlocal cuts
            if direction == "to_router" or cuts >= 3 or not is_outcome(frames[0]):
                return True
            cuts += network.cut(route)
            return False

        network.filter = cut_with_outcome
        result = await ask(client, ["once", 0])
        assert (cuts, result) == (3, {"did": 0})
        assert probe.started == ["once"]


@virtual
async def test_failure_14_send_to_a_client_that_fails_is_only_logged() -> None:
    """An outcome cannot be sent, since its client is not connected just then; that is
    logged, and the caller waits for ever.

    Here a send is never a delivery: the outcome is kept, and the client's next
    statement fetches it.
    """
    network, starts = MemoryNetwork(), 0

    async def cut(rollout: Rollout) -> str:
        nonlocal starts
        starts += 1
        network.cut()
        return "done"

    async with pair(cut, network=network) as (server, client):
        await client.wait_ready()
        result = await ask(client, "once")
        assert server.stats().more["undelivered"] >= 1, "no send has failed"
        assert (result, starts) == ("done", 1)


@virtual
async def test_failure_14_send_to_the_server_that_fails_is_only_logged() -> None:
    """Requests cannot be sent, since the client's queue is full; that is logged, and
    their callers wait for ever.

    Here the server names what it has never seen, and only that is sent again.
    """
    # So long that each is a message for itself.
    keys = [f"{number} {'x' * ROW_BYTES}" for number in range(150)]
    probe = Probe()
    async with pair(probe, wire=WireLimits(peer_queue_messages=10)) as (_, client):
        await client.wait_ready()
        results: dict[str, Any] = {}

        async def ask_for(key: str) -> None:
            results[key] = await ask(client, [key, 0])

        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(ask_for, key)
        assert results == {key: {"did": 0} for key in keys}
        assert client.counters().retransmitted > 0, "no send has failed"
        assert sorted(probe.started) == sorted(keys)


@virtual
async def test_failure_16_worker_that_ends_slowly_blocks_every_other_answer() -> None:
    """See the test of the same number without shells; here a worker is replaced because
    its environment ignores a cancel, and goes on ignoring the kill."""
    starts: Counter[Any] = Counter()

    async def for_hours(rollout: Rollout) -> str:
        starts[rollout.input] += 1
        if rollout.input == "stubborn":
            with trio.CancelScope(shield=True):
                await trio.sleep(2 * FOR_EVER_S)
        return "done"

    limits = ServerLimits(cancel_grace_s=1.0, cancel_kill_s=2.0)
    other, restarts = None, 0
    with pytest.raises(ServerNotClosed, match="has not ended"):  # which it is then told
        async with pair(for_hours, server=limits) as (server, client):
            await client.wait_ready()
            with trio.move_on_after(5):
                await client.run_rollout("stubborn")
            await trio.sleep(5)
            with trio.move_on_after(60):
                other = await ask(client, "other")
            restarts = server.stats().worker_restarts
    assert other == "done", "its caller waits"
    assert (restarts, starts) == (1, {"stubborn": 1, "other": 1})


def is_outcome(header: Any) -> bool:
    """Whether a frame is the header of an outcome."""
    message = messages.decode(header, most_bytes=1000)
    return isinstance(message, messages.Outcome)
