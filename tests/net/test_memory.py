"""The faults of the network in memory, on a virtual clock."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from trio_envserve.core.limits import WireLimits
from trio_envserve.net import ConnectionEvent, MemoryNetwork
from trio_envserve.net.memory import UNDER_WAY_MESSAGES

LIMITS = WireLimits(reconnect_min_s=0.05, reconnect_max_s=1.0)
CONNECTED, DISCONNECTED = ConnectionEvent.CONNECTED, ConnectionEvent.DISCONNECTED


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


async def greet(router, dealer) -> bytes:
    """Let the router know the dealer.  Its route."""
    assert dealer.send_nowait([b"hello"])
    [[route, word]] = await router.receive()
    assert word == b"hello"
    assert isinstance(route, bytes)
    return route


@asynccontextmanager
async def joined(network: MemoryNetwork, on_event=None):
    """A router, a dealer that is connected to it, and its route."""
    async with (
        network.open_router("memory:r", limits=LIMITS) as router,
        network.open_dealer("memory:r", limits=LIMITS, on_event=on_event) as dealer,
    ):
        yield router, dealer, await greet(router, dealer)


async def test_a_cut_loses_what_is_under_way_and_heals(autojump_clock, network, new_events):
    events = new_events()
    async with joined(network, on_event=events) as (router, dealer, route):
        assert dealer.send_nowait([b"lost"])
        assert router.send_nowait(route, [b"lost"])
        assert network.cut() == 1
        assert network.cut() == 0
        assert router.receive_nowait() == dealer.receive_nowait() == []
        assert not router.send_nowait(route, [b"no such peer now"])
        assert dealer.send_nowait([b"waits"])
        before = trio.current_time()
        [[new, word]] = await router.receive()
        assert word == b"waits"
        assert new != route
        assert trio.current_time() - before == pytest.approx(LIMITS.reconnect_min_s)
        await events.wait(CONNECTED, 2)
        assert events.seen == [CONNECTED, DISCONNECTED, CONNECTED]


async def test_a_cut_of_one_route_leaves_the_others(autojump_clock, network):
    async with network.open_router("memory:r", limits=LIMITS) as router:
        async with (
            network.open_dealer("memory:r", limits=LIMITS) as a,
            network.open_dealer("memory:r", limits=LIMITS) as b,
        ):
            to_a, to_b = await greet(router, a), await greet(router, b)
            assert network.cut(to_a) == 1
            assert not router.send_nowait(to_a, [b"x"])
            assert router.send_nowait(to_b, [b"x"])
            assert await b.receive() == [[b"x"]]


async def test_a_partition_is_silent(autojump_clock, network, new_events):
    events = new_events()
    async with joined(network, on_event=events) as (router, dealer, route):
        network.partition("memory:r")
        assert dealer.send_nowait([b"lost"])
        assert router.send_nowait(route, [b"lost"])
        with trio.move_on_after(100):
            await router.receive()
        assert dealer.receive_nowait() == []
        async with network.open_dealer("memory:r", limits=LIMITS) as late:
            assert late.send_nowait([b"late"])
            with trio.move_on_after(100):
                await router.receive()
            network.heal("memory:r")
            assert [word for _, word in await router.receive()] == [b"late"]
        assert dealer.send_nowait([b"back"])
        assert await router.receive() == [[route, b"back"]]
        assert events.seen == [CONNECTED]


@pytest.mark.parametrize(
    ("address", "words"),
    [("memory:r", [b"arrives"]), ("memory:other", [b"arrives", b"slow", b"behind it", b"late"])],
)
async def test_a_partition_of_an_address_stops_what_has_not_arrived_there(
    autojump_clock, network, address, words
):
    async with joined(network) as (router, dealer, route):
        network.latency_s = 1.0
        assert dealer.send_nowait([b"arrives"])
        await trio.sleep(0.5)
        for network.latency_s, word in ((2.0, b"slow"), (0.1, b"behind it")):
            assert dealer.send_nowait([word])
        await trio.sleep(0.5)
        network.partition(address)
        assert dealer.send_nowait([b"late"])
        await trio.sleep(10)
        assert router.receive_nowait() == [[route, word] for word in words]
        assert router.receive_nowait() == []


async def test_what_waited_behind_messages_that_a_partition_loses_was_never_sent(
    autojump_clock, network
):
    async with joined(network) as (router, dealer, _):
        network.latency_s = 1.0
        for number in range(2 * UNDER_WAY_MESSAGES):
            assert dealer.send_nowait([b"%d" % number])
        network.partition("memory:r")
        with trio.fail_after(100):
            await dealer.flush()
        network.heal("memory:r")
        with trio.move_on_after(100):
            assert not await router.receive()


async def test_the_filter_loses_single_messages(autojump_clock, network):
    asked = []

    def keep(direction, route, frames) -> bool:
        asked.append((direction, route, tuple(frames)))
        return b"drop" not in frames

    async with joined(network) as (router, dealer, route):
        network.filter = keep
        for word in (b"one", b"drop", b"two"):
            assert dealer.send_nowait([word])
            assert router.send_nowait(route, [word])
        assert router.receive_nowait() == [[route, b"one"], [route, b"two"]]
        assert dealer.receive_nowait() == [[b"one"], [b"two"]]
        assert asked[:2] == [("to_router", route, (b"one",)), ("to_dealer", route, (b"one",))]


async def test_a_filter_may_cut(autojump_clock, network):
    def cut(direction, route, frames) -> bool:
        if frames[0] == b"cut":
            network.cut()
        return True

    async with joined(network) as (router, dealer, _):
        network.filter = cut
        assert dealer.send_nowait([b"cut"])
        assert dealer.send_nowait([b"after"])
        assert [word for _, word in await router.receive()] == [b"after"]


async def test_latency_keeps_the_order(autojump_clock, network):
    async with joined(network) as (router, dealer, route):
        network.latency_s = 2.0
        start = trio.current_time()
        assert dealer.send_nowait([b"slow"])
        network.route_latency_s[route] = 0.5
        assert dealer.send_nowait([b"behind it"])
        assert router.receive_nowait() == []
        assert await router.receive() == [[route, b"slow"], [route, b"behind it"]]
        assert trio.current_time() - start == pytest.approx(2.0)
        assert router.send_nowait(route, [b"x"])
        assert await dealer.receive() == [[b"x"]]
        assert trio.current_time() - start == pytest.approx(2.5)


async def test_last_words_are_read_though_another_has_connected(autojump_clock, network):
    async with network.open_router("memory:r", limits=LIMITS) as router:
        async with network.open_dealer("memory:r", limits=LIMITS) as dealer:
            await greet(router, dealer)
            assert dealer.send_nowait([b"last"])
        async with network.open_dealer("memory:r", limits=LIMITS) as other:
            assert other.send_nowait([b"first"])
            await trio.sleep(1.0)
            assert [word for _, word in router.receive_nowait()] == [b"last", b"first"]


@pytest.mark.parametrize("speaks", [0, 1])
@pytest.mark.parametrize("other_goes", [True, False])
async def test_peers_that_say_nothing_hide_nobodys_messages(
    autojump_clock, network, speaks, other_goes
):
    async with (
        network.open_router("memory:r", limits=LIMITS) as router,
        network.open_dealer("memory:r", limits=LIMITS) as one,
        network.open_dealer("memory:r", limits=LIMITS) as other,
    ):
        dealers = [one, other]
        routes = [await greet(router, dealer) for dealer in dealers]
        if other_goes:
            dealers[1 - speaks].close()
        for _ in range(3):
            assert dealers[speaks].send_nowait([b"word"])
        assert router.receive_nowait() == [[routes[speaks], b"word"]] * 3


async def test_unsent_messages_of_a_dealer_are_counted(autojump_clock, network):
    limits = WireLimits(peer_queue_messages=2)
    async with network.open_dealer("memory:nobody", limits=limits) as dealer:
        assert [dealer.send_nowait([b"x"]) for _ in range(3)] == [True, True, False]
        assert dealer.statistics().undelivered == 1
    assert dealer.statistics().undelivered == 3


async def test_a_flush_ends_with_the_peer_that_did_not_read(autojump_clock, network):
    async with joined(network) as (router, _, route):
        while router.statistics().backlog_messages == 0:
            assert router.send_nowait(route, [b"unread"])
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(router.flush)
                await trio.testing.wait_all_tasks_blocked()
                network.cut()


async def test_closing_throws_out_who_flushes(autojump_clock, network):
    async with network.open_dealer("memory:nobody", limits=LIMITS) as dealer:
        assert dealer.send_nowait([b"x"])
        with trio.fail_after(100), pytest.RaisesGroup(trio.ClosedResourceError):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(dealer.flush)
                await trio.testing.wait_all_tasks_blocked()
                dealer.close()


@pytest.mark.parametrize("drops", [False, True])
async def test_reconnecting_slows_down_to_its_limit(autojump_clock, network, drops):
    """Nobody is there; or every connection is lost at once, which is no success: a server that
    drops its clients would have them back in a storm."""
    times: list[float] = []
    async with trio.open_nursery() as nursery, network.open_router("memory:r", limits=LIMITS):

        def attempted(event: ConnectionEvent) -> None:
            if event is not DISCONNECTED:
                times.append(trio.current_time())
                nursery.start_soon(hang_up)

        async def hang_up() -> None:
            network.cut()

        address = "memory:r" if drops else "memory:nobody"
        with trio.move_on_after(10):
            async with network.open_dealer(address, limits=LIMITS, on_event=attempted):
                await trio.sleep_forever()
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[:6] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0])
    assert max(pauses) == pytest.approx(1.0)


async def test_reconnecting_is_quick_again_after_a_connection_that_lasted(autojump_clock, network):
    times: list[float] = []

    def heard(event: ConnectionEvent) -> None:
        times.append(trio.current_time())

    async with joined(network, on_event=heard):
        for _ in range(5):
            network.cut()
            await trio.sleep(LIMITS.reconnect_max_s)
        await trio.sleep(2 * LIMITS.reconnect_max_s)
        network.cut()
        await trio.sleep(LIMITS.reconnect_max_s)
    assert times[-1] - times[-2] == pytest.approx(LIMITS.reconnect_min_s)


async def test_a_flush_waits_for_a_connection(autojump_clock, network):
    async with network.open_dealer("memory:r", limits=LIMITS) as dealer:
        assert dealer.send_nowait([b"x"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dealer.flush)
            await trio.testing.wait_all_tasks_blocked()
            assert dealer.statistics().backlog_messages == 1
            async with network.open_router("memory:r", limits=LIMITS) as router:
                assert [word for _, word in await router.receive()] == [b"x"]
        assert dealer.statistics().backlog_messages == 0


async def test_connections_that_were_used_up_leave_nothing_behind(autojump_clock, network):
    async with joined(network) as (router, dealer, _):
        for _ in range(50):
            network.cut()
            await greet(router, dealer)
        assert len(router._pipes) <= 2
        assert len(dealer._pipes) <= 2
