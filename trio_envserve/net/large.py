"""The memory of a large frame while it arrives.

Theory of operation
-------------------
A peer says how large its frame is, and the bytes come later, or never.  So memory is
taken as they come: a buffer doubles when it is full, and is copied as it grows.

From :data:`MAPPED_BYTES` on the rest of the frame goes into a private memory mapping of
the frame's whole size.  The system gives its pages when they are first written to, so it
grows without a copy.  (To grow a ``bytearray`` at 32 MiB took up to 127 ms of processor
time: the allocator moves it to new memory, page by page.)  Huge pages, where the system
has them for those who ask, make new pages cheap: 64 MiB take 10 ms to fill, and 7 ms in
memory that was in use before.

Where there is spare memory (:mod:`.spare`), a frame that outgrows its first buffer goes on
in that, which neither grows nor is new.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Final

from ..core.limits import KIB, MIB
from .spare import Memory, SpareMemory

GROW_BYTES: Final = 2 * MIB
"""By how much the buffer grows at most: new memory takes time."""

MAPPED_BYTES: Final = 4 * MIB
"""The largest buffer that is copied when it grows."""

REMEMBERED_BYTES: Final = 128 * KIB
"""Memory of smaller frames is not used again: it grows once at most."""

_ZEROS: Final = bytes(64 * KIB)
"""Added to a buffer to make it grow."""


class LargeFrame:
    """A large frame that arrives."""

    __slots__ = ("_memory", "_spare", "_view", "filled", "room", "size")

    def __init__(
        self, head: bytes, size: int, first_bytes: int, spare: SpareMemory | None = None
    ) -> None:
        self.size = size
        """The bytes of the whole frame."""
        self.filled = len(head)
        """How many are there."""
        self.room = min(size, max(first_bytes, len(head)))
        """How many count as taken by the frame, because they have come or may come next."""
        self._spare = spare
        self._memory: Memory = bytearray(head)
        self._view: memoryview | None = None
        self._extend()

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there."""
        return self.filled == self.size

    def buffer(self) -> memoryview:
        """Where to put the next bytes; empty if the frame is whole."""
        if self._view is not None:
            self._view.release()  # nothing came
        if self.filled == self.room < self.size:
            self._grow()
        self._view = memoryview(self._memory)[self.filled : self.room]
        return self._view

    def received(self, size: int) -> None:
        """So many bytes were written at the beginning of :meth:`buffer`."""
        assert self._view is not None
        self._view.release()  # an exported buffer could not grow
        self.filled += size

    def frame(self) -> memoryview:
        """The whole frame; asked for once.  When its last view is gone, its memory may be
        used for another one."""
        if self._spare is not None and self.size >= REMEMBERED_BYTES:
            self._spare.remember(self._memory)
        return memoryview(self._memory)[: self.size].toreadonly()

    def _grow(self) -> None:
        if self._spare is not None and len(self._memory) < self.size:
            spare = self._spare.find(self.size)
            if spare is not None:
                spare[: self.filled] = self._memory[: self.filled]
                self._memory = spare
        if len(self._memory) >= self.size:
            self.room = min(self.size, self.room + GROW_BYTES)
            return
        self.room = min(self.size, self.room + min(self.room, GROW_BYTES))
        if self.room > MAPPED_BYTES:
            self._memory = self._mapped() or self._memory
        self._extend()

    def _extend(self) -> None:
        while len(self._memory) < self.room:
            assert isinstance(self._memory, bytearray)  # a mapping has its whole size
            self._memory += _ZEROS[: self.room - len(self._memory)]

    def _mapped(self) -> mmap.mmap | None:
        """The frame's own mapping, with what is there; None if the system grants none."""
        try:
            mapped = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            return None
        with contextlib.suppress(OSError, AttributeError):  # it has no huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
        mapped[: self.filled] = self._memory[: self.filled]
        return mapped
