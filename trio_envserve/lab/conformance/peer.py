"""Clients of a server that is judged: one that says what it is told to, and one made by hand."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, final

import trio

from ...core import messages, values
from ...core.errors import ProtocolError
from ...core.limits import MIB, PROTOCOL_VERSION, WireLimits
from ...core.messages import Message
from ...core.ranges import Ranges
from ...core.terms import Body
from ...net import ConnectionEvent, Network, parse_peer_address, unwrap_single
from . import wire
from .findings import CaseFailed, TimedOut, check

HEADER_BYTES = 16 * MIB
"""The longest header of a server that is read: generous, it is the server that is judged."""

_OF_SERVERS = (
    messages.Welcome, messages.Outcome, messages.Synced, messages.Refused, messages.Unknown,
    messages.Cancelled, messages.QueryAnswer, messages.Error,
)  # fmt: skip


class Received(NamedTuple):
    """A message of the server, and its frames, as if it had come alone."""

    message: Any
    frames: tuple[bytes, ...]


def read(frames: tuple[bytes, ...]) -> list[Received]:
    """A server's message, its form checked; the rows of a batch, each with the frames of a
    batch of one."""
    try:
        rows = messages.read(frames, most_bytes=HEADER_BYTES)
    except ProtocolError as error:
        raise CaseFailed("a message of this document", f"{frames[0][:64].hex()}: {error}") from None
    message = rows[0][0]
    check(isinstance(message, _OF_SERVERS), "a message that a server sends to clients", message)
    if len(rows) == 1:
        return [Received(message, frames)]
    return [Received(row, (messages.encode(row), bytes(body or b""))) for row, body in rows]


def body_of(asked: Any, *, kind: str = "rollout", **fields: Any) -> bytes:
    """The body of a request."""
    return values.encode(
        {
            "kind": kind, "input": asked, "model": {"endpoint": "oracle", "name": ""},
            "sampling_args": {}, "max_retries": 0, "state_columns": [], **fields,
        }
    )  # fmt: skip


def value_of(outcome: Received) -> Any:
    """The decoded body of an outcome."""
    try:
        return values.decode(outcome.frames[1])
    except values.DecodingError as error:
        raise CaseFailed("a body that can be decoded", str(error)) from None


def describe(outcome: Received) -> str:
    """An outcome, for people."""
    header = outcome.message._replace(session=outcome.message.session[:4])
    return f"{header} with {values.decode(outcome.frames[1])!r}"


# == A client that says exactly what it is told to, right or wrong
#
# Theory of operation
# -------------------
# A :class:`ConformancePeer` is one connection.  It keeps no promises: it sends what a case
# gives it, whenever, and holds all that came until somebody asks for it.  What it
# does check is the form of what the server sends: a message that this document
# does not allow fails the case it was met in.
#
# Waiting has a limit (``patience_s``), after which a case fails with what it had waited
# for.  A peer never concludes from a time that nothing came: messages to one connection
# keep their order, so what has not come before the answer to a later question
# (:meth:`ConformancePeer.barrier`) was not sent.

T = TypeVar("T")

HELLO_AGAIN_S = 0.5
LOOK_S = 0.02
"""Between two looks at a count, or at a session that ends."""
WIRE = WireLimits(
    message_bytes=1 << 31, reconnect_max_s=0.1, peer_queue_messages=100_000,
    peer_queue_bytes=1 << 31,
)  # fmt: skip
"""A peer of cases may send more than it should, and finds its server again at once."""

Spans: TypeAlias = "list[int]"


@dataclasses.dataclass(slots=True)
class FirstRequest:
    """The first request under a sequence."""

    input: Any
    frames: tuple[Body, ...]
    outcome: Received | None = None
    """The first one that came."""


class Socket(Protocol):
    """The part of a socket that a peer needs: a dealer's, or one made by hand."""

    def send_nowait(self, frames: Sequence[Body]) -> bool:
        """Queue a message; False if that cannot be."""
        ...

    async def receive(self) -> Sequence[Sequence[Body]]:
        """Wait for messages."""
        ...


@final
class ConformancePeer:
    """One connection.  Opened by :func:`open_peer`."""

    def __init__(self, socket: Socket, patience_s: float) -> None:
        self.patience_s = patience_s
        self.session = b""
        self.nonce = b""
        self.caller = os.urandom(16)
        self.epoch = b""
        self.window = 0
        self.message_bytes = 0
        """The largest frame that the server takes."""
        self.server: dict[str, Any] = {}
        """The server's last status record."""
        self.connection = 1
        self.probe = 0
        self.asked: dict[int, FirstRequest] = {}
        """The requests of the session, over whichever connection of its client."""
        self.received: list[Received] = []
        """The messages that came and were not asked for yet, in order."""
        self.held: list[tuple[Body, ...]] | None = None
        """Requests to be sent together; None: each is sent at once."""
        self._socket = socket
        self._stats_probe = 0

    # -- saying ---------------------------------------------------------------

    def send(self, message: Message, *body: Body) -> None:
        """Send a message."""
        self.send_frames(messages.encode(message), *body)

    def send_frames(self, *frames: Body) -> None:
        """Send any frames at all."""
        if self.held is not None:
            self.held.append(frames)
        elif not self._socket.send_nowait(frames):
            raise CaseFailed("a connection that takes messages", "its outbox is full")

    def hold(self) -> None:
        """Send no request before :meth:`together`."""
        self.held = []

    def together(self) -> None:
        """Send the requests that were held, as one batch."""
        held, self.held = self.held or [], None
        rows = [(messages.decode(head, most_bytes=len(head)), body) for head, body in held]
        ((header, bodies),) = messages.in_batches(rows)
        self.send_frames(header, bodies)

    def resume(self, other: ConformancePeer) -> None:
        """Go on with the session of another peer, as the client's next connection."""
        self.session, self.nonce, self.epoch = other.session, other.nonce, other.epoch
        self.window, self.message_bytes = other.window, other.message_bytes
        self.connection, self.probe = other.connection + 1, other.probe
        self.asked, self.caller = other.asked, other.caller

    def prepared(
        self, sequence: int, asked: Any, *, body: Body | None = None, digest: bytes | None = None,
        rerun: bool | None = None, allowance: int = 1, deadline_s: float | None = None,
        earlier: int | None = None, **fields: Any,
    ) -> tuple[Body, ...]:  # fmt: skip
        """The frames of a request, not sent yet.  ``fields`` are further fields of its body."""
        if body is None:
            body = body_of(asked, **fields)
        if digest is None:
            options = repr((rerun, allowance, deadline_s)).encode()
            digest = hashlib.blake2b(bytes(body) + options, digest_size=16).digest()
        header = messages.encode(
            messages.Request(
                self.session, sequence, digest, rerun, allowance, deadline_s, earlier=earlier
            )
        )
        self.asked.setdefault(sequence, FirstRequest(asked, (header, body)))
        return header, body

    def transmit(self, sequence: int, asked: Any, **options: Any) -> tuple[Body, ...]:
        """Send a request; ``options`` as for :meth:`prepared`."""
        frames = self.prepared(sequence, asked, **options)
        self.send_frames(*frames)
        return frames

    def again(self, n: int, *, times: int = 1) -> None:
        """Further transmissions of a request, the same bytes."""
        for _ in range(times):
            self.send_frames(*self.asked[n].frames)

    def finish(self, *sequences: int) -> None:
        """Say that these are finished."""
        self.send(messages.Finish(self.session, Ranges(sequences).flat()))

    def goodbye(self) -> None:
        """End the session."""
        self.send(messages.Goodbye(self.session))

    def sync_nowait(self, next_sequence: int, pending: Spans) -> int:
        """State what is held; the probe."""
        self.probe += 1
        self.send(
            messages.Sync(
                self.session, self.epoch, self.connection, self.probe, next_sequence, pending
            )
        )
        return self.probe

    # -- hearing --------------------------------------------------------------

    async def next(
        self,
        kind: type[T] | tuple[type[T], ...],
        what: str = "",
        where: Callable[[T], bool] = lambda message: True,
    ) -> tuple[T, tuple[bytes, ...]]:
        """The next message of a kind that fits; others stay.  Fails the case if
        none comes in time; ``what`` says what it would have been."""
        with trio.move_on_after(self.patience_s):
            while True:
                for index, (message, frames) in enumerate(self.received):
                    if isinstance(message, kind) and where(message):
                        del self.received[index]
                        return message, frames
                await self.receive()
        held = ", ".join(type(each.message).__name__ for each in self.received[:8]) or "nothing"
        raise TimedOut(what or f"a message {kind}", f"after {self.patience_s:g} s {held}")

    async def receive(self) -> None:
        """Take in what has come; waits for something."""
        for batch in await self._socket.receive():
            frames = tuple(bytes(frame) for frame in batch)
            self.received += read(frames)

    def all(self, kind: type[T]) -> list[tuple[T, tuple[bytes, ...]]]:
        """Those of a kind that came and were not asked for; they stay."""
        return [(each.message, each.frames) for each in self.received if type(each.message) is kind]

    def forget(self) -> None:
        """Forget what came and was not asked for."""
        self.received.clear()

    async def hello(
        self, nonce: bytes = b"", *, message_bytes: int = 1 << 28, name: str = "conform"
    ) -> messages.Welcome:
        """Ask for a session, as often as needed, and be it."""
        self.nonce = nonce or os.urandom(16)
        patient, self.patience_s = self.patience_s, HELLO_AGAIN_S
        began_s = trio.current_time()
        try:
            while True:
                self.say_hello(message_bytes, name)
                try:
                    welcome, _ = await self.next(
                        messages.Welcome, "a welcome", lambda each: each.nonce == self.nonce
                    )
                    break
                except TimedOut:
                    if trio.current_time() - began_s > patient:
                        raise
        finally:
            self.patience_s = patient
        self._take(welcome)
        return welcome

    async def hello_once(self, nonce: bytes) -> bool:
        """Ask for a session, once, and be it; False for no-session, and it stays what it was."""
        own, self.nonce = self.nonce, nonce
        self.say_hello()
        answer: messages.Welcome | messages.Error
        answer, _ = await self.next((messages.Welcome, messages.Error), "Welcome, or Error")
        if isinstance(answer, messages.Welcome):
            self._take(answer)
            return True
        self.nonce = own
        check(answer.code == "no-session", "the code 'no-session'", answer)
        return False

    async def no_session(self, nonce: bytes = b"") -> None:
        """A hello, with the own nonce if none is given, is told no-session."""
        check(not await self.hello_once(nonce or self.nonce), "no session", "Welcome")

    def say_hello(self, message_bytes: int = 1 << 28, name: str = "conform") -> None:
        """Say hello, and do not wait."""
        self.send(
            messages.Hello(
                PROTOCOL_VERSION, self.nonce, self.connection, name, message_bytes, self.caller
            )
        )

    def _take(self, welcome: messages.Welcome) -> None:
        if welcome.session != self.session:
            self.asked = {}
        self.session, self.epoch = welcome.session, welcome.epoch
        self.window, self.message_bytes = welcome.window, welcome.message_bytes
        self.server = welcome.server

    async def outcome(self, sequence: int, what: str = "") -> Received:
        """The next outcome of this sequence: the same bytes each time.  Fails at once if it is
        refused instead."""
        what = what or f"an outcome of sequence {sequence}"

        def fits(message: Any) -> bool:
            return bool(message.session == self.session and message.sequence == sequence)

        found = Received(*await self.next((messages.Outcome, messages.Refused), what, fits))
        if isinstance(found.message, messages.Refused):
            late = [m for m, _ in self.all(messages.Outcome) if fits(m)]
            check(bool(late), what, found.message)
            found = Received(*await self.next(messages.Outcome, what, fits))
        asked = self.asked.setdefault(sequence, FirstRequest(None, ()))
        asked.outcome = asked.outcome or found
        check(asked.outcome.frames == found.frames, "the same bytes each time", found.message)
        return found

    async def result(self, n: int, what: str = "", *, executions: int = 0) -> Any:
        """The value of a request that must have one, its own, after so many executions."""
        outcome = await self.outcome(n, what)
        check(outcome.message.status == 0, "a result", describe(outcome))
        right = executions in (0, outcome.message.executions)
        check(right, f"{executions} executions", outcome.message)
        value, asked = value_of(outcome), self.asked[n].input
        if isinstance(asked, dict) and isinstance(value, dict) and "key" in value:
            check(value["key"] == asked["key"], "the result of its own request", value)
        return value

    async def error(self, n: int, code: str = "any", verdict: str = "any") -> dict[str, Any]:
        """The error record of a request that must end with one."""
        outcome = await self.outcome(n)
        check(outcome.message.status != 0, "an error", describe(outcome))
        record = value_of(outcome)
        right = isinstance(record, dict) and {"code", "verdict", "message"} <= set(record)
        check(right, "an error record with code, verdict and message", record)
        right = code in ("any", record["code"]) and verdict in ("any", record["verdict"])
        check(right, f"{code}, {verdict}", record)
        return dict(record)

    async def refused(self, sequence: int, code: str) -> messages.Refused:
        """The refusal of a transmission, which must be this one."""
        refused, _ = await self.next(
            messages.Refused,
            f"a refusal ({code}) of sequence {sequence}",
            lambda each: each.session == self.session and each.sequence == sequence,
        )
        check(refused.code == code, f"the refusal {code!r}", refused)
        return refused

    async def refused_for_good(self, sequence: int, code: str) -> None:
        """The same, and without a delay."""
        refused = await self.refused(sequence, code)
        check(refused.delay_s is None, "a refusal for good: delay_s is null", refused)

    async def sync(self, next_sequence: int, pending: Spans) -> messages.Synced:
        """State what is held, and wait for the answer."""
        probe = self.sync_nowait(next_sequence, pending)
        synced, _ = await self.next(
            messages.Synced, f"the answer to probe {probe}", lambda each: each.probe == probe
        )
        self.server = synced.server
        return synced

    async def unknown(self) -> messages.Unknown:
        """The answer to a message of a session that is not known."""
        unknown, _ = await self.next(
            messages.Unknown, "Unknown", lambda each: each.session == self.session
        )
        return unknown

    async def gone(self) -> None:
        """Ask until the session is gone."""
        unknown = None
        with trio.move_on_after(self.patience_s):
            while unknown is None or not unknown.gone:
                self.sync_nowait(1, [0, 1])
                unknown = await self.unknown()
                await trio.sleep(0 if unknown.gone else LOOK_S)
        check(unknown is not None and unknown.gone, "gone, once nothing of it runs", unknown)

    async def cancel(self, sequence: int) -> bool | None:
        """Cancel, and hear whether it ever started; None if it never came."""
        self.send(messages.Cancel(self.session, sequence))
        return await self.cancelled(sequence)

    async def cancelled(self, sequence: int) -> bool | None:
        """The answer to a cancel: whether the request ever started; None if it never came."""
        cancelled, _ = await self.next(
            messages.Cancelled,
            f"the answer to the cancel of sequence {sequence}",
            lambda each: each.session == self.session and each.sequence == sequence,
        )
        return cancelled.started

    async def barrier(self) -> None:
        """Until the server has taken in everything that was sent before on this
        connection, and what it answered at once is here."""
        self._stats_probe += 1
        probe = self._stats_probe
        self.send(messages.Query(probe, "statistics"))
        await self.next(messages.QueryAnswer, "an answer at all", lambda each: each.probe == probe)

    async def nothing_of(self, kind: type[Message], what: str) -> None:
        """Fail the case if a message of this kind has come by the next answer."""
        await self.barrier()
        check(not self.all(kind), what, self.received)


@asynccontextmanager
async def open_peer(
    network: Network, address: str, *, patience_s: float
) -> AsyncIterator[ConformancePeer]:
    """A connection, made, without a session.  Fails the case if it cannot be made."""
    connected = trio.Event()

    def on_event(event: ConnectionEvent) -> None:
        if event is ConnectionEvent.CONNECTED:
            connected.set()

    with unwrap_single():
        async with network.open_dealer(address, limits=WIRE, on_event=on_event) as socket:
            with trio.move_on_after(patience_s):
                await connected.wait()
            if not connected.is_set():
                raise TimedOut(f"a connection to {address}", f"none after {patience_s:g} s")
            yield ConformancePeer(socket, patience_s)


# == A connection made by hand: what no socket of a library would send
#
# The least of ZMTP (:mod:`.wire`) under a :class:`ConformancePeer`, so that a case
# can state an identity, or send a message in two halves.

READ_BYTES = 65536
_PING = b"\x04PING"


@final
class RawSocket:
    """As much of a dealer's socket as a peer needs."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._reader = wire.Reader()
        self._send, self._to_send = trio.open_memory_channel[bytes](math.inf)

    def send_nowait(self, frames: Sequence[Body]) -> bool:
        """Send a message; one that nobody takes any more is lost."""
        self.send_bytes(self.encoded(frames))
        return True

    def encoded(self, frames: Sequence[Body]) -> bytes:
        """The bytes of a message."""
        return wire.message(*map(bytes, frames))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes at all."""
        self._send.send_nowait(data)

    async def receive(self) -> list[Sequence[bytes]]:
        """Wait for messages.  Fails the case once the connection has ended."""
        while True:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError:
                data = b""  # as at its end
            if not data:
                raise CaseFailed("a connection that lasts", "its end")
            found = list(self._reader.feed(bytes(data)))
            for command in self._reader.commands:
                if command.startswith(_PING):
                    self.send_bytes(wire.command(b"PONG", command[len(_PING) + 2 :][:16]))
            self._reader.commands.clear()
            if found:
                return found

    async def run(self) -> None:
        """Send what is to be sent, until the connection ends."""
        async for data in self._to_send:
            try:
                await self._stream.send_all(data)
            except trio.BrokenResourceError:
                return


@asynccontextmanager
async def open_raw_peer(
    address: str, *, patience_s: float, identity: bytes
) -> AsyncIterator[tuple[ConformancePeer, RawSocket]]:
    """A connection that states an identity, and its socket.  Fails the case if it
    cannot be made."""
    parsed = parse_peer_address(address)
    stream: trio.abc.Stream | None = None
    with trio.move_on_after(patience_s), suppress(OSError):  # told below
        if parsed.scheme == "tcp":
            stream = await trio.open_tcp_stream(parsed.host, parsed.port)
        else:
            stream = await trio.open_unix_socket(parsed.path)
    if stream is None:
        raise TimedOut(f"a connection to {address}", f"none after {patience_s:g} s")
    async with stream, trio.open_nursery() as nursery:
        socket = RawSocket(stream)
        nursery.start_soon(socket.run)
        socket.send_bytes(wire.greeting() + wire.ready(identity=identity))
        yield ConformancePeer(socket, patience_s), socket
        nursery.cancel_scope.cancel()


async def taken_in(peer: ConformancePeer) -> None:
    """Until the server has read all that was said, or has ended the connection."""
    with suppress(CaseFailed):
        await peer.barrier()
