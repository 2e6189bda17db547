"""Carriers: how environment code in any thread has work done on the trio loop.

Theory of operation
-------------------
Models and calls apart (:mod:`.apart`) run on the trio loop.  A rollout gets the *carrier* of its
backend, which runs a piece of work there and hands its result back: at once for code on trio, to
a blocked thread, or to a coroutine of asyncio.  A class on a loop may have a thread for its
object's plain methods, which waits as any thread does.

Threads and coroutines of asyncio submit their work to the :class:`LoopCalls` of their execution.
This runs it as a task in the nursery of that execution, so that no call outlives its execution.
The tasks are shielded: a cancel goes through the environment's code (an asyncio coroutine is
cancelled once, and not a second time by a call that fails under it).  A thread that waits hears of
a cancel only by that: its call is cancelled.  When the execution has ended, :class:`LoopCalls`
cancels all calls that are left.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, final

import trio

from .. import foreign
from ..carrier import Undo, Work, WorkCarrier
from ..envs.interface import RolloutCancelled
from ..envs.methods_asyncio import end_of
from ..foreign import CodeResult
from .forks import end_if_forked

_Deliver: TypeAlias = Callable[[CodeResult], None]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class RunContext:
    """The context that a backend gives to environment code."""

    cancelled: Callable[[], bool]
    carrier: WorkCarrier


@final
class TrioCarrier:
    """Carries for code on the trio loop itself, and for the threads of its objects, if it has any
    (``calls``)."""

    def __init__(self, calls: LoopCalls | None = None) -> None:
        self._calls = calls

    async def call(self, work: Work, undo: Undo | None = None) -> Any:
        """See :meth:`WorkCarrier.call`."""
        return await work()

    def call_sync(self, work: Work) -> Any:
        """See :meth:`WorkCarrier.call_sync`."""
        if self._calls is None and not trio.lowlevel.in_trio_run():
            raise TypeError(_IN_THREAD)
        if self._calls is None or threading.get_ident() == self._calls.loop_thread:
            raise TypeError(_ON_LOOP)
        return self._calls.wait(work)

    def soon(self, act: Callable[[], object]) -> None:
        """See :meth:`WorkCarrier.soon`."""
        if self._calls is None or threading.get_ident() == self._calls.loop_thread:
            act()
        else:
            self._calls.soon(act)


_ON_LOOP = (
    "this code runs on the event loop, which nothing may block: make it async def, and await the "
    "call without _sync, such as ask(), save(), apart() or exec(), and write async with, not with"
)
_IN_THREAD = (
    "this thread belongs to a coroutine on trio: call from it what the coroutine would await, such "
    "as trio.from_thread.run(rollout.ask, messages)"
)


@final
class LoopCalls:
    """The calls of one execution that another thread has submitted to the trio loop.

    ``submit`` and ``abandon`` may be called in any thread, everything else only on the trio
    loop.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._scopes: dict[trio.CancelScope, bool] = {}
        """The pending calls, and whether a thread waits for each."""
        self._pid = os.getpid()
        self.loop_thread = threading.get_ident()
        """The thread of the trio loop."""
        self.cancelled = False
        """No new call is taken; read in any thread."""

    def cancel(self) -> None:
        """Cancel the pending calls, and take no more."""
        self.cancelled = True
        for scope in self._scopes:
            scope.cancel()

    def cancel_in_threads(self) -> None:
        """Cancel the pending calls for which threads wait, and take no more."""
        self.cancelled = True
        for scope in [scope for scope, waited_for in self._scopes.items() if waited_for]:
            scope.cancel()

    def submit(self, work: Work, deliver: _Deliver, *, in_thread: bool = False) -> trio.CancelScope:
        """Run ``work`` on the trio loop; ``deliver`` is called once with its result.
        ``in_thread``: the caller's thread waits for it.

        The result is :class:`RolloutCancelled` if the execution was cancelled or has
        ended, or the returned scope was cancelled.
        """
        end_if_forked(self._pid)
        scope = trio.CancelScope(shield=True)
        try:
            self._token.run_sync_soon(self._start, work, deliver, scope, in_thread)
        except trio.RunFinishedError:
            deliver(_refusal())
        return scope

    def abandon(self, scope: trio.CancelScope) -> None:
        """Cancel the call with this scope."""
        self.soon(scope.cancel)

    def soon(self, act: Callable[[], object]) -> None:
        """Call a function on the trio loop.  May be called in any thread."""
        end_if_forked(self._pid)
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(act)

    def wait(self, work: Work) -> Any:
        """Run ``work`` on the trio loop, and block the calling thread until it has ended.  Raises
        :class:`RolloutCancelled`."""
        answer: queue.SimpleQueue[CodeResult] = queue.SimpleQueue()
        self.submit(work, answer.put, in_thread=True)
        return answer.get().unwrap()

    def _start(
        self, work: Work, deliver: _Deliver, scope: trio.CancelScope, in_thread: bool
    ) -> None:
        if self.cancelled:
            deliver(_refusal())
        else:
            self._scopes[scope] = in_thread
            self._nursery.start_soon(self._serve, work, deliver, scope)

    async def _serve(self, work: Work, deliver: _Deliver, scope: trio.CancelScope) -> None:
        # A model may be the user's code; whatever it raises belongs to the rollout that
        # called it, not to this nursery.
        with scope:
            ended = await foreign.acall(work)
            if scope.cancel_called and ended.error is not None:
                ended = _refusal()
        del self._scopes[scope]
        deliver(ended)


def _refusal() -> CodeResult:
    return CodeResult(error=RolloutCancelled("the rollout was cancelled, or has ended"))


@final
class ThreadCarrier:
    """Carries for code in threads."""

    def __init__(self, calls: LoopCalls) -> None:
        self._calls = calls

    async def call(self, work: Work, undo: Undo | None = None) -> Any:
        """Raises ``TypeError``: this environment runs in a thread."""
        raise TypeError(
            "this environment runs in a thread, where nothing is awaited: write the call with "
            "_sync, such as ask_sync(), save_sync(), apart_sync() or exec_sync(), and with, not "
            "async with"
        )

    def call_sync(self, work: Work) -> Any:
        """See :meth:`WorkCarrier.call_sync`."""
        return self._calls.wait(work)

    def soon(self, act: Callable[[], object]) -> None:
        """See :meth:`WorkCarrier.soon`."""
        self._calls.soon(act)


@final
class AsyncioCarrier:
    """Carries for coroutines of asyncio."""

    def __init__(self, calls: LoopCalls) -> None:
        self._calls = calls

    async def call(self, work: Work, undo: Undo | None = None) -> Any:
        """See :meth:`WorkCarrier.call`.  Cancelling the task cancels the work and waits for its
        end."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[CodeResult] = loop.create_future()

        def settle(ended: CodeResult) -> None:
            if not answer.done():
                answer.set_result(ended)

        def deliver(ended: CodeResult) -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
                loop.call_soon_threadsafe(settle, ended)

        scope = self._calls.submit(work, deliver)
        try:
            # Not the future itself: a cancelled task would cancel it, too.
            await asyncio.wait((answer,))
        except asyncio.CancelledError:
            self._calls.abandon(scope)
            await end_of(answer)  # noqa: ASYNC102
            if undo is not None and answer.result().error is None:
                undo(answer.result().value)
            raise
        try:
            return answer.result().unwrap()
        except RolloutCancelled as exc:
            raise asyncio.CancelledError(*exc.args) from None

    def call_sync(self, work: Work) -> Any:
        """See :meth:`WorkCarrier.call_sync`: for the thread of an object's plain methods."""
        if asyncio._get_running_loop() is not None:
            raise TypeError(_ON_LOOP)
        return self._calls.wait(work)

    def soon(self, act: Callable[[], object]) -> None:
        """See :meth:`WorkCarrier.soon`."""
        self._calls.soon(act)
