"""A network in memory, with the semantics of the real one, and a stream in memory.

Theory of operation
-------------------
The network in memory is for tests and embedding.  Everything follows from the trio clock and
the order of calls.  There are no threads and no descriptors, so programs run under
``MockClock(autojump_threshold=0)`` and can be repeated.

A *connection* is two :class:`Pipe`.  A pipe stands for the transport and the kernel between
two processes: it holds a few messages *on their way*, and behind them the sender's
:class:`ConnectionOutbox`.  A message enters the pipe when fewer are on their way than the pipe
holds.  Faults strike messages there.  The reader takes the messages that are due.

Faults (see :class:`MemoryNetwork`): ``cut``, ``partition``/``heal``, ``filter``,
``latency_s``.  They are harsher than the faults of a real network: a cut loses
everything on its way, even what had arrived and was not read, and a partition loses
messages that TCP would transmit again.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, TypeAlias, final

import trio

from ..core.errors import ConfigError, ServerStartError
from ..core.limits import WireLimits
from ..core.terms import whole
from .address import ANY, Address, parse_address, parse_peer_address
from .connection import ConnectionOutbox, Parcel
from .interface import (
    BATCH_MESSAGES,
    COPY_THRESHOLD_BYTES,
    ConnectionEvent,
    Frame,
    Message,
    OnEvent,
    SentFrame,
    is_sendable,
)
from .pump import ReconnectingDealer, RouterPump, SocketPump, open_socket
from .stream import MessageStream

Direction: TypeAlias = Literal["to_router", "to_dealer"]

Filter: TypeAlias = Callable[[Direction, bytes, Message], bool]
"""Called for each message that is sent: direction, the connection's route, frames
(without the route).  False loses the message; the sender does not notice."""

UNDER_WAY_MESSAGES = 100
"""Messages a connection holds in each direction beside the outbox, as many as
the real sockets let libzmq hold."""


@final
class MemoryNetwork:
    """Routers and dealers that find each other by ``memory:`` addresses.

    Routers and dealers of different networks do not see each other.  The
    attributes may be set at any time; they apply to messages that set out
    later (one that waits in an outbox has not).
    """

    def __init__(self) -> None:
        self.filter: Filter | None = None
        """Decides on each message; None delivers all.  See :data:`Filter`."""
        self.latency_s = 0.0
        """Travel time of each message, on the trio clock."""
        self.route_latency_s: dict[bytes, float] = {}
        """Travel time of the messages of single connections, by route."""
        self._routers: dict[str, MemoryRouter] = {}
        self._partitioned: set[str] = set()
        self._numbers = itertools.count(1)

    def open_router(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None
    ) -> AbstractAsyncContextManager[MemoryRouter]:
        """See :meth:`Network.open_router`; ``memory:`` addresses.  ``memory:*``
        gets a name of its own."""
        parsed = _in_memory(parse_address(address))
        bound = f"memory:{next(self._numbers)}" if parsed.path == ANY else str(parsed)
        return open_socket(MemoryRouter(self._routers, bound, limits), on_event)

    def open_dealer(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None
    ) -> AbstractAsyncContextManager[MemoryDealer]:
        """See :meth:`Network.open_dealer`; ``memory:`` addresses."""
        parsed = _in_memory(parse_peer_address(address))
        return open_socket(MemoryDealer(self, str(parsed), limits), on_event)

    # -- faults

    def cut(self, route: bytes | None = None) -> int:
        """Break all connections, or the one of a route; returns how many.

        Messages on their way are lost in both directions.  Both sides get
        DISCONNECTED; the dealers connect again after ``reconnect_min_s``.
        """
        cut = [each for each in self._connections() if route is None or route == each.route]
        for connection in cut:
            connection.end(cut=True)
        return len(cut)

    def partition(self, address: str) -> None:
        """Make every connection to an address half open, in both directions.

        Nobody is told: sends succeed and are lost, and so are messages on their way.
        New connections are neither made nor refused.
        """
        self._partitioned.add(address)
        for connection in self._connections():
            if connection.router.address == address:
                for pipe in connection.pipes:
                    pipe.lose(after=trio.current_time())

    def heal(self, address: str) -> None:
        """End a partition.  Its connections go on; lost messages stay lost."""
        self._partitioned.discard(address)

    # -- for the sockets

    def _connections(self) -> Iterator[MemoryConnection]:
        for router in self._routers.values():
            yield from router.peers.values()

    def is_partitioned(self, address: str) -> bool:
        """Whether everything to and from this address is lost."""
        return address in self._partitioned

    def connect(self, dealer: MemoryDealer) -> MemoryConnection | None:
        """A new connection, or None if nobody is there."""
        router = self._routers.get(dealer.address)
        if router is None:
            return None
        return MemoryConnection(self, dealer, router, next(self._numbers).to_bytes(8, "little"))

    def latency_of(
        self, direction: Direction, connection: MemoryConnection, frames: Parcel
    ) -> float | None:
        """Travel time of a message that is sent now; None if it is lost."""
        if self.is_partitioned(connection.router.address):
            return None
        route = connection.route
        if self.filter is not None and not self.filter(direction, route, frames):
            return None
        return self.route_latency_s.get(route, self.latency_s)


def _in_memory(address: Address) -> Address:
    if address.scheme != "memory":
        raise ConfigError(f"{address}: a MemoryNetwork has memory:name addresses only")
    return address


@final
class Pipe:
    """One direction of one connection."""

    def __init__(
        self, connection: MemoryConnection, direction: Direction, outbox: ConnectionOutbox,
        sender: _MemorySocket, reader: _MemorySocket,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._direction: Direction = direction
        self._sender = sender
        self._reader = reader
        self._under_way: deque[tuple[float, Parcel]] = deque()
        """Messages on their way, each with its moment of arrival; they arrive in order, even if
        the latency has become less."""
        self.outbox = outbox
        self.route = connection.route
        """The connection's route, the same in both directions."""
        self.ended = False
        """Whether no further message enters.  Those on their way can still be read."""
        reader._adopt(self)

    @property
    def is_empty(self) -> bool:
        """Whether no message is on its way (the outbox may hold more)."""
        return not self._under_way

    @property
    def next_arrival(self) -> float:
        """Moment of arrival of the next message; inf if none is on its way."""
        return self._under_way[0][0] if self._under_way else math.inf

    def offer(self, frames: Parcel) -> bool:
        """Queue a message and :meth:`advance`; False if the outbox is full."""
        accepted = self.outbox.append(frames)
        self.advance()
        return accepted

    def advance(self) -> None:
        """Move messages out of the outbox, while fewer are on their way than the pipe holds."""
        while not self.ended and self.outbox and len(self._under_way) < UNDER_WAY_MESSAGES:
            frames = self.outbox.pop()
            connection = self._connection
            latency_s = connection.network.latency_of(self._direction, connection, frames)
            if latency_s is not None and not self.ended:  # the filter may have cut the connection
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
        """Lose the messages that arrive after that moment; by default all on their way."""
        while self._under_way and self._under_way[-1][0] > after:
            self._under_way.pop()
        self.advance()


@final
class MemoryConnection:
    """A dealer, a router, and the two pipes between them."""

    def __init__(
        self, network: MemoryNetwork, dealer: MemoryDealer, router: MemoryRouter, route: bytes
    ) -> None:
        self.network = network
        self.dealer = dealer
        self.router = router
        self.route = route
        self.lost = trio.Event()
        self.to_router = Pipe(self, "to_router", dealer._outbox, dealer, router)
        self.to_dealer = Pipe(self, "to_dealer", router._new_outbox(), router, dealer)
        self.pipes = (self.to_router, self.to_dealer)
        router.peers[route] = self
        dealer._connection = self
        router._event_sender.send_nowait(ConnectionEvent.CONNECTED)
        self.to_router.advance()

    def end(self, *, cut: bool) -> None:
        """End the connection.  Messages on their way can still be read, unless it is
        cut."""
        if self.lost.is_set():
            return
        self.lost.set()
        self.dealer._connection = None
        del self.router.peers[self.route]
        for pipe in self.pipes:
            pipe.ended = True
            if cut:
                pipe.lose()
        self.router._undelivered += self.to_dealer.outbox.clear()
        self.router._flushed()
        self.router._event_sender.send_nowait(ConnectionEvent.DISCONNECTED)


class _MemorySocket(SocketPump):
    """The common part of router and dealer: they read due messages and sleep until then."""

    def __init__(self, address: str, limits: WireLimits) -> None:
        super().__init__(address, limits)
        self._pipes: deque[Pipe] = deque()
        """The pipes to read from, including ended ones until the next is adopted."""
        self._arrival = trio.Event()

    def _adopt(self, pipe: Pipe) -> None:
        """Read from this pipe too, and no longer from ended and empty ones."""
        self._pipes = deque(p for p in self._pipes if not (p.ended and p.is_empty))
        self._pipes.append(pipe)

    def _wake(self) -> None:
        self._arrival.set()

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
        return batch

    async def _sleep(self) -> None:
        self._arrival = trio.Event()
        next_arrival = min((pipe.next_arrival for pipe in self._pipes), default=math.inf)
        with trio.move_on_at(next_arrival):
            await self._arrival.wait()

    def _send_to(self, route: bytes, messages: Sequence[Message]) -> bool:
        offer = self._way_to(route)
        accepted = 0
        if offer is not None:
            for frames in messages:
                accepted += offer(tuple([as_received(frame) for frame in frames]))
        self._undelivered += len(messages) - accepted
        return accepted == len(messages)

    def _way_to(self, route: bytes) -> Callable[[Parcel], bool] | None:
        """A function that takes messages for a peer; None if there is no such peer."""
        raise NotImplementedError


@final
class MemoryRouter(_MemorySocket, RouterPump):
    """The bound side.  Opened by :meth:`MemoryNetwork.open_router`."""

    def __init__(self, routers: dict[str, MemoryRouter], address: str, limits: WireLimits) -> None:
        super().__init__(address, limits)
        self._routers = routers
        """The routers of the network, by address."""
        self.peers: dict[bytes, MemoryConnection] = {}

    def start(self, nursery: trio.Nursery, on_event: OnEvent | None) -> None:
        """See the base.  Raises ServerStartError if the address is in use."""
        if self._address in self._routers:
            raise ServerStartError(
                f"{self._address} is in use; close that router or take another name"
            )
        self._routers[self._address] = self
        super().start(nursery, on_event)

    def _way_to(self, route: bytes) -> Callable[[Parcel], bool] | None:
        connection = self.peers.get(route)
        return None if connection is None else connection.to_dealer.offer

    def _outboxes(self) -> Collection[ConnectionOutbox]:
        return [connection.to_dealer.outbox for connection in self.peers.values()]

    def close(self) -> None:
        """End all connections; tasks that wait here get ClosedResourceError."""
        if self._routers.get(self._address) is self:
            del self._routers[self._address]
        for connection in list(self.peers.values()):
            connection.end(cut=False)
        super().close()


@final
class MemoryDealer(_MemorySocket, ReconnectingDealer):
    """The connecting side.  Opened by :meth:`MemoryNetwork.open_dealer`."""

    def __init__(self, network: MemoryNetwork, address: str, limits: WireLimits) -> None:
        super().__init__(address, limits)
        self._network = network
        self._connection: MemoryConnection | None = None
        self._outbox = self._new_outbox()

    def reconnect(self) -> None:
        """See :meth:`DealerSocket.reconnect`."""
        if self._connection is not None:
            self._connection.end(cut=True)

    def _way_to(self, route: bytes) -> Callable[[Parcel], bool]:
        connection = self._connection
        return self._outbox.append if connection is None else connection.to_router.offer

    def _outboxes(self) -> Collection[ConnectionOutbox]:
        return (self._outbox,)

    async def _connect(self) -> None:
        if self._network.is_partitioned(self._address):
            return  # an attempt that is never answered
        connection = self._network.connect(self)
        if connection is None:
            raise ConnectionRefusedError
        self._event_sender.send_nowait(ConnectionEvent.CONNECTED)
        await connection.lost.wait()
        self._event_sender.send_nowait(ConnectionEvent.DISCONNECTED)

    def close(self) -> None:
        """End the connection; tasks that wait here get ClosedResourceError."""
        if self._connection is not None:
            self._connection.end(cut=False)
        self._undelivered += self._outbox.clear()
        super().close()


def open_memory_streams(limits: WireLimits) -> tuple[MemoryStream, MemoryStream]:
    """The two ends of a stream inside this process; ``close()`` closes each."""
    here, there = MemoryStream(limits), MemoryStream(limits)
    here._peer, there._peer = there, here
    return here, there


@final
class MemoryStream(MessageStream):
    """One end of a stream inside a process.  Made by :func:`open_memory_streams`.

    It makes the promises of :mod:`.stream`, with no descriptors: what is sent has arrived.
    """

    _peer: MemoryStream

    def __init__(self, limits: WireLimits) -> None:
        super().__init__()
        self._limits = limits
        self._arrived = ConnectionOutbox(sys.maxsize, sys.maxsize)
        self._changed = trio.lowlevel.ParkingLot()

    def _turn(self) -> list[list[Frame]]:
        arrived = self._arrived
        batch: list[list[Frame]] = []
        while arrived and len(batch) < BATCH_MESSAGES:
            batch.append([as_received(frame) for frame in arrived.pop()])
        if not batch and self._peer._closed:
            raise trio.EndOfChannel
        return batch

    async def _sleep(self) -> None:
        await self._changed.park()

    def send_nowait(self, frames: Message) -> bool:
        """See the base."""
        peer = self._peer
        if self._closed or peer._closed or not is_sendable(frames, self._limits):
            return False
        taken = peer._arrived.append(frames)
        peer._changed.unpark_all()
        return taken

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """See the base."""
        sent = [self.send_nowait(frames) for frames in messages]
        return all(sent)

    def is_unsent(self) -> bool:
        """See the base."""
        return False  # the other end has everything

    def close(self) -> None:
        """Close this end: the other one receives what was sent, and then the end."""
        self._closed = True
        self._changed.unpark_all()
        self._peer._changed.unpark_all()


def as_received(sent: SentFrame) -> Frame:
    """A frame as the real sockets would deliver it."""
    frame = whole(sent)
    size = frame.nbytes if isinstance(frame, memoryview) else len(frame)
    if size < COPY_THRESHOLD_BYTES:
        return frame if isinstance(frame, bytes) else bytes(frame)
    return memoryview(frame).toreadonly()
