"""What strangers do to the HTTP door by raw sockets, and what that costs others.

A request whose end is in doubt may be another one for a proxy in front of the door.
"""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from typing import Any

import h11
import pytest
import trio
import trio.testing

from tests.doors.http.door import Runs, asking, echo, nobody_is_connected, open_door, raw
from trio_envserve.doors.http.connections import Unread

HOST = "Host: localhost"
POST = ("POST /v1/rollouts HTTP/1.1", HOST, "Content-Type: application/json")
START = "".join(f"{line}\r\n" for line in POST).encode()
BODY = b'{"input":1}'
CHUNKED = b"b\r\n" + BODY + b"\r\n0\r\n\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
SMUGGLED = GET + b"\r\n"
"""The request that must not be answered: the front may have taken it for a body."""

# -- paths, methods, versions -----------------------------------------------------

CODES = {404: "not-found", 405: "method-not-allowed"}
REFUSED = [
    *((f"GET {path}", 404, "") for path in (
        "//", "/v1/rollouts/", "/v1/rollouts%2Fkey", "/%00", "/..", "*",
        "/v1/x%0d%0aX-Evil:%201")),
    ("GET /v1/rollouts", 405, "POST"),
    ("OPTIONS /v1/rollouts", 405, "POST"),
    ("BREW /v1/batches", 405, "POST"),
    ("DELETE /livez", 405, "GET, HEAD"),
    ("POST /v1/openapi.json", 405, "GET, HEAD"),
]  # fmt: skip


async def test_path_or_method_that_there_is_not_is_refused():
    async with open_door(echo) as door, raw(door) as peer:
        for asked, status, allow in REFUSED:
            await peer.send(f"{asked} HTTP/1.1", HOST)
            answer = await peer.answer()
            assert (answer.status, answer.headers.get("allow", "")) == (status, allow), asked
            assert answer.problem["code"] == CODES[status]
            assert "x-evil" not in answer.headers


async def test_http_1_0_is_spoken():
    async with open_door(echo) as door:
        async with raw(door) as peer:
            body = b'{"input": [1]}'
            start = ("POST /v1/rollouts HTTP/1.0", *POST[1:], f"Content-Length: {len(body)}")
            await peer.send(*start, body=body)
            assert json.loads((await peer.answer()).body)["value"] == [1]
            assert await peer.rest() == b""  # it ends the connection, as 1.0 does
        async with raw(door) as peer:
            await peer.send("GET /livez HTTP/1.0")
            assert (await peer.answer()).status == 400  # no Host


@pytest.mark.parametrize(
    "asked",
    [
        ("Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABk", "Upgrade: h2c"),
        ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
         "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="),
    ],
    ids=["h2c", "websocket"],
)  # fmt: skip
async def test_nothing_is_upgraded(asked: tuple[str, ...], caplog: pytest.LogCaptureFixture):
    """The end of a web socket waited behind its beginning, which nobody read: a KeyError."""
    async with open_door(echo) as door:
        async with raw(door) as peer:
            for _ in range(2):
                await peer.send("GET /livez HTTP/1.1", HOST, *asked)
                assert (await peer.answer()).status == 200
        await nobody_is_connected(door)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_preface_of_http_2_opens_nothing():
    async with open_door(echo) as door, raw(door) as peer:
        await peer.stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await peer.rest()).startswith(b"HTTP/1.1 4")


# -- heads and bodies that are none -----------------------------------------------------

IN_DOUBT = {
    "length-and-coding": b"Content-Length: 11\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "coding-and-length": b"Transfer-Encoding: chunked\r\nContent-Length: 21\r\n\r\n" + CHUNKED,
    "length-0-and-coding": b"Content-Length: 0\r\ntransfer-encoding:chunked\r\n\r\n" + CHUNKED,
    "two-lengths": b"Content-Length: 11\r\nContent-Length: 0\r\n\r\n" + BODY,
    "one-length-twice": b"Content-Length: 11\r\ncontent-length: 11\r\n\r\n" + BODY,
    "list-of-lengths": b"Content-Length: 11, 11\r\n\r\n" + BODY,
    "length-with-sign": b"Content-Length: +11\r\n\r\n" + BODY,
    "length-in-hex": b"Content-Length: 0xb\r\n\r\n" + BODY,
    "length-in-two-words": b"Content-Length: 1 1\r\n\r\n" + BODY,
    "length-folded": b"Content-Length:\r\n 11\r\n\r\n" + BODY,
    "length-before-space": b"Content-Length : 11\r\n\r\n" + BODY,
    "other-coding": b"Transfer-Encoding: gzip\r\n\r\n" + CHUNKED,
    "identity": b"Transfer-Encoding: identity\r\n\r\n",
    "coding-before-chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED,
    "coding-after-chunked": b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED,
    "chunked-twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKED,
    "two-fields-chunked": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
    + CHUNKED,
    "chunked-in-quotes": b'Transfer-Encoding: "chunked"\r\n\r\n' + CHUNKED,
    "chunked-with-parameter": b"Transfer-Encoding: chunked;a=b\r\n\r\n" + CHUNKED,
    "chunked-after-vertical-tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKED,
    "coding-before-space": b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKED,
    "coding-folded": b"Transfer-Encoding:\r\n\tchunked\r\n\r\n" + CHUNKED,
    "coding-behind-bare-lf": b"A: b\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "coding-behind-bare-cr": b"A: b\rTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "length-behind-bare-lf": b"A: b\nContent-Length: 11\r\n\r\n" + BODY,
    "head-ends-with-bare-lf": b"Content-Length: 11\r\n\n" + BODY,
    "nul-in-a-field": b"A: b\0c\r\nContent-Length: 11\r\n\r\n" + BODY,
    "field-without-name": b": b\r\nContent-Length: 11\r\n\r\n" + BODY,
    "folded-field": b"A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: 11\r\n\r\n" + BODY,
    "first-field-folded": b"\x20A: b\r\nContent-Length: 11\r\n\r\n" + BODY,
    "chunk-size-with-sign": b"Transfer-Encoding: chunked\r\n\r\n+b\r\n" + CHUNKED[3:],
    "chunk-size-in-0x": b"Transfer-Encoding: chunked\r\n\r\n0xb\r\n" + CHUNKED[3:],
    "chunk-size-below-0": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + CHUNKED[3:],
    "chunk-size-too-large": b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 20 + CHUNKED,
    "chunk-size-with-bare-lf": b"Transfer-Encoding: chunked\r\n\r\nb\n" + CHUNKED[3:],
    "chunk-longer-than-told": b"Transfer-Encoding: chunked\r\n\r\na" + CHUNKED[1:],
    "chunk-extension-with-bare-lf": b"Transfer-Encoding: chunked\r\n\r\nb;\nxx\r\n" + CHUNKED[3:],
}
NO_HEAD = {
    "bytes": b"\x00\x01\x02\r\n\r\n",
    "http-0.9": b"GET /livez\r\n\r\n",
    "no-host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two-hosts": b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "space-in-a-name": GET + b"X y: a\r\n\r\n",
    "no-ascii-in-a-path": b"GET /li\xffvez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "length-below-0": START + b"Content-Length: -1\r\n\r\n",
    "http-1.0-chunked": START.replace(b"/1.1", b"/1.0") + b"Connection: keep-alive\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "long-field": GET + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
    "many-fields": GET + b"X: a\r\n" * 4_000 + b"\r\n",
}
HOSTILE = NO_HEAD | {name: START + rest for name, rest in IN_DOUBT.items()}


async def test_a_request_whose_end_is_in_doubt_was_answered_and_the_next_one_served():
    """RFC 9112, 6.3: refused, nothing runs, and the connection ends there; no other does."""
    runs = Runs()
    async with open_door(runs) as door, raw(door) as other:
        for case, sent in HOSTILE.items():
            async with raw(door) as peer:
                await peer.stream.send_all(sent + SMUGGLED)
                answered = await peer.rest()
            wanted = (b"431",) if len(sent) > 20_000 else (b"400", b"501", b"505")
            assert answered[9:12] in wanted, (case, answered)
            assert answered.count(b"HTTP/1.1 ") == 1, case
            assert b"\r\nconnection: close\r\n" in answered.lower(), case
        await other.send("GET /livez HTTP/1.1", HOST)
        assert (await other.answer()).status == 200
    assert runs.started == []


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 11\r\n\r\n" + BODY,
        b"Content-Length:11\t\r\n\r\n" + BODY,
        b"transfer-encoding: CHUNKED\r\n\r\n" + CHUNKED,
        b"X-Content-Length: 3\r\nContent-Length: 11\r\nX: transfer-encoding: y\r\n\r\n" + BODY,
    ],
)
@pytest.mark.parametrize("cut", [None, 1])
async def test_a_request_whose_end_is_plain_is_answered(rest: bytes, cut: int | None):
    """Also byte by byte: a head is looked at when all of it is there."""
    async with open_door(echo) as door, raw(door) as peer:
        sent = START + rest
        for start in range(0, len(sent), cut or len(sent)):
            await peer.stream.send_all(sent[start : start + (cut or len(sent))])
            await trio.lowlevel.checkpoint()
        assert (await peer.answer()).status == 200
        await peer.stream.send_all(SMUGGLED)
        assert (await peer.answer()).status == 200


async def test_what_the_parser_raises_ends_its_connection_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with open_door(echo) as door, asking(door) as client:
        with monkeypatch.context() as patch:
            patch.delattr(h11.Connection, "next_event")
            async with raw(door) as peer:
                await peer.send("GET /livez HTTP/1.1", HOST)
                assert await peer.rest() == b""
            await nobody_is_connected(door)
        assert "a connection of the HTTP door has failed" in caplog.text
        assert (await client.get("/livez")).status_code == 200


async def test_a_body_that_is_told_to_be_too_large_is_refused_before_any_of_it():
    async with open_door(echo, {"body_bytes": 1000}) as door, raw(door) as peer:
        await peer.send(*POST, "Content-Length: 1001")
        answer = await peer.answer()
        assert (answer.status, answer.problem["code"]) == (413, "body-too-large")
        assert answer.headers["connection"] == "close"
        assert await peer.rest() == b""


async def test_a_chunked_body_that_never_ends_is_refused_at_its_limit():
    """With a queue full of its pieces, it waited for ever to say that it was closed."""
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
        await nobody_is_connected(door)


@pytest.mark.parametrize("length", ["Content-Length: 100", "Transfer-Encoding: chunked"])
async def test_a_body_that_stops_is_not_waited_for(length: str):
    async with open_door(echo, {"body_s": 0.1}) as door, raw(door) as peer:
        await peer.send(*POST, length, body=b"5\r\nab")
        answer = await peer.answer()
        assert (answer.status, answer.problem["code"]) == (408, "body-too-slow")
        assert await peer.rest() == b""


async def test_a_body_that_waits_to_be_asked_for_is_asked_for_if_it_is_read():
    wait = (*POST, f"Content-Length: {len(BODY)}", "Expect: 100-continue")
    async with open_door(echo) as door:
        async with raw(door) as peer:
            for _ in range(2):
                await peer.send(*wait)
                assert await peer.stream.receive_some() == b"HTTP/1.1 100 \r\n\r\n"
                await peer.stream.send_all(BODY)
                assert json.loads((await peer.answer()).body)["value"] == 1
        async with raw(door) as peer:
            await peer.send(*wait, "Accept: text/html")
            assert (await peer.rest()).startswith(b"HTTP/1.1 406 ")


# -- what is written ----------------------------------------------------------------


async def test_an_answer_without_a_body_is_written():
    async with open_door(echo) as door, raw(door) as peer:
        for _ in range(2):
            await peer.send("HEAD /livez HTTP/1.1", HOST)
            said = await peer.stream.receive_some()
            assert said.startswith(b"HTTP/1.1 200 ")
            assert said.endswith(b"\r\n\r\n")


# -- connections ------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order():
    async with open_door(echo) as door, raw(door) as peer:
        asked = [b"Content-Length: 12\r\n\r\n" + b'{"input": %d}' % n for n in range(8)]
        await peer.stream.send_all(b"".join(START + each for each in asked))
        values = [json.loads((await peer.answer()).body)["value"] for _ in range(8)]
        assert values == list(range(8))


async def test_who_pipelines_and_hangs_up_cancels_what_runs():
    """Nothing more was read while a second request waited: nobody noticed."""
    runs = Runs(go_on=False)
    async with open_door(runs) as door:
        async with raw(door) as peer:
            await peer.post({"input": 0})
            await runs.have_started()
            await peer.send("GET /livez HTTP/1.1", HOST)
        await runs.are_cancelled()


async def test_idle_connections_give_way_to_new_ones_and_busy_ones_do_not():
    runs = Runs(go_on=False)
    async with open_door(runs, {"connections": 1}) as door:
        async with raw(door) as idle:
            async with raw(door) as busy:
                await busy.post({"input": 0})
                await runs.have_started()
                assert await idle.rest() == b""
                async with raw(door) as peer:
                    assert (await peer.rest()).startswith(b"HTTP/1.1 503 ")
                runs.may_end.set()
                assert (await busy.answer()).status == 200


async def test_an_idle_connection_is_closed():
    async with open_door(echo, {"idle_s": 0.1}) as door:
        async with raw(door) as peer:
            await peer.send("GET /livez HTTP/1.1", HOST)
            # On a machine that stands still it may be closed before it has asked.
            assert (await peer.rest())[:13] in (b"HTTP/1.1 200 ", b"")
        async with raw(door) as peer:
            await peer.stream.send_all(b"GET /livez HTTP/1.1\r\nX: ")
            assert await peer.rest() == b"", "a head that never ends was waited for"


async def test_a_peer_that_takes_nothing_of_its_answer_is_cut_off():
    async def much(rollout: Any) -> Any:
        return "x" * 15_000_000

    async with open_door(much, {"write_s": 0.2}) as door, raw(door) as peer:
        await peer.post({"input": 0})
        while not door.connections:
            await trio.lowlevel.checkpoint()
        await nobody_is_connected(door)


# -- answers that callers do not take ------------------------------------------------


class Caller:
    is_cut_off = False

    def cut_off(self) -> None:
        assert not self.is_cut_off
        self.is_cut_off = True


@pytest.mark.parametrize(
    ("steps", "cut_off", "left"),
    [
        ("add 0 10, add 1 10, add 2 10", "", 30),
        # Of those that have taken nothing the one that has for longest.
        ("add 0 10, add 1 10, add 2 10, took 0 1, add 2 2", "1", 21),
        # A new answer is no sign that an old one is read.
        ("add 0 15, add 1 10, add 0 11", "0", 10),
        # One answer is written whatever its size.
        ("add 0 10, add 1 100", "0", 100),
        ("add 0 10, add 1 100, took 1 100", "0", 0),
        # Who was cut off or has gone takes nothing more.
        ("add 0 20, add 1 20, took 0 20", "0", 20),
        ("add 0 20, add 1 20, gone 0, gone 1, gone 1", "0", 0),
    ],
)
def test_callers_past_the_bound_are_cut_off(steps: str, cut_off: str, left: int):
    unread, callers = Unread(30), [Caller(), Caller(), Caller()]
    for step in steps.split(", "):
        what, number, *size = step.split()
        getattr(unread, what)(callers[int(number)], *map(int, size))
    assert "".join(str(n) for n, each in enumerate(callers) if each.is_cut_off) == cut_off
    assert unread.bytes == left


def test_flood_is_no_flood_of_lines(caplog: pytest.LogCaptureFixture):
    unread, callers = Unread(10), [Caller() for _ in range(101)]
    with caplog.at_level(logging.WARNING):
        for caller in callers:
            unread.add(caller, 10)
    assert sum(caller.is_cut_off for caller in callers) == 100
    assert len(caplog.records) == 7


async def test_answers_that_nobody_reads_do_not_take_more_than_their_bound():
    """40 answers of 3 MB that nobody read took 280 MB, and each further one as much."""
    size = 15_000_000  # more than the kernel takes for a peer

    async def much(rollout: Any) -> Any:
        return "x" * rollout.input

    async with open_door(much, {"answers_bytes": 18_000_000}) as door, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw(door)) for _ in range(4)]
        taken = []
        for peer in peers:
            await peer.post({"input": size}, "Connection: close")
            begun = b""
            while len(begun) < 1000:  # its body has begun, too
                begun += await peer.stream.receive_some()
            taken.append(len(begun))
        for number, peer in enumerate(peers):
            taken[number] += len(await peer.rest())
    assert taken[0] < size < taken[-1]
    assert sum(each > size for each in taken) <= 3
