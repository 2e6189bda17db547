"""Opening of doors: the clients that they are to their servers, and where they listen."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import trio

from ..client import Client, open_client
from ..client.shell import keep_no_spans
from ..core.errors import ConfigError, ServerStartError
from ..core.health import ServerHealth
from ..core.limits import ClientLimits
from ..net import parse_address
from ..net.address import ANY, Address
from ..net.keypairs import ClientCurve
from ..server import Server
from .options import DoorOptions

CLIENT_LIMITS: Final = ClientLimits(idle_ping_s=ClientLimits().ping_s)
"""A door tells others whether its server is ready, and so asks as often while nobody calls."""

BACKLOG: Final = 1024
"""Connections that wait to be taken."""


class OpenDoor:
    """A door to a server, while it is open."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until a worker of its server is ready: before that callers of HTTP are answered
        503, and probes of verifiers not at all.  Raises as :meth:`.Client.wait_ready` does.

        Args:
            timeout_s: Longest wait in seconds; None: the limit ``start_s``.
        """
        await self._client.wait_ready(timeout_s)

    def health(self) -> ServerHealth:
        """Health of its server, as :meth:`.Client.health` says it."""
        return self._client.health()


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
    """The keys of a server of this process, or those that were given for an address.  Raises
    ConfigError for both."""
    if isinstance(server, str):
        return given
    if given is not None:
        raise ConfigError("a server of this process lets its doors in: give no curve")
    return server.curve


def parse_bind(address: str) -> Address:
    """An address of a door with the scheme ``tcp``, whose user writes none.  Raises ConfigError."""
    try:
        return parse_address(address)
    except ConfigError as error:
        raise ConfigError(f"HOST:PORT expected: {error}") from None


async def listen(address: Address) -> list[trio.SocketListener]:
    """Listen at all addresses of the host; with any free port, at the first of them.  Raises
    ServerStartError."""
    host = None if address.host == ANY else address.host
    try:
        listeners = await trio.open_tcp_listeners(address.port, host=host, backlog=BACKLOG)
    except OSError as error:
        raise ServerStartError(
            f"cannot listen at {address.host}:{address.port}: {error.strerror or error}"
        ) from error
    if not address.port:
        for listener in listeners[1:]:
            await listener.aclose()
        del listeners[1:]
    return listeners
