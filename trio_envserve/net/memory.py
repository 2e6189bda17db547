"""A network in memory: the semantics of the real one, without its accidents.

Theory of operation
-------------------
For tests and embedding.  Everything is a function of the trio clock and the
order of calls: no threads, no descriptors, so it runs under
``MockClock(autojump_threshold=0)`` and replays.

A *connection* is two :class:`_Pipe`.  A pipe is what libzmq and the kernel are
between two processes: it holds a few messages *under way*, and behind them the
sender's :class:`Outbox`.  A message enters the pipe when there is room, and
that is where faults strike it: the filter, a partition, latency.  The reader
takes what is due.

Connections are made by a task of each dealer, which is also the one that
reports the dealer's events and tries again.  A router has a task too, that
reports its events.

Faults (see :class:`MemoryNetwork`): ``cut``, ``partition``/``heal``, ``filter``,
``latency_s``.  They are harsher than the real network where it leaves a choice:
a cut loses everything under way, also what had arrived and was not read, and a
partition loses where TCP would transmit again.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias, final

import trio

from ..core.errors import ConfigError, ServerStartError
from ..core.limits import WireLimits
from .address import ANY, Address, check_identity, parse_address, parse_peer_address
from .groups import unwrap_single
from .interface import (
    BATCH_MESSAGES,
    COPY_THRESHOLD_BYTES,
    ConnectionEvent,
    Frame,
    Message,
    OnEvent,
    SocketStatistics,
    is_sendable,
)
from .outbox import Outbox, Parcel
from .pump import Pump

Direction: TypeAlias = Literal["to_router", "to_dealer"]

Filter: TypeAlias = Callable[[Direction, bytes, Message], bool]
"""Asked for each message that sets out: direction, the dealer's route, frames
(without the route).  False loses it, without a trace for the sender."""

UNDER_WAY_MESSAGES = 100
"""Messages a connection holds in each direction beside the outbox, as many as
the real sockets let libzmq hold."""


@final
class _Pipe:
    """One direction of one connection."""

    def __init__(
        self,
        network: MemoryNetwork,
        direction: Direction,
        connection: _Connection,
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
        """(when it arrives, frames); times never decrease."""
        self.outbox = outbox
        self.ended = False
        """Nothing enters any more; what is under way can still be read."""
        reader._adopt(self)

    @property
    def route(self) -> bytes:
        return self._connection.route

    @property
    def is_empty(self) -> bool:
        return not self._under_way

    @property
    def next_arrival(self) -> float:
        """When there will be something to take; inf if nothing is under way."""
        return self._under_way[0][0] if self._under_way else math.inf

    def offer(self, frames: Message) -> bool:
        """Send a message, or queue it; False if the outbox is full."""
        accepted = self.outbox.append(frames)
        self.advance()
        return accepted

    def advance(self) -> None:
        """Let messages set out while there is room for them."""
        while not self.ended and self.outbox and len(self._under_way) < UNDER_WAY_MESSAGES:
            frames = self.outbox.pop()
            self._sender._sent += 1
            delivers = self._network._delivers(self._direction, self._connection, frames)
            if delivers and not self.ended:  # the filter may have cut the connection
                latency_s = self._network._latency_of(self.route)
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
        """Lose what is under way and would arrive after that time."""
        while self._under_way and self._under_way[-1][0] > after:
            self._under_way.pop()


@final
class _Connection:
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
        self.to_router = _Pipe(network, "to_router", self, dealer._outbox, dealer, router)
        self.to_dealer = _Pipe(network, "to_dealer", self, outbox, router, dealer)
        router._peers[route] = self
        dealer._connection = self
        router._report(ConnectionEvent.CONNECTED)
        self.to_router.advance()

    def end(self, *, cut: bool) -> None:
        """Be no connection any more.  What is under way can still be read,
        unless it is cut."""
        if self.lost.is_set():
            return
        self.lost.set()
        self.dealer._connection = None
        del self.router._peers[self.route]
        for pipe in (self.to_router, self.to_dealer):
            pipe.ended = True
            if cut:
                pipe.lose()
        self.router._undelivered += self.to_dealer.outbox.clear()
        self.router._flushed()
        self.router._report(ConnectionEvent.DISCONNECTED)


class _MemorySocket(Pump):
    """What both kinds have in common: reading what is due, sleeping until then."""

    _routed: bool

    def __init__(self, address: str, limits: WireLimits) -> None:
        super().__init__()
        self._address = address
        self._limits = limits
        self._pipes: deque[_Pipe] = deque()
        """What can be read from, also ended ones that still hold something."""
        self._arrival = trio.Event()
        self._flush_lot = trio.lowlevel.ParkingLot()
        self._received = self._sent = self._undelivered = self._oversized = 0

    @property
    def address(self) -> str:
        return self._address

    async def flush(self) -> None:
        self._check_open()
        await trio.lowlevel.checkpoint()
        while any(self._outboxes()):
            await self._flush_lot.park()
            self._check_open()

    def statistics(self) -> SocketStatistics:
        outboxes = [outbox for outbox in self._outboxes() if outbox]
        return SocketStatistics(
            received=self._received,
            sent=self._sent,
            undelivered=self._undelivered,
            oversized=self._oversized,
            backlog_peers=len(outboxes),
            backlog_messages=sum(len(outbox) for outbox in outboxes),
            backlog_bytes=sum(outbox.size_bytes for outbox in outboxes),
        )

    def _outboxes(self) -> Collection[Outbox]:
        raise NotImplementedError

    def _close(self) -> None:
        self._closed = True
        self._wake()
        self._flush_lot.unpark_all()

    def _adopt(self, pipe: _Pipe) -> None:
        """Read from this pipe too; no longer from those that are used up."""
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
                batch.append([pipe.route, *frames] if self._routed else list(frames))
                idle = 0
            else:
                idle += 1
            if pipe.ended and pipe.is_empty:
                self._pipes.popleft()
                idle = 0
            else:
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
        if self._closed:
            self._undelivered += 1
            return None
        if not is_sendable(frames, self._limits):
            self._oversized += 1
            return None
        return tuple(_as_received(frame) for frame in frames)


@final
class MemoryRouter(_MemorySocket):
    """The bound side.  Opened by :meth:`MemoryNetwork.open_router`."""

    _routed = True

    def __init__(self, address: str, limits: WireLimits) -> None:
        super().__init__(address, limits)
        self._peers: dict[bytes, _Connection] = {}
        self._event_sender, self._events = trio.open_memory_channel[ConnectionEvent](math.inf)

    def send_nowait(self, route: bytes, frames: Message) -> bool:
        parcel = self._admitted(frames)
        if parcel is None:
            return False
        connection = self._peers.get(route)
        if connection is None or not connection.to_dealer.offer(parcel):
            self._undelivered += 1
            return False
        return True

    def _outboxes(self) -> Collection[Outbox]:
        return [connection.to_dealer.outbox for connection in self._peers.values()]

    def _report(self, event: ConnectionEvent) -> None:
        self._event_sender.send_nowait(event)

    async def _report_events(self, on_event: OnEvent) -> None:
        async for event in self._events:
            on_event(event)

    def _close(self) -> None:
        for connection in list(self._peers.values()):
            connection.end(cut=False)
        super()._close()


@final
class MemoryDealer(_MemorySocket):
    """The connecting side.  Opened by :meth:`MemoryNetwork.open_dealer`."""

    _routed = False

    def __init__(self, address: str, limits: WireLimits, identity: bytes) -> None:
        super().__init__(address, limits)
        self._identity = identity
        self._connection: _Connection | None = None
        self._outbox = Outbox(limits.peer_queue_messages, limits.peer_queue_bytes)

    @property
    def identity(self) -> bytes:
        return self._identity

    def send_nowait(self, frames: Message) -> bool:
        parcel = self._admitted(frames)
        if parcel is None:
            return False
        if self._connection is None:
            accepted = self._outbox.append(parcel)
        else:
            accepted = self._connection.to_router.offer(parcel)
        self._undelivered += not accepted
        return accepted

    def _outboxes(self) -> Collection[Outbox]:
        return (self._outbox,)

    async def _stay_connected(self, network: MemoryNetwork, on_event: OnEvent) -> None:
        """Connect, now and after each loss; report what happens."""
        pause_s = self._limits.reconnect_min_s
        while True:
            if network._is_partitioned(self._address):
                pass  # an attempt that is never answered
            elif (connection := network._connect(self)) is not None:
                on_event(ConnectionEvent.CONNECTED)
                pause_s = self._limits.reconnect_min_s
                await connection.lost.wait()
                on_event(ConnectionEvent.DISCONNECTED)
            else:
                on_event(ConnectionEvent.REFUSED)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._limits.reconnect_max_s)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.end(cut=False)
        self._undelivered += self._outbox.clear()
        super()._close()


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
        """How long a message is under way, on the trio clock."""
        self.route_latency_s: dict[bytes, float] = {}
        """The same for single dealers, by their identity."""
        self._routers: dict[str, MemoryRouter] = {}
        self._partitioned: set[str] = set()
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def open_router(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None
    ) -> AsyncIterator[MemoryRouter]:
        """See :meth:`Network.open_router`; ``memory:`` addresses.  ``memory:*``
        gets a name of its own."""
        parsed = _in_memory(parse_address(address))
        bound = f"memory:{next(self._numbers)}" if parsed.path == ANY else str(parsed)
        if bound in self._routers:
            raise ServerStartError(f"{bound} is in use; close that router or take another name")
        router = self._routers[bound] = MemoryRouter(bound, limits)
        with unwrap_single():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(router._report_events, on_event or _ignore)
                try:
                    yield router
                finally:
                    del self._routers[bound]
                    router._close()
                    nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def open_dealer(
        self,
        address: str,
        *,
        identity: bytes | None,
        limits: WireLimits,
        on_event: OnEvent | None = None,
    ) -> AsyncIterator[MemoryDealer]:
        """See :meth:`Network.open_dealer`; ``memory:`` addresses."""
        parsed = _in_memory(parse_peer_address(address))
        dealer = MemoryDealer(str(parsed), limits, check_identity(identity))
        with unwrap_single():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(dealer._stay_connected, self, on_event or _ignore)
                try:
                    yield dealer
                finally:
                    dealer._close()
                    nursery.cancel_scope.cancel()

    # -- faults

    def cut(self, identity: bytes | None = None) -> int:
        """Break connections: all, or those of one identity.  How many that were.

        What is under way is lost in both directions.  Both sides get
        DISCONNECTED; the dealers connect again after ``reconnect_min_s``.
        """
        cut = 0
        for connection in list(self._connections()):
            if identity is None or identity == connection.route:
                connection.end(cut=True)
                cut += 1
        return cut

    def partition(self, address: str) -> None:
        """Make every connection to an address half open, in both directions.

        Nobody is told: sends succeed and are lost, and so is what is under way
        and has not arrived.  New connections are neither made nor refused.
        """
        self._partitioned.add(address)
        for connection in self._connections():
            if connection.router.address == address:
                for pipe in (connection.to_router, connection.to_dealer):
                    pipe.lose(after=trio.current_time())

    def heal(self, address: str) -> None:
        """End a partition.  Its connections go on; what was lost stays lost."""
        self._partitioned.discard(address)

    # -- for the sockets

    def _connections(self) -> Iterator[_Connection]:
        for router in self._routers.values():
            yield from router._peers.values()

    def _is_partitioned(self, address: str) -> bool:
        return address in self._partitioned

    def _connect(self, dealer: MemoryDealer) -> _Connection | None:
        """A new connection, or None if nobody is there.  It takes the identity
        over from an older one."""
        router = self._routers.get(dealer.address)
        if router is None:
            return None
        # like libzmq: five bytes, the first of them zero
        route = dealer.identity or b"\0" + next(self._numbers).to_bytes(4, "big")
        older = router._peers.get(route)
        if older is not None:
            older.end(cut=True)
        return _Connection(self, dealer, router, route)

    def _delivers(self, direction: Direction, connection: _Connection, frames: Parcel) -> bool:
        if self._is_partitioned(connection.router.address):
            return False
        return self.filter is None or self.filter(direction, connection.route, frames)

    def _latency_of(self, route: bytes) -> float:
        return self.route_latency_s.get(route, self.latency_s)


def _as_received(frame: Frame) -> Frame:
    """A frame as the real sockets would hand it over."""
    size = frame.nbytes if isinstance(frame, memoryview) else len(frame)
    if size < COPY_THRESHOLD_BYTES:
        return frame if isinstance(frame, bytes) else bytes(frame)
    return memoryview(frame).toreadonly()


def _in_memory(address: Address) -> Address:
    if address.scheme != "memory":
        raise ConfigError(f"{address}: a MemoryNetwork has memory:name addresses only")
    return address


def _ignore(event: ConnectionEvent) -> None:
    """The callback of those who gave none."""
