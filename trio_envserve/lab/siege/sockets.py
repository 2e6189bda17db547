"""Which sockets a besieged server or client has."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from ...net import Network, open_zmq_network, open_zmtp_network


@asynccontextmanager
async def open_network(transport: str | None) -> AsyncGenerator[Network | None, None]:
    """The network of that name; None for the default one."""
    if transport is None:
        yield None
    else:
        opened = open_zmtp_network if transport == "zmtp" else open_zmq_network
        async with opened() as network:
            yield network
