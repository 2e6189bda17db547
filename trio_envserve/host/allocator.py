"""What glibc's allocator is told, in processes that are this project's own.

By default it gives freed blocks of megabytes back to the system at once, and has
each page of the next one filled with zeros again: for bodies of 1 MB that costs
more than everything else that is done with them.  With these thresholds a process
keeps some of what it has had, up to 64 MiB.  They are set for worker processes, by
their environment (which wins if it has others), and in the process of the ``serve``
command; an application that embeds a server decides for itself.
Other allocators take no notice.
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
"""By the name of the variable: the parameter of ``mallopt(3)``, and the value."""

ENVIRON = {name: str(size) for name, (_, size) in _THRESHOLDS.items()}
"""The environment of a process that is to have these thresholds from its start."""


def keep_freed_memory() -> None:
    """Set the thresholds in this process, but for those that its environment sets."""
    with contextlib.suppress(AttributeError, OSError):  # there is no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for name, (parameter, size) in _THRESHOLDS.items():
            if name not in os.environ:
                mallopt(parameter, size)
