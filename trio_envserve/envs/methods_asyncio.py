"""Calls of a rollout object's methods, for rollouts that run on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Any, final

from ..foreign import CodeResult
from .methods import Methods, Running, T, Then, TookTooLong


@final
class AsyncioMethods(Methods):
    """Methods of a rollout that runs on asyncio, which delivers a cancel once."""

    async def _begin(self, method: Callable[[], Any], then: Then) -> Running:
        loop = asyncio.get_running_loop()
        running: asyncio.Future[CodeResult] = loop.create_future()

        def deliver(result: CodeResult) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(running.set_result, result)

        self._plain.call(method, then, deliver)
        return running

    async def _wait(self, running: Any, timeout_s: float) -> None:
        try:
            await asyncio.wait((running,), timeout=timeout_s)
        except asyncio.CancelledError:
            await end_of(running)  # noqa: ASYNC102
            raise

    async def _awaited(self, method: Awaitable[CodeResult], timeout_s: float) -> CodeResult:
        running = asyncio.ensure_future(method)
        try:
            await asyncio.wait((running,), timeout=timeout_s)
        finally:
            in_time = running.done()
            running.cancel()
            await end_of(running)  # noqa: ASYNC102
        # A value counts, though it came while the method was cancelled.
        ended = running.result()
        return ended if in_time or ended.error is None else CodeResult(error=TookTooLong())

    async def uncancelled(self, work: Callable[[], Awaitable[T]]) -> T:
        """See :meth:`.Methods.uncancelled`."""
        running = asyncio.ensure_future(work())
        await self._wait(running, math.inf)
        return running.result()


async def end_of(running: asyncio.Future[Any]) -> None:
    """Wait for the end, though the task is cancelled, as often as limits of the code's own do."""
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((running,))
