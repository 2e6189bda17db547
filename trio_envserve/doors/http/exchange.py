"""One request and its answer, as ASGI has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, Protocol, TypeAlias, TypeVar, final

import trio

from ... import tracing
from ...net import unwrap_single
from ..bounds import Bound
from .guard import Headers
from .limits import HttpLimits
from .problems import LATER, Header, Problem
from .turns import ANSWER_US, Turns

T = TypeVar("T")

_BETWEEN: Final = 4
"""Bytes of a header besides its name and value."""

Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]


WIRE: Final = "trio_envserve.wire"
"""The extension of a scope that is a :class:`Wire`."""


class Wire(Protocol):
    """The facts about the connection that carries an answer."""

    written_bytes: int
    lost: bool

    def hold(self) -> None:
        """Write the next piece together with the one that follows it."""


class HungUp(Exception):
    """The caller has closed the connection."""


@final
class Exchange:
    """One request and its answer."""

    def __init__(self, scope: Any, receive: Receive, send: Send, turns: Turns) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["raw_path"].decode("ascii")
        """As it was sent, percent-encoded, without its query."""
        self.query: bytes = scope["query_string"]
        self.headers: Headers = _by_name(scope["headers"])
        self.header_bytes = (
            len(scope["raw_path"])
            + len(self.query)
            + sum(len(name) + len(value) + _BETWEEN for name, value in scope["headers"])
        )
        self.traceparent = _traceparent(self.headers)
        """The span of who asks, if that is known."""
        self.of_key = False
        """It names a key."""
        self.of_row = False
        """It is a row, which is its own key."""
        self.media = ""
        """The type of its body, once that was looked at."""
        self.answered = False
        """The status has been sent."""
        self.status = 0
        """Which one it was."""
        self.delivered = False
        """The answer was written to the end, to a peer that was there.  Whether that peer, or
        who is behind it, has got it, nobody can know."""
        self._wire: Wire | None = (scope.get("extensions") or {}).get(WIRE)
        self._receive = receive
        self._send = send
        self._turns = turns
        self._body_read = not (
            self.headers.get(b"content-length", (b"0",))[0] != b"0"
            or b"transfer-encoding" in self.headers
        )

    async def read_body(self, limits: HttpLimits, bound: Bound, *, patient: bool = False) -> bytes:
        """The whole body.  Problem if it is too large, which is said before all of it
        has come, or too slow.  What it takes of ``bound``, the caller gives back.  Who is patient
        waits for it, if it says how much that is."""
        told = self.headers.get(b"content-length", (b"0",))[0]
        if int(told) > limits.body_bytes:  # the server's own parser sees to its form
            raise self._too_large(limits)
        body = bytearray()
        taken = reserved = 0
        try:
            with trio.move_on_after(limits.body_s) as scope:
                if patient:
                    await bound.wait(int(told))
                    taken = reserved = int(told)
                more = True
                while more:
                    event = await self._next()
                    piece, more = event.get("body", b""), event.get("more_body", False)
                    if len(body) + len(piece) > limits.body_bytes:
                        raise self._too_large(limits)
                    if len(body) + len(piece) > reserved:
                        if not bound.has_room(len(piece)):
                            raise self._too_many()
                        bound.take(len(piece))
                        taken += len(piece)
                    body += piece
                self._body_read = True
            if scope.cancelled_caught:
                if int(told) > taken and patient:
                    raise self._too_many()
                raise Problem("body-too-slow", f"the body took longer than {limits.body_s:g} s")
        except BaseException:
            bound.give(taken)
            raise
        return bytes(body)

    def _too_large(self, limits: HttpLimits) -> Problem:
        return Problem(
            "body-too-large",
            f"the body may have {limits.body_bytes} bytes (--http-limit body_bytes=...)",
        )

    def _too_many(self) -> Problem:
        return Problem("busy", "too many bodies are held at once", LATER)

    async def _next(self) -> Event:
        event = await self._receive()
        if event["type"] == "http.disconnect":
            raise HungUp
        return event

    async def unless_hung_up(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do it, and cancel it if the caller hangs up: :class:`HungUp` then."""
        box: list[T] = []
        hung_up = False

        async def watch() -> None:
            nonlocal hung_up
            try:
                while True:
                    await self._next()
            except HungUp:
                hung_up = True
                nursery.cancel_scope.cancel()

        with unwrap_single():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                box.append(await act())
                nursery.cancel_scope.cancel()
        if hung_up and not box:
            raise HungUp
        return box[0]

    @property
    def lost(self) -> bool:
        """Whether something of the answer could not be written: nothing more arrives."""
        return self._wire is not None and self._wire.lost

    async def take_turn(self, cost_us: float) -> None:
        """Take this of a turn of the loop, for what the answer costs besides (:mod:`.turns`)."""
        await self._turns.take(cost_us)

    async def answer(
        self, status: int, media: str, body: bytes, headers: Iterable[Header] = ()
    ) -> None:
        """The whole answer."""
        wire, length = self._wire, (b"content-length", str(len(body)).encode())
        before = 0
        if wire is not None:
            before = wire.written_bytes
            wire.hold()  # the head, for the body
        await self.begin(status, media, [length, *headers])
        await self.send_piece(body, more=False)
        # Nothing at all is written for a request whose connection has ended already.
        self.delivered = (
            wire is not None and not wire.lost and wire.written_bytes - before > len(body)
        )

    async def begin(self, status: int, media: str, headers: Iterable[Header] = ()) -> None:
        """The answer's head."""
        found = [
            (b"content-type", media.encode()), (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"), *headers,
        ]  # fmt: skip
        if not self._body_read:
            found.append((b"connection", b"close"))  # what is left of the body is not read
        await self._turns.take(ANSWER_US)
        self.answered, self.status = True, status
        await self._send({"type": "http.response.start", "status": status, "headers": found})

    async def send_piece(self, piece: bytes, *, more: bool) -> None:
        """A part of the answer's body."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})


def _traceparent(headers: Headers) -> str | None:
    """The span of who asks.  One that is malformed, or said twice, is none: that is no
    reason to refuse work."""
    said = headers.get(b"traceparent", ())
    return tracing.read(said[0].decode("latin-1")) if len(said) == 1 else None


def _by_name(pairs: Iterable[tuple[bytes, bytes]]) -> Headers:
    found: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        found.setdefault(name.lower(), []).append(value)
    return found
