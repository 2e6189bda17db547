"""One ZMTP connection: what arrives on it and what has yet to be written to it.

Theory of operation
-------------------
A :class:`Connection` owns a non-blocking socket, the engine that decodes arriving
bytes, the bytes that are half written, and the outbox of further messages.  It waits
for nothing: :meth:`Connection.fill` and :meth:`Connection.write` do what can be done
now, up to a budget, and say what they have met.

A message waits in the outbox, where it is counted and bounded, and is framed when there
is room.  Framed bytes belong to the connection and are lost with it.  Large frames are
received into their own buffer and written without a copy.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Sequence
from typing import Final, final

from ...core.limits import KIB, MIB
from ..framing import READ_BYTES, Outgoing, encode
from ..interface import Frame, Message, size_bytes
from ..outbox import Outbox
from .engine import Engine

READ_TURN_BYTES: Final = MIB
"""After so many bytes of large frames other connections have their turn."""

WRITE_TURN_BYTES: Final = MIB
"""The same for writing."""

FRAMED_BYTES: Final = 256 * KIB
"""Messages are framed while fewer bytes than this wait to be written."""

SLICE_MESSAGES: Final = 8
"""How many messages are decoded at a time."""

JOINED_MESSAGES: Final = 64
"""How many messages are framed at a time: small ones in one piece."""


_PEEK: Final = socket.MSG_PEEK


class ConnectionState(enum.Enum):
    """The state of a connection."""

    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    """Messages pass."""
    HUNG_UP = enum.auto()
    """The peer has ended it; messages that had arrived may still be read."""
    DRAINING = enum.auto()
    """This side has sent its last bytes, and waits for the peer to end the connection:
    closing at once, with something unread, would lose them."""
    CLOSED = enum.auto()


class ConnectionEnded(Exception):
    """The peer has closed the connection, or it broke."""


@final
class Connection:
    """One connection; its hub sets the attributes."""

    __slots__ = (
        "_recv",
        "_recv_into",
        "_send",
        "_sendmsg",
        "debt_bytes",
        "engine",
        "fd",
        "framed",
        "heard_s",
        "held_bytes",
        "is_blocked",
        "is_queued",
        "is_watched",
        "made_s",
        "outbox",
        "outgoing",
        "peer",
        "route",
        "sock",
        "state",
    )

    def __init__(
        self, sock: socket.socket, engine: Engine, outbox: Outbox, *, peer: str, now_s: float
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.engine = engine
        self.outbox = outbox
        """Messages that wait.  A dealer's outbox outlives its connections."""
        self.outgoing = Outgoing()
        """Bytes that wait."""
        self.framed = 0
        """Messages that have left the outbox and are not counted yet."""
        self.peer = peer
        """The peer's name, for people."""
        self.route = b""
        self.state = ConnectionState.HANDSHAKE
        self.made_s = now_s
        self.heard_s = now_s
        """When something arrived last."""
        self.held_bytes = 0
        """The bytes of unfinished messages in the engine, when last counted."""
        self.debt_bytes = 0
        """How many bytes more than its share it has had: see :mod:`.traffic`."""
        self.is_blocked = False
        """Whether writing waits for the system."""
        self.is_queued = False
        """Whether it is in the queue of connections to be read."""
        self.is_watched = False
        """Whether the service would notice a hang-up."""
        self._recv = sock.recv
        self._recv_into = sock.recv_into
        self._send = sock.send
        self._sendmsg = sock.sendmsg

    # -- reading

    def read_handshake(self) -> bool:
        """Go on with the handshake; True when it is done.

        Raises ConnectionEnded, or FramingError with what is wrong with the peer.
        """
        try:
            data = self._recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionEnded(str(error)) from error
        if not data:
            raise ConnectionEnded("it hung up during the handshake")
        return self.engine.shake(data)

    def fill(self) -> int:
        """Receive once, or a large frame up to the budget; returns how many bytes came.
        Raises ConnectionEnded."""
        decoder = self.engine.decoder
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

    def take(self) -> list[list[Frame]]:
        """A few messages that have arrived.  Raises FramingError."""
        return self.engine.take(SLICE_MESSAGES)

    # -- writing

    def send(self, messages: Sequence[Message]) -> int:
        """Write messages, or queue them behind others; returns how many were accepted.
        Raises ConnectionEnded."""
        accepted = 0
        outgoing, outbox = self.outgoing, self.outbox
        if not outgoing and not outbox:
            if self.engine.is_sealed:
                accepted = _portion(messages)
                outgoing.append(self.engine.encode(messages[:accepted]))
            elif len(messages) <= JOINED_MESSAGES:
                # nearly always: all of it, in one piece, at once
                pieces = encode(messages)
                if len(pieces) == 1:
                    [piece] = pieces
                    try:
                        size = self._send(piece)
                    except BlockingIOError:
                        size = 0
                    except OSError as error:
                        raise ConnectionEnded(str(error)) from error
                    if size < len(piece):
                        outgoing.append((memoryview(piece)[size:],))
                else:
                    outgoing.append(pieces)
                return len(messages)
            else:
                while accepted < len(messages) and outgoing.size_bytes < FRAMED_BYTES:
                    some = messages[accepted : accepted + JOINED_MESSAGES]
                    outgoing.append(encode(some))
                    accepted += len(some)
        for message in messages[accepted:]:
            if not outbox.append(message):
                break
            accepted += 1
        return accepted

    def write(self) -> bool:
        """Write what waits, up to the budget; returns True if nothing is left.  Raises
        ConnectionEnded."""
        outgoing, outbox = self.outgoing, self.outbox
        left = WRITE_TURN_BYTES
        while True:
            # A peer takes no message before its own READY has come.
            while (
                outbox and outgoing.size_bytes < FRAMED_BYTES and self.state is ConnectionState.OPEN
            ):
                outgoing.append(self.engine.encode((outbox.pop(),)))
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

    # -- ending

    def say_last_words(self) -> None:
        """Write what can be written now, and end this direction."""
        try:
            self.write()
            self.sock.shutdown(socket.SHUT_WR)
        except (ConnectionEnded, OSError):
            pass  # it is gone already

    def is_read(self) -> bool:
        """Whether nothing is left to read on a connection that the peer has ended."""
        try:
            return self.engine.decoder.is_backlogged is False and not self._recv(1, _PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def drain(self) -> bool:
        """Read and drop; returns True when the peer has ended the connection, too."""
        try:
            for _ in range(16):
                if not self._recv(READ_BYTES):
                    return True
        except BlockingIOError:
            return False
        except OSError:
            return True
        return False


def _portion(messages: Sequence[Message]) -> int:
    """How many messages to seal at once: it takes time for each byte."""
    total = 0
    for number, message in enumerate(messages, 1):
        total += size_bytes(message)
        if total >= FRAMED_BYTES:
            return number
    return len(messages)
