"""What strangers do to the HTTP door by raw sockets, and what that costs others."""

from __future__ import annotations

import json
import re
from typing import Any

import h11
import pytest
import trio

from tests.doors.http.door import asking, open_door, raw

HOST = "Host: localhost"
JSON = "Content-Type: application/json"
POST = ("POST /v1/rollouts HTTP/1.1", HOST, JSON)
TOKEN = "0123456789abcdef"


async def echo(rollout: Any) -> Any:
    return rollout.input


# -- paths, methods, versions -----------------------------------------------------


@pytest.mark.parametrize("path", ["//", "/v1/rollouts/", "/v1/rollouts%2Fkey", "/%00", "/..", "*"])
async def test_an_unknown_path_is_not_found(path: str):
    async with open_door(echo) as door, raw(door) as peer:
        await peer.send(f"GET {path} HTTP/1.1", HOST)
        answer = await peer.answer()
        assert (answer.status, answer.problem["code"]) == (404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/rollouts", "POST"),
        ("OPTIONS", "/v1/rollouts", "POST"),
        ("BREW", "/v1/batches", "POST"),
        ("DELETE", "/livez", "GET, HEAD"),
        ("POST", "/v1/openapi.json", "GET, HEAD"),
    ],
)
async def test_an_unknown_method_is_told_which_there_are(method: str, path: str, allow: str):
    async with open_door(echo) as door, raw(door) as peer:
        await peer.send(f"{method} {path} HTTP/1.1", HOST)
        answer = await peer.answer()
        assert (answer.status, answer.headers["allow"]) == (405, allow)
        assert answer.problem["code"] == "method-not-allowed"


async def test_http_1_0_is_spoken():
    async with open_door(echo) as door:
        async with raw(door) as peer:
            body = b'{"input": [1]}'
            length = f"Content-Length: {len(body)}"
            await peer.send("POST /v1/rollouts HTTP/1.0", HOST, JSON, length, body=body)
            assert json.loads((await peer.answer()).body)["value"] == [1]
            assert await peer.rest() == b""  # it ends the connection, as 1.0 does
        async with raw(door) as peer:
            await peer.send("GET /livez HTTP/1.0")
            assert (await peer.answer()).status == 400  # no Host


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
async def test_nothing_is_upgraded(upgrade: str):
    async with open_door(echo) as door, raw(door) as peer:
        settings = ("Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABk")
        await peer.send("GET /livez HTTP/1.1", HOST, *settings, f"Upgrade: {upgrade}")
        told = await peer.answer()
        assert told.status == (200 if upgrade == "h2c" else 400)


async def test_a_web_socket_that_ends_leaves_no_traceback(caplog: pytest.LogCaptureFixture):
    """Its end waited for room behind its beginning, which nobody reads: a KeyError."""
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    async with open_door(echo) as door:
        async with raw(door) as peer:
            key = "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="
            await peer.send("GET /livez HTTP/1.1", HOST, *upgrade, key)
            assert (await peer.answer()).status == 403
        async with raw(door) as peer:
            await peer.send("GET /livez HTTP/1.1", HOST)
            assert (await peer.answer()).status == 200
    assert not caplog.records


async def test_the_preface_of_http_2_opens_nothing():
    async with open_door(echo) as door, raw(door) as peer:
        await peer.stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await peer.rest()).startswith(b"HTTP/1.1 4")


async def test_pipelined_requests_are_answered_in_order():
    async with open_door(echo) as door, raw(door) as peer:
        requests = b"".join(
            f"{POST[0]}\r\n{HOST}\r\n{JSON}\r\nContent-Length: 12\r\n\r\n".encode()
            + b'{"input": %d}' % number
            for number in range(8)
        )
        await peer.stream.send_all(requests)
        values = [json.loads((await peer.answer()).body)["value"] for _ in range(8)]
        assert values == list(range(8))


async def test_who_pipelines_and_hangs_up_cancels_what_runs():
    """hypercorn reads nothing more while a second request waits: nobody noticed."""
    began, ended = trio.Event(), trio.Event()

    async def environment(rollout: Any) -> Any:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_door(environment) as door:
        async with raw(door) as peer:
            await peer.send(*POST, "Content-Length: 12", body=b'{"input": 0}')
            await began.wait()
            await peer.send("GET /livez HTTP/1.1", HOST)
        await ended.wait()


# -- what is written ----------------------------------------------------------------


@pytest.mark.parametrize(("size", "pieces"), [(1, 1), (1_000, 1), (100_000, 3)])
async def test_the_head_of_an_answer_is_written_with_its_body_if_that_is_small(
    monkeypatch: pytest.MonkeyPatch, size: int, pieces: int
):
    """Each write costs as much as all that is done to read a head."""
    written = []
    send_all = trio.SocketStream.send_all

    async def noted(self: trio.SocketStream, data: bytes) -> None:
        written.append(bytes(data))
        await send_all(self, data)

    async with open_door(echo) as door, raw(door) as peer:
        body = json.dumps({"input": "x" * size}).encode()
        await peer.send(*POST, f"Content-Length: {len(body)}", body=body)
        await peer.answer()
        monkeypatch.setattr(trio.SocketStream, "send_all", noted)
        await peer.send(*POST, f"Content-Length: {len(body)}", body=body)
        answer = await peer.answer()
        asked, *said = written
        assert asked.endswith(body)
        assert json.loads(answer.body)["value"] == "x" * size
        assert len(said) == pieces
        assert b"".join(said).endswith(b"\r\n\r\n" + answer.body)


async def test_an_answer_without_a_body_is_written():
    async with open_door(echo) as door, raw(door) as peer:
        for _ in range(2):
            await peer.send("HEAD /livez HTTP/1.1", HOST)
            said = await peer.stream.receive_some()
            assert said.startswith(b"HTTP/1.1 200 ")
            assert said.endswith(b"\r\n\r\n")


# -- heads that are no heads --------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\rX: a\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX y: a\r\n\r\n",
        b"GET /li\xffvez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/rollouts HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/rollouts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\n",
        b"POST /v1/rollouts HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 4_000 + b"\r\n",
    ],
    ids=range(13),
)
async def test_a_head_that_is_none_ends_its_connection_only(head: bytes):
    async with open_door(echo) as door, asking(door) as client:
        async with raw(door) as peer:
            await peer.stream.send_all(head)
            said = await peer.rest()
            assert re.match(rb"HTTP/1.1 (4\d\d|501) ", said), said
            assert len(head) < 20_000 or b" 431 " in said
        assert (await client.post("/v1/rollouts", json={"input": 1})).json()["value"] == 1


async def test_headers_cannot_be_smuggled_into_an_answer():
    async with open_door(echo) as door, raw(door) as peer:
        await peer.send("GET /v1/x%0d%0aX-Evil:%201 HTTP/1.1", HOST)
        answer = await peer.answer()
        assert (answer.status, "x-evil" in answer.headers) == (404, False)


async def test_a_head_that_never_ends_is_not_waited_for():
    async with open_door(echo, {"idle_s": 0.1}) as door, raw(door) as peer:
        await peer.stream.send_all(b"GET /livez HTTP/1.1\r\nX: ")
        assert await peer.rest() == b""


async def test_what_the_parser_raises_ends_its_connection_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with open_door(echo) as door, asking(door) as client:
        with monkeypatch.context() as patch:
            patch.delattr(h11.Connection, "next_event")
            async with raw(door) as peer:
                await peer.send("GET /livez HTTP/1.1", HOST)
                assert await peer.rest() == b""
            while door.connections:
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert "a connection of the HTTP door has failed" in caplog.text
        assert (await client.get("/livez")).status_code == 200


# -- bodies ---------------------------------------------------------------------


async def test_a_body_that_is_told_to_be_too_large_is_refused_before_any_of_it():
    async with open_door(echo, {"body_bytes": 1000}) as door, raw(door) as peer:
        await peer.send(*POST, "Content-Length: 1001")
        answer = await peer.answer()
        assert (answer.status, answer.problem["code"]) == (413, "body-too-large")
        assert answer.headers["connection"] == "close"
        assert await peer.rest() == b""


async def test_a_chunked_body_that_never_ends_is_refused_at_its_limit():
    """With all of hypercorn's queue full, it waited for ever to say that it was closed."""
    async with open_door(echo, {"body_bytes": 100_000, "linger_s": 0.1}) as door:
        async with raw(door) as peer:
            await peer.send(*POST, "Transfer-Encoding: chunked")

            async def flood() -> None:
                try:
                    while True:
                        await peer.stream.send_all(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass  # that is enough, says the door

            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood)
                answer = await peer.answer()
                assert (answer.status, answer.problem["code"]) == (413, "body-too-large")
                await peer.rest()
        while door.connections:
            await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("length", ["Content-Length: 100", "Transfer-Encoding: chunked"])
async def test_a_body_that_stops_is_not_waited_for(length: str):
    async with open_door(echo, {"body_s": 0.1}) as door, raw(door) as peer:
        await peer.send(*POST, length, body=b"5\r\nab")
        answer = await peer.answer()
        assert (answer.status, answer.problem["code"]) == (408, "body-too-slow")
        assert await peer.rest() == b""


async def test_who_hangs_up_in_the_middle_of_a_body_leaves_nothing():
    async with open_door(echo) as door:
        async with raw(door) as peer:
            await peer.send(*POST, "Content-Length: 100", body=b"{")
            await trio.testing.wait_all_tasks_blocked(0.01)
        while door.connections:
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_peer_that_takes_nothing_of_its_answer_is_cut_off():
    began = trio.Event()

    async def much(rollout: Any) -> Any:
        began.set()
        return "x" * 30_000_000

    async with open_door(much, {"write_s": 0.2}) as door:
        async with raw(door) as peer:
            await peer.send(*POST, "Content-Length: 12", body=b'{"input": 0}')
            await began.wait()
            while door.connections:
                await trio.testing.wait_all_tasks_blocked(0.01)


# -- connections ------------------------------------------------------------------


async def test_idle_connections_give_way_to_new_ones():
    async with open_door(echo, {"connections": 8}) as door:
        async with trio.open_nursery() as nursery:

            async def idle(started: trio.Event) -> None:
                async with raw(door) as peer:
                    started.set()
                    await peer.rest()

            for _ in range(40):
                started = trio.Event()
                nursery.start_soon(idle, started)
                await started.wait()
            async with asking(door) as client:
                answer = await client.post("/v1/rollouts", json={"input": 1})
                assert answer.json()["value"] == 1
            assert door.connections <= 40
            nursery.cancel_scope.cancel()


async def test_where_none_is_idle_a_new_connection_is_refused():
    began, go_on = trio.Event(), trio.Event()

    async def environment(rollout: Any) -> Any:
        began.set()
        await go_on.wait()

    async with open_door(environment, {"connections": 1}) as door:
        async with raw(door) as busy:
            await busy.send(*POST, "Content-Length: 12", body=b'{"input": 0}')
            await began.wait()
            async with raw(door) as peer:
                assert (await peer.rest()).startswith(b"HTTP/1.1 503 ")
            go_on.set()
            assert (await busy.answer()).status == 200


async def test_an_idle_connection_is_closed():
    async with open_door(echo, {"idle_s": 0.1}) as door, raw(door) as peer:
        await peer.send("GET /livez HTTP/1.1", HOST)
        # On a machine that stands still it may be closed before it has asked.
        assert (await peer.rest())[:13] in (b"HTTP/1.1 200 ", b"")
