"""The interface of transports: the two sockets, the network, and their events.

Theory of operation
-------------------
A server *opens a router* at an address; clients and workers *open dealers* to
it.  A dealer has one peer, a router reaches each of its peers by its *route*.
A message is a sequence of frames and arrives whole or not at all.

Every network here keeps these promises, and tests check them on every one:

- Messages between two peers arrive in the order of sending while the
  connection lasts.  Messages on their way when it ends may be lost.  Nothing is
  duplicated.  A send is never a delivery: protocols above repair losses.
- Messages that a dealer sends while it has no connection wait in its outbox and go
  to the router that is at the address when a connection is made.  A router refuses to send
  to a route that it does not know.
- Each peer has an outbox of its own, bounded by ``WireLimits.peer_queue_*``,
  so that a peer that does not read delays nobody else.
- The router gives each connection a route of its own and never uses it again, so no
  peer can take another one's.
- One task at a time consumes a socket, and while it is in ``receive()`` it
  also does the socket's sending; ``send_nowait`` may be called by any task of
  the same thread.
- ``receive()`` is cancelled without loss: it either raises or returns
  messages, never both.
- The order between connection events and messages is not defined.

A network calls ``on_event`` from a task of the socket's own.  The callback must not block.  If it
raises, the socket's ``async with`` block is cancelled and raises the same exception.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from ..core.limits import BATCH_BYTES, KIB, WireLimits
from ..core.terms import SentBody, pieces_of

Frame: TypeAlias = bytes | memoryview
"""One part of a message.  Small frames arrive as ``bytes``; a frame of at least
:data:`COPY_THRESHOLD_BYTES` arrives as a read-only ``memoryview`` over the
buffer in which it was received, which lives as long as the view.  A memoryview that
was sent must not change any more: it may be read later."""

SentFrame: TypeAlias = SentBody
"""A frame to be sent, perhaps in pieces."""

Message: TypeAlias = Sequence[SentFrame]
"""The frames of one message to be sent, at least one."""

COPY_THRESHOLD_BYTES = 32 * KIB
"""Least size of a frame that is not copied."""

BATCH_MESSAGES = 256
"""Number of messages after which ``receive()`` returns, so that a flood on one socket does not
starve the other tasks."""

FRAMES_MAX = 64
"""Most frames of one message (the largest of the protocol has five); a message
with more is dropped and counted as oversized."""


class ConnectionEvent(enum.Enum):
    """Events of a connection of a socket."""

    CONNECTED = "connected"
    """A handshake is done: messages can flow."""
    DISCONNECTED = "disconnected"
    """An open connection has ended; a dealer makes a new one."""
    REFUSED = "refused"
    """A dealer's attempt to connect failed; the dealer will try again."""
    NAME_UNKNOWN = "name unknown"
    """As REFUSED: the name of the peer's machine has no address."""
    HANDSHAKE_FAILED = "handshake failed"
    """The peer does not speak this transport."""


OnEvent: TypeAlias = Callable[[ConnectionEvent], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SocketStatistics:
    """Counters of one socket since it was opened, and its queues right now."""

    undelivered: int
    """Messages refused or dropped: unknown peer, full outbox, peer gone."""
    oversized: int
    """Messages dropped for their size or number of frames, sent or received."""
    closed: int
    """Connections that were closed because of their peers: the handshake failed, a
    bound was passed, or a message stopped arriving."""
    backlog_messages: int
    """Messages in all outboxes."""
    backlog_bytes: int
    """Bytes in all outboxes."""


class _Socket(Protocol):
    @property
    def address(self) -> str:
        """The address, as a peer would connect to it (port 0 is resolved)."""
        ...

    async def receive(self) -> list[list[Frame]]:
        """Sleep until there is a message; return what is readable, less than
        twice :data:`BATCH_MESSAGES`.

        While it sleeps, it flushes the outboxes.  A cancel loses nothing.
        Raises BusyResourceError if another task is in it, ClosedResourceError
        if the socket is closed, even while sleeping.
        """
        ...

    def receive_nowait(self) -> list[list[Frame]]:
        """Like :meth:`receive`, but returns at once, perhaps with nothing.
        Also flushes the outboxes.  Raises like :meth:`receive`."""
        ...

    async def flush(self) -> None:
        """Sleep until all outboxes are empty.  A peer that does not read would keep one full for
        ever, so callers set a time limit.  Raises ClosedResourceError."""
        ...

    def statistics(self) -> SocketStatistics:
        """The present counters.  Can be called on a closed socket."""
        ...


class RouterSocket(_Socket, Protocol):
    """The bound side: many peers, each reached by its route.

    ``message[0]`` of each received message is the route, always ``bytes``.
    """

    def send_nowait(self, route: bytes, frames: Message) -> bool:
        """Queue a message for a peer.

        Returns False if it is not queued: no peer has this route, its outbox is
        full, a frame exceeds ``WireLimits.message_bytes``, or the socket is
        closed; the caller decides what that means.  True is not a promise of
        delivery.  Never blocks.  Raises ValueError for a message without frames.
        """
        ...

    def send_many_nowait(self, route: bytes, messages: Sequence[Message]) -> bool:
        """Queue messages for a peer, in this order.  Returns False if one was not
        queued."""
        ...


class DealerSocket(_Socket, Protocol):
    """The connecting side: one peer, and a new connection after each loss."""

    def reconnect(self) -> None:
        """Give up the connection, if there is one, and make a new one.  Messages on
        their way are lost, those in the outbox are not.  Reported like any loss."""
        ...

    def send_nowait(self, frames: Message) -> bool:
        """Queue a message for the peer, connected or not.  Returns and raises like
        :meth:`RouterSocket.send_nowait`."""
        ...

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """See :meth:`RouterSocket.send_many_nowait`."""
        ...


class Network(Protocol):
    """The maker of sockets."""

    def open_router(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None
    ) -> AbstractAsyncContextManager[RouterSocket]:
        """Listen at an address until the block ends; then the address is free again.

        Entering raises ConfigError (the address is wrong) or ServerStartError
        (it is not available now).

        Args:
            address: Where to listen.
            limits: Bounds on what is read.
            on_event: Called with each connection that is made, refused or lost.
        """
        ...

    def open_dealer(
        self,
        address: str,
        *,
        limits: WireLimits,
        on_event: OnEvent | None = None,
    ) -> AbstractAsyncContextManager[DealerSocket]:
        """Connect to an address, and again after each loss, until the block
        ends.  Entering does not wait for the connection.  Raises ConfigError.

        Args:
            address: Where to connect to.
            limits: Bounds on what is read.
            on_event: Called with each connection that is made, refused or lost.
        """
        ...


def size_bytes(frames: Message) -> int:
    """Size of a message: the sum of its frames."""
    return sum(f.nbytes if isinstance(f, memoryview) else len(f) for f in frames)


def write_frame(frame: SentFrame, memory: bytearray | memoryview, at: int) -> None:
    """Copy a frame into memory that has room for it, piece by piece from ``at`` on."""
    for piece in pieces_of(frame):
        view = memoryview(piece).cast("B")
        memory[at : at + len(view)] = view
        at += len(view)


def is_sendable(frames: Message, limits: WireLimits) -> bool:
    """Whether a peer would take the message: False if a frame is too large or there
    are too many frames.  Raises ValueError if there is none."""
    if not frames:
        raise ValueError("a message needs at least one frame")
    if len(frames) > FRAMES_MAX:
        return False
    limit = max(limits.message_bytes, BATCH_BYTES)
    for frame in frames:
        if (frame.nbytes if type(frame) is memoryview else len(frame)) > limit:
            return False
    return True
