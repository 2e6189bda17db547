"""The clients that doors are to their servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from ..client import Client, open_client
from ..client.shell import keep_no_spans
from ..core.errors import ConfigError
from ..core.limits import ClientLimits
from ..net.keypairs import ClientCurve
from ..server import Server
from .options import DoorOptions

CLIENT_LIMITS: Final = ClientLimits(idle_ping_s=ClientLimits().ping_s)
"""A door tells others whether its server is ready, and so asks as often while nobody calls."""


@asynccontextmanager
async def open_door_client(
    server: Server | str, options: DoorOptions, name: str
) -> AsyncGenerator[Client, None]:
    """A client for a door: of a server of this process, or of any at an address."""
    address = server if isinstance(server, str) else server.address
    async with open_client(
        address, name=name, limits=CLIENT_LIMITS, wire=options.wire, network=options.network,
        transport=options.transport, curve=keys_of(server, options.curve),
    ) as client:  # fmt: skip
        keep_no_spans(client)
        yield client


def keys_of(server: Server | str, given: ClientCurve | None) -> ClientCurve | None:
    """Those of a server of this process, or those that were given for an address.  Raises
    ConfigError for both."""
    if isinstance(server, str):
        return given
    if given is not None:
        raise ConfigError("a server of this process lets its doors in: give no curve")
    return server.curve
