"""The way of deltas from executions, in any thread, to the core on the trio loop.

Theory of operation
-------------------
The environment's code is never slowed, so it may say more than the loop takes.  Deltas that wait
for the loop are therefore bounded, for all executions of a worker together, by the most that the
core would send between two beats.  Deltas past that bound are dropped and only counted; the next
delta of the execution has their count.

The loop takes no lock here; the lock is for threads among themselves.

All backends use it.  Code on the trio loop, too, may make a delta at any moment (a finalizer in the
middle of a decision of the core), or in a thread of its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import final

import trio

from ..core.worker import DELTA_BYTES, DELTA_RECORD_BYTES, DELTAS_BYTES, DeltaMade
from .forks import end_if_forked


@final
class Deltas:
    """The deltas of one worker's executions, until ``take`` gets them on the trio loop, in the
    order in which they were said."""

    def __init__(self, take: Callable[[list[DeltaMade]], None]) -> None:
        self._take = take
        self._token = trio.lowlevel.current_trio_token()
        self._pid = os.getpid()
        # Reentrant: a finalizer may make a delta while its own thread holds the lock.
        self._lock = threading.RLock()
        self._waiting: deque[DeltaMade] = deque()
        self._added_bytes = 0
        """Bytes of all deltas that ever waited; written under the lock."""
        self._taken_bytes = 0
        """Bytes of all deltas that wait no more; written by the loop."""
        self.due = False
        """Whether the loop was asked to call :meth:`drain`, and has not yet.  What an execution
        has said, and its loop has not taken, makes it so."""

    def of(self, number: int) -> Callable[[bytes], None]:
        """The function that an execution calls with each piece, in any thread."""
        skipped = 0

        def say(piece: bytes) -> None:
            nonlocal skipped
            end_if_forked(self._pid)
            with self._lock:
                skipped = 0 if self._add(DeltaMade(number, piece, skipped)) else skipped + 1

        return say

    def _add(self, made: DeltaMade) -> bool:
        """Queue a delta for the loop; returns False if the bound is reached."""
        added_bytes = self._added_bytes + _size_bytes(made)
        if len(made.payload) > DELTA_BYTES or added_bytes - self._taken_bytes > DELTAS_BYTES:
            return False
        self._added_bytes = added_bytes
        self._waiting.append(made)
        if not self.due:
            self.due = True
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self.drain)
        return True

    def drain(self) -> None:
        """Hand over the waiting deltas.  Only on the trio loop."""
        self.due = False  # first, so that a delta that comes meanwhile asks for another call
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if taken:
            self._taken_bytes += sum(map(_size_bytes, taken))
            self._take(taken)


def _size_bytes(made: DeltaMade) -> int:
    return DELTA_RECORD_BYTES + len(made.payload)
