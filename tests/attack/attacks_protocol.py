"""Attacks on the application protocol: valid ZMTP, hostile meaning.

They are told by the documents alone: what a session is, what a body is, where the
bounds are.  Bodies ask for rollouts of the siege's environment, which answers as
large and as late as it is told to (:mod:`.environment`).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import cbor2
import trio

from trio_envserve.core import messages
from trio_envserve.core.limits import KIB, MIB, WireLimits
from trio_envserve.core.messages import Welcome
from trio_envserve.lab.conformance import wire

from .attacks_bytes import pour
from .context import BATCH, Attack, AttackContext, digest_of

HEADER_BYTES = WireLimits().header_bytes
ABREAST = 40
HELLO_WRITES = 60
UNREAD_BYTES = 1_000_000
UNREAD = 120
NEVER_FINISHED = 1_000
GAPS = 40_000
"""Edges in one statement; its header stays below its bound."""


def body_of(asked: Any) -> bytes:
    """The body of a request for one rollout."""
    return cbor2.dumps(
        {
            "kind": "rollout", "input": asked, "sampling_args": {}, "max_retries": 0,
            "model": {"endpoint": "oracle", "name": ""}, "state_columns": [],
        }
    )  # fmt: skip


def with_input(value: bytes) -> bytes:
    """The body of a request whose input are these bytes."""
    marked = body_of("\0")
    before, _, after = marked.partition(b"\x61\x00")
    return before + value + after


def request(welcome: Welcome, sequence: int, body: bytes) -> bytes:
    """A request as bytes."""
    header = messages.Request(welcome.session, sequence, digest_of(sequence), None, 1, None)
    return wire.message(messages.encode(header), body)


# -- sessions -----------------------------------------------------------------


async def hello_flood(context: AttackContext) -> None:
    """Thousands of hellos on one connection, each for another session."""
    async with context.peer() as peer, peer.drained():
        await peer.flood(lambda: wire.message(messages.encode(context.hello())), HELLO_WRITES)


async def hellos_of_many(context: AttackContext) -> None:
    """Hellos on many connections, which are gone before their welcome comes."""
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(_hello_and_go, context)


async def _hello_and_go(context: AttackContext) -> None:
    async with context.peer() as peer:
        await peer.say(context.hello())
        await peer.say(messages.Goodbye(context.id()))
        context.counts["hellos"] += 1


async def guesses(context: AttackContext) -> None:
    """Use what is not the sender's: guessed sessions, other epochs, other connections."""
    async with context.session() as (peer, welcome), peer.drained():
        await peer.flood(lambda: wire.message(*_guess(context, welcome)), 20)


def _guess(context: AttackContext, welcome: Welcome) -> list[bytes]:
    rng, session = context.rng, context.rng.choice((context.id(), welcome.session))
    number = rng.choice((0, 1, 2**31, 2**62, 2**63 - 1))
    header: messages.Message = rng.choice(
        (
            messages.Sync(session, context.id(), number, number, number, []),
            messages.Sync(session, welcome.epoch, 0, 0, 2**62, [0, 2**62]),
            messages.Finish(session, [number, number + 1] if number < 2**62 else []),
            messages.Cancel(session, number),
            messages.Goodbye(context.id()),
            messages.Request(session, number, context.id(), True, 2**62, 0.0),
        )
    )
    frames = [messages.encode(header)]
    return [*frames, b"\xf6"] if isinstance(header, messages.Request) else frames


# -- statements ---------------------------------------------------------------


async def sync_gaps(context: AttackContext) -> None:
    """Syncs about 2^62 sequences, pending and not, with many spans; and of a whole window,
    with every second one pending."""
    async with context.session() as (peer, welcome), peer.drained():
        window = min(welcome.window, GAPS // 2) - 1
        full = [edge for n in range(window) for edge in (2 * n + 1, 2 * n + 2)]
        for probe in range(1, 50):
            next_, pending = context.rng.choice(
                (
                    (2**62, [0, 2**62]), (2**62, gaps(context.rng)), (2**63 - 1, []),
                    (0, [5, 2**60]), (2 * window + 2, full),
                )
            )  # fmt: skip
            await peer.say(messages.Sync(welcome.session, welcome.epoch, 1, probe, next_, pending))
            context.counts["messages"] += 1


async def finish_gaps(context: AttackContext) -> None:
    """Finishes of every second sequence, tens of thousands at a time."""
    async with context.session() as (peer, welcome), peer.drained():
        for _ in range(50):
            await peer.say(messages.Finish(welcome.session, gaps(context.rng)))
            context.counts["messages"] += 1


def gaps(rng: random.Random) -> list[int]:
    """Spans of one sequence each, with a gap of one between them."""
    first = rng.choice((0, 1, 16_000, 2**40))
    return list(range(first, first + GAPS))


# -- requests -----------------------------------------------------------------


async def _ask(context: AttackContext, bodies: Callable[[random.Random], bytes], most: int) -> None:
    """A session that asks for rollouts, one at a time, and waits for each answer."""
    async with context.session() as (peer, welcome):
        for sequence in range(most):
            body = bodies(context.rng)
            await peer.send(request(welcome, sequence, body))
            context.counts["requests"] += 1
            await peer.hear()
            await peer.say(messages.Finish(welcome.session, [sequence, sequence + 1]))


async def colliding_keys(context: AttackContext) -> None:
    """Maps whose keys have one hash."""
    await _ask(context, lambda _: with_input(colliding_map(30_000)), 3)


def colliding_map(count: int) -> bytes:
    """A map of bignum keys that are equal modulo 2^61 - 1, which is Python's hash of them."""
    modulus = 2**61 - 1
    pairs = b"".join(
        cbor2.dumps((index << 64) * modulus + 7) + b"\x00" for index in range(1, count + 1)
    )
    return b"\xba" + struct.pack(">I", count) + pairs


async def decode_bombs(context: AttackContext) -> None:
    """Small bodies that become large values, or take long."""
    await _ask(context, lambda rng: with_input(bomb(rng)), 4)


def bomb(rng: random.Random) -> bytes:
    """A value that costs more than it weighs."""
    count = 500_000
    lists = b"\x9a" + struct.pack(">I", count) + b"\x80" * count
    maps = b"\x9a" + struct.pack(">I", count) + b"\xa0" * count
    arrays = b"\x9a" + struct.pack(">I", count // 4) + b"\xd8\x40\x41\x00" * (count // 4)
    nested = b"\x81" * 60 + lists
    deep = b"\x81" * 100_000 + b"\x00"
    claimed = b"\x9b" + struct.pack(">Q", 2**40)
    number = b"\xc2\x5a" + struct.pack(">I", 1_000_000) + bytes((255,)) * 1_000_000
    decimal = cbor2.dumps(cbor2.CBORTag(4, [10**9, 1]))
    dates = b"\x9a" + struct.pack(">I", count // 20) + (
        cbor2.dumps(cbor2.CBORTag(0, "2026-01-02T03:04:05+00:00")) * (count // 20)
    )  # fmt: skip
    return rng.choice((lists, maps, arrays, nested, deep, claimed, number, decimal, dates))


async def malformed_bodies(context: AttackContext) -> None:
    """Requests whose bodies are no requests, or hardly CBOR."""
    await _ask(context, _malformed, 100)


def _malformed(rng: random.Random) -> bytes:
    good = bytearray(body_of({"index": 1}))
    choice = rng.randrange(4)
    if choice == 0:
        return rng.randbytes(rng.choice((0, 1, 30, 3000)))
    if choice == 1:
        return bytes(good[: rng.randrange(len(good))])
    if choice == 2:
        good[rng.randrange(len(good))] = rng.randrange(256)
        return bytes(good)
    return cbor2.dumps(rng.choice(([], {}, 1, {"kind": "group"}, {"kind": 7}, {1: {2: 3}})))


async def unread_outcomes(context: AttackContext) -> None:
    """Large outcomes that nobody reads."""
    async with context.session() as (peer, welcome):
        body = body_of({"bytes": UNREAD_BYTES})
        for sequence in range(UNREAD):
            await peer.send(request(welcome, sequence, body))
            context.counts["requests"] += 1
        await trio.sleep(2.0)


async def never_finish(context: AttackContext) -> None:
    """Three sessions that read their outcomes and never say so."""
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(_never_finish, context)


async def _never_finish(context: AttackContext) -> None:
    async with context.session() as (peer, welcome):
        body = body_of({"index": 1})
        for sequence in range(NEVER_FINISHED):
            await peer.send(request(welcome, sequence, body))
        context.counts["requests"] += NEVER_FINISHED
        for probe in range(1, 10):
            await peer.say(
                messages.Sync(
                    welcome.session, welcome.epoch, 1, probe, NEVER_FINISHED, [0, NEVER_FINISHED]
                )
            )
            await peer.wait_closed(0.5)


# -- messages -----------------------------------------------------------------


async def many_frames(context: AttackContext) -> None:
    """Messages with more frames than any has."""
    async with context.session() as (peer, _):
        header = messages.encode(messages.AskStats(1))
        said = wire.message(header, *[b""] * 64) + wire.message(*[b""] * 4000)
        for _ in range(50):
            await peer.send(said)
            context.counts["messages"] += 2
        await peer.wait_closed(0.2)


async def strange_headers(context: AttackContext) -> None:
    """Headers that are no messages: of unknown kinds, with wrong fields, hardly CBOR."""
    async with context.peer() as peer, peer.drained():
        await peer.flood(lambda: wire.message(_strange(context.rng)), 20)


def _strange(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return rng.randbytes(rng.randint(0, 40))
    values: tuple[Any, ...] = (
        0, 1, -1, 2**63, 2**64 - 1, 2**70, 1.5, float("nan"), None, True, b"", bytes(16), "x", "\0",
        [], [0, 1], [1, 0], {}, {"a": 1}, [[[[]]]],
    )  # fmt: skip
    fields = [rng.choice(values) for _ in range(rng.randint(0, 8))]
    return cbor2.dumps([rng.choice((0, 1, 2, 3, 4, 5, 6, 16, 17, 64, 66, 80, 255, "x")), *fields])


async def bad_batches(context: AttackContext) -> None:
    """Batches that are none, or whose rows are wrong, or are all of one request."""
    async with context.session() as (peer, welcome), peer.drained():
        await peer.flood(lambda: wire.message(*bad_batch(context.rng, welcome.session)), 20)


def bad_batch(rng: random.Random, session: bytes, *, kind: int = 1) -> list[bytes]:
    """A message that looks like a batch of 64, of requests or of outcomes."""
    rows = 64
    sizes: Any = [1] * rows
    some, same = [rng.randrange(2**40) for _ in range(rows)], rng.randrange(2**40)
    digest, ids = bytes(16), [rng.randbytes(16) for _ in range(rows)]
    columns: list[Any] = [session, some, 0, "w", None, 1]
    if kind == 1:
        columns = [session, some, digest, None, 1, 0.0, None]
    wrong = rng.randrange(10)
    if wrong == 0:
        sizes = rng.choice(([], [1] * 65, [2**62] * 64, [-1] * 64, [1] * 63, 64, "64", [None] * 64))
    elif wrong == 1:
        columns[rng.randrange(6)] = rng.choice(([], [1], [[]] * 64, [0] * 65, ids, {}, [None] * 64))
    elif wrong == 2:
        columns[1] = same  # all of them the same
    elif wrong == 3:
        columns[0] = ids  # each of a session that nobody has
    elif wrong == 4:
        columns = columns[: rng.randrange(6)]
    elif wrong == 5:
        columns[1][rng.randrange(rows)] = rng.choice((-1, 1.5, "1", None, 2**64))
    blob = rng.randbytes(rng.choice((0, 1, rows - 1, rows, rows, rows, rows + 1)))
    header = cbor2.dumps([kind, sizes, *columns])
    if wrong == 6:
        header = header[: rng.randrange(1, len(header))]
    return [header, blob] if wrong != 7 else [header]


async def stats_unread(context: AttackContext) -> None:
    """Questions for statistics whose answers nobody reads."""
    async with context.peer() as peer:
        await pour(peer, wire.message(messages.encode(messages.AskStats(1))) * BATCH, 4_000_000)
        await trio.sleep(0.5)


async def long_headers(context: AttackContext) -> None:
    """Headers at their bound, and past it."""
    async with context.session() as (peer, welcome), peer.drained():
        texts = cbor2.dumps([0, 1, bytes(16), 1, "x" * (HEADER_BYTES - KIB), 1])
        zeros = b"\x83\x02\x50" + welcome.session + b"\x9a" + struct.pack(">I", HEADER_BYTES - KIB)
        said = (texts, zeros + bytes(HEADER_BYTES - KIB), _longest(welcome.session), bytes(MIB))
        for _ in range(10):
            await peer.send(b"".join(map(wire.message, said)))
            context.counts["messages"] += len(said)


def _longest(session: bytes) -> bytes:
    """A header of as many numbers as may be, all of them right."""
    edges = range(2**62, 2**62 + 2 * (HEADER_BYTES // 9 - KIB), 2)
    return messages.encode(messages.Finish(session, list(edges)))


async def headers_at_once(context: AttackContext) -> None:
    """Many long headers that all end in the same moment."""
    said = wire.message(_longest(context.id()))
    await context.end_at_once(context.peer, lambda: said, ABREAST)


ATTACKS: Final[Mapping[str, Attack]] = {
    "hello-flood": Attack(hello_flood, "A11", "12,000 hellos on one connection"),
    "hellos-of-many": Attack(hellos_of_many, "A12", "connections that leave before their welcome"),
    "guesses": Attack(guesses, "", "sessions and epochs of others"),
    "sync-gaps": Attack(sync_gaps, "", "syncs about 2^62 sequences"),
    "finish-gaps": Attack(finish_gaps, "", "finishes of every second sequence"),
    "colliding-keys": Attack(colliding_keys, "A9", "maps whose keys have one hash"),
    "decode-bombs": Attack(decode_bombs, "A10", "small bodies that become large values"),
    "malformed-bodies": Attack(malformed_bodies, "", "bodies that are no requests"),
    "unread-outcomes": Attack(unread_outcomes, "A13", "large outcomes that nobody reads"),
    "never-finish": Attack(never_finish, "A14", "three sessions that never finish"),
    "many-frames": Attack(many_frames, "A6", "messages of 65 and of 4,000 frames"),
    "strange-headers": Attack(strange_headers, "", "headers that are no messages"),
    "long-headers": Attack(long_headers, "", "headers at their bound"),
    "headers-at-once": Attack(headers_at_once, "A6", "long headers that all end in one moment"),
    "bad-batches": Attack(bad_batches, "", "batches that are none, and of wrong rows"),
    "stats-unread": Attack(stats_unread, "", "statistics that nobody reads"),
}
"""By name."""
