"""Router and dealer that speak ZMTP.

Theory of operation
-------------------
A router listens.  Each connection gets a route of its own, which is never used again:
nobody can take over another peer's route, and an identity that a peer states means
nothing.  When the system has no descriptor left, or the bound on connections is reached,
one connection is closed to make room: the oldest *stranger*, which has never sent a
whole message, or else the connection that was silent for longest.  Honest clients speak
at once, and are never silent for long (``ClientLimits.idle_ping_s``).

If no connection may be closed, the router accepts nobody for a pause, because the
listener would be ready all the time.  A connection that was a stranger during a whole
pause, while some task received, has had its chance.  So a flood of connections that send
nothing takes all places again and again, but no connection of it stays for long, and
others get their turn.

A dealer has one connection at a time.  A task of its own makes it, and makes it again
after each loss with a growing pause.  Messages in the outbox go to the next connection.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
import select
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias, final

import trio

from ...core.errors import ConfigError
from ...core.limits import WireLimits
from ..address import Address, parse_peer_address, parse_transport
from ..binding import Listener, connect, listen, origin_of, peer_name, prepare
from ..connection import ConnectionOutbox
from ..interface import Message, OnEvent
from ..keypairs import ClientCurve, KeyPair
from ..pump import ReconnectingDealer, RouterPump, open_socket
from .curve import SEALED_FRAME_BYTES, Admit, CurveClient, CurveServer, check_installed
from .engine import Mechanism
from .hub import EPOLLIN, TURN_BYTES, Connection, ConnectionState, Hub

ACCEPTS_MOST: Final = 64
"""Most connections that are accepted at once."""

ACCEPT_PAUSE_S: Final = 0.25
"""Time for which no connection is accepted if none may be closed, in seconds.  So it is also the
least time that a new connection has to say something: a round trip, and more on busy machines."""

SILENT_S: Final = 10.0
"""Silence in seconds after which a connection may be closed to make room for another."""

DESCRIPTORS_SHARE: Final = 0.75
"""The part of the process's descriptors for connections; the rest is for its workers
and files."""

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


OnPeer: TypeAlias = Callable[[bytes, "str | None"], None]
"""Called with the route of a connection that was opened and the origin of its peer, and
with the route and None when it is lost.  The callback may only take note: the socket is in the
middle of a change."""


@final
class ZmtpRouter(Hub, RouterPump):
    """A bound ROUTER.  Opened by :meth:`ZmtpNetwork.open_router`."""

    _socket_type = b"ROUTER"

    def __init__(
        self, listener: Listener, limits: WireLimits,
        on_peer: OnPeer | None = None, mechanism: Callable[[], Mechanism] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(listener.address, limits, mechanism)
        self._on_peer = on_peer
        self._bound = listener
        self._listener = listener.sock
        self._routes: dict[bytes, Connection] = {}
        self._pauses = 0
        """Number of pauses of accepting in which messages of strangers could arrive."""
        self._silent: list[Connection] = []
        """Connections that had been silent for long when they were last looked at, the longest
        silent one last."""
        self._looked_s = -1.0
        self._most = _most_connections(limits)
        self._service.register(self._listener.fileno(), EPOLLIN)
        self._door = select.poll()
        """Tells whether a connection waits at the listener."""
        self._door.register(self._listener, select.POLLIN)

    def _send_to(self, route: bytes, messages: Sequence[Message]) -> bool:
        connection = self._routes.get(route)
        if connection is None:
            self._undelivered += len(messages)
            return False
        return self._send_on(connection, messages)

    def peer_key(self, route: bytes) -> bytes:
        """The public key of the peer with this route, which it has proven; else empty."""
        connection = self._routes.get(route)
        return b"" if connection is None else connection.engine.peer_key

    def close_peer(self, route: bytes, why: str) -> None:
        """Close a peer's connection after what was sent to it, and log why."""
        connection = self._routes.get(route)
        if connection is not None:
            self._complain(connection, why)
            self._write(connection)
            if connection.state is ConnectionState.OPEN:
                self._traffic.unregister(connection)
                self._part(connection)

    def close(self) -> None:
        """See the base.  The address is free at once."""
        self._bound.remove_file()
        self._listener.close()
        super().close()
        self._undelivered += sum(outbox.clear() for outbox in self._outboxes())

    def forget(self) -> None:
        """See the base.  A child that listened would block the address for a new server."""
        self._listener.close()
        super().forget()

    def _other_event(self, fd: int) -> None:
        """Accept connections."""
        if fd != self._listener.fileno():
            return  # an event of a connection that was closed in this turn
        for _ in range(ACCEPTS_MOST):
            if self._turn_bytes >= TURN_BYTES or not self._door.poll(0):
                return
            if len(self._connections) >= self._most and not self._close_one():
                self._pause_accepting()
                return
            try:
                sock, name = self._listener.accept()
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    continue  # the connection has gone again
                if not self._close_one():
                    self._pause_accepting()
                    return
                continue
            prepare(sock)
            if len(self._shaking) >= self._limits.handshakes:
                oldest = next(iter(self._shaking.values()))
                self._complain(oldest, "too many handshakes at once, and it was the oldest")
                self._discard(oldest)
            connection = self._adopt(sock, peer_name(name), self._new_outbox())
            self._strangers[connection] = self._pauses

    def _close_one(self) -> bool:
        """Close a connection to make room; returns False if none may be closed."""
        stranger = next(iter(self._strangers), None)
        if stranger is not None and self._strangers[stranger] < self._pauses:
            if stranger.state is ConnectionState.DRAINING:
                self._discard(stranger)  # the reason was logged before
            else:
                self._punish(stranger, "it has said nothing, and others need its place")
            return True
        silent = self._longest_silent()
        if silent is None:
            return False
        since_s = self._pumped_s - silent.received_at
        self._punish(silent, f"silent for {since_s:.0f} s, and others need its place")
        return True

    def _longest_silent(self) -> Connection | None:
        """The connection that was silent for longest, and for :data:`SILENT_S`.

        All connections are looked at once between two sweeps: until the next one no other can
        have been silent for so long.
        """
        if self._looked_s != self._pumped_s:
            self._looked_s = self._pumped_s
            latest_s = self._pumped_s - SILENT_S
            silent = [each for each in self._routes.values() if each.received_at <= latest_s]
            self._silent = sorted(silent, key=lambda each: each.received_at)[::-1]
        while self._silent:
            connection = self._silent.pop()
            has_gone = self._routes.get(connection.route) is not connection
            if not has_gone and connection.received_at <= self._pumped_s - SILENT_S:
                return connection
        return None

    def _pause_accepting(self) -> None:
        self._service.unregister(self._listener.fileno())
        self._nursery.start_soon(self._accept_later)

    async def _accept_later(self) -> None:
        turns = self._turns
        await trio.sleep(ACCEPT_PAUSE_S)
        if self._traffic.sleep.is_on or self._turns != turns:
            self._pauses += 1
        if not self._closed:
            self._service.register(self._listener.fileno(), EPOLLIN)

    def _opened(self, connection: Connection) -> None:
        self._routes[connection.route] = connection
        if self._on_peer is not None:
            self._on_peer(connection.route, origin_of(connection.sock, connection.peer))

    def _lost(self, connection: Connection) -> None:
        if self._routes.pop(connection.route, None) is not None and self._on_peer is not None:
            self._on_peer(connection.route, None)
        self._undelivered += connection.outbox.clear()

    def _outboxes(self) -> Collection[ConnectionOutbox]:
        return [connection.outbox for connection in self._routes.values()]


@final
class ZmtpDealer(Hub, ReconnectingDealer):
    """A connecting DEALER.  Opened by :meth:`ZmtpNetwork.open_dealer`."""

    _socket_type = b"DEALER"
    _jitter = (0.5, 1.0)

    def __init__(
        self, address: Address, limits: WireLimits,
        mechanism: Callable[[], Mechanism] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(str(address), limits, mechanism)
        self._peer = address
        self._outbox = self._new_outbox()
        self._current: Connection | None = None
        """The open connection."""
        self._attempt: Connection | None = None
        """The newest connection, open or not, until it has ended."""
        self._ended = trio.Event()

    def reconnect(self) -> None:
        """See :meth:`DealerSocket.reconnect`."""
        attempt = self._attempt
        if attempt is not None and not self._closed:
            self._hang_up(attempt)
            self._discard(attempt)

    def _send_to(self, route: bytes, messages: Sequence[Message]) -> bool:
        if self._current is not None:
            return self._send_on(self._current, messages)
        accepted = [self._outbox.append(frames) for frames in messages]
        self._undelivered += accepted.count(False)
        return all(accepted)

    async def _connect(self) -> None:
        sock = await connect(self._peer)
        self._ended = trio.Event()
        self._attempt = self._adopt(sock, str(self._peer), self._outbox)
        await self._ended.wait()

    def close(self) -> None:
        """See the base."""
        super().close()
        if self._current is None:
            self._undelivered += self._outbox.clear()

    def _opened(self, connection: Connection) -> None:
        self._current = connection

    def _lost(self, connection: Connection) -> None:
        if connection is self._current:
            self._current = None
        if connection is self._attempt:
            self._attempt = None
            self._ended.set()

    def _outboxes(self) -> Collection[ConnectionOutbox]:
        return (self._outbox,)


def _most_connections(limits: WireLimits) -> int:
    """The bound on connections, within the process's limit on descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.connections
    return max(1, min(limits.connections, int(soft * DESCRIPTORS_SHARE)))


# -- the network


@final
@dataclasses.dataclass(frozen=True, slots=True)
class RouterCurve:
    """A router that speaks CURVE."""

    keys: KeyPair
    admit: Admit
    """Is asked for each client's public key: see :data:`~.curve.Admit`."""

    def mechanism(self) -> CurveServer:
        """The mechanism of this side for one handshake."""
        return CurveServer(
            b"ROUTER", secret=self.keys.secret_bytes, admit=self.admit, random=os.urandom
        )


def sealed_wire(wire: WireLimits) -> WireLimits:
    """The limits for sealed connections: bounds on sizes are lowered to what can be sealed in one
    step."""
    check_installed()
    return dataclasses.replace(wire, message_bytes=min(wire.message_bytes, SEALED_FRAME_BYTES))


@final
class ZmtpNetwork:
    """Sockets over TCP and unix sockets.  Opened by :func:`open_zmtp_network`."""

    @asynccontextmanager
    async def open_router(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None,
        on_peer: OnPeer | None = None, curve: RouterCurve | None = None,
    ) -> AsyncIterator[ZmtpRouter]:  # fmt: skip
        """See :meth:`Network.open_router`; ``tcp`` and ``ipc`` addresses.  ``on_peer``
        is told of each connection that is opened or lost.  ``curve``: only clients
        that it admits may connect, and all traffic is sealed."""
        parsed = parse_transport(address)
        mechanism = None if curve is None else curve.mechanism
        router = ZmtpRouter(await listen(parsed), limits, on_peer, mechanism)
        async with open_socket(router, on_event):
            yield router

    def open_dealer(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None,
        curve: ClientCurve | None = None,
    ) -> AbstractAsyncContextManager[ZmtpDealer]:  # fmt: skip
        """See :meth:`Network.open_dealer`; ``tcp`` and ``ipc`` addresses.  ``curve``: the
        keys for a router that speaks CURVE."""
        parsed = parse_transport(address)
        parse_peer_address(address)

        def mechanism() -> CurveClient:
            assert curve is not None
            return CurveClient(
                b"DEALER", secret=curve.keys.secret_bytes, server=curve.server_bytes,
                random=os.urandom,
            )  # fmt: skip

        return open_socket(ZmtpDealer(parsed, limits, curve and mechanism), on_event)


@asynccontextmanager
async def open_zmtp_network() -> AsyncIterator[ZmtpNetwork]:
    """A network over TCP and unix sockets that needs no libzmq.  Raises ConfigError if
    the system has no epoll."""
    if not hasattr(select, "epoll"):
        raise ConfigError('transport "zmtp" needs Linux; use transport="libzmq" here')
    yield ZmtpNetwork()
