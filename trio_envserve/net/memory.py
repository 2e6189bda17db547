"""A network in memory, with the semantics of the real one.

Theory of operation
-------------------
It is for tests and embedding.  Everything follows from the trio clock and the order of
calls.  There are no threads and no descriptors, so it runs under
``MockClock(autojump_threshold=0)`` and can be repeated.  The network knows who is at
which address and which faults are on; :mod:`.memory_sockets` does the rest.

Faults (see :class:`MemoryNetwork`): ``cut``, ``partition``/``heal``, ``filter``,
``latency_s``.  They are harsher than the faults of a real network: a cut loses
everything on its way, even what had arrived and was not read, and a partition loses
messages that TCP would transmit again.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import final

import trio

from ..core.errors import ConfigError, ServerStartError
from ..core.limits import WireLimits
from .address import ANY, Address, parse_address, parse_peer_address
from .groups import unwrap_single
from .interface import ConnectionEvent, OnEvent
from .memory_sockets import Connection, Direction, Filter, MemoryDealer, MemoryRouter
from .outbox import Parcel


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
        """How long a message takes, on the trio clock."""
        self.route_latency_s: dict[bytes, float] = {}
        """The same for single connections, by route."""
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
                nursery.start_soon(router.report_events, on_event or _ignore)
                try:
                    yield router
                finally:
                    del self._routers[bound]
                    router.close()
                    nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def open_dealer(
        self,
        address: str,
        *,
        limits: WireLimits,
        on_event: OnEvent | None = None,
    ) -> AsyncIterator[MemoryDealer]:
        """See :meth:`Network.open_dealer`; ``memory:`` addresses."""
        parsed = _in_memory(parse_peer_address(address))
        dealer = MemoryDealer(str(parsed), limits)
        with unwrap_single():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(dealer.stay_connected, self, on_event or _ignore)
                try:
                    yield dealer
                finally:
                    dealer.close()
                    nursery.cancel_scope.cancel()

    # -- faults

    def cut(self, route: bytes | None = None) -> int:
        """Break all connections, or the one of a route; returns how many.

        Messages on their way are lost in both directions.  Both sides get
        DISCONNECTED; the dealers connect again after ``reconnect_min_s``.
        """
        cut = 0
        for connection in list(self._connections()):
            if route is None or route == connection.route:
                connection.end(cut=True)
                cut += 1
        return cut

    def partition(self, address: str) -> None:
        """Make every connection to an address half open, in both directions.

        Nobody is told: sends succeed and are lost, and so are messages on their way.
        New connections are neither made nor refused.
        """
        self._partitioned.add(address)
        for connection in self._connections():
            if connection.router.address == address:
                for pipe in (connection.to_router, connection.to_dealer):
                    pipe.lose(after=trio.current_time())

    def heal(self, address: str) -> None:
        """End a partition.  Its connections go on; lost messages stay lost."""
        self._partitioned.discard(address)

    # -- for the sockets

    def _connections(self) -> Iterator[Connection]:
        for router in self._routers.values():
            yield from router.peers.values()

    def is_partitioned(self, address: str) -> bool:
        """Whether everything to and from this address is lost."""
        return address in self._partitioned

    def connect(self, dealer: MemoryDealer) -> Connection | None:
        """A new connection, or None if nobody is there."""
        router = self._routers.get(dealer.address)
        if router is None:
            return None
        return Connection(self, dealer, router, next(self._numbers).to_bytes(8, "little"))

    def delivers(self, direction: Direction, connection: Connection, frames: Parcel) -> bool:
        """Whether a message that is sent now will arrive."""
        if self.is_partitioned(connection.router.address):
            return False
        return self.filter is None or self.filter(direction, connection.route, frames)

    def latency_of(self, route: bytes) -> float:
        """How long a message of this dealer takes."""
        return self.route_latency_s.get(route, self.latency_s)


def _in_memory(address: Address) -> Address:
    if address.scheme != "memory":
        raise ConfigError(f"{address}: a MemoryNetwork has memory:name addresses only")
    return address


def _ignore(event: ConnectionEvent) -> None:
    """The default callback."""
