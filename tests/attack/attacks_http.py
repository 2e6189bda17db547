"""Attacks on the HTTP door with requests that are wrong: in their heads, in their bodies.

They are put together by hand, so that each part can be wrong.  Right ones, too many of
them or never read, are in :mod:`.attacks_http_calls`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio
import trio.lowlevel

from trio_envserve.core.limits import KIB, MIB

from .attacks_bytes import pour
from .attacks_protocol import bomb, colliding_map
from .context import Attack, AttackContext, Connection, ConnectionEnded

SLOW = 100
ABREAST = 40
FLOOD = "flood"
"""The namespace of all keys of these attacks: who shares it shares what it may take."""

JSON, CBOR = "application/json", "application/cbor"
ROLLOUTS = f"/v1/rollouts?namespace={FLOOD}"


def request(
    context: AttackContext, target: str, *headers: str, body: bytes | None = None,
    media: str = JSON,
) -> bytes:  # fmt: skip
    """A request that may be right."""
    lines = [f"{target} HTTP/1.1", f"Host: {host_of(context)}", *headers]
    if body is not None:
        lines += [f"Content-Type: {media}", f"Content-Length: {len(body)}"]
    head = "\r\n".join([*lines, "", ""])
    return head.encode("latin-1") + (body or b"")


def host_of(context: AttackContext) -> str:
    """The value of the header ``Host``."""
    return context.address.partition("://")[2]


def rollout(asked: Any) -> bytes:
    """The body of a ``POST`` for one rollout."""
    return json.dumps({"input": asked}).encode()


async def abreast(
    context: AttackContext, count: int, act: Callable[[Connection], Awaitable[object]]
) -> None:
    """The same on many connections at once; one that is closed ends none of the others."""

    async def one() -> None:
        try:
            async with context.connection() as connection:
                await act(connection)
        except* ConnectionEnded:
            context.counts["closed"] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(min(count, context.most_connections)):
            nursery.start_soon(one)


# -- heads ----------------------------------------------------------------------


async def slow_heads(context: AttackContext) -> None:
    """A hundred heads, a byte at a time."""

    async def trickle(connection: Connection) -> None:
        for byte in request(context, "GET /livez", "Accept: */*"):
            await connection.send(bytes((byte,)))
            await trio.sleep(0.1)

    await abreast(context, SLOW, trickle)


async def endless_heads(context: AttackContext) -> None:
    """Headers without an end: many, or one, or a first line."""
    begins = request(context, "POST /v1/rollouts")[:-2]
    begin, chunk = context.rng.choice(
        ((begins, b"X-More: and more\r\n" * 500), (begins + b"X: ", b"x" * KIB * 8),
         (b"GET /", b"a" * KIB * 8), (b"", b"\r\n" * KIB * 4))
    )  # fmt: skip
    async with context.connection() as connection:
        await connection.send(begin)
        await pour(connection, chunk)


async def many_headers(context: AttackContext) -> None:
    """As many headers as there is room for, again and again."""
    lines = [f"X-{number}: {number}" for number in range(900)]
    said = request(context, "GET /livez", *lines) * 4
    async with context.connection() as connection, connection.drained():
        for _ in range(50):
            await connection.send(said)
            context.counts["requests"] += 4


async def strange_heads(context: AttackContext) -> None:
    """Old, new and no HTTP, and heads in which one header says two things."""

    async def say(connection: Connection) -> None:
        await connection.send(strange_head(context))
        context.counts["requests"] += 1
        await connection.wait_closed(0.3)

    await abreast(context, ABREAST, say)


def strange_head(context: AttackContext) -> bytes:
    """The head of a request that is wrong, or that nobody sends any more."""
    rng, host = context.rng, host_of(context)
    path, post = rng.choice(("/livez", "/v1/rollouts", "/run", "/" + "x" * 9000)), b"POST /run "
    smuggled = f"Content-Length: 4\r\nTransfer-Encoding: chunked\r\nHost: {host}\r\n\r\n0\r\n\r\nX"
    lines: tuple[str, ...] = (
        f"GET {path} HTTP/1.0\r\n\r\n", f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n",
        f"GET {path}\r\n", f"GET {path} HTTP/9.9\r\nHost: {host}\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\0" * 200,
        f"GET {path} HTTP/1.1\r\n\r\n",
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nHost: other\r\n\r\n",
        f"GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example\r\n\r\n",
        f"GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n\r\n",
        f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n",
        f"BREW {path} HTTP/1.1\r\nHost: {host}\r\n\r\n",
        f"OPTIONS * HTTP/1.1\r\nHost: {host}\r\n\r\n",
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: h2c\r\n"
        "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        f"POST /run HTTP/1.1\r\nHost: {host}\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        f"POST /run HTTP/1.1\r\n{smuggled}", f"POST /run HTTP/1.0\r\n{smuggled}",
        f"POST /run HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabc",
        f"POST /run HTTP/1.1\r\nHost: {host}\r\nContent-Length: -1\r\n\r\n",
        f"POST /run HTTP/1.1\r\nHost: {host}\r\nContent-Length: {'9' * 400}\r\n\r\n",
        f"POST /run HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX: a\r\n b\r\n\r\n",
        f"GET {path} HTTP/1.1\r\nHost : {host}\r\n\r\n",
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX: a\0b\r\nY: \x7f\xff\r\n\r\n",
        f"GET {path} HTTP/1.1\nHost: {host}\n\n", "\r\n\r\n\r\n" * 50,
    )  # fmt: skip
    said = rng.choice((*lines, "")).encode("latin-1")
    return said or post + rng.randbytes(200)


async def strange_keys(context: AttackContext) -> None:
    """Keys of 4 kB, of other encodings, with control characters; headers in keys."""
    async with context.connection() as connection, connection.drained():
        for _ in range(100):
            await connection.send(strange_key(context))
            context.counts["requests"] += 1
        await trio.sleep(0.1)


def strange_key(context: AttackContext) -> bytes:
    """A request about a key that is none, or hardly one."""
    rng, body = context.rng, rollout({"index": 1})
    evil = "%0d%0aX-Evil:%201"
    in_path = rng.choice(
        ("a" * 4096, "%00", "%ff%fe", "%", "%zz", "..", "%2e%2e", "%2F", evil, "%7f%80",
         "%f0%9f%8d%80", "k?namespace=" + evil, "k?namespace=", "k?namespace=a&namespace=b",
         "k?wait=1e9", "k?wait=-1", "k?kind=\x01", "k?" + "&" * 2000, "k?x=" + "y" * 8000)
    )  # fmt: skip
    in_header = rng.choice(
        ('"' + "a" * 4096 + '"', '""', '"', '"."', '"a"b', '"\\"', '"\\x"', "bare", "\xff\xfe",
         '"\xc3\xa9"', '"a\tb"', '"a\x01b"', "'a'", ':YWJj:', '"a";q=1', '"a", "b"', " ")
    )  # fmt: skip
    return rng.choice(
        (
            request(context, f"GET /v1/rollouts/{in_path}"),
            request(context, f"DELETE /v1/rollouts/{in_path}"),
            request(
                context, f"POST {ROLLOUTS}", f"Idempotency-Key: {in_header}",
                "Prefer: respond-async", body=body,
            ),
            request(
                context, f"POST /v1/rollouts?namespace={evil}", 'Idempotency-Key: "k"',
                "Prefer: respond-async, wait=\x0b", body=body,
            ),
        )
    )  # fmt: skip


# -- bodies ---------------------------------------------------------------------


async def slow_bodies(context: AttackContext) -> None:
    """A hundred bodies, told or in chunks, a byte at a time."""
    heads = [
        request(context, "POST /v1/rollouts", f"Content-Type: {JSON}", length)
        for length in (f"Content-Length: {MIB}", "Transfer-Encoding: chunked")
    ]

    async def trickle(connection: Connection) -> None:
        chunked = context.rng.random() < 0.5
        await connection.send(heads[chunked])
        while True:
            await connection.send(b"1\r\n[\r\n" if chunked else b"[")
            await trio.sleep(0.1)

    await abreast(context, SLOW, trickle)


async def endless_chunks(context: AttackContext) -> None:
    """A body in chunks that never ends: of large ones, of small ones, of their heads."""
    chunk = context.rng.choice(
        (b"10000\r\n" + b"[" * 65536 + b"\r\n", b"1\r\n[\r\n" * 5000, b"1;" + b"x" * 8000,
         b"0" * 8000, b"1;x=y\r\n[\r\n" * 3000)
    )  # fmt: skip
    head = ("Transfer-Encoding: chunked", f"Content-Type: {JSON}")
    async with context.connection() as connection:
        await connection.send(request(context, "POST /v1/rollouts", *head))
        await pour(connection, chunk)


async def large_bodies(context: AttackContext) -> None:
    """Bodies over the limit, and at it, on many connections; the last byte never comes."""

    async def one(connection: Connection) -> None:
        size = context.rng.choice((1 * MIB, 4 * MIB, 8 * MIB, 8 * MIB + 1, 2**40))
        target = context.rng.choice(("/v1/rollouts", "/run"))
        head = (f"Content-Length: {size}", f"Content-Type: {JSON}")
        await connection.send(request(context, f"POST {target}", *head))
        for _ in range(min(size, 16 * MIB) // (64 * KIB) - 1):
            await connection.send(bytes(64 * KIB))
        await connection.drain()

    await abreast(context, ABREAST, one)


async def broken_bodies(context: AttackContext) -> None:
    """Bodies that are no JSON or CBOR, or none that is asked for, or cost much to read."""
    async with context.connection() as connection, connection.drained():
        for _ in range(30):
            body, media = broken_body(context.rng)
            path = context.rng.choice(("/v1/rollouts", "/v1/batches", "/run"))
            await connection.send(request(context, f"POST {path}", body=body, media=media))
            context.counts["requests"] += 1
            await trio.lowlevel.checkpoint()
        await trio.sleep(0.5)


def broken_body(rng: random.Random) -> tuple[bytes, str]:
    """A body that is wrong, and its media type."""
    good = rollout({"index": 1, "text": "\u00e4"})
    fields: tuple[Any, ...] = (
        [], 1, None, {"inputs": 7}, {"input": 1, "inputs": []}, {"inputs": [1], "in_flight": -1},
        {"input": 1, "timeout_s": "x"}, {"input": 1, "sampling_args": 5}, {"x" * 9000: 1},
        {"input": 1, "model": "http://127.0.0.1:1"}, {"input": 1, "max_retries": 2**70},
        {"inputs": [0] * 10_001}, {"input": {"$array": {"dtype": "x"}}}, {"input": {"$bytes": "%"}},
        {"_ng_rollout_id": "\r\nX: y"}, {"_rowidx": 2**70, "responses_create_params": []},
    )  # fmt: skip
    texts = (
        b"[" * 100_000, b'{"a":' * 50_000, b'{"input":' + b"9" * 1_000_000 + b"}",
        b'{"input": NaN}', b'{"input": 1e999}', b'{"input": 1, "input": 2}',
        b'"\\ud800"', b"\xff\xfe{}",
        b'{"input":[' + b"[]," * 33_000 + b"[]]}", b'{"input":"' + b"x" * 3_000_000 + b'"}',
        b'{"input":"' + b"\\u00e9" * 600_000 + b'"}', good[: rng.randrange(len(good))],
        b'{"input":{' + b",".join(b'"%d":1' % n for n in range(40_000)) + b"}}", rng.randbytes(300),
        b'{"input":[' + b"1.5e-300," * 90_000 + b"0]}",
        b'{"input":[' + b",".join([b"7" * 4_000] * 900) + b"]}",
    )  # fmt: skip
    choice = rng.randrange(4)
    if choice == 0:
        return json.dumps(rng.choice(fields)).encode(), JSON
    if choice == 1:
        return rng.choice(texts), JSON
    if choice == 2:
        return good, rng.choice(("", "text/html", "application/json; charset=utf-7", CBOR))
    value = rng.choice((bomb(rng), colliding_map(30_000), rng.randbytes(300)))
    return b"\xa1\x65input" + value, CBOR


def at_http(run: Callable[[AttackContext], Awaitable[None]], what: str) -> Attack:
    """An attack at this door."""
    return Attack(run, "", what, "http")


ATTACKS: Final[Mapping[str, Attack]] = {
    "http-slow-heads": at_http(slow_heads, "heads at ten bytes a second"),
    "http-endless-heads": at_http(endless_heads, "headers without an end"),
    "http-many-headers": at_http(many_headers, "requests of 900 headers"),
    "http-strange-heads": at_http(strange_heads, "old, new and no HTTP; two lengths, two hosts"),
    "http-strange-keys": at_http(strange_keys, "keys of 4 kB, and with headers in them"),
    "http-slow-bodies": at_http(slow_bodies, "bodies at ten bytes a second"),
    "http-endless-chunks": at_http(endless_chunks, "a body in chunks without an end"),
    "http-large-bodies": at_http(large_bodies, "bodies at the limit and over it, never whole"),
    "http-broken-bodies": at_http(broken_bodies, "bodies that are no JSON, or that cost much"),
}
"""By name."""
