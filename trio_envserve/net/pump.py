"""The pump: how every socket of this package receives, and what all sockets share.

Theory of operation
-------------------
The task that calls :meth:`Pump.receive` *is* the pump of its socket.  The transport
has no task between the wire and the consumer, and so no second queue.  A turn of the
pump first does everything that needs no waiting (it reads up to the budget and moves
the outboxes on), and sleeps only if it has read nothing.

A cancel loses nothing because of the order of three steps: a checkpoint that only
notices a pending cancel, then the non-blocking work, then a checkpoint that lets other
tasks run but cannot be cancelled.  No cancel can come between taking messages and
returning them.
"""

from __future__ import annotations

import math
import random
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from ..core.limits import WireLimits
from .background import unwrap_single
from .connection import ConnectionOutbox
from .interface import (
    ConnectionEvent,
    Frame,
    Message,
    OnEvent,
    SocketStatistics,
    is_sendable,
)


class Pump(ABC):
    """Base of sockets and streams: one consumer, cancel-safe batches."""

    def __init__(self) -> None:
        self._receiving = False
        self._closed = False
        self._flush_lot = trio.lowlevel.ParkingLot()

    async def receive(self) -> list[list[Frame]]:
        """See the interface: sleep until there is a message, return a batch."""
        self._check_usable()
        self._receiving = True
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._check_open()
            slept = False
            while not (batch := self._turn()):
                await self._sleep()
                self._check_open()
                slept = True
            if not slept:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return batch
        finally:
            self._receiving = False

    def receive_nowait(self) -> list[list[Frame]]:
        """See the interface: return what is readable right now."""
        self._check_usable()
        return self._turn()

    async def flush(self) -> None:
        """See the interface: sleep until nothing waits to be sent."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        while self.is_unsent():
            await self._flush_lot.park()
            self._check_open()

    def _flushed(self) -> None:
        """Wake the tasks that flush: perhaps nothing waits any more, or what waits is lost."""
        if self._flush_lot:
            self._flush_lot.unpark_all()

    @abstractmethod
    def is_unsent(self) -> bool:
        """Whether something waits to be sent."""

    def _check_usable(self) -> None:
        self._check_open()
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving from this socket")

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this socket is closed")

    @abstractmethod
    def _turn(self) -> list[list[Frame]]:
        """Read up to the budget and move the outboxes on, without waiting.

        If it returns nothing, :meth:`_sleep` notices whatever arrives later.
        """

    @abstractmethod
    async def _sleep(self) -> None:
        """Sleep until another turn may be worth it (it need not be).

        Always a checkpoint.  Raises ClosedResourceError when closed.
        """


class Sleep:
    """A descriptor on which one task sleeps, and from which others can wake it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_on = False
        """Whether the task sleeps, and nobody has woken it yet."""

    async def until_readable(self) -> None:
        """Sleep until the descriptor is readable, or :meth:`end`."""
        self.is_on = True
        try:
            await trio.lowlevel.wait_readable(self._fd)
        except trio.ClosedResourceError:
            pass  # closed, which the caller checks, or woken
        finally:
            self.is_on = False

    def end(self) -> None:
        """Wake the sleeping task, as if the descriptor were closed."""
        if self.is_on:
            self.is_on = False
            trio.lowlevel.notify_closing(self._fd)


class SocketPump(Pump):
    """Base of the sockets: a pump that counts, and tells of its connections."""

    _routed: bool
    """Whether each message begins with a route."""

    def __init__(self, address: str, limits: WireLimits) -> None:
        super().__init__()
        self._address = address
        self._limits = limits
        self._undelivered = self._oversized = 0
        self._closed_count = 0
        """Connections that were closed because of their peers."""
        self._event_sender, self._events = trio.open_memory_channel[ConnectionEvent](math.inf)

    @property
    def address(self) -> str:
        """See the interface."""
        return self._address

    def statistics(self) -> SocketStatistics:
        """See the interface."""
        outboxes = self._outboxes()
        return SocketStatistics(
            undelivered=self._undelivered,
            oversized=self._oversized,
            closed=self._closed_count,
            backlog_messages=sum(len(outbox) for outbox in outboxes),
            backlog_bytes=sum(outbox.size_bytes for outbox in outboxes),
        )

    def start(self, nursery: trio.Nursery, on_event: OnEvent | None) -> None:
        """Start the tasks of the socket."""
        nursery.start_soon(self._report_events, on_event)

    async def _report_events(self, on_event: OnEvent | None) -> None:
        async for event in self._events:
            if on_event is not None:
                on_event(event)

    def close(self) -> None:
        """Stop receiving and sending; tasks that wait here get ClosedResourceError."""
        self._closed = True
        self._wake()
        self._flushed()

    @abstractmethod
    def _wake(self) -> None:
        """Wake the task that sleeps in :meth:`_sleep`."""

    async def end(self) -> None:  # a socket in memory has nothing left to end
        """Give everything back, after :meth:`close` and the end of the tasks."""

    def _may_send(self, frames: Message) -> bool:
        """Whether this socket may send the message; counts it if not."""
        if self._closed:
            self._undelivered += 1
            return False
        if not is_sendable(frames, self._limits):
            self._oversized += 1
            return False
        return True

    def _send(self, route: bytes, messages: Sequence[Message]) -> bool:
        """Queue those of the messages that may be sent; False if one was not queued."""
        good = [frames for frames in messages if self._may_send(frames)]
        sent = self._send_to(route, good) if good else True
        return sent and len(good) == len(messages)

    @abstractmethod
    def _send_to(self, route: bytes, messages: Sequence[Message]) -> bool:
        """Queue messages, at least one, for the peer with this route; a dealer's only peer
        has the empty one.  Counts those that are not queued, and is False if there are some."""

    @abstractmethod
    def _outboxes(self) -> Collection[ConnectionOutbox]:
        """The outboxes of all peers; empty ones may be left out."""

    def is_unsent(self) -> bool:
        """See the base."""
        return any(self._outboxes())

    def _new_outbox(self) -> ConnectionOutbox:
        return ConnectionOutbox(self._limits.peer_queue_messages, self._limits.peer_queue_bytes)


class RouterPump(SocketPump):
    """Base of the routers."""

    _routed = True

    def send_nowait(self, route: bytes, frames: Message) -> bool:
        """See :meth:`RouterSocket.send_nowait`."""
        return self._may_send(frames) and self._send_to(route, (frames,))

    def send_many_nowait(self, route: bytes, messages: Sequence[Message]) -> bool:
        """See :meth:`RouterSocket.send_many_nowait`."""
        return self._send(route, messages)


class DealerPump(SocketPump):
    """Base of the dealers."""

    _routed = False

    def send_nowait(self, frames: Message) -> bool:
        """See :meth:`DealerSocket.send_nowait`."""
        return self._may_send(frames) and self._send_to(b"", (frames,))

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """See :meth:`DealerSocket.send_many_nowait`."""
        return self._send(b"", messages)


class ReconnectingDealer(DealerPump):
    """Base of the dealers that make their connections themselves."""

    _jitter = (1.0, 1.0)
    """The least and the largest part of a pause before a new attempt to connect."""

    def start(self, nursery: trio.Nursery, on_event: OnEvent | None) -> None:
        """See the base."""
        super().start(nursery, on_event)
        nursery.start_soon(self._stay_connected)

    async def _stay_connected(self) -> None:
        """Connect, and again after each loss, with pauses that grow."""
        limits = self._limits
        pause_s = limits.reconnect_min_s
        while True:
            began_s = trio.current_time()
            try:
                await self._connect()
            except socket.gaierror:
                self._event_sender.send_nowait(ConnectionEvent.NAME_UNKNOWN)
            except OSError:
                self._event_sender.send_nowait(ConnectionEvent.REFUSED)
            else:
                # A connection that is lost at once is no success: the pause goes on growing.
                if trio.current_time() - began_s > limits.reconnect_max_s:
                    pause_s = limits.reconnect_min_s
            # Spread where there is jitter: clients of a lost server must not come back together.
            await trio.sleep(pause_s * random.uniform(*self._jitter))
            pause_s = min(2 * pause_s, limits.reconnect_max_s)

    @abstractmethod
    async def _connect(self) -> None:
        """Connect once, and sleep until the connection has ended.  Raises OSError if nobody
        is at the address."""


S = TypeVar("S", bound=SocketPump)


@asynccontextmanager
async def open_socket(socket: S, on_event: OnEvent | None) -> AsyncIterator[S]:
    """Run the tasks of a socket beside the block, and close it with the block."""
    try:
        with unwrap_single():
            async with trio.open_nursery() as nursery:
                socket.start(nursery, on_event)
                try:
                    yield socket
                finally:
                    socket.close()
                    nursery.cancel_scope.cancel()
    finally:
        await socket.end()  # noqa: ASYNC102  # shields itself, and has limits
