"""The memory of large frames: while they arrive, and when it is used again.

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

New memory is dear all the same: for a frame of 16 MB it costs more than to receive it.  So the
memory of frames that were given out is remembered (:class:`SpareMemory`), and once nobody holds a
view of it any more, another frame of about that size that outgrows its first buffer goes on in it.
The spare buffers are bounded in bytes and in number, and a buffer that was not used for two sweeps
is given back to the system.  They count for no connection: a peer that begins a large frame and
stops holds memory that was there before.  A frame has at most an eighth more memory than it needs,
so that its holder keeps little else in memory.

Pure: no sockets, no trio, no clock.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Final, TypeAlias, final

from ..core.limits import KIB, MIB

Memory: TypeAlias = "bytearray | mmap.mmap"

SPARE_BYTES: Final = 64 * MIB
"""The most that is remembered, in use or not: as much as an allocator keeps freed."""

SPARE_MOST: Final = 64
"""Most buffers that are remembered, so that searching them takes no time."""

SWEPT_AFTER: Final = 2
"""Number of sweeps without use after which memory goes back to the system."""

_WASTE_PART: Final = 8
"""A frame's memory may be larger by an eighth."""

GROW_BYTES: Final = 2 * MIB
"""Most bytes by which the buffer grows at a time: new memory takes time."""

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
        """Number of bytes that have arrived."""
        self.room = min(size, max(first_bytes, len(head)))
        """Number of bytes that count as taken by the frame, because they have arrived or may arrive
        next."""
        self._spare = spare
        self._memory: Memory = bytearray(head)
        self._view: memoryview | None = None
        self._extend()

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there."""
        return self.filled == self.size

    def buffer(self) -> memoryview:
        """The part of the buffer for the next bytes; empty if the frame is whole."""
        if self._view is not None:
            self._view.release()  # nothing came
        if self.filled == self.room < self.size:
            self._grow()
        self._view = memoryview(self._memory)[self.filled : self.room]
        return self._view

    def received(self, size: int) -> None:
        """Note that this number of bytes was written at the beginning of :meth:`buffer`."""
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


@final
class _Spare:
    """Memory that was given out, and perhaps has come back."""

    __slots__ = ("memory", "sweeps")

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.sweeps = 0
        """Number of sweeps that have found it unused."""

    def is_free(self) -> bool:
        """Whether nobody has a view of it: then, and only then, can it be resized."""
        memory = self.memory
        try:
            if isinstance(memory, bytearray):
                memory.append(memory.pop())
            else:
                memory.resize(len(memory))
        except BufferError:
            return False
        return True


@final
class SpareMemory:
    """The memory of large frames that one socket has received.

    Invariant: at most ``most_bytes`` in at most :data:`SPARE_MOST` parts.
    """

    def __init__(self, most_bytes: int = SPARE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._spares: list[_Spare] = []
        """The one that was remembered first comes first."""
        self.size_bytes = 0
        """The sum of what is remembered."""

    def __len__(self) -> int:
        return len(self._spares)

    def find(self, size: int) -> Memory | None:
        """Memory for a frame of this size, which is forgotten here; None if there is none."""
        most = size + size // _WASTE_PART
        # The newest first: it is the likeliest to be in the processor's cache.
        for index in range(len(self._spares) - 1, -1, -1):
            spare = self._spares[index]
            if size <= len(spare.memory) <= most and spare.is_free():
                self._forget(index)
                return spare.memory
        return None

    def remember(self, memory: Memory) -> None:
        """Use this again, once nobody has a view of it.  The oldest is forgotten for it."""
        size = len(memory)
        if size > self._most_bytes:
            return
        while len(self._spares) == SPARE_MOST or self.size_bytes + size > self._most_bytes:
            self._forget(0)
        self._spares.append(_Spare(memory))
        self.size_bytes += size

    def sweep(self) -> None:
        """Give back what was free for :data:`SWEPT_AFTER` sweeps; call it now and then."""
        for index in range(len(self._spares) - 1, -1, -1):
            spare = self._spares[index]
            spare.sweeps = spare.sweeps + 1 if spare.is_free() else 0
            if spare.sweeps >= SWEPT_AFTER:
                self._forget(index)

    def clear(self) -> None:
        """Forget everything."""
        self._spares.clear()
        self.size_bytes = 0

    def _forget(self, index: int) -> None:
        self.size_bytes -= len(self._spares.pop(index).memory)
