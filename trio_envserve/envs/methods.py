"""Calls of a rollout object's methods: plain ones in one thread, coroutines on the loop.

Theory of operation
-------------------
No two methods of one object run at once, and a rollout has not ended before the last of
them has.  All plain methods of an object run in one thread, which is the object's own and
ends with it: connections of SQLite, greenlets and Playwright belong to a thread, and so do
thread-locals.  Context variables that one method sets are there in the next one.

Nothing can stop a thread.  A method that takes too long is *overdue*: the caller is told
so, further calls are refused until it has ended, and :meth:`Methods.settle` waits for that.
A coroutine that takes too long is cancelled.  This is for environments on trio;
``methods_asyncio`` has the others.

Code that handles signals needs the main thread of its process, which is that of trio's loop.
:class:`MainThread` calls plain methods there, and the loop stands still meanwhile.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import math
import os
import queue
import threading
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

    async def end(self, last: Callable[[], Any]) -> None:
        """Call ``last``, which raises nothing, where plain methods run, though the caller is
        cancelled.  The object's thread ends with it."""
        ...


class PlainCalls(Protocol):
    """Where the plain methods of an object are called."""

    def call(
        self, method: Callable[[], Any], then: Then, done: Callable[[CodeResult], None]
    ) -> None:
        """Call a method after those before it.  ``done`` is called once it has ended, in
        its thread, and must not raise."""
        ...

    def end(self) -> None:
        """No call follows."""
        ...


@final
class ObjectThread:
    """The thread of one object: begins with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] | None = None
        self._kept = _Kept()

    def call(
        self, method: Callable[[], Any], then: Then, done: Callable[[CodeResult], None]
    ) -> None:
        """See :meth:`PlainCalls.call`."""
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            # Not of a cache of threads: what one object leaves in its thread (a loop that
            # runs, thread-locals) is not for the next one.  A daemon: it never holds up the
            # end of the process.
            threading.Thread(
                target=_take, args=(self._calls,), name=self._name or None, daemon=True
            ).start()
        caller, pid, kept = contextvars.copy_context(), os.getpid(), self._kept

        def run() -> None:
            done(kept.run(caller, plainly, method, then, pid))

        self._calls.put(run)

    def end(self) -> None:
        """See :meth:`PlainCalls.end`."""
        if self._calls is not None:
            self._calls.put(None)


def _take(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # its object is not kept alive while the thread waits for the next one


@final
class MainThread:
    """For an object whose methods need the main thread, which is the caller's."""

    def __init__(self) -> None:
        self._kept = _Kept()

    def call(
        self, method: Callable[[], Any], then: Then, done: Callable[[CodeResult], None]
    ) -> None:
        """See :meth:`PlainCalls.call`."""
        caller = contextvars.copy_context()
        done(self._kept.run(caller, plainly, method, then, os.getpid()))

    def end(self) -> None:
        """See :meth:`PlainCalls.end`."""


@final
class _Kept:
    """The context variables of an object's plain methods.

    They begin as those of the first caller.  What a later caller has changed since (the span
    that it has opened, say) is there during its call.
    """

    def __init__(self) -> None:
        self._first: contextvars.Context | None = None
        self._context: contextvars.Context | None = None

    def run(self, caller: contextvars.Context, function: Callable[..., Any], *args: Any) -> Any:
        if self._first is None or self._context is None:
            self._first, self._context = caller, caller.copy()
        return self._context.run(self._with, caller, function, *args)

    def _with(self, caller: contextvars.Context, function: Callable[..., Any], *args: Any) -> Any:
        assert self._first is not None
        first, nothing = self._first, object()
        set_ = [
            (variable, variable.set(value))
            for variable, value in caller.items()
            if first.get(variable, nothing) is not value
        ]
        try:
            return function(*args)
        finally:
            for variable, token in set_:
                variable.reset(token)


@final
class TrioMethods:
    """For a rollout that runs on trio."""

    def __init__(self, plain: PlainCalls) -> None:
        self._plain = plain
        self._overdue: trio.Event | None = None
        self._used = False

    async def call(
        self, method: Callable[[], Any], *, then: Then = same, timeout_s: float = math.inf
    ) -> CodeResult:
        """See :meth:`Methods.call`."""
        if self._overdue is not None and not self._overdue.is_set():
            return CodeResult(error=StillRunning())
        self._overdue = None
        if not inspect.iscoroutinefunction(method):
            ended = await self._plainly(method, then, timeout_s)
            if not isinstance(ended.value, Unfinished):
                return ended
            method = ended.value.get
        with trio.move_on_after(timeout_s) as scope:
            ended = await foreign.acall(awaited, method, then)
        await trio.lowlevel.checkpoint_if_cancelled()
        if scope.cancel_called and ended.error is not None:
            return CodeResult(error=TookTooLong())
        return ended

    async def _plainly(self, method: Callable[[], Any], then: Then, timeout_s: float) -> CodeResult:
        await trio.lowlevel.checkpoint_if_cancelled()
        done, token = trio.Event(), trio.lowlevel.current_trio_token()
        ended: list[CodeResult] = []

        def deliver(result: CodeResult) -> None:
            ended.append(result)
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        self._used = True
        self._plain.call(method, then, deliver)
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

    async def end(self, last: Callable[[], Any]) -> None:
        """See :meth:`Methods.end`."""
        if not self._used:
            last()
            return
        with trio.CancelScope(shield=True):
            await self._plainly(last, same, math.inf)
        self._plain.end()


@final
class Unfinished:
    """The result of a plain function that needs the loop to be awaited."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        """The awaitable."""
        return self._value


_SIGNALS = "signal only works in main thread"
_ADVICE = (
    "Plain methods run in a thread of their object's own. Say main_thread = True on the class: "
    "then they run in the main thread, where signals work, and a worker runs one rollout at a "
    "time."
)


def plainly(method: Callable[[], Any], then: Then, pid: int) -> CodeResult:
    """Call a plain function, to its end; ``pid`` is that of this process."""
    ended = foreign.call(_called, method, then)
    if os.getpid() != pid:
        os._exit(os.EX_SOFTWARE)  # a forked child that has returned must do nothing more
    if ended.error is not None and _SIGNALS in (foreign.text(ended.error) or ""):
        foreign.call(BaseException.add_note, ended.error, _ADVICE)
    return ended


def _called(method: Callable[[], Any], then: Then) -> Any:
    value = method()
    return Unfinished(value) if inspect.isawaitable(value) else then(value)


async def awaited(method: Callable[[], Any], then: Then) -> Any:
    """Call a coroutine function to its end."""
    return then(await method())
