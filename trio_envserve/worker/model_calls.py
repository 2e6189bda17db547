"""Calls from environment code in another thread to models on the trio loop.

Theory of operation
-------------------
Models run on the trio loop.  A rollout in a thread or on an asyncio loop gets a
stand-in (:class:`ThreadModel`, :class:`AsyncioModel`, and for a class whose plain methods have a
thread of their own :class:`MixedModel`) that passes each call to the
:class:`ModelCalls` of its execution.  This runs the call as a task in the nursery of
that execution, so that no model call outlives its execution, and delivers the result
back.  The tasks are shielded: a cancel goes through the environment's code (an asyncio
coroutine is cancelled once, and not a second time by a model call that fails under it).
A thread that waits for its answer hears of no cancel but by that: its call is cancelled.
When the execution has ended, :class:`ModelCalls` cancels all calls that are left.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, final

import trio

from .. import foreign, tracing
from ..envs.interface import RolloutCancelled
from ..foreign import CodeResult
from ..models.interface import Completion, Messages, Model
from .forks import end_if_forked


@final
@dataclasses.dataclass(frozen=True, slots=True)
class RunContext:
    """The context that a backend gives to environment code."""

    cancelled: Callable[[], bool]
    adapt: Callable[[Model], Model]
    """Makes the model callable from there."""


_Work: TypeAlias = Callable[[], Awaitable[Any]]
_Deliver: TypeAlias = Callable[[CodeResult], None]


@final
class ModelCalls:
    """Carries the model calls of one execution over to the trio loop.

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

    def close(self) -> None:
        """The execution has ended: its nursery is about to close."""
        self.cancel()

    def submit(
        self, work: _Work, deliver: _Deliver, *, in_thread: bool = False
    ) -> trio.CancelScope:
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
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(scope.cancel)

    def _start(
        self, work: _Work, deliver: _Deliver, scope: trio.CancelScope, in_thread: bool
    ) -> None:
        if self.cancelled:
            deliver(_refusal())
        else:
            self._scopes[scope] = in_thread
            self._nursery.start_soon(self._serve, work, deliver, scope)

    async def _serve(self, work: _Work, deliver: _Deliver, scope: trio.CancelScope) -> None:
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
class ThreadModel:
    """The model of a rollout that runs in a thread."""

    def __init__(self, model: Model, calls: ModelCalls) -> None:
        self._model = model
        self._calls = calls

    def complete_sync(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """Like ``Model.complete``, but blocks the thread.  Raises :class:`RolloutCancelled`."""
        return _in_thread(self._calls, _bind(self._model, messages, name, sampling_args, reference))

    async def complete(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """Raises ``TypeError``: this environment runs in a thread."""
        raise TypeError("this environment runs in a thread: call ask_sync()")

    async def aclose(self) -> None:
        """Nothing: the worker owns the model."""


@final
class MixedModel:
    """The model of a rollout that runs on trio, and has a thread, too: an object's."""

    def __init__(self, model: Model, calls: ModelCalls) -> None:
        self._calls = calls
        self.complete = model.complete
        """The model's own."""
        self._model = model

    def complete_sync(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """Like ``Model.complete``, but blocks the thread.  Raises :class:`RolloutCancelled`, and
        ``TypeError`` in the thread of the loop."""
        if threading.get_ident() == self._calls.loop_thread:
            raise TypeError(_ON_LOOP)
        return _in_thread(self._calls, _bind(self._model, messages, name, sampling_args, reference))

    async def aclose(self) -> None:
        """Nothing: the worker owns the model."""


_ON_LOOP = "ask_sync() blocks, and this code runs on the loop: make it async def, and await ask()"


def _in_thread(calls: ModelCalls, work: _Work) -> Completion:
    """The answer of a model on the trio loop, for which this thread waits."""
    answer: queue.SimpleQueue[CodeResult] = queue.SimpleQueue()
    calls.submit(work, answer.put, in_thread=True)
    completion: Completion = answer.get().unwrap()
    return completion


@final
class AsyncioModel:
    """The model of a rollout that runs on an asyncio loop."""

    def __init__(self, model: Model, calls: ModelCalls) -> None:
        self._model = model
        self._calls = calls

    async def complete(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """As ``Model.complete``, on asyncio.  Cancelling the task cancels the
        model call and waits for its end."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[CodeResult] = loop.create_future()

        def settle(ended: CodeResult) -> None:
            if not answer.done():
                answer.set_result(ended)

        def deliver(ended: CodeResult) -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
                loop.call_soon_threadsafe(settle, ended)

        work = _bind(self._model, messages, name, sampling_args, reference)
        scope = self._calls.submit(work, deliver)
        try:
            # Not the future itself: a cancelled task would cancel it, too.
            await asyncio.wait((answer,))
        except asyncio.CancelledError:
            self._calls.abandon(scope)
            await asyncio.wait((answer,))  # noqa: ASYNC102
            raise
        try:
            completion: Completion = answer.result().unwrap()
        except RolloutCancelled as exc:
            raise asyncio.CancelledError(*exc.args) from None
        return completion

    def complete_sync(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """As ``Model.complete``, but blocks the thread, which is an object's.  Raises
        :class:`RolloutCancelled`, and ``TypeError`` in a thread with a loop."""
        if asyncio._get_running_loop() is not None:
            raise TypeError(_ON_LOOP)
        return _in_thread(self._calls, _bind(self._model, messages, name, sampling_args, reference))

    async def aclose(self) -> None:
        """Nothing: the worker owns the model."""


def _bind(
    model: Model,
    messages: Messages,
    name: str,
    sampling_args: Mapping[str, Any],
    reference: str | None,
) -> _Work:
    span = tracing.here()

    async def work() -> Completion:
        return await model.complete(
            messages, name=name, sampling_args=sampling_args, reference=reference
        )

    async def below() -> Completion:
        with tracing.below(span):
            return await work()

    return work if span is None else below
