"""Honest callers at the doors of a besieged server: what they ask is judged as a client's.

Theory of operation
-------------------
Each has one connection, and one call at a time under a name of its own: a key by HTTP, a
request id by the wire of verifiers.  A connection that ends is made anew, and what was
refused for now waits; then the same is asked again, to the letter.  So whatever the siege
does to connections, each call comes to one answer, and has one start.  As everywhere in
the siege, the bytes are made by hand.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar, final

import trio

from trio_envserve.lab.conformance import wire

from .context import AttackContext, Connection, ConnectionEnded, seeded

PAUSE_S = 0.1
"""Before a connection is made anew."""

AGAIN_S = 1.0
"""Before what was refused for now is asked again."""

ANSWER_S = 5.0
"""After this without an answer it is asked again, on another connection."""

NAMESPACE = "honest"
"""Of keys by HTTP: attackers have a share of their own."""

LATER: Final = (429, 503)
"""Statuses that say that it did not run for now."""

T = TypeVar("T")


class Answer(NamedTuple):
    """The result of a call."""

    value: Any
    """None if there is none."""
    error: str | None = None


class RefusedForNow(Exception):
    """It did not run, and may be asked again."""


class DoorCaller(ABC):
    """One honest caller, with one connection at a time."""

    def __init__(self, address: str) -> None:
        self._context = AttackContext(address, seeded("honest"))
        self._connection: Connection | None = None

    @abstractmethod
    async def ask(self, key: str, asked: Mapping[str, Any]) -> Answer:
        """One call under a name of its own, to its answer."""

    @abstractmethod
    async def _greet(self, connection: Connection) -> None:
        """Greet the door, before the first call of a connection."""

    async def _until_answered(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """The answer of ``ask``, however many connections it takes."""
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._context.open()
                    await self._greet(self._connection)
                return await ask(self._connection)
            except ConnectionEnded:
                await self.close()
                await trio.sleep(PAUSE_S)
            except RefusedForNow:
                await trio.sleep(AGAIN_S)

    async def close(self) -> None:
        """Close its connection; the next call makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


@final
class HttpCaller(DoorCaller):
    """Asks by ``POST`` under a key, and deletes the key when it has the answer."""

    async def ask(self, key: str, asked: Mapping[str, Any]) -> Answer:
        """See the base."""
        body = json.dumps({"input": asked})
        status, found = await self._request(
            f"POST /v1/rollouts?namespace={NAMESPACE}", f'Idempotency-Key: "{key}"',
            "Content-Type: application/json", f"Content-Length: {len(body)}", body=body,
        )  # fmt: skip
        await self._request(f"DELETE /v1/rollouts/{key}?namespace={NAMESPACE}")
        if status == 200:
            return Answer(found["value"])
        return Answer(None, f"{status} {found.get('code')}: {found.get('detail')}")

    async def _greet(self, connection: Connection) -> None:
        """HTTP has no handshake."""

    async def _request(self, target: str, *headers: str, body: str = "") -> tuple[int, Any]:
        """The status and the body of the answer."""
        host = self._context.address.partition("://")[2]
        head = "\r\n".join([f"{target} HTTP/1.1", f"Host: {host}", *headers, "", ""])

        async def ask(connection: Connection) -> tuple[int, Any]:
            await connection.send((head + body).encode())
            status, fields, data = await answer_of(connection)
            if fields.get("connection") == "close":
                await self.close()
            if status in LATER:
                raise RefusedForNow
            return status, json.loads(data)

        return await self._until_answered(ask)


async def answer_of(connection: Connection) -> tuple[int, dict[str, str], bytes]:
    """The next answer by HTTP, whose length is told.  Raises ConnectionEnded if it does
    not come in time."""
    data = b""
    with trio.move_on_after(ANSWER_S):
        while b"\r\n\r\n" not in data:
            data += await connection.receive()
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines)
        while len(body) < int(fields["content-length"]):
            body += await connection.receive()
        return int(first.split()[1]), fields, body
    raise ConnectionEnded(f"no answer for {ANSWER_S:g} s")


@final
class VerifiersCaller(DoorCaller):
    """Asks for runs by the wire of verifiers."""

    async def ask(self, key: str, asked: Mapping[str, Any]) -> Answer:
        """See the base."""
        name = key.encode()
        said = wire.message(name, b"run", json.dumps(asked).encode())

        async def ask(connection: Connection) -> Answer:
            await connection.send(said)
            while True:
                frames = await connection.hear()
                if [*frames[:2]] == [name, b"reply"]:  # others are offered, too
                    return _reply(frames[2])

        return await self._until_answered(ask)

    async def _greet(self, connection: Connection) -> None:
        await connection.shake_hands()


def _reply(body: bytes) -> Answer:
    """The environment's reply is JSON; the door's own, that of a failure, is not."""
    try:
        return Answer(json.loads(body))
    except ValueError:
        if body.endswith(b"(it did not run)"):
            raise RefusedForNow from None
        return Answer(None, body.decode("utf-8", "replace"))


CALLERS: Final[Mapping[str, Callable[[str], DoorCaller]]] = {
    "http": HttpCaller, "verifiers": VerifiersCaller,
}  # fmt: skip
"""By the name of the door."""


@asynccontextmanager
async def open_door_caller(door: str, address: str) -> AsyncGenerator[DoorCaller, None]:
    """A caller at a door."""
    caller = CALLERS[door](address)
    try:
        yield caller
    finally:
        await caller.close()  # noqa: ASYNC102  # forceful, so it does not wait
