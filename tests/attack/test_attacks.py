"""Each attack does what it says, to a socket that only reads."""

from __future__ import annotations

import collections
import contextlib
import re

import cbor2
import pytest
import trio

from tests.attack import attacks_bytes
from tests.attack.attacks import NAMES, ON_CLIENTS, ON_SERVERS, finding_of, what_of
from tests.attack.attacks_on_clients import welcome_to
from tests.attack.attacks_protocol import (
    bad_batch,
    bomb,
    colliding_map,
    with_input,
)
from tests.attack.context import (
    AttackContext,
    Connection,
    ConnectionEnded,
    run_attack,
    seeded,
)
from tests.attack.reader import GREETING, Reader, open_reader
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.messages import Request, in_batches, read
from trio_envserve.lab.conformance import wire

HANG_S = 180.0
FEWER = 300_000
"""Empty frames: what only reads is slow to take five million apart."""


async def until(reader: Reader, condition) -> None:
    while not condition(reader):
        await trio.sleep(0.005)


async def attacked(name: str, condition, *, cut_at: int | None = None, connections=40):
    """Run an attack until the reader has seen what it is about."""
    with trio.fail_after(HANG_S):
        speaks = ON_SERVERS[name].at != "http"
        async with open_reader(speaks=speaks) as (reader, address), trio.open_nursery() as nursery:
            reader.cut_at = cut_at
            context = AttackContext(address, seeded(1, name), connections)
            nursery.start_soon(run_attack, ON_SERVERS[name], context, HANG_S)
            await until(reader, condition)
            nursery.cancel_scope.cancel()
    return reader, context


def kinds(reader: Reader) -> set[object]:
    """The kinds of the headers that came, and ``None`` for what is no header."""
    found: set[object] = set()
    for message in reader.messages:
        try:
            header = cbor2.loads(message[0])
        except Exception:  # whatever hostile bytes raise: it is no header
            header = None
        found.add(header[0] if type(header) is list and header else None)
    return found


REACHES = {
    "random-bytes": lambda r: sum(map(len, r.data)) > 10_000,
    "grammar-bytes": lambda r: r.connections > 9 and len(r.claimed) > 9,
    "slow-handshakes": lambda r: r.most_at_once >= 100 and min(map(len, r.data)) > 0,
    "half-open": lambda r: r.most_at_once >= 40 and {0, 11, 64} <= set(map(len, r.data)),
    "connections": lambda r: r.most_at_once == 40 and r.frames[4] >= 40 and r.open == 0,
    "more-for-ever": lambda r: r.frames[1] >= 400 and not r.frames[0],
    "small-more-for-ever": lambda r: r.frames[1] >= 100_000 and not r.frames[0],
    "empty-frames": lambda r: r.frames[1] >= FEWER and r.frames[0] == 1,
    "tiny-messages": lambda r: r.frames[0] >= 200_000 and r.bodies[b"\0"] == r.frames[0],
    "huge-frames": lambda r: max(r.claimed, default=0) >= 1 << 24 and r.connections >= 40,
    "ping-flood": lambda r: r.frames[4] > 50_000,
    "twins": lambda r: r.connections >= 4 and len(r.messages) >= 6,
    "vanish": lambda r: r.frames[0] >= 500 and r.connections > 3,
    "hello-flood": lambda r: len(kinds(r)) == 1 and r.frames[0] >= 4000,
    "hellos-of-many": lambda r: r.connections >= 20 and {0, 6} <= kinds(r),
    "guesses": lambda r: {1, 2, 3, 4, 6} <= kinds(r),
    "sync-gaps": lambda r: 3 in kinds(r) and max(r.claimed, default=0) > 100_000,
    "finish-gaps": lambda r: 2 in kinds(r) and max(r.claimed, default=0) > 100_000,
    "colliding-keys": lambda r: 1 in kinds(r) and max(r.claimed, default=0) > 30_000 * 12,
    "decode-bombs": lambda r: 1 in kinds(r),
    "malformed-bodies": lambda r: 1 in kinds(r),
    "unread-outcomes": lambda r: sum(len(m) == 2 for m in r.messages) >= 120,
    "never-finish": lambda r: r.connections >= 3 and {0, 1, 3} <= kinds(r) and 2 not in kinds(r),
    "many-frames": lambda r: {65, 4000} <= {len(message) for message in r.messages},
    "strange-headers": lambda r: None in kinds(r) and len(r.messages) > 1000,
    "long-headers": lambda r: sum(size > 380_000 for size in r.claimed) >= 4,
    "headers-at-once": lambda r: sum(size > 300_000 for size in r.claimed) >= 40,
    "bad-batches": lambda r: sum(m[0][1:4] == b"\x01\x98\x40" for m in r.messages) > 500,
    "stats-unread": lambda r: 5 in kinds(r) and r.frames[0] > 2000,
    "http-slow-heads": lambda r: r.most_at_once >= 40 and min(map(len, r.data)) > 3,
    "http-endless-heads": lambda r: max(map(len, r.data), default=0) > 1_000_000,
    "http-many-headers": lambda r: said(r, rb"X-899: 899") >= 40,
    "http-strange-heads": lambda r: said(r, rb" HTTP/1\.0") and said(r, rb"Length: 4\r\nTransfer"),
    "http-strange-keys": lambda r: said(r, rb"a{4096}") and said(r, rb"%0d%0aX-Evil"),
    "http-slow-bodies": lambda r: said(r, rb"\n\r\n\[+") >= 10 and said(r, rb"1\r\n\[\r\n1") >= 9,
    "http-endless-chunks": lambda r: said(r, rb"chunked") and sum(map(len, r.data)) > 1_000_000,
    "http-large-bodies": lambda r: said(r, rb"8388609") and sum(map(len, r.data)) > 32 << 20,
    "http-broken-bodies": lambda r: said(r, rb"\r\n\r\n[\[{]") and said(r, rb"application/cbor"),
    "http-heavy-values": lambda r: sum(map(len, r.data)) > 40 * 200_000,
    "http-pipelining": lambda r: max(map(len, r.data), default=0) > 1_000_000,
    "http-pipelining-read": lambda r: said(r, rb"GET /v1/openapi.json HTTP/1.1") >= 1000,
    "http-unread-answers": lambda r: r.most_at_once >= 40 and said(r, rb"\d000000}}") >= 40,
    "http-unread-batches": lambda r: said(r, rb"POST /v1/batches") >= 4,
    "http-hang-ups": lambda r: r.connections > 80 and {0, 1} <= {len(d) > 99 for d in r.data},
    "http-idle": lambda r: r.most_at_once == 40 and max(map(len, r.data)) < 40,
    "http-at-once": lambda r: r.most_at_once >= 40 and said(r, rb"\}\}$") >= 40,
    "http-keyed-flood": lambda r: said(r, rb'Idempotency-Key: "[0-9a-f]{32}"') >= 1000,
    "http-one-key": lambda r: said(r, rb"DELETE") and said(r, rb"=5") and said(r, rb'"index": 2'),
    "http-gets-and-deletes": lambda r: said(r, rb"GET") >= 100 and said(r, rb"DELETE") >= 100,
    "http-rows": lambda r: said(r, rb"POST /run") >= 40 and said(r, rb"_ng_rollout_id"),
    "verifiers-bytes": lambda r: r.connections > 2 and sum(map(len, r.data)) > 1000,
    "verifiers-messages": lambda r: {1, 2, 3, 4, 60} <= {len(message) for message in r.messages},
    "verifiers-msgpack": lambda r: methods(r) == {b"run", b"cancel"} and r.frames[0] >= 1000,
    "verifiers-conflicts": lambda r: r.connections >= 2 and 20 == len(runs(r)) < r.frames[0],
    "verifiers-cancels": lambda r: methods(r) == {b"run", b"cancel"} and r.frames[0] >= 2000,
    "verifiers-probes": lambda r: methods(r) == {b"health"} and r.frames[0] >= 5000,
    "verifiers-run-flood": lambda r: len(runs(r)) >= 2000,
    "verifiers-large-runs": lambda r: max(r.claimed, default=0) >= 16 << 20 and r.connections >= 8,
    "verifiers-runs-at-once": lambda r: r.most_at_once >= 15 and len(runs(r)) >= 15,
    "verifiers-unread": lambda r: len(runs(r)) >= 30,
    "verifiers-identities": lambda r: len(runs(r)) >= 400 and r.most_at_once > 50,
}


def said(reader: Reader, what: bytes) -> int:
    """How often this has come, over all connections."""
    return sum(len(re.findall(what, bytes(mine))) for mine in reader.data)


def methods(reader: Reader) -> set[bytes]:
    """What was asked by the wire of verifiers."""
    return {message[1] for message in reader.messages if len(message) == 3}


def runs(reader: Reader) -> set[bytes]:
    """The ids of the runs that were asked for."""
    return {each[0] for each in reader.messages if len(each) == 3 and each[1] == b"run"}


@pytest.mark.parametrize("name", ON_SERVERS)
async def test_an_attack_reaches_what_it_claims(name, monkeypatch):
    monkeypatch.setattr(attacks_bytes, "EMPTY_FRAMES", FEWER)
    reader, context = await attacked(name, REACHES[name])
    assert context.counts["connections"] >= 1
    assert reader.connections >= 1


@pytest.mark.parametrize("name", ["more-for-ever", "tiny-messages", "hello-flood", "decode-bombs"])
async def test_a_closed_connection_is_counted_and_the_attack_begins_anew(name):
    _, context = await attacked(name, lambda r: r.connections > 2, cut_at=200)
    assert context.counts["closed"] >= 2
    assert context.counts["rounds"] == 0


async def test_an_attack_ends_with_its_time(autojump_clock):
    await run_attack(ON_SERVERS["twins"], AttackContext("tcp://127.0.0.1:1", seeded(1)), 3.0)
    assert trio.current_time() < 10


async def test_nobody_to_attack_is_counted():
    async with open_reader() as (_, address):
        pass
    context = AttackContext(address, seeded(1))
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_attack, ON_SERVERS["random-bytes"], context, HANG_S)
            while not context.counts["refused"]:
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    assert context.counts["connections"] == 0


async def test_the_same_seed_sends_the_same_bytes(monkeypatch):
    runs: list[list[bytes]] = []
    for _ in range(2):
        sent: dict[Connection, bytes] = {}

        async def send(self, data, sent=sent, shipped=Connection.send):
            sent[self] = sent.get(self, b"") + data
            await shipped(self, data)

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "send", send)
            await attacked("random-bytes", lambda r: r.connections >= 4)
        runs.append(list(sent.values())[:3])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_the_colliding_keys_collide():
    value = cbor2.loads(colliding_map(50))
    assert len(value) == 50
    assert {hash(key) for key in value} == {7}
    assert all(type(key) is int for key in value)


def test_bodies_are_requests_but_for_their_input():
    body = cbor2.loads(with_input(cbor2.dumps({"x": 1})))
    assert body["input"] == {"x": 1}
    assert body["kind"] == "rollout"


def test_bombs_are_small_and_differ():
    bombs = {bomb(seeded(number)) for number in range(60)}
    assert len(bombs) >= 8
    assert max(map(len, bombs)) < 2_000_000


def test_batches_are_drawn_from_a_seed():
    drawn = [bad_batch(seeded(number), bytes(16)) for number in (*range(60), 3)]
    assert drawn[3] == drawn[-1]
    refused = 0
    for frames in drawn:
        with contextlib.suppress(ProtocolError):
            read(frames, most_bytes=1 << 16)
            continue
        refused += 1
    assert 20 < refused < 58


def test_every_attack_has_words_and_a_place():
    assert len(set(NAMES)) == len(NAMES)
    assert set(REACHES) == set(ON_SERVERS)
    for name in NAMES:
        assert what_of(name)
        assert finding_of(name) == "" or finding_of(name)[0] == "A"
    assert {finding_of(name) for name in ON_SERVERS} >= {
        "A1", "A3", "A4", "A5", "A6", "A9", "A10", "A11", "A12", "A13", "A14",
    }  # fmt: skip


# -- on clients ---------------------------------------------------------------


class Victim:
    """A plain client: it shakes hands, says hello, and reads."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False


HELLO = cbor2.dumps([0, 1, bytes(range(16)), 1, "victim", 1 << 24])
SPEECH = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


async def suffer(name: str, condition, early: bytes = b"") -> Victim:
    """Let a hostile server have a plain client until it has done what it is about.
    ``early``: what the client sends before its hello."""
    victim = Victim()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]

    async def serve(stream: trio.SocketStream) -> None:
        connection = Connection(stream, collections.Counter())
        try:
            await ON_CLIENTS[name].behave(connection, seeded(5, name))
        except* ConnectionEnded:
            pass  # the victim has gone

    async def read(stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await stream.send_all(GREETING)
                await stream.send_all(SPEECH + early + wire.message(HELLO))
                while data := await stream.receive_some(1 << 18):
                    victim.data += data
        except trio.BrokenResourceError:
            pass  # reset, which is one of its ways
        victim.ended = True

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            nursery.start_soon(read, await trio.open_tcp_stream("127.0.0.1", port))
            while not condition(victim):
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    return victim


def has(count: int):
    """So many bytes."""
    return lambda victim: len(victim.data) >= count


ENDS = {
    "server-silence": lambda victim: victim.ended and not victim.data,
    "server-hang-up": lambda victim: victim.ended and len(victim.data) <= 64,
    "server-slow-greeting": lambda victim: 3 <= len(victim.data) < 64,
    "server-no-reading": lambda victim: victim.ended and len(victim.data) > 64,
    "server-wrong-ready": lambda victim: victim.ended and len(victim.data) > 64,
    "server-random-bytes": has(1),
    "server-grammar-bytes": has(1),
    "server-more-for-ever": has(64 << 20),
    "server-huge-frames": has(32 << 20),
    "server-large-outcomes": has(32 << 20),
    "server-empty-frames": has(10_000_000),
    "server-tiny-messages": has(1_000_000),
    "server-ping-flood": has(1_000_000),
    "server-collisions": has(8 * 30_000 * 12),
    "server-wrong-welcomes": has(100_000),
    "server-missing": has(100_000),
    "server-bombs": has(100_000),
    "server-unasked": has(50_000),
    "server-refusals": has(20_000),
}


@pytest.mark.parametrize("name", ON_CLIENTS)
async def test_a_hostile_server_reaches_what_it_claims(name):
    await suffer(name, ENDS.get(name, has(1000)))


@pytest.mark.parametrize("name", ["server-wrong-welcomes", "server-unasked"])
async def test_a_hostile_server_ended_when_a_batch_came_before_the_hello(name):
    """A client that connects again may have some requests of before on their way."""
    rows = [(Request(bytes(16), n, bytes(16), None, 1, 0.0, None), b"x") for n in range(2)]
    (batch,) = in_batches(rows)
    await suffer(name, has(1000), early=wire.message(*map(bytes, batch)))


def test_a_welcome_of_the_hostile_server_answers_the_hello():
    hello = AttackContext("tcp://127.0.0.1:1", seeded(1)).hello()
    assert welcome_to(hello, seeded(2)).nonce == hello.nonce
