"""Calls that wait for a server's answer or readiness went on waiting, for minutes,
when their own client or server had been closed; or they said "ready" of one that is
no more.
"""

import pytest
import trio

from trio_envserve import Rollout, ServerNotReady, ServerStartError, open_client, open_server
from trio_envserve.net import MemoryNetwork


async def rollouts(rollout: Rollout) -> str:
    return "done"


def statistics(client):
    return client.stats()


def readiness(client):
    return client.wait_ready()


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("ask", [statistics, readiness])
async def test_a_closed_client_says_so_at_once(autojump_clock, ask, there):
    network = MemoryNetwork()
    async with open_server(rollouts, bind="memory:s", workers=0, network=network):
        async with open_client("memory:s" if there else "memory:t", network=network) as client:
            if there:
                await client.wait_ready()
        with trio.fail_after(5), pytest.raises(ServerNotReady, match="the client was closed"):
            await ask(client)


@pytest.mark.parametrize("ask", [statistics, readiness])
async def test_who_waits_while_the_client_is_closed_is_told(autojump_clock, ask):
    network = MemoryNetwork()
    told = trio.Event()

    async def wait(client):
        with pytest.raises(ServerNotReady, match="the client was closed"):
            await ask(client)
        told.set()

    async with trio.open_nursery() as nursery:
        async with open_client("memory:nobody", network=network) as client:
            nursery.start_soon(wait, client)
            await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(5):
            await told.wait()


async def test_a_closed_server_does_not_get_ready(autojump_clock):
    network = MemoryNetwork()
    async with open_server(rollouts, bind="memory:s", workers=0, network=network) as server:
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
