"""Connections of strangers: hypercorn's HTTP/1.1, with bounds of our own.

Theory of operation
-------------------
hypercorn turns bytes into ASGI and back (its ``H11Protocol``).  Its own server does not
bound the connections, waits without end for a peer that takes none of its answer (not
even closing ends that), does not see who hangs up behind a second request, and holds a
request for ever that is answered while more of its body waits.  So it is driven from
here: a :class:`Connection` reads, writes and keeps time for one peer,
:class:`Connections` owns all of them, and what an application has not read waits in an
:class:`Inbox`, which takes the end of a connection whatever else is in it.

Only HTTP/1 is spoken; whoever asks to go on with HTTP/2 is answered in HTTP/1.1, as the
standard allows.

A proxy in front of the door and the door itself must agree where each request ends, or
the rest of one is taken for the next, which carries another caller's rights (request
smuggling).  h11 refuses most of what is in doubt; the rest is refused here, with 400 and
the end of the connection (RFC 9112, 2.2, 5.2, 6.1 and 6.3).

An answer is written as its caller takes it, and until then all of it is held.  So all
answers under way are counted (:class:`Unread`).  Past the bound the caller that has taken
nothing for longest is cut off: those that read go on, however many others do not.  One answer
alone is written whatever its size.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast, final

import h11
import hypercorn
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, TaskGroup
from hypercorn.utils import parse_socket_addr

from .exchange import WIRE, Receive, Send
from .exchange import Event as AppEvent
from .limits import HttpLimits
from .turns import READ_US, Turns

_log = logging.getLogger("trio_envserve.http")

App = Callable[[Any, Receive, Send], Awaitable[None]]

_READ_BYTES: Final = 32 * 1024
_WRITE_BYTES: Final = 64 * 1024
_AHEAD: Final = 2
"""A peer may send so much while it waits for an answer, in reads.  Its end is noticed so far."""

_ENDS: Final = ("http.disconnect", "websocket.disconnect")
"""The messages that say that nothing more will come."""

_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\n"
)


_BARE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_FOLDED: Final = re.compile(rb"\n[ \t]")
_LENGTH: Final = re.compile(rb"\ncontent-length:([^\r]*)", re.IGNORECASE)
_CODING: Final = re.compile(rb"\ntransfer-encoding:", re.IGNORECASE)


def fault_of(head: bytes, http_version: bytes) -> str:
    """The reason why the end of a request is in doubt, or "".  ``head`` has all lines as
    they came, up to the empty one."""
    if _BARE.search(head):
        return "a line of the head ends with CR or LF alone"
    if _FOLDED.search(head):
        return "a field is folded over several lines"
    lengths = _LENGTH.findall(head)
    if len(lengths) > 1 or b"," in b"".join(lengths):
        return "Content-Length stands more than once"
    if _CODING.search(head):
        if lengths:
            return "Content-Length and Transfer-Encoding exclude each other"
        if http_version < b"1.1":
            return "HTTP/1.0 has no Transfer-Encoding"
    return ""


@final
class StrictConnection(h11.Connection):
    """h11's connection of a server, without h11's leniency about heads."""

    def next_event(self) -> Any:
        """See :meth:`h11.Connection.next_event`; a head in doubt is a RemoteProtocolError."""
        if self.their_state is not h11.IDLE:
            return super().next_event()
        waiting = self.trailing_data[0]
        event = super().next_event()
        if isinstance(event, h11.Request):
            head = waiting[: len(waiting) - len(self.trailing_data[0])]
            if fault := fault_of(head, event.http_version):
                raise h11.RemoteProtocolError(fault, error_status_hint=400)
        return event


class Caller(Protocol):
    """Somebody who is written to."""

    def cut_off(self) -> None:
        """Write nothing more to it."""


@final
class Unread:
    """The answers that are under way."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._of: dict[Caller, int] = {}
        """Bytes of each caller; the one that took something last comes last."""
        self._cut_off = 0
        self._to_complain = 1
        self.bytes = 0
        """Of all."""

    def add(self, caller: Caller, size: int) -> None:
        """So many bytes are to be written.  Cuts off whom the bound asks for, if need be this
        caller."""
        self._of[caller] = self._of.get(caller, 0) + size
        self.bytes += size
        while self.bytes > self._most_bytes and len(self._of) > 1:
            slowest = next(iter(self._of))
            self.gone(slowest)
            self._complain()
            slowest.cut_off()

    def took(self, caller: Caller, size: int) -> None:
        """A caller has taken so many of them."""
        left = self._of.pop(caller, 0)
        self.bytes -= min(left, size)
        if left > size:
            self._of[caller] = left - size

    def gone(self, caller: Caller) -> None:
        """Nothing more is written to a caller."""
        self.bytes -= self._of.pop(caller, 0)

    def _complain(self) -> None:
        self._cut_off += 1
        if self._cut_off == self._to_complain:
            _log.warning(
                "more than %d bytes of answers wait for callers that do not read: %d cut off",
                self._most_bytes, self._cut_off,
            )  # fmt: skip
            self._to_complain *= 2  # a flood is no flood of lines


@final
class Inbox:
    """The part of one request that its application has not received yet."""

    def __init__(self) -> None:
        self._events: deque[AppEvent] = deque()
        self._gone = False
        """The connection, or the request on it, has ended."""
        self._over = False
        """The application has ended."""
        self._changed = trio.lowlevel.ParkingLot()

    async def put(self, event: Any) -> None:
        """Hand an event on; waits until there is room, but not with the last one."""
        if event["type"] in _ENDS:
            self._gone = True
            self._changed.unpark_all()
            return
        while self._events and event["more_body"] and not (self._over or self._gone):
            await self._changed.park()
        self._events.append(event)
        self._changed.unpark_all()

    async def receive(self) -> AppEvent:
        """The next event: ASGI's receive."""
        await trio.lowlevel.checkpoint()
        while not (self._events or self._gone):
            await self._changed.park()
        if self._gone:
            return {"type": "http.disconnect"}
        event = self._events.popleft()
        self._changed.unpark_all()
        return event

    def end(self) -> None:
        """Nobody reads it any more."""
        self._over = True
        self._changed.unpark_all()


@final
class _Http1(H11Protocol):
    """HTTP/1.1, whatever else a peer offers, and only with heads that mean one thing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        limit_bytes = self.config.h11_max_incomplete_size
        self.connection = StrictConnection(h11.SERVER, max_incomplete_event_size=limit_bytes)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Upgrade nothing."""


@final
class Connection:
    """One peer."""

    def __init__(self, owner: Connections, stream: trio.SocketStream) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._stream = stream
        self._reading = trio.CancelScope()
        """Ends when no more is to be read; its deadline is that of an idle connection."""
        self._writing = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._peer_gone = False
        self.written_bytes = 0
        """The bytes that the kernel has taken for the peer, as long as the peer was there."""
        self.lost = False
        """Something could not be written, or the peer had gone before it was."""
        self._holds = False
        self._held = b""
        """Bytes that are written together with those that follow."""

    async def run(self) -> None:
        """Serve the peer until it has gone, or is to go."""
        sock = self._stream.socket
        protocol = _Http1(
            cast(Any, self._owner.app), self._owner.config, self._owner.context,
            cast(TaskGroup, self), ConnectionState({}), False,
            parse_socket_addr(sock.family, sock.getpeername()),
            parse_socket_addr(sock.family, sock.getsockname()), self._send,
        )  # fmt: skip
        arriving, arrived = trio.open_memory_channel[bytes](_AHEAD)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._set_idle(True)
                handling = trio.CancelScope()
                nursery.start_soon(_handle, protocol, arrived, handling, self._owner.turns)
                with self._reading:
                    await self._read(arriving)
                handling.cancel()
                await protocol.handle(Closed())  # tells the application, which ends
        finally:
            self._owner.idle.pop(self, None)
            self._owner.unread.gone(self)
            with trio.move_on_after(self._limits.linger_s, shield=True):
                await self._linger()
            self._stream.socket.close()

    async def _read(self, arriving: trio.MemorySendChannel[bytes]) -> None:
        try:
            while data := await self._stream.receive_some(_READ_BYTES):
                await arriving.send(bytes(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the peer has reset it
        self._peer_gone = True

    def end(self) -> None:
        """Read no more: the connection ends with what is under way."""
        self._reading.cancel()

    def _set_idle(self, idle: bool) -> None:
        self._owner.idle.pop(self, None)
        if idle:
            self._owner.idle[self] = None
        now_s = trio.current_time()
        self._reading.deadline = now_s + self._limits.idle_s if idle else float("inf")

    # -- what hypercorn's protocol asks for -----------------------------------

    async def _send(self, event: Event) -> None:
        match event:
            case RawData(data):
                await self._write(data)
            case Updated(idle):
                self._set_idle(idle)
            case Closed():
                self.end()

    def hold(self) -> None:
        """Write the next piece together with the one that follows it: a head with its body
        takes as long as either of them.  An answer ends with a piece, though it be empty."""
        self._holds = True

    async def _write(self, data: bytes) -> None:
        if self._holds:
            self._holds, self._held = False, data
            return
        held, self._held = self._held, b""
        if held and len(data) > _WRITE_BYTES:
            await self._write(held)  # what is large is not copied for it
            held = b""
        data = held + data
        if not data:
            return
        self.lost = self.lost or self._peer_gone
        unread = self._owner.unread
        unread.add(self, len(data))
        try:
            async with self._writing:
                await self._write_all(memoryview(data))
            self.written_bytes += len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._peer_gone = self.lost = True
            unread.gone(self)
            self.end()

    async def _write_all(self, view: memoryview) -> None:
        for start in range(0, len(view), _WRITE_BYTES):
            piece = view[start : start + _WRITE_BYTES]
            with trio.move_on_after(self._limits.write_s) as scope:
                await self._stream.send_all(piece)
            if scope.cancelled_caught:
                raise trio.BrokenResourceError("the peer takes nothing")
            self._owner.unread.took(self, len(piece))

    def cut_off(self) -> None:
        """Write nothing more to the peer, whatever is under way."""
        self._stream.socket.close()  # whoever reads or writes is told

    async def spawn_app(
        self, app: App, _config: hypercorn.Config, scope: Any, send: Any
    ) -> Callable[[Any], Awaitable[None]]:
        """Start the application for a request."""
        inbox = Inbox()
        scope["extensions"] = {**(scope.get("extensions") or {}), WIRE: self}
        assert self._nursery is not None
        self._nursery.start_soon(_run, app, scope, inbox, send)
        return inbox.put

    # -- the end --------------------------------------------------------------

    async def _linger(self) -> None:
        """Say that nothing more is sent, and read what still comes: closing with that
        unread would reset the connection, and eat the last answer."""
        try:
            if not self._peer_gone:
                await self._stream.send_eof()
                while await self._stream.receive_some(_READ_BYTES):
                    pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it has gone meanwhile


async def _handle(
    protocol: H11Protocol, arrived: trio.MemoryReceiveChannel[bytes], scope: trio.CancelScope,
    turns: Turns,
) -> None:  # fmt: skip
    with scope:
        async for data in arrived:
            await turns.take(READ_US)
            await protocol.handle(RawData(data))


async def _run(app: App, scope: Any, inbox: Inbox, send: Any) -> None:
    try:
        await app(scope, inbox.receive, send)
    except Exception:
        # The application's mistake ends its connection, and no other.
        _log.exception("the application of the HTTP door failed")
    inbox.end()
    await send(None)


@final
class Connections:
    """All peers of one door."""

    def __init__(self, app: App, limits: HttpLimits, turns: Turns, unread: Unread) -> None:
        self.app = app
        self.unread = unread
        self.turns = turns
        self.limits = limits
        self.config = hypercorn.Config()
        self.config.h11_max_incomplete_size = limits.header_bytes
        self.config.include_server_header = False
        self.config.accesslog = None
        self.config.errorlog = _log
        self.context = WorkerContext(None)
        self.idle: dict[Connection, None] = {}
        """Those without a request; the one that is idle longest comes first."""
        self._open = 0
        self._changed = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return self._open

    async def serve(
        self, listeners: list[trio.SocketListener], *,
        task_status: trio.TaskStatus[trio.CancelScope],
    ) -> None:  # fmt: skip
        """Take connections until cancelled; those that were taken go on until
        :meth:`close`.  Reports the scope that ends the taking."""
        async with trio.open_nursery() as taken:
            with trio.CancelScope() as taking:
                task_status.started(taking)
                await trio.serve_listeners(self._serve_one, listeners, handler_nursery=taken)
            await self.context.terminated.set()
            for connection in list(self.idle):
                connection.end()
            with trio.move_on_after(self.limits.close_s):
                while self._open:
                    await self._changed.park()
            taken.cancel_scope.cancel()

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        if self._open >= self.limits.connections and not self._make_room():
            with trio.move_on_after(self.limits.linger_s):
                try:
                    await stream.send_all(_FULL)
                except trio.BrokenResourceError:
                    pass  # it has gone already
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            await Connection(self, stream).run()
        except OSError:
            pass  # the peer had gone before it could be asked for its address
        except Exception:
            # Whatever a peer makes hypercorn or h11 raise ends its own connection only.
            _log.exception("a connection of the HTTP door has failed")
        finally:
            self._open -= 1
            self._changed.unpark_all()

    def _make_room(self) -> bool:
        """End the connection that is idle longest, if there is one."""
        oldest = next(iter(self.idle), None)
        if oldest is None:
            return False
        del self.idle[oldest]
        oldest.end()
        return True
