"""A program that forks while it has sockets: its child keeps none of them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import trio

from tests.connections import held_port
from tests.net.conftest import forked_child
from trio_envserve import ServerStartError
from trio_envserve.core.limits import WireLimits
from trio_envserve.net import open_zmtp_network

pytestmark = pytest.mark.real

WIRE = WireLimits()
PATIENCE_S = 60.0


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_a_forked_child_holds_neither_address_nor_connections(scheme: str, folder: str):
    """The successor of a server found its address in use, and its clients no end."""
    refused, again = "", b""
    with trio.fail_after(PATIENCE_S), ExitStack() as stack:
        port = stack.enter_context(held_port())
        address = f"tcp://127.0.0.1:{port}" if scheme == "tcp" else f"ipc://{folder}/s"
        async with (
            open_zmtp_network() as network,
            network.open_dealer(address, limits=WIRE) as dealer,
        ):
            dealer.send_nowait([b"before"])
            async with network.open_router(address, limits=WIRE) as router:
                [[route, _]] = await router.receive()
                stack.enter_context(forked_child())
                # What the child has closed is open here.
                assert router.send_nowait(bytes(route), [b"after"])
                assert await dealer.receive() == [[b"after"]]
            try:
                async with network.open_router(address, limits=WIRE) as successor:
                    with trio.move_on_after(PATIENCE_S / 3):
                        while True:  # what is sent into the old connection is lost
                            dealer.send_nowait([b"again"])
                            with trio.move_on_after(0.1):
                                again = bytes((await successor.receive())[0][1])
                                break
                    assert again == b"again"
            except ServerStartError as error:
                refused = str(error)
    assert refused == ""
