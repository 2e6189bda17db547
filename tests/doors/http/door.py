"""A server in this process with an HTTP door, and who asks it: httpx2, or a raw socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import trio

from trio_envserve import open_server
from trio_envserve.net import MemoryNetwork

pytest.importorskip("hypercorn")
httpx2 = pytest.importorskip("httpx2")

from trio_envserve.doors.http import HttpDoor, HttpLimits, open_http_door  # noqa: E402  # see above

HANG_S = 600
"""Far more than anything here takes; only a hang takes longer."""


@asynccontextmanager
async def open_door(
    environment: Any, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[HttpDoor]:
    """A door that takes calls."""
    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with open_server(
            environment, bind="memory:server", workers=0, network=network
        ) as server:
            await server.wait_ready()  # else the door hears of it a second later
            async with open_http_door(
                server, network=network, limits=HttpLimits(**(limits or {})), **options
            ) as door:
                await door.wait_ready()
                yield door


@asynccontextmanager
async def asking(door: HttpDoor, **options: Any) -> AsyncIterator[Any]:
    """A client of HTTP for this door."""
    async with httpx2.AsyncClient(base_url=door.url, timeout=None, **options) as client:
        yield client


class Answer(NamedTuple):
    """An answer that was read from a raw socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status
        return found


class Raw:
    """A raw connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._rest = b""

    async def send(self, *lines: str, body: bytes = b"") -> None:
        """Lines of a head, and what follows the empty one."""
        await self.stream.send_all("".join(f"{line}\r\n" for line in (*lines, "")).encode() + body)

    async def answer(self) -> Answer:
        """The next answer, whose length is told."""
        while b"\r\n\r\n" not in self._rest:
            self._rest += await self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        length = int(headers["content-length"])
        while len(self._rest) < length:
            self._rest += await self._more()
        body, self._rest = self._rest[:length], self._rest[length:]
        return Answer(int(first.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """All that still comes until the door closes the connection."""
        found = self._rest
        try:
            while piece := await self.stream.receive_some():
                found += piece
        except trio.BrokenResourceError:
            pass  # closed with something of ours unread
        return found

    async def _more(self) -> bytes:
        piece = await self.stream.receive_some()
        assert piece, "the door closed the connection"
        return bytes(piece)


@asynccontextmanager
async def raw(door: HttpDoor) -> AsyncIterator[Raw]:
    """A raw connection to the door."""
    host, _, port = door.url.removeprefix("http://").rpartition(":")
    async with await trio.open_tcp_stream(host.strip("[]"), int(port)) as stream:
        yield Raw(stream)
