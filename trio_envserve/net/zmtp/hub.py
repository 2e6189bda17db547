"""All connections of one socket: which are read, and which are written.

Theory of operation
-------------------
There are two epolls.  Each is waited for as one descriptor, so a connection needs no
task.

*traffic* has the connections with something to read (:mod:`.traffic`).  The pump (the
task that calls ``receive``) polls it in each turn and reads a share from each ready
connection.

*service* has everything that must go on while no task receives: handshakes, connections
whose peer hangs up, and connections that wait until the system takes more bytes.  A
task of the socket waits for it.  Another task sweeps every second: it counts time,
closes connections that make no progress, and logs in one line what was closed and why
(:mod:`.connections`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

import trio

from ...core.limits import KIB, WireLimits
from ..forks import forget_in_children
from ..framing import FrameTooLarge, FramingError
from ..interface import BATCH_MESSAGES, Frame, Message, OnEvent
from ..outbox import Outbox
from .connection import SLICE_MESSAGES, Connection, ConnectionEnded, ConnectionState
from .connections import HANG_UP, OUT, TURN_BYTES, Connections
from .mechanism import Mechanism

HEAVY_TURN_BYTES: Final = 128 * KIB
"""After so many bytes of connections that have had more than their share, the others have
a turn.  Who receives the messages has more work with them than this socket has."""

SERVED_MOST: Final = 64
"""Most events of one poll of the service: a handshake or a blocked write takes a third
of a millisecond, and many connections may begin, or end, in the same moment."""

LAST_WORDS_S: Final = 0.25
"""How long a closing socket waits for its peers to read its last messages."""

_GONE: Final = HANG_UP | 0x10 | 0x8

_ENDED: Final = (ConnectionState.CLOSED, ConnectionState.DRAINING)
"""Nothing is read any more in these."""


class Hub(Connections):
    """Base of router and dealer: reads and writes their connections, until they close."""

    _nursery: trio.Nursery
    """The nursery of this socket's tasks, while they run."""
    _routed: bool
    """Whether each message begins with a route."""

    def __init__(
        self, address: str, limits: WireLimits, mechanism: Callable[[], Mechanism] | None = None
    ) -> None:
        super().__init__(address, limits, mechanism)
        forget_in_children(self)

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
        self._received += len(batch)
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
        decoder = engine.decoder
        before, bytes_before = len(batch), self._turn_bytes
        most = before + share
        route: list[Frame] | None = [connection.route] if self._routed else None
        try:
            if connection.state in _ENDED:
                return
            if not decoder.is_backlogged and (size := connection.fill()):
                self._turn_bytes += size
                connection.heard_s = self._pumped_s
            # Counted in slices, because commands and parts of a message cost time, too.
            for _ in range(1 + share // SLICE_MESSAGES):
                for message in connection.take():
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
        await self._traffic.sleep()

    # -- writing ----------------------------------------------------------------

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

    # -- counting and closing -----------------------------------------------------

    def close(self) -> None:
        """Stop receiving and sending; tasks that wait here get ClosedResourceError."""
        self._closed = True
        self._traffic.wake()
        self._flushed()

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
        self._spare.clear()
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

    def _is_unsent(self) -> bool:
        """Whether a flush has something to wait for."""
        return any(self._outboxes()) or any(
            each.outgoing
            for each in self._connections.values()
            if each.state is ConnectionState.OPEN
        )

    @abstractmethod
    def _outboxes(self) -> Collection[Outbox]:
        """All outboxes in which messages may wait."""
