"""A server in this process with a door for verifiers, and a small client of its wire."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import trio
import zmq

from trio_envserve import open_server
from trio_envserve.core.limits import ServerLimits
from trio_envserve.doors.verifiers import (
    VerifiersDoor,
    VerifiersLimits,
    open_verifiers_door,
)
from trio_envserve.net import MemoryNetwork

HANG_S = 600
"""Far more than anything here takes; only a hang takes longer."""

ANY_PORT = "tcp://127.0.0.1:0"

DELTAS = [b"one", b"two", b"three"]
REPLY = b"the packed reply"


async def answer(rollout: Any) -> Any:
    """What the adapter of verifiers returns, without an episode."""
    return {"state": {"deltas": DELTAS, "reply": REPLY + rollout.input["run"], "traces": ["t"]}}


@asynccontextmanager
async def open_door(
    environment: Any,
    limits: dict[str, Any] | None = None,
    server_limits: ServerLimits | None = None,
    **options: Any,
) -> AsyncIterator[VerifiersDoor]:
    """A door that is ready."""
    network = MemoryNetwork()
    options = {"bind": ANY_PORT} | options
    with trio.fail_after(HANG_S):
        async with open_server(
            environment, bind="memory:server", workers=0, network=network, limits=server_limits
        ) as server:
            await server.wait_ready()  # else the door hears of it a second later
            async with open_verifiers_door(
                server, network=network, limits=VerifiersLimits(**(limits or {})), **options
            ) as door:
                await door.wait_ready()
                yield door


class Peer:
    """A client: a DEALER of libzmq."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self._names = itertools.count()

    def say(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def run(self, name: bytes, payload: bytes = b"") -> None:
        self.say(name, b"run", payload)

    def cancel(self, target: bytes) -> bytes:
        name = b"cancel-%d" % next(self._names)
        self.say(name, b"cancel", msgpack.packb({"request_id": target.decode()}))
        return name

    async def hear(self) -> list[bytes]:
        """The next message."""
        while True:
            try:
                frames: list[bytes] = self.socket.recv_multipart(zmq.NOBLOCK)
                return frames
            except zmq.Again:
                await trio.sleep(0.005)

    async def reply(self, name: bytes) -> Any:
        """The next message, which is the reply to this, of the door's own."""
        frames = await self.hear()
        assert frames[:2] == [name, b"reply"]
        return msgpack.unpackb(frames[2])

    async def outcome(self, name: bytes) -> list[tuple[bytes, bytes]]:
        """All that comes for a run, up to its reply."""
        found: list[tuple[bytes, bytes]] = []
        while not found or found[-1][0] != b"reply":
            heard, kind, body = await self.hear()
            assert heard == name
            found.append((kind, body))
        return found

    async def ends(self, count: int) -> dict[bytes, list[tuple[bytes, bytes]]]:
        """What comes by name, until so many runs, or cancels, have their replies."""
        found: dict[bytes, list[tuple[bytes, bytes]]] = {}
        while count:
            name, kind, body = await self.hear()
            found.setdefault(name, []).append((kind, body))
            count -= kind == b"reply"
        return found

    def check_silent(self) -> None:
        """Nothing has come."""
        assert not self.socket.poll(0)


@asynccontextmanager
async def asking_later() -> AsyncIterator[Peer]:
    """A client that is not connected yet."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    try:
        yield Peer(socket)
    finally:
        socket.close()
        context.term()


@asynccontextmanager
async def asking(door: VerifiersDoor | str) -> AsyncIterator[Peer]:
    """A client of this door."""
    async with asking_later() as peer:
        peer.socket.connect(door if isinstance(door, str) else door.address)
        yield peer
