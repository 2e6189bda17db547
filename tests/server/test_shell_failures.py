"""Failures that servers of this kind are known for, and that show in the shells: 11, 14, 16.

Time is virtual, so "for ever" is some minutes here and takes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import trio_envserve
from tests.memory import ADDRESS
from trio_envserve.core import messages
from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.core.messages import ROW_BYTES
from trio_envserve.net import MemoryNetwork

FOR_EVER_S = 120.0


class Bench:
    """A server with its environment in this process, and a client, on one network."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.starts: Counter[Any] = Counter()
        """How often the environment was started, by input."""
        self.during: Callable[[Any], Any] = lambda input: None
        """What the environment does while it runs; awaited if it can be."""
        self.server: trio_envserve.Server
        self.client: trio_envserve.Client

    async def run_rollout(self, rollout: trio_envserve.Rollout) -> str:
        self.starts[rollout.input] += 1
        awaitable = self.during(rollout.input)
        if awaitable is not None:
            await awaitable
        return f"result of {rollout.input}"

    async def ask(self, input: Any) -> Any:
        """The result, or the error, or None for a caller that waits for ever."""
        with trio.move_on_after(FOR_EVER_S):
            outcome = await self.client.outcome(input)
            return outcome.value if outcome.ok else outcome.error
        return None


@asynccontextmanager
async def open_bench(
    *, limits: ServerLimits | None = None, client_wire: WireLimits | None = None
) -> AsyncIterator[Bench]:
    bench = Bench()
    async with (
        trio_envserve.open_server(
            bench, bind=ADDRESS, workers=0, network=bench.network, limits=limits
        ) as bench.server,
        trio_envserve.open_client(
            ADDRESS, network=bench.network, wire=client_wire
        ) as bench.client,
    ):  # fmt: skip
        await bench.client.wait_ready()
        yield bench


async def test_failure_11_answer_is_lost_in_a_connection_cut_for_an_instant(autojump_clock):
    """See the test of the same number without shells; here the outcome itself is what
    goes down with the connection, which is there again in an instant."""
    async with open_bench() as bench:
        cuts = 0

        def cut_with_outcome(direction: str, route: bytes, frames: Any) -> bool:
            nonlocal cuts
            if direction == "to_router" or cuts >= 3 or not is_outcome(frames[0]):
                return True
            cuts += bench.network.cut(route)
            return False

        bench.network.filter = cut_with_outcome
        result = await bench.ask("once")
        assert (cuts, result) == (3, "result of once")
        assert bench.starts == {"once": 1}


async def test_failure_14_send_to_a_client_that_fails_is_only_logged(autojump_clock):
    """An outcome cannot be sent, since its client is not connected just then; that is
    logged, and the caller waits for ever.

    Here a send is never a delivery: the outcome is kept, and the client's next
    statement fetches it.
    """
    async with open_bench() as bench:

        def cut(input: Any) -> None:
            bench.network.cut()

        bench.during = cut
        result = await bench.ask("once")
        assert bench.server.stats().more["undelivered"] >= 1, "no send has failed"
        assert result == "result of once"
        assert bench.starts == {"once": 1}


async def test_failure_14_send_to_the_server_that_fails_is_only_logged(autojump_clock):
    """Requests cannot be sent, since the client's queue is full; that is logged, and
    their callers wait for ever.

    Here the server names what it has never seen, and only that is sent again.
    """
    # So long that each is a message for itself.
    inputs = [f"{number} {'x' * ROW_BYTES}" for number in range(150)]
    async with open_bench(client_wire=WireLimits(peer_queue_messages=10)) as bench:
        results: dict[str, Any] = {}

        async def ask(input: str) -> None:
            results[input] = await bench.ask(input)

        async with trio.open_nursery() as nursery:
            for each in inputs:
                nursery.start_soon(ask, each)
        assert results == {each: f"result of {each}" for each in inputs}
        assert bench.client.counters().retransmitted > 0, "no send has failed"
        assert set(bench.starts.values()) == {1}


async def test_failure_16_worker_that_ends_slowly_blocks_every_other_answer(autojump_clock):
    """See the test of the same number without shells; here a worker is replaced because
    its environment ignores a cancel, and goes on ignoring the kill."""

    async def for_hours(input: Any) -> None:
        if input == "stubborn":
            with trio.CancelScope(shield=True):
                await trio.sleep(2 * FOR_EVER_S)

    limits = ServerLimits(cancel_grace_s=1.0, cancel_kill_s=2.0)
    other, restarts = None, 0
    starts: Counter[Any] = Counter()
    with pytest.raises(
        trio_envserve.ServerNotClosed, match="has not ended"
    ):  # which it is then told
        async with open_bench(limits=limits) as bench:
            bench.during = for_hours
            with trio.move_on_after(5):
                await bench.client.run_rollout("stubborn")
            await trio.sleep(5)
            with trio.move_on_after(60):
                other = await bench.ask("other")
            restarts, starts = bench.server.stats().worker_restarts, bench.starts
    assert other == "result of other", "its caller waits"
    assert (restarts, starts) == (1, {"stubborn": 1, "other": 1})


def is_outcome(header: Any) -> bool:
    """Whether a frame is the header of an outcome."""
    message = messages.decode(header, most_bytes=1000)
    return isinstance(message, messages.Outcome)
