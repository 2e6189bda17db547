"""Requests whose end is in doubt: a proxy in front of the door may see another one."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.doors.http.door import open_door, raw

START = b"POST /v1/rollouts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"input":1}'
CHUNKED = b"b\r\n" + BODY + b"\r\n0\r\n\r\n"
SMUGGLED = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""The request that must not be answered: the front may have taken it for a body."""

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


async def echo(rollout: Any) -> Any:
    return rollout.input


@pytest.mark.parametrize("case", IN_DOUBT)
async def test_a_request_whose_end_is_in_doubt_was_answered_and_the_next_one_served(case: str):
    """RFC 9112, 6.3: refused, nothing runs, and the connection ends there."""
    ran = 0

    async def environment(rollout: Any) -> Any:
        nonlocal ran
        ran += 1

    async with open_door(environment) as door, raw(door) as peer:
        await peer.stream.send_all(START + IN_DOUBT[case] + SMUGGLED)
        answered = await peer.rest()
    assert answered.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), answered
    assert answered.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answered.lower()
    assert ran == 0


async def test_http_1_0_has_no_chunks():
    async with open_door(echo) as door, raw(door) as peer:
        start = START.replace(b"/1.1", b"/1.0").replace(
            b"\r\n", b"\r\nConnection: keep-alive\r\n", 1
        )
        await peer.stream.send_all(
            start + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED + SMUGGLED
        )
        answered = await peer.rest()
    assert answered.startswith(b"HTTP/1.1 400 ")
    assert answered.count(b"HTTP/1.1 ") == 1


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
