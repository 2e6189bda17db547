"""Each attack does what it says, to a plain socket that reads."""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import cbor2
import pytest
import trio
import zmq

from tests.attack import attacks
from tests.attack.attacks import ATTACKS, bad_batch, colliding_map, with_input
from tests.attack.wires import Attacker, Connection, be_hostile, perform, repeat, seeded
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.messages import Request, in_batches, read
from trio_envserve.lab.conformance import wire

HANG_S = 180.0
FEWER = 300_000
"""Empty frames: a plain reader is slow to take five million apart."""
GREETING = wire.greeting()
READY = b"\x04\x06\x05READY"
HELLO = cbor2.dumps([0, 2, bytes(range(16)), 1, "victim", 1 << 24, bytes(16)])


class Victim:
    """All that has come, over all connections; it takes the frames apart by itself, so that the
    attackers' own reader is not their judge."""

    def __init__(self, speaks: bool = True) -> None:
        self.connections = self.open = self.most_at_once = 0
        self.data: list[bytearray] = []
        """All bytes, by connection."""
        self.frames: collections.Counter[int] = collections.Counter()
        """Whole frames, by their flags (without that of the length)."""
        self.claimed: list[int] = []
        """Sizes of frames, whole or not."""
        self.messages: list[list[bytes]] = []
        """The first 5,000."""
        self.speaks = speaks
        """As a peer of ZMTP; else it says nothing, whatever comes."""
        self.cut_at: int | None = None
        """After so many bytes of one connection it is closed."""

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        self.open += 1
        self.most_at_once = max(self.most_at_once, self.open)
        self.data.append(bytearray())
        try:
            await self._read(stream, self.data[-1])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the attacker has gone, which is its way
        finally:
            self.open -= 1

    async def _read(self, stream: trio.SocketStream, mine: bytearray) -> None:
        if self.speaks:
            await stream.send_all(GREETING)
        at, message, claimed_at = 64, list[bytes](), -1
        while data := await stream.receive_some(1 << 18):
            mine += data
            if self.cut_at is not None and len(mine) > self.cut_at:
                return
            while self.speaks and len(mine) >= at + 2:
                flags, size, start = mine[at], mine[at + 1], at + 2
                if flags & 2:
                    if len(mine) < at + 9:
                        break
                    size, start = int.from_bytes(mine[at + 1 : at + 9], "big"), at + 9
                if claimed_at != at:
                    self.claimed.append(size)
                    claimed_at = at
                if len(mine) < start + size:
                    break
                body, at = bytes(mine[start : start + size]), start + size
                self.frames[flags & ~2] += 1
                if flags & 4:
                    if self.frames[4] <= self.connections:
                        await stream.send_all(READY)
                    continue
                message.append(body)
                if not flags & 1:
                    if len(self.messages) < 5000:
                        self.messages.append(message)
                    if len(message) == 1:
                        await self._welcome(stream, message[0])
                    message = []
                elif len(message) > 5000:
                    message.clear()

    async def _welcome(self, stream: trio.SocketStream, header: bytes) -> None:
        try:
            fields = cbor2.loads(header)
        except Exception:  # whatever hostile bytes raise: it is no hello
            return
        if type(fields) is list and len(fields) == 7 and fields[0] == 0:
            answer = cbor2.dumps([16, 2, fields[2], bytes(16), bytes(16), 100, 1 << 20, {}])
            await stream.send_all(b"\x00" + bytes((len(answer),)) + answer)

    @property
    def total(self) -> int:
        return sum(map(len, self.data))

    @property
    def kinds(self) -> set[object]:
        """Kinds of the headers that came, and None for what is no header."""
        found: set[object] = set()
        for message in self.messages:
            try:
                header = cbor2.loads(message[0])
            except Exception:  # whatever hostile bytes raise: it is no header
                header = None
            found.add(header[0] if type(header) is list and header else None)
        return found

    def said(self, what: bytes) -> int:
        return sum(len(re.findall(what, bytes(mine))) for mine in self.data)

    @property
    def methods(self) -> set[bytes]:
        return {message[1] for message in self.messages if len(message) == 3}

    @property
    def runs(self) -> set[bytes]:
        return {each[0] for each in self.messages if len(each) == 3 and each[1] == b"run"}


@asynccontextmanager
async def open_victim(*, speaks: bool = True) -> AsyncIterator[tuple[Victim, str]]:
    victim = Victim(speaks)
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, victim.serve, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        yield victim, f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


Reached = Callable[[Victim], object]


async def attacked(name: str, reached: Reached, *, cut_at: int | None = None) -> Attacker:
    """Run an attack on a server until that has seen what it is about."""
    with trio.fail_after(HANG_S):
        speaks = ATTACKS[name].at != "http"
        async with open_victim(speaks=speaks) as (victim, address), trio.open_nursery() as nursery:
            victim.cut_at = cut_at
            attacker = Attacker(address, seeded(1, name), 40)
            nursery.start_soon(repeat, ATTACKS[name], attacker, HANG_S)
            while not reached(victim):
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    assert attacker.counts["connections"] >= 1
    assert victim.connections >= 1
    return attacker


async def suffered(name: str, reached: Reached, early: bytes = b"") -> None:
    """The same of a hostile server and a plain client, which says ``early`` before its hello."""
    victim = Victim(speaks=False)

    async def serve(stream: trio.SocketStream) -> None:
        await be_hostile(ATTACKS[name], Attacker("", seeded(5, name)), stream)

    async def connect(port: int) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            with contextlib.suppress(trio.BrokenResourceError):  # reset, which is one of its ways
                await stream.send_all(GREETING + wire.ready() + early + wire.message(HELLO))
            await victim.serve(stream)

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            nursery.start_soon(connect, listeners[0].socket.getsockname()[1])
            while not reached(victim):
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()


def most(sizes: list[bytearray] | list[int]) -> int:
    return max((each if isinstance(each, int) else len(each) for each in sizes), default=0)


def ended(least: int, limit: int) -> Reached:
    """The connection is over, after so many bytes."""
    return lambda v: v.connections and not v.open and least <= v.total <= limit


# fmt: off
REACHES: dict[str, Reached] = {
    "random-bytes": lambda v: v.total > 10_000,
    "grammar-bytes": lambda v: v.connections > 9 and len(v.claimed) > 9,
    "slow-handshakes": lambda v: v.most_at_once >= 40 and min(map(len, v.data)) > 0,
    "half-open": lambda v: v.most_at_once >= 40 and {0, 11, 64} <= set(map(len, v.data)),
    "connections": lambda v: v.most_at_once == 40 and v.frames[4] >= 40 and v.open == 0,
    "more-for-ever": lambda v: v.frames[1] >= 400 and not v.frames[0],
    "small-more-for-ever": lambda v: v.frames[1] >= 100_000 and not v.frames[0],
    "empty-frames": lambda v: v.frames[1] >= FEWER and v.frames[0] == 1,
    "tiny-messages": lambda v: v.frames[0] >= 200_000 and v.messages[-1] == [b"\0"],
    "huge-frames": lambda v: most(v.claimed) >= 1 << 24 and v.connections >= 40,
    "ping-flood": lambda v: v.frames[4] > 50_000,
    "twins": lambda v: v.connections >= 4 and len(v.messages) >= 6,
    "vanish": lambda v: v.frames[0] >= 500 and v.connections > 3,
    "hello-flood": lambda v: len(v.kinds) == 1 and v.frames[0] >= 4000,
    "hellos-of-many": lambda v: v.connections >= 20 and {0, 6} <= v.kinds,
    "guesses": lambda v: {1, 2, 3, 4, 6} <= v.kinds,
    "sync-gaps": lambda v: 3 in v.kinds and most(v.claimed) > 100_000,
    "finish-gaps": lambda v: 2 in v.kinds and most(v.claimed) > 100_000,
    "colliding-keys": lambda v: 1 in v.kinds and most(v.claimed) > 30_000 * 12,
    "decode-bombs": lambda v: 1 in v.kinds,
    "malformed-bodies": lambda v: 1 in v.kinds,
    "unread-outcomes": lambda v: sum(len(m) == 2 for m in v.messages) >= 120,
    "never-finish": lambda v: v.connections >= 3 and {0, 1, 3} <= v.kinds and 2 not in v.kinds,
    "many-frames": lambda v: {65, 4000} <= {len(message) for message in v.messages},
    "strange-headers": lambda v: None in v.kinds and len(v.messages) > 1000,
    "long-headers": lambda v: sum(size > 380_000 for size in v.claimed) >= 4,
    "headers-at-once": lambda v: v.frames[0] >= 40 and sum(s > 300_000 for s in v.claimed) >= 40,
    "bad-batches": lambda v: sum(m[0][1:4] == b"\x01\x98\x40" for m in v.messages) > 500,
    "stats-unread": lambda v: 5 in v.kinds and v.frames[0] > 2000,
    "http-slow-heads": lambda v: v.most_at_once >= 40 and min(map(len, v.data)) > 3,
    "http-endless-heads": lambda v: most(v.data) > 1_000_000,
    "http-many-headers": lambda v: v.said(rb"X-899: 899") >= 40,
    "http-strange-heads": lambda v: v.said(rb" HTTP/1\.0") and v.said(rb"Length: 4\r\nTransfer"),
    "http-strange-keys": lambda v: v.said(rb"a{4096}") and v.said(rb"%0d%0aX-Evil"),
    "http-slow-bodies": lambda v: v.said(rb"\n\r\n\[+") >= 10 and v.said(rb"1\r\n\[\r\n1") >= 9,
    "http-endless-chunks": lambda v: v.said(rb"chunked") and v.total > 1_000_000,
    "http-large-bodies": lambda v: v.said(rb"8388609") and v.total > 32 << 20,
    "http-broken-bodies": lambda v: v.said(rb"\r\n\r\n[\[{]") and v.said(rb"application/cbor"),
    "http-heavy-values": lambda v: v.total > 40 * 200_000,
    "http-pipelining": lambda v: most(v.data) > 1_000_000,
    "http-pipelining-read": lambda v: v.said(rb"GET /v1/openapi.json HTTP/1.1") >= 1000,
    "http-unread-answers": lambda v: v.most_at_once >= 40 and v.said(rb"\d000000}}") >= 40,
    "http-unread-batches": lambda v: v.said(rb"POST /v1/batches") >= 4,
    "http-hang-ups": lambda v: v.connections > 80 and {0, 1} <= {len(d) > 99 for d in v.data},
    "http-idle": lambda v: v.most_at_once == 40 and most(v.data) < 40,
    "http-at-once": lambda v: v.most_at_once >= 40 and v.said(rb"\}\}$") >= 40,
    "http-keyed-flood": lambda v: v.said(rb'Idempotency-Key: "[0-9a-f]{32}"') >= 1000,
    "http-one-key": lambda v: v.said(rb"DELETE") and v.said(rb"=5") and v.said(rb'"index": 2'),
    "http-gets-and-deletes": lambda v: v.said(rb"GET") >= 100 and v.said(rb"DELETE") >= 100,
    "http-rows": lambda v: v.said(rb"POST /run") >= 40 and v.said(rb"_ng_rollout_id"),
    "verifiers-bytes": lambda v: v.connections > 2 and v.total > 1000,
    "verifiers-messages": lambda v: {1, 2, 3, 4, 60} <= {len(message) for message in v.messages},
    "verifiers-msgpack": lambda v: v.methods == {b"run", b"cancel"} and v.frames[0] >= 1000,
    "verifiers-conflicts": lambda v: v.connections >= 2 and 20 == len(v.runs) < v.frames[0],
    "verifiers-cancels": lambda v: v.methods == {b"run", b"cancel"} and v.frames[0] >= 2000,
    "verifiers-probes": lambda v: v.methods == {b"health"} and v.frames[0] >= 5000,
    "verifiers-run-flood": lambda v: len(v.runs) >= 2000,
    "verifiers-large-runs": lambda v: most(v.claimed) >= 16 << 20 and v.connections >= 8,
    "verifiers-runs-at-once": lambda v: v.most_at_once >= 15 and len(v.runs) >= 15,
    "verifiers-unread": lambda v: len(v.runs) >= 30,
    "verifiers-identities": lambda v: len(v.runs) >= 400 and v.most_at_once > 20,
    "server-silence": ended(0, 0),
    "server-hang-up": ended(0, 64),
    "server-slow-greeting": lambda v: 3 <= v.total < 64,
    "server-no-reading": ended(65, 300),
    "server-wrong-ready": ended(65, 100_000),
    "server-random-bytes": lambda v: v.total,
    "server-grammar-bytes": lambda v: v.total,
    "server-more-for-ever": lambda v: v.total >= 64 << 20,
    "server-huge-frames": lambda v: v.total >= 32 << 20,
    "server-large-outcomes": lambda v: v.total >= 32 << 20,
    "server-empty-frames": lambda v: v.total >= 2 * FEWER,
    "server-tiny-messages": lambda v: v.total >= 1_000_000,
    "server-ping-flood": lambda v: v.total >= 1_000_000,
    "server-collisions": lambda v: v.total >= 8 * 30_000 * 12,
    "server-wrong-welcomes": lambda v: v.total >= 100_000,
    "server-missing": lambda v: v.total >= 100_000,
    "server-bombs": lambda v: v.total >= 100_000,
    "server-unasked": lambda v: v.total >= 50_000,
    "server-refusals": lambda v: v.total >= 20_000,
    "server-broken-outcomes": lambda v: v.total >= 1000,
    "server-unknown": lambda v: v.total >= 1000,
    "server-bad-batches": lambda v: v.total >= 1000,
}
# fmt: on


@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_reaches_what_it_claims(name, monkeypatch):
    monkeypatch.setattr(attacks, "EMPTY_FRAMES", FEWER)
    await (suffered if ATTACKS[name].at == "client" else attacked)(name, REACHES[name])


@pytest.mark.parametrize("name", ["more-for-ever", "tiny-messages", "hello-flood", "decode-bombs"])
async def test_closed_connection_is_counted_and_the_attack_begins_anew(name):
    attacker = await attacked(name, lambda v: v.connections > 2, cut_at=200)
    assert attacker.counts["closed"] >= 2
    assert attacker.counts["rounds"] == 0


async def test_attack_ends_with_its_time(autojump_clock):
    await repeat(ATTACKS["twins"], Attacker("tcp://127.0.0.1:1", seeded(1)), 3.0)
    assert trio.current_time() < 10


async def test_connections_that_nobody_takes_are_counted():
    attacker = Attacker("tcp://127.0.0.1:1", seeded(1))
    await perform(ATTACKS["half-open"], attacker)
    assert attacker.counts["refused"] == 300
    assert attacker.counts["connections"] == 0


async def test_seed_decides_the_bytes_that_are_sent(monkeypatch):
    runs: list[list[bytes]] = []
    for _ in range(2):
        sent: dict[Connection, bytes] = {}

        async def send(self, data, sent=sent, shipped=Connection.send):
            sent[self] = sent.get(self, b"") + data
            await shipped(self, data)

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "send", send)
            await attacked("random-bytes", lambda v: v.connections >= 4)
        runs.append(list(sent.values())[:3])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


@pytest.mark.parametrize("name", ["server-wrong-welcomes", "server-unasked"])
async def test_hostile_server_welcomes_a_client_whose_batch_came_before_its_hello(name):
    """A client that connects again may have some requests of before on their way."""
    rows = [(Request(bytes(16), n, bytes(16), None, 1, 0.0, None), b"x") for n in range(2)]
    (batch,) = in_batches(rows)
    await suffered(name, lambda v: v.total >= 1000, early=wire.message(*map(bytes, batch)))


def test_colliding_keys_collide():
    value = cbor2.loads(colliding_map(50))
    assert len(value) == 50
    assert {hash(key) for key in value} == {7}
    assert all(type(key) is int for key in value)


def test_body_is_a_request_but_for_its_input():
    body = cbor2.loads(with_input(cbor2.dumps({"x": 1})))
    assert (body["kind"], body["input"]) == ("rollout", {"x": 1})


def test_batches_are_often_refused_and_drawn_from_a_seed():
    drawn = [bad_batch(seeded(number), bytes(16)) for number in (*range(60), 3)]
    assert drawn[3] == drawn[-1]
    refused = 0
    for frames in drawn:
        try:
            read(frames, most_bytes=1 << 16)
        except ProtocolError:
            refused += 1
    assert 20 < refused < 58


# -- ZMTP made by hand ----------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_messages_are_read_again_in_any_pieces(step):
    said = wire.greeting() + wire.ready() + wire.message(b"a", b"", bytes(300)) + wire.ping()
    said += wire.message(b"b")
    reader = wire.Reader()
    pieces = [said[start : start + step] for start in range(0, len(said), step)]
    found = [list(message) for piece in pieces for message in reader.feed(piece)]
    assert found == [[b"a", b"", bytes(300)], [b"b"]]


@pytest.mark.real
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_libzmq_understands_it(scheme, folder):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.set(zmq.LINGER, 0)
        router.bind({"tcp": "tcp://127.0.0.1:*", "ipc": f"ipc://{folder}/s"}[scheme])
        attacker = Attacker(router.get_string(zmq.LAST_ENDPOINT), seeded(1))
        with trio.fail_after(60):
            async with attacker.connection() as peer:
                await peer.shake_hands(identity=b"me")
                await peer.send(wire.ping(b"abc") + wire.message(b"one", b"two"))
                frames = await trio.to_thread.run_sync(router.recv_multipart)
                assert frames == [b"me", b"one", b"two"]
                router.send_multipart([b"me", b"three", bytes(1000)])
                assert list(await peer.hear()) == [b"three", bytes(1000)]
