"""Honest callers at the doors: one answer and one start for each call, whatever gives way."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.attack import honest
from tests.attack.besieged import Besieged
from tests.attack.test_attacks import GREETING, READY
from tests.doors.http import door as http
from tests.doors.verifiers import door as verifiers
from trio_envserve.client import Outcome

HANG_S = 180.0
ASKED = {"request": "c1/3", "seconds": 0.0, "pad": b"", "give": 0}
DOORS: dict[str, Any] = {"http": http, "verifiers": verifiers}


@pytest.fixture
def besieged(tmp_path: Path) -> Besieged:
    """The environment, without a meter: its loop is the test's."""
    return Besieged(str(tmp_path / "events.jsonl"), meter=False)


@pytest.mark.parametrize(
    ("door", "error"), [("http", "500 rollout-failed"), ("verifiers", "it ran and failed")]
)
async def test_call_at_a_door_is_answered_and_its_name_is_free_again(besieged, door, error):
    async with DOORS[door].open_door(besieged) as opened:
        address = opened.url if door == "http" else opened.address
        async with honest.open_door({"address": address}) as client:
            for _ in range(1 + (door == "http")):
                outcome = await client.outcome(ASKED)
                assert outcome.value["request"] == "c1/3"
            outcome = await client.outcome({"request": "k", "seconds": "none"})
    assert error in str(outcome.error)


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


async def asked(server: Unreliable, scheme: str) -> Outcome:
    serve = partial(server.serve, zmtp=scheme == "tcp")
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, serve, listeners))
        address = f"{scheme}://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        with trio.fail_after(HANG_S):
            async with honest.open_door({"address": address}) as client:
                outcome: Outcome = await client.outcome(ASKED)
        nursery.cancel_scope.cancel()
    return outcome


def answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


async def test_call_that_was_lost_or_refused_by_http_is_asked_again_to_the_letter(monkeypatch):
    monkeypatch.setattr(honest, "AGAIN_S", 0.01)
    refused, good = answer(429, b"{}"), answer(200, b'{"value": 7}')
    server = Unreliable([b""], [refused], [good[:-3]], [good], [b""], [good])
    assert (await asked(server, "http")).value == 7
    *posts, gone, delete = server.asked
    assert len(posts) == 4
    assert len(set(posts)) == 1
    assert posts[0].startswith(b"POST /v1/rollouts?namespace=honest HTTP/1.1\r\n")
    assert b'Idempotency-Key: "c1-3"\r\n' in posts[0]
    assert gone == delete
    assert delete.startswith(b"DELETE /v1/rollouts/c1-3?namespace=honest HTTP/1.1\r\n")


async def test_call_that_was_lost_or_refused_by_the_wire_of_verifiers_is_asked_again(monkeypatch):
    monkeypatch.setattr(honest, "AGAIN_S", 0.01)

    def reply(name: bytes, body: bytes) -> bytes:
        parts = b"\x01", bytes((len(name),)), name, b"\x01\x05reply\x00", bytes((len(body),)), body
        return b"".join(parts)

    other, good = reply(b"c1/2", b"8"), reply(b"c1/3", b"7")
    full = reply(b"c1/3", b"\x81\xa5error\xb2 (it did not run)")
    server = Unreliable([b""], [full], [other + good])
    assert (await asked(server, "tcp")).value == 7
    assert len(server.asked) == 3
    assert len(set(server.asked)) == 1
