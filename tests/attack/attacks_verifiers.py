"""Attacks on the door for verifiers: a ZMTP front, and another meaning behind it.

Bytes and connections are attacked as at the server's own front.  Runs ask for rollouts of
the siege's environment, whose inputs are JSON by this wire (:mod:`.environment`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from trio_envserve.core.limits import KIB, MIB
from trio_envserve.lab.conformance import wire

from . import attacks_bytes
from .attacks_bytes import pour
from .context import BATCH, Attack, AttackContext, ConnectionEnded

BYTES_S = 1.0
"""How long each of the attacks with bytes has."""

ABREAST = 15
RUN_WRITES = 2
LATER = 150
"""Connections that came after the one whose outcomes are kept."""
STAY_S = 20.0


def ask(name: bytes, method: bytes, payload: bytes = b"") -> bytes:
    """A message of this wire."""
    return wire.message(name, method, payload)


def run_of(name: bytes, asked: Any) -> bytes:
    """A request for a run."""
    return ask(name, b"run", json.dumps(asked).encode())


def cancel_of(context: AttackContext, target: bytes) -> bytes:
    """A cancel of a run; its id has 32 characters."""
    packed = b"\x81\xaarequest_id\xd9" + bytes((len(target),)) + target
    return ask(name_of(context), b"cancel", packed)


def name_of(context: AttackContext) -> bytes:
    """A request id as the library makes them."""
    return context.id().hex().encode()


async def _flood(context: AttackContext, said: Callable[[], bytes], writes: int) -> None:
    """Messages of one peer, a batch at a time."""
    async with context.peer() as peer, peer.drained():
        await peer.flood(said, writes)
        await trio.sleep(0.2)


async def front_bytes(context: AttackContext) -> None:
    """Attack as any ZMTP peer must endure it, with three of those attacks at a time."""
    names = context.rng.sample(sorted(attacks_bytes.ATTACKS), 3)

    async def one(attack: Attack) -> None:
        try:
            await attack.run(context)
        except* ConnectionEnded:
            context.counts["closed"] += 1

    with trio.move_on_after(BYTES_S):
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, attacks_bytes.ATTACKS[name])


async def strange_messages(context: AttackContext) -> None:
    """A wrong number of frames, ids that are none, methods that there are not."""
    await _flood(context, lambda: strange_message(context.rng), 10)


def strange_message(rng: random.Random) -> bytes:
    """A message that is none of this wire."""
    name = rng.choice((b"a", b"", b"\0", b" ", b"x" * 128, b"x" * 129, b"\xff\xfe"))
    method = rng.choice(
        (b"run", b"", b"RUN", b"health", b"cancel", b"reply", b"\xff" * 20, b"runs")
    )
    long = b"x" * 9000
    frames: tuple[list[bytes], ...] = (
        [name], [name, method], [name, method, b"", b""], [b"r"] * 60, [name, method, b"\x80"],
        [b"r", method, b"\xc1"], [rng.randbytes(9)] * 3, [long, method, long], [name, long, b""],
    )  # fmt: skip
    return wire.message(*rng.choice(frames))


async def strange_msgpack(context: AttackContext) -> None:
    """Cancels and runs of msgpack that is none, that claims a gigabyte, or that is deep."""

    def said() -> bytes:
        method = context.rng.choice((b"cancel", b"cancel", b"run"))
        return ask(name_of(context), method, strange_pack(context.rng))

    await _flood(context, said, 5)


def strange_pack(rng: random.Random) -> bytes:
    """Msgpack that is none, or that claims more than there is."""
    claims = b"\x40\x00\x00\x00"
    return rng.choice(
        (
            b"", b"\xc1", b"\xdb" + claims, b"\xc6" + claims, b"\xdd" + claims, b"\xdf" + claims,
            b"\x81\xaarequest_id\xdb" + claims, b"\x81\xaarequest_id\xa1\xff",
            b"\x81\xaarequest_id" * 2000, b"\x81\xa1a" * 1300 + b"\xc0", b"\x91" * 4000,
            b"\x81" * 100_000, b"\xde\xff\xff" + b"\xa0\xc0" * 2000, b"\x82\xa1a\xc0\xa1a\xc0",
            b"\x81\xaarequest_id\xc0", b"\x81\xaarequest_id\xa1\x00", b"\x80\x80",
            b"\xc9" + claims + b"\x01", rng.randbytes(rng.choice((1, 30, 3000))),
        )
    )  # fmt: skip


async def conflicts(context: AttackContext) -> None:
    """The same ids with other payloads, from two connections."""
    names = [name_of(context) for _ in range(20)]

    def said() -> bytes:
        asked = {"index": context.rng.randrange(3), "sleep_s": 0.2}
        return run_of(context.rng.choice(names), asked)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(_flood, context, said, 5)


async def cancel_flood(context: AttackContext) -> None:
    """Cancels of what nobody has asked for, and of runs before, with and after them."""

    def said() -> bytes:
        name = name_of(context)
        both = [run_of(name, {"index": 1, "sleep_s": 1.0}), cancel_of(context, name)]
        context.rng.shuffle(both)
        return context.rng.choice((b"".join(both), both[0] + both[1] * 2, cancel_of(context, name)))

    await _flood(context, said, 10)


async def health_flood(context: AttackContext) -> None:
    """Probes whose answers nobody reads."""
    async with context.peer() as peer:
        await pour(peer, ask(b"h" * 32, b"health", b"\x80") * BATCH, 20_000_000)
        await trio.sleep(0.5)


async def run_flood(context: AttackContext) -> None:
    """More runs than there is room for, which take long; then their client is gone."""

    def said() -> bytes:
        return run_of(name_of(context), {"index": 1, "sleep_s": context.rng.choice((0.0, 2.0))})

    await _flood(context, said, 10)


async def large_runs(context: AttackContext) -> None:
    """Runs at their limit and over it, many at once."""

    async def one(size: int) -> None:
        async with context.peer() as peer:
            for _ in range(4):
                await peer.send(ask(name_of(context), b"run", bytes(size)))
                context.counts["messages"] += 1
            await peer.wait_closed(1.0)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(one, context.rng.choice((MIB, 2 * MIB, 16 * MIB, 16 * MIB + 1)))


async def unread_runs(context: AttackContext) -> None:
    """Large outcomes that nobody reads."""
    async with context.peer() as peer:
        for _ in range(30):
            await peer.send(run_of(name_of(context), {"bytes": 400 * KIB}))
            context.counts["runs"] += 1
        await trio.sleep(2.0)


async def new_identities(context: AttackContext) -> None:
    """Hundreds of outcomes whose client is gone, and many others that came later."""
    async with context.peer() as first, trio.open_nursery() as nursery:
        for _ in range(LATER):
            nursery.start_soon(_come_later, context)
        await first.flood(lambda: run_of(name_of(context), {"index": 1}), RUN_WRITES)
        await trio.sleep(context.rng.choice((0.3, 1.0)))
        first.reset()
        await first.close()
        context.counts["left"] += 1
        await trio.sleep(0.3)
        nursery.cancel_scope.cancel()


async def _come_later(context: AttackContext) -> None:
    try:
        async with context.peer(context.id()) as peer:
            context.counts["later"] += 1
            if context.rng.random() < 0.1:
                await peer.drain()
            await trio.sleep(STAY_S)
    except ConnectionEnded:
        context.counts["closed"] += 1


async def runs_at_once(context: AttackContext) -> None:
    """Many large runs that all end in the same moment."""
    size = context.rng.choice((1 * MIB, 2 * MIB, 16 * MIB)) - KIB
    await context.end_at_once(
        context.peer, lambda: ask(name_of(context), b"run", bytes(size)), ABREAST
    )


def _at_verifiers(run: Callable[[AttackContext], Awaitable[None]], what: str) -> Attack:
    return Attack(run, "", what, "verifiers")


ATTACKS: Final[Mapping[str, Attack]] = {
    "verifiers-bytes": _at_verifiers(front_bytes, "the attacks with bytes at this door"),
    "verifiers-messages": _at_verifiers(strange_messages, "wrong frames, ids and methods"),
    "verifiers-msgpack": _at_verifiers(strange_msgpack, "msgpack that is none, or claims 1 GB"),
    "verifiers-conflicts": _at_verifiers(conflicts, "the same ids with other payloads"),
    "verifiers-cancels": _at_verifiers(cancel_flood, "cancels before, with and after runs"),
    "verifiers-probes": _at_verifiers(health_flood, "probes whose answers nobody reads"),
    "verifiers-run-flood": _at_verifiers(run_flood, "more runs than there is room for"),
    "verifiers-large-runs": _at_verifiers(large_runs, "runs at their limit and over it"),
    "verifiers-runs-at-once": _at_verifiers(runs_at_once, "large runs that end in one moment"),
    "verifiers-unread": _at_verifiers(unread_runs, "large outcomes that nobody reads"),
    "verifiers-identities": _at_verifiers(new_identities, "outcomes offered to hundreds"),
}
"""By name."""
