"""The memory of large frames while they arrive."""

from __future__ import annotations

import mmap
import random

import pytest

from trio_envserve.core.limits import KIB, MIB
from trio_envserve.net.framing import GROW_BYTES, MAPPED_BYTES, LargeFrame

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
        assert large.space <= max(FIRST_BYTES, 2 * at, at + GROW_BYTES)
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
        if large.space <= MAPPED_BYTES:  # who claims much has no mapping for it at once
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
    """An old view would keep the buffer from growing."""
    large = LargeFrame(b"", MIB, FIRST_BYTES)
    view = large.buffer()
    assert len(view) == FIRST_BYTES
    if came:
        large.received(came)
    assert len(large.buffer()) == FIRST_BYTES - came
    with pytest.raises(ValueError, match="released"):
        len(view)
