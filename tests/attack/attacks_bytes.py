"""Attacks with bytes and connections: whatever a ZMTP peer must live through."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

import trio

from trio_envserve.core.limits import KIB, MIB
from trio_envserve.lab.conformance import wire

from .context import Attack, AttackContext, Connection, ConnectionEnded

CHUNK_BYTES = 256 * KIB
"""The bytes that are sent at once of something endless."""

EMPTY_FRAMES = 5_000_000
TINY_MESSAGES = 1_000_000
HALF_OPEN = 300
SLOW = 100
TWINS_S = 6.0
"""How long the victim has to die of two connections with one routing id."""


# -- before the handshake -----------------------------------------------------


async def random_bytes(context: AttackContext) -> None:
    """Bytes without any sense."""
    async with context.connection() as connection:
        await throw_random_bytes(connection, context.rng)


async def throw_random_bytes(connection: Connection, rng: random.Random) -> None:
    """Bytes without any sense, some behind a right greeting."""
    if rng.random() < 0.5:
        await connection.send(wire.greeting())
    for _ in range(rng.randint(1, 8)):
        await connection.send(rng.randbytes(rng.choice((1, 9, 64, 1000, 64 * KIB))))
    await connection.wait_closed(0.2)


async def grammar_bytes(context: AttackContext) -> None:
    """A conversation by the grammar, in which one thing or two are wrong."""
    async with context.connection() as connection:
        await throw_grammar(connection, context.rng)


async def throw_grammar(connection: Connection, rng: random.Random) -> None:
    """A greeting, a handshake and frames, some of them wrong."""
    await connection.send(wrong_greeting(rng))
    for _ in range(rng.randint(1, 6)):
        await connection.send(wrong_part(rng))
    await connection.wait_closed(0.2)


def wrong_greeting(rng: random.Random) -> bytes:
    """A greeting that may be right."""
    good = wire.greeting(
        major=rng.choice((3, 3, 3, 0, 1, 2, 4, 255)), minor=rng.choice((0, 1, 255)),
        mechanism=rng.choice((b"NULL", b"NULL", b"PLAIN", b"CURVE", b"", b"\xff" * 20)),
        as_server=rng.choice((0, 0, 1, 7)),
    )  # fmt: skip
    if rng.random() < 0.2:
        return good[: rng.randrange(1, wire.GREETING_BYTES)]
    return bytes((0,)) + good[1:] if rng.random() < 0.1 else good


def wrong_part(rng: random.Random) -> bytes:
    """A piece of the grammar, right or wrong."""
    body = rng.randbytes(rng.choice((0, 1, 5, 40, 300)))
    parts = (
        wire.ready(rng.choice((b"DEALER", b"ROUTER", b"PUB", b"", b"\xff" * 200))),
        wire.ready(identity=rng.randbytes(rng.choice((1, 16, 255, 256, 2000)))),
        wire.ready(identity=None),
        wire.command(b"READY", body),
        wire.command(b"READY", wire.metadata(b"X" * rng.randint(0, 255), body)),
        wire.command(b"ERROR", body),
        wire.command(rng.choice((b"", b"PING", b"PONG", b"SUBSCRIBE", b"CANCEL", b"HELLO")), body),
        wire.frame(body, rng.choice((0, 1, 3, 5, 8, 0x80, 0xFF))),
        wire.frame(bytes((rng.randrange(256),)) + body, wire.COMMAND),
        wire.head(rng.choice((2**63 - 1, 2**63, 2**64 - 1, 2**40, 2**31)), rng.choice((0, 1, 4))),
        wire.ping(body),
        body,
    )
    return rng.choice(parts)


async def slow_handshakes(context: AttackContext) -> None:
    """A hundred greetings, a byte at a time."""

    async def trickle() -> None:
        async with context.connection() as connection:
            for byte in wire.greeting() + wire.ready():
                await connection.send(bytes((byte,)))
                await trio.sleep(0.1)
            context.counts["handshakes"] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(SLOW):
            nursery.start_soon(trickle)


async def half_open(context: AttackContext) -> None:
    """Connections that stop in the middle: of a greeting, of READY, of a frame."""
    said = (
        b"", wire.greeting()[:11], wire.greeting(), wire.greeting() + wire.ready()[:9],
        wire.greeting() + wire.ready() + wire.head(1 * MIB) + bytes(100),
        wire.greeting() + wire.ready() + wire.frame(b"first", wire.MORE),
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        for _ in range(min(HALF_OPEN, context.most_connections)):
            nursery.start_soon(_say_and_stay, context, context.rng.choice(said))


async def _say_and_stay(context: AttackContext, data: bytes) -> None:
    async with context.connection() as connection:
        if data:
            await connection.send(data)
        context.counts["held"] += 1
        await connection.drain()


async def connections(context: AttackContext) -> None:
    """As many connections as there may be, all at once, and all closed at once."""
    hello = wire.greeting() + wire.ready()
    opened: list[Connection] = []
    try:
        while len(opened) < context.most_connections:
            try:
                opened.append(await context.open())
                await opened[-1].send(hello)
            except ConnectionEnded:
                # The victim is full, which is its right: it has to live with it.
                await trio.sleep(0.05)
        await trio.sleep(1.0)
    finally:
        context.counts["most_at_once"] = max(context.counts["most_at_once"], len(opened))
        with trio.CancelScope(shield=True):
            for connection in opened:
                connection.reset()
                await connection.close()


# -- after the handshake ------------------------------------------------------


async def more_for_ever(context: AttackContext) -> None:
    """One message that never ends, in large frames."""
    async with context.peer() as peer:
        await pour(peer, wire.frame(bytes(64 * KIB), wire.MORE) * 4)


async def small_more_for_ever(context: AttackContext) -> None:
    """One message that never ends, in small frames."""
    async with context.peer() as peer:
        await pour(peer, wire.frame(b"xyz", wire.MORE) * (CHUNK_BYTES // 5))


async def empty_frames(context: AttackContext) -> None:
    """One message of millions of empty frames."""
    async with context.peer() as peer:
        chunk = wire.frame(b"", wire.MORE) * (CHUNK_BYTES // 2)
        for _ in range(2 * EMPTY_FRAMES // CHUNK_BYTES + 1):
            await peer.send(chunk)
        await peer.send(wire.frame(b""))
        context.counts["messages"] += 1
        await peer.wait_closed(1.0)


async def tiny_messages(context: AttackContext) -> None:
    """Millions of messages of one byte."""
    async with context.peer() as peer:
        await pour(peer, wire.frame(b"\x00") * (CHUNK_BYTES // 3), 3 * TINY_MESSAGES)


async def huge_frames(context: AttackContext) -> None:
    """Frames that claim as much as is allowed, on many connections, and come slowly."""

    async def one(size: int) -> None:
        async with context.peer() as peer:
            await peer.send(wire.head(size))
            left = size - 1  # and never the last byte
            while left > 0:
                await peer.send(bytes(min(left, 64 * KIB)))
                left -= 64 * KIB
            await peer.drain()

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(one, context.rng.choice((1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)))


async def ping_flood(context: AttackContext) -> None:
    """ZMTP's own pings, whose answers nobody reads."""
    async with context.peer() as peer:
        await pour(peer, wire.ping(bytes(16), 0) * (CHUNK_BYTES // 25))


async def twins(context: AttackContext) -> None:
    """Two connections with one routing id; the older one says one more thing; both end."""
    identity = b"twin" + context.id()
    async with context.peer(identity) as older, context.peer(identity) as newer:
        await older.say(context.hello())
        await newer.say(context.hello())
        await trio.sleep(0.2)
        await older.say(context.hello())
        await trio.sleep(0.2)
    context.counts["pairs"] += 1
    if context.counts["pairs"] % 20 == 0:
        await trio.sleep(TWINS_S)


async def vanish(context: AttackContext) -> None:
    """A flood, and a reset in its middle."""
    async with context.peer(b"gone" + context.id()) as peer:
        flood = wire.message(b"\x80", bytes(1000)) * 250
        for _ in range(context.rng.randint(1, 8)):
            await peer.send(flood)
        peer.reset()


async def pour(peer: Connection, chunk: bytes, most_bytes: int = 1 << 62) -> None:
    """Send a chunk over and over, without reading."""
    sent = 0
    while sent < most_bytes:
        await peer.send(chunk)
        sent += len(chunk)


ATTACKS: Final[Mapping[str, Attack]] = {
    "random-bytes": Attack(random_bytes, "", "bytes without any sense"),
    "grammar-bytes": Attack(grammar_bytes, "", "handshakes and frames with something wrong"),
    "slow-handshakes": Attack(slow_handshakes, "", "handshakes at ten bytes a second"),
    "half-open": Attack(half_open, "", "connections that stop in the middle"),
    "connections": Attack(connections, "A4", "up to 10,000 connections, reset at once"),
    "more-for-ever": Attack(more_for_ever, "A5", "large frames with MORE, without an end"),
    "small-more-for-ever": Attack(small_more_for_ever, "A5", "small frames with MORE, likewise"),
    "empty-frames": Attack(empty_frames, "A6", "one message of five million empty frames"),
    "tiny-messages": Attack(tiny_messages, "", "millions of messages of one byte"),
    "huge-frames": Attack(huge_frames, "", "large frames that never get whole"),
    "ping-flood": Attack(ping_flood, "", "pings of ZMTP whose answers nobody reads"),
    "twins": Attack(twins, "A1", "two connections with one routing id"),
    "vanish": Attack(vanish, "A3", "a flood, and a reset in its middle"),
}
"""By name."""
