"""Honest callers at the doors: one answer and one start for each call, whatever gives way."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.attack import door_callers
from tests.attack.door_callers import open_door_caller
from tests.attack.environment import Besieged
from tests.attack.reader import GREETING, READY
from tests.doors.http import door as http
from tests.doors.verifiers import door as verifiers
from trio_envserve.envs.arithmetic import Arithmetic
from trio_envserve.lab.answers import is_right

HANG_S = 180.0
ASKED = {"index": 3, "key": "c1/3"}


@pytest.fixture
def besieged(tmp_path: Path) -> Besieged:
    """The environment of the siege, without a meter: its loop is the test's."""
    log = str(tmp_path / "environment.jsonl")
    return Besieged(log_path=log, loop_path="", size=10, meter=False)


async def test_a_call_by_http_is_answered_as_the_clients_are(besieged):
    async with http.open_door(besieged) as door, open_door_caller("http", door.url) as caller:
        for _ in range(2):  # its key is free again
            value, error = await caller.ask("c1/3", ASKED)
            assert error is None
            assert is_right(Arithmetic(size=10), 3, value)


async def test_a_call_by_the_wire_of_verifiers_is_answered_as_the_clients_are(besieged):
    async with (
        verifiers.open_door(besieged) as door,
        open_door_caller("verifiers", door.address) as caller,
    ):
        value, error = await caller.ask("c1/3", ASKED)
        assert error is None
        assert is_right(Arithmetic(size=10), 3, value)


@pytest.mark.parametrize(
    ("door", "error"), [("http", "500 rollout-failed"), ("verifiers", "it ran and failed")]
)
async def test_an_error_is_an_answer(besieged, door, error):
    kind: Any = {"http": http, "verifiers": verifiers}[door]
    async with kind.open_door(besieged) as opened:
        address = opened.url if door == "http" else opened.address
        async with open_door_caller(door, address) as caller:
            found = await caller.ask("k", {"index": 99, "key": "k"})
    assert found.value is None
    assert error in str(found.error)


class Unreliable:
    """A plain server: each connection is told what it answers, and then it hangs up."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self._scripts = list(scripts)
        self.asked: list[bytes] = []

    async def serve(self, stream: trio.SocketStream, zmtp: bool = False) -> None:
        script = self._scripts.pop(0)
        if zmtp:
            await stream.send_all(GREETING)
            data = b""
            while b"READY" not in data:
                data += await stream.receive_some()
            await stream.send_all(READY)
        for answer in script:
            self.asked.append(bytes(await stream.receive_some()))
            await stream.send_all(answer)


async def asked(server: Unreliable, door: str, scheme: str, **how: Any):
    """What a caller gets of such a server."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, partial(server.serve, **how), listeners))
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(HANG_S):
            async with open_door_caller(door, f"{scheme}://127.0.0.1:{port}") as caller:
                answer = await caller.ask("c1/3", ASKED)
        nursery.cancel_scope.cancel()
    return answer


def answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


async def test_what_was_lost_or_refused_by_http_is_asked_again_to_the_letter(monkeypatch):
    monkeypatch.setattr(door_callers, "AGAIN_S", 0.01)
    refused, good = answer(429, b"{}"), answer(200, b'{"value": 7}')
    server = Unreliable([b""], [refused, good[:-3]], [good, good])
    assert await asked(server, "http", "http") == (7, None)
    *posts, delete = server.asked
    assert len(posts) == 4
    assert len(set(posts)) == 1
    assert posts[0].startswith(b"POST /v1/rollouts?namespace=honest HTTP/1.1\r\n")
    assert b'Idempotency-Key: "c1/3"\r\n' in posts[0]
    assert delete.startswith(b"DELETE /v1/rollouts/c1/3?namespace=honest HTTP/1.1\r\n")


async def test_what_was_lost_or_refused_by_the_wire_of_verifiers_is_asked_again(monkeypatch):
    monkeypatch.setattr(door_callers, "AGAIN_S", 0.01)

    def reply(name: bytes, body: bytes) -> bytes:
        return b"".join(
            (b"\x01", bytes((len(name),)), name, b"\x01\x05reply\x00", bytes((len(body),)), body)
        )

    other, good = reply(b"c1/2", b"8"), reply(b"c1/3", b"7")
    full = reply(b"c1/3", b"\x81\xa5error\xb2 (it did not run)")
    server = Unreliable([b""], [full, other + good])
    found = await asked(server, "verifiers", "tcp", zmtp=True)
    assert found == (7, None)
    assert len(server.asked) == 3
    assert len(set(server.asked)) == 1
