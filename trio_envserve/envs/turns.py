"""Long work on values, in threads that give the loop its turns.

Theory of operation
-------------------
A thread alone would not help: values are decoded and encoded under the interpreter's
lock, and a loop that has to fight for it at each system call does some 200 of them in a
second.  So the work is done in pieces (:mod:`trio_envserve.core.values`), and after
each ``_TURN_S`` of them the thread waits until the loop has had a whole turn.  There a
cancel is seen, too.

There are few of these threads, since each takes its share of the lock; what comes
meanwhile waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar, final

import trio

T = TypeVar("T")

_TURN_S = 0.002
"""How long the work goes on before the loop has a turn: an honest rollout beside it
then takes some milliseconds longer.  A turn costs 0.1 ms."""

_THREADS = 2


@final
class Threads:
    """Where one shell's long work is done."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def run(self, work: Callable[[Callable[[], None]], T]) -> T:
        """Run ``work``, which calls what it is given between its pieces.

        If the calling scope is cancelled, that call raises ``trio.Cancelled``, and so
        does this method, whatever ``work`` made of it.
        """
        turns = _Turns()

        def in_thread() -> T:
            try:
                return work(turns)
            finally:
                if turns.cancelled is not None:
                    raise turns.cancelled

        return await trio.to_thread.run_sync(in_thread, limiter=self._limiter)


@final
class _Turns:
    """Gives the loop a turn, if it is time."""

    def __init__(self) -> None:
        self.cancelled: BaseException | None = None
        self._last_s = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._last_s < _TURN_S:
            return
        try:
            trio.from_thread.check_cancelled()
        except trio.Cancelled as cancelled:
            self.cancelled = cancelled
            raise
        trio.from_thread.run_sync(_nothing)
        self._last_s = time.perf_counter()


def _nothing() -> None:
    """A turn of the loop, in which its other tasks run, too."""
