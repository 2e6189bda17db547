"""A hostile server: what it does to a client that has connected by itself.

Each is run once for each connection that the client makes, so whoever closes it
has the next one tried.  Those that speak the application protocol wait for the
client's hello and welcome it first: then it believes that it has a server.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import cbor2
import trio

from trio_envserve.core import messages
from trio_envserve.core.limits import KIB, MIB, PROTOCOL_VERSION
from trio_envserve.core.messages import Hello
from trio_envserve.lab.conformance import wire

from .attacks_bytes import CHUNK_BYTES, EMPTY_FRAMES, pour, throw_grammar, throw_random_bytes
from .attacks_protocol import bad_batch, bomb, colliding_map
from .context import Connection

LINGER_S = 0.5
"""How long a behaviour that has said everything stays."""

Behave: TypeAlias = Callable[[Connection, random.Random], Awaitable[None]]


class ServerAttack(NamedTuple):
    """One way to be a bad server."""

    behave: Behave
    finding: str
    what: str


# -- connections and frames ---------------------------------------------------


async def silence(connection: Connection, rng: random.Random) -> None:
    """Take the connection and never speak."""
    await connection.wait_closed(rng.uniform(0.2, 4.0))


async def no_reading(connection: Connection, rng: random.Random) -> None:
    """Shake hands, and never read again."""
    await connection.shake_hands(socket_type=b"ROUTER")
    await trio.sleep(rng.uniform(1.0, 4.0))


async def hang_up(connection: Connection, rng: random.Random) -> None:
    """Close at once, or in the middle of the handshake."""
    await connection.send(wire.greeting()[: rng.choice((1, 10, 64))])
    if rng.random() < 0.5:
        connection.reset()


async def slow_greeting(connection: Connection, rng: random.Random) -> None:
    """A byte at a time."""
    for byte in wire.greeting():
        await connection.send(bytes((byte,)))
        await trio.sleep(0.1)


async def wrong_ready(connection: Connection, rng: random.Random) -> None:
    """A handshake as somebody else, or with an error."""
    await connection.send(wire.greeting())
    said = rng.choice(
        (
            wire.ready(b"PUB"), wire.ready(b"DEALER"), wire.ready(b""), wire.command(b"ERROR"),
            wire.command(b"ERROR", b"\x03400"), wire.command(b"READY", b"\xff" * 300),
            wire.command(b"READY", wire.metadata(b"Identity", bytes(70_000))),
            wire.frame(b"early"), wire.ready(b"ROUTER") * 3,
        )
    )  # fmt: skip
    await connection.send(said)
    await connection.wait_closed(LINGER_S)


async def more_for_ever(connection: Connection, rng: random.Random) -> None:
    """One message that never ends."""
    await connection.shake_hands(socket_type=b"ROUTER")
    await pour(connection, wire.frame(bytes(64 * KIB), wire.MORE) * 4)


async def empty_frames(connection: Connection, rng: random.Random) -> None:
    """One message of millions of empty frames."""
    await connection.shake_hands(socket_type=b"ROUTER")
    chunk = wire.frame(b"", wire.MORE) * (CHUNK_BYTES // 2)
    await pour(connection, chunk, 2 * EMPTY_FRAMES)
    await connection.send(wire.frame(b""))


async def tiny_messages(connection: Connection, rng: random.Random) -> None:
    """Messages of one byte, without an end."""
    await connection.shake_hands(socket_type=b"ROUTER")
    await pour(connection, wire.frame(b"\x00") * (CHUNK_BYTES // 3))


async def huge_frames(connection: Connection, rng: random.Random) -> None:
    """A frame that claims as much as there is, and never gets whole."""
    await connection.shake_hands(socket_type=b"ROUTER")
    size = rng.choice((64 * MIB, 255 * MIB, 2**40, 2**63 - 1))
    await connection.send(wire.head(size))
    await pour(connection, bytes(CHUNK_BYTES), min(size - CHUNK_BYTES, 1 << 30))


async def ping_flood(connection: Connection, rng: random.Random) -> None:
    """Pings whose answers nobody reads."""
    await connection.shake_hands(socket_type=b"ROUTER")
    await pour(connection, wire.ping(bytes(16)) * (CHUNK_BYTES // 25))


# -- a server that is believed ------------------------------------------------


@asynccontextmanager
async def _welcomed(
    connection: Connection, rng: random.Random
) -> AsyncGenerator[messages.Welcome, None]:
    """Be taken for a server: the welcome that was given.  What the client says
    afterwards is read and forgotten."""
    await connection.shake_hands(socket_type=b"ROUTER")
    welcome = welcome_to(await connection.hear_first(Hello), rng)
    await connection.say(welcome)
    async with connection.drained():
        yield welcome
        await trio.sleep(LINGER_S)


def welcome_to(hello: Hello, rng: random.Random, **record: Any) -> messages.Welcome:
    """A welcome that a client takes."""
    server = {
        "environment": "arithmetic", "rerun": False, "ready": True, "workers": 1, **record
    }  # fmt: skip
    return messages.Welcome(
        PROTOCOL_VERSION, hello.nonce, rng.randbytes(16), rng.randbytes(16), 1000, 1 << 24, server
    )


async def wrong_welcomes(connection: Connection, rng: random.Random) -> None:
    """Welcomes that are wrong in one thing."""
    await connection.shake_hands(socket_type=b"ROUTER")
    right = welcome_to(await connection.hear_first(Hello), rng)
    wrong = rng.choice(
        (
            right._replace(nonce=rng.randbytes(16)),
            right._replace(window=0), right._replace(window=2**62), right._replace(message_bytes=0),
            right._replace(server={}), right._replace(server={"environment": 7, "workers": "x"}),
            right._replace(server={"x" * 1000: [0] * 10_000}), right._replace(version=2),
        )
    )  # fmt: skip
    await connection.say(wrong)
    await connection.say(messages.Error(1, "malformed", "x" * 100_000))
    await connection.wait_closed(2 * LINGER_S)


async def unasked(connection: Connection, rng: random.Random) -> None:
    """Answers to nothing: outcomes, refusals, syncs and errors that nobody asked for."""
    async with _welcomed(connection, rng) as welcome:
        await connection.flood(lambda: wire.message(*_answer(rng, welcome)), 50)


def _answer(rng: random.Random, welcome: messages.Welcome) -> list[bytes]:
    session = rng.choice((welcome.session, rng.randbytes(16)))
    number = rng.choice((999, 10**6, 2**62, 2**63 - 1))
    header: messages.Message = rng.choice(
        (
            messages.Outcome(session, number, rng.randrange(5), "w", 0.0, 1),
            messages.Synced(session, number, [], {}),
            messages.Synced(session, number, [0, number], {"workers": None}),
            messages.Refused(session, number, "queue-full", "", 0.0),
            messages.Cancelled(session, number, True),
            messages.Stats(number), messages.KnownKeys(number), messages.Running(number),
            messages.Stack(number),
            messages.Notes(session, [0, number + 1], [b"x"]), messages.Error(1, "x", "y"),
            messages.Welcome(1, session, session, session, 1, 1, {}),
        )
    )  # fmt: skip
    has_body = isinstance(
        header,
        (messages.Outcome, messages.Stats, messages.KnownKeys, messages.Running, messages.Stack),
    )
    return [messages.encode(header), *([rng.randbytes(9)] if has_body else [])]


async def _outcomes(
    connection: Connection, rng: random.Random, bodies: Callable[[random.Random], bytes]
) -> None:
    """Answer the first sequences with these bodies, whatever was asked."""
    async with _welcomed(connection, rng) as welcome:
        await trio.sleep(0.2)
        for sequence in range(8):
            status = rng.choice((0, 0, 0, 1))
            await connection.say(
                messages.Outcome(welcome.session, sequence, status, "w", 0.1, 1), bodies(rng)
            )


async def bomb_outcomes(connection: Connection, rng: random.Random) -> None:
    """Small outcomes that become large values, or take long."""
    await _outcomes(connection, rng, bomb)


async def colliding_outcomes(connection: Connection, rng: random.Random) -> None:
    """Outcomes that are maps whose keys have one hash."""
    await _outcomes(connection, rng, lambda _: colliding_map(30_000))


async def broken_outcomes(connection: Connection, rng: random.Random) -> None:
    """Outcomes that cannot be decoded."""
    await _outcomes(connection, rng, lambda source: source.randbytes(source.randint(0, 400)))


async def refusals(connection: Connection, rng: random.Random) -> None:
    """Everything is refused for now, with no delay, or for good."""
    async with _welcomed(connection, rng) as welcome:
        for _ in range(100):
            for sequence in range(16):
                delay_s = rng.choice((0.0, 0.0, 1e11))
                await connection.say(
                    messages.Refused(welcome.session, sequence, "queue-full", "no", delay_s)
                )
            await trio.sleep(0.005)


async def missing_everything(connection: Connection, rng: random.Random) -> None:
    """Every ping is answered: all of 2^62 sequences are missing."""
    async with _welcomed(connection, rng) as welcome:
        for probe in itertools.islice(itertools.count(), 400):
            spans = rng.choice(([0, 2**62], list(range(20_000)), [0, 1000]))
            await connection.say(messages.Synced(welcome.session, probe, spans, {}))


async def unknown_session(connection: Connection, rng: random.Random) -> None:
    """The session is not known, and another one neither."""
    async with _welcomed(connection, rng) as welcome:
        for _ in range(50):
            await connection.say(
                messages.Unknown(welcome.session, rng.random() < 0.5, rng.randbytes(16), False)
            )


async def bad_batches(connection: Connection, rng: random.Random) -> None:
    """Batches that are none, and outcomes for nobody."""
    async with _welcomed(connection, rng) as welcome:
        await connection.flood(lambda: wire.message(*bad_batch(rng, welcome.session, kind=17)), 20)


async def large_outcomes(connection: Connection, rng: random.Random) -> None:
    """Outcomes for nobody, as large as the client takes."""
    body = cbor2.dumps(bytes(4 * MIB))
    async with _welcomed(connection, rng) as welcome:
        for sequence in range(2**40, 2**40 + 100):
            await connection.say(messages.Outcome(welcome.session, sequence, 0, "w", 0.1, 1), body)


ATTACKS: Final[Mapping[str, ServerAttack]] = {
    "server-random-bytes": ServerAttack(throw_random_bytes, "", "bytes without any sense"),
    "server-grammar-bytes": ServerAttack(throw_grammar, "", "frames with something wrong"),
    "server-silence": ServerAttack(silence, "", "it accepts and never speaks"),
    "server-no-reading": ServerAttack(no_reading, "", "it never reads"),
    "server-hang-up": ServerAttack(hang_up, "", "it closes at once"),
    "server-slow-greeting": ServerAttack(slow_greeting, "", "ten bytes a second"),
    "server-wrong-ready": ServerAttack(wrong_ready, "", "a handshake as somebody else"),
    "server-more-for-ever": ServerAttack(more_for_ever, "A5", "one message without an end"),
    "server-empty-frames": ServerAttack(empty_frames, "A6", "millions of empty frames"),
    "server-tiny-messages": ServerAttack(tiny_messages, "", "messages of one byte, no end"),
    "server-huge-frames": ServerAttack(huge_frames, "", "frames up to 2^63 bytes"),
    "server-ping-flood": ServerAttack(ping_flood, "", "pings whose answers nobody reads"),
    "server-wrong-welcomes": ServerAttack(wrong_welcomes, "", "welcomes with something wrong"),
    "server-unasked": ServerAttack(unasked, "", "answers to nothing"),
    "server-bombs": ServerAttack(bomb_outcomes, "A10", "outcomes that become large values"),
    "server-collisions": ServerAttack(colliding_outcomes, "A9", "outcomes with colliding keys"),
    "server-broken-outcomes": ServerAttack(broken_outcomes, "", "outcomes that are no CBOR"),
    "server-refusals": ServerAttack(refusals, "", "everything is refused for now, at once"),
    "server-missing": ServerAttack(missing_everything, "", "2^62 sequences are missing"),
    "server-unknown": ServerAttack(unknown_session, "", "the session is not known"),
    "server-bad-batches": ServerAttack(bad_batches, "", "batches that are none, and for nobody"),
    "server-large-outcomes": ServerAttack(large_outcomes, "", "large outcomes for nobody"),
}  # fmt: skip
"""By name; the names of those on servers begin otherwise."""
