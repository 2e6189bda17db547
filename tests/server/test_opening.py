"""Servers are opened, get ready or say why not, and end with their block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.memory import ADDRESS, Probe, echo, pair, virtual
from tests.real.support import PATIENCE_S, open_calls
from tests.real.support import open_server as open_real_server
from trio_envserve import (
    ConfigError,
    DidNotRun,
    KeyLimits,
    MayHaveRun,
    Server,
    ServerLimits,
    ServerNotReady,
    ServerStartError,
    WireLimits,
    open_client,
    open_server,
    serve,
)
from trio_envserve.net import MemoryNetwork


@pytest.mark.parametrize("workers", [-1, True, "2"])
async def test_a_wrong_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises(ConfigError, match="workers"):
        async with open_server(workers=workers):
            pass


async def test_an_object_cannot_be_sent_to_worker_processes() -> None:
    with pytest.raises(ConfigError, match="workers=0"):
        async with open_server(Probe(), workers=1):
            pass


@pytest.mark.parametrize(
    "value", [(1, 2), {1: "a"}, Path("a"), {"deep": [float("nan"), {2: 3}]}, b"a", {3}]
)
async def test_arguments_that_a_worker_would_get_changed_are_refused(value: Any) -> None:
    """Tuples became lists and numbers as keys text, and nobody was told."""
    with pytest.raises(ConfigError, match=r"args\['shape'\]"):
        async with open_server("arithmetic", args={"shape": value}, workers=1):
            pass


@virtual
async def test_the_limits_of_keys_are_those_of_its_router() -> None:
    keys = KeyLimits(retention_s=60.0)
    async with open_server(
        Probe(), bind=ADDRESS, workers=0, network=MemoryNetwork(), keys=keys
    ) as server:
        assert server._router.keys.limits == keys


async def test_limits_of_keys_that_no_header_could_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"KeyLimits.key_bytes \(3000\)"):
        async with open_server(
            keys=KeyLimits(key_bytes=3000), wire=WireLimits(header_bytes=4096),
            limits=ServerLimits(window=100),
        ):  # fmt: skip
            pass


@virtual
async def test_serve_reports_the_server_once_bound() -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:

        async def start(task_status: trio.TaskStatus[Server]) -> None:  # noqa: ASYNC128
            await serve(Probe(), bind=ADDRESS, workers=0, network=network, task_status=task_status)

        server = await nursery.start(start)
        assert server.address == ADDRESS
        async with open_client(ADDRESS, network=network) as client:
            assert await client.run_rollout(["a", 1]) == {"did": 1}
        nursery.cancel_scope.cancel()


@virtual
async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with pair(Probe()):
            raise KeyError("mine")


@virtual
async def test_a_broken_environment_is_not_ready_with_its_traceback() -> None:
    def broken() -> Any:
        raise RuntimeError("no dataset here")

    async with pair(broken) as (server, client):
        with pytest.raises(ServerNotReady, match="no dataset here"):
            await client.wait_ready(60)
        assert server.status().status.value == "broken"
        # Pauses between the tries grow: no restart storm.
        assert server.stats().worker_restarts < 15


@virtual
async def test_an_unknown_model_did_not_run() -> None:
    probe = Probe()
    async with pair(probe) as (_, client):
        with pytest.raises(DidNotRun, match="oracle"):
            await client.run_rollout(["a", 1], model="orcale")
    assert not probe.started


@virtual
async def test_a_server_whose_block_is_cancelled_from_outside_still_closes_in_order() -> None:
    """Its closing awaited tasks that the same cancellation had ended: it hung."""
    probe = Probe()
    network = MemoryNetwork()
    outcomes: list[Any] = []

    async with open_client(ADDRESS, network=network) as client, trio.open_nursery() as nursery:

        async def call() -> None:
            outcomes.append(await client.outcome(["a", "wait"]))

        with trio.move_on_after(5):
            async with open_server(probe, bind=ADDRESS, workers=0, network=network):
                nursery.start_soon(call)
                await trio.sleep_forever()
        assert probe.ended == [("a", "cancelled")]
    assert isinstance(outcomes[0].error, MayHaveRun)


@pytest.mark.real
async def test_a_server_whose_block_is_cancelled_from_outside_closes(judge):
    """Its tasks were cancelled with the block, and the closing waited for them for ever."""
    with trio.fail_after(PATIENCE_S):
        with trio.CancelScope() as scope:
            async with open_real_server(judge) as server, open_calls(server.address) as calls:
                calls.start("a", ["wait", "never"])
                await judge.wait_started("a")
                scope.cancel()
    assert scope.cancelled_caught
    assert judge.ends("a") == ["Cancelled"]


# -- a server that is closed -----------------------------------------------------
# Who waited for it to get ready went on waiting, for minutes, when it had been closed;
# or was told "ready" of one that is no more.


async def test_a_closed_server_does_not_get_ready(autojump_clock):
    network = MemoryNetwork()
    async with open_server(echo, bind="memory:s", workers=0, network=network) as server:
        await server.wait_ready()
    with trio.fail_after(5), pytest.raises(ServerStartError, match="stopping"):
        await server.wait_ready()


async def test_who_waits_while_the_server_is_killed_is_told(autojump_clock):
    class Slow:
        async def setup(self):
            await trio.sleep_forever()

        async def run_rollout(self, rollout):
            raise AssertionError("it was never set up")

    network = MemoryNetwork()
    told = trio.Event()

    async def wait(server):
        with pytest.raises(ServerStartError, match="stopping"):
            await server.wait_ready()
        told.set()

    async with trio.open_nursery() as nursery:
        async with open_server(Slow(), bind="memory:s", workers=0, network=network) as server:
            nursery.start_soon(wait, server)
            await trio.testing.wait_all_tasks_blocked()
            server.kill()
            with trio.fail_after(5):
                await told.wait()
