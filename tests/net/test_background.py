"""What runs beside a block: opened with it, and ended with it."""

from __future__ import annotations

import asyncio
import threading

import pytest
import trio

from trio_envserve import open_client, open_client_asyncio, open_server
from trio_envserve.net import MemoryNetwork
from trio_envserve.net.background import open_background

# -- opening in a cancelled scope ------------------------------------------------
# Whoever entered ``open_server`` or ``open_client`` in a scope that was cancelled
# already waited for ever: the system beside the block was shielded before it had been
# moved there, and nothing could end it any more, the caller's cancel least of all.


PATIENCE_S = 60.0
"""What hangs here cannot be cancelled; it is left behind after so long."""


def open_a_server(network: MemoryNetwork):
    return open_server(trio.sleep, bind="memory:s", workers=0, network=network)


def open_a_client(network: MemoryNetwork):
    return open_client("memory:s", network=network)


@pytest.mark.parametrize("opened", [open_a_server, open_a_client])
def test_a_block_in_a_cancelled_scope_is_left_at_once(opened):
    did = []

    async def main():
        with trio.CancelScope() as scope:
            scope.cancel()
            async with opened(MemoryNetwork()):
                did.append("began the block")
        did.append("left it" if scope.cancelled_caught else "was not cancelled")

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert did == ["left it"]


async def test_a_system_beside_a_cancelled_block_is_closed(autojump_clock):
    did = []

    async def run(serve):
        did.append("opened")
        try:
            with trio.move_on_after(PATIENCE_S) as patience:
                await serve("system")
            did.append("hung" if patience.cancelled_caught else "served")
        finally:
            did.append("closed")

    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_background(run):
            did.append("began the block")
    assert scope.cancelled_caught
    assert did == ["opened", "closed"]


# -- where trio does not run -----------------------------------------------------
# In an asyncio program `open_client` raised "must be called from async context", which it
# was; and in plain code, an error about generators.


async def opens_a_client() -> None:
    async with open_client("tcp://127.0.0.1:1"):
        pass


async def opens_a_server() -> None:
    async with open_server("arithmetic", workers=0):
        pass


def test_asyncio_is_told_what_to_use():
    with pytest.raises(RuntimeError, match=r"asyncio runs here.* or use open_client_asyncio"):
        asyncio.run(opens_a_client())
    with pytest.raises(RuntimeError, match="open_server needs trio, and asyncio runs here"):
        asyncio.run(opens_a_server())


async def test_trio_is_told_what_to_use():
    """It raised "unrecognized yield message", and left a thread."""
    before = threading.active_count()
    with pytest.raises(
        RuntimeError, match="needs asyncio, which does not run here: use open_client"
    ):
        async with open_client_asyncio("tcp://127.0.0.1:1"):
            pass
    assert threading.active_count() == before


def test_plain_code_is_told_what_to_use():
    code = opens_a_client()
    with pytest.raises(RuntimeError, match=r"trio does not run here.*PlainClient"):
        code.send(None)
