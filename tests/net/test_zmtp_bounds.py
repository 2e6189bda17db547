"""What a peer cannot do to others: bounds, survival and routes of the sockets that
speak ZMTP under trio.  Findings by their numbers."""

from __future__ import annotations

import dataclasses
import enum
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, final

import pytest
import trio
import trio.testing

from trio_envserve.core.limits import KIB, MIB, ClientLimits, WireLimits
from trio_envserve.net import FRAMES_MAX, ConnectionEvent
from trio_envserve.net import connection as connection_module
from trio_envserve.net.framing import GROW_BYTES, Decoder, encode, encode_command
from trio_envserve.net.zmtp import hub as hub_module
from trio_envserve.net.zmtp import sockets as sockets_module
from trio_envserve.net.zmtp.hub import Connection, ConnectionState
from trio_envserve.net.zmtp.sockets import ZmtpRouter

from . import raw_zmtp
from .conftest import Bench, open_bench

pytestmark = pytest.mark.real

T = TypeVar("T")

OPEN = ConnectionState.OPEN
QUICK = WireLimits(reconnect_min_s=0.01, reconnect_max_s=0.05)


def limits_of(**options) -> WireLimits:
    return dataclasses.replace(QUICK, **options)


class TurnMeter(trio.abc.Instrument):
    """The most that was called in one step of any task: a measure of its work that no
    other process of the machine is part of."""

    def __init__(self) -> None:
        self.most_calls = 0
        self._calls = 0

    def count(self, frame: FrameType, event: str, argument: Any) -> None:
        self._calls += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._calls = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most_calls = max(self.most_calls, self._calls)


MOST_CALLS = 150_000
"""In one step: some forty milliseconds.  A batch makes up to 45,000, by what waits in the
sockets when it is read and answered; one of these floods without a bound, a million."""


@pytest.fixture
def turns() -> Iterator[TurnMeter]:
    """Measures turns of the loop of this thread."""
    meter = TurnMeter()
    sys.setprofile(meter.count)
    yield meter
    sys.setprofile(None)


@pytest.fixture(autouse=True)
def quick_sweeps(monkeypatch) -> None:
    monkeypatch.setattr(hub_module, "SWEEP_S", 0.05)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True)


async def echo_for_ever(router) -> None:
    while True:
        for route, *frames in await router.receive():
            router.send_nowait(route, frames)


async def ask(dealer, word: bytes = b"are you there?") -> None:
    """A dealer that behaves is answered."""
    assert dealer.send_nowait([word])
    assert await dealer.receive() == [[word]]


def said(word: bytes) -> bytes:
    """The bytes of a message of one frame."""
    return b"".join(encode([[word]]))


def say_and_hear(sock: socket.socket, word: bytes = b"here I am") -> None:
    """The same from a plain socket.  Blocks."""
    sock.sendall(said(word))
    assert sock.recv(len(said(word)), socket.MSG_WAITALL) == said(word)


def is_end_of(sock: socket.socket, connection: Connection) -> bool:
    """Whether a router's connection is the other end of a plain socket."""
    return bool(connection.sock.getpeername() == sock.getsockname())


def wait_arrived(router: ZmtpRouter, sock: socket.socket) -> None:
    """Until the system has brought something of a plain socket to its router.  Blocks."""
    [end] = [each.sock for each in router._connections.values() if is_end_of(sock, each)]
    assert select.select([end], [], [], 60.0)[0]


NEVER = threading.Event()


@asynccontextmanager
async def flooding(*socks: socket.socket, data: bytes) -> AsyncIterator[None]:
    """Threads that send this for as long as the block lasts."""
    stop = threading.Event()
    async with trio.open_nursery() as nursery:
        for sock in socks:
            nursery.start_soon(in_thread, raw_zmtp.flood, sock, data, 1 << 60, stop)
        try:
            yield
        finally:
            stop.set()


@final
class Peers:
    """Plain sockets that are connected to a router; they hang up at the end of its block."""

    def __init__(self, router: ZmtpRouter, closed: ExitStack) -> None:
        self._router, self._closed = router, closed

    async def connect(self, said: bytes = b"") -> socket.socket:
        """One that has said this, and no more."""
        sock = await in_thread(raw_zmtp.connect, self._router.address)
        sock.sendall(said)
        return self._closed.enter_context(sock)

    async def shake(self, said: bytes = b"", identity: bytes = b"") -> socket.socket:
        """One that has said this after its handshake."""
        sock = await in_thread(raw_zmtp.shake, self._router.address, b"DEALER", identity)
        sock.sendall(said)
        return self._closed.enter_context(sock)

    async def shake_all(self, count: int) -> list[socket.socket]:
        return [await self.shake() for _ in range(count)]


@asynccontextmanager
async def opened(
    bench: Any, *, echoes: bool = True, limits: WireLimits = QUICK, **options: Any
) -> AsyncIterator[tuple[Bench, Any, Peers]]:
    """A router, which echoes all that it receives, and its peers."""
    async with (
        bench() as b,
        b.router(limits=limits, **options) as router,
        trio.open_nursery() as nursery,
    ):
        if echoes:
            nursery.start_soon(echo_for_ever, router)
        with ExitStack() as closed:
            yield b, router, Peers(router, closed)
        nursery.cancel_scope.cancel()


# -- memory and turns -----------------------------------------------------------


async def test_a_message_that_never_ends_takes_no_memory(zmtp_bench):
    """A5: one connection that sent frames with MORE for ever took +965 MiB in 6 s."""
    async with opened(zmtp_bench) as (b, router, peers), b.dealer(router) as dealer:
        await ask(dealer)
        before = resident_bytes()
        for frame in (b"\x01\xff" + bytes(255), b"\x03" + MIB.to_bytes(8, "big") + bytes(MIB)):
            sock, data = await peers.shake(), frame * (1 + MIB // len(frame))
            sent = await in_thread(raw_zmtp.flood, sock, data, 500 * MIB, NEVER)
            assert sent < 500 * MIB  # it was closed
        assert resident_bytes() - before < 64 * MIB + b.limits.message_bytes
        await ask(dealer)
        assert router.statistics().closed == router.statistics().oversized == 2


@pytest.mark.parametrize(
    "flood",
    [
        b"\x01\x00" * 500_000,
        b"\x00\x00" * 500_000,
        b"".join(encode([[b"x"]])) * 10_000,
        encode_command(b"\x04PING\0\0" + bytes(16)) * 10_000,
        encode_command(b"\x03NEW") * 10_000,
    ],
    ids=["empty frames", "empty messages", "messages", "pings", "commands"],
)
async def test_a_flood_takes_no_more_than_its_share(zmtp_bench, turns, flood):
    """A6: one message of five million empty frames blocked the loop for 17.8 s."""
    async with opened(zmtp_bench) as (b, router, peers), b.dealer(router) as dealer:
        trio.lowlevel.add_instrument(turns)
        socks = await peers.shake_all(3)
        before = resident_bytes()
        async with flooding(*socks, data=flood):
            for _ in range(20):
                await ask(dealer)
        assert resident_bytes() - before < 300 * MIB
        trio.lowlevel.remove_instrument(turns)
    assert 100 < turns.most_calls < MOST_CALLS


MANY_LARGE = limits_of(message_bytes=8 * MIB, arriving_bytes=200 * MIB)


async def test_many_large_frames_at_once_do_not_stretch_a_turn(zmtp_bench, monkeypatch):
    """Forty connections with frames of 64 MiB held the loop for 0.6 s: each had its share
    of a turn, and nobody counted the shares."""
    turns: list[int] = []
    fill, turn = Connection.fill, hub_module.Hub._turn

    def counted(connection):
        size = fill(connection)
        turns[-1] += size
        return size

    def begun(hub):
        turns.append(0)
        return turn(hub)

    monkeypatch.setattr(Connection, "fill", counted)
    monkeypatch.setattr(hub_module.Hub, "_turn", begun)
    async with opened(zmtp_bench, limits=MANY_LARGE) as (_, _, peers):
        large = b"\x02" + (8 * MIB).to_bytes(8, "big") + bytes(7 * MIB)
        async with trio.open_nursery() as senders:
            for sock in await peers.shake_all(16):
                senders.start_soon(in_thread, sock.sendall, large)
        while sum(turns) < 16 * 7 * MIB:
            await trio.lowlevel.checkpoint()
    # Of those that had their share and of the others one reading each may go past the bound.
    one_reading = connection_module.READ_TURN_BYTES + GROW_BYTES
    bounds = hub_module.TURN_BYTES + hub_module.HEAVY_TURN_BYTES
    assert max(turns) < bounds + 2 * one_reading


async def send_parts(router: ZmtpRouter, socks: list[socket.socket], size: int, part: int) -> None:
    """Send so much of a frame on each connection, and read all of it."""
    large = b"\x02" + size.to_bytes(8, "big") + bytes(part)
    async with trio.open_nursery() as senders:
        for sock in socks:
            senders.start_soon(in_thread, sock.sendall, large)
        engines = [each.engine for each in router._connections.values()]
        decoders = [each.decoder for each in engines if isinstance(each.decoder, Decoder)]
        while sum(each._large.filled for each in decoders if each._large) < len(socks) * part:
            router.receive_nowait()
            await trio.lowlevel.checkpoint()


async def test_buffers_that_are_full_at_once_do_not_grow_in_one_turn(zmtp_bench):
    """The last byte of a buffer makes it grow, which copies it: some connections with frames of
    32 MiB held the loop for 0.2 s."""
    full, most = 4 * MIB, 10
    async with opened(zmtp_bench, echoes=False, limits=MANY_LARGE) as (_, router, peers):
        socks = await peers.shake_all(most)
        await send_parts(router, socks, 8 * MIB, full - 1)
        assert router._arriving_bytes == most * full
        for sock in socks:
            sock.sendall(b"x")
        grown: list[int] = []
        while sum(grown) < most * GROW_BYTES:
            held = router._arriving_bytes
            router.receive_nowait()
            grown.append(router._arriving_bytes - held)
            await trio.lowlevel.checkpoint()
        # One of those that have had more than their share, and one of the others.
        assert max(grown) <= 2 * GROW_BYTES


@final
class GivenBack(trio.abc.Instrument):
    """The bytes of unfinished messages that each step of a task gives back."""

    def __init__(self, router: ZmtpRouter) -> None:
        self.router = router
        self.steps: list[int] = []
        self._held = router._arriving_bytes

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._held = self.router._arriving_bytes

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps.append(self._held - self.router._arriving_bytes)


class Ending(enum.Enum):
    """Why ten connections end in the same moment."""

    HUNG_UP = enum.auto()
    NO_PROGRESS = enum.auto()
    CLOSED = enum.auto()


@pytest.mark.parametrize("ending", Ending)
async def test_connections_that_end_at_once_are_not_given_back_in_one_turn(zmtp_bench, ending):
    """Sixty-four peers that hung up within frames of tens of megabytes held the loop for 0.1 s:
    each buffer goes back to the system."""
    part, most = 2 * MIB, 10
    async with zmtp_bench() as b, AsyncExitStack() as blocks:
        router = await blocks.enter_async_context(b.router(limits=MANY_LARGE))
        with ExitStack() as closed:
            socks = await Peers(router, closed).shake_all(most)
            await send_parts(router, socks, 8 * MIB, part)
            held = router._arriving_bytes
            meter = GivenBack(router)
            trio.lowlevel.add_instrument(meter)
            if ending is Ending.HUNG_UP:
                closed.close()
            elif ending is Ending.NO_PROGRESS:
                router._pumped_s += 1000.0
            else:
                await blocks.aclose()
            while router._arriving_bytes:
                await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(meter)
    assert sum(meter.steps) == held >= most * part
    assert max(meter.steps) == held // most


async def test_messages_that_end_at_once_are_not_given_out_in_one_turn(zmtp_bench):
    """Each costs its receiver time: 30 peers whose headers of 1 MiB all lacked their last
    byte held the loop of a router for two seconds."""
    size = 400 * KIB
    async with opened(zmtp_bench, echoes=False) as (_, router, peers):
        socks = await peers.shake_all(30)
        for sock in socks:  # a first message shows that what was sent has arrived
            await in_thread(sock.sendall, b"\0\1a\2" + size.to_bytes(8, "big") + bytes(size - 1))
        heard = 0
        while heard < len(socks):
            heard += len(await router.receive())
        while sum(each.held_bytes for each in router._connections.values()) < len(socks) * size:
            with trio.move_on_after(0.01):
                await router.receive()
        for sock in socks:
            sock.sendall(b"x")
        batches: list[int] = []
        while sum(batches) < len(socks):
            batches.append(len(await router.receive()))
    # And one more of a connection that has had more than its share.
    assert max(batches) <= hub_module.TURN_BYTES // size + 2


async def test_g10_a_share_in_messages_was_none_in_bytes(zmtp_bench):
    """Sixteen peers with messages of 384 KiB each had a turn before a message of a few
    bytes: the honest client beside them kept a tenth of its rate."""
    async with opened(zmtp_bench, echoes=False) as (_, router, peers):
        socks, honest = await peers.shake_all(16), await peers.shake()
        honest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        floods = [each for each in router._connections.values() if not is_end_of(honest, each)]
        async with flooding(*socks, data=said(bytes(384 * KIB))):
            heard = 0
            while heard < 4 * len(socks):
                heard += len(await router.receive())
            for _ in range(10):
                while not all(flood.debt_bytes for flood in floods):
                    await router.receive()  # who sends slowly has not had its share yet
                honest.sendall(said(b"here I am"))
                wait_arrived(router, honest)
                got: list[Any] = []
                while b"here I am" not in got:
                    got += [bytes(each[1]) for each in await router.receive()]
                assert len(got) <= 4


async def test_arriving_bytes_are_bounded_in_all_and_the_largest_holder_goes(zmtp_bench):
    limits = limits_of(message_bytes=8 * MIB, arriving_bytes=10 * MIB)
    async with opened(zmtp_bench, limits=limits) as (b, router, peers), b.dealer(router) as dealer:
        large = b"\x02" + (8 * MIB).to_bytes(8, "big")
        small = await peers.shake(large + bytes(MIB))
        for sock in await peers.shake_all(3):
            await in_thread(sock.sendall, large + bytes(7 * MIB))
            await ask(dealer)
        while router.statistics().closed == 0:
            await ask(dealer)
        assert router.statistics().oversized == router.statistics().closed
        # the one that holds little is left alone, and may finish
        await in_thread(small.sendall, bytes(7 * MIB))
        assert len(await in_thread(small.recv, 100)) > 9


async def test_peers_that_never_read_are_bounded_in_all(zmtp_bench):
    limits = limits_of(peer_queue_bytes=4 * MIB, waiting_bytes=6 * MIB)
    async with opened(zmtp_bench, echoes=False, limits=limits) as (b, router, peers):
        for _ in range(3):
            await peers.shake(said(b"hello"))
            [[route, _]] = await router.receive()
            await b.send_until_stuck(router, route, bytes(100 * KIB))
        while router.statistics().closed == 0:
            await trio.sleep(0.01)
        # The bound is that of each sweep; some may have been sent since the last one.
        while router.statistics().backlog_bytes > limits.waiting_bytes:
            await trio.sleep(0.01)
        async with b.dealer(router) as dealer:
            await b.greet(router, dealer)


# -- handshakes and connections -------------------------------------------------


async def test_too_many_handshakes_at_once_cost_the_oldest(zmtp_bench):
    async with opened(zmtp_bench, limits=limits_of(handshakes=5)) as (b, router, peers):
        socks = [await peers.connect() for _ in range(20)]
        async with b.dealer(router) as dealer:  # the door is open
            await ask(dealer)
        for sock in socks[:14]:
            await in_thread(raw_zmtp.until_closed, sock)


def test_a_client_that_asks_nothing_is_not_among_the_silent():
    assert 2 * ClientLimits().idle_ping_s <= sockets_module.SILENT_S


async def test_silent_connections_make_room_at_the_bound(zmtp_bench, monkeypatch):
    monkeypatch.setattr(sockets_module, "SILENT_S", 0.3)
    async with opened(zmtp_bench, limits=limits_of(connections=5)) as (b, router, peers):
        async with b.dealer(router) as first:
            await ask(first)
            socks = await peers.shake_all(4)
            for sock in socks:
                await in_thread(say_and_hear, sock)
            since_s = router._pumped_s
            while router._pumped_s == since_s:  # of one sweep, all would be silent for as long
                await trio.sleep(0.01)
            await ask(first)
            async with b.dealer(router) as second:
                with trio.fail_after(60):
                    await ask(second)
                    assert await in_thread(raw_zmtp.until_closed, socks[0]) == b""
                    await ask(first)
                assert router.statistics().closed == 1


class Looks(dict[bytes, Any]):
    """How often all of it was looked at."""

    count = 0

    def values(self) -> Any:
        self.count += 1
        return super().values()


async def test_g10_each_newcomer_had_all_connections_looked_at(zmtp_bench, monkeypatch):
    """With 10,000 connections, and 64 newcomers in a turn, that took 100 ms."""
    monkeypatch.setattr(hub_module, "SWEEP_S", 1e9)
    monkeypatch.setattr(sockets_module, "SILENT_S", 0.0)
    async with opened(zmtp_bench, limits=limits_of(connections=5)) as (_, router, peers):
        router._routes = looks = Looks()
        socks = []
        for _ in range(9):  # four more than there is room for
            socks.append(await peers.shake())
            await in_thread(say_and_hear, socks[-1])
        for sock in socks[:4]:
            await in_thread(raw_zmtp.until_closed, sock)
        await in_thread(say_and_hear, socks[4])
        assert looks.count == 1


@pytest.fixture
def patient(monkeypatch) -> WireLimits:
    """Limits of a router of four connections, none of which is ever too slow or too silent."""
    monkeypatch.setattr(sockets_module, "SILENT_S", 1e9)
    return limits_of(connections=4, handshake_s=1e9, progress_s=1e9)


HALF_OPEN = (
    b"",
    raw_zmtp.GREETING[:11],
    raw_zmtp.GREETING,
    raw_zmtp.GREETING + raw_zmtp.ready(),
    raw_zmtp.GREETING + raw_zmtp.ready() + b"\x01\x05first",
    b"no ZMTP",
)


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
async def test_a_newcomer_gets_past_those_that_say_nothing(folder, patient, transport, monkeypatch):
    """Three hundred half-open connections had all places for ten seconds each, and then the
    next three hundred: a newcomer behind them was never served."""
    monkeypatch.setattr(sockets_module, "ACCEPT_PAUSE_S", 0.05)
    bench = partial(open_bench, f"zmtp-zmtp-{transport}", folder)
    async with opened(bench, limits=patient) as (b, router, peers), b.dealer(router) as first:
        await ask(first)
        for begun in HALF_OPEN * 4:
            await peers.connect(begun)
        served = False
        async with b.dealer(router) as newcomer:
            with trio.move_on_after(30):
                await ask(newcomer)
                served = True
        assert served
        await ask(first, b"who has spoken stays")


async def test_new_connection_is_not_closed_for_the_next_one(zmtp_bench, patient, monkeypatch):
    """A flood would have all places again before an honest peer can answer."""
    monkeypatch.setattr(sockets_module, "ACCEPT_PAUSE_S", 1e9)
    async with opened(zmtp_bench, limits=patient) as (_, router, peers):
        socks = await peers.shake_all(4)
        for _ in range(20):
            await peers.connect()
        await trio.testing.wait_all_tasks_blocked()
        assert router.statistics().closed == 0
        for sock in socks:
            await in_thread(say_and_hear, sock)


async def test_connection_that_could_not_be_read_is_no_stranger(zmtp_bench, patient, monkeypatch):
    """While nobody receives, nobody can say anything."""
    monkeypatch.setattr(sockets_module, "ACCEPT_PAUSE_S", 0.001)
    pauses: list[ZmtpRouter] = []
    pause = ZmtpRouter._pause_accepting

    def counted(router):
        pauses.append(router)
        pause(router)

    monkeypatch.setattr(ZmtpRouter, "_pause_accepting", counted)
    async with opened(zmtp_bench, echoes=False, limits=patient) as (b, router, peers):
        for number in range(4):
            wait_arrived(router, await peers.shake(said(b"%d" % number)))
        await peers.connect()
        while len(pauses) < 5 and router.statistics().closed == 0:
            await trio.lowlevel.checkpoint()
        assert router.statistics().closed == 0
        heard = await b.take(router, 4)
        assert {bytes(word) for _, word in heard} == {b"0", b"1", b"2", b"3"}


async def test_no_connection_is_closed_when_none_waits(zmtp_bench, patient, monkeypatch):
    """Room was made for one more than there were."""
    monkeypatch.setattr(sockets_module, "ACCEPT_PAUSE_S", 0.001)
    async with opened(zmtp_bench, limits=patient) as (_, router, peers):
        oldest, *_others = [await peers.connect() for _ in range(4)]
        await peers.shake()
        await in_thread(raw_zmtp.until_closed, oldest)
        await trio.testing.wait_all_tasks_blocked()
        assert router.statistics().closed == 1


async def test_events_of_a_closed_connection_are_ignored(zmtp_bench, patient, monkeypatch):
    """They were taken for somebody who connects, and the listener was let go of twice, which
    ended the socket."""
    monkeypatch.setattr(sockets_module, "ACCEPT_PAUSE_S", 0.001)
    spare = os.open(os.devnull, os.O_RDONLY)  # a descriptor below all others
    limits = dataclasses.replace(patient, connections=3)
    served = False
    try:
        async with opened(zmtp_bench, limits=limits) as (b, router, peers):
            async with b.dealer(router) as honest:
                await ask(honest)
                oldest, older = await peers.connect(), await peers.connect()
                await peers.shake()
                await in_thread(raw_zmtp.until_closed, oldest)  # and older is next
                monkeypatch.setattr(sockets_module, "ACCEPT_PAUSE_S", 1e9)
                # In one turn: who needs the older one's place, who has to wait, and news.
                with raw_zmtp.connect(router.address), raw_zmtp.connect(router.address):
                    older.sendall(b"\xff")
                    os.close(spare)  # what comes gets this descriptor, and not the older one's
                    await in_thread(raw_zmtp.until_closed, older)
                    await ask(honest)
                    served = True
    except* FileNotFoundError:
        pass
    assert served


async def test_a_message_that_does_not_go_on_ends_its_connection(zmtp_bench):
    limits = limits_of(progress_s=0.3)
    async with opened(zmtp_bench, limits=limits) as (b, router, peers), b.dealer(router) as dealer:
        begun = (b"\x00", b"\x00\x05abc", b"\x01\x01x", b"\x02" + bytes(6) + b"\xff\xff")
        for sock in [await peers.shake(each) for each in begun]:
            await in_thread(raw_zmtp.until_closed, sock)
        await ask(dealer)  # which has only been silent
        assert router.statistics().closed == len(begun)


async def test_a_loop_that_was_held_ages_nobody(zmtp_bench):
    """What it has not heard meanwhile is still to come."""
    limits = limits_of(progress_s=1.0, handshake_s=1.0)
    async with opened(zmtp_bench, echoes=False, limits=limits) as (_, router, peers):
        begun, shaking = await peers.shake(b"\x00\x05he"), await peers.connect()
        with trio.move_on_after(0.1):
            await router.receive()
        time.sleep(1.2)  # noqa: ASYNC251  # that is the point
        begun.sendall(b"llo")
        [[_, word]] = await router.receive()
        assert word == b"hello"
        shaking.sendall(raw_zmtp.GREETING + raw_zmtp.ready() + said(b"late"))
        [[_, word]] = await router.receive()
        assert word == b"late"
        assert router.statistics().closed == 0


async def test_a_peer_that_promised_to_ping_and_does_not_is_gone(zmtp_bench):
    async with opened(zmtp_bench) as (_, _, peers):
        sock = await peers.shake(encode_command(b"\x04PING\0\x03hi"))
        got = await in_thread(raw_zmtp.until_closed, sock)
        assert got == encode_command(b"\x04PONGhi")


async def test_an_old_peer_is_refused_in_words(zmtp_bench, caplog):
    async with opened(zmtp_bench) as (_, _, peers):
        for word in (b"\x01\x00", raw_zmtp.GREETING[:10] + b"\x01", b"GET / HTTP/1.1\r\n\r\n"):
            lines = len(caplog.messages)
            await in_thread(raw_zmtp.until_closed, await peers.connect(word))
            while len(caplog.messages) == lines:  # the next sweep has one line for all since
                await trio.sleep(0.01)
    assert "speaks ZMTP 2.0; version 3.0 or newer is needed" in caplog.text
    assert "does not speak ZMTP 3" in caplog.text


# -- loops that are held ----------------------------------------------------------


async def test_a_held_router_outlives_a_peer_that_floods_and_vanishes(zmtp_bench):
    """A3: libzmq's heartbeat ended such a server."""
    async with opened(zmtp_bench) as (b, router, peers), b.dealer(router) as dealer:
        await ask(dealer)
        socks = await peers.shake_all(3)

        def flood_and_vanish() -> None:
            for number, sock in enumerate(socks):
                raw_zmtp.flood(sock, said(b"flood" * 200), MIB, NEVER)
                if number:  # a reset, or an end in good order
                    linger = struct.pack("ii", 1, 0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                sock.close()

        hold_while(flood_and_vanish)
        await ask(dealer, b"still yours")


def hold_while(act: Callable[[], None]) -> None:
    """Nothing else on this loop until another thread has done this."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


async def test_a_held_dealer_has_all_that_a_dead_router_had_sent(zmtp_bench, new_events):
    """A2: 240 outcomes of 8 KiB came, the server was killed, and libzmq ended the
    trainer, whose loop was held, 3 of 3 times."""
    events = new_events()
    outcomes = b"".join(encode([[b"%d" % number, bytes(8 * KIB)]])[0] for number in range(240))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        async with zmtp_bench() as b, b.dealer(address, on_event=events) as dealer:
            sock, _ = await in_thread(listener.accept)
            sock.sendall(raw_zmtp.GREETING + raw_zmtp.ready(b"ROUTER"))
            await events.wait(ConnectionEvent.CONNECTED)
            sock.recv(4096)  # else its end would be a reset, which takes back what it sent

            def send_and_die() -> None:
                sock.sendall(outcomes)
                sock.close()

            hold_while(send_and_die)
            got = await b.take(dealer, 240)
            assert [int(message[0]) for message in got] == list(range(240))
            await events.wait(ConnectionEvent.DISCONNECTED)
            assert events.seen.count(ConnectionEvent.CONNECTED) == 1


# -- routes -----------------------------------------------------------------------


async def test_two_connections_with_one_identity_disturb_nobody(zmtp_bench):
    """A1 and A8: the older one's next message ended the process; and a route that was
    taken over was never given back."""
    async with opened(zmtp_bench, echoes=False) as (b, router, peers):
        routes, socks = [], []
        for word in (b"one", b"two"):
            socks.append(await peers.shake(said(word), identity=b"same"))
            [[route, got]] = await router.receive()
            assert got == word
            routes.append(route)
        assert routes[0] != routes[1]
        socks[0].sendall(said(b"still here"))
        assert await router.receive() == [[routes[0], b"still here"]]
        for route, sock in zip(routes, socks, strict=True):
            assert router.send_nowait(route, [route])
            assert await in_thread(sock.recv, 100) == said(route)
            sock.close()
        async with b.dealer(router) as dealer:
            [route] = await b.greet(router, dealer)
            assert route not in routes  # nor is it ever used again


# -- descriptors and closing --------------------------------------------------------


@pytest.mark.parametrize(
    ("transport", "share"),
    [("tcp", "0.75"), ("ipc", "9.0")],
    ids=["within the bound", "the system says no"],
)
def test_a_server_out_of_descriptors_goes_on(transport, share, folder):
    """A4: with an ipc:// front libzmq ended the process (ipc_listener.cpp:297)."""
    address = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{folder}/s"
    with (
        subprocess.Popen(
            [sys.executable, "-c", FEW_DESCRIPTORS, address, share],
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        ExitStack() as closed,
    ):
        closed.callback(process.kill)
        assert process.stdout is not None
        bound = process.stdout.readline().strip()
        for _ in range(476):
            sock = closed.enter_context(raw_zmtp.connect(bound))
            sock.setblocking(False)
            sock.send(raw_zmtp.GREETING + raw_zmtp.ready())
        honest = closed.enter_context(raw_zmtp.shake(bound))
        say_and_hear(honest)
        honest.sendall(said(b"end"))
        # A handful for each of 477 connections, and some for each second.
        assert int(process.stdout.readline()) < 6_000, "it spins"
        assert process.wait(60) == 0


FEW_DESCRIPTORS = """
import resource, sys
import trio
from trio_envserve.core.limits import WireLimits
from trio_envserve.net import open_zmtp_network
from trio_envserve.net.zmtp import sockets

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
sockets.DESCRIPTORS_SHARE = float(sys.argv[2])
sockets.SILENT_S = 2.0

class Turns(trio.abc.Instrument):
    count = 0

    def before_io_wait(self, timeout):
        self.count += 1

async def main():
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    async with open_zmtp_network() as network:
        async with network.open_router(sys.argv[1], limits=WireLimits()) as router:
            print(router.address, flush=True)
            while True:
                for route, *frames in await router.receive():
                    if frames == [b"end"]:
                        print(turns.count, flush=True)
                        return
                    router.send_nowait(route, frames)
trio.run(main)
"""


async def test_last_words_arrive_though_something_is_unread(zmtp_bench, monkeypatch):
    """Closing with unread input resets the connection, which takes them back."""
    monkeypatch.setattr(hub_module, "LAST_WORDS_S", 60.0)  # they leave before it has passed
    got: list[Any] = []
    async with zmtp_bench() as b, b.router() as router:
        async with trio.open_nursery() as nursery:

            async def read_when_all_is_said() -> None:
                while any(each.state is OPEN for each in dealer._connections.values()):
                    await trio.lowlevel.checkpoint()
                got.extend(await b.take(router, 200))
                while router._connections:  # until it has read the end, too
                    router.receive_nowait()
                    await trio.lowlevel.checkpoint()

            async with b.dealer(router) as dealer:
                [route] = await b.greet(router, dealer)
                nursery.start_soon(read_when_all_is_said)
                assert router.send_nowait(route, [bytes(200_000)])  # which nobody will read
                for number in range(200):
                    assert dealer.send_nowait([b"%d" % number, bytes(1000)])
    assert [int(message[1]) for message in got] == list(range(200))


async def test_too_many_frames_end_their_connection_alone(zmtp_bench):
    async with opened(zmtp_bench, echoes=False) as (b, router, peers), b.dealer(router) as dealer:
        [route] = await b.greet(router, dealer)
        sock = await peers.shake(said(b"good") + b"".join(encode([[b"x"] * (FRAMES_MAX + 1)])))
        [[_, word]] = await router.receive()
        assert word == b"good"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.receive)
            await in_thread(raw_zmtp.until_closed, sock)
            nursery.cancel_scope.cancel()
        assert router.send_nowait(route, [b"fine"])
        assert await dealer.receive() == [[b"fine"]]
