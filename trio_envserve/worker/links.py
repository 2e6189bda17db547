"""Calls from environment code in another thread to models on the trio loop.

Theory of operation
-------------------
Models live on the trio loop.  A rollout in a thread or on an asyncio loop gets
a stand-in (:class:`ThreadModel`, :class:`AsyncioModel`) that hands each call to
the :class:`Link` of its execution.  The link runs it as a task in the nursery
of that execution, so that no model call outlives the execution it belongs to,
and delivers the end back.  The tasks are shielded: the cancel takes the way
through the environment's code (an asyncio coroutine is cancelled once, not a
second time by a model call that fails under it), and the link cancels what is
left when the execution has ended.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import queue
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, final

import trio

from .. import foreign
from ..envs.interface import RolloutCancelled
from ..foreign import Ended
from ..models.interface import Completion, Messages, Model
from .forks import end_if_forked


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Seat:
    """What environment code is given by the place where it runs."""

    cancelled: Callable[[], bool]
    adapt: Callable[[Model], Model]
    """The model as the code can call it there."""


_Work: TypeAlias = Callable[[], Awaitable[Any]]
_Deliver: TypeAlias = Callable[[Ended], None]


@final
class Link:
    """Carries calls of one execution over to the trio loop.

    ``submit`` and ``abandon`` may be called in any thread, the rest belongs to
    the trio loop.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._scopes: set[trio.CancelScope] = set()
        self._pid = os.getpid()
        self.cancelled = False
        """No new call is taken; read in any thread."""

    def cancel(self) -> None:
        """Cancel the calls under way, and take no more."""
        self.cancelled = True
        for scope in self._scopes:
            scope.cancel()

    def close(self) -> None:
        """The execution has ended: its nursery is about to close."""
        self.cancel()

    def submit(self, work: _Work, deliver: _Deliver) -> trio.CancelScope:
        """Run ``work`` on the trio loop; ``deliver`` is called once with its end.

        The end is :class:`RolloutCancelled` if the execution was cancelled or
        has ended, or the returned scope was.
        """
        end_if_forked(self._pid)
        scope = trio.CancelScope(shield=True)
        try:
            self._token.run_sync_soon(self._start, work, deliver, scope)
        except trio.RunFinishedError:
            deliver(_refusal())
        return scope

    def abandon(self, scope: trio.CancelScope) -> None:
        """Cancel the call with this scope."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(scope.cancel)

    def _start(self, work: _Work, deliver: _Deliver, scope: trio.CancelScope) -> None:
        if self.cancelled:
            deliver(_refusal())
        else:
            self._scopes.add(scope)
            self._nursery.start_soon(self._serve, work, deliver, scope)

    async def _serve(self, work: _Work, deliver: _Deliver, scope: trio.CancelScope) -> None:
        # A model may be anybody's code; what it raises is for the rollout that called
        # it, not for this nursery.
        with scope:
            ended = await foreign.acall(work)
            if scope.cancel_called and ended.error is not None:
                ended = _refusal()
        self._scopes.discard(scope)
        deliver(ended)


def _refusal() -> Ended:
    return Ended(error=RolloutCancelled("the rollout was cancelled, or has ended"))


@final
class ThreadModel:
    """The model of a rollout that runs in a thread."""

    def __init__(self, model: Model, link: Link) -> None:
        self._model = model
        self._link = link

    def complete_sync(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """As ``Model.complete``; blocks.  Raises :class:`RolloutCancelled`."""
        answer: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        work = _bind(self._model, messages, name, sampling_args, reference)
        self._link.submit(work, answer.put)
        completion: Completion = answer.get().unwrap()
        return completion

    async def complete(
        self,
        messages: Messages,
        *,
        name: str,
        sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:
        """Not here: raises ``TypeError``."""
        raise TypeError("this environment runs in a thread: call ask_sync()")

    async def aclose(self) -> None:
        """Nothing: the worker owns the model."""


@final
class AsyncioModel:
    """The model of a rollout that runs on an asyncio loop."""

    def __init__(self, model: Model, link: Link) -> None:
        self._model = model
        self._link = link

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
        answer: asyncio.Future[Ended] = loop.create_future()

        def settle(ended: Ended) -> None:
            if not answer.done():
                answer.set_result(ended)

        def deliver(ended: Ended) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, ended)

        work = _bind(self._model, messages, name, sampling_args, reference)
        scope = self._link.submit(work, deliver)
        try:
            # Not the future itself: a cancelled task would cancel it too.
            await asyncio.wait((answer,))
        except asyncio.CancelledError:
            self._link.abandon(scope)
            await asyncio.wait((answer,))  # noqa: ASYNC102
            raise
        try:
            completion: Completion = answer.result().unwrap()
        except RolloutCancelled as exc:
            raise asyncio.CancelledError(*exc.args) from None
        return completion

    async def aclose(self) -> None:
        """Nothing: the worker owns the model."""


def _bind(
    model: Model,
    messages: Messages,
    name: str,
    sampling_args: Mapping[str, Any],
    reference: str | None,
) -> _Work:
    async def work() -> Completion:
        return await model.complete(
            messages, name=name, sampling_args=sampling_args, reference=reference
        )

    return work
