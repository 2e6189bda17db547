"""Sockets in memory, and the connections between them.

Theory of operation
-------------------
A *connection* is two :class:`Pipe`.  A pipe stands for libzmq and the kernel between
two processes: it holds a few messages *on their way*, and behind them the sender's
:class:`Outbox`.  A message enters the pipe when there is room.  There faults strike it:
the filter, a partition, latency.  The reader takes the messages that are due.

A task of each dealer makes its connections, reports its events and tries again.  A task
of each router reports its events.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, final

import trio

from ..core.limits import WireLimits
from ..core.terms import whole
from .interface import (
    BATCH_MESSAGES,
    COPY_THRESHOLD_BYTES,
    ConnectionEvent,
    Frame,
    Message,
    OnEvent,
    SentFrame,
)
from .outbox import Outbox, Parcel
from .pump import SocketPump

if TYPE_CHECKING:
    from .memory import MemoryNetwork

Direction: TypeAlias = Literal["to_router", "to_dealer"]

Filter: TypeAlias = Callable[[Direction, bytes, Message], bool]
"""Called for each message that is sent: direction, the connection's route, frames
(without the route).  False loses the message; the sender does not notice."""

UNDER_WAY_MESSAGES = 100
"""Messages a connection holds in each direction beside the outbox, as many as
the real sockets let libzmq hold."""


@final
class Pipe:
    """One direction of one connection."""

    def __init__(
        self,
        network: MemoryNetwork,
        direction: Direction,
        connection: Connection,
        outbox: Outbox,
        sender: _MemorySocket,
        reader: _MemorySocket,
    ) -> None:
        self._network = network
        self._direction: Direction = direction
        self._connection = connection
        self._sender = sender
        self._reader = reader
        self._under_way: deque[tuple[float, Parcel]] = deque()
        """(time of arrival, frames); times never decrease."""
        self.outbox = outbox
        self.ended = False
        """No message enters any more; those on their way can still be read."""
        reader._adopt(self)

    @property
    def route(self) -> bytes:
        """The connection's route, the same in both directions."""
        return self._connection.route

    @property
    def is_empty(self) -> bool:
        """Whether no message is on its way (the outbox may hold more)."""
        return not self._under_way

    @property
    def next_arrival(self) -> float:
        """When the next message arrives; inf if none is on its way."""
        return self._under_way[0][0] if self._under_way else math.inf

    def offer(self, frames: Message) -> bool:
        """Send a message, or queue it; returns False if the outbox is full."""
        accepted = self.outbox.append(frames)
        self.advance()
        return accepted

    def advance(self) -> None:
        """Let messages enter while there is room for them."""
        while not self.ended and self.outbox and len(self._under_way) < UNDER_WAY_MESSAGES:
            frames = self.outbox.pop()
            self._sender._sent += 1
            delivers = self._network.delivers(self._direction, self._connection, frames)
            if delivers and not self.ended:  # the filter may have cut the connection
                latency_s = self._network.latency_of(self.route)
                arrival = trio.current_time() + latency_s
                if self._under_way:
                    arrival = max(arrival, self._under_way[-1][0])
                self._under_way.append((arrival, frames))
                self._reader._wake()
        if not self.outbox:
            self._sender._flushed()

    def take(self, now: float) -> Parcel | None:
        """The next message that has arrived, if there is one."""
        if not self._under_way or self._under_way[0][0] > now:
            return None
        frames = self._under_way.popleft()[1]
        self.advance()
        return frames

    def lose(self, after: float = -math.inf) -> None:
        """Lose the messages that would arrive after that time."""
        while self._under_way and self._under_way[-1][0] > after:
            self._under_way.pop()


@final
class Connection:
    """A dealer, a router, and the two pipes between them."""

    def __init__(
        self, network: MemoryNetwork, dealer: MemoryDealer, router: MemoryRouter, route: bytes
    ) -> None:
        self.dealer = dealer
        self.router = router
        self.route = route
        self.lost = trio.Event()
        limits = router._limits
        outbox = Outbox(limits.peer_queue_messages, limits.peer_queue_bytes)
        self.to_router = Pipe(network, "to_router", self, dealer._outbox, dealer, router)
        self.to_dealer = Pipe(network, "to_dealer", self, outbox, router, dealer)
        router.peers[route] = self
        dealer._connection = self
        router._report(ConnectionEvent.CONNECTED)
        self.to_router.advance()

    def end(self, *, cut: bool) -> None:
        """End the connection.  Messages on their way can still be read, unless it is
        cut."""
        if self.lost.is_set():
            return
        self.lost.set()
        self.dealer._connection = None
        del self.router.peers[self.route]
        for pipe in (self.to_router, self.to_dealer):
            pipe.ended = True
            if cut:
                pipe.lose()
        self.router._undelivered += self.to_dealer.outbox.clear()
        self.router._flushed()
        self.router._report(ConnectionEvent.DISCONNECTED)


class _MemorySocket(SocketPump):
    """The common part of router and dealer: they read due messages and sleep until then."""

    _routed: bool

    def __init__(self, address: str, limits: WireLimits) -> None:
        super().__init__(address, limits)
        self._pipes: deque[Pipe] = deque()
        """The pipes to read from, including ended ones until the next is adopted."""
        self._arrival = trio.Event()
        self._flush_lot = trio.lowlevel.ParkingLot()

    async def flush(self) -> None:
        self._check_open()
        await trio.lowlevel.checkpoint()
        while any(self._outboxes()):
            await self._flush_lot.park()
            self._check_open()

    def close(self) -> None:
        self._closed = True
        self._wake()
        self._flush_lot.unpark_all()

    def _adopt(self, pipe: Pipe) -> None:
        """Read from this pipe too, and no longer from ended and empty ones."""
        self._pipes = deque(p for p in self._pipes if not (p.ended and p.is_empty))
        self._pipes.append(pipe)

    def _wake(self) -> None:
        self._arrival.set()

    def _flushed(self) -> None:
        self._flush_lot.unpark_all()

    def _turn(self) -> list[list[Frame]]:
        batch: list[list[Frame]] = []
        now = trio.current_time()
        idle = 0
        # One message from each pipe in turn, so that none waits for a busy one.
        while idle < len(self._pipes) and len(batch) < BATCH_MESSAGES:
            pipe = self._pipes[0]
            frames = pipe.take(now)
            if frames is not None:
                message = [*map(whole, frames)]
                batch.append([pipe.route, *message] if self._routed else message)
                idle = 0
            else:
                idle += 1
            self._pipes.rotate(-1)
        self._received += len(batch)
        return batch

    async def _sleep(self) -> None:
        self._arrival = trio.Event()
        next_arrival = min((pipe.next_arrival for pipe in self._pipes), default=math.inf)
        with trio.move_on_at(next_arrival):
            await self._arrival.wait()

    def _admitted(self, frames: Message) -> Parcel | None:
        """The frames as they will arrive, or None if they must not be sent."""
        if not self._may_send(frames):
            return None
        return tuple(_as_received(frame) for frame in frames)


@final
class MemoryRouter(_MemorySocket):
    """The bound side.  Opened by :meth:`MemoryNetwork.open_router`."""

    _routed = True

    def __init__(self, address: str, limits: WireLimits) -> None:
        super().__init__(address, limits)
        self.peers: dict[bytes, Connection] = {}
        self._event_sender, self._events = trio.open_memory_channel[ConnectionEvent](math.inf)

    def send_nowait(self, route: bytes, frames: Message) -> bool:
        """See :meth:`RouterSocket.send_nowait`."""
        parcel = self._admitted(frames)
        if parcel is None:
            return False
        connection = self.peers.get(route)
        if connection is None or not connection.to_dealer.offer(parcel):
            self._undelivered += 1
            return False
        return True

    def send_many_nowait(self, route: bytes, messages: Sequence[Message]) -> bool:
        """See :meth:`RouterSocket.send_many_nowait`."""
        sent = [self.send_nowait(route, each) for each in messages]
        return all(sent)

    def _outboxes(self) -> Collection[Outbox]:
        return [connection.to_dealer.outbox for connection in self.peers.values()]

    def _report(self, event: ConnectionEvent) -> None:
        self._event_sender.send_nowait(event)

    async def report_events(self, on_event: OnEvent) -> None:
        """The router's task: call back for each event, in order."""
        async for event in self._events:
            on_event(event)

    def close(self) -> None:
        """End all connections; tasks that wait here get ClosedResourceError."""
        for connection in list(self.peers.values()):
            connection.end(cut=False)
        super().close()


@final
class MemoryDealer(_MemorySocket):
    """The connecting side.  Opened by :meth:`MemoryNetwork.open_dealer`."""

    _routed = False

    def __init__(self, address: str, limits: WireLimits) -> None:
        super().__init__(address, limits)
        self._connection: Connection | None = None
        self._outbox = Outbox(limits.peer_queue_messages, limits.peer_queue_bytes)

    def reconnect(self) -> None:
        """See :meth:`DealerSocket.reconnect`."""
        if self._connection is not None:
            self._connection.end(cut=True)

    def send_nowait(self, frames: Message) -> bool:
        """See :meth:`DealerSocket.send_nowait`."""
        parcel = self._admitted(frames)
        if parcel is None:
            return False
        if self._connection is None:
            accepted = self._outbox.append(parcel)
        else:
            accepted = self._connection.to_router.offer(parcel)
        self._undelivered += not accepted
        return accepted

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """See :meth:`DealerSocket.send_many_nowait`."""
        sent = [self.send_nowait(each) for each in messages]
        return all(sent)

    def _outboxes(self) -> Collection[Outbox]:
        return (self._outbox,)

    async def stay_connected(self, network: MemoryNetwork, on_event: OnEvent) -> None:
        """Connect, now and after each loss; report what happens."""
        pause_s = self._limits.reconnect_min_s
        while True:
            if network.is_partitioned(self._address):
                pass  # an attempt that is never answered
            elif (connection := network.connect(self)) is not None:
                on_event(ConnectionEvent.CONNECTED)
                pause_s = self._limits.reconnect_min_s
                await connection.lost.wait()
                on_event(ConnectionEvent.DISCONNECTED)
            else:
                on_event(ConnectionEvent.REFUSED)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._limits.reconnect_max_s)

    def close(self) -> None:
        """End the connection; tasks that wait here get ClosedResourceError."""
        if self._connection is not None:
            self._connection.end(cut=False)
        self._undelivered += self._outbox.clear()
        super().close()


def _as_received(sent: SentFrame) -> Frame:
    """A frame as the real sockets would deliver it."""
    frame = whole(sent)
    size = frame.nbytes if isinstance(frame, memoryview) else len(frame)
    if size < COPY_THRESHOLD_BYTES:
        return frame if isinstance(frame, bytes) else bytes(frame)
    return memoryview(frame).toreadonly()
