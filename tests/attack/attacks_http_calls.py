"""Attacks on the HTTP door with requests that are right: too many of them, or never read.

Bodies ask for rollouts of the siege's environment, as large and as late as it is told to
(:mod:`.environment`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import trio

from .attacks_bytes import pour
from .attacks_http import ABREAST, FLOOD, ROLLOUTS, abreast, at_http, request, rollout
from .context import Attack, AttackContext, Connection

PIPELINED = 200
"""Requests in one write."""

IDLE = 3_000
"""Connections that say nothing, or little; many come back when they were closed."""

AT_ONCE = 600
CROWD = 150
STAY_S = 20.0
"""How long those stay that do not read."""


def keyed(context: AttackContext, asked: Any, key: str | None = None, *headers: str) -> bytes:
    """A ``POST`` under a key, a new one unless it is given."""
    named = f'Idempotency-Key: "{key or context.id().hex()}"'
    return request(context, f"POST {ROLLOUTS}", named, *headers, body=rollout(asked))


# -- answers --------------------------------------------------------------------


async def heavy_values(context: AttackContext) -> None:
    """Many calls that wait, each with a value that takes more than its body."""
    pair = b'{"a":0},'
    body = b'{"input":{"sleep_s":4,"index":1,"pad":[' + pair * 30_000 + b"0]}}"

    async def one(connection: Connection) -> None:
        await connection.send(request(context, "POST /v1/rollouts", body=body))
        context.counts["requests"] += 1
        await connection.drain()

    await abreast(context, 200, one)


async def pipelining(context: AttackContext) -> None:
    """Requests without an end on one connection, whose answers nobody reads."""
    said = context.rng.choice(
        (request(context, "GET /livez"), request(context, "GET /v1/openapi.json"),
         request(context, "POST /v1/rollouts", body=rollout({"index": 1})))
    )  # fmt: skip
    async with context.connection() as connection:
        await pour(connection, said * PIPELINED)


async def pipelining_read(context: AttackContext) -> None:
    """Requests without an end on one connection, whose answers are read."""
    said = request(context, "GET /v1/openapi.json") * PIPELINED
    async with context.connection() as connection, connection.drained():
        for _ in range(20):
            await connection.send(said)
            context.counts["requests"] += PIPELINED


async def unread_answers(context: AttackContext) -> None:
    """Large answers that nobody reads."""

    async def one(connection: Connection) -> None:
        asked = {"bytes": 3_000_000}
        await connection.send(request(context, "POST /v1/rollouts", body=rollout(asked)))
        context.counts["requests"] += 1
        await trio.sleep(STAY_S)

    await abreast(context, ABREAST, one)


async def unread_batches(context: AttackContext) -> None:
    """The outcomes of large batches that nobody reads."""
    asked = [{"bytes": context.rng.choice((1000, 300_000))}] * 500
    body = json.dumps({"inputs": asked, "in_flight": 50}).encode()
    key = f'Idempotency-Key: "{context.id().hex()}"'

    async def one(connection: Connection) -> None:
        query, *named = context.rng.choice(((f"?namespace={FLOOD}", key), ("",)))
        await connection.send(request(context, f"POST /v1/batches{query}", *named, body=body))
        context.counts["requests"] += 1
        await trio.sleep(STAY_S)

    await abreast(context, 4, one)


async def hang_ups(context: AttackContext) -> None:
    """Connections that end in a head, in a body, before the answer, or in its middle."""

    async def one(connection: Connection) -> None:
        rng = context.rng
        asked = {"index": 1, "sleep_s": rng.choice((0.0, 0.5, 30.0)), "bytes": 100_000}
        batch = json.dumps({"inputs": [asked] * 20}).encode()
        said = rng.choice(
            (request(context, "POST /v1/rollouts", body=rollout(asked)), keyed(context, asked),
             request(context, "POST /v1/batches", body=batch),
             request(context, "POST /run", body=json.dumps(asked).encode()))
        )  # fmt: skip
        await connection.send(said if rng.random() < 0.7 else said[: rng.randrange(1, len(said))])
        context.counts["requests"] += 1
        await connection.wait_closed(rng.choice((0.0, 0.05, 0.3)))
        if rng.random() < 0.5:
            connection.reset()

    await abreast(context, ABREAST, one)


# -- floods ---------------------------------------------------------------------


async def idle(context: AttackContext) -> None:
    """Thousands of connections that say nothing, or half a line."""

    async def one(connection: Connection) -> None:
        await connection.send(context.rng.choice((b"G", b"GET /livez HTTP/1.1\r\nHo")))
        await connection.drain()

    await abreast(context, IDLE, one)


async def at_once(context: AttackContext) -> None:
    """Hundreds of requests that all end in the same moment."""
    asked = {"index": 1, "pad": [{"a": 0}] * context.rng.choice((1, 400))}
    said = request(context, "POST /v1/rollouts", body=rollout(asked))
    count = min(AT_ONCE, context.most_connections)
    await context.end_at_once(context.connection, lambda: said, count)


async def keyed_flood(context: AttackContext) -> None:
    """Work under ever new keys of one namespace, which takes long, and nobody waits."""
    later = "Prefer: respond-async"

    async def one(connection: Connection) -> None:
        async with connection.drained():
            for _ in range(20):
                asked = {"index": 1, "sleep_s": context.rng.choice((0.0, 0.2, 3.0))}
                said = [keyed(context, asked, None, later) for _ in range(20)]
                await connection.send(b"".join(said))
                context.counts["requests"] += len(said)
                await trio.sleep(0.05)

    await abreast(context, 8, one)


async def one_key(context: AttackContext) -> None:
    """Everybody asks for one key: the same, something else, for its end, for its outcome."""
    key = context.id().hex()

    async def one(connection: Connection) -> None:
        place = f"/v1/rollouts/{key}?namespace={FLOOD}"
        async with connection.drained():
            for _ in range(10):
                asked = {"index": context.rng.choice((1, 1, 1, 2)), "sleep_s": 0.3}
                said = (
                    keyed(context, asked, key), keyed(context, asked, key),
                    request(context, f"GET {place}&wait=5"), request(context, f"DELETE {place}"),
                )  # fmt: skip
                await connection.send(context.rng.choice(said))
                context.counts["requests"] += 1
                await trio.sleep(0.05)

    await abreast(context, CROWD, one)


async def gets_and_deletes(context: AttackContext) -> None:
    """Questions about keys that nobody has asked for, and their ends."""

    async def one(connection: Connection) -> None:
        async with connection.drained():
            for _ in range(20):
                method = context.rng.choice(("GET", "DELETE"))
                places = [f"{context.id().hex()}?namespace={FLOOD}" for _ in range(50)]
                said = [request(context, f"{method} /v1/rollouts/{each}") for each in places]
                await connection.send(b"".join(said))
                context.counts["requests"] += len(said)
                await trio.sleep(0.01)

    await abreast(context, 8, one)


async def rows(context: AttackContext) -> None:
    """Rows that nothing tells apart, rows with one id, and rows that nobody waits for."""

    async def one(connection: Connection) -> None:
        row = {"index": 1, "sleep_s": context.rng.choice((0.0, 0.5, 5.0))}
        name: dict[str, Any] = context.rng.choice(
            ({}, {"_ng_rollout_id": "r"}, {"_rowidx": 1}, {"_ng_rollout_index": 2})
        )
        await connection.send(request(context, "POST /run", body=json.dumps(row | name).encode()))
        context.counts["requests"] += 1
        await connection.wait_closed(context.rng.choice((0.0, 0.2, 2.0)))

    await abreast(context, CROWD, one)


ATTACKS: Final[Mapping[str, Attack]] = {
    "http-heavy-values": at_http(heavy_values, "200 calls with values larger than their bodies"),
    "http-pipelining": at_http(pipelining, "requests whose answers nobody reads"),
    "http-pipelining-read": at_http(pipelining_read, "thousands of requests in a row"),
    "http-unread-answers": at_http(unread_answers, "large answers that nobody reads"),
    "http-unread-batches": at_http(unread_batches, "streams of outcomes that nobody reads"),
    "http-hang-ups": at_http(hang_ups, "connections that end in the middle of anything"),
    "http-idle": at_http(idle, "3,000 connections that say nothing"),
    "http-at-once": at_http(at_once, "600 requests that end in one moment"),
    "http-keyed-flood": at_http(keyed_flood, "work under ever new keys of one namespace"),
    "http-one-key": at_http(one_key, "150 that want one key, and its end"),
    "http-gets-and-deletes": at_http(gets_and_deletes, "questions about keys of nobody"),
    "http-rows": at_http(rows, "rows of NeMo Gym that nothing tells apart"),
}
"""By name."""
