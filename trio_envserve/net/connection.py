"""One end of a connected socket: messages that arrive on it, and those that wait for it.

Theory of operation
-------------------
A :class:`SocketEnd` owns a non-blocking socket, the decoder of arriving bytes, the bytes
that are half written, and the outbox of further messages.  Its calls never wait:
:meth:`SocketEnd.fill` and :meth:`SocketEnd.write` do what can be done now, up to a budget.
Streams between processes (:mod:`.stream`) and the connections
of ZMTP (:mod:`.zmtp.hub`) are such ends.

A peer that does not read must cost a bounded amount of memory and delay nobody else.  So
each peer has a queue of its own (:class:`ConnectionOutbox`), bounded in messages and in bytes.
At a bound a message is refused: the protocol of clients and servers repairs the loss.  The queue of
a stream has no bound, and who owns an end sees to what waits.  A message is framed when few bytes
wait to be written.  Framed bytes belong to the connection and are lost with it.  Large frames are
received into their own buffer and written without a copy.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, final

from ..core.limits import BATCH_BYTES, KIB, MIB, WireLimits
from .framing import READ_BYTES, Decoder, FrameLimits, Outgoing, Piece
from .interface import FRAMES_MAX, Message, SentFrame, size_bytes

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


Parcel: TypeAlias = "tuple[SentFrame, ...]"
"""The frames of one message, in a container that does not change any more."""


@final
class ConnectionOutbox:
    """FIFO of messages, at most ``max_messages`` and ``max_bytes``.

    Invariant: ``len(self) <= max_messages``, and ``size_bytes <= max_bytes``
    unless a single message is in it.
    """

    __slots__ = ("_max_bytes", "_max_messages", "_messages", "size_bytes")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: deque[tuple[Parcel, int]] = deque()
        self.size_bytes = 0
        """Sum of the sizes of all waiting frames."""

    def __len__(self) -> int:
        return len(self._messages)

    def append(self, frames: Message) -> bool:
        """Queue a message; returns False and changes nothing if a bound forbids it."""
        size = size_bytes(frames)
        if self._messages and (
            len(self._messages) >= self._max_messages or self.size_bytes + size > self._max_bytes
        ):
            return False
        self._messages.append((tuple(frames), size))
        self.size_bytes += size
        return True

    def heads_bytes(self, frames: int) -> int:
        """Sum of the sizes of the first frames, so many of each message."""
        return sum(size_bytes(parcel[:frames]) for parcel, _ in self._messages)

    def first(self) -> Parcel:
        """The oldest message, which stays in the queue.  Raises IndexError if empty."""
        return self._messages[0][0]

    def pop(self) -> Parcel:
        """Take the oldest message out.  Raises IndexError if empty."""
        frames, size = self._messages.popleft()
        self.size_bytes -= size
        return frames

    def clear(self) -> int:
        """Drop everything; returns how many messages that were."""
        dropped = len(self._messages)
        self._messages.clear()
        self.size_bytes = 0
        return dropped


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
        "is_costly",
        "is_ready",
        "outbox",
        "outgoing",
        "sock",
    )

    def __init__(
        self, sock: socket.socket, decoder: Decoder, encode: Encode, outbox: ConnectionOutbox
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

    def send(self, messages: Sequence[Message]) -> int:
        """Write messages, as far as the system takes them, and queue the others; returns how many
        were accepted.  If bytes are left in ``outgoing``, :meth:`write` is to follow.  Raises
        ConnectionEnded."""
        accepted, many = 0, len(messages)
        while accepted < many and not self.outgoing and not self.outbox:
            some = messages[accepted : accepted + JOINED_MESSAGES]
            if self.is_costly:
                some = some[: _portion(some)]
            self._put(self.encode(some))
            accepted += len(some)
        while accepted < many and self.outbox.append(messages[accepted]):
            accepted += 1
        return accepted

    def _put(self, pieces: list[Piece]) -> None:
        """Write what is nearly always one piece, and all of it, while nothing else waits."""
        if len(pieces) > 1:
            self.outgoing.append(pieces)
            return
        [piece] = pieces
        try:
            size = self._send(piece)
        except BlockingIOError:
            size = 0
        except OSError as error:
            raise ConnectionEnded(str(error)) from error
        if size < len(piece):
            self.outgoing.append((memoryview(piece)[size:],))

    def write(self) -> bool:
        """Write what waits, up to the budget; returns True if nothing is left.  Raises
        ConnectionEnded."""
        outgoing, outbox = self.outgoing, self.outbox
        left = WRITE_TURN_BYTES
        while True:
            while outbox and outgoing.size_bytes < FRAMED_BYTES and self.is_ready:
                outgoing.append(self.encode((outbox.pop(),)))
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
