"""Opening the HTTP door."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import final

import trio

from ...client import Client
from ...client.options import limit_of_execution
from ...core.errors import ConfigError, ServerStartError
from ...core.health import ServerHealth
from ...net import check_reach, need_trio, parse_address, unwrap_single
from ...net.address import ANY, Address
from ...options import taken_beside
from ...server import Server
from ..clients import open_door_client
from ..options import HttpDoorOptions
from .app import HttpApp
from .connections import Connections
from .guard import Guard, parse_hosts, read_tokens

_BACKLOG = 1024


@final
class HttpDoor:
    """An open HTTP door.  Made by :func:`open_http_door`."""

    def __init__(self, url: str, client: Client, connections: Connections) -> None:
        self._url = url
        self._client = client
        self._connections = connections

    @property
    def url(self) -> str:
        """Its address, as ``http://HOST:PORT`` (a port 0 is resolved)."""
        return self._url

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until it takes calls; until then it answers 503.  Raises as
        :meth:`.Client.wait_ready` does.

        Args:
            timeout_s: Longest wait in seconds; None: the limit ``start_s``.
        """
        await self._client.wait_ready(timeout_s)

    def health(self) -> ServerHealth:
        """Of its server, as :meth:`.Client.health` says it."""
        return self._client.health()

    @property
    def connections(self) -> int:
        """How many peers are connected."""
        return len(self._connections)


@taken_beside(HttpDoorOptions)
@asynccontextmanager
async def open_http_door(
    server: Server | str, options: HttpDoorOptions
) -> AsyncGenerator[HttpDoor, None]:  # fmt: skip
    """Serve HTTP at ``bind`` until the block ends::

        async with open_server("arithmetic") as server:
            async with open_http_door(server, bind="127.0.0.1:8080") as door:
                ...

    Handles no signals and configures no logging.  At the end of the block answers that are
    under way have ``close_s`` to be given; then their calls are cancelled.  Raises ConfigError
    for wrong arguments, and ServerStartError if the address cannot be had.

    Args:
        server: A server of this process, or the address of any.
        options: Given as keyword arguments.
    """
    need_trio("open_http_door")
    if options.run_failures not in ("problems", "rows"):
        raise ConfigError(f"run_failures is problems or rows, not {options.run_failures!r}")
    limit_of_execution(options.run_execution_s, "run_execution_s")
    place, token_file = _parse(options.bind), options.token_file
    tokens = [] if token_file is None else read_tokens(token_file)
    if token_file is None and not options.insecure:
        check_reach(
            f"tcp://{options.bind}", "give a file of tokens (--token-file FILE), bind to 127.0.0.1"
        )
    guard = Guard(place.host, parse_hosts(options.hosts), tokens)
    client = open_door_client(server, options, "http-door")
    with unwrap_single():
        async with client as opened, trio.open_nursery() as behind:
            listeners = await _listen(place)
            app = HttpApp(opened, behind, guard, options)
            with unwrap_single():
                async with trio.open_nursery() as serving:
                    taking = await serving.start(app.connections.serve, listeners)
                    try:
                        yield HttpDoor(_url(place, listeners[0]), opened, app.connections)
                    finally:
                        app.live.close()
                        taking.cancel()
            behind.cancel_scope.cancel()  # calls that go on, and turns that answers waited for


def _parse(bind: str) -> Address:
    try:
        return parse_address(f"tcp://{bind}")
    except ConfigError as error:
        raise ConfigError(f"HOST:PORT expected: {error}") from None


async def _listen(place: Address) -> list[trio.SocketListener]:
    """Listen at all addresses of the host; with any free port, at the first of them."""
    host = None if place.host == ANY else place.host
    try:
        listeners = await trio.open_tcp_listeners(place.port, host=host, backlog=_BACKLOG)
    except OSError as error:
        raise ServerStartError(
            f"cannot listen at {place.host}:{place.port} for HTTP: {error.strerror or error}"
        ) from error
    if not place.port:
        for listener in listeners[1:]:
            await listener.aclose()
        del listeners[1:]
    return listeners


def _url(place: Address, listener: trio.SocketListener) -> str:
    host, port, *_ = listener.socket.getsockname()
    if place.host not in (ANY, host):
        host = place.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
