"""The network of real sockets: one libzmq context, its sockets and their options.

Theory of operation
-------------------
Each open socket owns a nursery with two tasks: one reads its monitor, the other tries
full outboxes again.
Closing is staged: stop receiving and sending, unbind and wait until the address is
free, end the monitor, close.  It never blocks the loop: libzmq sends its last messages
for at most :data:`LINGER_S` on its own thread, and the context is terminated in a
thread, with a limit.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import final

import trio
import zmq

from ..core.errors import ConfigError
from ..core.limits import BATCH_BYTES, WireLimits
from .address import Address, parse_peer_address, parse_transport
from .binding import bind, ipc_file, remove_ipc_file
from .groups import unwrap_single
from .interface import COPY_THRESHOLD_BYTES, ConnectionEvent, OnEvent
from .keypairs import ClientCurve
from .monitor import Monitor, ZmqContext, ZmqSocket
from .sockets import ZmqDealer, ZmqRouter

logger = logging.getLogger("trio_envserve.net")

LINGER_S = 0.25
"""How long libzmq may go on sending after a socket was closed.  Zero would lose a
client's last messages (its cancels), and its server would run the work for a whole
lease.  Only the end of the network waits for it."""

PEER_QUEUE_LIBZMQ_MESSAGES = 100
"""Messages that libzmq itself may hold for one peer, in each direction.  This is
small because libzmq counts no bytes; the outbox behind it does."""

CONNECT_TIMEOUT_S = 5.0
"""An unanswered attempt to connect is repeated after this time (the system's own
limit is minutes)."""

KEEPALIVE_IDLE_S = 10
KEEPALIVE_PAUSE_S = 5
KEEPALIVE_PROBES = 4
"""The system notices after half a minute that a peer's machine is gone."""

LISTENER_CLOSE_S = 1.0
TERMINATE_S = 5.0
"""Limits on waiting for libzmq's threads at the end.  Normally a millisecond."""


@final
class ZmqNetwork:
    """Sockets of one libzmq context.  Opened by :func:`open_zmq_network`."""

    def __init__(self, context: ZmqContext) -> None:
        self._context = context
        self._numbers = itertools.count()

    @asynccontextmanager
    async def open_router(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None
    ) -> AsyncIterator[ZmqRouter]:
        """See :meth:`Network.open_router`; ``tcp`` and ``ipc`` addresses."""
        parsed = parse_transport(address)
        with self._socket(zmq.ROUTER, parsed, limits) as (raw, monitor):
            raw.set(zmq.ROUTER_MANDATORY, 1)
            raw.set(zmq.BACKLOG, 1024)
            bound = bind(raw, parsed)
            file = ipc_file(parsed)
            router = ZmqRouter(raw, bound, limits)
            with unwrap_single():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(monitor.run, on_event or _ignore)
                    nursery.start_soon(router.run_retries)
                    try:
                        yield router
                    finally:
                        router.close()
                        remove_ipc_file(parsed, file)
                        raw.unbind(bound)
                        # so that the address is free when the block has ended
                        with trio.move_on_after(LISTENER_CLOSE_S, shield=True):
                            await monitor.wait_ended()
                        nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def open_dealer(
        self,
        address: str,
        *,
        limits: WireLimits,
        on_event: OnEvent | None = None,
        curve: ClientCurve | None = None,
    ) -> AsyncIterator[ZmqDealer]:
        """See :meth:`Network.open_dealer`; ``tcp`` and ``ipc`` addresses.  ``curve``: the
        keys for a router that speaks CURVE."""
        parsed = parse_transport(address)
        parse_peer_address(address)
        with self._socket(zmq.DEALER, parsed, limits) as (raw, monitor):
            raw.set(zmq.IMMEDIATE, 1)
            raw.set(zmq.RECONNECT_IVL, _ms(limits.reconnect_min_s))
            raw.set(zmq.RECONNECT_IVL_MAX, _ms(limits.reconnect_max_s))
            raw.set(zmq.CONNECT_TIMEOUT, _ms(CONNECT_TIMEOUT_S))
            if curve is not None:
                raw.set(zmq.CURVE_SERVERKEY, curve.server.encode())
                raw.set(zmq.CURVE_PUBLICKEY, curve.keys.public.encode())
                raw.set(zmq.CURVE_SECRETKEY, curve.keys.secret.encode())
            try:
                raw.connect(str(parsed))
            except zmq.ZMQError as error:
                raise ConfigError(f"cannot connect to {parsed}: {error}") from error
            dealer = ZmqDealer(raw, str(parsed), limits)

            def report_lost() -> None:
                if dealer.given_up:
                    dealer.given_up = False
                    if on_event is not None:
                        on_event(ConnectionEvent.DISCONNECTED)

            def report(event: ConnectionEvent) -> None:
                report_lost()  # libzmq may be quicker with the next connection
                if event is ConnectionEvent.CONNECTED:
                    dealer.connected()
                if on_event is not None:
                    on_event(event)

            async def report_later() -> None:
                report_lost()

            with unwrap_single():
                async with trio.open_nursery() as nursery:
                    dealer.report_later = partial(nursery.start_soon, report_later)
                    nursery.start_soon(monitor.run, report)
                    nursery.start_soon(dealer.run_retries)
                    try:
                        yield dealer
                    finally:
                        dealer.close()
                        nursery.cancel_scope.cancel()

    @contextmanager
    def _socket(
        self, kind: int, address: Address, limits: WireLimits
    ) -> Iterator[tuple[ZmqSocket, Monitor]]:
        """A socket with the options that both kinds share, and its monitor."""
        raw = self._context.socket(kind)
        try:
            raw.copy_threshold = COPY_THRESHOLD_BYTES
            for option, value in (
                (zmq.LINGER, _ms(LINGER_S)),
                (zmq.SNDHWM, PEER_QUEUE_LIBZMQ_MESSAGES),
                (zmq.RCVHWM, PEER_QUEUE_LIBZMQ_MESSAGES),
                (zmq.MAXMSGSIZE, max(limits.message_bytes, BATCH_BYTES)),
                # Its timer ends the process (stream_engine_base.cpp:310) if it fires
                # while a lost connection waits to be read, that is, when a peer
                # vanishes while this loop is blocked or does not read.
                (zmq.HEARTBEAT_IVL, 0),
                (zmq.TCP_KEEPALIVE, 1),
                (zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S),
                (zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_PAUSE_S),
                (zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES),
                # Not for names: of a name with both kinds of address libzmq would take
                # the IPv6 address, and never try the other.
                (zmq.IPV6, int(address.is_ipv6)),
            ):
                raw.set(option, value)
            name = f"monitor-{next(self._numbers)}"
            monitor = Monitor(self._context, raw, name, listening=kind == zmq.ROUTER)
            try:
                yield raw, monitor
            finally:
                monitor.close()
        finally:
            raw.close()


@asynccontextmanager
async def open_zmq_network() -> AsyncIterator[ZmqNetwork]:
    """A network over TCP and unix sockets, with a libzmq context of its own.

    Its sockets must be closed first, as nested blocks do.
    """
    context: ZmqContext = zmq.Context()
    try:
        yield ZmqNetwork(context)
    finally:
        with trio.move_on_after(TERMINATE_S, shield=True) as scope:
            await trio.to_thread.run_sync(context.term, abandon_on_cancel=True)
        if scope.cancelled_caught:
            logger.warning("libzmq did not end within %s s; left behind", TERMINATE_S)


def _ms(seconds: float) -> int:
    """Milliseconds for libzmq; zero would mean "never"."""
    return max(1, round(seconds * 1000))


def _ignore(event: ConnectionEvent) -> None:
    """The default callback."""
