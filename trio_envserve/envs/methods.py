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
:class:`PlainCalls` calls plain methods there, and the loop stands still meanwhile.  An alarm that a
method leaves is taken back at its end.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
import functools
import inspect
import math
import os
import queue
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, final

import trio

from .. import foreign
from ..core.stack_frames import named
from ..foreign import CodeResult


class TookTooLong(Exception):
    """A method did not end in the time that it was given."""


class StillRunning(Exception):
    """An earlier method of the object is overdue, so this one was not called."""


def same(value: Any) -> Any:
    """The value itself."""
    return value


T = TypeVar("T")

Then: TypeAlias = Callable[[Any], Any]
"""A function of a method's value, called where the method runs."""


class PlainCalls:
    """Calls the plain methods of an object where its caller runs: in the main thread, for an
    object that needs that.

    The context variables of these methods begin as those of the first caller.  Variables that a
    later caller has changed since (such as the span that it has opened) have its values during its
    call.
    """

    def __init__(self) -> None:
        self._first: contextvars.Context | None = None
        self._context: contextvars.Context | None = None

    def call(
        self, method: Callable[[], Any], then: Then, done: Callable[[CodeResult], None]
    ) -> None:
        """Call a method after those before it.  ``done`` is called once it has ended, in its
        thread, and must not raise."""
        alone = functools.partial(_without_its_alarm, method)
        done(self._run(contextvars.copy_context(), _call_of(alone, then)))

    def end(self) -> None:
        """No call follows."""

    def _run(self, caller: contextvars.Context, call: Callable[[], CodeResult]) -> CodeResult:
        if self._first is None or self._context is None:
            self._first, self._context = caller, caller.copy()
        return self._context.run(self._with, caller, call)

    def _with(self, caller: contextvars.Context, call: Callable[[], CodeResult]) -> CodeResult:
        assert self._first is not None
        first, nothing = self._first, object()
        set_ = [
            (variable, variable.set(value))
            for variable, value in caller.items()
            if first.get(variable, nothing) is not value
        ]
        try:
            return call()
        finally:
            for variable, token in set_:
                variable.reset(token)


@final
class ObjectThread(PlainCalls):
    """Calls them in a thread of the object's own, which begins with the first call."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] | None = None

    def call(
        self, method: Callable[[], Any], then: Then, done: Callable[[CodeResult], None]
    ) -> None:
        """See :meth:`PlainCalls.call`."""
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            # Not of a cache of threads: what one object leaves in its thread (a loop that
            # runs, thread-locals) is not for the next one.  A daemon: it never holds up the
            # end of the process.
            take = named(_take, self._name) if self._name else _take
            threading.Thread(
                target=take, args=(self._calls,), name=self._name or None, daemon=True
            ).start()
        caller, called = contextvars.copy_context(), _call_of(method, then)
        self._calls.put(lambda: done(self._run(caller, called)))

    def end(self) -> None:
        """The thread ends."""
        if self._calls is not None:
            self._calls.put(None)


def _take(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # its object is not kept alive while the thread waits for the next one


class Running(Protocol):
    """A plain method under way, as a future of asyncio's has it."""

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    def result(self) -> CodeResult:
        """End of the code."""
        ...


class Methods(abc.ABC):
    """Calls the methods of one object, on one kind of loop."""

    def __init__(self, plain: PlainCalls) -> None:
        self._plain = plain
        self._overdue: Running | None = None
        self._used = False

    async def call(
        self, method: Callable[[], Any], *, then: Then = same, timeout_s: float = math.inf
    ) -> CodeResult:
        """Call a method to its end.  The error is the method's own, or
        :class:`TookTooLong` or :class:`StillRunning`.  Raises only what cancels the
        caller, after the method has ended."""
        if self._overdue is not None and not self._overdue.done():
            return CodeResult(error=StillRunning())
        self._overdue = None
        if not inspect.iscoroutinefunction(method):
            ended = await self._plainly(method, then, timeout_s)
            if not isinstance(ended.value, _Unfinished):
                return ended
            method = ended.value.get
        return await self._awaited(_to_its_end(method, then), timeout_s)

    async def within(self, work: Callable[[], Awaitable[Any]], timeout_s: float) -> CodeResult:
        """Await what is no method of the object.  The error is its own, or :class:`TookTooLong`.
        Raises as :meth:`call` does."""
        return await self._awaited(_to_its_end(work, same), timeout_s)

    async def settle(self) -> None:
        """Wait until no method runs, though the caller is cancelled."""
        if self._overdue is not None:
            await self.uncancelled(functools.partial(self._wait, self._overdue, math.inf))

    async def close(self, method: Callable[[], Any], timeout_s: float) -> CodeResult:
        """Call a method, though the caller is cancelled."""
        return await self.uncancelled(functools.partial(self.call, method, timeout_s=timeout_s))

    async def end(self, last: Callable[[], Any]) -> None:
        """Call ``last``, which raises nothing, where plain methods run, though the caller is
        cancelled.  The object's thread ends with it."""
        if not self._used:
            last()
            return
        try:
            await self.uncancelled(functools.partial(self._plainly, last, same, math.inf))
        finally:
            self._plain.end()

    async def _plainly(self, method: Callable[[], Any], then: Then, timeout_s: float) -> CodeResult:
        running = await self._begin(method, then)
        self._used = True
        await self._wait(running, timeout_s)
        if running.done():
            return running.result()
        self._overdue = running
        return CodeResult(error=TookTooLong())

    @abc.abstractmethod
    async def _begin(self, method: Callable[[], Any], then: Then) -> Running:
        """Begin to call a plain method, unless the caller is cancelled; nothing cancels it
        then."""

    @abc.abstractmethod
    async def _wait(self, running: Any, timeout_s: float) -> None:
        """Wait so long for its end; if the caller is cancelled, raise that after its end."""

    @abc.abstractmethod
    async def _awaited(self, method: Awaitable[CodeResult], timeout_s: float) -> CodeResult:
        """The end of a coroutine, or TookTooLong after it was cancelled."""

    @abc.abstractmethod
    async def uncancelled(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work to its end, though the caller is cancelled."""


async def _to_its_end(method: Callable[[], Any], then: Then) -> CodeResult:
    async def value() -> Any:
        return then(await method())

    return await foreign.acall(value)


@final
class TrioMethods(Methods):
    """Methods of a rollout that runs on trio."""

    async def _begin(self, method: Callable[[], Any], then: Then) -> Running:
        await trio.lowlevel.checkpoint_if_cancelled()
        running = _OnTrio()
        self._plain.call(method, then, running.deliver)
        return running

    async def _wait(self, running: Any, timeout_s: float) -> None:
        try:
            with trio.move_on_after(timeout_s):
                await running.ended.wait()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await running.ended.wait()
            raise

    async def _awaited(self, method: Awaitable[CodeResult], timeout_s: float) -> CodeResult:
        with trio.move_on_after(timeout_s) as scope:
            ended = await method
        await trio.lowlevel.checkpoint_if_cancelled()
        if scope.cancel_called and ended.error is not None:
            return CodeResult(error=TookTooLong())
        return ended

    async def uncancelled(self, work: Callable[[], Awaitable[T]]) -> T:
        """See :meth:`Methods.uncancelled`."""
        with trio.CancelScope(shield=True):
            done = await work()
        return done


@final
class _OnTrio:
    """A plain method under way, which ends in some thread."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._result: CodeResult | None = None

    def deliver(self, result: CodeResult) -> None:
        self._result = result
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.ended.set)

    def done(self) -> bool:
        return self._result is not None

    def result(self) -> CodeResult:
        assert self._result is not None
        return self._result


class _Unfinished(NamedTuple):
    """The result of a plain function that needs the loop to be awaited."""

    value: Any

    def get(self) -> Any:
        return self.value


_SIGNALS = "signal only works in main thread"
_ADVICE = (
    "Plain methods run in a thread of their object's own. Say main_thread = True on the class: "
    "then they run in the main thread, where signals work, and a worker runs one rollout at a "
    "time."
)


def _without_its_alarm(method: Callable[[], Any]) -> Any:
    """Call a method whose alarm, if it leaves one, ends with it: it would be raised in the loop, or
    in a method of the next rollout.  One that runs before is of the program around."""
    is_free = not any(signal.getitimer(signal.ITIMER_REAL))
    try:
        return method()
    finally:
        if is_free:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _call_of(method: Callable[[], Any], then: Then) -> Callable[[], CodeResult]:
    return functools.partial(plainly, method, then, os.getpid())


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
    return _Unfinished(value) if inspect.isawaitable(value) else then(value)
