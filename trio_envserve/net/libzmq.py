"""The network of libzmq: one context of it, its sockets and their options.

Theory of operation
-------------------
libzmq's descriptor is edge triggered: it says "something happened" once, and *any*
call on the socket (even a send) may consume that signal.  So ``EVENTS`` decides after
the last call before sleeping.  Everything here follows three rules:

1. A turn of the pump reads until libzmq says EAGAIN, or up to its budget.  The pump sleeps
   only if ``EVENTS`` says then that nothing is readable, which also consumes the signal.
2. A send from another task while the pump sleeps asks ``EVENTS`` afterwards, and
   wakes the pump if there is something to read, as if the descriptor were closed.
   This costs nothing when it is not needed.
3. ``EVENTS`` never decides about *writing*: a ROUTER says "writable" while one
   peer is full, and a loop on that would spin.

And a fourth.  libzmq 4.3.5 ends the process if it learns between two frames of a
message that the connection is lost, and it checks this on every hundredth frame that
is read.  EAGAIN restarts that count.  If EAGAIN has not come for a while, ``EVENTS`` is
asked before each message, so that libzmq learns of the loss there.

A send is tried at once, and usually succeeds.  EAGAIN means that this one peer is full
(or, for a dealer, that there is no connection).  Then the message goes to the peer's
own :class:`ConnectionOutbox`, and so does every further message for that peer until the outbox is
empty.  A task of the socket tries the outboxes again every few milliseconds: libzmq reports by
the same signal that a peer takes messages again, so another call may have consumed that report,
and a socket should send even while no task receives from it.

A message of several frames goes out whole: only its first frame can be refused
(:meth:`LibzmqSocket._send_frames` has the one apparent exception).

Closing is staged: stop receiving and sending, unbind and wait until the address is free,
close.  It never blocks the loop: libzmq sends its last messages for at most
:data:`LINGER_S` on its own thread, and the context is terminated in a thread, with a
limit.
"""

from __future__ import annotations

import itertools
import logging
import struct
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias, cast, final

import trio
import zmq

from ..core.errors import ConfigError
from ..core.limits import BATCH_BYTES, WireLimits
from ..core.terms import whole
from .address import Address, parse_peer_address, parse_transport
from .binding import (
    CONNECT_TIMEOUT_S,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_PAUSE_S,
    KEEPALIVE_PROBES,
    Listener,
    listen,
)
from .connection import ConnectionOutbox
from .interface import (
    BATCH_MESSAGES,
    COPY_THRESHOLD_BYTES,
    FRAMES_MAX,
    ConnectionEvent,
    Frame,
    Message,
    OnEvent,
)
from .keypairs import ClientCurve
from .pump import DealerPump, RouterPump, Sleep, SocketPump, open_socket

logger = logging.getLogger("trio_envserve.net")

ZmqSocket: TypeAlias = "zmq.Socket[bytes]"
ZmqContext: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"

LINGER_S = 0.25
"""Time for which libzmq may go on sending after a socket was closed, in seconds.  Zero would lose a
client's last messages (its cancels), and its server would run the work for a whole lease. Only the
end of the network waits for it."""

PEER_QUEUE_LIBZMQ_MESSAGES = 100
"""Messages that libzmq itself may hold for one peer, in each direction.  This is
small because libzmq counts no bytes; the outbox behind it does."""

LISTENER_CLOSE_S = 1.0
TERMINATE_S = 5.0
"""Limits on waiting for libzmq's threads at the end.  Normally a millisecond."""

RETRY_PEERS = 256
"""Full outboxes tried in one turn; the others are tried in the next one."""

RETRY_MIN_S = 0.005
RETRY_MAX_S = 0.04
"""Pause before full outboxes are tried again; it doubles while nothing can be sent."""

_FRAMES_UNASKED = 100 - FRAMES_MAX - 1
"""Number of frames after which the next message may contain the hundredth."""

# Plain ints: pyzmq's enums cost as much as the call.
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""The flags of every frame of a message but its last."""
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


class LibzmqSocket(SocketPump):
    """The common part of router and dealer: they read, sleep and retry."""

    def __init__(
        self, socket: ZmqSocket, monitor: Monitor, address: str, limits: WireLimits
    ) -> None:
        super().__init__(address, limits)
        self._socket = socket
        self._monitor = monitor
        self._pump_sleep = Sleep(int(socket.get(zmq.FD)))
        self._backlog: dict[bytes, ConnectionOutbox] = {}
        """The outboxes of peers with waiting messages; the longest untried first."""
        self._backlogged = trio.Event()
        """Set while there is a backlog."""
        self._frames = 0
        """Frames that were read since the last EAGAIN."""

    def start(self, nursery: trio.Nursery, on_event: OnEvent | None) -> None:
        """See the base."""
        super().start(nursery, on_event)
        nursery.start_soon(self._monitor.run, self._event_sender.send_nowait)
        nursery.start_soon(self._retry)

    async def _retry(self) -> None:
        """Try the outboxes again, for ever: a socket sends without a pump, too."""
        pause_s = RETRY_MIN_S
        while True:
            await self._backlogged.wait()
            await trio.sleep(pause_s)
            moved = self._flush_outboxes()
            pause_s = RETRY_MIN_S if moved else min(2 * pause_s, RETRY_MAX_S)

    def close(self) -> None:
        """See the base."""
        self._undelivered += sum(outbox.clear() for outbox in self._backlog.values())
        self._backlog.clear()
        super().close()

    def _wake(self) -> None:
        self._pump_sleep.end()

    # -- receiving

    def _is_readable(self) -> bool:
        return bool(int(self._socket.get(_EVENTS)) & _POLLIN)

    async def _sleep(self) -> None:
        if self._is_readable():
            await trio.lowlevel.checkpoint()
        else:
            await self._pump_sleep.until_readable()

    def _turn(self) -> list[list[Frame]]:
        frames_max = FRAMES_MAX + self._routed
        batch: list[list[Frame]] = []
        try:
            for _ in range(BATCH_MESSAGES):
                if self._frames >= _FRAMES_UNASKED:
                    self._is_readable()
                message = self._socket.recv_multipart(_NOBLOCK, copy=False)
                self._frames += len(message)
                if len(message) <= frames_max:
                    batch.append([*map(_received, message)])
                else:
                    self._oversized += 1
        except zmq.Again:
            self._frames = 0
        return batch

    # -- sending

    def _send_to(self, route: bytes, messages: Sequence[Message]) -> bool:
        all_sent = True
        for message in messages:
            frames = [*map(whole, message)]
            outbox = self._backlog.get(route)
            if outbox is None:
                sent = self._transmit(route, frames)
                if sent:
                    continue
                if sent is None:
                    outbox = self._backlog[route] = self._new_outbox()
                    self._backlogged.set()
            if outbox is None or not outbox.append(frames):
                self._undelivered += 1
                all_sent = False
        self._wake_if_readable()
        return all_sent

    def _transmit(self, route: bytes, frames: Sequence[Frame]) -> bool | None:
        """Send a message; returns False if there is no such peer, and None if its queue is full
        or there is no connection."""
        try:
            return self._send_frames((route, *frames) if self._routed else frames) or None
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise

    def _send_frames(self, frames: Sequence[Frame]) -> bool:
        """Send the frames of a message; returns False if it was not sent, also not in part.

        If the first frame was taken, a ROUTER takes the others (or drops them with the peer, in
        silence), and a DEALER refuses one only if its connection ends between two frames: libzmq
        then takes back what it has, and needs to see the remaining frames to know where the next
        message begins.
        """
        sent = True
        last = len(frames) - 1
        send = self._socket.send
        for index, frame in enumerate(frames):
            flags = _MORE if index < last else _NOBLOCK
            try:
                send(frame, flags, copy=False)  # below the socket's threshold it is copied
            except zmq.Again:
                if index == 0:
                    return False
                sent = False
        return sent

    def _flush_outboxes(self) -> bool:
        """Send what can be sent now; returns False if nothing could."""
        moved = False
        for route in list(itertools.islice(self._backlog, RETRY_PEERS)):
            outbox = self._backlog.pop(route)
            while outbox:
                frames = cast("tuple[Frame, ...]", outbox.first())  # whole since they were queued
                sent = self._transmit(route, frames)
                if sent is None:
                    self._backlog[route] = outbox  # again, behind the others
                    break
                if sent:
                    outbox.pop()
                    moved = True
                else:
                    self._undelivered += outbox.clear()
        if not self._backlog:
            self._backlogged = trio.Event()
            self._flushed()
        self._wake_if_readable()
        return moved

    def _wake_if_readable(self) -> None:
        """Rule 2: after a call on the socket by another task than the pump's."""
        if self._pump_sleep.is_on and self._is_readable():
            self._wake()

    def _outboxes(self) -> Collection[ConnectionOutbox]:
        return self._backlog.values()


@final
class ZmqRouter(LibzmqSocket, RouterPump):
    """A bound ROUTER.  Opened by :meth:`ZmqNetwork.open_router`."""

    def __init__(
        self, socket: ZmqSocket, monitor: Monitor, listener: Listener, limits: WireLimits
    ) -> None:
        super().__init__(socket, monitor, listener.address, limits)
        self._listener = listener

    def close(self) -> None:
        """See the base."""
        super().close()
        self._listener.remove_file()
        self._socket.unbind(self._address)

    async def end(self) -> None:
        """See the base: the address is free then."""
        with trio.move_on_after(LISTENER_CLOSE_S, shield=True):
            await self._monitor.run(lambda event: None)


@final
class ZmqDealer(LibzmqSocket, DealerPump):
    """A connecting DEALER.  Opened by :meth:`ZmqNetwork.open_dealer`.

    It has IMMEDIATE set: libzmq takes messages only while there is a
    connection, and what it still holds is lost with it.  Otherwise it would
    collect messages without a bound on bytes while there is none, out of reach
    of the counters; so they wait in the outbox, in order, and the connection
    that comes next gets them.
    """

    def reconnect(self) -> None:
        """See :meth:`DealerSocket.reconnect`."""
        if self._closed:
            return
        self._socket.disconnect(self._address)
        self._socket.connect(self._address)
        self._event_sender.send_nowait(ConnectionEvent.DISCONNECTED)  # libzmq does not say it
        self._wake_if_readable()


# -- events ---------------------------------------------------------------------

_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | _HANDSHAKE_FAILED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
)
_EVENTS_QUEUED_MAX = 100_000
"""A full queue would block libzmq's I/O thread, and with it every socket; this queue
holds hours of reconnecting while the loop is blocked."""
_EVENTS_AT_ONCE = 256
_EVENT = struct.Struct("=HI")


@final
class EventTranslator:
    """Translates libzmq's event numbers to connection events.  Pure.

    libzmq reports a failed handshake as *failed* and *disconnected*, a refused connection
    as *closed* and *retried*, a lost one as *disconnected* and *retried*; callers want one
    event for each.  It relies on one I/O thread per context, which makes such pairs
    adjacent.

    ``listening`` distinguishes a bound socket (*closed* is about its own listener)
    from a connecting one (*closed* is a failed attempt).
    """

    def __init__(self, listening: bool) -> None:
        self._listening = listening
        self._previous = 0

    def translate(self, event: int) -> ConnectionEvent | None:
        """The connection event to report, if any."""
        previous, self._previous = self._previous, event
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return ConnectionEvent.CONNECTED
        if event & _HANDSHAKE_FAILED:
            return None if previous & _HANDSHAKE_FAILED else ConnectionEvent.HANDSHAKE_FAILED
        if event == zmq.EVENT_DISCONNECTED:
            return None if previous & _HANDSHAKE_FAILED else ConnectionEvent.DISCONNECTED
        if self._listening:
            return None
        if event == zmq.EVENT_CLOSED:
            return ConnectionEvent.REFUSED
        if event == zmq.EVENT_CONNECT_RETRIED:
            # Alone (a name that cannot be resolved) it is a failed attempt; after
            # the end of a connection it only announces the next attempt.
            alone = previous in (0, zmq.EVENT_CONNECT_RETRIED)
            return ConnectionEvent.REFUSED if alone else None
        return None


@final
class Monitor:
    """The reader of one socket's events: libzmq's I/O thread writes them to an inproc PAIR
    socket.  Opened before the socket is bound or connected, closed before the socket."""

    def __init__(
        self, context: ZmqContext, watched: ZmqSocket, name: str, *, listening: bool
    ) -> None:
        self._watched = watched
        self._translator = EventTranslator(listening)
        endpoint = f"inproc://{name}"
        watched.monitor(endpoint, _WATCHED)
        self._pair: ZmqSocket = context.socket(zmq.PAIR)
        self._pair.set(zmq.RCVHWM, _EVENTS_QUEUED_MAX)
        self._pair.connect(endpoint)
        self._fd = int(self._pair.get(zmq.FD))
        self._listening = listening

    async def run(self, on_event: OnEvent) -> None:
        """Report events until cancelled, or until the listener of a bound socket is closed:
        after an unbind, the address is free again then."""
        for count in itertools.count(1):
            try:
                head, *_ = self._pair.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                await trio.lowlevel.wait_readable(self._fd)
                continue
            event, _ = _EVENT.unpack(head)
            if event == zmq.EVENT_CLOSED and self._listening:
                return
            report = self._translator.translate(event)
            if report is not None:
                on_event(report)
            if count % _EVENTS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Stop monitoring.  :meth:`run` must not be running."""
        # The I/O thread writes with a blocking send, so its end comes first.
        self._watched.disable_monitor()
        self._pair.close()


# -- the network ------------------------------------------------------------------


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
        with self._socket(zmq.ROUTER, parsed, limits, {zmq.ROUTER_MANDATORY: 1}) as opened:
            listener = await listen(parsed)
            raw, _ = opened
            raw.set(zmq.USE_FD, listener.sock.detach())
            raw.bind(listener.address)
            async with open_socket(ZmqRouter(*opened, listener, limits), on_event) as router:
                yield router

    @asynccontextmanager
    async def open_dealer(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None,
        curve: ClientCurve | None = None,
    ) -> AsyncIterator[ZmqDealer]:  # fmt: skip
        """See :meth:`Network.open_dealer`; ``tcp`` and ``ipc`` addresses.  ``curve``: the
        keys for a router that speaks CURVE."""
        parsed = parse_transport(address)
        parse_peer_address(address)
        options: dict[int, int | bytes] = {
            zmq.IMMEDIATE: 1,
            zmq.RECONNECT_IVL: _ms(limits.reconnect_min_s),
            zmq.RECONNECT_IVL_MAX: _ms(limits.reconnect_max_s),
            zmq.CONNECT_TIMEOUT: _ms(CONNECT_TIMEOUT_S),
        }
        if curve is not None:
            options[zmq.CURVE_SERVERKEY] = curve.server.encode()
            options[zmq.CURVE_PUBLICKEY] = curve.keys.public.encode()
            options[zmq.CURVE_SECRETKEY] = curve.keys.secret.encode()
        with self._socket(zmq.DEALER, parsed, limits, options) as opened:
            raw, _ = opened
            try:
                raw.connect(str(parsed))
            except zmq.ZMQError as error:
                raise ConfigError(f"cannot connect to {parsed}: {error}") from error
            async with open_socket(ZmqDealer(*opened, str(parsed), limits), on_event) as dealer:
                yield dealer

    @contextmanager
    def _socket(
        self, kind: int, address: Address, limits: WireLimits, more: Mapping[int, int | bytes]
    ) -> Iterator[tuple[ZmqSocket, Monitor]]:
        """A socket with the options that both kinds share and with more, and its monitor."""
        raw = self._context.socket(kind)
        try:
            raw.copy_threshold = COPY_THRESHOLD_BYTES
            options: dict[int, int | bytes] = {
                zmq.LINGER: _ms(LINGER_S),
                zmq.SNDHWM: PEER_QUEUE_LIBZMQ_MESSAGES,
                zmq.RCVHWM: PEER_QUEUE_LIBZMQ_MESSAGES,
                zmq.MAXMSGSIZE: max(limits.message_bytes, BATCH_BYTES),
                # Its timer ends the process (stream_engine_base.cpp:310) if it fires
                # while a lost connection waits to be read, that is, when a peer
                # vanishes while this loop is blocked or does not read.
                zmq.HEARTBEAT_IVL: 0,
                zmq.TCP_KEEPALIVE: 1,
                zmq.TCP_KEEPALIVE_IDLE: KEEPALIVE_IDLE_S,
                zmq.TCP_KEEPALIVE_INTVL: KEEPALIVE_PAUSE_S,
                zmq.TCP_KEEPALIVE_CNT: KEEPALIVE_PROBES,
                # Not for names: of a name with both kinds of address libzmq would take
                # the IPv6 address, and never try the other.
                zmq.IPV6: int(address.is_ipv6),
            }
            for option, value in {**options, **more}.items():
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


def _received(frame: zmq.Frame) -> Frame:
    return frame.bytes if len(frame) < COPY_THRESHOLD_BYTES else frame.buffer.toreadonly()


def _ms(seconds: float) -> int:
    """Milliseconds for libzmq; zero would mean "never"."""
    return max(1, round(seconds * 1000))
