"""A server in this process with an HTTP door, environments for it, and who asks it: httpx2, or
a raw socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from trio_envserve import Client, Server, open_client, open_server
from trio_envserve.net import MemoryNetwork

pytest.importorskip("h11")
httpx2 = pytest.importorskip("httpx2")

from trio_envserve.doors.http import HttpDoor, HttpLimits, open_http_door  # noqa: E402  # see above

HANG_S = 600
"""Far more than anything here takes; only a hang takes longer."""


TOKEN = "0123456789abcdef"

JSON = {"content-type": "application/json"}
CBOR = {"content-type": "application/cbor", "accept": "application/cbor"}
KEY = {"idempotency-key": '"step-12/7"'}
ASYNC = {**KEY, "prefer": "respond-async"}
AT = "/v1/rollouts/step-12%2F7"
"""The outcome of that key."""


async def echo(rollout: Any) -> Any:
    return rollout.input


class Runs:
    """An environment that notes what was started, and waits until it may go on."""

    def __init__(self, *, go_on: bool = True) -> None:
        self.started: list[Any] = []
        self.cancelled: list[Any] = []
        self.may_end = trio.Event()
        self._changed = trio.lowlevel.ParkingLot()
        if go_on:
            self.may_end.set()

    async def __call__(self, rollout: Any) -> Any:
        self.started.append(rollout.input)
        number = len(self.started)
        self._changed.unpark_all()
        try:
            await self.may_end.wait()
        except trio.Cancelled:
            self.cancelled.append(rollout.input)
            self._changed.unpark_all()
            raise
        return {"of": rollout.input, "reward": 0.5, "response": {"output": [], "number": number}}

    async def have_started(self, count: int = 1) -> None:
        while len(self.started) < count:
            await self._changed.park()

    async def are_cancelled(self) -> None:
        while not self.cancelled:
            await self._changed.park()


def tokens(folder: Path, text: str = TOKEN, mode: int = 0o600) -> str:
    """A file of tokens."""
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


class Opened(NamedTuple):
    """A server with its door, and who asks them."""

    server: Server
    door: HttpDoor
    http: Any
    native: Client


@asynccontextmanager
async def open_all(
    environment: Any, bounds: dict[str, Any] | None = None, *, door: Any = None,
    ready: bool = True, **server: Any,
) -> AsyncIterator[Opened]:  # fmt: skip
    """A door with these bounds that takes calls; its further options, and the server's."""
    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            open_server(
                environment, bind="memory:server", workers=0, network=network, **server
            ) as opened,
            open_client(opened.address, network=network) as native,
        ):
            if ready:
                await opened.wait_ready()  # else the door hears of it a second later
            async with (
                open_http_door(
                    opened, network=network, limits=HttpLimits(**(bounds or {})), **(door or {})
                ) as http_door,
                asking(http_door) as http,
            ):
                if ready:
                    await http_door.wait_ready()
                yield Opened(opened, http_door, http, native)


@asynccontextmanager
async def open_door(
    environment: Any, bounds: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[HttpDoor]:
    """A door that takes calls."""
    async with open_all(environment, bounds, door=options) as opened:
        yield opened.door


@asynccontextmanager
async def open_nowhere(**limits: Any) -> AsyncIterator[Any]:
    """A client of a door whose server is not there."""
    with trio.fail_after(HANG_S):
        async with (
            open_http_door(
                "memory:nobody", network=MemoryNetwork(), limits=HttpLimits(**limits)
            ) as door,
            asking(door) as client,
        ):
            yield client


@asynccontextmanager
async def asking(door: HttpDoor, **options: Any) -> AsyncIterator[Any]:
    """A client of HTTP for this door."""
    # It reads no certificates, which takes as long as opening the door and its server.
    async with httpx2.AsyncClient(
        base_url=door.url, timeout=None, verify=False, **options
    ) as client:
        yield client


def told(answer: Any) -> tuple[int, str]:
    """The status and the code of a problem."""
    return answer.status_code, answer.json()["code"]


async def nobody_is_connected(door: HttpDoor) -> None:
    """Sleep until the door has seen who hung up."""
    while door.connections:
        await trio.testing.wait_all_tasks_blocked()


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

    async def post(self, body: object, *headers: str, path: str = "/v1/rollouts") -> None:
        """A request whose body is written to the letter as httpx2 writes it."""
        data = json.dumps(body, separators=(",", ":")).encode()
        await self.send(
            f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
            f"Content-Length: {len(data)}", *headers, body=data,
        )  # fmt: skip

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
