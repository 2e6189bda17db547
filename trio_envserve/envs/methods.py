"""Calls of a rollout object's methods: plain ones in a thread, coroutines on the loop.

Theory of operation
-------------------
No two methods of one object run at once, and a rollout has not ended before the last of
them has.  A plain method runs in a thread, which nothing can stop: one that takes too
long is *overdue*, the caller is told so, further calls are refused until the thread
has ended, and :meth:`Methods.settle` waits for that.  A coroutine that takes too long is
cancelled.  This is for environments on trio; ``methods_asyncio`` has the others.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import math
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, final

import trio

from .. import foreign
from ..foreign import CodeResult


class TookTooLong(Exception):
    """A method did not end in the time that it was given."""


class StillRunning(Exception):
    """An earlier method of the object is overdue, so this one was not called."""


def same(value: Any) -> Any:
    """The value itself."""
    return value


Then: TypeAlias = Callable[[Any], Any]
"""A function of a method's value, called where the method runs."""


class Methods(Protocol):
    """Calls the methods of one object."""

    async def call(
        self, method: Callable[[], Any], *, then: Then = same, timeout_s: float = math.inf
    ) -> CodeResult:
        """Call a method to its end.  The error is the method's own, or
        :class:`TookTooLong` or :class:`StillRunning`.  Raises only what cancels the
        caller, after the method has ended."""
        ...

    async def settle(self) -> None:
        """Wait until no method runs, though the caller is cancelled."""
        ...

    async def close(self, method: Callable[[], Any], timeout_s: float) -> CodeResult:
        """Call a method, though the caller is cancelled."""
        ...


@final
class TrioMethods:
    """For a rollout that runs on trio."""

    def __init__(self) -> None:
        self._overdue: trio.Event | None = None

    async def call(
        self, method: Callable[[], Any], *, then: Then = same, timeout_s: float = math.inf
    ) -> CodeResult:
        """See :meth:`Methods.call`."""
        if self._overdue is not None and not self._overdue.is_set():
            return CodeResult(error=StillRunning())
        self._overdue = None
        if not inspect.iscoroutinefunction(method):
            ended = await self._thread(method, then, timeout_s)
            if not isinstance(ended.value, Unfinished):
                return ended
            method = ended.value.get
        with trio.move_on_after(timeout_s) as scope:
            ended = await foreign.acall(awaited, method, then)
        await trio.lowlevel.checkpoint_if_cancelled()
        if scope.cancel_called and ended.error is not None:
            return CodeResult(error=TookTooLong())
        return ended

    async def _thread(self, method: Callable[[], Any], then: Then, timeout_s: float) -> CodeResult:
        await trio.lowlevel.checkpoint_if_cancelled()
        done, token = trio.Event(), trio.lowlevel.current_trio_token()
        ended: list[CodeResult] = []
        context, pid = contextvars.copy_context(), os.getpid()

        def run() -> None:
            ended.append(context.run(in_thread, method, then, pid))

        def deliver(_: object) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        # No limiter: there is one such thread for each rollout, and the worker bounds those.
        trio.lowlevel.start_thread_soon(run, deliver)
        try:
            with trio.move_on_after(timeout_s):
                await done.wait()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await done.wait()
            raise
        if ended:
            return ended[0]
        self._overdue = done
        return CodeResult(error=TookTooLong())

    async def settle(self) -> None:
        """See :meth:`Methods.settle`."""
        if self._overdue is not None:
            with trio.CancelScope(shield=True):
                await self._overdue.wait()

    async def close(self, method: Callable[[], Any], timeout_s: float) -> CodeResult:
        """See :meth:`Methods.close`."""
        with trio.CancelScope(shield=True):
            ended = await self.call(method, timeout_s=timeout_s)
        return ended


@final
class Unfinished:
    """The result of a plain function that needs the loop to be awaited."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        """The awaitable."""
        return self._value


def in_thread(method: Callable[[], Any], then: Then, pid: int) -> CodeResult:
    """Call a plain function in a thread, to its end; ``pid`` is that of this process."""
    ended = foreign.call(_called, method, then)
    if os.getpid() != pid:
        os._exit(os.EX_SOFTWARE)  # a forked child that has returned must do nothing more
    return ended


def _called(method: Callable[[], Any], then: Then) -> Any:
    value = method()
    return Unfinished(value) if inspect.isawaitable(value) else then(value)


async def awaited(method: Callable[[], Any], then: Then) -> Any:
    """Call a coroutine function to its end."""
    return then(await method())
