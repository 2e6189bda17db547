"""A plain socket that reads what an attacker sends, and answers as little as it must.

It takes the frames apart by itself, so that the attacker's own reader is not its judge.
"""

from __future__ import annotations

import collections
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import cbor2
import trio

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x06\x05READY"


class Reader:
    """What has come, over all connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.most_at_once = 0
        self.open = 0
        self.data: list[bytearray] = []
        """All bytes, by connection."""
        self.frames: collections.Counter[int] = collections.Counter()
        """Whole frames, by their flags (without that of the length)."""
        self.claimed: list[int] = []
        """Sizes of frames, whole or not."""
        self.bodies: collections.Counter[bytes] = collections.Counter()
        """First twelve bytes of each frame that is no command."""
        self.messages: list[list[bytes]] = []
        self.welcomes = True
        self.speaks = True
        """As a peer of ZMTP; else it says nothing, whatever comes."""
        self.cut_at: int | None = None
        """After so many bytes of one connection it is closed."""

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        self.open += 1
        self.most_at_once = max(self.most_at_once, self.open)
        mine = bytearray()
        self.data.append(mine)
        try:
            await self._read(stream, mine)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the attacker has gone, which is its way
        finally:
            self.open -= 1

    async def _read(self, stream: trio.SocketStream, mine: bytearray) -> None:
        if not self.speaks:
            while data := await stream.receive_some(1 << 18):
                mine += data
            return
        await stream.send_all(GREETING)
        at, message, readied = 64, list[bytes](), False
        claimed_at = -1
        while data := await stream.receive_some(1 << 18):
            mine += data
            if self.cut_at is not None and len(mine) > self.cut_at:
                return
            while len(mine) >= at + 2:
                flags, start = mine[at], at + 2
                size = mine[at + 1]
                if flags & 2:
                    if len(mine) < at + 9:
                        break
                    size, start = int.from_bytes(mine[at + 1 : at + 9], "big"), at + 9
                if claimed_at != at:
                    self.claimed.append(size)
                    claimed_at = at
                if len(mine) < start + size:
                    break
                body = bytes(mine[start : start + size])
                at = start + size
                self.frames[flags & ~2] += 1
                if flags & 4:
                    if not readied:
                        readied = True
                        await stream.send_all(READY)
                    continue
                self.bodies[body[:12]] += 1
                if len(self.messages) < 5000:
                    message.append(body)
                if not flags & 1:
                    if len(self.messages) < 5000:
                        self.messages.append(message)
                    if self.welcomes and len(message) == 1:
                        await self._welcome(stream, message[0])
                    message = []

    async def _welcome(self, stream: trio.SocketStream, header: bytes) -> None:
        try:
            fields = cbor2.loads(header)
        except Exception:  # whatever hostile bytes raise: it is no hello
            return
        if type(fields) is list and len(fields) == 6 and fields[0] == 0:
            answer = cbor2.dumps([16, 1, fields[2], bytes(16), bytes(16), 100, 1 << 20, {}])
            await stream.send_all(b"\x00" + bytes((len(answer),)) + answer)


@asynccontextmanager
async def open_reader(*, speaks: bool = True) -> AsyncIterator[tuple[Reader, str]]:
    """A reader, and its address."""
    reader = Reader()
    reader.speaks = speaks
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, reader.serve, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        port = listeners[0].socket.getsockname()[1]
        yield reader, f"tcp://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()
