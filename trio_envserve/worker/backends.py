"""The three ways in which environment code is run.

Theory of operation
-------------------
A :class:`CodeBackend` runs one piece of environment code (a *call*) and comes
back when that code has **ended**, with an :class:`Ended`: never earlier, also
not when it is cancelled (G1), and never with an exception, whatever the code
raised.  A value that was there before the cancel took effect is kept.

``trio``
    a task of its own in a nursery of its own, so that whatever the code leaves
    behind in its task (open cancel scopes, context variables) ends with it, and
    a leaked ``trio.Cancelled`` ends here.  The task is protected from Ctrl-C: a
    ``KeyboardInterrupt`` that comes out of it was raised by the code, while a
    real one goes to trio's main task (but may hit tasks the code has started).
    A task that is about to end may be used up for it instead (``call_here``).
``thread``
    a thread from trio's cache, never abandoned.  A watcher task notices the
    cancel, which no thread can.
``asyncio``
    one loop in one thread for the life of the worker, always asyncio's own (others, as
    uvloop, cannot be kept from going on in a forked process).  Cancelling is
    ``task.cancel()``, once, and then waiting for the task's own end.  An exit
    raised by a stray task of the environment stops no more than that task.

The last two call models through a :class:`~.links.Link`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias, final

import trio

from .. import foreign
from ..envs.interface import Backend
from ..foreign import Ended
from .failures import log
from .forks import end_if_forked
from .links import AsyncioModel, Link, Seat, ThreadModel

Call: TypeAlias = Callable[[Seat], Any]
"""Environment code, bound to its arguments; may return an awaitable."""


class CodeBackend(Protocol):
    """Runs environment code.  Made by :func:`open_backend`."""

    async def call(self, call: Call) -> Ended:
        """Run ``call`` to its end.  Cancelling reaches the code; the caller must
        check for its own cancellation afterwards, since this does not raise."""
        ...

    async def call_here(self, call: Call) -> Ended:
        """As ``call``, for a task that awaits nothing more afterwards: the code may
        run in it, and leave behind in it what it will."""
        ...


@asynccontextmanager
async def open_backend(kind: Backend, *, threads: int) -> AsyncIterator[CodeBackend]:
    """What runs code of ``kind``; ``threads`` bounds the calls in threads at once."""
    if kind == "trio":
        yield _TrioBackend()
    elif kind == "thread":
        yield _ThreadBackend(threads)
    else:
        async with _open_asyncio() as backend:
            yield backend


def _is_cancelled_here() -> bool:
    return trio.current_effective_deadline() == -math.inf


_ASYNCIO_SIGNS = ("no running event loop", "framework like asyncio")
_TRIO_SIGNS = ("must be called from async context",)


def _hint(exc: BaseException | None, signs: tuple[str, ...], note: str) -> None:
    """Adds a note to an error that tells of the wrong kind of coroutine."""
    text = "" if exc is None else foreign.text(exc) or ""
    if any(sign in text for sign in signs):
        foreign.call(BaseException.add_note, exc, note)


@final
class _TrioBackend:
    async def call(self, call: Call) -> Ended:
        ended: list[Ended] = []
        try:
            async with trio.open_nursery() as nursery:  # noqa: ASYNC112
                nursery.start_soon(_contained, call, ended)
        except BaseException as exc:  # noqa: ASYNC103
            # _contained lets nothing out: this is trio, saying that the code left a
            # nursery or a cancel scope open in its task.  It is the code's failure.
            # Usually it is a group; but trio asks the groups in it to split.
            if foreign.holds_interrupt(exc):
                raise  # a real Ctrl-C, in a server that runs the environment itself
            ended[:] = [Ended(error=exc)]
        return ended[0]

    async def call_here(self, call: Call) -> Ended:
        ended: list[Ended] = []
        await _contained(call, ended)
        if ended[0].error is None and trio.lowlevel.current_task().child_nurseries:
            # trio itself says so when the task has ended: too late for the outcome.
            return Ended(error=RuntimeError("the code left a nursery open in its task"))
        return ended[0]


_TRIO_SEAT = Seat(_is_cancelled_here, lambda model: model)


@trio.lowlevel.enable_ki_protection
async def _contained(call: Call, ended: list[Ended]) -> None:
    # The boundary between the environment and the worker.  Whether the caller is
    # cancelled, the caller checks.
    pid = os.getpid()
    ended.append(await foreign.acall(call, _TRIO_SEAT))
    end_if_forked(pid)
    _hint(ended[0].error, _ASYNCIO_SIGNS, 'If this is asyncio code: set backend = "asyncio".')


@final
class _ThreadBackend:
    def __init__(self, threads: int) -> None:
        self._limiter = trio.CapacityLimiter(threads)

    async def call(self, call: Call) -> Ended:
        async with trio.open_nursery() as nursery:
            link = Link(nursery)
            seat = Seat(lambda: link.cancelled, lambda model: ThreadModel(model, link))
            nursery.start_soon(_watch, link)
            try:
                ended = await trio.to_thread.run_sync(_in_thread, call, seat, limiter=self._limiter)
            except trio.Cancelled as exc:  # noqa: ASYNC103
                ended = Ended(error=exc)  # while waiting for a thread: nothing has started
            finally:
                link.close()
                nursery.cancel_scope.cancel()
        return ended

    call_here = call


async def _watch(link: Link) -> None:
    try:
        await trio.sleep_forever()
    except trio.Cancelled:  # noqa: ASYNC103
        # Not raised on: a nursery with it would lose the value of a thread that has
        # finished nevertheless.  The caller checks for its own cancellation.
        link.cancel()


def _in_thread(call: Call, seat: Seat) -> Ended:
    pid = os.getpid()
    ended = foreign.call(_plain_value, call, seat)
    end_if_forked(pid)
    return ended


def _plain_value(call: Call, seat: Seat) -> Any:
    value = call(seat)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            f"a plain function returned {type(value).__name__}, which needs a loop: "
            'set backend = "trio" or "asyncio" on the environment'
        )
    return value


@asynccontextmanager
async def _open_asyncio() -> AsyncIterator[_AsyncioBackend]:
    backend = _AsyncioBackend()
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.serve)  # noqa: ASYNC113
        try:
            yield backend
        except BaseException as exc:  # noqa: ASYNC103
            # Raised again below, outside of this nursery, which would wrap it.
            raised = exc
        finally:
            backend.stop()
    if raised is not None:
        try:
            raise raised
        finally:
            del raised  # no cycle with its own traceback


@final
class _AsyncioBackend:
    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._loop = self._runner.get_loop()
        self._stopping = False

    async def serve(self) -> None:
        """The thread of the loop, from beginning to end."""
        # Shielded: it ends by stop(), after the last call.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(
                self._in_thread,
                limiter=trio.CapacityLimiter(1),
                thread_name="trio-envserve-asyncio",
            )

    def stop(self) -> None:
        """Let the thread end.  What is left on the loop is cancelled."""
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _in_thread(self) -> None:
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException as exc:  # noqa: ASYNC103
                # SystemExit and KeyboardInterrupt from a task that the environment
                # has started stop asyncio's loop; the other rollouts need it.
                log(logging.WARNING, "a task of the environment stopped its loop", about=exc)
        try:
            self._runner.close()
        except BaseException as exc:  # noqa: ASYNC103
            # Stray tasks may raise anything while they are cancelled.
            log(logging.WARNING, "closing the environment's asyncio loop failed", about=exc)
            if not self._loop.is_closed():
                self._loop.close()

    async def call(self, call: Call) -> Ended:
        async with trio.open_nursery() as nursery:
            link = Link(nursery)
            seat = Seat(lambda: link.cancelled, lambda model: AsyncioModel(model, link))
            try:
                ended = await self._run(call, seat, link)
            finally:
                link.close()
        return ended

    call_here = call

    async def _run(self, call: Call, seat: Seat, link: Link) -> Ended:
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()
        ended: list[Ended] = []
        tasks: list[asyncio.Task[None]] = []

        def start() -> None:
            # The environment may have given its loop another way to make tasks.
            made = foreign.call(self._loop.create_task, coroutine)
            if made.error is not None:
                ended.append(made)
                coroutine.close()
                token.run_sync_soon(done.set)
                return
            made.value.add_done_callback(lambda _: token.run_sync_soon(done.set))
            tasks.append(made.value)

        # Both callbacks run in order in the loop's thread: cancel finds the task.
        coroutine = _on_asyncio(call, seat, ended)
        self._loop.call_soon_threadsafe(start)
        try:
            await done.wait()
        except trio.Cancelled:  # noqa: ASYNC103
            link.cancelled = True
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            with trio.CancelScope(shield=True):
                await done.wait()
        # Cancelled before its first step, the task has nothing to say.
        return ended[0] if ended else Ended(error=asyncio.CancelledError())


async def _on_asyncio(call: Call, seat: Seat, ended: list[Ended]) -> None:
    pid = os.getpid()
    ended.append(await foreign.acall(call, seat))  # asyncio would stop its loop for SystemExit
    end_if_forked(pid)
    _hint(ended[0].error, _TRIO_SIGNS, 'If this is trio code: remove backend = "asyncio".')
