"""Memory that the two ends of a stream share, through which large frames travel.

Theory of operation
-------------------
A socket copies a frame into buffers of the system and out of them again, page by page.
Through memory that both processes have mapped, a frame is copied in and out once each,
at a half to a third of the processor time.  The memory is an anonymous file (memfd).
One end makes it, seals its size, and sends its descriptor with its first message.  Each
end then closes the descriptor and keeps the mapping (with which Python before 3.13 keeps
a copy of the descriptor).  Half of the memory is for each direction.

A sender copies a frame into the lowest free place of its half (*place*), and a head
with the size and the offset goes through the stream instead of the frame.  The receiver
checks the range, copies the frame out (*take*), and only then believes it: whatever the
sender writes there afterwards changes nothing.  Frames are taken in the order in which
they were placed, so the receiver need only say how many it has taken; it says so with
whatever it sends next.  If there is no place, the frame goes inline.  So nobody ever
waits for a place, and a receiver that acknowledges nothing harms nobody.

Nothing a peer does to the memory reaches the other end: the size is sealed, so no access
can miss its pages; no offset is used before it is checked; and no more is copied than
the memory has, until the receiver has given that back.

Without memfds (not Linux), descriptors or memory, and where the system promises no more
memory than it has (a page that cannot be had would end the process), there is none, and
all frames go inline.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import sys
from collections import deque
from pathlib import Path
from typing import Any, Final, final

from ..core.limits import KIB, MIB
from .framing import FramingError
from .interface import SentFrame, size_bytes, write_frame

PLACE_FROM_BYTES: Final = 32 * KIB
"""Least bytes of a frame that is placed in shared memory: for smaller ones there is little to
gain."""

HALF_BYTES: Final = 32 * MIB
"""The memory for one direction.  The system gives pages as they are first used."""

PLACES_MOST: Final = 64
"""Most frames that are placed and not taken, so that finding a place takes no time."""

_ALIGNMENT: Final = 4 * KIB
_FREED: Final = b"\x05FREED"
_COUNT: Final = struct.Struct("!I")
_UNTRACKED: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
"""Before Python 3.13 a mapping keeps a copy of the descriptor."""
_POLICY = Path("/proc/sys/vm/overcommit_memory")
_STRICT: Final = b"2"
"""The system promises no more memory than it has."""


@final
class Places:
    """The used parts of one direction's memory.  Pure.

    Invariant: the places are within the size and do not overlap.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._used: deque[tuple[int, int]] = deque()
        """Begin and end of each place, in the order in which they were found."""

    def __len__(self) -> int:
        return len(self._used)

    def find(self, size_bytes: int) -> int | None:
        """Use the lowest free place of this size, whose memory is the likeliest to be in
        the processor's cache; returns its offset, or None if there is none."""
        if len(self._used) >= PLACES_MOST:
            return None
        offset = 0
        for begin, end in sorted(self._used):
            if begin - offset >= size_bytes:
                break
            offset = end
        end = offset + -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        if end > self._size_bytes:
            return None
        self._used.append((offset, end))
        return offset

    def free(self, count: int) -> None:
        """The oldest places are free again.  Raises FramingError if there are fewer."""
        if count > len(self._used):
            raise FramingError(f"{count} frames were taken of {len(self._used)}")
        for _ in range(count):
            self._used.popleft()


@final
class SharedMemory:
    """One end's mapping.  Made by :func:`make_memory` and :func:`map_memory`."""

    def __init__(self, descriptor: int, *, offered: bool) -> None:
        self.descriptor = descriptor
        """The descriptor for the other end; -1 once it was closed."""
        self._mapping = mmap.mmap(descriptor, 2 * HALF_BYTES, **_UNTRACKED)
        whole = memoryview(self._mapping)
        halves = whole[:HALF_BYTES], whole[HALF_BYTES:]
        self._out, self._in = halves if offered else halves[::-1]
        self._places = Places(HALF_BYTES)
        self._is_mapped_there = not offered
        """Whether the other end has said that it has the memory, too."""
        self._taken = 0
        """Number of frames that were taken and not given back yet."""
        self._taken_bytes = 0
        self._says_hello = not offered

    def place(self, frame: SentFrame) -> int | None:
        """Copy a frame into the memory; returns its offset, or None: send it inline."""
        size = size_bytes((frame,))
        if size < PLACE_FROM_BYTES or not self._is_mapped_there:
            return None
        offset = self._places.find(size)
        if offset is not None:
            write_frame(frame, self._out, offset)
        return offset

    def take(self, offset: int, size: int) -> memoryview:
        """A copy of a frame that the other end has placed.  Raises FramingError if no
        honest peer could have placed it there."""
        if not size or offset + size > HALF_BYTES:
            raise FramingError(f"a frame of {size} bytes at {offset} of the shared memory")
        if self._taken_bytes + size > HALF_BYTES:
            raise FramingError("more frames in the shared memory than it has room for")
        self._taken += 1
        self._taken_bytes += size
        return memoryview(bytes(self._in[offset : offset + size]))

    def acknowledge(self) -> bytes:
        """The body of a command for the other end, or nothing: what was taken."""
        if not self._taken and not self._says_hello:
            return b""
        command = _FREED + _COUNT.pack(self._taken)
        self._taken = self._taken_bytes = 0
        self._says_hello = False
        return command

    def acknowledged(self, command: bytes) -> None:
        """Take a command of the other end.  Raises FramingError if it makes no sense."""
        if not command.startswith(_FREED) or len(command) != len(_FREED) + _COUNT.size:
            raise FramingError("a command that streams between processes do not have")
        (count,) = _COUNT.unpack_from(command, len(_FREED))
        if bool(count) is not self._is_mapped_there:
            raise FramingError(f"a count of {count} frames that were taken")
        self._is_mapped_there = True
        self._places.free(count)

    def close_descriptor(self) -> None:
        """Close the descriptor: the other end has it, or never will."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def close(self) -> None:
        """Unmap the memory; the frames that were taken stay."""
        self.close_descriptor()
        self._out.release()
        self._in.release()
        self._mapping.close()


def make_memory() -> SharedMemory | None:
    """New memory to be offered to another process; None if it cannot be had."""
    try:
        if _POLICY.read_bytes().strip() == _STRICT:
            return None
        descriptor = os.memfd_create("trio-envserve", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):  # not Linux; no descriptor left
        return None
    try:
        os.ftruncate(descriptor, 2 * HALF_BYTES)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return SharedMemory(descriptor, offered=True)
    except OSError:  # a limit of address space, or of file sizes
        os.close(descriptor)
        return None


def map_memory(descriptor: int) -> SharedMemory | None:
    """The memory that a trusted process has made, whose descriptor is closed here; None
    if it cannot be mapped.  -1: there is none."""
    if descriptor < 0:
        return None
    try:
        memory = SharedMemory(descriptor, offered=False)
    except (OSError, ValueError):  # no address space; another size
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return None
    memory.close_descriptor()
    return memory
