"""Every fault of the proxy, between real ZMQ sockets."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.connections import held_port
from trio_envserve.core.errors import ConfigError
from trio_envserve.core.limits import WireLimits
from trio_envserve.net import ConnectionEvent, open_zmq_network
from trio_envserve.testing.proxy import Direction, FaultProxy, open_fault_proxy

pytestmark = pytest.mark.real

LIMITS = WireLimits(reconnect_min_s=0.01, reconnect_max_s=0.05)
HANDSHAKE_BYTES = 200
"""More than either side says before the first message of a connection."""


class Bench:
    """A router that echoes, the proxy before it, and a dealer."""

    def __init__(self, router, proxy: FaultProxy, dealer, events) -> None:
        self.router = router
        self.proxy = proxy
        self.dealer = dealer
        self.events: list[ConnectionEvent] = events
        self.heard: list[bytes] = []
        """What has reached the server."""
        self.muted = False
        self._words = itertools.count()

    async def echo(self) -> None:
        while True:
            for route, word in await self.router.receive():
                self.heard.append(bytes(word))
                if not self.muted:
                    self.router.send_nowait(route, [b"re:" + bytes(word)])

    async def ask(self, word: bytes) -> None:
        """Send a word and wait for its echo."""
        assert self.dealer.send_nowait([word])
        while True:
            for (answer,) in await self.dealer.receive():
                if bytes(answer) == b"re:" + word:
                    return

    async def ask_until_answered(self) -> bytes:
        """Send words until one comes back; for connections that come and go."""
        while True:
            word = b"word %d" % next(self._words)
            with trio.move_on_after(0.2):
                await self.ask(word)
                return word

    async def until(self, condition) -> None:
        while not condition():  # noqa: ASYNC110  # libzmq's threads set no event of ours
            await trio.sleep(0.005)


@asynccontextmanager
async def open_bench():
    events: list[ConnectionEvent] = []
    with trio.fail_after(60):
        async with (
            open_zmq_network() as network,
            network.open_router("tcp://127.0.0.1:0", limits=LIMITS) as router,
            open_fault_proxy(router.address) as proxy,
            network.open_dealer(proxy.address, limits=LIMITS, on_event=events.append) as dealer,
            trio.open_nursery() as nursery,
        ):
            bench = Bench(router, proxy, dealer, events)
            nursery.start_soon(bench.echo)
            await bench.ask_until_answered()
            yield bench
            nursery.cancel_scope.cancel()


async def test_it_forwards_both_ways_and_counts():
    async with open_bench() as bench:
        body = b"x" * 1_000_000
        await bench.ask(body)
        counters = bench.proxy.counters
        assert counters.connections == 1
        assert bench.proxy.open_connections == 1
        assert counters.to_server_bytes > len(body)
        await bench.until(lambda: counters.to_client_bytes > len(body))
        assert counters.cut == counters.refused == counters.half_opened == 0


@pytest.mark.parametrize("abrupt", [True, False])
async def test_cut_all_cuts_and_a_new_connection_is_made(abrupt):
    async with open_bench() as bench:
        assert bench.proxy.cut_all(abrupt=abrupt) == 1
        assert bench.proxy.open_connections == 0
        await bench.until(lambda: ConnectionEvent.DISCONNECTED in bench.events)
        await bench.ask_until_answered()
        assert bench.proxy.counters.cut == 1
        assert bench.proxy.counters.connections == 2


async def test_an_outcome_is_sent_and_never_received():
    async with open_bench() as bench:
        await bench.ask(b"before")
        received: list[bytes] = []

        async def listen() -> None:
            while True:
                received.extend(bytes(one) for (one,) in await bench.dealer.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            bench.dealer.send_nowait([b"outcome"])
            data = await bench.proxy.cut_before_receipt(lambda data: b"re:outcome" in data)
            assert data.count(b"re:outcome") == 1
            assert bench.proxy.open_connections == 0
            await bench.until(lambda: bench.events.count(ConnectionEvent.CONNECTED) == 2)
            nursery.cancel_scope.cancel()
        assert b"outcome" in bench.heard
        assert b"re:outcome" not in received
        assert bench.proxy.counters.withheld_bytes > 0
        # It was for once: the same again arrives.
        await bench.ask(b"outcome")


async def test_a_cut_before_receipt_looks_at_all_that_comes_and_nothing_before():
    async with open_bench() as bench:
        bench.dealer.send_nowait([b"x" * 300_000 + b"here"])  # across two chunks
        data = await bench.proxy.cut_before_receipt(lambda data: b"here" in data)
        assert b"here" in data
        await bench.ask_until_answered()
        await bench.ask(b"early")
        with trio.move_on_after(0.2) as scope:
            await bench.proxy.cut_before_receipt(lambda data: b"re:early" in data)
        assert scope.cancelled_caught
        # Cancelled: nothing is cut, nothing is kept back.
        assert bench.proxy.counters.cut == 1
        await bench.ask(b"early")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.proxy.cut_before_receipt, lambda data: False)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="another"):
                await bench.proxy.cut_before_receipt(lambda data: False)
            nursery.cancel_scope.cancel()


async def test_a_cut_before_receipt_waits_through_new_connections():
    # Found by the demo: a connection that was being made got no greeting, and never
    # came to the outcome that was waited for.
    async with open_bench() as bench:
        bench.proxy.cut_all()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.ask_until_answered)
            await bench.proxy.cut_before_receipt(lambda data: b"re:word" in data)
            assert bench.proxy.counters.cut == 2


async def test_a_stall_holds_everything_and_loses_nothing():
    async with open_bench() as bench:
        bench.proxy.stall()
        bench.proxy.stall()
        heard = len(bench.heard)
        with trio.move_on_after(0.3) as scope:
            await bench.ask(b"slow")
        assert scope.cancelled_caught
        assert len(bench.heard) == heard
        bench.proxy.resume()
        await bench.ask(b"after")
        assert bench.heard[heard:] == [b"slow", b"after"]
        assert bench.proxy.counters.connections == 1


async def test_half_open_the_client_is_not_told():
    async with open_bench() as bench:
        assert bench.proxy.half_open() == 1
        assert bench.proxy.open_connections == 0
        assert bench.proxy.half_open() == 0
        heard = len(bench.heard)
        bench.dealer.send_nowait([b"into the void"])
        bench.dealer.reconnect()  # only who misses an answer can find out
        await bench.until(lambda: ConnectionEvent.DISCONNECTED in bench.events)
        await bench.ask_until_answered()
        assert b"into the void" not in bench.heard[heard:]
        assert bench.proxy.counters.half_opened == 1
        assert bench.proxy.counters.cut == 0


async def test_throttle_takes_its_time():
    async with open_bench() as bench:
        bench.proxy.throttle(200_000)
        began_s = trio.current_time()
        await bench.ask(b"x" * 50_000)
        # Both ways: at least twice a quarter of a second.
        assert trio.current_time() - began_s > 0.45
        bench.proxy.throttle(None)
        await bench.ask(b"quick")
        with pytest.raises(ValueError, match="positive"):
            bench.proxy.throttle(0)


async def test_lag_delays_each_chunk():
    async with open_bench() as bench:
        bench.proxy.lag(0.1, 0.2)
        began_s = trio.current_time()
        await bench.ask(b"late")
        assert trio.current_time() - began_s > 0.19
        bench.proxy.lag(0, 0)
        await bench.ask(b"quick")
        with pytest.raises(ValueError, match="min_s <= max_s"):
            bench.proxy.lag(0.2, 0.1)


@pytest.mark.parametrize("direction", list(Direction))
async def test_drop_after_cuts_inside_a_message(direction):
    async with open_bench() as bench:
        counters = bench.proxy.counters
        bench.muted = direction is Direction.TO_SERVER
        bench.proxy.drop_after(5_000, direction)
        before = counters.to_server_bytes, counters.to_client_bytes
        connections = counters.connections
        bench.dealer.send_nowait([b"y" * 20_000])
        await bench.until(lambda: counters.cut == 1)
        to_server = counters.to_server_bytes - before[0]
        to_client = counters.to_client_bytes - before[1]
        # On a busy machine the dealer may have made its next connection by now.
        again = HANDSHAKE_BYTES * (counters.connections - connections)
        assert (to_server if direction is Direction.TO_SERVER else to_client) <= 5_000 + again
        bench.muted = False
        await bench.ask_until_answered()
        # What was cut in the middle is no message.
        whole = direction is Direction.TO_CLIENT
        assert (b"y" * 20_000 in bench.heard) == whole
        with pytest.raises(ValueError, match="negative"):
            bench.proxy.drop_after(-1)


async def test_drop_after_without_a_connection_is_for_the_next():
    with trio.fail_after(60):
        async with (
            open_zmq_network() as network,
            network.open_router("tcp://127.0.0.1:0", limits=LIMITS) as router,
            open_fault_proxy(router.address) as proxy,
        ):
            proxy.drop_after(10)
            async with network.open_dealer(proxy.address, limits=LIMITS):
                while proxy.counters.connections < 2:
                    await proxy.wait_connections(1)
                    await trio.sleep(0.005)
            assert proxy.counters.cut == 1


async def test_without_a_server_connections_are_refused_until_there_is_one():
    with trio.fail_after(60), held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        async with open_zmq_network() as network:
            async with (
                open_fault_proxy(address) as proxy,
                network.open_dealer(proxy.address, limits=LIMITS) as dealer,
            ):
                while proxy.counters.refused < 2:  # noqa: ASYNC110  # libzmq tries again
                    await trio.sleep(0.005)
                assert proxy.open_connections == 0
                async with network.open_router(address, limits=LIMITS) as router:
                    await proxy.wait_connections(1)
                    dealer.send_nowait([b"there"])
                    [[_, word]] = await router.receive()
                    assert word == b"there"


async def test_the_end_of_the_block_ends_all_connections():
    with trio.fail_after(60):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        async with listeners[0]:
            async with open_fault_proxy(f"tcp://127.0.0.1:{port}") as proxy:
                assert proxy.cut_all() == 0
                own = int(proxy.address.rpartition(":")[2])
                stream = await trio.open_tcp_stream("127.0.0.1", own)
                server = await listeners[0].accept()
                await proxy.wait_connections(1)
            async with stream, server:
                assert await stream.receive_some() == b""
                assert await server.receive_some() == b""
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", own)


@pytest.mark.parametrize("address", ["ipc:///tmp/x", "tcp://127.0.0.1:0", "localhost:5"])
async def test_it_is_for_complete_tcp_addresses(address):
    with pytest.raises(ConfigError):
        async with open_fault_proxy(address):
            pass
    with pytest.raises(ConfigError):
        async with open_fault_proxy("tcp://127.0.0.1:5", bind="ipc:///tmp/y"):
            pass
