"""One ZMTP connection, as its hub keeps it."""

from __future__ import annotations

import enum
import socket
from typing import Final, final

from ..connection import ConnectionEnded, SocketEnd
from ..framing import READ_BYTES
from ..interface import Frame
from ..outbox import Outbox
from .engine import Engine

SLICE_MESSAGES: Final = 8
"""Number of messages that are decoded at a time."""

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


@final
class Connection(SocketEnd):
    """One connection; its hub sets the attributes."""

    __slots__ = (
        "debt_bytes",
        "engine",
        "fd",
        "heard_s",
        "held_bytes",
        "is_blocked",
        "is_queued",
        "is_watched",
        "made_s",
        "peer",
        "route",
        "state",
    )

    def __init__(
        self, sock: socket.socket, engine: Engine, outbox: Outbox, *, peer: str, now_s: float
    ) -> None:
        super().__init__(sock, engine.decoder, engine.encode, outbox)
        self.is_ready = False
        self.fd = sock.fileno()
        self.engine = engine
        self.peer = peer
        """The peer's name, for people."""
        self.route = b""
        self.state = ConnectionState.HANDSHAKE
        self.made_s = now_s
        self.heard_s = now_s
        """Moment at which bytes last arrived."""
        self.held_bytes = 0
        """The bytes of unfinished messages in the engine, when last counted."""
        self.debt_bytes = 0
        """Bytes above its share that the connection has had: see :mod:`.traffic`."""
        self.is_blocked = False
        """Whether writing waits for the system."""
        self.is_queued = False
        """Whether it is in the queue of connections to be read."""
        self.is_watched = False
        """Whether the service would notice a hang-up."""

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

    def open(self, now_s: float) -> None:
        """The handshake is done: messages pass from here on."""
        self.state = ConnectionState.OPEN
        self.encode, self.is_costly = self.engine.encode, self.engine.is_sealed
        self.is_ready = True
        self.heard_s = now_s

    def take(self) -> list[list[Frame]]:
        """A few messages that have arrived.  Raises FramingError."""
        return self.engine.take(SLICE_MESSAGES)

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
            return self.decoder.is_backlogged is False and not self._recv(1, _PEEK)
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
