"""Memory of large frames, to be used again.

Theory of operation
-------------------
New memory is dear: the system fills each page with zeros when it is first touched, and
memory that grows is copied.  For a frame of 16 MB this costs more than to receive it.
So the memory of frames that were given out is remembered, and once nobody holds a view of
it any more, another frame of about that size may have it.

The memory that waits here is bounded in bytes and in number, and what was not used for
two sweeps is given back to the system.  It counts for no connection: a peer that begins a
large frame and does not go on holds memory that was there before.  A frame has at most
an eighth more memory than it needs, so that who keeps it keeps little else.

Pure: no sockets, no trio, no clock.
"""

from __future__ import annotations

import mmap
from typing import Final, TypeAlias, final

from ..core.limits import MIB

Memory: TypeAlias = "bytearray | mmap.mmap"

SPARE_BYTES: Final = 64 * MIB
"""The most that is remembered, in use or not: as much as an allocator keeps freed."""

SPARE_MOST: Final = 64
"""How many are remembered, so that to look through them takes no time."""

SWEPT_AFTER: Final = 2
"""After so many sweeps without use memory goes back to the system."""

_WASTE_PART: Final = 8
"""A frame's memory may be larger by an eighth."""


@final
class _Spare:
    """Memory that was given out, and perhaps has come back."""

    __slots__ = ("memory", "sweeps")

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.sweeps = 0
        """How many sweeps have found it unused."""

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
