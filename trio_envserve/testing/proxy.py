"""A TCP proxy that does to connections what networks do to them.

::

    async with open_fault_proxy(server.address) as proxy:
        async with open_client(proxy.address) as client:
            ...
            proxy.cut_all()

Theory of operation
-------------------
The proxy knows nothing of ZeroMQ: it forwards bytes, and its faults are those
of connections.  The nursery of ``open_fault_proxy`` owns the listener and one
task for each connection; that one owns a task for each direction.  Every fault
is a synchronous change of plain state, looked at for each chunk between
reading and forwarding; cutting cancels a connection's scope.  So when a
method returns, no later byte escapes the fault.

Bytes *to the client* are what the server sends.  The interesting moment of a
retry protocol is between an outcome and its receipt:
:meth:`FaultProxy.cut_before_receipt` reads along, and when an outcome comes by
it cuts instead of forwarding it.  The server has sent the outcome; the client
never sees it.  (Withholding everything and waiting for an outcome would not do:
a connection that is just being made gets no further without the server's
greeting.)

A cut is a reset (RST): what the kernel still held for either side is thrown
away.  With ``abrupt=False`` it is an orderly end (FIN), after which a side
still reads what had been forwarded.

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
"""Most that is read at once; a fault falls between chunks, or inside one where
it counts bytes."""

SEEN_BYTES_MAX = 64 * 1024
"""How much of what has passed is shown together with a chunk, for what lies
across two of them."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds


class Direction(enum.Enum):
    """Which way bytes go."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


@dataclasses.dataclass(slots=True)
class ProxyCounters:
    """What a proxy has seen and done since it was opened."""

    connections: int = 0
    """Connections made by clients."""
    refused: int = 0
    """Of these, how many found no server behind the proxy."""
    cut: int = 0
    """Connections cut by the proxy."""
    half_opened: int = 0
    """Connections left half open."""
    to_server_bytes: int = 0
    """Forwarded to the server."""
    to_client_bytes: int = 0
    """Forwarded to clients."""
    withheld_bytes: int = 0
    """Sent by the server, and kept from the client."""


@dataclasses.dataclass(slots=True, eq=False)
class _Connection:
    """One client, and the proxy's own connection to the server for it."""

    number: int
    client: trio.SocketStream
    server: trio.SocketStream
    scope: trio.CancelScope
    seen: bytes = b""
    """The end of what was sent to the client since somebody waits for something."""
    left_bytes: dict[Direction, int] = dataclasses.field(default_factory=dict)
    """How much may still pass before the connection is cut."""
    silent: bool = False
    """Half open: the server's side is gone, and the client is not told."""
    abrupt: bool = False
    """Whether it ends with a reset."""


@dataclasses.dataclass(slots=True, eq=False)
class _Trap:
    """Somebody waits for something that the server sends."""

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
        """Live: read it at any time."""
        self.address = ""
        """Where clients connect to."""
        self._target = (host, port)
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self._open: dict[int, _Connection] = {}
        self._gate = trio.Event()
        self._gate.set()
        self._trap: _Trap | None = None
        self._bytes_per_s: float | None = None
        self._lag_s: tuple[float, float] | None = None
        self._next_budget: dict[Direction, int] = {}
        self._changed = trio.lowlevel.ParkingLot()

    # -- what is there ---------------------------------------------------------

    @property
    def open_connections(self) -> int:
        """How many connections pass bytes right now (half-open ones do not)."""
        return sum(not c.silent for c in self._open.values())

    async def wait_connections(self, count: int) -> None:
        """Sleep until at least ``count`` connections are open."""
        while self.open_connections < count:
            await self._changed.park()

    # -- faults ----------------------------------------------------------------

    def cut_all(self, *, abrupt: bool = True) -> int:
        """Cut every connection; says how many that were.  New ones are taken."""
        connections = list(self._open.values())
        for connection in connections:
            self._cut(connection, abrupt=abrupt)
        return len(connections)

    async def cut_before_receipt(self, is_there: Callable[[bytes], bool]) -> bytes:
        """Cut all connections between an answer of the server and its receipt.

        Sleeps until the server sends, on any connection, what makes
        ``is_there(data)`` true; that chunk is not forwarded, and all connections
        are cut.  ``data`` is the chunk after the end of what this connection was
        sent since the call; it is returned.  A message of which a part was not
        forwarded is one that the client never gets, so let ``is_there`` look
        for bytes inside the message.  Cancelled: nothing is cut.  RuntimeError
        while another call waits.
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

    def stall(self) -> None:
        """Forward nothing and read nothing, in both directions, until
        :meth:`resume`: the network is there and takes for ever.  New
        connections are accepted and stall too."""
        if self._gate.is_set():
            self._gate = trio.Event()

    def resume(self) -> None:
        """End a stall: everything goes on where it was."""
        self._gate.set()

    def half_open(self) -> int:
        """End the server's side of every connection and do not tell the client:
        for it the connection stands, what it sends disappears, and nothing
        comes.  Says how many that were.  New connections are ordinary ones."""
        connections = [c for c in self._open.values() if not c.silent]
        for connection in connections:
            connection.silent = True
            _close(connection.server, abrupt=True)
        self.counters.half_opened += len(connections)
        return len(connections)

    def throttle(self, bytes_per_s: float | None) -> None:
        """Forward at most so many bytes a second in each direction of each
        connection; None ends it.  ValueError if it is not positive."""
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ValueError(f"bytes_per_s must be positive or None, not {bytes_per_s!r}")
        self._bytes_per_s = bytes_per_s

    def lag(self, min_s: float, max_s: float) -> None:
        """Hold each chunk back for a random time between these, drawn from the
        proxy's seed; ``lag(0, 0)`` ends it.  ValueError if they are no range."""
        if not 0 <= min_s <= max_s:
            raise ValueError(f"0 <= min_s <= max_s is needed, not {min_s!r} and {max_s!r}")
        self._lag_s = (min_s, max_s) if max_s else None

    def drop_after(self, count_bytes: int, direction: Direction = Direction.TO_CLIENT) -> None:
        """Cut each open connection, or if there is none the next one, once so
        many more bytes have gone in this direction: also in the middle of a
        message.  ValueError if the number is negative."""
        if count_bytes < 0:
            raise ValueError(f"count_bytes must not be negative, but is {count_bytes!r}")
        for connection in self._open.values():
            connection.left_bytes[direction] = count_bytes
        if not self._open:
            self._next_budget[direction] = count_bytes

    # -- one connection --------------------------------------------------------

    async def _serve(self, client: trio.SocketStream) -> None:
        """From the client's connection to its end."""
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
        """One direction, until an end closes; then the connection ends."""
        source, sink = connection.client, connection.server
        if direction is Direction.TO_CLIENT:
            source, sink = sink, source
        while True:
            await self._gate.wait()
            try:
                data = await source.receive_some(CHUNK_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            await self._wait(len(data))
            if connection.silent:
                if direction is Direction.TO_CLIENT:
                    return  # the client's direction goes on, and swallows
                if not data:
                    break
                continue
            if not data:
                break
            if direction is Direction.TO_CLIENT and self._trapped(connection, bytes(data)):
                continue
            data, over = self._within_budget(connection, direction, bytes(data))
            # Counted before, so that whoever has the bytes finds them counted.
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

    async def _wait(self, size_bytes: int) -> None:
        """All that delays a chunk."""
        if self._lag_s is not None:
            await trio.sleep(self._rng.uniform(*self._lag_s))
        if self._bytes_per_s is not None:
            await trio.sleep(size_bytes / self._bytes_per_s)
        await self._gate.wait()

    def _trapped(self, connection: _Connection, data: bytes) -> bool:
        """Whether this is what somebody waits for; then it has been cut."""
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
        """What may pass before the cut, and whether that comes now."""
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
    """Close at once; tasks that wait for it are woken with ClosedResourceError."""
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
    """Stand between clients and the server at ``target_address`` until the
    block ends; then all connections are cut.

    Both addresses are ``tcp://host:port``; port 0 in ``bind`` picks a free one.
    The server need not be there: until it is, connections are refused as it
    would refuse them.  Raises ConfigError for wrong addresses, OSError if
    ``bind`` cannot be had.
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
