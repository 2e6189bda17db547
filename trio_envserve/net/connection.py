"""One end of a connected socket: messages that arrive on it, and those that wait for it.

Theory of operation
-------------------
A :class:`SocketEnd` owns a non-blocking socket, the decoder of arriving bytes, the bytes
that are half written, and the outbox of further messages.  It waits for nothing:
:meth:`SocketEnd.fill` and :meth:`SocketEnd.write` do what can be done now, up to a budget,
and say what they have met.  Streams between processes (:mod:`.stream`) and the connections
of ZMTP (:mod:`.zmtp.connection`) are such ends.

A message waits in the outbox, where it is counted and bounded, and is framed when there
is room.  Framed bytes belong to the connection and are lost with it.  Large frames are
received into their own buffer and written without a copy.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ..core.limits import BATCH_BYTES, KIB, MIB, WireLimits
from .framing import READ_BYTES, Decoder, FrameLimits, Outgoing, Piece
from .interface import FRAMES_MAX, Message, size_bytes
from .outbox import Outbox

READ_TURN_BYTES: Final = MIB
"""Bytes of large frames that are read from a connection before others have their turn."""

WRITE_TURN_BYTES: Final = MIB
"""Bytes of large frames that are written to a connection before others have their turn."""

FRAMED_BYTES: Final = 256 * KIB
"""Messages are framed while fewer bytes than this wait to be written: about as many as a
socket takes."""

JOINED_MESSAGES: Final = 64
"""Number of messages that are framed at a time, small ones into one piece."""

Encode: TypeAlias = Callable[[Sequence[Message]], list[Piece]]
"""The bytes of messages, to be written in the order in which they were made."""


class ConnectionEnded(Exception):
    """The peer has closed the connection, or it broke."""


def frame_limits(limits: WireLimits) -> FrameLimits:
    """The bounds of a connection: one frame of the largest size, a header, and a little."""
    frame_bytes = max(limits.message_bytes, BATCH_BYTES)
    return FrameLimits(
        frame_bytes=frame_bytes,
        message_bytes=frame_bytes + max(limits.header_bytes, BATCH_BYTES) + KIB,
        frames=FRAMES_MAX,
    )


class SocketEnd:
    """One end of a connected socket."""

    __slots__ = (
        "_recv",
        "_recv_into",
        "_send",
        "_sendmsg",
        "decoder",
        "encode",
        "framed",
        "is_costly",
        "is_ready",
        "outbox",
        "outgoing",
        "sock",
    )

    def __init__(
        self, sock: socket.socket, decoder: Decoder, encode: Encode, outbox: Outbox
    ) -> None:
        self.sock = sock
        self.decoder = decoder
        self.encode = encode
        self.is_costly = False
        """Whether to encode takes time for each byte."""
        self.is_ready = True
        """Whether the peer takes messages already."""
        self.outbox = outbox
        """Messages that wait.  A dealer's outbox outlives its connections."""
        self.outgoing = Outgoing()
        """Bytes that wait."""
        self.framed = 0
        """Messages that have left the outbox and are not counted yet."""
        self._recv = sock.recv
        self._recv_into = sock.recv_into
        self._send = sock.send
        self._sendmsg = sock.sendmsg

    def fill(self) -> int:
        """Receive once, or a large frame up to the budget; returns how many bytes came.
        Raises ConnectionEnded."""
        decoder = self.decoder
        view = decoder.buffer()
        left = READ_TURN_BYTES
        try:
            if view is None:
                data = self._recv(READ_BYTES)
                if not data:
                    raise ConnectionEnded("it hung up")
                decoder.feed(data)
                return len(data)
            while view is not None and len(view) and left > 0:
                size = self._recv_into(view)
                if not size:
                    raise ConnectionEnded("it hung up within a message")
                decoder.received(size)
                left -= size
                view = decoder.buffer()
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionEnded(str(error)) from error
        return READ_TURN_BYTES - left

    def frame(self, messages: Sequence[Message]) -> int:
        """Write or frame messages, if none waits, while there is room; returns how many.
        Raises ConnectionEnded."""
        outgoing = self.outgoing
        if outgoing or self.outbox:
            return 0
        framed, many = 0, len(messages)
        if many == 1 or (many <= JOINED_MESSAGES and not self.is_costly):
            # nearly always: all of it, in one piece, at once
            pieces = self.encode(messages)
            if len(pieces) > 1:
                outgoing.append(pieces)
                return many
            [piece] = pieces
            try:
                size = self._send(piece)
            except BlockingIOError:
                size = 0
            except OSError as error:
                raise ConnectionEnded(str(error)) from error
            if size < len(piece):
                outgoing.append((memoryview(piece)[size:],))
            return many
        while framed < many and outgoing.size_bytes < FRAMED_BYTES:
            some = messages[framed : framed + JOINED_MESSAGES]
            if self.is_costly:
                some = some[: _portion(some)]
            outgoing.append(self.encode(some))
            framed += len(some)
        return framed

    def queue(self, messages: Sequence[Message]) -> int:
        """Put messages behind others that wait; returns how many were accepted."""
        accepted, many = 0, len(messages)
        while accepted < many and self.outbox.append(messages[accepted]):
            accepted += 1
        return accepted

    def write(self) -> bool:
        """Write what waits, up to the budget; returns True if nothing is left.  Raises
        ConnectionEnded."""
        outgoing, outbox = self.outgoing, self.outbox
        left = WRITE_TURN_BYTES
        while True:
            while outbox and outgoing.size_bytes < FRAMED_BYTES and self.is_ready:
                outgoing.append(self.encode((outbox.pop(),)))
                self.framed += 1
            if not outgoing:
                return True
            if left <= 0:
                return False
            pieces = outgoing.pieces()
            try:
                size = self._sendmsg(pieces) if len(pieces) > 1 else self._send(pieces[0])
            except BlockingIOError:
                return False
            except OSError as error:
                raise ConnectionEnded(str(error)) from error
            outgoing.sent(size)
            left -= size


def _portion(messages: Sequence[Message]) -> int:
    """Number of messages to encode at once where each byte takes time."""
    total = 0
    for number, message in enumerate(messages, 1):
        total += size_bytes(message)
        if total >= FRAMED_BYTES:
            return number
    return len(messages)
