"""Raw connections to a victim, or from one, and what an attack does with them.

Theory of operation
-------------------
The deed of an attack is what one connection says: the bytes to send next and the seconds to wait.
:func:`perform` does it on as many connections at once as its row says, each brought first to the
stage that the row names (:data:`Stage`), by ZMTP made by hand
(:mod:`trio_envserve.lab.conformance.wire`), so that no mistake is shared with the victim.
:func:`repeat` does that again and again until the time is over: a connection that the victim
closes is no failure, but what a good victim does, and is counted.  Everything random comes from
one source, so a seed decides what is sent.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import random
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias, TypeVar, final

import trio

from trio_envserve.core import messages
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.messages import Hello, Message, Welcome
from trio_envserve.lab.conformance import wire

ANSWER_S = 5.0
"""Longest wait for the victim's part of a handshake, or for an answer."""

PAUSE_S = 0.02
"""Pause between two rounds of an attack."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds
_ENDED = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)

M = TypeVar("M")

Stage: TypeAlias = Literal["bare", "peer", "named", "hello", "session"]
"""How far a connection is when an attack begins: made; shaken hands, without or with a routing
id; on the side of a server, the client's hello heard; with a session that the other side takes
for a right one."""

Place: TypeAlias = Literal["front", "http", "verifiers", "client"]
"""The victim: a server at its own front or at one of its doors, or a client."""

Steps: TypeAlias = Iterable[Any]
"""Bytes to send, seconds to wait, iterables of these, or a word: ``reset``, from now on a close
throws away what is under way; ``answer``, wait for the next message; ``together``, wait for the
other connections of the attack."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attack:
    """One way to do harm: a row of the table of :mod:`.attacks`."""

    name: str
    what: str
    """Its deed, in one clause, as the page has it."""
    about: str
    """The finding that turns bad where a victim does not withstand it."""
    deed: Callable[..., Any]
    """Given a :class:`Connection`, its steps; or a coroutine function that is given the
    :class:`Attacker` and does all of it."""
    at: Place
    on: Stage
    abreast: int
    """Number of connections at once."""
    reads: bool
    """Whether what the victim says is read meanwhile, and forgotten."""


class Ended(Exception):
    """The victim has closed the connection, or takes too long to answer."""


@final
class Connection:
    """A raw connection.  Its methods raise :class:`Ended`."""

    def __init__(self, stream: trio.SocketStream, attacker: Attacker) -> None:
        self.attacker = attacker
        self.rng = attacker.rng
        self.hello: Hello
        """The client's, from the stage ``hello`` on."""
        self.welcome: Welcome
        """The server's, or the one that was given, at the stage ``session``."""
        self._stream = stream
        self._reader = wire.Reader()
        self._messages: collections.deque[Sequence[bytes]] = collections.deque()

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except _ENDED as error:
            raise Ended(type(error).__name__) from None
        self.attacker.counts["bytes"] += len(data)
        self.attacker.counts["sent"] += 1

    async def receive(self) -> bytes:
        try:
            data = await self._stream.receive_some(65536)
        except _ENDED as error:
            raise Ended(type(error).__name__) from None
        if not data:
            raise Ended("end of stream")
        return bytes(data)

    async def drain(self) -> None:
        """Read and forget, until the connection ends."""
        while True:
            await self.receive()

    async def say(self, header: Message) -> None:
        await self.send(said(header))

    async def hear(self) -> Sequence[bytes]:
        """The next message of the other side."""
        await self._until(lambda: bool(self._messages))
        return self._messages.popleft()

    async def hear_first(self, kind: type[M]) -> M:
        """The next message of this kind, alone or in a batch; those before it are forgotten."""
        while True:
            for message, _ in messages.read(await self.hear(), most_bytes=1 << 24):
                if isinstance(message, kind):
                    return message

    async def _until(self, is_there: Callable[[], bool]) -> None:
        with trio.move_on_after(ANSWER_S):
            while not is_there():
                self._messages += self._reader.feed(await self.receive())
            return
        raise Ended(f"nothing came for {ANSWER_S:g} s")

    async def shake_hands(self, socket_type: bytes = b"DEALER", identity: bytes = b"") -> None:
        """Both greetings and both ``READY``."""
        await self.send(wire.greeting())
        await self._until(lambda: self._reader.greeted)
        await self.send(wire.ready(socket_type, identity))
        await self._until(lambda: bool(self._reader.commands))

    async def come_to(self, stage: Stage, *, as_server: bool = False) -> None:
        """Bring a connection that was made, or taken, to its stage."""
        if stage != "bare":
            identity = self.rng.randbytes(16) if stage == "named" else b""
            await self.shake_hands(b"ROUTER" if as_server else b"DEALER", identity)
        if stage in ("hello", "session") and as_server:
            self.hello = await self.hear_first(Hello)
            self.welcome = welcome_to(self.hello, self.rng)
            await self.send(said(self.welcome) if stage == "session" else b"")
        elif stage == "session":
            await self.say(hello(self.rng))
            self.welcome = await self.hear_first(Welcome)

    async def do(self, attack: Attack) -> None:
        async with trio.open_nursery() as nursery:
            if attack.reads:
                nursery.start_soon(self.drain)
            self.attacker.counts["begun"] += 1
            for step in _flat(attack.deed(self)):
                match step:
                    case bytes():
                        await self.send(step)
                    case "reset":
                        self.reset()
                    case "answer":
                        await self.hear()
                    case "together":
                        await self.attacker.wait_for_others()
                    case seconds:
                        await trio.sleep(seconds)
            nursery.cancel_scope.cancel()

    def reset(self) -> None:
        """The next close throws away what is under way."""
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


def _flat(steps: Steps) -> Iterator[Any]:
    for each in steps:
        if isinstance(each, (bytes, float, str)):
            yield each
        else:
            yield from _flat(each)


@final
class Attacker:
    """The state of one attack: its victim's address (none, if that is a client), its random
    source, its counts."""

    def __init__(self, address: str, rng: random.Random, most_connections: int = 10_000) -> None:
        self.address = address
        self.rng = rng
        self.most_connections = most_connections
        self.counts: collections.Counter[str] = collections.Counter()
        """Numbers of ``connections``, of those that could not be made (``refused``), that came to
        their stage (``begun``) or that the victim has ``closed``, of ``bytes``, of times that
        something was ``sent``, and of whole ``rounds``."""
        self.shared = b""
        """Sixteen bytes that all connections of a round know."""
        self._abreast = self._waiting = 0
        self._together = trio.Event()

    @asynccontextmanager
    async def connection(self, stage: Stage = "bare") -> AsyncGenerator[Connection, None]:
        try:
            opened = Connection(await open_stream(self.address), self)
        except OSError:
            self.counts["refused"] += 1
            raise Ended("not connected") from None
        self.counts["connections"] += 1
        try:
            await opened.come_to(stage)
            yield opened
        finally:
            await opened.close()  # noqa: ASYNC102  # forceful, so it does not wait

    async def abreast(self, count: int, act: Callable[[], Awaitable[object]]) -> None:
        """Do it so many times at once: a round.  If one is ended by the victim the others go on."""
        closed = self.counts["closed"]

        async def one() -> None:
            try:
                await act()
            except* Ended:
                self.counts["closed"] += 1
            finally:
                self._abreast -= 1
                self._look()

        self.shared = self.rng.randbytes(16)
        self._abreast, self._waiting = min(count, self.most_connections), 0
        self._together = trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(self._abreast):
                nursery.start_soon(one)
        self.counts["rounds"] += self.counts["closed"] == closed

    async def wait_for_others(self) -> None:
        """Wait until each connection of this round waits here, or has ended."""
        self._waiting += 1
        self._look()
        await self._together.wait()
        self._waiting -= 1

    def _look(self) -> None:
        if self._waiting == self._abreast:
            self._together.set()


async def open_stream(address: str) -> trio.SocketStream:
    scheme, _, rest = address.partition("://")
    if scheme == "ipc":
        return await trio.open_unix_socket(rest)
    host, _, port = rest.rpartition(":")
    return await trio.open_tcp_stream(host.strip("[]"), int(port))


async def perform(attack: Attack, attacker: Attacker) -> None:

    async def one() -> None:
        async with attacker.connection(attack.on) as connection:
            await connection.do(attack)

    if inspect.iscoroutinefunction(attack.deed):
        await attacker.abreast(1, lambda: attack.deed(attacker))
    else:
        await attacker.abreast(attack.abreast, one)


async def repeat(attack: Attack, attacker: Attacker, seconds: float) -> None:
    """Do it again and again for so long; on a busy machine until it is made once."""

    async def go_on() -> None:
        while True:
            await perform(attack, attacker)
            await trio.sleep(PAUSE_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        await trio.sleep(seconds)
        with trio.move_on_after(ANSWER_S):
            while not attacker.counts["connections"]:
                await trio.sleep(PAUSE_S)
        nursery.cancel_scope.cancel()


async def be_hostile(attack: Attack, attacker: Attacker, stream: trio.SocketStream) -> None:
    """Do it as a server, to the client that has made a connection."""
    attacker.counts["connections"] += 1
    connection = Connection(stream, attacker)

    async def one() -> None:
        try:
            await connection.come_to(attack.on, as_server=True)
            await connection.do(attack)
        finally:
            await connection.close()  # noqa: ASYNC102  # forceful, so it does not wait

    await attacker.abreast(1, one)


# -- parts of messages ------------------------------------------------------------------


def said(header: Message, *frames: bytes) -> bytes:
    return wire.message(messages.encode(header), *frames)


def hello(rng: random.Random) -> Hello:
    return Hello(PROTOCOL_VERSION, rng.randbytes(16), 1, "attacker", 1 << 24, bytes(16))


def welcome_to(hello: Hello, rng: random.Random) -> Welcome:
    """A welcome that a client takes."""
    server = {"environment": "arithmetic", "rerun": False, "ready": True, "workers": 1}
    return Welcome(
        PROTOCOL_VERSION, hello.nonce, rng.randbytes(16), rng.randbytes(16), 1000, 1 << 24, server
    )


def seeded(*parts: object) -> random.Random:
    return random.Random("/".join(map(str, parts)))
