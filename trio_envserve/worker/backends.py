"""The three ways in which environment code is run.

Theory of operation
-------------------
A :class:`CodeBackend` runs one piece of environment code (a *call*).  It returns an
:class:`CodeResult` when that code has **ended**: never earlier, not even when it is
cancelled (G1), and never with an exception, whatever the code raised.  If the code
returned a value before the cancel took effect, the value counts.

``trio``
    runs the code in a task and a nursery of its own.  So whatever the code leaves
    behind in its task (open cancel scopes, context variables) ends with it, and
    a leaked ``trio.Cancelled`` ends here.  The task is protected from Ctrl-C: the code
    raised any ``KeyboardInterrupt`` that comes out of it, while a real one goes to
    trio's main task (but may hit tasks that the code has started).
``thread``
    runs the code in a thread from trio's cache, which is never abandoned.  A watcher
    task notices the cancel, which no thread can.
``asyncio``
    runs the code on one loop in one thread for the whole life of the worker.  The loop
    is always asyncio's own (others, such as uvloop, cannot be stopped in a forked
    child).  Cancelling is ``task.cancel()``, once, and then waiting for the task's own
    end.  If a stray task of the environment raises an exit, it stops only itself.

The last two reach the trio loop by the carriers of :mod:`.carriers`, and so do the threads that a
class on trio has for its objects' plain methods.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, final

import trio

from .. import foreign
from ..carrier import WorkCarrier
from ..core.stack_frames import named
from ..envs.interface import Backend
from ..foreign import CodeResult
from .carriers import (
    AsyncioCarrier,
    LoopCalls,
    RunContext,
    ThreadCarrier,
    TrioCarrier,
)
from .failures import log
from .forks import end_if_forked
from .stacks import ASYNCIO_TASKS, ASYNCIO_THREAD, request_name

Function = TypeVar("Function", bound=Callable[..., Any])
Call: TypeAlias = Callable[[RunContext], Any]
"""Environment code, bound to its arguments; may return an awaitable."""


class CodeBackend(Protocol):
    """Runs environment code.  Made by :func:`open_backend`."""

    async def call(self, call: Call) -> CodeResult:
        """Run ``call`` to its end.  Cancelling reaches the code; the caller must
        check for its own cancellation afterwards, since this does not raise."""
        ...


@contextmanager
def open_backend(
    kind: Backend, nursery: trio.Nursery, *, threads: int, mixed: bool = False
) -> Iterator[CodeBackend]:
    """The backend for code of ``kind``, with its tasks in ``nursery``; ``threads`` bounds the calls
    in threads at once.  ``mixed``: code on trio asks models in threads of its own, too."""
    if kind == "trio":
        yield _MixedBackend() if mixed else _TrioBackend()
    elif kind == "thread":
        yield _ThreadBackend(threads)
    else:
        backend = _AsyncioBackend()
        nursery.start_soon(backend.serve)
        try:
            yield backend
        finally:
            backend.stop()


def _is_cancelled_here() -> bool:
    return trio.current_effective_deadline() == -math.inf


_ASYNCIO_SIGNS = ("no running event loop", "framework like asyncio")
_TRIO_SIGNS = ("must be called from async context",)
_THREAD_NOTE = (
    "This code runs in a thread. If it calls trio: make it a coroutine function (async def), "
    "and await what it calls."
)


_BLOCKS = tuple(
    sign
    for block in ("Resource", "SandboxBlock", "ProcessBlock")
    for sign in (f"'{block}' object ", f"object {block} can't be used in 'await'")
)
_MISTAKES = (
    (
        ("'coroutine' object ",),
        "A coroutine must be awaited: answer = await rollout.ask(...). A plain function calls the "
        "one with _sync instead: answer = rollout.ask_sync(...).",
    ),
    (
        _BLOCKS,
        "A block is entered: async with rollout.sandbox(...) as sandbox (in a thread: with).",
    ),
    (("'Rollout' object ",), "What the rollout is asked is rollout.input."),
)
"""Mistakes on every backend: the text of the error, and what to write instead."""


def _hint(exc: BaseException | None, signs: tuple[str, ...], note: str) -> None:
    """Adds a note to an error that comes of the wrong kind of coroutine, or of another
    mistake that is made often."""
    if exc is None:
        return
    text = foreign.text(exc) or ""
    for each, about in ((signs, note), *_MISTAKES):
        if any(sign in text for sign in each):
            foreign.call(BaseException.add_note, exc, about)


_TRIO_CONTEXT = RunContext(_is_cancelled_here, TrioCarrier())


def _named(function: Function, name: str) -> Function:
    """A function in which the code of a request runs, named after that in stacks."""
    return named(function, name) if name else function


@final
class _TrioBackend:
    async def call(self, call: Call, context: RunContext = _TRIO_CONTEXT) -> CodeResult:
        ended: list[CodeResult] = []
        try:
            async with trio.open_nursery() as nursery:  # noqa: ASYNC112
                nursery.start_soon(self._in_task, call, context, ended)
        except BaseException as exc:  # noqa: ASYNC103
            # _in_task raises nothing: this is trio, where the code left a nursery open in
            # its task, or what the code started beside its task.  It is the code's failure.
            # Usually it is a group; but trio asks the groups in it to split.
            if foreign.holds_interrupt(exc):
                raise  # a real Ctrl-C, in a server that runs the environment itself
            if ended[0].error is None:
                ended[:] = [CodeResult(error=exc)]
        return ended[0]

    @trio.lowlevel.enable_ki_protection
    async def _in_task(self, call: Call, context: RunContext, ended: list[CodeResult]) -> None:
        # The boundary between the environment and the worker.  The caller checks whether
        # it is cancelled.
        pid = os.getpid()
        result = await _named(_on_trio, request_name())(call, context)
        end_if_forked(pid)
        _hint(result.error, _ASYNCIO_SIGNS, 'If this is asyncio code: set backend = "asyncio".')
        if result.error is None and trio.lowlevel.current_task().child_nurseries:
            # trio itself says so when the task has ended, but in a group, and not before 0.31.
            result = CodeResult(error=RuntimeError("the code left a nursery open in its task"))
        ended.append(result)


async def _on_trio(call: Call, context: RunContext) -> CodeResult:
    return await foreign.acall(call, context)


@final
class _MixedBackend:
    def __init__(self) -> None:
        self._trio = _TrioBackend()

    async def call(self, call: Call) -> CodeResult:
        return await _with_calls(TrioCarrier, partial(self._trio.call, call))


@final
class _ThreadBackend:
    def __init__(self, threads: int) -> None:
        self._limiter = trio.CapacityLimiter(threads)

    async def call(self, call: Call) -> CodeResult:
        return await _with_calls(ThreadCarrier, partial(self._in_thread, call))

    async def _in_thread(self, call: Call, context: RunContext) -> CodeResult:
        name = request_name()
        try:
            return await trio.to_thread.run_sync(
                _named(_in_thread, name), call, context, limiter=self._limiter,
                thread_name=name or None,
            )  # fmt: skip
        except trio.Cancelled as exc:  # noqa: ASYNC103
            # While it waited for a thread: nothing has started.
            return CodeResult(error=exc)  # noqa: ASYNC104


async def _with_calls(
    carrier: Callable[[LoopCalls], WorkCarrier], run: Callable[[RunContext], Awaitable[CodeResult]]
) -> CodeResult:
    """Run code that has threads, for which a cancel is noticed here."""
    async with trio.open_nursery() as nursery:
        calls = LoopCalls(nursery)
        nursery.start_soon(_watch, calls)
        try:
            ended = await run(RunContext(lambda: calls.cancelled, carrier(calls)))
        finally:
            calls.cancel()
            nursery.cancel_scope.cancel()
    return ended


async def _watch(calls: LoopCalls) -> None:
    try:
        await trio.sleep_forever()
    except trio.Cancelled:  # noqa: ASYNC103
        # Not raised: the nursery would lose the value of a thread that has finished
        # nevertheless.  The caller checks for its own cancellation.
        calls.cancel()


def _in_thread(call: Call, context: RunContext) -> CodeResult:
    pid = os.getpid()
    ended = foreign.call(plain_value, call, context)
    end_if_forked(pid)
    _hint(ended.error, _TRIO_SIGNS, _THREAD_NOTE)
    return ended


def plain_value(call: Callable[..., Any], *args: Any) -> Any:
    """The value of plain code, which nothing awaits.  Raises what it raises, and ``TypeError`` for
    an awaitable."""
    value = call(*args)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            f"a plain function returned {type(value).__name__}, which needs a loop: "
            'set backend = "trio" or "asyncio" on the environment'
        )
    return value


@final
class _AsyncioBackend:
    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._loop = self._runner.get_loop()
        self._stopping = False

    async def serve(self) -> None:
        """Run the thread of the loop, until :meth:`stop`."""
        # Shielded: stop() ends it, after the last call.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(
                self._in_thread,
                limiter=trio.CapacityLimiter(1),
                thread_name=ASYNCIO_THREAD,
            )

    def stop(self) -> None:
        """Let the thread end.  Tasks that are left on the loop are cancelled."""
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _in_thread(self) -> None:
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException as exc:  # noqa: ASYNC103
                # A task of the environment that raises SystemExit or KeyboardInterrupt
                # stops asyncio's loop; the other rollouts need it.
                log(logging.WARNING, "a task of the environment stopped its loop", about=exc)
        try:
            self._runner.close()
        except BaseException as exc:  # noqa: ASYNC103
            # Stray tasks may raise anything while they are cancelled.
            log(logging.WARNING, "closing the environment's asyncio loop failed", about=exc)
            if not self._loop.is_closed():
                self._loop.close()

    async def call(self, call: Call) -> CodeResult:
        async with trio.open_nursery() as nursery:
            calls = LoopCalls(nursery)
            context = RunContext(lambda: calls.cancelled, AsyncioCarrier(calls))
            try:
                ended = await self._run(call, context, calls)
            finally:
                calls.cancel()
        return ended

    async def _run(self, call: Call, context: RunContext, calls: LoopCalls) -> CodeResult:
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()
        ended: list[CodeResult] = []
        tasks: list[asyncio.Task[None]] = []
        name = request_name()

        def start() -> None:
            # The environment may have set a task factory of its own.
            made = foreign.call(self._loop.create_task, coroutine)
            if made.error is not None:
                ended.append(made)
                coroutine.close()
                token.run_sync_soon(done.set)
                return
            made.value.add_done_callback(lambda _: token.run_sync_soon(done.set))
            tasks.append(made.value)
            ASYNCIO_TASKS[made.value] = name

        # Both callbacks run in order in the loop's thread: cancel finds the task.
        coroutine = _named(_on_asyncio, name)(call, context, ended)
        self._loop.call_soon_threadsafe(start)
        try:
            await done.wait()
        except trio.Cancelled:  # noqa: ASYNC103
            calls.cancel_in_threads()
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            with trio.CancelScope(shield=True):
                await done.wait()
        finally:
            for task in tasks:
                ASYNCIO_TASKS.pop(task, None)
        # A task that was cancelled before its first step has no result.
        return ended[0] if ended else CodeResult(error=asyncio.CancelledError())


async def _on_asyncio(call: Call, context: RunContext, ended: list[CodeResult]) -> None:
    pid = os.getpid()
    ended.append(await foreign.acall(call, context))  # asyncio would stop its loop for SystemExit
    end_if_forked(pid)
    _hint(ended[0].error, _TRIO_SIGNS, 'If this is trio code: remove backend = "asyncio".')
