"""The server's shell, on the in-memory network under a virtual clock: its loop, what clients
hear of a server that closes, and that it does end."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from tests.memory import ADDRESS, Probe, pair, virtual
from tests.real.support import PATIENCE_S, open_calls
from tests.real.support import open_server as open_real_server
from trio_envserve import (
    Client,
    Health,
    NeverStarted,
    Rollout,
    ServerHealth,
    ServerLimits,
    ServerNotClosed,
    ServerNotReady,
    ServerStatus,
    WireLimits,
    open_client,
    open_server,
)
from trio_envserve.cli.status import status_tables
from trio_envserve.core import gate, messages
from trio_envserve.core.messages import ROW_BYTES
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import RouterEffect
from trio_envserve.core.router_inputs import ClientMessage, RouterInput, Tick
from trio_envserve.host import workers
from trio_envserve.net import MemoryNetwork

# -- a server that is waited for --------------------------------------------------


class Slow:
    """Takes 20 s to set up."""

    async def setup(self) -> None:
        await trio.sleep(20)

    async def run_rollout(self, rollout: Rollout) -> str:
        return "done"


@virtual
async def test_who_waits_for_a_server_is_told_after_the_limit_what_is_known() -> None:
    async with open_server(Slow(), bind=ADDRESS, workers=0, network=MemoryNetwork()) as server:
        began_s = trio.current_time()
        with pytest.raises(ServerNotReady, match="not ready after 2 s: "):
            await server.wait_ready(2)
        assert trio.current_time() == began_s + 2
        assert not server.status().ready
        await server.wait_ready()
        assert 19 < trio.current_time() - began_s < 22
        assert server.status().ready


# -- its loop ---------------------------------------------------------------------


async def test_what_has_arrived_is_taken_in_before_a_tick_says_how_late_it_is(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stop of its process a server took the sign of life that it had not read for one
    that had not come."""
    seen: list[type] = []
    take = Router.take

    def taken(self: Router, given: RouterInput) -> list[RouterEffect]:
        if isinstance(given, (ClientMessage, Tick)):
            seen.append(type(given))
        return take(self, given)

    monkeypatch.setattr(Router, "take", taken)
    async with pair(Probe(), server=ServerLimits(tick_s=1.0)) as (server, client):
        await client.wait_ready()
        firsts = []
        autojump_clock.autojump_threshold = math.inf
        for _ in range(10):  # the order in which tasks of one turn run is drawn
            await trio.testing.wait_all_tasks_blocked()
            seen.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.stats)  # it asks in its first step
                await trio.lowlevel.checkpoint()
                autojump_clock.jump(1.5)
                await trio.testing.wait_all_tasks_blocked()
            firsts.append(seen[:1])
        autojump_clock.autojump_threshold = 0
        assert firsts == 10 * [[ClientMessage]]
        assert server.stats().more["router_lag_max_s"] == 0.5


# -- what it says ------------------------------------------------------------------


@virtual
async def test_where_a_rollout_of_this_process_stands_is_told_at_once() -> None:
    async with pair(Probe()) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(client.outcome, ["a", "wait"])
        await trio.sleep(1)
        (running,) = (await client.list_running()).running
        began_s = trio.current_time()
        text = await client.stack(running.number)
        assert trio.current_time() == began_s
        assert text is not None
        assert "await self.gate.wait()" in text
        nursery.cancel_scope.cancel()


@pytest.mark.real
async def test_where_a_rollout_of_a_process_stands_is_told_with_its_next_heartbeat(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_real_server(judge) as server, open_calls(server.address) as calls:
            calls.start("a", ["wait", "never"])
            await judge.wait_started("a")
            (running,) = (await calls.client.list_running()).running
            text = await calls.client.stack(running.number)
    assert text is not None
    assert "environments.py" in text


# -- a server that closes -----------------------------------------------------------------


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
async def test_a_closing_server_waited_for_ticks_before_its_idle_worker_was_over() -> None:
    limits = ServerLimits(tick_s=1.0, reap_settle_s=0.75)
    async with open_server(
        Probe(), bind=ADDRESS, workers=0, network=MemoryNetwork(), limits=limits
    ) as server:
        await server.wait_ready()
        await trio.sleep(1.5 * limits.tick_s)  # closing begins between two regular ticks
        began_s = trio.current_time()
    assert trio.current_time() - began_s == limits.reap_settle_s


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
            patch.setattr(gate, "BUDGET", 1)
            nursery.start_soon(server.drain, 30)
            await trio.sleep(0.5)
            assert server.stats().waiting == 0
            assert server.stats().closing is not None
        nursery.cancel_scope.cancel()


# -- failures that servers of this kind are known for, and that show in the shells: 11, 14, 16 ----
# Time is virtual, so "for ever" is some minutes here and takes none.

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
