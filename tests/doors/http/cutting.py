"""A TCP proxy that cuts its connections, and a client that sends again what was cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.doors.http.door import Answer, Raw


class CuttingProxy:
    """Connections to one port of this machine."""

    def __init__(self, url: str) -> None:
        self._target = int(url.rpartition(":")[2])
        self._open: list[trio.CancelScope] = []
        self.url = ""
        self.cuts = 0
        """Connections that were cut."""
        self.swallows = 0
        """How many answers are still to be taken from the server, and told nobody."""

    def cut(self) -> None:
        """End all connections, whatever is under way on them."""
        for scope in self._open:
            scope.cancel()
        self.cuts += len(self._open)
        self._open.clear()

    async def serve(self, stream: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._open.append(scope)
            try:
                async with (
                    stream, await trio.open_tcp_stream("127.0.0.1", self._target) as server,
                    trio.open_nursery() as nursery,
                ):  # fmt: skip
                    nursery.start_soon(_copy, stream, server, scope)
                    await self._answers(server, stream)
                    scope.cancel()
            except* OSError:
                pass  # the client or the server was not there any more
        if scope in self._open:
            self._open.remove(scope)

    async def _answers(self, server: trio.SocketStream, stream: trio.SocketStream) -> None:
        try:
            while data := await server.receive_some():
                if self.swallows:
                    self.swallows -= 1
                    await _rest_of(server, bytes(data))
                    return
                await stream.send_all(data)
        except trio.BrokenResourceError:
            pass


async def _rest_of(server: trio.SocketStream, seen: bytes) -> None:
    """Read one answer to its end."""
    while True:
        head, found, body = seen.partition(b"\r\n\r\n")
        if found:
            (told,) = (
                line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            if len(body) >= int(told.split(b":")[1]):
                return
        seen += await server.receive_some()


async def _copy(source: trio.SocketStream, to: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some():
            await to.send_all(data)
    except trio.BrokenResourceError:
        pass
    scope.cancel()


@asynccontextmanager
async def cutting_proxy(url: str) -> AsyncIterator[CuttingProxy]:
    """A proxy in front of the server at ``url``."""
    proxy = CuttingProxy(url)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1024)
        proxy.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        await nursery.start(trio.serve_listeners, proxy.serve, listeners)
        yield proxy
        nursery.cancel_scope.cancel()


async def request_like_nemo_gym(url: str, row: dict[str, Any]) -> Answer:
    """Send a row again for as long as the connection is lost, and take any status for the
    answer, as ``nemo_gym.server_utils.request`` does.  (That one pauses for half a second.)"""
    data = json.dumps(row).encode()
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
            async with stream:
                peer = Raw(stream)
                await peer.send(
                    "POST /run HTTP/1.1", "Host: localhost", "Content-Type: application/json",
                    f"Content-Length: {len(data)}", body=data,
                )  # fmt: skip
                return await peer.answer()
        except (OSError, trio.BrokenResourceError, AssertionError):
            await trio.lowlevel.checkpoint()  # Raw says by AssertionError that it was closed
