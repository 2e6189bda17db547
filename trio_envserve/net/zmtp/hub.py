"""All connections of one socket: from their handshake to their end.

Theory of operation
-------------------
There are two epolls.  Each is waited for as one descriptor, so a connection needs no
task.

*traffic* has the connections with something to read (:class:`Traffic`).  The pump (the
task that calls ``receive``) polls it in each turn and reads a share from each ready
connection.

*service* has everything that must go on while no task receives: handshakes, connections
whose peer hangs up, and connections that wait until the system takes more bytes.  A
task of the socket waits for it.  The task that sends a message writes it at once, as far as
the system takes it; the service writes the rest.

Memory is bounded for each connection by its decoder and its outbox, and for all of them
by two sums: of arriving bytes and of waiting bytes.  Past one of them the connection
that holds most is closed, which is never an honest one.  A sweep, every second, closes
connections that make no progress, and logs in one line what was closed and why.  Time
counts only while this loop was awake, so a blocked loop ages nobody.

Each turn of the pump adds what the epoll says to a queue; a connection with more than its
share goes to the end of the queue.  Both matter: with shares a flood takes no more than its
neighbours, and with a poll in every turn a queue of floods keeps nobody out.  There are two
queues, because a share in messages is none in bytes: a connection that has had more than
``QUANTUM_BYTES`` in each of its turns waits among the *heavy* ones, of which each turn of the
pump reads a few.  (Deficit round robin, Shreedhar and Varghese 1996, with all debts in one
class.)
"""

from __future__ import annotations

import enum
import itertools
import logging
import select
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, final

import trio

from ...core.limits import KIB, MIB, WireLimits
from ..connection import ConnectionEnded, ConnectionOutbox, SocketEnd, frame_limits
from ..forks import forget_in_children
from ..framing import READ_BYTES, FrameTooLarge, FramingError
from ..interface import BATCH_MESSAGES, ConnectionEvent, Frame, Message, OnEvent
from ..pump import Sleep, SocketPump
from .engine import Engine, HandshakeError, Mechanism, Null

# -- one connection

SLICE_MESSAGES: Final = 8
"""Number of messages that are decoded at a time."""


class ConnectionState(enum.Enum):
    """The state of a connection."""

    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    """Messages pass."""
    HUNG_UP = enum.auto()
    """The peer has ended it; messages that had arrived may still be read."""
    DRAINING = enum.auto()
    """This side has sent its last bytes, and waits for the peer to end the connection:
    closing at once, with something unread, would lose them."""
    CLOSED = enum.auto()


@final
class Connection(SocketEnd):
    """One connection; its hub sets the attributes."""

    __slots__ = (
        "began_at",
        "debt_bytes",
        "engine",
        "fd",
        "held_bytes",
        "is_blocked",
        "is_queued",
        "is_watched",
        "peer",
        "received_at",
        "route",
        "state",
    )

    def __init__(
        self,
        sock: socket.socket,
        engine: Engine,
        outbox: ConnectionOutbox,
        *,
        peer: str,
        now_s: float,
    ) -> None:
        super().__init__(sock, engine.decoder, engine.encode, outbox)
        self.is_ready = False
        self.fd = sock.fileno()
        self.engine = engine
        self.peer = peer
        """The peer's name, for people."""
        self.route = b""
        self.state = ConnectionState.HANDSHAKE
        self.began_at = now_s
        self.received_at = now_s
        """Moment at which bytes last arrived."""
        self.held_bytes = 0
        """The bytes of unfinished messages in the engine, when last counted."""
        self.debt_bytes = 0
        """Bytes above its share that the connection has had: see :class:`Traffic`."""
        self.is_blocked = False
        """Whether writing waits for the system."""
        self.is_queued = False
        """Whether it is in the queue of connections to be read."""
        self.is_watched = False
        """Whether the service would notice a hang-up."""

    def read_handshake(self) -> bool:
        """Go on with the handshake; True when it is done.

        Raises ConnectionEnded, or FramingError with what is wrong with the peer.
        """
        try:
            data = self._recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionEnded(str(error)) from error
        if not data:
            raise ConnectionEnded("it hung up during the handshake")
        return self.engine.shake(data)

    def open(self, now_s: float) -> None:
        """Let messages pass: the handshake is done."""
        self.state = ConnectionState.OPEN
        self.encode, self.is_costly = self.engine.encode, self.engine.is_sealed
        self.is_ready = True
        self.received_at = now_s

    def say_last_words(self) -> None:
        """Write what can be written now, and end this direction."""
        try:
            self.write()
            self.sock.shutdown(socket.SHUT_WR)
        except (ConnectionEnded, OSError):
            pass  # it is gone already

    def is_read(self) -> bool:
        """Whether nothing is left to read on a connection that the peer has ended."""
        try:
            return self.decoder.is_backlogged is False and not self._recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def drain(self) -> bool:
        """Read and drop; returns True when the peer has ended the connection, too."""
        try:
            for _ in range(16):
                if not self._recv(READ_BYTES):
                    return True
        except BlockingIOError:
            return False
        except OSError:
            return True
        return False


# -- the connections that have something to read

QUANTUM_BYTES: Final = 64 * KIB
"""Bytes of each turn of a connection that are not charged."""

DEBT_MOST_BYTES: Final = MIB
"""Largest debt: after one large body its sender is heavy for 16 turns."""

EVENTS_MOST: Final = 256
"""Most events of one poll."""


@final
class Traffic:
    """The open connections of a socket, and the queues of those to be read."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.sleep = Sleep(self._epoll.fileno())
        """The sleep of the task that reads, while nothing has arrived."""
        self.light: deque[Connection] = deque()
        self.heavy: deque[Connection] = deque()

    def register(self, connection: Connection) -> None:
        """Notice from now on what arrives on a connection."""
        self._epoll.register(connection.fd, EPOLLIN)

    def unregister(self, connection: Connection) -> None:
        """Forget a connection; it may not be here."""
        try:
            self._epoll.unregister(connection.fd)
        except FileNotFoundError:
            pass  # its handshake was never done

    def poll(self, connections: Mapping[int, Connection]) -> int:
        """Add what the system says to the queues; ``connections`` by descriptor.  Returns
        how many there are to read."""
        for fd, _ in self._epoll.poll(0, EVENTS_MOST):
            self.enqueue(connections[fd])
        return len(self.light) + len(self.heavy)

    def enqueue(self, connection: Connection) -> None:
        """Have a connection read in one of the next turns, whatever the system says."""
        if not connection.is_queued:
            connection.is_queued = True
            (self.heavy if connection.debt_bytes else self.light).append(connection)

    def charge(self, connection: Connection, size: int) -> None:
        """Count the bytes of a connection's turn; it is not in a queue."""
        debt = connection.debt_bytes + size - QUANTUM_BYTES
        connection.debt_bytes = min(max(debt, 0), DEBT_MOST_BYTES)

    def close(self) -> None:
        """Close the epoll."""
        self._epoll.close()


# -- all connections

logger = logging.getLogger("trio_envserve.net")

SWEEP_S: Final = 1.0

TURN_BYTES: Final = MIB
"""Bytes received, copied, or given back with a closed connection, after which a turn reads no
further connection: forty connections with large frames would take half a second, most of it for
memory."""

# As numbers, because a system without epoll imports this module, too.
EPOLLIN: Final = 0x1
OUT: Final = 0x4
HANG_UP: Final = 0x2000

HEAVY_TURN_BYTES: Final = 128 * KIB
"""Bytes of connections above their shares after which the others have a turn: the receiver of the
messages has more work with them than this socket."""

SERVED_MOST: Final = 64
"""Most events of one poll of the service: a handshake or a blocked write takes a third
of a millisecond, and many connections may begin, or end, in the same moment."""

LAST_WORDS_S: Final = 0.25
"""Time for which a closing socket waits for its peers to read its last messages, in seconds."""

_GONE: Final = HANG_UP | 0x10 | 0x8

_ENDED: Final = (ConnectionState.CLOSED, ConnectionState.DRAINING)
"""States in which nothing is read any more."""


class Hub(SocketPump):
    """Base of router and dealer: opens, reads, writes and closes their connections."""

    _nursery: trio.Nursery
    """The nursery of this socket's tasks, while they run."""
    _socket_type: bytes

    def __init__(
        self, address: str, limits: WireLimits, mechanism: Callable[[], Mechanism] | None = None
    ) -> None:
        super().__init__(address, limits)
        self._mechanism = mechanism or partial(Null, self._socket_type)
        """Makes one side of a handshake for each connection."""
        self._frame_limits = frame_limits(limits)
        self._connections: dict[int, Connection] = {}
        """All connections, by descriptor."""
        self._traffic = Traffic()
        self._service = select.epoll()
        """Handshakes, connections whose peer hangs up, and those that wait until the
        system takes more bytes."""
        self._awake_s = 0.0
        """Seconds in which this loop was awake."""
        self._pumped_s = 0.0
        """Seconds in which a task received, too: only then are the bytes of peers seen."""
        self._turns = self._turns_swept = 0
        """Number of turns in which a task received, now and at the last sweep."""
        self._turn_bytes = 0
        """Bytes that were received, copied or given back in this turn of a task."""
        self._shaking: dict[int, Connection] = {}
        """Connections in their handshake, the oldest first."""
        self._strangers: dict[Connection, int] = {}
        """Connections that have sent no message, the oldest first, each with the number of pauses
        of the router when it came.  A dealer has none."""
        self._arriving_bytes = 0
        """Sum of ``held_bytes``."""
        self._numbers = itertools.count(1)
        self.why_refused = ""
        """Reason for which the last failed handshake failed."""
        self._complaint = ""
        """Peer and reason of a closed connection, for the next line of the log."""
        self._complained = 0
        """Number of closed connections at the last line of the log."""
        forget_in_children(self)

    # -- from the handshake to the end ------------------------------------------

    def _adopt(self, sock: socket.socket, peer: str, outbox: ConnectionOutbox) -> Connection:
        """Add a new connection and greet the peer."""
        engine = Engine(self._mechanism(), self._frame_limits)
        connection = Connection(sock, engine, outbox, peer=peer, now_s=self._awake_s)
        self._connections[connection.fd] = self._shaking[connection.fd] = connection
        self._service.register(connection.fd, EPOLLIN)
        connection.is_watched = True
        connection.outgoing.append((engine.replies(),))
        self._write(connection)
        return connection

    def _shake(self, connection: Connection) -> None:
        """Go on with a handshake, of which bytes have arrived."""
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
        """Open a connection whose handshake is done."""
        connection.open(self._pumped_s)
        del self._shaking[connection.fd]
        connection.route = next(self._numbers).to_bytes(8, "little")
        self._service.modify(connection.fd, HANG_UP)
        self._traffic.register(connection)
        self._opened(connection)
        self._event_sender.send_nowait(ConnectionEvent.CONNECTED)
        self._traffic.enqueue(connection)  # bytes may have come after the handshake
        self._wake()
        self._write(connection)

    def _fail_handshake(self, connection: Connection, why: str) -> None:
        self.why_refused = why
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
        connection.is_ready = False
        self._shaking.pop(connection.fd, None)
        connection.began_at = self._awake_s
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
        connection.is_ready = False
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
        self._turn_bytes += connection.held_bytes
        connection.outgoing.clear()
        self._shaking.pop(connection.fd, None)
        self._strangers.pop(connection, None)
        del self._connections[connection.fd]
        # In a process that has forked, close() alone does not take it out of the epolls,
        # and does not end the connection.
        self._traffic.unregister(connection)
        try:
            self._service.unregister(connection.fd)
        except FileNotFoundError:
            pass  # it has hung up
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer has closed it, too
        connection.sock.close()
        self._flushed()

    # -- reading ----------------------------------------------------------------

    def _turn(self) -> list[list[Frame]]:
        self._turns += 1
        ready = self._traffic.poll(self._connections)
        batch: list[list[Frame]] = []
        if not ready:
            return batch
        share = max(1, BATCH_MESSAGES // ready)
        self._read_some(self._traffic.light, share, batch, TURN_BYTES)
        self._read_some(self._traffic.heavy, share, batch, HEAVY_TURN_BYTES)
        if self._arriving_bytes > self._limits.arriving_bytes:
            self._shed_arriving()
        return batch

    def _read_some(
        self, queue: deque[Connection], share: int, batch: list[list[Frame]], most_bytes: int
    ) -> None:
        """Read from one connection at least, until the turn has enough."""
        self._turn_bytes = 0
        for _ in range(len(queue)):
            connection = queue.popleft()
            connection.is_queued = False
            self._read(connection, share, batch)
            if len(batch) >= BATCH_MESSAGES or self._turn_bytes >= most_bytes:
                break

    def _read(self, connection: Connection, share: int, batch: list[list[Frame]]) -> None:
        """Add a share of what has arrived to the batch."""
        engine = connection.engine
        decoder = connection.decoder
        before, bytes_before = len(batch), self._turn_bytes
        most = before + share
        route: list[Frame] | None = [connection.route] if self._routed else None
        try:
            if connection.state in _ENDED:
                return
            if not decoder.is_backlogged and (size := connection.fill()):
                self._turn_bytes += size
                connection.received_at = self._pumped_s
            # Counted in slices, because commands and parts of a message cost time, too.
            for _ in range(1 + share // SLICE_MESSAGES):
                for message in engine.take(SLICE_MESSAGES):
                    batch.append(message if route is None else route + message)
                if not decoder.is_backlogged or len(batch) >= most:
                    break
            if len(batch) > before:
                self._strangers.pop(connection, None)
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
        self._traffic.charge(connection, self._turn_bytes - bytes_before)
        if decoder.is_backlogged:
            self._traffic.enqueue(connection)
        if engine.has_replies and connection.state is ConnectionState.OPEN:
            connection.outgoing.append((engine.replies(),))
            self._write(connection)

    async def _sleep(self) -> None:
        if self._traffic.light or self._traffic.heavy:
            await trio.lowlevel.checkpoint()
        else:
            await self._traffic.sleep.until_readable()

    # -- writing ----------------------------------------------------------------

    def _send_on(self, connection: Connection, messages: Sequence[Message]) -> bool:
        """Send to an open connection; returns False if not all were accepted."""
        try:
            accepted = connection.send(messages)
        except ConnectionEnded:
            self._undelivered += len(messages)
            self._hang_up_later(connection)
            return False
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
            events = EPOLLIN if connection.state is ConnectionState.HANDSHAKE else HANG_UP
            events |= OUT if connection.is_blocked else 0
            self._service.modify(connection.fd, events)

    def _hang_up_later(self, connection: Connection) -> None:
        """Hang up after a write that failed.  Bytes that had arrived before may still be read; the
        read ends with the same failure."""
        connection.outgoing.clear()
        if connection.state is ConnectionState.OPEN:
            self._hang_up(connection)
            self._traffic.enqueue(connection)
            self._wake()

    # -- the service --------------------------------------------------------------

    def start(self, nursery: trio.Nursery, on_event: OnEvent | None) -> None:
        """See the base."""
        super().start(nursery, on_event)
        self._nursery = nursery
        nursery.start_soon(self._serve)
        nursery.start_soon(self._sweep_often)

    async def _serve(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._service.fileno())
            self._turn_bytes = 0
            for fd, events in self._service.poll(0, SERVED_MOST):
                connection = self._connections.get(fd)
                if connection is None:
                    self._other_event(fd)
                else:
                    self._serve_connection(connection, events)
                if self._turn_bytes >= TURN_BYTES:
                    break  # the next poll has the other events again

    def _serve_connection(self, connection: Connection, events: int) -> None:
        if connection.state is ConnectionState.HANDSHAKE:
            if events & OUT:
                self._write(connection)
            if events & ~OUT:
                self._shake(connection)
        elif connection.state is ConnectionState.DRAINING:
            if connection.drain():
                self._discard(connection)
        else:
            if events & OUT:
                self._write(connection)
            if events & _GONE:
                self._hang_up(connection)
                if connection.is_read():
                    self._discard(connection)

    def _other_event(self, fd: int) -> None:
        """Handle a descriptor of the service that is not a connection's."""

    # -- time and bounds -------------------------------------------------------

    async def _sweep_often(self) -> None:
        while True:
            asked_s = trio.current_time()
            await trio.sleep(SWEEP_S)
            # A blocked loop counts for no longer: its peers' messages are still to come.
            slept_s = min(trio.current_time() - asked_s, 2 * SWEEP_S)
            self._awake_s += slept_s
            if self._traffic.sleep.is_on or self._turns != self._turns_swept:
                self._pumped_s += slept_s
            self._turns_swept = self._turns
            await self._sweep()
            if self._complaint:
                many = self._closed_count - self._complained
                others = f" (and {many - 1} more)" if many > 1 else ""
                logger.warning(
                    "%s: closed the connection of %s%s", self._address, self._complaint, others
                )
                self._complaint, self._complained = "", self._closed_count

    async def _sweep(self) -> None:
        """Close what takes too long."""
        limits, now_s = self._limits, self._awake_s
        self._turn_bytes = 0
        for connection in list(self._connections.values()):
            if self._turn_bytes >= TURN_BYTES:
                await trio.lowlevel.checkpoint()
                self._turn_bytes = 0
            silent_s = self._pumped_s - connection.received_at
            match connection.state:
                case ConnectionState.HANDSHAKE:
                    if now_s - connection.began_at > limits.handshake_s:
                        self._fail_handshake(connection, "it took too long")
                case ConnectionState.DRAINING:
                    if now_s - connection.began_at > 2 * SWEEP_S:
                        self._discard(connection)
                case ConnectionState.OPEN if not connection.is_queued:
                    decoder, ttl_s = connection.decoder, connection.engine.ttl_s
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

    # -- closing ----------------------------------------------------------------

    def _wake(self) -> None:
        self._traffic.sleep.end()

    def forget(self) -> None:
        """In a forked child: close the inherited sockets, which belong to the parent."""
        self._closed = True
        for connection in self._connections.values():
            connection.sock.close()
        self._traffic.close()
        self._service.close()

    async def end(self) -> None:
        """Give the peers a moment to read the last messages; then close everything.

        Both take as long as there are connections to close, and others have their turns
        meanwhile."""
        with trio.CancelScope(shield=True):
            await self._in_portions(self._say_last_words)
            with trio.move_on_after(LAST_WORDS_S):
                while self._connections:
                    await trio.lowlevel.wait_readable(self._service.fileno())
                    for fd, _ in self._service.poll(0, SERVED_MOST):
                        left = self._connections.get(fd)
                        if left is not None and left.drain():
                            self._discard(left)
            await self._in_portions(self._discard)
        self._traffic.close()
        self._service.close()

    async def _in_portions(self, do: Callable[[Connection], None]) -> None:
        """Do something with each connection, and give other tasks their turns."""
        self._turn_bytes = 0
        for number, connection in enumerate(list(self._connections.values()), 1):
            do(connection)
            if number % SERVED_MOST == 0 or self._turn_bytes >= TURN_BYTES:
                await trio.lowlevel.checkpoint()
                self._turn_bytes = 0

    def _say_last_words(self, connection: Connection) -> None:
        if connection.state is ConnectionState.OPEN:
            self._write(connection)
        if connection.state is ConnectionState.OPEN:
            self._part(connection)
        else:
            self._discard(connection)

    def is_unsent(self) -> bool:
        """See the base."""
        return super().is_unsent() or any(
            each.outgoing
            for each in self._connections.values()
            if each.state is ConnectionState.OPEN
        )

    @abstractmethod
    def _opened(self, connection: Connection) -> None:
        """Note that the handshake of a connection is done."""

    @abstractmethod
    def _lost(self, connection: Connection) -> None:
        """Note that a connection is not open any more; may be called again."""


def _waiting_bytes(connection: Connection) -> int:
    return connection.outgoing.size_bytes + connection.outbox.size_bytes
