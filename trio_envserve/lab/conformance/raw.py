"""A connection made by hand: what no socket of a library would send.

The least of ZMTP (:mod:`.wire`) under a :class:`~.peer.Peer`, so that a case
can state an identity, or send a message in two halves.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import final

import trio

from ...core.terms import Body
from ...net import parse_peer_address
from . import wire
from .findings import CaseFailed, TimedOut
from .peer import Peer

READ_BYTES = 65536
_PING = b"\x04PING"


@final
class RawSocket:
    """As much of a dealer's socket as a peer needs."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._reader = wire.Reader()
        self._send, self._to_send = trio.open_memory_channel[bytes](math.inf)

    def send_nowait(self, frames: Sequence[Body]) -> bool:
        """Send a message; one that nobody takes any more is lost."""
        self.send_bytes(self.encoded(frames))
        return True

    def encoded(self, frames: Sequence[Body]) -> bytes:
        """The bytes of a message."""
        return wire.message(*map(bytes, frames))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes at all."""
        self._send.send_nowait(data)

    async def receive(self) -> list[Sequence[bytes]]:
        """Wait for messages.  Fails the case once the connection has ended."""
        while True:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                data = b""  # as at its end
            if not data:
                raise CaseFailed("a connection that lasts", "its end")
            found = list(self._reader.feed(bytes(data)))
            for command in self._reader.commands:
                if command.startswith(_PING):
                    self.send_bytes(wire.command(b"PONG", command[len(_PING) + 2 :][:16]))
            self._reader.commands.clear()
            if found:
                return found

    async def run(self) -> None:
        """Send what is to be sent, until the connection ends."""
        async for data in self._to_send:
            try:
                await self._stream.send_all(data)
            except trio.BrokenResourceError:
                return


@asynccontextmanager
async def open_raw_peer(
    address: str, *, patience_s: float, identity: bytes
) -> AsyncIterator[tuple[Peer, RawSocket]]:
    """A connection that states an identity, and its socket.  Fails the case if it
    cannot be made."""
    parsed = parse_peer_address(address)
    stream: trio.abc.Stream | None = None
    with trio.move_on_after(patience_s):
        try:
            if parsed.scheme == "tcp":
                stream = await trio.open_tcp_stream(parsed.host, parsed.port)
            else:
                stream = await trio.open_unix_socket(parsed.path)
        except OSError:
            pass  # told below
    if stream is None:
        raise TimedOut(f"a connection to {address}", f"none after {patience_s:g} s")
    async with stream, trio.open_nursery() as nursery:
        socket = RawSocket(stream)
        nursery.start_soon(socket.run)
        socket.send_bytes(wire.greeting() + wire.ready(identity=identity))
        yield Peer(socket, patience_s, [None]), socket
        nursery.cancel_scope.cancel()


async def taken_in(peer: Peer) -> None:
    """Until the server has read all that was said, or has ended the connection."""
    with suppress(CaseFailed):
        await peer.barrier()
