"""Pickles of which large buffers, such as those of arrays, travel in a file beside them.

Theory of operation
-------------------
Protocol 5 of ``pickle`` gives the buffers of arrays apart from the pickle.  They are written to a
file in memory, once; the reader maps the file and copies nothing: a page is copied only when
somebody writes to it.  Such a file must not change afterwards, so it is used once.

Nothing heavy is imported here: processes for calls apart pay for it.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

LARGE_BYTES = 64 * 1024
"""Length from which on a buffer travels beside the pickle: a shorter one is copied sooner."""
ALIGNED_BYTES = mmap.ALLOCATIONGRANULARITY
"""The place of each buffer in its file is a multiple of this."""

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Place and length of each buffer in a file."""


def dump(value: Any, *, beside: bool) -> tuple[bytes, list[memoryview]]:
    """The pickle of a value, and its large buffers if these may travel beside it.  Raises what the
    value's own code raises."""
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Keep a buffer that is to travel beside the pickle; True if it stays in it."""
        raw = buffer.raw()
        if not beside or raw.nbytes < LARGE_BYTES:
            return True
        buffers.append(raw)
        return False

    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=keep), buffers


def write(file: int, at: int, buffers: Sequence[memoryview]) -> Spans:
    """Write buffers to a file from a place on; where they are."""
    spans = []
    for buffer in buffers:
        at = -(-at // ALIGNED_BYTES) * ALIGNED_BYTES
        spans.append((at, buffer.nbytes))
        done = 0
        while done < buffer.nbytes:
            done += os.pwrite(file, buffer[done:], at + done)
        at += buffer.nbytes
    return spans


def mapped(file: int, spans: Spans) -> list[memoryview]:
    """The buffers that are in a file, of which nothing is read yet.  They may be written to, and
    are nobody else's."""
    if not spans:
        return []
    begin, end = spans[0][0], sum(spans[-1])
    view = memoryview(mmap.mmap(file, end - begin, access=mmap.ACCESS_COPY, offset=begin))
    return [view[at - begin : at - begin + length] for at, length in spans]
