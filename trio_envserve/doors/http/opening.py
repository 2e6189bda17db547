"""Opening the HTTP door."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import final

import trio

from ...client import Client
from ...client.options import limit_of_execution
from ...core.errors import ConfigError
from ...net import check_reach, need_trio, unwrap_single
from ...net.address import ANY, Address
from ...options import taken_beside
from ...server import Server
from ..opening import OpenDoor, listen, open_door_client, parse_bind
from ..options import HttpDoorOptions
from .app import HttpApp
from .connections import Connections
from .guard import Guard, parse_hosts, read_tokens


@final
class HttpDoor(OpenDoor):
    """An open HTTP door.  Made by :func:`open_http_door`."""

    def __init__(self, url: str, client: Client, connections: Connections) -> None:
        super().__init__(client)
        self._url = url
        self._connections = connections

    @property
    def url(self) -> str:
        """Its address, as ``http://HOST:PORT`` (a port 0 is resolved)."""
        return self._url

    @property
    def connections(self) -> int:
        """Number of peers that are connected."""
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
        server: A server of this process, or the address of another one.
        options: Given as keyword arguments.
    """
    need_trio("open_http_door")
    guard, bound = guard_of(options), parse_bind(f"tcp://{options.bind}")
    client = open_door_client(server, options, "http-door")
    with unwrap_single():
        async with client as opened, trio.open_nursery() as behind:
            listeners = await listen(bound)
            app = HttpApp(opened, behind, guard, options)
            with unwrap_single():
                async with trio.open_nursery() as serving:
                    taking = await serving.start(app.connections.serve, listeners)
                    try:
                        yield HttpDoor(_url(bound, listeners[0]), opened, app.connections)
                    finally:
                        app.live.close()
                        taking.cancel()
            behind.cancel_scope.cancel()  # calls that go on, and turns that answers waited for


def guard_of(options: HttpDoorOptions) -> Guard:
    """The guard of a door with these options.  Raises ConfigError for whatever is wrong in them."""
    if options.run_failures not in ("problems", "rows"):
        raise ConfigError(f"run_failures is problems or rows, not {options.run_failures!r}")
    limit_of_execution(options.run_execution_s, "run_execution_s")
    address, token_file = f"tcp://{options.bind}", options.token_file
    bound = parse_bind(address)
    tokens = [] if token_file is None else read_tokens(token_file)
    if token_file is None and not options.insecure:
        check_reach(address, "give a file of tokens (--token-file FILE), bind to 127.0.0.1")
    return Guard(bound, parse_hosts(options.hosts), tokens)


def _url(bound: Address, listener: trio.SocketListener) -> str:
    host, port, *_ = listener.socket.getsockname()
    if bound.host not in (ANY, host):
        host = bound.host
    return f"http{str(Address('tcp', host, port)).removeprefix('tcp')}"
