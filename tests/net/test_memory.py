"""The faults of the network in memory, on a virtual clock."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from trio_envserve.core.limits import WireLimits
from trio_envserve.net import (
    BATCH_MESSAGES,
    COPY_THRESHOLD_BYTES,
    ConnectionEvent,
    MemoryNetwork,
)

LIMITS = WireLimits(reconnect_min_s=0.05, reconnect_max_s=1.0)
CONNECTED, DISCONNECTED = ConnectionEvent.CONNECTED, ConnectionEvent.DISCONNECTED


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


def open_pair(network: MemoryNetwork, on_event=None):
    """A router, and a dealer that is connected to it."""
    return (
        network.open_router("memory:r", limits=LIMITS),
        network.open_dealer("memory:r", limits=LIMITS, on_event=on_event),
    )


async def greet(router, dealer) -> bytes:
    """Let the router know the dealer.  Its route."""
    assert dealer.send_nowait([b"hello"])
    [[route, word]] = await router.receive()
    assert word == b"hello"
    assert isinstance(route, bytes)
    return route


async def test_a_cut_loses_what_is_under_way_and_heals(autojump_clock, network, new_events):
    events = new_events()
    opened_router, opened_dealer = open_pair(network, on_event=events)
    async with opened_router as router, opened_dealer as dealer:
        route = await greet(router, dealer)
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
    opened_router, opened_dealer = open_pair(network, on_event=events)
    async with opened_router as router, opened_dealer as dealer:
        route = await greet(router, dealer)
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


async def test_a_partition_stops_what_has_not_arrived(autojump_clock, network):
    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        route = await greet(router, dealer)
        network.latency_s = 1.0
        assert dealer.send_nowait([b"arrives"])
        await trio.sleep(0.5)
        assert dealer.send_nowait([b"does not"])
        await trio.sleep(0.5)
        network.partition("memory:r")
        await trio.sleep(10)
        assert router.receive_nowait() == [[route, b"arrives"]]
        assert router.receive_nowait() == []


async def test_a_partition_of_one_address_leaves_the_others(autojump_clock, network):
    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        route = await greet(router, dealer)
        network.latency_s = 1.0
        assert dealer.send_nowait([b"on its way"])
        network.partition("memory:other")
        await trio.sleep(1.0)
        assert router.receive_nowait() == [[route, b"on its way"]]


async def test_an_exception_closes_the_sockets_of_its_block(autojump_clock, network, new_events):
    events = new_events()
    for _ in range(2):  # the address is free again
        with pytest.raises(ValueError, match="mine"):
            async with network.open_router("memory:r", limits=LIMITS):
                raise ValueError("mine")
    async with network.open_router("memory:r", limits=LIMITS, on_event=events) as router:
        with pytest.raises(ValueError, match="mine"):
            async with network.open_dealer("memory:r", limits=LIMITS) as dealer:
                await greet(router, dealer)
                raise ValueError("mine")
        with trio.fail_after(100):
            await events.wait(DISCONNECTED)


async def test_the_filter_loses_single_messages(autojump_clock, network):
    asked = []

    def keep(direction, route, frames) -> bool:
        asked.append((direction, route, tuple(frames)))
        return b"drop" not in frames

    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        route = await greet(router, dealer)
        network.filter = keep
        for word in (b"one", b"drop", b"two"):
            assert dealer.send_nowait([word])
            assert router.send_nowait(route, [word])
        assert router.receive_nowait() == [[route, b"one"], [route, b"two"]]
        assert dealer.receive_nowait() == [[b"one"], [b"two"]]
        assert asked[:2] == [("to_router", route, (b"one",)), ("to_dealer", route, (b"one",))]
        assert dealer.statistics().sent == 4  # the sender cannot know


async def test_a_filter_may_cut(autojump_clock, network):
    def cut(direction, route, frames) -> bool:
        if frames[0] == b"cut":
            network.cut()
        return True

    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        await greet(router, dealer)
        network.filter = cut
        assert dealer.send_nowait([b"cut"])
        assert dealer.send_nowait([b"after"])
        assert [word for _, word in await router.receive()] == [b"after"]


async def test_latency_keeps_the_order(autojump_clock, network):
    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        route = await greet(router, dealer)
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


async def test_a_partition_loses_what_waits_behind_a_slow_message(autojump_clock, network):
    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        await greet(router, dealer)
        network.latency_s = 2.0
        assert dealer.send_nowait([b"slow"])
        network.latency_s = 0.5
        assert dealer.send_nowait([b"behind it"])
        await trio.sleep(1.0)
        network.partition("memory:r")
        await trio.sleep(10)
        assert router.receive_nowait() == []


async def test_last_words_are_read_though_another_has_connected(autojump_clock, network):
    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router:
        async with opened_dealer as dealer:
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


async def test_a_batch_has_a_budget_though_no_time_passes(autojump_clock, network):
    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        await greet(router, dealer)
        for _ in range(BATCH_MESSAGES + 1):
            assert dealer.send_nowait([b"x"])
        assert len(router.receive_nowait()) == BATCH_MESSAGES
        assert len(router.receive_nowait()) == 1


async def test_frames_from_the_threshold_on_arrive_as_views(autojump_clock, network):
    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        assert dealer.send_nowait([bytes(COPY_THRESHOLD_BYTES - 1), bytes(COPY_THRESHOLD_BYTES)])
        [[_, *frames]] = await router.receive()
        assert [type(frame) for frame in frames] == [bytes, memoryview]


async def test_what_a_dealer_could_not_send_is_counted(autojump_clock, network):
    limits = WireLimits(peer_queue_messages=2)
    async with network.open_dealer("memory:nobody", limits=limits) as dealer:
        assert [dealer.send_nowait([b"x"]) for _ in range(3)] == [True, True, False]
        assert dealer.statistics().undelivered == 1
    assert dealer.statistics().undelivered == 3


async def test_a_flush_ends_with_the_peer_that_did_not_read(autojump_clock, network):
    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        route = await greet(router, dealer)
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


async def test_reconnecting_slows_down_to_its_limit(autojump_clock, network):
    times = []
    with trio.move_on_after(10):
        async with network.open_dealer(
            "memory:nobody",
            limits=LIMITS,
            on_event=lambda event: times.append(trio.current_time()),
        ):
            await trio.sleep_forever()
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[:6] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0])
    assert max(pauses) == pytest.approx(1.0)


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


async def test_fresh_names(autojump_clock, network):
    async with network.open_router("memory:*", limits=LIMITS) as one:
        async with network.open_router("memory:*", limits=LIMITS) as two:
            assert one.address != two.address


async def test_connections_that_were_used_up_leave_nothing_behind(autojump_clock, network):
    opened_router, opened_dealer = open_pair(network)
    async with opened_router as router, opened_dealer as dealer:
        await greet(router, dealer)
        for _ in range(50):
            network.cut()
            await greet(router, dealer)
        assert len(router._pipes) <= 2
        assert len(dealer._pipes) <= 2
