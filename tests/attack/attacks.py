"""All attacks, as rows of one table: what each does, at which victim, and what it is about.

Theory of operation
-------------------
The deed of a row is what one connection says: steps, or iterables of steps (:mod:`.wires`).
They are told by the documents alone: what a session is, what a body is, where the bounds are.
Bodies ask for rollouts of the environment of :mod:`.besieged`, which answers as large and as late
as it is told to.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final, NamedTuple

import cbor2
import trio

from trio_envserve.core import messages
from trio_envserve.core.limits import KIB, MIB, WireLimits
from trio_envserve.core.messages import Message, Welcome
from trio_envserve.lab.conformance import wire

from . import wires
from .wires import Attack, Attacker, Connection, Ended, Place, Stage, Steps, hello, said

HEADER_BYTES = WireLimits().header_bytes
EMPTY_FRAMES = 5_000_000
BATCH = 200
"""Messages in one write of a flood."""
STAY_S = 20.0
"""Time for which those stay that do not read."""
FOR_EVER = math.inf

ATTACKS: Final[dict[str, Attack]] = {}
"""The table, by name."""

Draw = Callable[[random.Random], bytes]
# fmt: off


def row(
    name: str, about: str, what: str, deed: Callable[..., Any], *, at: Place = "front",
    on: Stage = "bare", abreast: int = 1, reads: bool = True, pair: bool = False,
) -> None:
    """Add a row to the table.  ``pair``: a hostile server does it to its client, too."""
    assert name not in ATTACKS
    ATTACKS[name] = Attack(name, what, about, deed, at, on, abreast, reads)
    if pair:
        row(f"server-{name}", about, what, deed, at="client", on=on, reads=reads)


http_row = partial(row, at="http")
verifiers_row = partial(row, at="verifiers", on="peer")
client_row = partial(row, at="client")


def again(chunk: bytes, most_bytes: float = math.inf) -> Iterator[bytes]:
    sent = 0
    while sent < most_bytes:
        yield chunk
        sent += len(chunk)


def batches(message: Callable[[], bytes], writes: int) -> Steps:
    """Flood: so many writes, each of many messages."""
    yield from (b"".join(message() for _ in range(BATCH)) for _ in range(writes))
    yield 0.2


def slowly(data: bytes) -> Steps:
    for byte in data:
        yield from (bytes((byte,)), 0.1)


def at_once(message: bytes) -> Steps:
    """A message that ends in the same moment as those of the other connections."""
    return iter((message[:-1], "together", message[-1:], 0.5))


# -- bytes and frames -------------------------------------------------------------------


def random_bytes(c: Connection) -> Steps:
    yield wire.greeting() if c.rng.random() < 0.5 else b""
    for _ in range(c.rng.randint(1, 8)):
        yield c.rng.randbytes(c.rng.choice((1, 9, 64, 1000, 64 * KIB)))
    yield 0.2


def wrong_greeting(rng: random.Random) -> bytes:
    good = wire.greeting(
        major=rng.choice((3, 3, 3, 0, 1, 2, 4, 255)), minor=rng.choice((0, 1, 255)),
        mechanism=rng.choice((b"NULL", b"NULL", b"PLAIN", b"CURVE", b"", b"\xff" * 20)),
        as_server=rng.choice((0, 0, 1, 7)),
    )
    if rng.random() < 0.2:
        return good[: rng.randrange(1, wire.GREETING_BYTES)]
    return bytes((0,)) + good[1:] if rng.random() < 0.1 else good


def wrong_part(rng: random.Random) -> bytes:
    """A piece of the grammar of ZMTP, right or wrong."""
    body = rng.randbytes(rng.choice((0, 1, 5, 40, 300)))
    return rng.choice((
        wire.ready(rng.choice((b"DEALER", b"ROUTER", b"PUB", b"", b"\xff" * 200))),
        wire.ready(identity=rng.randbytes(rng.choice((1, 16, 255, 256, 2000)))),
        wire.ready(identity=None), wire.command(b"READY", body), wire.command(b"ERROR", body),
        wire.command(b"READY", wire.metadata(b"X" * rng.randint(0, 255), body)),
        wire.command(rng.choice((b"", b"PING", b"PONG", b"SUBSCRIBE", b"CANCEL", b"HELLO")), body),
        wire.frame(body, rng.choice((0, 1, 3, 5, 8, 0x80, 0xFF))), wire.ping(body), body,
        wire.frame(bytes((rng.randrange(256),)) + body, wire.COMMAND),
        wire.head(rng.choice((2**63 - 1, 2**63, 2**64 - 1, 2**40, 2**31)), rng.choice((0, 1, 4))),
    ))


HANDSHAKE = wire.greeting() + wire.ready()
HALVES = (
    b"", HANDSHAKE[:11], wire.greeting(), wire.greeting() + wire.ready()[:9],
    HANDSHAKE + wire.head(1 * MIB) + bytes(100), HANDSHAKE + wire.frame(b"first", wire.MORE),
)


async def connections(attacker: Attacker) -> None:
    opened: list[Connection] = []
    async with trio.open_nursery() as nursery:

        async def hold(*, task_status: trio.TaskStatus[None]) -> None:
            async with attacker.connection() as connection:
                await connection.send(HANDSHAKE)
                opened.append(connection)
                task_status.started()
                await trio.sleep_forever()

        while len(opened) < attacker.most_connections:
            try:
                await nursery.start(hold)
            except Ended:
                # The victim is full, which is its right: it has to live with it.
                await trio.sleep(0.05)
        await trio.sleep(1.0)
        for connection in opened:
            connection.reset()
        nursery.cancel_scope.cancel()


async def twins(attacker: Attacker) -> None:
    identity = b"twin" + attacker.rng.randbytes(16)
    async with attacker.connection() as older, attacker.connection() as newer:
        for each in (older, newer):
            await each.shake_hands(identity=identity)
        for each in (older, newer, older):
            await each.say(hello(attacker.rng))
            await trio.sleep(0.1)
    if attacker.counts["rounds"] % 20 == 19:
        await trio.sleep(6.0)  # a victim that dies of them does so a while later


row("random-bytes", "survived", "bytes without any sense, some behind a right greeting",
    random_bytes, pair=True)
row("grammar-bytes", "survived", "handshakes and frames with something wrong", lambda c: (
    wrong_greeting(c.rng), (wrong_part(c.rng) for _ in range(c.rng.randint(1, 6))), 0.2), pair=True)
row("slow-handshakes", "newcomers", "100 handshakes at ten bytes a second",
    lambda c: slowly(HANDSHAKE), abreast=100, reads=False)
row("half-open", "newcomers",
    "300 connections that stop in the middle of a greeting, of `READY`, of a frame",
    lambda c: (c.rng.choice(HALVES), FOR_EVER), abreast=300)
row("connections", "survived", "up to 10,000 connections, all reset at once", connections)
row("more-for-ever", "memory", "one message without an end, in large frames",
    lambda c: again(wire.frame(bytes(64 * KIB), wire.MORE) * 4), on="peer", reads=False, pair=True)
row("small-more-for-ever", "memory", "one message without an end, in small frames",
    lambda c: again(wire.frame(b"xyz", wire.MORE) * 50_000), on="peer", reads=False)
row("empty-frames", "memory", "one message of five million empty frames", lambda c: (
    again(wire.frame(b"", wire.MORE) * 125_000, 2 * EMPTY_FRAMES), wire.frame(b""), 1.0),
    on="peer", reads=False, pair=True)
row("tiny-messages", "turns", "messages of one byte without an end",
    lambda c: again(wire.frame(b"\x00") * 85_000), on="peer", reads=False, pair=True)
row("huge-frames", "memory",
    "40 frames that claim as much as is allowed, or more, and never get whole", lambda c: (
    wire.head(size := c.rng.choice((1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB))),
    again(bytes(64 * KIB), size - 64 * KIB), FOR_EVER), on="peer", abreast=40)
row("ping-flood", "memory", "pings of ZMTP whose answers nobody reads",
    lambda c: again(wire.ping(bytes(16)) * 10_000), on="peer", reads=False, pair=True)
row("twins", "survived",
    "two connections with one routing id; the older one says one more thing; both end", twins)
row("vanish", "survived", "a flood, and a reset in its middle", lambda c: (
    again(wire.message(b"\x80", bytes(1000)) * 250, c.rng.randint(1, 8) * 251_000), "reset"),
    on="named", reads=False)

BYTES: Final = tuple(name for name, each in ATTACKS.items() if each.at == "front")
"""Names of the attacks with bytes and connections, which any peer of ZMTP must withstand."""


# -- the application protocol: valid ZMTP, hostile meaning ---------------------------------


def body_of(asked: Any) -> bytes:
    return cbor2.dumps({
        "kind": "rollout", "input": asked, "sampling_args": {}, "max_retries": 0,
        "model": {"endpoint": "oracle", "name": ""}, "state_columns": [],
    })


def with_input(value: bytes) -> bytes:
    """The body of a request whose input are these bytes."""
    before, _, after = body_of("\0").partition(b"\x61\x00")
    return before + value + after


def request(welcome: Welcome, sequence: int, body: bytes) -> bytes:
    digest = sequence.to_bytes(16, "big")
    return said(messages.Request(welcome.session, sequence, digest, None, 1, None), body)


def asked(c: Connection, draw: Draw, most: int) -> Steps:
    """Ask for rollouts, one at a time, and wait for each answer."""
    for sequence in range(most):
        yield from (request(c.welcome, sequence, draw(c.rng)), "answer")
        yield said(messages.Finish(c.welcome.session, [sequence, sequence + 1]))


def guess(rng: random.Random, welcome: Welcome) -> bytes:
    session, other = rng.choice((rng.randbytes(16), welcome.session)), rng.randbytes(16)
    number = rng.choice((0, 1, 2**31, 2**62, 2**63 - 1))
    ask = messages.Request(session, number, other, True, 2**62, 0.0)
    guesses: tuple[Message, ...] = (
        messages.Sync(session, other, number, number, number, []), messages.Goodbye(other),
        messages.Sync(session, welcome.epoch, 0, 0, 2**62, [0, 2**62]),
        messages.Finish(session, [number, number + 1] if number < 2**62 else []),
        messages.Cancel(session, number), ask,
    )
    header = rng.choice(guesses)
    return said(header, b"\xf6") if header is ask else said(header)


def gaps(rng: random.Random) -> list[int]:
    """Spans of one sequence each, with a gap of one between them; its header is within bounds."""
    first = rng.choice((0, 1, 16_000, 2**40))
    return list(range(first, first + 40_000))


def sync(welcome: Welcome, probe: int, next_: int, pending: list[int]) -> bytes:
    return said(messages.Sync(welcome.session, welcome.epoch, 1, probe, next_, pending))


def sync_gaps(c: Connection) -> Steps:
    window = min(c.welcome.window, 20_000) - 1
    full = [edge for n in range(window) for edge in (2 * n + 1, 2 * n + 2)]
    for probe in range(1, 50):
        yield sync(c.welcome, probe, *c.rng.choice((
            (2**62, [0, 2**62]), (2**62, gaps(c.rng)), (2**63 - 1, []), (0, [5, 2**60]),
            (2 * window + 2, full),
        )))


@cache
def colliding_map(count: int) -> bytes:
    """A map of bignum keys that are equal modulo 2^61 - 1, which is Python's hash of them."""
    modulus = 2**61 - 1
    keys = (cbor2.dumps((index << 64) * modulus + 7) for index in range(1, count + 1))
    return b"\xba" + struct.pack(">I", count) + b"".join(key + b"\x00" for key in keys)


@cache
def bombs() -> tuple[bytes, ...]:
    def of(count: int, item: bytes) -> bytes:
        return b"\x9a" + struct.pack(">I", count) + item * count

    lists = of(500_000, b"\x80")
    return (
        lists, of(500_000, b"\xa0"), b"\x81" * 60 + lists,
        of(125_000, b"\xd8\x40\x41\x00"),  # arrays
        of(25_000, cbor2.dumps(cbor2.CBORTag(0, "2026-01-02T03:04:05+00:00"))),
        b"\x81" * 100_000 + b"\x00",  # deep
        b"\x9b" + struct.pack(">Q", 2**40),  # more than there is
        b"\xc2\x5a" + struct.pack(">I", 1_000_000) + bytes((255,)) * 1_000_000,  # a number
        cbor2.dumps(cbor2.CBORTag(4, [10**9, 1])),  # a decimal
    )


def malformed(rng: random.Random) -> bytes:
    good = body_of({"index": 1})
    cut = rng.randrange(len(good))
    return rng.choice((
        rng.randbytes(rng.choice((0, 1, 30, 3000))), good[:cut],
        good[:cut] + rng.randbytes(1) + good[cut + 1 :],
        cbor2.dumps(rng.choice(([], {}, 1, {"kind": "group"}, {"kind": 7}, {1: {2: 3}}))),
    ))


def never_finish(c: Connection) -> Steps:
    most = 1000
    yield from (request(c.welcome, number, body_of({"index": 1})) for number in range(most))
    for probe in range(1, 10):
        yield from (sync(c.welcome, probe, most, [0, most]), 0.5)


def strange_header(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return rng.randbytes(rng.randint(0, 40))
    values: tuple[Any, ...] = (
        0, 1, -1, 2**63, 2**64 - 1, 2**70, 1.5, float("nan"), None, True, b"", bytes(16), "x", "\0",
        [], [0, 1], [1, 0], {}, {"a": 1}, [[[[]]]],
    )
    fields = [rng.choice(values) for _ in range(rng.randint(0, 8))]
    return cbor2.dumps([rng.choice((0, 1, 2, 3, 4, 5, 6, 16, 17, 64, 66, 80, 255, "x")), *fields])


def long_headers(session: bytes) -> bytes:
    """Messages with headers at their bound, and past it."""
    count = HEADER_BYTES - KIB
    texts = cbor2.dumps([0, 1, bytes(16), 1, "x" * count, 1])
    zeros = b"\x83\x02\x50" + session + b"\x9a" + struct.pack(">I", count) + bytes(count)
    return b"".join(map(wire.message, (texts, zeros, longest_header(session), bytes(MIB))))


def longest_header(session: bytes) -> bytes:
    """A header of as many numbers as may be, all of them right."""
    edges = range(2**62, 2**62 + 2 * (HEADER_BYTES // 9 - KIB), 2)
    return messages.encode(messages.Finish(session, list(edges)))


def bad_batch(rng: random.Random, session: bytes, *, kind: int = 1) -> list[bytes]:
    """A message that looks like a batch of 64, of requests (kind 1) or of outcomes (17)."""
    rows = 64
    sizes: Any = [1] * rows
    some: list[Any] = [rng.randrange(2**40) for _ in range(rows)]
    ids = [rng.randbytes(16) for _ in range(rows)]
    columns: list[Any] = [session, some, 0, "w", None, 1]
    if kind == 1:
        columns = [session, some, bytes(16), None, 1, 0.0, None]
    wrong = rng.randrange(10)
    if wrong == 0:
        sizes = rng.choice(([], [1] * 65, [2**62] * 64, [-1] * 64, [1] * 63, 64, "64", [None] * 64))
    elif wrong == 1:
        columns[rng.randrange(6)] = rng.choice(([], [1], [[]] * 64, [0] * 65, ids, {}, [None] * 64))
    elif wrong == 2:
        columns[1] = some[0]  # all of them the same
    elif wrong == 3:
        columns[0] = ids  # each of a session that nobody has
    elif wrong == 4:
        columns = columns[: rng.randrange(6)]
    elif wrong == 5:
        some[rng.randrange(rows)] = rng.choice((-1, 1.5, "1", None, 2**64))
    blob = rng.randbytes(rng.choice((0, 1, rows - 1, rows, rows, rows, rows + 1)))
    header = cbor2.dumps([kind, sizes, *columns])
    if wrong == 6:
        header = header[: rng.randrange(1, len(header))]
    return [header, blob] if wrong != 7 else [header]


def bad_batches(c: Connection) -> Steps:
    kind = 1 if c.attacker.address else 17  # a server has no address to attack
    return batches(lambda: wire.message(*bad_batch(c.rng, c.welcome.session, kind=kind)), 20)


row("hello-flood", "memory", "12,000 hellos on one connection, each for another session",
    lambda c: batches(lambda: said(hello(c.rng)), 60), on="peer")
row("hellos-of-many", "memory", "connections that leave before their welcome comes", lambda c: (
    said(hello(c.rng)), said(messages.Goodbye(c.rng.randbytes(16)))),
    on="peer", abreast=20, reads=False)
row("guesses", "G3", "sessions and epochs of others",
    lambda c: batches(lambda: guess(c.rng, c.welcome), 20), on="session")
row("sync-gaps", "turns",
    "syncs about 2^62 sequences, and about a whole window of which every second one is pending",
    sync_gaps, on="session")
row("finish-gaps", "turns", "finishes of every second sequence, tens of thousands at a time",
    lambda c: (said(messages.Finish(c.welcome.session, gaps(c.rng))) for _ in range(50)),
    on="session")
row("colliding-keys", "turns", "maps whose keys have one hash",
    lambda c: asked(c, lambda _: with_input(colliding_map(30_000)), 3), on="session", reads=False)
row("decode-bombs", "turns", "small bodies that become large values, or take long",
    lambda c: asked(c, lambda rng: with_input(rng.choice(bombs())), 4), on="session", reads=False)
row("malformed-bodies", "survived", "bodies that are no requests, or hardly CBOR",
    lambda c: asked(c, malformed, 100), on="session", reads=False)
row("unread-outcomes", "memory", "120 outcomes of 1 MB that nobody reads", lambda c: (
    (request(c.welcome, number, body_of({"bytes": 1_000_000})) for number in range(120)), 2.0),
    on="session", reads=False)
row("never-finish", "rate", "three sessions that read 1,000 outcomes each, and never say so",
    never_finish, on="session", abreast=3)
row("many-frames", "turns", "messages of 65 and of 4,000 frames", lambda c: (again(
    wire.message(messages.encode(messages.Query(1, "statistics")), *[b""] * 64)
    + wire.message(*[b""] * 4000), 400_000), 0.2), on="session")
row("strange-headers", "survived", "headers of unknown kinds, with wrong fields, hardly CBOR",
    lambda c: batches(lambda: wire.message(strange_header(c.rng)), 20), on="peer")
row("long-headers", "turns", "headers at their bound, and past it",
    lambda c: (long_headers(c.welcome.session) for _ in range(10)), on="session")
row("headers-at-once", "turns", "40 long headers that end in one moment",
    lambda c: at_once(wire.message(longest_header(c.attacker.shared))), on="peer", abreast=40)
row("bad-batches", "survived",
    "batches that are none, whose rows are wrong, or are all of one request, or for nobody",
    bad_batches, on="session", pair=True)
QUERY = messages.Query(1, "statistics")
row("stats-unread", "memory", "questions for statistics whose answers nobody reads",
    lambda c: (again(said(QUERY) * BATCH, 4_000_000), 0.5), on="peer", reads=False)


# -- the door for HTTP: heads and bodies that are wrong --------------------------------------

FLOOD = "flood"
"""Namespace of all keys of these attacks: whoever shares it shares what it may take."""
JSON, CBOR = "application/json", "application/cbor"
IS_JSON = f"Content-Type: {JSON}"
ROLLOUTS = f"/v1/rollouts?namespace={FLOOD}"


def http(
    c: Connection, target: str, *headers: str, body: bytes | None = None, media: str = JSON
) -> bytes:
    lines = [f"{target} HTTP/1.1", f"Host: {host_of(c)}", *headers]
    if body is not None:
        lines += [f"Content-Type: {media}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def host_of(c: Connection) -> str:
    return c.attacker.address.partition("://")[2]


def rollout(c: Connection, asked: Any) -> bytes:
    return http(c, "POST /v1/rollouts", body=json.dumps({"input": asked}).encode())


def endless_head(c: Connection) -> Steps:
    begins = http(c, "POST /v1/rollouts")[:-2]
    begin, chunk = c.rng.choice((
        (begins, b"X-More: and more\r\n" * 500), (begins + b"X: ", b"x" * KIB * 8),
        (b"GET /", b"a" * KIB * 8), (b"", b"\r\n" * KIB * 4),
    ))
    yield begin
    yield from again(chunk)


def strange_head(c: Connection) -> bytes:
    """The head of a request that is wrong, or that nobody sends any more."""
    host, junk = f"Host: {host_of(c)}\r\n", c.rng.randbytes(200).decode("latin-1")
    path = c.rng.choice(("/livez", "/v1/rollouts", "/run", "/" + "x" * 9000))
    smuggled = f"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n{host}\r\n0\r\n\r\nX"
    get, post, url = f"GET {path} HTTP/1.1\r\n", "POST /run HTTP/1.1\r\n", f"http://{host_of(c)}"
    return c.rng.choice((
        f"GET {path} HTTP/1.0\r\n\r\n", f"GET {path} HTTP/1.0\r\n{host}\r\n", f"GET {path}\r\n",
        f"GET {path} HTTP/9.9\r\n{host}\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\0" * 200,
        f"{get}\r\n", f"{get}{host}Host: other\r\n\r\n", f"{get}Host: evil.example\r\n\r\n",
        f"{get}{host}Origin: http://evil.example\r\n\r\n", f"OPTIONS * HTTP/1.1\r\n{host}\r\n",
        f"CONNECT {host_of(c)} HTTP/1.1\r\n{host}\r\n", f"BREW {path} HTTP/1.1\r\n{host}\r\n",
        f"GET {url}{path} HTTP/1.1\r\n{host}\r\n", f"{get}{host}Connection: Upgrade, HTTP2-Settings"
        "\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
        f"{get}{host}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        f"{post}{host}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n", f"{post}{smuggled}",
        f"POST /run HTTP/1.0\r\n{smuggled}", f"{post}{host}Content-Length: -1\r\n\r\n",
        f"{post}{host}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabc",
        f"{post}{host}Content-Length: {'9' * 400}\r\n\r\n", f"POST /run {junk}",
        f"{post}{host}Transfer-Encoding: gzip, chunked\r\n\r\n",
        f"{get}{host}X: a\r\n b\r\n\r\n", f"{get}Host : {host_of(c)}\r\n\r\n",
        f"{get}{host}X: a\0b\r\nY: \x7f\xff\r\n\r\n", f"GET {path} HTTP/1.1\n{host}\n",
        "\r\n\r\n\r\n" * 50,
    )).encode("latin-1")


def strange_key(c: Connection) -> bytes:
    """A request about a key that is none, or hardly one."""
    body = b'{"input": {"index": 1}}'
    evil = "%0d%0aX-Evil:%201"
    in_path = c.rng.choice((
        "a" * 4096, "%00", "%ff%fe", "%", "%zz", "..", "%2e%2e", "%2F", evil, "%7f%80",
        "%f0%9f%8d%80", "k?namespace=" + evil, "k?namespace=", "k?namespace=a&namespace=b",
        "k?wait=1e9", "k?wait=-1", "k?kind=\x01", "k?" + "&" * 2000, "k?x=" + "y" * 8000,
    ))
    in_header = c.rng.choice((
        '"' + "a" * 4096 + '"', '""', '"', '"."', '"a"b', '"\\"', '"\\x"', "bare", "\xff\xfe",
        '"\xc3\xa9"', '"a\tb"', '"a\x01b"', "'a'", ':YWJj:', '"a";q=1', '"a", "b"', " ",
    ))
    named, later = f"Idempotency-Key: {in_header}", "Prefer: respond-async"
    there = f"POST /v1/rollouts?namespace={evil}"
    return c.rng.choice((
        http(c, f"GET /v1/rollouts/{in_path}"), http(c, f"DELETE /v1/rollouts/{in_path}"),
        http(c, f"POST {ROLLOUTS}", named, later, body=body),
        http(c, there, 'Idempotency-Key: "k"', f"{later}, wait=\x0b", body=body),
    ))


def slow_body(c: Connection) -> Steps:
    length, piece = c.rng.choice(
        ((f"Content-Length: {MIB}", b"["), ("Transfer-Encoding: chunked", b"1\r\n[\r\n"))
    )
    yield http(c, "POST /v1/rollouts", IS_JSON, length)
    while True:
        yield from (piece, 0.1)


ENDLESS = (
    b"10000\r\n" + b"[" * 65536 + b"\r\n", b"1\r\n[\r\n" * 5000, b"1;" + b"x" * 8000, b"0" * 8000,
    b"1;x=y\r\n[\r\n" * 3000,
)


def large_body(c: Connection) -> Steps:
    size = c.rng.choice((1 * MIB, 4 * MIB, 8 * MIB, 8 * MIB + 1, 2**40))
    target = c.rng.choice(("/v1/rollouts", "/run"))
    yield http(c, f"POST {target}", f"Content-Length: {size}", IS_JSON)
    yield from again(bytes(64 * KIB), min(size, 16 * MIB) - 64 * KIB)
    yield FOR_EVER


FIELDS: Final[tuple[Any, ...]] = (
    [], 1, None, {"inputs": 7}, {"input": 1, "inputs": []}, {"inputs": [1], "in_flight": -1},
    {"input": 1, "timeout_s": "x"}, {"input": 1, "sampling_args": 5}, {"x" * 9000: 1},
    {"input": 1, "model": "http://127.0.0.1:1"}, {"input": 1, "max_retries": 2**70},
    {"inputs": [0] * 10_001}, {"input": {"$array": {"dtype": "x"}}}, {"input": {"$bytes": "%"}},
    {"_ng_rollout_id": "\r\nX: y"}, {"_rowidx": 2**70, "responses_create_params": []},
)
GOOD = json.dumps({"input": {"index": 1, "text": "\u00e4"}}).encode()
TEXTS: Final = (
    b"[" * 100_000, b'{"a":' * 50_000, b'{"input":' + b"9" * 1_000_000 + b"}", b"\xff\xfe{}",
    b'{"input": NaN}', b'{"input": 1e999}', b'{"input": 1, "input": 2}', b'"\\ud800"',
    b'{"input":[' + b"[]," * 33_000 + b"[]]}", b'{"input":"' + b"x" * 3_000_000 + b'"}',
    b'{"input":"' + b"\\u00e9" * 600_000 + b'"}', *(GOOD[:cut] for cut in (0, 1, 9, 30)),
    b'{"input":{' + b",".join(b'"%d":1' % n for n in range(40_000)) + b"}}",
    b'{"input":[' + b"1.5e-300," * 90_000 + b"0]}",
    b'{"input":[' + b",".join([b"7" * 4_000] * 900) + b"]}",
)


def broken_body(c: Connection) -> bytes:
    wrong, junk = c.rng.randrange(5), c.rng.randbytes(300)
    values = (*bombs(), *[colliding_map(30_000), junk] * 4)
    body, media = (
        (json.dumps(c.rng.choice(FIELDS)).encode(), JSON), (c.rng.choice(TEXTS), JSON),
        (GOOD, c.rng.choice(("", "text/html", "application/json; charset=utf-7", CBOR))),
        (b"\xa1\x65input" + c.rng.choice(values), CBOR), (junk, JSON),
    )[wrong]
    path = c.rng.choice(("/v1/rollouts", "/v1/batches", "/run"))
    return http(c, f"POST {path}", body=body, media=media)


http_row("http-slow-heads", "newcomers", "100 heads at ten bytes a second",
    lambda c: slowly(http(c, "GET /livez", "Accept: */*")), abreast=100, reads=False)
http_row("http-endless-heads", "memory", "headers without an end: many, or one, or a first line",
    endless_head, reads=False)
http_row("http-many-headers", "turns", "requests of 900 headers", lambda c: again(
    http(c, "GET /livez", *(f"X-{number}: {number}" for number in range(900))) * 4, 3 * MIB))
http_row("http-strange-heads", "survived",
    "old, new and no HTTP, and heads in which one header says two things",
    lambda c: (strange_head(c), 0.3), abreast=40)
http_row("http-strange-keys", "survived",
    "keys of 4 kB, of other encodings, with control characters, with headers in them",
    lambda c: ((strange_key(c) for _ in range(100)), 0.1))
http_row("http-slow-bodies", "newcomers",
    "100 bodies at ten bytes a second, with a length or in chunks",
    slow_body, abreast=100, reads=False)
http_row("http-endless-chunks", "memory",
    "a body in chunks without an end: large ones, small ones, their heads", lambda c: (
    http(c, "POST /v1/rollouts", "Transfer-Encoding: chunked", IS_JSON),
    again(c.rng.choice(ENDLESS))), reads=False)
http_row("http-large-bodies", "memory",
    "40 bodies at the limit and over it, whose last byte never comes", large_body, abreast=40)
http_row("http-broken-bodies", "turns",
    "bodies that are no JSON or CBOR, or none that is asked for, or cost much to read",
    lambda c: ((broken_body(c) for _ in range(30)), 0.5))


# -- the door for HTTP: right requests, too many of them or never read -----------------------


def keyed(c: Connection, asked: Any, *headers: str, key: str = "") -> bytes:
    """A ``POST`` under a key, a new one unless it is given."""
    named = f'Idempotency-Key: "{key or c.rng.randbytes(16).hex()}"'
    body = json.dumps({"input": asked}).encode()
    return http(c, f"POST {ROLLOUTS}", named, *headers, body=body)


HEAVY = b'{"input":{"sleep_s":4,"index":1,"pad":[' + b'{"a":0},' * 30_000 + b"0]}}"


def unread_batch(c: Connection) -> Steps:
    asked = [{"bytes": c.rng.choice((1000, 300_000))}] * 500
    body = json.dumps({"inputs": asked, "in_flight": 50}).encode()
    key = f'Idempotency-Key: "{c.attacker.shared.hex()}"'
    query, *named = c.rng.choice(((f"?namespace={FLOOD}", key), ("",)))
    return iter((http(c, f"POST /v1/batches{query}", *named, body=body), STAY_S))


def hang_up(c: Connection) -> Steps:
    asked = {"index": 1, "sleep_s": c.rng.choice((0.0, 0.5, 30.0)), "bytes": 100_000}
    batch = json.dumps({"inputs": [asked] * 20}).encode()
    whole = c.rng.choice((
        rollout(c, asked), keyed(c, asked), http(c, "POST /v1/batches", body=batch),
        http(c, "POST /run", body=json.dumps(asked).encode()),
    ))
    yield whole if c.rng.random() < 0.7 else whole[: c.rng.randrange(1, len(whole))]
    yield c.rng.choice((0.0, 0.05, 0.3))
    if c.rng.random() < 0.5:
        yield "reset"


def keyed_flood(c: Connection) -> Steps:
    for _ in range(20):
        asked = {"index": 1, "sleep_s": c.rng.choice((0.0, 0.2, 3.0))}
        yield b"".join(keyed(c, asked, "Prefer: respond-async") for _ in range(20))
        yield 0.05


def one_key(c: Connection) -> Steps:
    key = c.attacker.shared.hex()
    place = f"/v1/rollouts/{key}?namespace={FLOOD}"
    for _ in range(10):
        post = keyed(c, {"index": c.rng.choice((1, 1, 1, 2)), "sleep_s": 0.3}, key=key)
        yield c.rng.choice((post, post, http(c, f"GET {place}&wait=5"), http(c, f"DELETE {place}")))
        yield 0.05


def gets_and_deletes(c: Connection) -> Steps:
    for _ in range(20):
        method, keys = c.rng.choice(("GET", "DELETE")), [c.rng.randbytes(16) for _ in range(50)]
        places = [f"/v1/rollouts/{key.hex()}?namespace={FLOOD}" for key in keys]
        yield b"".join(http(c, f"{method} {place}") for place in places)
        yield 0.01


def nemo_row(c: Connection) -> Steps:
    name = c.rng.choice(({}, {"_ng_rollout_id": "r"}, {"_rowidx": 1}, {"_ng_rollout_index": 2}))
    asked = {"index": 1, "sleep_s": c.rng.choice((0.0, 0.5, 5.0)), **name}
    yield http(c, "POST /run", body=json.dumps(asked).encode())
    yield c.rng.choice((0.0, 0.2, 2.0))


http_row("http-heavy-values", "memory",
    "200 calls that wait, with values that take more than their bodies",
    lambda c: (http(c, "POST /v1/rollouts", body=HEAVY), FOR_EVER), abreast=200)
http_row("http-pipelining", "memory",
    "requests without an end on one connection, whose answers nobody reads",
    lambda c: again(c.rng.choice((http(c, "GET /livez"), http(c, "GET /v1/openapi.json"),
    rollout(c, {"index": 1}))) * BATCH), reads=False)
http_row("http-pipelining-read", "turns",
    "4,000 requests in a row on one connection, whose answers are read",
    lambda c: batches(lambda: http(c, "GET /v1/openapi.json"), 20))
http_row("http-unread-answers", "memory", "40 answers of 3 MB that nobody reads",
    lambda c: (rollout(c, {"bytes": 3_000_000}), STAY_S), abreast=40, reads=False)
http_row("http-unread-batches", "memory", "four streams of 500 outcomes that nobody reads",
    unread_batch, abreast=4, reads=False)
http_row("http-hang-ups", "survived",
    "connections that end in a head, in a body, before the answer, or in its middle",
    hang_up, abreast=40)
http_row("http-idle", "newcomers", "3,000 connections that say nothing, or half a line",
    lambda c: (c.rng.choice((b"G", b"GET /livez HTTP/1.1\r\nHo")), FOR_EVER), abreast=3000)
http_row("http-at-once", "turns", "600 requests that end in one moment", lambda c: at_once(
    rollout(c, {"index": 1, "pad": [{"a": 0}] * (400 if c.attacker.shared[0] % 2 else 1)})),
    abreast=600)
http_row("http-keyed-flood", "memory",
    "work under ever new keys of one namespace, which takes long, and nobody waits for it",
    keyed_flood, abreast=8)
http_row("http-one-key", "turns",
    "150 that want one key: the same, something else, its end, its outcome", one_key, abreast=150)
http_row("http-gets-and-deletes", "turns",
    "questions about keys that nobody has asked for, and their ends", gets_and_deletes, abreast=8)
http_row("http-rows", "memory",
    "150 rows of NeMo Gym that nothing tells apart, with one id, or that nobody waits for",
    nemo_row, abreast=150)


# -- the door for verifiers: a ZMTP front, and another meaning behind it ---------------------


def name_of(c: Connection) -> bytes:
    """A request id as the library makes them."""
    return c.rng.randbytes(16).hex().encode()


def run_of(name: bytes, **asked: Any) -> bytes:
    return wire.message(name, b"run", json.dumps(asked).encode())


async def bytes_at_verifiers(attacker: Attacker) -> None:
    async with trio.open_nursery() as nursery:
        for name in attacker.rng.sample(BYTES, 3):
            # Of its own, since connections of one attack wait for each other.
            other = Attacker(attacker.address, attacker.rng, attacker.most_connections)
            other.counts = attacker.counts
            nursery.start_soon(wires.perform, ATTACKS[name], other)
        await trio.sleep(1.0)
        while not attacker.counts["connections"]:  # on a busy machine
            await trio.sleep(wires.PAUSE_S)
        nursery.cancel_scope.cancel()


def strange_message(rng: random.Random) -> bytes:
    name = rng.choice((b"a", b"", b"\0", b" ", b"x" * 128, b"x" * 129, b"\xff\xfe"))
    methods = (b"run", b"", b"RUN", b"health", b"cancel", b"reply", b"\xff" * 20, b"runs")
    method, long = rng.choice(methods), b"x" * 9000
    frames: tuple[list[bytes], ...] = (
        [name], [name, method], [name, method, b"", b""], [b"r"] * 60, [name, method, b"\x80"],
        [b"r", method, b"\xc1"], [rng.randbytes(9)] * 3, [long, method, long], [name, long, b""],
    )
    return wire.message(*rng.choice(frames))


def strange_pack(c: Connection) -> bytes:
    """A message with msgpack that is none, or that claims more than there is."""
    claims = b"\x40\x00\x00\x00"
    pack = c.rng.choice((
        b"", b"\xc1", b"\xdb" + claims, b"\xc6" + claims, b"\xdd" + claims, b"\xdf" + claims,
        b"\x81\xaarequest_id\xdb" + claims, b"\x81\xaarequest_id\xa1\xff",
        b"\x81\xaarequest_id" * 2000, b"\x81\xa1a" * 1300 + b"\xc0", b"\x91" * 4000,
        b"\x81" * 100_000, b"\xde\xff\xff" + b"\xa0\xc0" * 2000, b"\x82\xa1a\xc0\xa1a\xc0",
        b"\x81\xaarequest_id\xc0", b"\x81\xaarequest_id\xa1\x00", b"\x80\x80",
        b"\xc9" + claims + b"\x01", c.rng.randbytes(c.rng.choice((1, 30, 3000))),
    ))
    return wire.message(name_of(c), c.rng.choice((b"cancel", b"cancel", b"run")), pack)


def conflicts(c: Connection) -> Steps:
    names = [c.attacker.shared[1:].hex().encode() + b"%02d" % n for n in range(20)]
    return batches(
        lambda: run_of(c.rng.choice(names), index=c.rng.randrange(3), sleep_s=0.2), 5
    )


def cancels(c: Connection) -> bytes:
    """A cancel of what nobody has asked for, or of a run that comes before, with or after it."""
    target = name_of(c)
    run = run_of(target, index=1, sleep_s=1.0)
    packed = b"\x81\xaarequest_id\xd9" + bytes((len(target),)) + target
    cancel = wire.message(name_of(c), b"cancel", packed)
    return c.rng.choice((run + cancel, cancel + run, run + cancel * 2, cancel + run * 2, cancel))


async def identities(attacker: Attacker) -> None:
    async def come_later() -> None:
        try:
            async with attacker.connection("named") as later:
                if attacker.rng.random() < 0.1:
                    await later.drain()
                await trio.sleep(STAY_S)
        except* Ended:
            pass  # those that stay are offered the outcomes

    async with attacker.connection("peer") as first, trio.open_nursery() as nursery:
        for _ in range(150):
            nursery.start_soon(come_later)
        await first.send(b"".join(run_of(name_of(first), index=1) for _ in range(400)))
        await trio.sleep(attacker.rng.choice((0.3, 1.0)))
        first.reset()
        await first.close()
        await trio.sleep(0.3)
        nursery.cancel_scope.cancel()


verifiers_row("verifiers-bytes", "survived", "three of the attacks with bytes at a time",
    bytes_at_verifiers)
verifiers_row("verifiers-messages", "survived",
    "a wrong number of frames, ids that are none, methods that there are not",
    lambda c: batches(lambda: strange_message(c.rng), 10))
verifiers_row("verifiers-msgpack", "memory",
    "cancels and runs of msgpack that is none, that claims a gigabyte, or that is deep",
    lambda c: batches(lambda: strange_pack(c), 5))
verifiers_row("verifiers-conflicts", "G6",
    "the same ids with other payloads, from two connections", conflicts, abreast=2)
verifiers_row("verifiers-cancels", "memory",
    "cancels of what nobody has asked for, and of runs before, with and after them",
    lambda c: batches(lambda: cancels(c), 10))
verifiers_row("verifiers-probes", "memory", "probes whose answers nobody reads", lambda c: (
    again(wire.message(b"h" * 32, b"health", b"\x80") * BATCH, 20_000_000), 0.5), reads=False)
verifiers_row("verifiers-run-flood", "memory",
    "more runs than there is room for, which take long; then their client is gone",
    lambda c: batches(lambda: run_of(name_of(c), index=1, sleep_s=c.rng.choice((0.0, 2.0))), 10))
verifiers_row("verifiers-large-runs", "memory", "runs at their limit and over it, many at once",
    lambda c: ((wire.message(name_of(c), b"run", bytes(size)) for size in
    [c.rng.choice((MIB, 2 * MIB, 16 * MIB, 16 * MIB + 1))] * 4), 1.0), abreast=8)
verifiers_row("verifiers-unread", "memory", "30 outcomes of 400 KiB that nobody reads",
    lambda c: ((run_of(name_of(c), bytes=400 * KIB) for _ in range(30)), 2.0), reads=False)
verifiers_row("verifiers-identities", "turns",
    "400 outcomes whose client is gone, and 150 others that came later", identities)
verifiers_row("verifiers-runs-at-once", "turns", "15 large runs that end in one moment",
    lambda c: at_once(wire.message(name_of(c), b"run", bytes(
    (1 * MIB, 2 * MIB, 16 * MIB)[c.attacker.shared[0] % 3] - KIB))), abreast=15)


# -- a client that has connected by itself to a hostile server -------------------------------

WRONG_READY = (
    wire.ready(b"PUB"), wire.ready(b"DEALER"), wire.ready(b""), wire.command(b"ERROR"),
    wire.command(b"ERROR", b"\x03400"), wire.command(b"READY", b"\xff" * 300), wire.frame(b"early"),
    wire.command(b"READY", wire.metadata(b"Identity", bytes(70_000))), wire.ready(b"ROUTER") * 3,
)


def close_early(c: Connection) -> Steps:
    yield wire.greeting()[: c.rng.choice((1, 10, 64))]
    if c.rng.random() < 0.5:
        yield "reset"


def wrong_welcome(c: Connection) -> bytes:
    right = wires.welcome_to(c.hello, c.rng)
    return said(right._replace(**c.rng.choice((
        {"nonce": c.rng.randbytes(16)}, {"window": 0}, {"window": 2**62}, {"message_bytes": 0},
        {"server": {}}, {"version": 1}, {"server": {"environment": 7, "workers": "x"}},
        {"server": {"x" * 1000: [0] * 10_000}},
    ))))


def unasked(rng: random.Random, welcome: Welcome) -> bytes:
    session = rng.choice((welcome.session, rng.randbytes(16)))
    number, body = rng.choice((999, 10**6, 2**62, 2**63 - 1)), rng.randbytes(9)
    answers: tuple[Message, ...] = (
        messages.Synced(session, number, [], {}), messages.Cancelled(session, number, True),
        messages.Synced(session, number, [0, number], {"workers": None}),
        messages.Refused(session, number, "queue-full", "", 0.0, b""), messages.Error(1, "x", "y"),
        messages.Notes(session, [0, number + 1], [b"x"]),
        messages.Welcome(2, session, session, session, 1, 1, {}),
    )
    with_bodies: tuple[Message, ...] = (
        messages.Outcome(session, number, rng.randrange(5), "w", 0.0, 1),
        messages.QueryAnswer(number),
    )
    answer = rng.choice((*answers, *with_bodies))
    return said(answer, *([body] if answer in with_bodies else []))


def outcomes(c: Connection, draw: Draw) -> Steps:
    """Answer the first sequences with these bodies, whatever was asked."""
    yield 0.2
    for sequence in range(8):
        status = c.rng.choice((0, 0, 0, 1))
        yield said(messages.Outcome(c.welcome.session, sequence, status, "w", 0.1, 1), draw(c.rng))
    yield 0.5


def refusals(c: Connection) -> Steps:
    for number in range(1600):
        delay_s, sequence = c.rng.choice((0.0, 0.0, 1e11)), number % 16
        yield said(messages.Refused(c.welcome.session, sequence, "queue-full", "no", delay_s, b""))
        yield 0.0 if sequence else 0.005
    yield 0.5


LARGE = cbor2.dumps(bytes(4 * MIB))
MISSING = ([0, 2**62], list(range(20_000)), [0, 1000])

client_row("server-silence", "recovered", "the connection is taken, and nothing is said",
    lambda c: (c.rng.uniform(0.2, 4.0),))
client_row("server-no-reading", "recovered", "nothing is read after the handshake",
    lambda c: (c.rng.uniform(1.0, 4.0),), on="peer", reads=False)
client_row("server-hang-up", "recovered",
    "the connection ends at once, or in the middle of the handshake", close_early)
client_row("server-slow-greeting", "recovered", "a greeting at ten bytes a second",
    lambda c: slowly(wire.greeting()), reads=False)
client_row("server-wrong-ready", "recovered", "a handshake as somebody else, or with an error",
    lambda c: (wire.greeting(), c.rng.choice(WRONG_READY), 0.5))
client_row("server-huge-frames", "memory",
    "a frame that claims up to 2^63 bytes, and never gets whole", lambda c: (
    wire.head(size := c.rng.choice((64 * MIB, 255 * MIB, 2**40, 2**63 - 1))),
    again(bytes(256 * KIB), min(size - 256 * KIB, 1 << 30))), on="peer", reads=False)
client_row("server-wrong-welcomes", "recovered", "welcomes that are wrong in one thing", lambda c: (
    wrong_welcome(c), said(messages.Error(1, "malformed", "x" * 100_000)), 1.0), on="hello")
client_row("server-unasked", "survived", "outcomes, refusals, syncs and errors for nobody",
    lambda c: batches(lambda: unasked(c.rng, c.welcome), 50), on="session")
client_row("server-bombs", "turns", "small outcomes that become large values, or take long",
    lambda c: outcomes(c, lambda rng: rng.choice(bombs())), on="session")
client_row("server-collisions", "turns", "outcomes that are maps whose keys have one hash",
    lambda c: outcomes(c, lambda _: colliding_map(30_000)), on="session")
client_row("server-broken-outcomes", "survived", "outcomes that are no CBOR",
    lambda c: outcomes(c, lambda rng: rng.randbytes(rng.randint(0, 400))), on="session")
client_row("server-refusals", "turns", "everything is refused for now with no delay, or for years",
    refusals, on="session")
client_row("server-missing", "turns", "2^62 sequences are missing, says the answer to each ping",
    lambda c: ((said(messages.Synced(c.welcome.session, probe, c.rng.choice(MISSING), {}))
    for probe in range(400)), 0.5), on="session")
client_row("server-unknown", "recovered", "the session is not known, and another one neither",
    lambda c: ((said(messages.Unknown(c.welcome.session, c.rng.random() < 0.5, c.rng.randbytes(16),
    False)) for _ in range(50)), 0.5), on="session")
client_row("server-large-outcomes", "memory", "100 outcomes of 4 MiB for nobody",
    lambda c: ((said(messages.Outcome(c.welcome.session, sequence, 0, "w", 0.1, 1), LARGE)
    for sequence in range(2**40, 2**40 + 100)), 0.5), on="session")

# -- loops that stand still ------------------------------------------------------------------


class Hold(NamedTuple):
    """A loop that is held while a thousand outcomes are on their way to it."""

    name: str
    what: str
    at: Place
    """Whose loop it is: ``client``, or ``front`` for a server."""
    libzmq: bool = False
    """Whether its peer is libzmq, which drops who does not answer its heartbeats."""
    about: str = "held"


HELD: Final[Mapping[str, Hold]] = {
    each.name: each for each in (
        Hold("held-client", "a client's loop is held", "client"),
        Hold("held-client-libzmq", "the same, before a server with libzmq", "client", True),
        Hold("held-server", "the loop of a server with `workers=0` is held", "front"),
        Hold("held-server-libzmq", "the same, before a client with libzmq", "front", True),
    )
}
"""By name."""
