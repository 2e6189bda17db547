"""The honest callers beside an attack, as :mod:`tests.rig.client` needs them: what they ask, and
how they reach the server, at its front and at its doors.

Theory of operation
-------------------
A caller at a door has one connection, and one call at a time under a name of its own: a key by
HTTP, a request id by the wire of verifiers.  A connection that ends is made anew, and a call that
was refused for now waits; then the same is asked again, to the letter.  So whatever the attack
does to connections, each call comes to one answer, and has one start.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar, final

import trio

from tests.attack.wires import Attacker, Connection, Ended, Stage, open_stream, seeded
from tests.rig.client import Ask, Asks
from tests.rig.meter import watch_loop
from tests.rig.server import send_heartbeats
from trio_envserve.client import Client, Outcome, open_client
from trio_envserve.core.errors import RolloutFailed
from trio_envserve.core.limits import ClientLimits, WireLimits
from trio_envserve.lab.conformance import wire

PAUSE_S = 0.1
"""Before a connection is made anew."""
AGAIN_S = 1.0
"""Before a call that was refused for now is asked again."""
ANSWER_S = 5.0
"""After this without an answer it is asked again, on another connection."""
HOSTILE = 1
"""How far the mix reaches to a server that may not be believed, so that nothing is logged."""
HELD_S = 0.5
"""Duration of the rollouts of the client ``held``: all have ended long before a held loop goes
on."""

T = TypeVar("T")


@final
class Mix(Asks):
    """Short rollouts, each asked once."""

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(seed, name)
        self._seconds = HELD_S if name.startswith("held") else 0.0
        # A client that was attacked asks again until it has found the honest server.
        self._limit_s = 20.0 if name.startswith("attacked") else None
        self._numbers = itertools.count()

    def draw(self, reach: int) -> Ask:
        if reach == HOSTILE:
            return Ask("", timeout_s=2.0)
        return Ask(f"{self.name}/{next(self._numbers)}", self._seconds, timeout_s=self._limit_s)


# -- at the front ------------------------------------------------------------------------


@final
class Crowd:
    """A client, and others beside it for calls that are not logged.  They are opened by the first
    such call, so that they have no session yet when they meet a hostile server."""

    def __init__(self, first: Client, further: list[Callable[[], Awaitable[Client]]]) -> None:
        self._first = first
        self._further = further
        self._clients = itertools.cycle([first])

    async def wait_ready(self) -> None:
        await self._first.wait_ready()

    async def outcome(self, asked: dict[str, Any], **limits: Any) -> Outcome:
        if asked["request"]:
            return await self._first.outcome(asked, **limits)
        if self._further:
            further, self._further = self._further, []
            self._clients = itertools.cycle([self._first, *[await each() for each in further]])
        return await next(self._clients).outcome(asked, **limits)


@asynccontextmanager
async def open_front(options: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
    """Clients at the front, in one loop that is measured."""
    watch_loop(options["log"], "client")
    if options.get("beats"):
        send_heartbeats()
    limits, wires = ClientLimits(**options.get("limits", {})), WireLimits(**options.get("wire", {}))
    transport = options.get("transport", "zmtp")
    opened = partial(
        open_client, options["address"], limits=limits, wire=wires, transport=transport
    )

    async def stay(name: str, *, task_status: trio.TaskStatus[Client]) -> None:
        async with opened(name=name) as client:
            task_status.started(client)
            await trio.sleep_forever()

    names = [f"{options['name']}-{number}" for number in range(options.get("clients", 1))]
    async with opened(name=names[0]) as first, trio.open_nursery() as nursery:
        yield Crowd(first, [partial(nursery.start, stay, name) for name in names[1:]])
        nursery.cancel_scope.cancel()


# -- at the doors ------------------------------------------------------------------------


class RefusedForNow(Exception):
    """It did not run, and may be asked again."""


class DoorClient:
    """A client at a door; each call that is under way has a connection of its own."""

    def __init__(self, address: str) -> None:
        self._attacker = Attacker(address, seeded("honest"))
        self._idle: list[Connection] = []

    async def wait_ready(self) -> None:
        """It connects when it is asked."""

    async def _answered(self, ask: Callable[[Connection], Awaitable[T]], stage: Stage) -> T:
        """The answer of ``ask``, however many connections it takes."""
        while True:
            connection = None
            try:
                with trio.move_on_after(ANSWER_S):
                    connection = self._idle.pop() if self._idle else await self._open(stage)
                    answer = await ask(connection)
                    self._idle.append(connection)
                    connection = None
                    return answer
            except Ended:
                pass
            except RefusedForNow:
                await trio.sleep(AGAIN_S)
            finally:
                if connection is not None:
                    await connection.close()  # noqa: ASYNC102  # forceful, so it does not wait
            await trio.sleep(PAUSE_S)

    async def close(self) -> None:
        for connection in self._idle:
            await connection.close()

    async def _open(self, stage: Stage) -> Connection:
        try:
            connection = Connection(await open_stream(self._attacker.address), self._attacker)
        except OSError:
            raise Ended("not connected") from None
        await connection.come_to(stage)
        return connection


@final
class HttpClient(DoorClient):
    """Asks by ``POST`` under a key, and deletes the key when it has the answer."""

    async def outcome(self, asked: dict[str, Any], **limits: Any) -> Outcome:
        key = asked["request"].replace("/", "-")
        body = json.dumps({"input": {**asked, "pad": None}})
        status, found = await self._request(
            "POST /v1/rollouts?namespace=honest", f'Idempotency-Key: "{key}"',
            "Content-Type: application/json", f"Content-Length: {len(body)}", body=body,
        )  # fmt: skip
        await self._request(f"DELETE /v1/rollouts/{key}?namespace=honest")
        if status == 200:
            return Outcome(value=found["value"], executions=1)
        return failed(f"{status} {found.get('code')}: {found.get('detail')}")

    async def _request(self, target: str, *headers: str, body: str = "") -> tuple[int, Any]:
        host = self._attacker.address.partition("://")[2]
        lines = [f"{target} HTTP/1.1", f"Host: {host}", *headers, "", body]

        async def ask(connection: Connection) -> tuple[int, Any]:
            await connection.send("\r\n".join(lines).encode())
            data = b""
            while b"\r\n\r\n" not in data:
                data += await connection.receive()
            head, _, content = data.partition(b"\r\n\r\n")
            first, *fields = head.decode("latin-1").lower().split("\r\n")
            length = int(dict(line.split(": ", 1) for line in fields)["content-length"])
            while len(content) < length:
                content += await connection.receive()
            status = int(first.split()[1])
            if status in (429, 503):
                raise RefusedForNow
            return status, json.loads(content)

        return await self._answered(ask, "bare")


@final
class VerifiersClient(DoorClient):
    async def outcome(self, asked: dict[str, Any], **limits: Any) -> Outcome:
        name, body = asked["request"].encode(), json.dumps({**asked, "pad": None}).encode()

        async def ask(connection: Connection) -> Outcome:
            await connection.send(wire.message(name, b"run", body))
            while True:
                frames = await connection.hear()
                if [*frames[:2]] == [name, b"reply"]:  # others are offered, too
                    break
            try:
                return Outcome(value=json.loads(frames[2]), executions=1)
            except ValueError:  # the door's own reply, that of a failure, is not JSON
                if frames[2].endswith(b"(it did not run)"):
                    raise RefusedForNow from None
                return failed(frames[2].decode("utf-8", "replace"))

        return await self._answered(ask, "peer")


def failed(why: str) -> Outcome:
    return Outcome(error=RolloutFailed(why))


@asynccontextmanager
async def open_door(options: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
    kind = HttpClient if options["address"].startswith("http:") else VerifiersClient
    client = kind(options["address"])
    try:
        yield client
    finally:
        await client.close()  # noqa: ASYNC102  # forceful, so it does not wait
