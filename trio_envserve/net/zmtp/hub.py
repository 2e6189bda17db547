"""All connections of one socket: which are read, which are written, which are closed.

Theory of operation
-------------------
There are two epolls.  Each is waited for as one descriptor, so a connection needs no
task.

*traffic* has the connections with something to read.  The pump (the task that calls
``receive``) polls it in each turn and reads a share from each ready connection; those
with more go to the end of a queue.  Both matter: with shares a flood takes no more than
its neighbours, and with a poll in every turn a queue of floods keeps nobody out.

*service* has everything that must go on while no task receives: handshakes, connections
whose peer hangs up, and connections that wait until the system takes more bytes.  A
task of the socket waits for it.  Another task sweeps every second: it counts time (only
while this loop was awake, so a blocked loop ages nobody), closes connections that make
no progress, and logs in one line what was closed and why.

Memory is bounded for each connection by its decoder and its outbox, and for all of them
by two sums: of arriving bytes and of waiting bytes.  Past one of them the connection
that holds most is closed, which is never an honest one.

The task that sends a message writes it at once, as far as the system takes it.  The
service writes the rest.
"""

from __future__ import annotations

import itertools
import logging
import select
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

import trio

from ...core.limits import MIB, WireLimits
from .. import bundle
from ..forks import forget_in_children
from ..framing import FrameLimits, FrameTooLarge, FramingError
from ..interface import (
    BATCH_MESSAGES,
    BUNDLE_BYTES,
    FRAMES_MAX,
    ConnectionEvent,
    Frame,
    Message,
    OnEvent,
    SocketStatistics,
    is_sendable,
)
from ..outbox import Outbox
from ..pump import Pump
from .connection import SLICE_MESSAGES, Connection, ConnectionEnded, ConnectionState
from .engine import Engine
from .mechanism import HandshakeError, Null

logger = logging.getLogger("trio_envserve.net")

SWEEP_S: Final = 1.0
EVENTS_MOST: Final = 256
"""Most events of one poll."""

SERVED_MOST: Final = 64
"""Most events of one poll of the service: a handshake or a blocked write takes a third
of a millisecond, and many connections may begin, or end, in the same moment."""

TURN_BYTES: Final = MIB
"""After so many bytes a turn reads from no further connection: forty of them with large
frames would take half a second, most of it for new memory."""

LAST_WORDS_S: Final = 0.25
"""How long a closing socket waits for its peers to read its last messages."""

# As numbers, because a system without epoll imports this module, too.
EPOLLIN: Final = 0x1
_OUT: Final = 0x4
_HANG_UP: Final = 0x2000
_GONE: Final = _HANG_UP | 0x10 | 0x8


def frame_limits(limits: WireLimits) -> FrameLimits:
    """The bounds of a connection: one frame of the largest size, and a header."""
    frame_bytes = max(limits.message_bytes, BUNDLE_BYTES)
    return FrameLimits(
        frame_bytes=frame_bytes,
        message_bytes=frame_bytes + max(limits.header_bytes, BUNDLE_BYTES),
        frames=FRAMES_MAX,
    )


class Hub(Pump):
    """Base of router and dealer: connections, from their handshake to their end."""

    _socket_type: bytes
    _nursery: trio.Nursery
    """The nursery of this socket's tasks, while they run."""
    _routed: bool
    """Whether each message begins with a route."""

    def __init__(self, address: str, limits: WireLimits) -> None:
        super().__init__()
        self._address = address
        self._limits = limits
        self._frame_limits = frame_limits(limits)
        self._connections: dict[int, Connection] = {}
        """All connections, by descriptor."""
        self._traffic = select.epoll()
        self._service = select.epoll()
        self._traffic_fd = self._traffic.fileno()
        self._ready: deque[Connection] = deque()
        """Connections to be read, whatever the epoll says."""
        self._parked = False
        self._awake_s = 0.0
        """Seconds in which this loop was awake."""
        self._pumped_s = 0.0
        """Seconds in which, moreover, a task received; otherwise no peer can be heard."""
        self._turns = self._turns_swept = 0
        self._turn_bytes = 0
        """Bytes read in this turn."""
        self._shaking: dict[int, Connection] = {}
        """Connections in their handshake, the oldest first."""
        self._strangers: dict[Connection, int] = {}
        """Connections that have sent no message, the oldest first, each with how often
        the router had paused before it came.  A dealer has none."""
        self._arriving_bytes = 0
        """Sum of ``held_bytes``."""
        self._flush_lot = trio.lowlevel.ParkingLot()
        self._event_sender, self._events = trio.open_memory_channel[ConnectionEvent](float("inf"))
        self._numbers = itertools.count(1)
        self._received = self._sent = self._undelivered = self._oversized = 0
        self._closed_count = 0
        """Connections that were closed because of their peers."""
        self._complaint = ""
        """Why one of them was closed, for the next line of the log."""
        self._complained = 0
        """The count at the last line of the log."""
        forget_in_children(self)

    @property
    def address(self) -> str:
        """See the interface."""
        return self._address

    # -- connections ------------------------------------------------------------

    def _adopt(self, sock: socket.socket, peer: str) -> Connection:
        """Add a new connection and greet the peer."""
        engine = Engine(Null(self._socket_type), self._frame_limits)
        connection = Connection(
            sock, engine, self._outbox_of_next(), peer=peer, now_s=self._awake_s
        )
        self._connections[connection.fd] = self._shaking[connection.fd] = connection
        self._service.register(connection.fd, EPOLLIN)
        connection.is_watched = True
        connection.outgoing.append((engine.replies(),))
        self._write(connection)
        return connection

    def _shake(self, connection: Connection) -> None:
        """Bytes of a handshake have arrived."""
        engine = connection.engine
        try:
            done = connection.read_handshake()
        except ConnectionEnded as error:
            self._fail_handshake(connection, str(error))
            return
        except FramingError as error:
            reply = engine.replies() if isinstance(error, HandshakeError) else b""
            if reply:
                connection.outgoing.append((reply,))
            self._fail_handshake(connection, str(error))
            return
        if replies := engine.replies():
            connection.outgoing.append((replies,))
            self._write(connection)
        if done and connection.state is ConnectionState.HANDSHAKE:
            self._open(connection)

    def _open(self, connection: Connection) -> None:
        """The handshake is done."""
        connection.state = ConnectionState.OPEN
        del self._shaking[connection.fd]
        connection.heard_s = self._pumped_s
        connection.route = next(self._numbers).to_bytes(8, "little")
        self._service.modify(connection.fd, _HANG_UP)
        self._traffic.register(connection.fd, EPOLLIN)
        self._opened(connection)
        self._event_sender.send_nowait(ConnectionEvent.CONNECTED)
        self._enqueue(connection)  # bytes may have come after the handshake
        self._wake()
        self._write(connection)

    def _fail_handshake(self, connection: Connection, why: str) -> None:
        self._event_sender.send_nowait(ConnectionEvent.HANDSHAKE_FAILED)
        self._complain(connection, f"handshake failed: {why}")
        self._part(connection)

    def _punish(self, connection: Connection, why: str) -> None:
        """Close a connection because of its peer, and log why."""
        self._complain(connection, why)
        self._hang_up(connection)
        self._discard(connection)

    def _complain(self, connection: Connection, why: str) -> None:
        self._closed_count += 1
        self._complaint = f"{connection.peer}: {why}"

    def _part(self, connection: Connection) -> None:
        """Close this side, and wait until the peer has read the last bytes."""
        connection.state = ConnectionState.DRAINING
        self._shaking.pop(connection.fd, None)
        connection.made_s = self._awake_s
        self._lost(connection)
        connection.say_last_words()
        connection.outgoing.clear()
        if connection.drain():
            self._discard(connection)
        elif connection.is_watched:
            self._service.modify(connection.fd, EPOLLIN)
        else:
            self._service.register(connection.fd, EPOLLIN)
            connection.is_watched = True

    def _hang_up(self, connection: Connection) -> None:
        """The peer has ended an open connection: send nothing more on it."""
        if connection.state is not ConnectionState.OPEN:
            return
        connection.state = ConnectionState.HUNG_UP
        if connection.is_watched:
            self._service.unregister(connection.fd)
            connection.is_watched = connection.is_blocked = False
        connection.outgoing.clear()
        self._lost(connection)
        self._event_sender.send_nowait(ConnectionEvent.DISCONNECTED)
        self._flushed()

    def _discard(self, connection: Connection) -> None:
        """Forget a connection, and close its descriptor."""
        if connection.state is ConnectionState.CLOSED:
            return
        connection.state = ConnectionState.CLOSED
        self._lost(connection)
        self._arriving_bytes -= connection.held_bytes
        connection.outgoing.clear()
        self._shaking.pop(connection.fd, None)
        self._strangers.pop(connection, None)
        del self._connections[connection.fd]
        # close() alone does neither in a process that has forked.
        for epoll in (self._service, self._traffic):
            try:
                epoll.unregister(connection.fd)
            except FileNotFoundError:
                pass  # it is not in this one
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer has closed it, too
        connection.sock.close()
        self._flushed()

    # -- reading ----------------------------------------------------------------

    def _turn(self) -> list[list[Frame]]:
        self._turns += 1
        ready = self._ready
        connections = self._connections
        for fd, _ in self._traffic.poll(0, EVENTS_MOST):
            connection = connections[fd]
            if not connection.is_queued:
                connection.is_queued = True
                ready.append(connection)
        batch: list[list[Frame]] = []
        if not ready:
            return batch
        self._turn_bytes = 0
        share = max(1, BATCH_MESSAGES // len(ready))
        for _ in range(len(ready)):
            connection = ready.popleft()
            connection.is_queued = False
            self._read(connection, share, batch)
            if len(batch) >= BATCH_MESSAGES or self._turn_bytes >= TURN_BYTES:
                break
        self._received += len(batch)
        if self._arriving_bytes > self._limits.arriving_bytes:
            self._shed_arriving()
        return batch

    def _read(self, connection: Connection, share: int, batch: list[list[Frame]]) -> None:
        """Add a share of what has arrived to the batch."""
        engine = connection.engine
        decoder = engine.decoder
        before = len(batch)
        most = before + share
        route: list[Frame] | None = [connection.route] if self._routed else None
        try:
            if connection.state is ConnectionState.CLOSED:
                return
            if not decoder.is_backlogged and (size := connection.fill()):
                self._turn_bytes += size
                connection.heard_s = self._pumped_s
            # Counted in slices, because commands and parts of a message cost time, too.
            for _ in range(1 + share // SLICE_MESSAGES):
                for message in connection.take():
                    if len(message) == 1 and bundle.is_bundle(message[0]):
                        members = bundle.unpack(message[0])
                        batch += members if route is None else [route + each for each in members]
                    elif route is None:
                        batch.append(message)
                    else:
                        batch.append(route + message)
                if not decoder.is_backlogged or len(batch) >= most:
                    break
            if len(batch) > before:
                self._strangers.pop(connection, None)
            if decoder.is_backlogged:
                self._enqueue(connection)
        except ConnectionEnded:
            self._hang_up(connection)
            self._discard(connection)
            return
        except FramingError as error:
            self._oversized += isinstance(error, FrameTooLarge)
            self._punish(connection, str(error))
            return
        held = decoder.arriving_bytes
        if held != connection.held_bytes:
            # Two things take time and read little: bytes that had arrived before are given
            # out, if many messages end at once; and a large frame's buffer grows, and is
            # copied, for many connections at once.  So both count for this turn, too.
            self._turn_bytes += abs(held - connection.held_bytes)
            self._arriving_bytes += held - connection.held_bytes
            connection.held_bytes = held
        if engine.has_replies and connection.state is ConnectionState.OPEN:
            connection.outgoing.append((engine.replies(),))
            self._write(connection)

    def _enqueue(self, connection: Connection) -> None:
        if not connection.is_queued:
            connection.is_queued = True
            self._ready.append(connection)

    async def _sleep(self) -> None:
        if self._ready:
            await trio.lowlevel.checkpoint()
            return
        self._parked = True
        try:
            await trio.lowlevel.wait_readable(self._traffic_fd)
        except trio.ClosedResourceError:
            pass  # closed, which the caller checks, or woken: see _wake
        finally:
            self._parked = False

    def _wake(self) -> None:
        """Wake the pump: end its wait as if the descriptor were closed."""
        if self._parked:
            self._parked = False
            trio.lowlevel.notify_closing(self._traffic_fd)

    # -- writing ----------------------------------------------------------------

    def _may_send(self, frames: Message) -> bool:
        if self._closed:
            self._undelivered += 1
            return False
        if not is_sendable(frames, self._limits):
            self._oversized += 1
            return False
        return True

    def _send(self, connection: Connection, messages: Sequence[Message]) -> bool:
        """Send to an open connection; returns False if not all were accepted."""
        waiting = len(connection.outbox)
        try:
            accepted = connection.send(messages)
        except ConnectionEnded:
            self._undelivered += len(messages)
            self._hang_up_later(connection)
            return False
        self._sent += accepted - (len(connection.outbox) - waiting)
        self._undelivered += len(messages) - accepted
        if connection.outgoing and not connection.is_blocked:
            self._write(connection)
        return accepted == len(messages)

    def _write(self, connection: Connection) -> None:
        """Write waiting bytes, as far as the system takes them now."""
        try:
            done = connection.write()
        except ConnectionEnded:
            self._hang_up_later(connection)
            return
        finally:
            self._sent += connection.framed
            connection.framed = 0
        if done:
            if connection.is_blocked:
                connection.is_blocked = False
                self._watch(connection)
            self._flushed()
        elif not connection.is_blocked:
            connection.is_blocked = True
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        if connection.is_watched:
            events = EPOLLIN if connection.state is ConnectionState.HANDSHAKE else _HANG_UP
            events |= _OUT if connection.is_blocked else 0
            self._service.modify(connection.fd, events)

    def _hang_up_later(self, connection: Connection) -> None:
        """A write has failed.  Bytes that had arrived before may still be read; the read
        ends with the same failure."""
        connection.outgoing.clear()
        if connection.state is ConnectionState.OPEN:
            self._hang_up(connection)
            self._enqueue(connection)
            self._wake()

    def _flushed(self) -> None:
        if self._flush_lot:
            self._flush_lot.unpark_all()

    async def flush(self) -> None:
        """See the interface."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        while self._is_unsent():
            await self._flush_lot.park()
            self._check_open()

    # -- the service --------------------------------------------------------------

    def start(self, nursery: trio.Nursery, on_event: OnEvent) -> None:
        """Start the tasks of the socket."""
        self._nursery = nursery
        nursery.start_soon(self._serve)
        nursery.start_soon(self._sweep_often)
        nursery.start_soon(self._report, on_event)

    async def _report(self, on_event: OnEvent) -> None:
        async for event in self._events:
            on_event(event)

    async def _serve(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._service.fileno())
            for fd, events in self._service.poll(0, SERVED_MOST):
                connection = self._connections.get(fd)
                if connection is None:
                    self._other_event(fd)
                    continue
                if connection.state is ConnectionState.HANDSHAKE:
                    if events & _OUT:
                        self._write(connection)
                    if events & ~_OUT:
                        self._shake(connection)
                elif connection.state is ConnectionState.DRAINING:
                    if connection.drain():
                        self._discard(connection)
                else:
                    if events & _OUT:
                        self._write(connection)
                    if events & _GONE:
                        self._hang_up(connection)
                        if connection.is_read():
                            self._discard(connection)

    def _other_event(self, fd: int) -> None:
        """Handle a descriptor of the service that is not a connection's."""

    async def _sweep_often(self) -> None:
        while True:
            asked_s = trio.current_time()
            await trio.sleep(SWEEP_S)
            # A blocked loop counts for no longer: its peers' messages are still to come.
            slept_s = min(trio.current_time() - asked_s, 2 * SWEEP_S)
            self._awake_s += slept_s
            if self._parked or self._turns != self._turns_swept:
                self._pumped_s += slept_s
            self._turns_swept = self._turns
            self._sweep()
            if self._complaint:
                many = self._closed_count - self._complained
                others = f" (and {many - 1} others)" if many > 1 else ""
                logger.warning(
                    "%s: closed the connection of %s%s", self._address, self._complaint, others
                )
                self._complaint, self._complained = "", self._closed_count

    def _sweep(self) -> None:
        """Close what takes too long."""
        limits, now_s = self._limits, self._awake_s
        for connection in list(self._connections.values()):
            silent_s = self._pumped_s - connection.heard_s
            match connection.state:
                case ConnectionState.HANDSHAKE:
                    if now_s - connection.made_s > limits.handshake_s:
                        self._fail_handshake(connection, "it took too long")
                case ConnectionState.DRAINING:
                    if now_s - connection.made_s > 2 * SWEEP_S:
                        self._discard(connection)
                case ConnectionState.OPEN if not connection.is_queued:
                    decoder, ttl_s = connection.engine.decoder, connection.engine.ttl_s
                    if silent_s > limits.progress_s and not decoder.is_between_messages:
                        self._punish(connection, "a message that does not go on")
                    elif ttl_s is not None and silent_s > ttl_s + 2 * SWEEP_S:
                        self._punish(connection, "it was not heard within its time to live")
        self._shed_waiting()

    def _shed_arriving(self) -> None:
        """Close connections while unfinished messages hold too many bytes."""
        while self._arriving_bytes > self._limits.arriving_bytes:
            most = max(self._connections.values(), key=lambda each: each.held_bytes)
            self._oversized += 1
            self._punish(most, f"{most.held_bytes} bytes of an unfinished message, of all the most")

    def _shed_waiting(self) -> None:
        """Close connections while too many bytes wait for peers that do not read."""
        waiting = {each: _waiting_bytes(each) for each in self._connections.values()}
        total = sum(waiting.values())
        while total > self._limits.waiting_bytes:
            most = max(waiting, key=waiting.__getitem__)
            size = waiting.pop(most)
            total -= size
            self._punish(most, f"{size} bytes wait for it, of all the most, and it does not read")

    # -- counting and closing -----------------------------------------------------

    def statistics(self) -> SocketStatistics:
        """See the interface."""
        outboxes = [outbox for outbox in self._outboxes() if outbox]
        return SocketStatistics(
            received=self._received,
            sent=self._sent,
            undelivered=self._undelivered,
            oversized=self._oversized,
            closed=self._closed_count,
            backlog_peers=len(outboxes),
            backlog_messages=sum(len(outbox) for outbox in outboxes),
            backlog_bytes=sum(outbox.size_bytes for outbox in outboxes),
        )

    def close(self) -> None:
        """Stop receiving and sending; tasks that wait here get ClosedResourceError."""
        self._closed = True
        self._wake()
        self._flushed()

    def forget(self) -> None:
        """In a forked child: close the inherited sockets, which belong to the parent."""
        self._closed = True
        for connection in self._connections.values():
            connection.sock.close()
        self._traffic.close()
        self._service.close()

    async def end(self) -> None:
        """Give the peers a moment to read the last messages; then close everything."""
        leaving = list(self._connections.values())
        for connection in leaving:
            if connection.state is ConnectionState.OPEN:
                self._write(connection)
            if connection.state is ConnectionState.OPEN:
                self._part(connection)
            else:
                self._discard(connection)
        with trio.move_on_after(LAST_WORDS_S, shield=True):
            while self._connections:
                await trio.lowlevel.wait_readable(self._service.fileno())
                for fd, _ in self._service.poll(0, EVENTS_MOST):
                    left = self._connections.get(fd)
                    if left is not None and left.drain():
                        self._discard(left)
        for connection in list(self._connections.values()):
            self._discard(connection)
        self._traffic.close()
        self._service.close()

    def _is_unsent(self) -> bool:
        """Whether a flush has something to wait for."""
        return any(self._outboxes()) or any(
            each.outgoing
            for each in self._connections.values()
            if each.state is ConnectionState.OPEN
        )

    @abstractmethod
    def _outbox_of_next(self) -> Outbox:
        """The outbox for a new connection."""

    @abstractmethod
    def _opened(self, connection: Connection) -> None:
        """Its handshake is done."""

    @abstractmethod
    def _lost(self, connection: Connection) -> None:
        """The connection is not open any more.  May be called again."""

    @abstractmethod
    def _outboxes(self) -> Collection[Outbox]:
        """All outboxes in which messages may wait."""


def _waiting_bytes(connection: Connection) -> int:
    return connection.outgoing.size_bytes + connection.outbox.size_bytes
