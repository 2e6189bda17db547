"""Calls of a rollout object's methods, for rollouts that run on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Callable
from typing import Any, final

from .. import foreign
from ..foreign import CodeResult
from .methods import PlainCalls, StillRunning, Then, TookTooLong, Unfinished, awaited, same


@final
class AsyncioMethods:
    """For a rollout that runs on asyncio, which delivers a cancel once."""

    def __init__(self, plain: PlainCalls) -> None:
        self._plain = plain
        self._overdue: asyncio.Future[CodeResult] | None = None
        self._used = False

    async def call(
        self, method: Callable[[], Any], *, then: Then = same, timeout_s: float = math.inf
    ) -> CodeResult:
        """See :meth:`Methods.call`."""
        if self._overdue is not None and not self._overdue.done():
            return CodeResult(error=StillRunning())
        self._overdue = None
        if not inspect.iscoroutinefunction(method):
            ended = await self._plainly(method, then, timeout_s)
            if not isinstance(ended.value, Unfinished):
                return ended
            method = ended.value.get
        running = asyncio.ensure_future(foreign.acall(awaited, method, then))
        try:
            await asyncio.wait((running,), timeout=_for_asyncio(timeout_s))
        finally:
            in_time = running.done()
            running.cancel()
            await asyncio.wait((running,))  # noqa: ASYNC102
        # A value counts, though it came while the method was cancelled.
        ended = running.result()
        return ended if in_time or ended.error is None else CodeResult(error=TookTooLong())

    async def _plainly(self, method: Callable[[], Any], then: Then, timeout_s: float) -> CodeResult:
        running = self._begun(method, then)
        try:
            await asyncio.wait((running,), timeout=_for_asyncio(timeout_s))
        except asyncio.CancelledError:
            await asyncio.wait((running,))  # noqa: ASYNC102
            raise
        if running.done():
            return running.result()
        self._overdue = running
        return CodeResult(error=TookTooLong())

    def _begun(self, method: Callable[[], Any], then: Then) -> asyncio.Future[CodeResult]:
        """The call of a plain method; nothing cancels this future."""
        loop = asyncio.get_running_loop()
        running: asyncio.Future[CodeResult] = loop.create_future()

        def deliver(result: CodeResult) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(running.set_result, result)

        self._used = True
        self._plain.call(method, then, deliver)
        return running

    async def settle(self) -> None:
        """See :meth:`Methods.settle`."""
        if self._overdue is not None:
            await _to_its_end(self._overdue)

    async def close(self, method: Callable[[], Any], timeout_s: float) -> CodeResult:
        """See :meth:`Methods.close`."""
        return await _to_its_end(asyncio.ensure_future(self.call(method, timeout_s=timeout_s)))

    async def end(self, last: Callable[[], Any]) -> None:
        """See :meth:`Methods.end`."""
        if not self._used:
            last()
            return
        try:
            await _to_its_end(self._begun(last, same))
        finally:
            self._plain.end()


async def _to_its_end(running: asyncio.Future[CodeResult]) -> CodeResult:
    """Wait for it; a cancel that comes meanwhile is raised after that."""
    try:
        await asyncio.wait((running,))
    except asyncio.CancelledError:
        await asyncio.wait((running,))  # noqa: ASYNC102
        raise
    return running.result()


def _for_asyncio(timeout_s: float) -> float | None:
    return None if math.isinf(timeout_s) else timeout_s
