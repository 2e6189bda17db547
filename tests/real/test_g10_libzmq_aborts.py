"""What ended servers whose sockets were libzmq's: the connections of others (G10).

Seen red on the last version with such sockets: exit by SIGABRT each time, with the
assertions of stream_engine_base.cpp:310 and ipc_listener.cpp:297.  A held loop (of a client
with many outcomes under way, or of a server with workers=0) is that of `tests/attack`.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import zmq

from tests.cli.commands import Running, command, served
from tests.real.support import PATIENCE_S
from trio_envserve import open_client

pytestmark = [pytest.mark.real, pytest.mark.slow]

ABORTED_WITHIN_S = 8.0
"""The abort came with libzmq's own heartbeats, up to 5 s after the connections had closed."""


async def answers(address: str, for_s: float) -> None:
    """An honest client is answered, again and again, for so long."""
    end_s = trio.current_time() + for_s
    async with open_client(address) as client:
        while True:
            await client.run_rollout({"index": 0})
            if trio.current_time() >= end_s:
                return


@asynccontextmanager
async def few_descriptors(serve: AbstractAsyncContextManager[Running]) -> AsyncIterator[Running]:
    """The command with 256 descriptors."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with AsyncExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most[1]))
        try:
            running = await stack.enter_async_context(serve)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
        yield running


async def test_a1_two_peers_with_one_routing_id_ended_the_server(tmp_path: Path):
    with trio.fail_after(PATIENCE_S):
        async with served(tmp_path) as (_, address):
            with zmq.Context() as context:
                for _ in range(3):
                    older, newer = (context.socket(zmq.DEALER) for _ in range(2))
                    for peer in (older, newer):
                        peer.setsockopt(zmq.ROUTING_ID, b"twin")
                        peer.linger = 0
                        peer.connect(address)
                        peer.send(b"x")
                        await answers(address, 0)  # which takes longer than its handshake
                    older.send(b"more", zmq.DONTWAIT)
                    await answers(address, 0)
                    older.close()
                    newer.close()
                await answers(address, ABORTED_WITHIN_S)


async def test_a4_a_unix_front_without_descriptors_ended_the_server(tmp_path: Path, folder: str):
    path = f"{folder}/front"
    serve = command(tmp_path, "serve", "arithmetic", "--bind", f"ipc://{path}", "--json")
    with trio.fail_after(PATIENCE_S), ExitStack() as held:
        async with few_descriptors(serve) as server:
            await server.event("ready")
            for _ in range(476):
                peer = held.enter_context(socket.socket(socket.AF_UNIX))
                peer.setblocking(False)
                try:
                    peer.connect(path)
                except BlockingIOError:
                    break  # the backlog is full, too
            held.close()
            await answers(f"ipc://{path}", 0)
