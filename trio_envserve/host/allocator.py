"""Settings of glibc's allocator, in this project's own processes.

By default glibc gives freed blocks of megabytes back to the system at once, and the
system fills each page of the next block with zeros again.  For bodies of 1 MB this
costs more than everything else.  With these thresholds a process keeps up to 64 MiB of
freed memory.  Worker processes get them as environment variables (a variable that is
set already wins), and the process of the ``serve`` command calls :func:`keep_freed_memory`;
a program that embeds a server, or asks one, decides for itself.  Other allocators ignore
them.
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
    """Have this process keep up to 64 MiB of memory that it has freed.

    By default glibc's allocator gives large blocks back to the system at once, and new ones
    cost more than all else that is done with a body of megabytes.  The command ``serve`` and
    workers have this setting.  It is for the whole process, so a program that asks a server, or
    has one inside, decides whether to call this, best at its start.  What the environment
    variables ``MALLOC_TRIM_THRESHOLD_`` and ``MALLOC_MMAP_THRESHOLD_`` set stays as it is;
    other allocators take no notice.
    """
    with contextlib.suppress(AttributeError, OSError):  # there is no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for name, (parameter, size) in _THRESHOLDS.items():
            if name not in os.environ:
                mallopt(parameter, size)
