"""Long work on values, in threads that let the event loop run in between.

Theory of operation
-------------------
A thread alone would not help: values are decoded and encoded under the interpreter
lock, and a loop that competes for it at each system call makes some 200 of them a
second.  So the work is done in pieces (:mod:`trio_envserve.core.values`), and after
each ``_TURN_S`` of work the thread waits until the loop has had a whole turn.  It
notices a cancel there, too.

There are few of these threads, because each takes its share of the lock; further
work waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar, final

import trio

T = TypeVar("T")

_TURN_S = 0.002
"""Time for which the work goes on before the loop has a turn, in seconds.  It makes another rollout
some milliseconds slower. A turn costs 0.1 ms."""

_THREADS = 2


@final
class Threads:
    """The threads for one shell's long work."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def run(self, work: Callable[[Callable[[], None]], T]) -> T:
        """Run ``work``, which calls its argument between its pieces.

        If the calling scope is cancelled, that call raises ``trio.Cancelled``, and so
        does this method, whatever ``work`` did with the exception.
        """
        turns = _Turns()

        def in_thread() -> T:
            try:
                return work(turns)
            finally:
                if turns.cancelled is not None:
                    raise turns.cancelled

        return await trio.to_thread.run_sync(in_thread, limiter=self._limiter)


def after(pause: Callable[[], None], read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Reader of a part of JSON that pauses before it reads."""

    def read_after(part: Any) -> Any:
        pause()
        return read(part)

    return read_after


@final
class _Turns:
    """Gives the loop a turn when one is due."""

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
        trio.from_thread.run_sync(lambda: None)  # a turn of the loop, for its other tasks
        self._last_s = time.perf_counter()
