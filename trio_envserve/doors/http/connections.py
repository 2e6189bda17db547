"""Connections of strangers, and the requests that they bring: HTTP/1.1 by h11, with bounds.

Theory of operation
-------------------
h11 turns bytes into the parts of requests and back, and waits for nothing.  A
:class:`HttpConnection` reads, writes and keeps time for one peer, and serves its requests one after
the other, each as an :class:`Exchange`.  :class:`Connections` owns all of them.

Nothing is read while nobody waits for it, but for the end of a connection: as long as a call
runs, what the peer sends for its next requests is taken in, up to a bound, so a peer that hangs
up behind them is noticed.  A peer that takes nothing of its answer is cut off.

Only HTTP/1 is spoken; whoever asks to go on with another protocol is answered in HTTP/1.1, as
the standard allows.

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
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from email.utils import formatdate
from typing import Any, Final, Protocol, TypeAlias, TypeVar, final

import h11
import trio

from ... import tracing
from ...net import unwrap_single
from ..bounds import Bound
from ..limits import HttpLimits
from .guard import Headers
from .problems import LATER, Header, Problem
from .turns import ANSWER_US, READ_US, Turns

_log = logging.getLogger("trio_envserve.http")

T = TypeVar("T")

_READ_BYTES: Final = 32 * 1024
_WRITE_BYTES: Final = 64 * 1024
_AHEAD_BYTES: Final = 64 * 1024
"""A peer may send so much for its next requests while one is answered; behind that its end is
not noticed."""

_BETWEEN: Final = 4
"""Bytes of a header besides its name and value."""

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
        """Bytes of all answers under way."""

    def add(self, caller: Caller, size: int) -> None:
        """Count bytes that are to be written.  Cuts off those callers that the bound asks for, if
        need be this one."""
        self._of[caller] = self._of.get(caller, 0) + size
        self.bytes += size
        while self.bytes > self._most_bytes and len(self._of) > 1:
            slowest = next(iter(self._of))
            self.gone(slowest)
            self._complain()
            slowest.cut_off()

    def took(self, caller: Caller, size: int) -> None:
        """Count bytes that a caller has taken."""
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


class HungUp(Exception):
    """The peer has closed the connection, or was cut off."""


@final
class Exchange:
    """One request and its answer."""

    def __init__(self, connection: HttpConnection, request: h11.Request) -> None:
        self._connection = connection
        self.method = request.method.decode("ascii")
        path, _, self.query = request.target.partition(b"?")
        self.path = path.decode("ascii")
        """The path as it was sent, percent-encoded, without its query."""
        self.headers: Headers = _by_name(request.headers)
        self.header_bytes = len(request.target) + sum(
            len(name) + len(value) + _BETWEEN for name, value in request.headers
        )
        self.parameters: Mapping[str, Any] = {}
        """The parameters of its query, once that was looked at."""
        self.traceparent = _traceparent(self.headers)
        """The span of who asks, if that is known."""
        self.of_key = False
        """Whether it names a key."""
        self.of_row = False
        """Whether it is a row, which is its own key."""
        self.media = ""
        """The type of its body, once that was looked at."""
        self.status = 0
        """The status of its answer; 0 until that has begun."""
        self.delivered = False
        """Whether the answer was written to the end, to a peer that was there.  Whether that peer,
        or who is behind it, has got it, nobody can know."""
        self._told_bytes = int(self.headers.get(b"content-length", (b"0",))[0])
        """The length of its body, if it says that: h11 sees to its form."""
        self._body_read = not (self._told_bytes or b"transfer-encoding" in self.headers)

    async def read_body(self, bound: Bound, held: ExitStack, *, patient: bool = False) -> bytes:
        """The whole body, which counts in ``bound`` while ``held`` is open.  Problem if it is too
        large, which is said before all of it has come, or too slow.  Who is patient waits for room,
        if it says how much that is."""
        limits = self._connection.owner.limits
        told = self._told_bytes
        if told > limits.body_bytes:
            raise _too_large(limits)
        body = bytearray()
        taken = reserved = 0
        try:
            with trio.move_on_after(limits.body_s) as scope:
                if patient:
                    await bound.wait(told)
                    taken = reserved = told
                while not self._body_read:
                    await trio.lowlevel.checkpoint()  # thousands of pieces may have come at once
                    part = await self._connection.next_event()
                    if not isinstance(part, h11.Data):
                        self._body_read = True  # this is its end
                        break
                    size = len(body) + len(part.data)
                    if size > limits.body_bytes:
                        raise _too_large(limits)
                    if size > reserved:
                        if not bound.allows(len(part.data)):
                            raise _too_many()
                        bound.take(len(part.data))
                        taken += len(part.data)
                    body += part.data
            if scope.cancelled_caught:
                if told > taken and patient:
                    raise _too_many()
                raise Problem("body-too-slow", f"the body took longer than {limits.body_s:g} s")
        except BaseException:
            bound.give(taken)
            raise
        held.callback(bound.give, taken)
        return bytes(body)

    async def unless_hung_up(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do it, and cancel it if the caller hangs up: :class:`HungUp` then."""
        box: list[T] = []

        async def watch() -> None:
            await self._connection.hung_up()
            nursery.cancel_scope.cancel()

        with unwrap_single():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                box.append(await act())
                nursery.cancel_scope.cancel()
        if not box:
            raise HungUp
        return box[0]

    async def take_turn(self, cost_us: float) -> None:
        """Take this of a turn of the loop, for what the answer costs besides (:mod:`.turns`)."""
        await self._connection.owner.turns.take(cost_us)

    async def answer(
        self, status: int, media: str, body: bytes, headers: Iterable[Header] = ()
    ) -> None:
        """The whole answer, its head in one piece with a body that is small."""
        length = (b"content-length", str(len(body)).encode())
        head = await self._head(status, media, [length, *headers])
        was_there = await self._connection.is_there()
        data = self._data(body, more=False)
        if len(data) > _WRITE_BYTES:
            await self._connection.write(head)  # what is large is not copied for it
            head = b""
        await self._connection.write(head + data)
        self.delivered = was_there

    async def begin(self, status: int, media: str, headers: Iterable[Header] = ()) -> None:
        """The head of an answer that comes in pieces."""
        await self._connection.write(await self._head(status, media, headers))

    async def send_piece(self, piece: bytes, *, more: bool) -> None:
        """A part of the answer's body."""
        await self._connection.write(self._data(piece, more=more))

    async def _head(self, status: int, media: str, headers: Iterable[Header]) -> bytes:
        found = [
            (b"content-type", media.encode()), (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"), *headers,
        ]  # fmt: skip
        if not self._body_read:
            found.append((b"connection", b"close"))  # what is left of the body is not read
        await self.take_turn(ANSWER_US)
        self.status = status
        return self._connection.head(status, found)

    def _data(self, piece: bytes, *, more: bool) -> bytes:
        sent = b""
        if piece and self.method != "HEAD":
            sent = self._connection.http.send(h11.Data(data=piece)) or b""
        return sent if more else sent + (self._connection.http.send(h11.EndOfMessage()) or b"")


def _too_large(limits: HttpLimits) -> Problem:
    return Problem(
        "body-too-large",
        f"the body may have {limits.body_bytes} bytes (--http-limit body_bytes=...)",
    )


def _too_many() -> Problem:
    return Problem("busy", "too many bodies are held at once", LATER)


def _traceparent(headers: Headers) -> str | None:
    """The span of who asks.  One that is malformed, or said twice, is none: that is no
    reason to refuse work."""
    parents = headers.get(b"traceparent", ())
    return tracing.read(parents[0].decode("latin-1")) if len(parents) == 1 else None


def _by_name(pairs: Iterable[tuple[bytes, bytes]]) -> Headers:
    found: dict[bytes, list[bytes]] = {}
    for name, value in pairs:  # h11 has them in lower case
        found.setdefault(name, []).append(value)
    return found


App: TypeAlias = Callable[[Exchange], Awaitable[None]]


@final
class HttpConnection:
    """One peer."""

    def __init__(self, owner: Connections, stream: trio.SocketStream) -> None:
        self.owner = owner
        self._limits = owner.limits
        self._stream = stream
        self.http = StrictConnection(
            h11.SERVER, max_incomplete_event_size=self._limits.header_bytes
        )
        self._idle = trio.CancelScope()
        """Ends when no further request is waited for."""
        self._peer_gone = False
        """Whether the peer has said its end, was reset, or was cut off."""

    async def run(self) -> None:
        """Serve the peer until it has gone, or is to go."""
        try:
            with suppress(HungUp):
                while (request := await self._next_request()) is not None:
                    await self.owner.app(Exchange(self, request))
                    if not self._is_whole():
                        break
                    self.http.start_next_cycle()
        finally:
            self.owner.idle.pop(self, None)
            self.owner.unread.gone(self)
            with trio.move_on_after(self._limits.linger_s, shield=True):
                await self._linger()
            self._stream.socket.close()

    async def _next_request(self) -> h11.Request | None:
        """The head of the next request; None if there is none, or none is wanted any more."""
        event = None
        if not self.owner.closing:
            self.owner.idle[self] = None
            with trio.move_on_after(self._limits.idle_s) as self._idle:
                event = await self.next_event()
            self.owner.idle.pop(self, None)
        return event if isinstance(event, h11.Request) else None

    def _is_whole(self) -> bool:
        """Whether a request was read and answered whole, so another one may follow."""
        if self.http.our_state is not h11.DONE:
            return False
        if self.http.their_state is h11.SEND_BODY:
            self.http.next_event()  # the end of an empty body
        return self.http.their_state is h11.DONE

    def end(self) -> None:
        """Wait for no further request."""
        self._idle.cancel()

    # -- what the peer sends ------------------------------------------------------

    async def next_event(self) -> object:
        """h11's next event: a part of a request, its end, or the end of the connection.  Raises
        HungUp for bytes that are no HTTP, after an answer that says so."""
        while True:
            if self.http.they_are_waiting_for_100_continue:
                await self.write(
                    self.http.send(h11.InformationalResponse(status_code=100, headers=[]))
                )
            try:
                event = self.http.next_event()
            except h11.RemoteProtocolError as error:
                status = error.error_status_hint
            else:
                if event is not h11.NEED_DATA:
                    return event
                await self._read()
                continue
            if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                headers = [(b"content-length", b"0"), (b"connection", b"close")]
                await self.write(self.head(status, headers))
            raise HungUp

    async def _read(self) -> None:
        data = b""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # reset, or cut off
            data = bytes(await self._stream.receive_some(_READ_BYTES))
        self.http.receive_data(data)
        self._peer_gone = not data
        await self.owner.turns.take(READ_US)

    async def hung_up(self) -> None:
        """Wait until the peer has hung up."""
        while self._may_read():
            await self._read()
        if not self._peer_gone:
            await trio.sleep_forever()

    async def is_there(self) -> bool:
        """Whether nothing says that the peer has gone."""
        if self._may_read() and self._stream.socket.is_readable():
            await self._read()
        return not self._peer_gone

    def _may_read(self) -> bool:
        """Whether more may be taken in for requests to come."""
        return not self._peer_gone and len(self.http.trailing_data[0]) < _AHEAD_BYTES

    # -- what is written ------------------------------------------------------------

    def head(self, status: int, headers: Iterable[Header]) -> bytes:
        """The head of an answer."""
        dated = [(b"date", formatdate(usegmt=True).encode()), *headers]
        return self.http.send(h11.Response(status_code=status, headers=dated)) or b""

    async def write(self, data: bytes | None) -> None:
        """Write to the peer.  HungUp if it takes nothing."""
        if not data:
            return
        view = memoryview(data)
        self.owner.unread.add(self, len(view))
        try:
            for start in range(0, len(view), _WRITE_BYTES):
                piece = view[start : start + _WRITE_BYTES]
                with trio.fail_after(self._limits.write_s):
                    await self._stream.send_all(piece)
                self.owner.unread.took(self, len(piece))
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self._peer_gone = True
            self.owner.unread.gone(self)
            raise HungUp from None

    def cut_off(self) -> None:
        """Write nothing more to the peer, whatever is under way."""
        self._stream.socket.close()  # whoever reads or writes is told

    async def _linger(self) -> None:
        """Say that nothing more is sent, and read what still comes: closing with that
        unread would reset the connection, and eat the last answer."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # it has gone meanwhile
            if not self._peer_gone:
                await self._stream.send_eof()
                while await self._stream.receive_some(_READ_BYTES):
                    pass


@final
class Connections:
    """All peers of one door."""

    def __init__(self, app: App, limits: HttpLimits, turns: Turns) -> None:
        self.app = app
        self.unread = Unread(limits.answers_bytes)
        self.turns = turns
        self.limits = limits
        self.closing = False
        """Whether no further request is answered."""
        self.idle: dict[HttpConnection, None] = {}
        """Connections without a request; the one that is idle longest comes first."""
        self._open = 0
        self._changed = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return self._open

    async def serve(
        self, listeners: list[trio.SocketListener], *,
        task_status: trio.TaskStatus[trio.CancelScope],
    ) -> None:  # fmt: skip
        """Take connections until cancelled.  Reports the scope that ends the taking: then those
        that were taken are given ``close_s`` for their answers."""
        async with trio.open_nursery() as taken:
            with trio.CancelScope() as taking:
                task_status.started(taking)
                await trio.serve_listeners(self._serve_one, listeners, handler_nursery=taken)
            self.closing = True
            for connection in list(self.idle):
                connection.end()
            with trio.move_on_after(self.limits.close_s):
                while self._open:
                    await self._changed.park()
            taken.cancel_scope.cancel()

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        if self._open >= self.limits.connections and not self._end_idle():
            with trio.move_on_after(self.limits.linger_s):
                with suppress(trio.BrokenResourceError):  # it has gone already
                    await stream.send_all(_FULL)
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            await HttpConnection(self, stream).run()
        except Exception:
            # Whatever a peer makes h11 raise ends its own connection only.
            _log.exception("a connection of the HTTP door has failed")
        finally:
            self._open -= 1
            self._changed.unpark_all()

    def _end_idle(self) -> bool:
        """End the connection that is idle longest, if there is one."""
        oldest = next(iter(self.idle), None)
        if oldest is None:
            return False
        del self.idle[oldest]
        oldest.end()
        return True
