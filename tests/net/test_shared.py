"""Memory that two ends of a stream share: what travels through it, and who may harm whom."""

from __future__ import annotations

import os
import random
import resource
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.net.streams import PATIENCE_S, one_end, plain, received, sockets
from trio_envserve.core.limits import KIB, MIB, WireLimits
from trio_envserve.core.terms import BodyParts
from trio_envserve.net import make_memory, map_memory, open_stream, shared, stream
from trio_envserve.net.framing import READ_BYTES, FramingError, encode, encode_command
from trio_envserve.net.shared import HALF_BYTES, PLACE_FROM_BYTES, PLACES_MOST, Places, SharedMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfds")

WIRE = WireLimits(message_bytes=64 * MIB, peer_queue_bytes=256 * MIB)


def pair() -> tuple[SharedMemory, SharedMemory]:
    """Both ends of new memory; the second has not said yet that it has it."""
    offered = make_memory()
    assert offered is not None
    taken = map_memory(os.dup(offered.descriptor))
    assert taken is not None
    return offered, taken


@contextmanager
def mapped() -> Iterator[tuple[SharedMemory, SharedMemory]]:
    offered, taken = pair()
    try:
        yield offered, taken
    finally:
        offered.close()
        taken.close()


@asynccontextmanager
async def streams() -> AsyncIterator[tuple[Any, Any, SharedMemory, SharedMemory]]:
    """Two streams, joined as a server and a worker are, and their memory."""
    offered = make_memory()
    assert offered is not None
    async with one_end(WIRE, first=(b"first",), memory=offered) as (here, theirs):
        data, descriptors, _, _ = socket.recv_fds(theirs, 100, 1)
        assert data == b"\0\5first"
        assert offered.descriptor == -1
        taken = map_memory(*descriptors)
        assert taken is not None
        async with open_stream(theirs, limits=WIRE, memory=taken) as there:
            assert there.send_nowait((b"hello",))
            assert await received(here, 1) == [[b"hello"]]
            yield here, there, offered, taken


# -- places ---------------------------------------------------------------------


@given(st.lists(st.integers(1, 300 * KIB) | st.integers(-5, -1), max_size=200))
def test_places_are_within_the_memory_and_do_not_overlap(steps):
    places = Places(1 * MIB)
    live: list[tuple[int, int]] = []
    for step in steps:
        if step < 0:
            count = min(-step, len(live))
            places.free(count)
            del live[:count]
        elif (offset := places.find(step)) is not None:
            live.append((offset, offset + step))
        assert len(places) == len(live) <= PLACES_MOST
        ordered = sorted(live)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ordered))
        assert all(begin >= 0 and end <= MIB for begin, end in ordered)


def test_the_lowest_place_that_fits_is_used_again_and_all_of_the_memory_can_be():
    places = Places(4 * MIB)
    assert [places.find(MIB) for _ in range(3)] == [0, MIB, 2 * MIB]
    places.free(1)
    assert [places.find(size) for size in (2 * MIB, MIB, MIB, 1)] == [None, 0, 3 * MIB, None]
    places.free(4)
    assert places.find(4 * MIB) == 0
    places.free(1)
    with pytest.raises(FramingError):
        places.free(1)
    assert None not in [places.find(1) for _ in range(PLACES_MOST)]
    assert places.find(1) is None
    places.free(1)
    assert places.find(1) == 0


# -- frames ---------------------------------------------------------------------


async def test_large_frames_travel_through_the_memory_and_arrive_whole_and_in_order():
    draw = random.Random(1)
    sizes = [0, 1, 300, PLACE_FROM_BYTES - 1, PLACE_FROM_BYTES, 100_000, 1 * MIB, 3 * MIB]
    messages = [[draw.randbytes(draw.choice(sizes)) for _ in range(3)] for _ in range(60)]
    async with streams() as (here, there, offered, _), trio.open_nursery() as nursery:

        async def read(stream: Any) -> None:
            assert await received(stream, len(messages)) == messages
            assert stream.send_nowait((b"thanks",))

        nursery.start_soon(read, there)
        assert here.send_many_nowait(messages)
        assert await received(here, 1) == [[b"thanks"]]
        assert not len(offered._places), "they were given back with the answer"
        nursery.start_soon(read, here)
        assert there.send_many_nowait(messages)
        assert await received(there, 1) == [[b"thanks"]]


async def test_a_frame_in_pieces_is_placed_as_one():
    pieces = [os.urandom(size) for size in (7, 2 * MIB, 0, 100_000, 3)]
    whole = b"".join(pieces)
    async with streams() as (here, there, _, taken):
        assert there.send_nowait((b"outcome", BodyParts(pieces)))
        assert taken._out[: len(whole)] == whole, "it went through the memory"
        assert await received(here, 1) == [[b"outcome", whole]]


async def test_a_frame_in_pieces_goes_inline_bit_by_bit_if_it_has_no_place():
    """The socket takes a part of it at a time, and there is no memory."""
    pieces = [os.urandom(size) for size in (7, 3 * MIB, 0, 100_000, 3)]
    async with sockets(WIRE, WIRE) as (here, there):
        assert here.send_many_nowait([(BodyParts(pieces), b"x")] * 2)
        assert await received(there, 2) == [[b"".join(pieces), b"x"]] * 2


async def test_what_was_received_is_not_changed_by_who_sent_it():
    """A worker's environment can write into the memory at any time."""
    body = os.urandom(MIB)
    async with streams() as (here, there, _, taken):
        assert there.send_nowait((b"outcome", body))
        assert taken._out[: len(body)] == body, "it went through the memory"
        ((_, kept),) = await here.receive()
        taken._out[: len(body)] = bytes(len(body))
        is_unchanged = kept == body
        assert kept.readonly
        kept.release()
    assert is_unchanged


async def test_a_frame_without_a_place_goes_inline():
    bodies = [os.urandom(HALF_BYTES // 2 + 1), os.urandom(HALF_BYTES // 2 + 1), bytes(MIB)]
    many = [os.urandom(PLACE_FROM_BYTES) for _ in range(2 * PLACES_MOST)]
    async with streams() as (here, there, _, _):
        for batch in (bodies, many):
            assert here.send_many_nowait([(body,) for body in batch])
            assert await received(there, len(batch)) == [[body] for body in batch]
            assert there.send_nowait((b"taken",))
            await received(here, 1)


async def test_a_frame_goes_inline_until_the_other_end_has_the_memory():
    body = os.urandom(100 * KIB)
    async with one_end(WIRE, first=(b"first",), memory=make_memory()) as (here, theirs):
        assert here.send_nowait((body,))
        expected = b"".join(encode([(b"first",), (body,)]))
        data = b""
        while len(data) < len(expected):  # recv() drops the descriptor
            data += theirs.recv(len(expected))
        assert data == expected


def test_a_frame_worth_a_place_gets_one_even_if_it_takes_all_the_memory():
    with mapped() as (offered, taken):
        offered.acknowledged(taken.acknowledge())
        assert taken.place(bytes(PLACE_FROM_BYTES - 1)) is None
        for size in (HALF_BYTES, PLACE_FROM_BYTES, HALF_BYTES):
            frame = b"w" * size
            assert taken.place(frame) == 0
            assert offered.take(0, size) == frame
            taken.acknowledged(offered.acknowledge())


async def test_zero_is_a_descriptor_as_any_other():
    """Where a program has closed its standard input, the memory's may be 0."""
    ours, theirs = socket.socketpair()
    kept = os.dup(0)
    os.close(0)
    try:
        offered = make_memory()
        assert offered is not None
        assert offered.descriptor == 0
        async with open_stream(ours, limits=WIRE, first=(b"first",), memory=offered):
            assert offered.descriptor == -1
            _, descriptors, _, _ = socket.recv_fds(theirs, 100, 1)
            assert descriptors == [0]
            taken = map_memory(0)
            assert taken is not None
            taken.close()
        with pytest.raises(OSError):
            os.fstat(0)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        theirs.close()


async def test_a_turn_takes_no_more_bytes_from_the_memory_than_its_budget(monkeypatch):
    monkeypatch.setattr(stream, "TURN_BYTES", 2 * READ_BYTES)
    async with streams() as (here, there, _, _):
        assert here.send_many_nowait([[bytes(MIB)], *[[bytes(20_000)]] * 6])
        turns = [len(await there.receive()) for _ in range(2)]
    assert turns == [4, 3]


async def test_the_last_words_of_a_peer_are_read_through_the_memory_too():
    messages = [[bytes(MIB)]] * 3 + [[bytes(20_000)]] * 6
    async with streams() as (here, there, _, _):
        assert here.send_many_nowait(messages)
        here._close()
        assert plain(there.drain_nowait()) == messages


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_first_message_may_be_large_and_its_peer_gone(is_gone):
    first = (b"start", os.urandom(3 * MIB))
    ours, theirs = socket.socketpair()
    if is_gone:
        theirs.close()
    with trio.fail_after(PATIENCE_S), theirs:
        async with open_stream(ours, limits=WIRE, first=first, memory=make_memory()) as here:
            if is_gone:
                with pytest.raises(trio.EndOfChannel):
                    await here.receive()
            else:
                async with open_stream(theirs, limits=WIRE) as there:
                    assert await received(there, 1) == [list(first)]


async def test_a_stream_closes_its_memory_and_says_nothing_of_it_unasked():
    offered, taken = pair()
    async with one_end(WIRE, memory=taken) as (here, theirs):
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        assert here.send_nowait((b"x",))
        assert theirs.recv(100) == encode_command(b"\x05FREED\0\0\0\0") + b"\0\1x"
    assert taken._mapping.closed
    offered.close()


# -- hostile peers ----------------------------------------------------------------


def _head(offset: int, size: int) -> bytes:
    return b"\x0a" + size.to_bytes(8, "big") + offset.to_bytes(8, "big")


@pytest.mark.parametrize(
    "data",
    [
        _head(HALF_BYTES - MIB + 1, MIB),
        _head(2**64 - 1, MIB),
        _head(0, 0),
        _head(0, HALF_BYTES) + _head(0, 1),
        b"\x08\x05" + bytes(5),
        encode_command(b"\x05FREED\0\0\0\1"),
        encode_command(b"\x05FREED"),
        encode_command(b"\x04PING"),
        encode_command(b"\x05FREEZ\0\0\0\0"),
        encode_command(b"\x05FREED\0\0\0\0") * 2,
    ],
    ids=[
        "past the end", "far away", "nothing", "more than there is", "a short head",
        "more than was sent", "no count", "another command", "another name", "two hellos",
    ],
)  # fmt: skip
async def test_dishonest_frames_and_commands_break_the_framing(data):
    async with one_end(WIRE, first=(b"f",), memory=make_memory()) as (here, theirs):
        theirs.sendall(data)
        for _ in range(2):
            with pytest.raises(FramingError):
                while True:
                    await here.receive()


async def test_a_framing_broken_right_behind_a_command_is_told():
    """It was heard of only when more came."""
    async with one_end(WIRE, first=(b"f",), memory=make_memory()) as (here, theirs):
        theirs.sendall(encode_command(b"\x05FREED\0\0\0\0") + b"\xff\0")
        for _ in range(2):
            with pytest.raises(FramingError, match="flags"):
                await here.receive()


async def test_shared_frames_are_refused_where_there_is_no_memory():
    async with one_end(WIRE) as (here, theirs):
        theirs.sendall(_head(0, 100))
        with pytest.raises(FramingError):
            await here.receive()


def test_the_size_of_the_memory_cannot_be_changed():
    memory = make_memory()
    assert memory is not None
    assert os.fstat(memory.descriptor).st_size == 2 * HALF_BYTES
    for size in (0, 4 * HALF_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.descriptor, size)
    memory.close()


# -- where there is none ------------------------------------------------------------


def test_memory_needs_a_descriptor():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    try:
        for more in (0, 1):  # none left, or one but none for the mapping
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, hard))
            memory = make_memory()
            if memory is not None:
                assert more, "none was left"
                assert sys.version_info >= (3, 13), "a mapping needs one of its own before"
                memory.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.dup(0) == free, "none was left open"
    os.close(free)


def test_the_descriptor_is_kept_by_no_end():
    offered = make_memory()
    assert offered is not None
    first, second = offered.descriptor, os.dup(offered.descriptor)
    taken = map_memory(second)
    assert taken is not None
    assert taken.descriptor == -1
    offered.close()
    taken.close()
    for descriptor in (first, second):
        with pytest.raises(OSError):
            os.fstat(descriptor)


def test_a_descriptor_that_cannot_be_mapped_is_closed():
    reading, writing = os.pipe()
    assert map_memory(reading) is None
    with pytest.raises(OSError):
        os.fstat(reading)
    os.close(writing)
    assert map_memory(-1) is None
    assert map_memory(1_000_000) is None  # it is not open


def test_there_is_none_where_the_system_promises_no_more_than_it_has(monkeypatch, tmp_path):
    policy = tmp_path / "overcommit_memory"
    monkeypatch.setattr(shared, "_POLICY", policy)
    policy.write_text("2\n")
    assert make_memory() is None
    policy.write_text("0\n")
    memory = make_memory()
    assert memory is not None
    memory.close()


def test_closing_keeps_what_was_taken():
    with mapped() as (offered, taken):
        body = os.urandom(MIB)
        offset = taken.place(body)
        assert offset is not None
        frame = offered.take(offset, MIB)
    assert frame == body
    offered.close_descriptor()


async def test_a_forked_child_unmaps_the_memory_and_its_parent_goes_on():
    body = os.urandom(MIB)
    async with streams() as (here, there, offered, _):
        child = os.fork()
        if child == 0:
            os._exit(0 if offered._mapping.closed else 1)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222
        assert here.send_nowait((body,))
        assert await received(there, 1) == [[body]]
        assert len(offered._places) == 1


# -- by random histories ---------------------------------------------------------


SIZES = st.sampled_from((PLACE_FROM_BYTES, 36 * KIB, 70 * KIB))

KEPT_MOST = 8
"""So that it takes no time to look at all of it after each step."""


class SharedMachine(RuleBasedStateMachine):
    """Two ends of one memory.  One places frames in it; the other takes them, says how many it
    has taken, and keeps what it took for as long as it likes.  Whatever is given back and used
    again meanwhile, all that is kept stays as it was sent."""

    here: SharedMemory
    there: SharedMemory

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.wire: deque[tuple[int, bytes]] = deque()
        """Frames on their way: the offset of each, and what was sent."""
        self.kept: list[tuple[Any, bytes]] = []
        """Frames that were taken, with what was sent."""

    @initialize(offers=st.booleans())
    def open(self, offers: bool) -> None:
        offered, taken = pair()
        offered.acknowledged(taken.acknowledge())
        self.here, self.there = (offered, taken) if offers else (taken, offered)

    @precondition(lambda self: len(self.kept) < KEPT_MOST)
    @rule(sizes=st.lists(SIZES, min_size=1, max_size=4))
    def send(self, sizes: list[int]) -> None:
        """Frames go out together; one without a place goes inline, and is not followed."""
        for size in sizes:
            self.sent += 1
            body = self.sent.to_bytes(4, "big") * (size // 4)
            offset = self.here.place(body)
            if offset is not None:
                self.wire.append((offset, body))

    @precondition(lambda self: self.wire)
    @rule(count=st.integers(1, 3))
    def take(self, count: int) -> None:
        """The other end takes some of them, and keeps them."""
        for _ in range(min(count, len(self.wire))):
            offset, body = self.wire.popleft()
            self.kept.append((self.there.take(offset, len(body)), body))

    @rule()
    def say(self) -> None:
        """The other end says how many it has taken."""
        if command := self.there.acknowledge():
            self.here.acknowledged(command)

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, KEPT_MOST))
    def free(self, which: int) -> None:
        """One outcome is finished; the others stay."""
        del self.kept[which % len(self.kept)]

    @invariant()
    def what_is_kept_is_what_was_sent(self) -> None:
        assert all(frame == body for frame, body in self.kept), "a kept frame has changed"

    def teardown(self) -> None:
        for end in (self.here, self.there):
            end.close_descriptor()  # the mapping goes with its last user


def test_kept_frames_do_not_change_when_others_are_freed() -> None:
    few = settings(max_examples=30, stateful_step_count=30, derandomize=True, database=None)
    run_state_machine_as_test(SharedMachine, settings=few)


# -- memory that is broken on purpose: the machine must catch each ------------------


Patch = pytest.MonkeyPatch


def takes_without_a_copy(patch: Patch) -> None:
    take = SharedMemory.take

    def view(self: Any, offset: int, size: int) -> memoryview:
        take(self, offset, size)
        seen: memoryview = self._in[offset : offset + size].toreadonly()
        return seen

    patch.setattr(SharedMemory, "take", view)


def frees_the_newest_place(patch: Patch) -> None:
    def free(self: Any, count: int) -> None:
        for _ in range(count):
            self._used.pop()

    patch.setattr(Places, "free", free)


def frees_all_places_with_the_first(patch: Patch) -> None:
    patch.setattr(Places, "free", lambda self, count: self._used.clear() if count else None)


def frees_a_place_before_it_is_taken(patch: Patch) -> None:
    find = Places.find

    def forget(self: Any, size_bytes: int) -> int | None:
        if len(self) > 1:
            self._used.popleft()
        return find(self, size_bytes)

    patch.setattr(Places, "find", forget)
    patch.setattr(Places, "free", lambda self, count: None)


def a_place_is_a_page_too_short(patch: Patch) -> None:
    find = Places.find

    def short(self: Any, size_bytes: int) -> int | None:
        offset = find(self, size_bytes)
        if offset is not None:
            self._used[-1] = offset, self._used[-1][1] - 4096
        return offset

    patch.setattr(Places, "find", short)


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "a frame is kept without a copy": takes_without_a_copy,
    "the newest place is freed first": frees_the_newest_place,
    "all places are freed with the first": frees_all_places_with_the_first,
    "a place is free before its frame was taken": frees_a_place_before_it_is_taken,
    "a place is a page too short": a_place_is_a_page_too_short,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_catches(name: str, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    generate = settings(
        max_examples=200, stateful_step_count=30, phases=[Phase.generate], derandomize=True,
        database=None, report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises(AssertionError, match="has changed"):
        run_state_machine_as_test(SharedMachine, settings=generate)
