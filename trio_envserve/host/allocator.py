"""Settings of glibc's allocator, in this project's own processes.

By default glibc gives freed blocks of megabytes back to the system at once, and the
system fills each page of the next block with zeros again.  For bodies of 1 MB this
costs more than everything else.  With these thresholds a process keeps up to 64 MiB of
freed memory.  Worker processes get them as environment variables (a variable that is
set already wins), and so does the process of the ``serve`` command; a program that
embeds a server decides for itself.  Other allocators ignore them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

from ..core.limits import MIB

_THRESHOLDS = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 64 * MIB),  # free memory at the end of the heap
    "MALLOC_MMAP_THRESHOLD_": (-3, 32 * MIB),  # blocks mapped on their own; glibc's maximum
}
"""The parameter of ``mallopt(3)`` and the value, by the name of the variable."""

ENVIRON = {name: str(size) for name, (_, size) in _THRESHOLDS.items()}
"""Environment variables that set these thresholds from the start of a process."""


def keep_freed_memory() -> None:
    """Set the thresholds in this process, except those that its environment sets."""
    with contextlib.suppress(AttributeError, OSError):  # there is no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for name, (parameter, size) in _THRESHOLDS.items():
            if name not in os.environ:
                mallopt(parameter, size)
