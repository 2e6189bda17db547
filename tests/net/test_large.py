"""The memory of large frames: while they arrive, and when it is used again."""

from __future__ import annotations

import gc
import mmap
import random

import pytest

from trio_envserve.core.limits import KIB, MIB
from trio_envserve.net.framing import (
    GROW_BYTES,
    LONG,
    MAPPED_BYTES,
    REMEMBERED_BYTES,
    SPARE_MOST,
    SWEPT_AFTER,
    Decoder,
    FrameLimits,
    LargeFrame,
    SpareMemory,
)

FIRST_BYTES = 64 * KIB


def arrived(size: int, portion: int) -> tuple[LargeFrame, bytes]:
    """A frame that has come in portions, and what was sent."""
    sent = random.Random(size).randbytes(size)
    large = LargeFrame(sent[:10], size, FIRST_BYTES)
    at = 10
    while view := large.buffer():
        some = sent[at : at + min(portion, len(view))]
        view[: len(some)] = some
        large.received(len(some))
        at += len(some)
        assert large.room <= max(FIRST_BYTES, 2 * at, at + GROW_BYTES)
    return large, sent


@pytest.mark.parametrize("portion", [1000, 64 * KIB, MIB])
@pytest.mark.parametrize(
    "size", [FIRST_BYTES - 1, FIRST_BYTES, MIB + 1, MAPPED_BYTES, MAPPED_BYTES + 1, 9 * MIB + 7]
)
def test_a_frame_is_what_was_sent(size: int, portion: int):
    large, sent = arrived(size, portion)
    assert large.is_whole
    frame = large.frame()
    assert frame == sent
    assert frame.readonly


def test_a_system_without_mappings_of_that_size_takes_frames_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    def refused(*args: object, **kwargs: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    large, sent = arrived(9 * MIB, MIB)
    assert large.frame() == sent


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages")
def test_huge_pages_are_asked_for_and_done_without(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    class Mapping(mmap.mmap):
        def madvise(self, option: int, *part: int) -> None:
            asked.append(option)
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Mapping)
    large, sent = arrived(9 * MIB, MIB)
    assert large.frame() == sent
    assert asked == [mmap.MADV_HUGEPAGE]


def test_a_buffer_of_tens_of_megabytes_was_copied_to_grow():
    """At 32 MiB that took up to 127 ms of a turn of the loop (A6)."""
    size = 64 * MIB
    large = LargeFrame(b"", size, FIRST_BYTES)
    memories: list[object] = []
    while view := large.buffer():
        if large.room <= MAPPED_BYTES:  # who claims much has no mapping for it at once
            assert isinstance(view.obj, bytearray)
        elif not memories or view.obj is not memories[-1]:
            memories.append(view.obj)
        large.received(len(view))
    (memory,) = memories
    assert isinstance(memory, mmap.mmap)  # which has its whole size from the beginning
    assert len(memory) == size
    assert large.frame().obj is memory


@pytest.mark.parametrize("came", [0, 1])
def test_a_view_is_good_once(came: int):
    """Whoever still has it would keep the frame's memory from being used again."""
    large = LargeFrame(b"", MIB, FIRST_BYTES)
    view = large.buffer()
    assert len(view) == FIRST_BYTES
    if came:
        large.received(came)
    assert len(large.buffer()) == FIRST_BYTES - came
    with pytest.raises(ValueError, match="released"):
        len(view)


# -- memory that is used again ---------------------------------------------------


def received(spare: SpareMemory, sent: bytes) -> memoryview:
    """A large frame that has come, and may use spare memory."""
    large = LargeFrame(sent[:100], len(sent), FIRST_BYTES, spare)
    while view := large.buffer():
        size = len(view)
        view[:] = sent[large.filled : large.filled + size]
        large.received(size)
    return large.frame()


def memories(size: int) -> list[bytearray | mmap.mmap]:
    """Memory of both kinds."""
    return [bytearray(size), mmap.mmap(-1, size)]


@pytest.mark.parametrize("kind", [0, 1])
def test_memory_with_a_view_of_it_is_not_used_again(kind: int):
    spare = SpareMemory()
    memory = memories(MIB)[kind]
    view = memoryview(memory)
    part = view[10:20].toreadonly()
    spare.remember(memory)
    assert spare.find(MIB) is None
    view.release()
    assert spare.find(MIB) is None
    part.release()
    assert spare.find(MIB) is memory
    assert (len(spare), spare.size_bytes) == (0, 0)
    assert len(memory) == MIB
    assert spare.find(MIB) is None  # it was forgotten


def test_memory_is_used_for_frames_of_about_its_size():
    spare = SpareMemory()
    memory = bytearray(9 * KIB)
    spare.remember(memory)
    assert spare.find(9 * KIB + 1) is None
    assert spare.find(8 * KIB - 1) is None
    assert spare.find(8 * KIB) is memory


def test_the_newest_memory_is_used_first():
    spare = SpareMemory()
    some = [bytearray(KIB) for _ in range(3)]
    for memory in some:
        spare.remember(memory)
    held = memoryview(some[2])
    assert [spare.find(KIB) for _ in range(2)] == some[1::-1]
    held.release()


def test_remembered_memory_is_bounded_and_its_room_used_to_the_last_byte():
    spare = SpareMemory(10 * KIB)
    for size_kib, count, total_kib in ((6, 1, 6), (5, 1, 5), (11, 1, 5), (5, 2, 10), (10, 1, 10)):
        spare.remember(bytearray(size_kib * KIB))
        assert (len(spare), spare.size_bytes) == (count, total_kib * KIB)
    assert spare.find(6 * KIB) is None
    for _ in range(2 * SPARE_MOST):
        spare.remember(bytearray(10))
    assert (len(spare), spare.size_bytes) == (SPARE_MOST, 10 * SPARE_MOST)
    spare.clear()
    assert (len(spare), spare.size_bytes) == (0, 0)


def test_unused_memory_is_given_back_together_and_used_memory_kept():
    spare = SpareMemory()
    held = bytearray(KIB)
    view = memoryview(held)
    for memory in (held, bytearray(KIB), bytearray(KIB)):
        spare.remember(memory)
    for _ in range(SWEPT_AFTER):
        assert len(spare) == 3
        spare.sweep()
    assert (len(spare), spare.size_bytes) == (1, KIB)
    spare.sweep()
    view.release()
    spare.sweep()  # from here on it is unused
    assert spare.find(KIB) is held


@pytest.mark.parametrize("size", [REMEMBERED_BYTES, MIB, MAPPED_BYTES + 1, 9 * MIB + 7])
def test_a_frame_comes_into_the_memory_of_an_earlier_one(size: int):
    spare = SpareMemory()
    some, other = random.Random(1).randbytes(size), random.Random(2).randbytes(size)
    frame = received(spare, some)
    memory = frame.obj
    second = received(spare, other)
    assert second.obj is not memory
    assert frame == some  # which is held, and so nobody writes there
    frame.release()
    third = received(spare, other)
    assert third.obj is memory
    assert third == second == other
    assert third.readonly


def test_a_frame_is_as_long_as_it_is_in_memory_that_is_longer():
    spare = SpareMemory()
    received(spare, bytes(MIB)).release()
    shorter = random.Random(3).randbytes(MIB - 1000)
    frame = received(spare, shorter)
    assert memoryview(frame.obj).nbytes == MIB
    assert frame == shorter


def test_a_frame_in_spare_memory_has_room_for_much_at_once():
    spare = SpareMemory()
    received(spare, bytes(MAPPED_BYTES)).release()
    large = LargeFrame(bytes(100), MAPPED_BYTES, FIRST_BYTES, spare)
    large.received(len(large.buffer()))
    assert len(large.buffer()) == GROW_BYTES


def test_a_frame_with_memory_for_all_of_it_looks_for_no_other(monkeypatch: pytest.MonkeyPatch):
    """It would be copied each time it grows."""
    looked: list[int] = []

    def find(self: SpareMemory, size: int) -> None:
        looked.append(large.filled)

    monkeypatch.setattr(SpareMemory, "find", find)
    large = LargeFrame(b"", 9 * MIB, FIRST_BYTES, SpareMemory())
    while view := large.buffer():
        large.received(len(view))
    assert looked == [FIRST_BYTES << power for power in range(7)]  # the last is MAPPED_BYTES


def test_a_claimed_size_holds_no_spare_memory():
    """A peer that sends the head of a large frame, and not more than fits into its first
    buffer, holds no more than that."""
    spare = SpareMemory()
    received(spare, bytes(MIB)).release()
    large = LargeFrame(bytes(100), MIB, FIRST_BYTES, spare)
    large.received(len(large.buffer()) - 1)
    large.buffer()
    assert large.room == FIRST_BYTES
    assert len(spare) == 1


def test_small_frames_leave_nothing_to_remember():
    spare = SpareMemory()
    frame = received(spare, bytes(REMEMBERED_BYTES - 1))
    assert len(frame) == REMEMBERED_BYTES - 1
    assert len(spare) == 0


def test_a_connection_that_ends_within_a_frame_takes_its_memory_with_it():
    spare = SpareMemory()
    received(spare, bytes(MIB)).release()
    decoder = Decoder(FrameLimits(frame_bytes=MIB, message_bytes=MIB, frames=1), spare=spare)
    decoder.feed(bytes((LONG,)) + MIB.to_bytes(8, "big") + bytes(FIRST_BYTES))
    assert decoder.take(1) == []
    assert decoder.buffer()
    assert len(spare) == 0
    del decoder
    gc.collect()
    assert len(spare) == 0
