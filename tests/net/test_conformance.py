"""The promises of ``net/interface.py``, kept by every network."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from trio_envserve.core.errors import ConfigError, ServerStartError
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.terms import BodyParts
from trio_envserve.net import BATCH_MESSAGES, COPY_THRESHOLD_BYTES, FRAMES_MAX, ConnectionEvent

SMALL_QUEUES = WireLimits(
    reconnect_min_s=0.01, reconnect_max_s=0.05, peer_queue_messages=20, message_bytes=100_000
)
BODY = bytes(COPY_THRESHOLD_BYTES)


async def test_messages_sent_together_arrive_in_order_both_ways(bench):
    large = bytes(COPY_THRESHOLD_BYTES)
    sent = [[b"%d" % number, b"", b"body"] for number in range(2 * BATCH_MESSAGES)]
    sent[3:3] = [[b"large", large], [b"after it"]]
    async with bench() as b, b.router() as router, b.dealer(router) as dealer:
        assert dealer.send_many_nowait(sent)
        got = await b.take(router, len(sent))
        assert [frames for _, *frames in got] == sent
        route = got[0][0]
        assert router.send_many_nowait(route, sent)
        assert await b.take(dealer, len(sent)) == sent
        assert router.send_many_nowait(b"nobody", [])
        assert not router.send_many_nowait(b"nobody", [[b"x"], [b"y"]])


async def test_a_batch_has_a_budget(bench):
    many = 3 * BATCH_MESSAGES
    async with bench() as b, b.router() as router, b.dealer(router) as dealer:
        for _ in range(many):
            assert dealer.send_nowait([b"x"])
        got = 0
        while got < many:
            with trio.move_on_after(0.001):  # the dealer's outbox needs somebody too
                await dealer.receive()
            batch = router.receive_nowait()
            assert len(batch) <= BATCH_MESSAGES
            got += len(batch)
        assert router.receive_nowait() == []


async def test_an_unknown_route_is_refused(bench):
    async with bench() as b, b.router() as router:
        assert not router.send_nowait(b"nobody", [b"x"])
        assert not router.send_nowait(b"", [b"x"])
        assert router.statistics().undelivered == 2


async def test_a_dealer_waits_for_its_router(bench, new_events):
    events = new_events()
    async with bench() as b:
        async with b.router() as router:
            address = router.address
        async with b.dealer(address, on_event=events) as dealer:
            frames = [b""]
            for number in range(10):
                frames[0] = b"%d" % number  # those that were given may be used again
                assert dealer.send_nowait(frames)
            assert dealer.statistics().backlog_messages == 10
            await events.wait(ConnectionEvent.REFUSED, 2)
            assert ConnectionEvent.CONNECTED not in events.seen
            async with b.router(address) as router:
                # no one receives from the dealer: the connection itself is enough
                got = await b.take(router, 10)
                assert [message[1] for message in got] == [b"%d" % n for n in range(10)]
                await events.wait(ConnectionEvent.CONNECTED)
                assert dealer.statistics().backlog_messages == 0


async def test_events_of_a_router_that_comes_and_goes(bench, new_events):
    router_events, events = new_events(), new_events()
    async with bench() as b:
        async with b.router() as router:
            address = router.address
        async with b.dealer(address, on_event=events) as dealer:
            async with b.router(address, on_event=router_events) as router:
                assert router.address == address
                await router_events.wait(ConnectionEvent.CONNECTED)
                await events.wait(ConnectionEvent.CONNECTED)
            before = events.seen.count(ConnectionEvent.REFUSED)
            await events.wait(ConnectionEvent.DISCONNECTED)
            await events.wait(ConnectionEvent.REFUSED, before + 2)
            async with b.router(address) as router:
                await events.wait(ConnectionEvent.CONNECTED, 2)
                await b.greet(router, dealer)
                assert [e for e in events.seen if e is not ConnectionEvent.REFUSED] == [
                    ConnectionEvent.CONNECTED,
                    ConnectionEvent.DISCONNECTED,
                    ConnectionEvent.CONNECTED,
                ]


async def test_a_connection_can_be_given_up_for_a_new_one(bench, new_events):
    events = new_events()
    async with bench() as b, b.router() as router, b.dealer(router, on_event=events) as dealer:
        await b.greet(router, dealer)
        await events.wait(ConnectionEvent.CONNECTED)
        dealer.reconnect()
        await events.wait(ConnectionEvent.CONNECTED, 2)
        assert events.seen == [
            ConnectionEvent.CONNECTED,
            ConnectionEvent.DISCONNECTED,
            ConnectionEvent.CONNECTED,
        ]
        words = []
        while b"again" not in words:  # libzmq may still put one into the old connection
            dealer.send_nowait([b"again"])
            with trio.move_on_after(0.1):
                words = [word for _, word in await router.receive()]


async def test_last_words_arrive(bench):
    async with bench() as b, b.router() as router:
        async with b.dealer(router) as dealer:
            [route] = await b.greet(router, dealer)
            for _ in range(50):
                assert dealer.send_nowait([b"bye"])
        assert await b.take(router, 50) == [[route, b"bye"]] * 50


async def test_large_frames_arrive_as_views(bench):
    large = random.Random(1).randbytes(1_000_000)
    async with bench() as b, b.router() as router, b.dealer(router) as dealer:
        assert dealer.send_nowait([memoryview(b"small"), large, BODY[:-1], BODY])
        [[route, small, view, almost, least]] = await b.take(router, 1)
        assert (small, least) == (b"small", BODY)
        assert type(small) is type(almost) is bytes
        assert type(view) is type(least) is memoryview
        assert view.readonly
        assert view == large
        # passed on as it came, then the original dropped
        assert router.send_nowait(route, [b"back", view, view[10:]])
        del view
        [[_, view, part]] = await b.take(dealer, 1)
        assert view == large
        assert part == large[10:]


async def test_a_frame_in_pieces_arrives_as_one(bench):
    """Also when it waits in an outbox, and when the system takes it bit by bit."""
    draw = random.Random(1)
    sizes = [10, 3 * COPY_THRESHOLD_BYTES, 2_000_000, 0, 5, COPY_THRESHOLD_BYTES, 300]
    pieces = [draw.randbytes(size) for size in sizes]
    body, some = BodyParts(pieces), BodyParts(pieces[4:])
    async with bench() as b:
        async with b.router() as router:
            address = router.address
        async with b.dealer(address) as dealer:
            assert all(dealer.send_many_nowait([[b"head", body], [some, b"tail"]]) for _ in "ab")
            async with b.router(address) as router:
                got = await b.take(router, 4)
                sent = [[b"head", b"".join(pieces)], [b"".join(pieces[4:]), b"tail"]]
                assert [frames for _, *frames in got] == sent * 2
                assert router.send_many_nowait(got[0][0], [[body]] * 3)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(router.flush)
                    assert await b.take(dealer, 3) == [[b"".join(pieces)]] * 3


async def test_a_message_that_is_too_large_is_refused(bench):
    async with bench() as b, b.router(limits=SMALL_QUEUES) as router:
        async with b.dealer(router, limits=SMALL_QUEUES) as dealer:
            [route] = await b.greet(router, dealer)
            exact = bytes(SMALL_QUEUES.message_bytes)
            assert not dealer.send_nowait([b"x", exact + b"x"])
            assert not dealer.send_nowait([b"x", memoryview(exact + b"x")])
            assert not router.send_nowait(route, [exact + b"x"])
            assert not dealer.send_nowait([b"x"] * (FRAMES_MAX + 1))
            assert dealer.statistics().oversized == 3
            assert router.statistics().oversized == 1
            assert dealer.send_nowait([exact])
            assert dealer.send_nowait([b"x"] * FRAMES_MAX)
            [[_, body], [_, *frames]] = await b.take(router, 2)
            assert body == exact
            assert frames == [b"x"] * FRAMES_MAX
            with pytest.raises(ValueError, match="at least one frame"):
                dealer.send_nowait([])
            with pytest.raises(ValueError, match="at least one frame"):
                router.send_nowait(route, [])


async def test_one_consumer_at_a_time(bench):
    async with bench() as b, b.router() as router:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.receive)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await router.receive()
            with pytest.raises(trio.BusyResourceError):
                router.receive_nowait()
            nursery.cancel_scope.cancel()
        assert router.receive_nowait() == []


async def test_closing_throws_the_consumer_out(bench):
    outcomes = []

    async def consume(socket):
        try:
            await socket.receive()
        except trio.ClosedResourceError:
            outcomes.append("closed")

    async with bench() as b, trio.open_nursery() as nursery:
        async with b.router() as router, b.dealer(router) as dealer:
            nursery.start_soon(consume, router)
            nursery.start_soon(consume, dealer)
            await trio.testing.wait_all_tasks_blocked()
        for socket in (router, dealer):
            with pytest.raises(trio.ClosedResourceError):
                await socket.receive()
            with pytest.raises(trio.ClosedResourceError):
                socket.receive_nowait()
            with pytest.raises(trio.ClosedResourceError):
                await socket.flush()
        assert not router.send_nowait(b"dealer", [b"x"])
        assert not dealer.send_nowait([b"x"])
        assert router.statistics().undelivered == dealer.statistics().undelivered == 1
    assert outcomes == ["closed", "closed"]


async def test_receive_is_a_checkpoint_and_honours_a_cancel(bench):
    async with bench() as b, b.router() as router, b.dealer(router) as dealer:
        assert dealer.send_nowait([b"one"])
        with trio.CancelScope() as scope:
            scope.cancel()
            await router.receive()
        assert scope.cancelled_caught
        with trio.testing.assert_checkpoints():
            [[_, word]] = await router.receive()
        assert word == b"one"
        with trio.testing.assert_checkpoints():
            await dealer.flush()


async def test_random_cancels_lose_nothing(bench):
    """Both ways at once, the answers sent by a task that is not the pump."""
    many = 1_000
    chance = random.Random(7)
    answers: list[bytes] = []

    async def receive_often_cancelled(socket):
        while True:
            with trio.CancelScope() as scope:
                if chance.random() < 0.5:
                    scope.cancel()
                else:
                    scope.deadline = trio.current_time() + chance.random() * 0.0005
                return await socket.receive()

    async def echo(router, task_status):
        sender, todo = trio.open_memory_channel(10_000)

        async def answer():
            async for route, *frames in todo:
                while not router.send_nowait(route, frames):
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            task_status.started()
            while True:
                for message in await receive_often_cancelled(router):
                    sender.send_nowait(message)

    async def ask(dealer):
        for number in range(many):
            while not dealer.send_nowait([number.to_bytes(4, "big"), b"body"]):
                await trio.lowlevel.checkpoint()
            if chance.random() < 0.05:
                await trio.sleep(chance.random() * 0.001)

    async with bench() as b, b.router() as router, b.dealer(router) as dealer:
        async with trio.open_nursery() as nursery:
            await nursery.start(echo, router)
            nursery.start_soon(ask, dealer)
            while len(answers) < many:
                answers += [message[0] for message in await receive_often_cancelled(dealer)]
            nursery.cancel_scope.cancel()
    assert answers == [number.to_bytes(4, "big") for number in range(many)]


async def test_a_peer_that_does_not_read_delays_nobody(bench):
    async with bench() as b, b.router(limits=SMALL_QUEUES) as router:
        async with b.dealer(router) as slow, b.dealer(router) as quick:
            [slow_route, _] = await b.greet(router, slow, quick)
            accepted = await b.send_until_stuck(router, slow_route, BODY)
            assert accepted >= SMALL_QUEUES.peer_queue_messages
            statistics = router.statistics()
            assert statistics.backlog_messages == SMALL_QUEUES.peer_queue_messages
            assert statistics.backlog_bytes >= SMALL_QUEUES.peer_queue_messages * len(BODY)
            for number in range(100):
                assert quick.send_nowait([b"%d" % number])
                [[route, word]] = await b.take(router, 1)
                assert router.send_nowait(route, [word])
                assert await b.take(quick, 1) == [[b"%d" % number]]
            # what was accepted arrives once it reads, pumped by whoever pumps
            async with trio.open_nursery() as nursery:
                nursery.start_soon(router.flush)
                got = await b.take(slow, accepted)
            assert [message[0] for message in got] == [
                number.to_bytes(4, "big") for number in range(accepted)
            ]
            assert router.statistics().backlog_messages == 0


async def test_the_sleeping_pump_flushes(bench):
    async with bench() as b, b.router(limits=SMALL_QUEUES) as router:
        async with b.dealer(router) as dealer:
            [route] = await b.greet(router, dealer)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(router.receive)
                await trio.testing.wait_all_tasks_blocked()
                accepted = await b.send_until_stuck(router, route, BODY)
                await b.take(dealer, accepted)
                nursery.cancel_scope.cancel()
            assert router.statistics().backlog_messages == 0


async def test_the_outbox_of_a_lost_peer_is_dropped(bench, new_events):
    events = new_events()
    async with bench() as b, b.router(limits=SMALL_QUEUES, on_event=events) as router:
        async with b.dealer(router) as dealer:
            [route] = await b.greet(router, dealer)
            await b.send_until_stuck(router, route, BODY)
            before = router.statistics().undelivered
        await events.wait(ConnectionEvent.DISCONNECTED)
        assert events.seen == [ConnectionEvent.CONNECTED, ConnectionEvent.DISCONNECTED]
        async with trio.open_nursery() as nursery:
            # libzmq ends a connection only when all that came over it was read
            nursery.start_soon(router.receive)
            await router.flush()
            while router.send_nowait(route, [b"x"]):  # libzmq has not heard of the end yet
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        statistics = router.statistics()
        assert statistics.backlog_messages == 0
        # some may still have gone out while the peer was closing: into the void
        dropped = statistics.undelivered - before - 1
        assert 0 <= dropped <= SMALL_QUEUES.peer_queue_messages


async def test_an_address_is_used_once(bench):
    async with bench() as b, b.router() as router, b.router() as other, b.dealer(router) as dealer:
        assert other.address != router.address
        with pytest.raises(ServerStartError, match="in use") as caught:
            async with b.router(router.address):
                raise AssertionError
        assert router.address in str(caught.value)
        await b.greet(router, dealer)  # not disturbed


async def test_wrong_addresses_and_those_of_the_other_kind_are_refused(bench):
    async with bench() as b:
        other = "tcp://127.0.0.1:5555" if b.kind == "memory" else "memory:name"
        for address, says in (("127.0.0.1:5555", None), ("tcp://host", None), (other, "memory")):
            for opened in (b.router, b.dealer):
                with pytest.raises(ConfigError, match=says):
                    await opened(address).__aenter__()


async def test_exceptions_pass_through_the_blocks_as_they_are_and_close_them(bench, new_events):
    error, events = ValueError("mine"), new_events()
    async with bench() as b:
        async with b.router(on_event=events) as router:
            with pytest.raises(ValueError, match="mine") as caught:
                async with b.dealer(router) as dealer:
                    await b.greet(router, dealer)
                    raise error
            assert caught.value is error
            await events.wait(ConnectionEvent.DISCONNECTED)
        with pytest.raises(ValueError, match="mine"):
            async with b.router(router.address):
                raise error
        async with b.router(router.address) as router, b.dealer(router) as dealer:
            await b.greet(router, dealer)


async def test_a_callback_that_raises_ends_the_block(bench):
    def explode(event: ConnectionEvent) -> None:
        raise RuntimeError(event.value)

    async with bench() as b:
        with pytest.raises(RuntimeError, match=r"^connected$"):
            async with b.router(on_event=explode) as router, b.dealer(router):
                await trio.sleep_forever()
        async with b.router() as router:
            with pytest.raises(RuntimeError, match=r"^connected$"):
                async with b.dealer(router, on_event=explode):
                    await trio.sleep_forever()
