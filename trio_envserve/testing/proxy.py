"""A TCP proxy that makes connections fail as networks do.

::

    async with open_fault_proxy(server.address) as proxy:
        async with open_client(proxy.address) as client:
            ...
            proxy.cut_all()

Theory of operation
-------------------
The proxy knows nothing of ZeroMQ: it forwards bytes, and its faults are those
of connections.  The nursery of ``open_fault_proxy`` owns the listener and one
task for each connection, which owns a task for each direction.  Every fault
is a synchronous change of plain state, which is read for each chunk between
reading and forwarding; cutting cancels a connection's scope.  So when a
method returns, no later byte escapes the fault.

The server sends the bytes *to the client*.  The interesting moment of a retry
protocol is between an outcome and its receipt:
:meth:`FaultProxy.cut_before_receipt` reads the forwarded bytes, and cuts when an
outcome comes instead of forwarding it.  The server has sent the outcome; the client
never sees it.  (The proxy cannot withhold everything while it waits for an outcome:
a new connection needs the server's greeting.)

A cut is a reset (RST): the kernel discards the bytes that it still held for either
side.  With ``abrupt=False`` it is an orderly end (FIN), after which a side
still reads the bytes that were forwarded.

Only :meth:`FaultProxy.lag` draws random numbers, from the seed.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import random
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import final

import trio

from ..core.errors import ConfigError
from ..net import parse_address, parse_peer_address, unwrap_single

CHUNK_BYTES = 64 * 1024
"""Most bytes of a chunk; a fault falls between chunks, or inside a chunk if it counts
bytes."""

SEEN_BYTES_MAX = 64 * 1024
"""Earlier bytes that ``is_there`` gets with a chunk, for a message that lies across two chunks."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds


class Direction(enum.Enum):
    """The direction of bytes."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


@dataclasses.dataclass(slots=True)
class ProxyCounters:
    """Counters of a proxy since it was opened."""

    connections: int = 0
    """Connections made by clients."""
    refused: int = 0
    """Number of these that found no server behind the proxy."""
    cut: int = 0
    """Connections cut by the proxy."""
    half_opened: int = 0
    """Connections left half open."""
    to_server_bytes: int = 0
    """Forwarded to the server."""
    to_client_bytes: int = 0
    """Forwarded to clients."""
    withheld_bytes: int = 0
    """Sent by the server, and not forwarded to the client."""


@dataclasses.dataclass(slots=True, eq=False)
class _Connection:
    """One client, and the proxy's own connection to the server for it."""

    number: int
    client: trio.SocketStream
    server: trio.SocketStream
    scope: trio.CancelScope
    seen: bytes = b""
    """The last bytes sent to the client since a trap was set."""
    left_bytes: dict[Direction, int] = dataclasses.field(default_factory=dict)
    """Bytes that may still pass before the connection is cut."""
    silent: bool = False
    """Half open: the server's side is gone, and the client is not told."""
    abrupt: bool = False
    """Whether the connection ends with a reset."""


@dataclasses.dataclass(slots=True, eq=False)
class _Trap:
    """A caller waits for certain bytes from the server."""

    is_there: Callable[[bytes], bool]
    done: trio.Event = dataclasses.field(default_factory=trio.Event)
    data: bytes = b""


@final
class FaultProxy:
    """A running proxy.  Made by :func:`open_fault_proxy`.

    All methods that are not coroutines act at once and never block.
    """

    def __init__(self, host: str, port: int, seed: int) -> None:
        self.counters = ProxyCounters()
        """Always up to date."""
        self.address = ""
        """The address that clients connect to."""
        self._target = (host, port)
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self._open: dict[int, _Connection] = {}
        self._gates = {direction: trio.Event() for direction in Direction}
        self.resume()
        self._trap: _Trap | None = None
        self._bytes_per_s: float | None = None
        self._lag_s: tuple[float, float] | None = None
        self._next_budget: dict[Direction, int] = {}
        self._changed = trio.lowlevel.ParkingLot()

    # -- what is there ---------------------------------------------------------

    @property
    def open_connections(self) -> int:
        """Number of connections that pass bytes now (half-open ones do not)."""
        return sum(not c.silent for c in self._open.values())

    async def wait_connections(self, count: int) -> None:
        """Sleep until at least ``count`` connections are open."""
        while self.open_connections < count:
            await self._changed.park()

    # -- faults ----------------------------------------------------------------

    def cut_all(self, *, abrupt: bool = True) -> int:
        """Cut every connection; returns how many.  New ones are accepted."""
        connections = list(self._open.values())
        for connection in connections:
            self._cut(connection, abrupt=abrupt)
        return len(connections)

    async def cut_before_receipt(self, is_there: Callable[[bytes], bool]) -> bytes:
        """Cut all connections between an answer of the server and its receipt.

        Sleeps until the server sends bytes on any connection for which
        ``is_there(data)`` is true.  Then that chunk is not forwarded, and all connections
        are cut.  ``data`` is the chunk, after the last bytes that this connection was
        sent since the call; it is returned.  A client never gets a message of which a
        part was not forwarded, so let ``is_there`` look for bytes inside the message.
        If the call is cancelled, nothing is cut.  Raises RuntimeError while another call
        waits.
        """
        if self._trap is not None:
            raise RuntimeError("another cut_before_receipt() is waiting")
        for connection in self._open.values():
            connection.seen = b""
        trap = self._trap = _Trap(is_there)
        try:
            await trap.done.wait()
            return trap.data
        finally:
            if self._trap is trap:
                self._trap = None

    def stall(self, *directions: Direction) -> None:
        """Forward nothing and read nothing, in these directions (default: both), until
        :meth:`resume`.  The connections stay.  New connections are accepted and stall
        too."""
        for direction in directions or Direction:
            if self._gates[direction].is_set():
                self._gates[direction] = trio.Event()

    def resume(self) -> None:
        """End all stalls: everything goes on where it stopped."""
        for gate in self._gates.values():
            gate.set()

    def half_open(self) -> int:
        """End the server's side of every connection and do not tell the client.  The
        client's connection stands; what it sends disappears, and nothing comes.
        Returns how many connections that were.  New connections work."""
        connections = [c for c in self._open.values() if not c.silent]
        for connection in connections:
            connection.silent = True
            _close(connection.server, abrupt=True)
        self.counters.half_opened += len(connections)
        return len(connections)

    def throttle(self, bytes_per_s: float | None) -> None:
        """Forward at most so many bytes a second in each direction of each
        connection; None ends the limit.  Raises ValueError if it is not positive."""
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ValueError(f"bytes_per_s must be positive or None, not {bytes_per_s!r}")
        self._bytes_per_s = bytes_per_s

    def lag(self, min_s: float, max_s: float) -> None:
        """Delay each chunk by a random time between these, drawn from the proxy's
        seed; ``lag(0, 0)`` ends the delay.  Raises ValueError if they are not a range."""
        if not 0 <= min_s <= max_s:
            raise ValueError(f"0 <= min_s <= max_s is needed, not {min_s!r} and {max_s!r}")
        self._lag_s = (min_s, max_s) if max_s else None

    def drop_after(self, count_bytes: int, direction: Direction = Direction.TO_CLIENT) -> None:
        """Cut each open connection, or the next one if there is none, after so many
        more bytes in this direction, even in the middle of a message.  Raises ValueError
        if the number is negative."""
        if count_bytes < 0:
            raise ValueError(f"count_bytes must not be negative, but is {count_bytes!r}")
        for connection in self._open.values():
            connection.left_bytes[direction] = count_bytes
        if not self._open:
            self._next_budget[direction] = count_bytes

    # -- one connection --------------------------------------------------------

    async def _serve(self, client: trio.SocketStream) -> None:
        """Serve one client's connection until it ends."""
        self.counters.connections += 1
        try:
            server = await trio.open_tcp_stream(*self._target)
        except OSError:
            self.counters.refused += 1
            _close(client, abrupt=True)
            return
        budget, self._next_budget = self._next_budget, {}
        with trio.CancelScope() as scope:
            connection = _Connection(next(self._numbers), client, server, scope, left_bytes=budget)
            self._open[connection.number] = connection
            self._changed.unpark_all()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, connection, Direction.TO_SERVER)
                    nursery.start_soon(self._pump, connection, Direction.TO_CLIENT)
            finally:
                self._open.pop(connection.number, None)
                _close(client, abrupt=connection.abrupt)
                _close(server, abrupt=connection.abrupt)
                self._changed.unpark_all()

    async def _pump(self, connection: _Connection, direction: Direction) -> None:
        """Forward one direction until an end closes; then end the connection."""
        source, sink = connection.client, connection.server
        if direction is Direction.TO_CLIENT:
            source, sink = sink, source
        while True:
            await self._gates[direction].wait()
            try:
                data = await source.receive_some(CHUNK_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            await self._wait(len(data), direction)
            if connection.silent:
                if direction is Direction.TO_CLIENT:
                    return  # the other direction goes on reading, and forwards nothing
                if not data:
                    break
                continue
            if not data:
                break
            if direction is Direction.TO_CLIENT and self._trapped(connection, bytes(data)):
                continue
            data, over = self._within_budget(connection, direction, bytes(data))
            # Counted before they are sent: a reader of the bytes finds them counted.
            self._count(direction, len(data))
            try:
                if data:
                    await sink.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                if connection.silent:
                    continue
                break
            if over:
                self._cut(connection, abrupt=True)
                await trio.lowlevel.checkpoint()
        connection.scope.cancel()

    async def _wait(self, size_bytes: int, direction: Direction) -> None:
        """Wait out everything that delays a chunk."""
        if self._lag_s is not None:
            await trio.sleep(self._rng.uniform(*self._lag_s))
        if self._bytes_per_s is not None:
            await trio.sleep(size_bytes / self._bytes_per_s)
        await self._gates[direction].wait()

    def _trapped(self, connection: _Connection, data: bytes) -> bool:
        """Whether the trap waits for these bytes; then all connections were cut."""
        trap = self._trap
        if trap is None:
            return False
        connection.seen += data
        if trap.is_there(connection.seen):
            trap.data = connection.seen
            trap.done.set()
            self._trap = None
            self.counters.withheld_bytes += len(data)
            self.cut_all()
            return True
        connection.seen = connection.seen[-SEEN_BYTES_MAX:]
        return False

    @staticmethod
    def _within_budget(
        connection: _Connection, direction: Direction, data: bytes
    ) -> tuple[bytes, bool]:
        """The bytes that may pass before the cut, and whether the cut comes now."""
        left = connection.left_bytes.get(direction)
        if left is None:
            return data, False
        connection.left_bytes[direction] = left - len(data[:left])
        return data[:left], len(data) >= left

    def _count(self, direction: Direction, size_bytes: int) -> None:
        if direction is Direction.TO_SERVER:
            self.counters.to_server_bytes += size_bytes
        else:
            self.counters.to_client_bytes += size_bytes

    def _cut(self, connection: _Connection, *, abrupt: bool) -> None:
        """Synchronous: the sockets are closed when this returns."""
        if self._open.pop(connection.number, None) is None:
            return
        connection.abrupt = abrupt
        self.counters.cut += 1
        connection.scope.cancel()
        _close(connection.client, abrupt=abrupt)
        _close(connection.server, abrupt=abrupt)


def _close(stream: trio.SocketStream, *, abrupt: bool) -> None:
    """Close at once; tasks that wait for the stream get ClosedResourceError."""
    if stream.socket.fileno() == -1:
        return
    if abrupt:
        try:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except OSError:
            pass  # the other side has ended it already (macOS says so)
    stream.socket.close()


@asynccontextmanager
async def open_fault_proxy(
    target_address: str, *, bind: str = "tcp://127.0.0.1:0", seed: int = 0
) -> AsyncGenerator[FaultProxy, None]:
    """Run a proxy between clients and the server at ``target_address`` until the
    block ends; then all connections are cut.

    Both addresses are ``tcp://host:port``; port 0 in ``bind`` picks a free one.
    The server need not be there; until it is, connections are reset.  Raises
    ConfigError for wrong addresses, OSError if ``bind`` is not available.
    """
    target = parse_peer_address(target_address)
    own = parse_address(bind)
    if target.scheme != "tcp" or own.scheme != "tcp":
        raise ConfigError("the proxy is for tcp://host:port addresses only")
    proxy = FaultProxy(target.host, target.port, seed)
    listeners = await trio.open_tcp_listeners(own.port, host=own.host)
    port = listeners[0].socket.getsockname()[1]
    proxy.address = str(dataclasses.replace(own, port=port))
    with unwrap_single():
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, proxy._serve, listeners)
            try:
                yield proxy
            finally:
                nursery.cancel_scope.cancel()
