"""The tools of an attack: connections, a random source, and its counts.

Theory of operation
-------------------
An attack is a coroutine that gets a :class:`AttackContext` and does its harm once.  It is
run again and again until its time is over (:func:`run_attack`); that its connection is
closed is no failure of it, but what a good victim does: it is counted, and the
attack begins anew.  Everything random comes from the context's own source, so that a
seed decides what is sent.
"""

from __future__ import annotations

import collections
import random
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Literal, NamedTuple, TypeAlias, TypeVar, final

import trio
import trio.lowlevel

from trio_envserve.core import messages
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.messages import Message
from trio_envserve.lab.conformance import wire

ANSWER_S = 5.0
"""How long an attack waits for the victim's part of a handshake or a welcome."""

PAUSE_S = 0.02
"""Between two beginnings of an attack whose connection was closed or refused."""

BATCH = 200
"""Messages in one write of a flood."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds
_ENDED = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)

M = TypeVar("M")
Run: TypeAlias = "Callable[[AttackContext], Awaitable[None]]"

Place: TypeAlias = Literal["front", "http", "verifiers"]
"""Where a server is attacked: its own front, or one of its doors."""


class Attack(NamedTuple):
    """One way to do harm."""

    run: Run
    finding: str
    """The number of the finding that it repeats; empty if there is none."""
    what: str
    """Its deed, in one clause."""
    at: Place = "front"


class ConnectionEnded(Exception):
    """The victim has closed the connection, or took too long to answer."""


@final
class Connection:
    """A raw connection.  Every method raises :class:`ConnectionEnded`."""

    def __init__(self, stream: trio.SocketStream, counts: collections.Counter[str]) -> None:
        self._stream = stream
        self._counts = counts
        self._reader = wire.Reader()
        self._messages: collections.deque[Sequence[bytes]] = collections.deque()

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        try:
            await self._stream.send_all(data)
        except _ENDED as error:
            raise ConnectionEnded(type(error).__name__) from None
        self._counts["bytes"] += len(data)

    async def receive(self) -> bytes:
        """Some bytes."""
        try:
            data = await self._stream.receive_some(65536)
        except _ENDED as error:
            raise ConnectionEnded(type(error).__name__) from None
        if not data:
            raise ConnectionEnded("end of stream")
        return bytes(data)

    async def drain(self) -> None:
        """Read and forget, until the connection ends."""
        while True:
            await self.receive()

    @asynccontextmanager
    async def drained(self) -> AsyncGenerator[None, None]:
        """While the block lasts, what comes is read and forgotten."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.drain)
            yield
            nursery.cancel_scope.cancel()

    async def flood(self, said: Callable[[], bytes], writes: int) -> None:
        """So many writes, each of :data:`BATCH` messages."""
        for _ in range(writes):
            await self.send(b"".join(said() for _ in range(BATCH)))
            self._counts["messages"] += BATCH
            await trio.lowlevel.checkpoint()

    async def wait_closed(self, limit_s: float) -> None:
        """Read and forget for so long at most; raises if the connection ends before."""
        with trio.move_on_after(limit_s):
            await self.drain()

    async def shake_hands(
        self, *, socket_type: bytes = b"DEALER", identity: bytes | None = b""
    ) -> None:
        """Both greetings and both ``READY``."""
        await self.send(wire.greeting())
        await self._until(lambda: self._reader.greeted)
        await self.send(wire.ready(socket_type, identity))
        await self._until(lambda: bool(self._reader.commands))

    async def say(self, header: Message, *frames: bytes) -> None:
        """A message of the application protocol."""
        await self.send(wire.message(messages.encode(header), *frames))

    async def hear(self, limit_s: float = ANSWER_S) -> Sequence[bytes]:
        """The next message of the peer."""
        await self._until(lambda: bool(self._messages), limit_s)
        return self._messages.popleft()

    async def hear_first(self, kind: type[M]) -> M:
        """The next message of this kind, alone or in a batch; those before it are forgotten."""
        while True:
            for message, _ in messages.read(await self.hear(), most_bytes=1 << 24):
                if isinstance(message, kind):
                    return message

    async def _until(self, is_there: Callable[[], bool], limit_s: float = ANSWER_S) -> None:
        with trio.move_on_after(limit_s):
            while not is_there():
                for frames in self._reader.feed(await self.receive()):
                    self._messages.append(frames)
            return
        raise ConnectionEnded(f"nothing came for {limit_s:g} s")

    def reset(self) -> None:
        """The next close throws away what is under way."""
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    async def close(self) -> None:
        """Close it."""
        await trio.aclose_forcefully(self._stream)


@final
class AttackContext:
    """The tools of one attack."""

    def __init__(self, address: str, rng: random.Random, most_connections: int = 10_000) -> None:
        self.address = address
        self.rng = rng
        self.most_connections = most_connections
        """Most connections of an attack that only makes many."""
        self.counts: collections.Counter[str] = collections.Counter()
        """Counts of ``connections``, ``bytes``, ``closed`` (by the victim), ``refused``
        (connections that could not be made), ``rounds`` and what the attack itself counts."""
        self.message_bytes = 0
        """The largest frame that the victim's last welcome allowed."""

    async def open(self) -> Connection:
        """A bare connection, to be closed by the caller."""
        try:
            stream = await open_stream(self.address)
        except OSError:
            self.counts["refused"] += 1
            raise ConnectionEnded("not connected") from None
        self.counts["connections"] += 1
        return Connection(stream, self.counts)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection, None]:
        """A bare connection."""
        opened = await self.open()
        try:
            yield opened
        finally:
            await opened.close()  # noqa: ASYNC102  # forceful, so it does not wait

    @asynccontextmanager
    async def peer(self, identity: bytes = b"") -> AsyncGenerator[Connection, None]:
        """A connection after its handshake."""
        async with self.connection() as opened:
            await opened.shake_hands(identity=identity)
            yield opened

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[tuple[Connection, messages.Welcome], None]:
        """A connection with a session of its own."""
        async with self.peer() as peer:
            await peer.say(self.hello())
            found = await peer.hear_first(messages.Welcome)
            self.message_bytes = found.message_bytes
            yield peer, found

    async def end_at_once(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Connection]],
        said: Callable[[], bytes],
        count: int,
    ) -> None:
        """Messages on as many connections, all of which end in the same moment."""
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(connect()) for _ in range(count)]
            ends = []
            for peer in peers:
                message = said()
                await peer.send(message[:-1])
                ends.append(message[-1:])
            for peer, end in zip(peers, ends, strict=True):
                await peer.send(end)
                self.counts["messages"] += 1
            await peers[-1].wait_closed(0.5)

    def hello(self, *, message_bytes: int = 1 << 24) -> messages.Hello:
        """A hello with a fresh nonce."""
        return messages.Hello(PROTOCOL_VERSION, self.id(), 1, "siege", message_bytes)

    def id(self) -> bytes:
        """Sixteen random bytes."""
        return self.rng.randbytes(16)


async def open_stream(address: str) -> trio.SocketStream:
    """Connect to ``tcp://``, ``http://`` or ``ipc://``.  OSError if nobody takes it."""
    scheme, _, rest = address.partition("://")
    if scheme == "ipc":
        return await trio.open_unix_socket(rest)
    host, _, port = rest.rpartition(":")
    return await trio.open_tcp_stream(host.strip("[]"), int(port))


async def run_attack(attack: Attack, context: AttackContext, seconds: float) -> None:
    """Run an attack again and again for so long."""
    with trio.move_on_after(seconds):
        while True:
            try:
                await attack.run(context)
                context.counts["rounds"] += 1
            except* ConnectionEnded:
                context.counts["closed"] += 1
            await trio.sleep(PAUSE_S)


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as it may have; how many that are."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return int(hard)


def digest_of(number: int) -> bytes:
    """Some sixteen bytes that differ."""
    return number.to_bytes(16, "big")


def seeded(*parts: object) -> random.Random:
    """A random source that depends on these only."""
    return random.Random("/".join(map(str, parts)))
