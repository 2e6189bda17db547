"""Messages over one stream: what both ends promise, over a socket and in memory."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any

import pytest
import trio
import trio.testing

from tests.net.conftest import forked_child
from tests.net.streams import PATIENCE_S, WIRE, one_end, plain, received, sockets
from trio_envserve.core.limits import BATCH_BYTES, KIB, MIB, WireLimits
from trio_envserve.core.terms import BodyParts
from trio_envserve.net import COPY_THRESHOLD_BYTES, open_memory_streams, open_stream, stream
from trio_envserve.net.framing import READ_BYTES, FramingError, encode
from trio_envserve.net.interface import BATCH_MESSAGES, FRAMES_MAX

BUFFERS = (socket.SO_SNDBUF, socket.SO_RCVBUF)


@asynccontextmanager
async def memory() -> AsyncIterator[tuple[Any, Any]]:
    with trio.fail_after(PATIENCE_S):
        yield open_memory_streams(WIRE)


@pytest.fixture(params=[sockets, memory])
def opened(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Opens both ends of a stream."""
    made: Callable[[], Any] = request.param
    return made


def some_messages(seed: int, count: int) -> list[list[bytes]]:
    draw = random.Random(seed)
    sizes = [0, 1, 255, 256, 300, COPY_THRESHOLD_BYTES - 1, COPY_THRESHOLD_BYTES, 100_000]
    return [
        [draw.randbytes(draw.choice(sizes)) for _ in range(draw.randint(1, 5))]
        for _ in range(count)
    ]


# -- what is true of both -------------------------------------------------------


async def test_messages_that_are_sent_together_arrive_whole_and_in_order(opened):
    messages = some_messages(1, 40)
    async with opened() as (here, there), trio.open_nursery() as nursery:
        assert here.send_many_nowait(messages)
        nursery.start_soon(here.flush)
        assert await received(there, len(messages)) == messages


async def test_both_directions_carry_messages_at_once(opened):
    messages = some_messages(2, 40) + [[bytes([index]) * 5_000] for index in range(160)]
    async with opened() as ends, trio.open_nursery() as nursery:
        found: dict[int, Any] = {}

        async def read(index):
            found[index] = await received(ends[index], len(messages))

        async def write(stream):
            for frames in messages:
                while not stream.send_nowait(frames):
                    await trio.sleep(0.001)
            await stream.flush()

        for index, stream in enumerate(ends):
            nursery.start_soon(read, index)
            nursery.start_soon(write, stream)
    assert found == {0: messages, 1: messages}


async def test_small_frames_are_bytes_and_large_ones_views(opened):
    async with opened() as (here, there):
        here.send_nowait([b"small", memoryview(b"view"), bytes(COPY_THRESHOLD_BYTES)])
        [[small, view, large]] = await there.receive()
    assert type(small) is type(view) is bytes
    assert type(large) is memoryview
    assert large.readonly


async def test_unread_messages_wait_and_none_is_lost(opened):
    """What a router has told a worker is known there: the ends bound what they send."""
    async with opened() as (here, there):
        for number in range(100):
            assert here.send_many_nowait([[b"%d" % number, bytes(1 * MIB)]])
        found = await received(there, 100)
    assert [int(number) for number, _ in found] == [*range(100)]


@pytest.mark.parametrize(
    "frames", [[bytes(8 * MIB + 1)], [b""] * (FRAMES_MAX + 1)], ids=["large", "many frames"]
)
async def test_messages_that_the_peer_would_not_take_are_refused_here(opened, frames):
    async with opened() as (here, there):
        assert not here.send_nowait(frames)
        assert not here.send_many_nowait([[b"a"], frames, [b"b"]])
        assert await received(there, 2) == [[b"a"], [b"b"]]
        with pytest.raises(ValueError, match="at least one frame"):
            here.send_nowait([])


# -- the end --------------------------------------------------------------------


async def test_an_empty_list_of_messages_is_sent():
    """An empty list of messages was encoded, and nothing was there to be written."""
    async with sockets() as (here, there):
        assert here.send_many_nowait([])
        assert here.send_nowait([b"word"])
        assert await received(there, 1) == [[b"word"]]


async def test_the_end_comes_after_everything_that_was_sent():
    messages = some_messages(3, 10)
    async with one_end() as (there, ours), trio.open_nursery() as nursery:

        async def write():
            async with open_stream(ours, limits=WIRE) as here:
                here.send_many_nowait(messages)
                await here.flush()

        nursery.start_soon(write)
        assert await received(there, len(messages)) == messages
        for _ in range(2):
            with pytest.raises(trio.EndOfChannel):
                await there.receive()
        assert not there.send_nowait([b"to nobody"])
        assert not there.send_many_nowait([[b"to nobody"]])
        await there.flush()


async def test_the_end_in_memory_comes_after_everything_that_was_sent():
    here, there = open_memory_streams(WIRE)
    here.send_nowait([b"last"])
    here.close()
    assert await there.receive() == [[b"last"]]
    with pytest.raises(trio.EndOfChannel):
        await there.receive()
    assert not there.send_nowait([b"to nobody"])
    with pytest.raises(trio.ClosedResourceError):
        await here.receive()


@pytest.mark.parametrize(
    ("closes", "expected"), [(0, trio.ClosedResourceError), (1, trio.EndOfChannel)]
)
async def test_a_sleeping_receiver_hears_of_the_end_and_of_its_own_closing(closes, expected):
    ends = open_memory_streams(WIRE)
    with trio.fail_after(PATIENCE_S), pytest.RaisesGroup(expected):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends[0].receive)
            await trio.testing.wait_all_tasks_blocked()
            ends[closes].close()


async def test_a_closed_stream_cannot_be_flushed():
    here, _ = open_memory_streams(WIRE)
    here.close()
    async with one_end() as (there, _):
        pass
    for each in (here, there):
        with pytest.raises(trio.ClosedResourceError):
            await each.flush()
        assert not each.send_nowait([b"x"])
        assert not each.send_many_nowait([[b"x"]])
        assert each.send_many_nowait([])
    with pytest.raises(trio.ClosedResourceError):
        there.drain_nowait()


async def test_closing_a_stream_is_told_to_tasks_that_flush_or_receive():
    told = []

    async def wait(act: Callable[[], Any]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await act()
        told.append(act)

    async with trio.open_nursery() as nursery:
        async with one_end() as (here, _):
            assert here.send_nowait([bytes(2 * MIB)])
            nursery.start_soon(wait, here.flush)
            nursery.start_soon(wait, here.receive)
            await trio.testing.wait_all_tasks_blocked()
    assert len(told) == 2


async def test_a_stream_that_belongs_to_the_parent_is_closed_once():
    """A forked child may leave the block in which it was forked."""
    async with one_end() as (here, _):
        here.forget()
        assert not here.send_nowait([b"x"])
        with pytest.raises(trio.ClosedResourceError):
            await here.receive()


async def test_an_exception_closes_the_stream_and_comes_out_as_it_is():
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(ValueError, match="mine"):
        async with open_stream(ours, limits=WIRE):
            raise ValueError("mine")
    assert ours.fileno() == -1


async def test_flushing_ends_with_the_peer():
    """And with it what waits for the peer."""
    async with one_end() as (here, theirs), trio.open_nursery() as nursery:
        here.send_many_nowait([[bytes(1 * MIB)]] * 3)
        nursery.start_soon(here.flush)
        await trio.testing.wait_all_tasks_blocked()
        theirs.close()


async def test_a_dead_peers_last_words_are_read_at_once():
    messages = [[bytes(100_000)], [b"behind it"], *some_messages(4, 8)]
    data = b"".join(map(bytes, encode([*messages, [b"unfinished"]])))[:-3]
    async with one_end() as (there, ours):
        ours.sendall(data[: 150 * KIB])
        ends = accumulate(len(b"".join(map(bytes, encode([each])))) for each in messages)
        count = sum(end <= 150 * KIB for end in ends)
        assert plain(there.drain_nowait()) == messages[:count]
        ours.close()
        assert there.drain_nowait() == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\x00", "flags"),
        (b"\x04\x00", "a command"),
        (b"\x02" + (2**62).to_bytes(8, "big"), "are taken"),
        (b"\x01\x00" * (FRAMES_MAX + 1), "frames"),
    ],
)
async def test_a_broken_framing_is_told_after_the_messages_before_it(data, says):
    async with one_end() as (there, ours):
        ours.sendall(b"\x00\x01a" + data)
        found: list[Any] = []
        said = []
        for _ in range(4):
            try:
                found += await there.receive()
            except FramingError as error:
                said.append(str(error))
        assert found in ([[b"a"]], [])
        assert said
        assert says in said[0]


async def test_a_framing_broken_in_a_later_reading_is_told_after_it():
    data = b"".join(encode([[bytes(503)]] * 128))
    assert len(data) == READ_BYTES
    async with one_end() as (there, ours):
        ours.sendall(data + b"\xff\0")
        assert len(await there.receive()) == 128
        with pytest.raises(FramingError, match="flags"):
            await there.receive()


async def test_the_last_messages_and_the_end_may_be_read_in_one_turn():
    messages = [[b"a"], [bytes(100_000)]]
    async with one_end() as (there, ours):
        ours.sendall(b"".join(encode(messages)))
        ours.close()
        assert await received(there, 2) == messages
        with pytest.raises(trio.EndOfChannel):
            await there.receive()


@pytest.mark.parametrize("unread", [[[b"unread"]], [[bytes(2 * MIB)], [b"behind it"]]])
async def test_messages_for_a_peer_that_ends_without_having_read_them_wait_no_more(unread):
    async with one_end() as (there, ours):
        assert there.send_many_nowait(unread)
        ours.close()
        with pytest.raises(trio.EndOfChannel):
            await there.receive()
        assert not there._end.outbox
        await there.flush()


# -- bounds -------------------------------------------------------------------------


async def test_a_message_may_have_a_header_and_a_body_as_large_as_they_may_be():
    header, body = bytes(WIRE.header_bytes), bytes(WIRE.message_bytes)
    assert WIRE.header_bytes >= BATCH_BYTES
    async with sockets() as (here, there):
        assert here.send_nowait([header, body, bytes(KIB)])
        assert await received(there, 1) == [[header, body, bytes(KIB)]]
        assert here.send_nowait([header, body, bytes(KIB + 1)])
        with pytest.raises(FramingError, match="a message of more than"):
            await there.receive()


async def test_a_slow_receiver_holds_no_more_than_one_reading():
    """What is not taken stays with the system, which tells the peer to wait."""
    async with sockets() as (here, there):
        assert here.send_many_nowait([[b"x"]] * BATCH_MESSAGES * 100)
        for _ in range(20):
            assert len(await there.receive()) == BATCH_MESSAGES
            assert there._end.decoder.arriving_bytes <= READ_BYTES


async def test_a_turn_takes_no_more_messages_than_its_budget_from_several_readings():
    async with sockets() as (here, there):
        count = READ_BYTES // 400 * 2
        assert here.send_many_nowait([[bytes(400)]] * count)
        turns = [len(await there.receive()) for _ in range(2)]
    assert turns == [BATCH_MESSAGES, count - BATCH_MESSAGES]


async def test_a_turn_takes_no_more_bytes_than_its_budget(monkeypatch):
    monkeypatch.setattr(stream, "TURN_BYTES", READ_BYTES)
    async with sockets() as (here, there):
        assert here.send_many_nowait([[bytes(20_000)]] * 6)
        turns = [len(await there.receive()) for _ in range(2)]
    assert turns == [3, 3]


async def test_a_turn_in_memory_has_a_budget():
    here, there = open_memory_streams(WireLimits(peer_queue_messages=2 * BATCH_MESSAGES))
    here.send_many_nowait([[b"x"]] * (BATCH_MESSAGES + 1))
    assert [len(await there.receive()) for _ in range(2)] == [BATCH_MESSAGES, 1]


async def test_a_stream_that_has_written_everything_sleeps():
    async with sockets() as (here, there):
        assert here.send_nowait([bytes(2 * MIB)])
        await received(there, 1)
        await here.flush()
        await trio.testing.wait_all_tasks_blocked()


async def test_the_systems_buffers_are_made_larger_if_it_allows_that():
    class Refusing(socket.socket):
        def setsockopt(self, *option: Any) -> None:
            raise OSError(22, "Invalid argument")

    ours, theirs = socket.socketpair()
    refusing = Refusing(fileno=theirs.detach())
    sizes = [ours.getsockopt(socket.SOL_SOCKET, each) for each in BUFFERS]
    with trio.fail_after(PATIENCE_S):
        async with (
            open_stream(ours, limits=WIRE) as here,
            open_stream(refusing, limits=WIRE) as there,
        ):
            larger = [ours.getsockopt(socket.SOL_SOCKET, each) for each in BUFFERS]
            assert here.send_nowait([b"x"])
            assert await received(there, 1) == [[b"x"]]
    assert all(map(int.__gt__, larger, sizes))


async def test_the_first_message_may_be_larger_than_all_bounds():
    small = WireLimits(message_bytes=1_000, peer_queue_bytes=1_000)
    first = [b"start", bytes(3 * MIB)]
    async with sockets(small, first=first) as (here, there):
        assert here.send_nowait([b"second"])
        assert await received(there, 2) == [first, [b"second"]]


async def test_a_frame_in_pieces_is_written_bit_by_bit():
    """The system takes a part of it at a time."""
    pieces = [random.Random(1).randbytes(size) for size in (7, 3 * MIB, 0, 100_000, 3)]
    async with sockets() as (here, there):
        assert here.send_many_nowait([(BodyParts(pieces), b"x")] * 2)
        assert await received(there, 2) == [[b"".join(pieces), b"x"]] * 2


async def test_a_first_message_to_a_peer_that_is_gone_ends_the_stream_in_order():
    ours, theirs = socket.socketpair()
    theirs.close()
    with trio.fail_after(PATIENCE_S):
        async with open_stream(ours, limits=WIRE, first=[b"start", bytes(3 * MIB)]) as here:
            with pytest.raises(trio.EndOfChannel):
                await here.receive()


async def test_a_forked_child_closes_its_copy_and_nothing_else():
    async with sockets() as (here, there):
        with forked_child():
            here.send_nowait([b"still there"])
            assert await there.receive() == [[b"still there"]]
            here._close()
            ended = False
            with trio.move_on_after(PATIENCE_S / 3):
                try:
                    await there.receive()
                except trio.EndOfChannel:
                    ended = True
            assert ended  # the child does not hold it open
