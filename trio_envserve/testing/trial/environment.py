"""The user's environment, with a recorder around its code.

Theory of operation
-------------------
The server of a trial gets a :class:`RecordedEnvironment`.  Each input travels in an
envelope with the number of its ask, and each value comes back in an envelope with the
number of its execution, so the judges can tell whose value a caller got.  The
environment sees neither.

The clock is virtual, and it moves when all tasks sleep.  So code of a trio
environment runs as it is.  Code that would run in a thread is called on the
loop: it takes no virtual time, and nothing happens meanwhile.  Code on an asyncio
loop has a clock of its own, and is refused.

Code that ignores its cancel again and again would never let the clock move:
:func:`guarded` counts, and ends such code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, cast, final

import trio

from ...core.errors import ConfigError
from ...envs.interface import Rollout, trim_state
from ...envs.loading import LoadedEnvironment, load
from ...models.interface import Completion, Messages, Model
from .history import Execution, History

CANCELS_MOST = 1000
"""How often code may ignore a ``Cancelled``; then it is ended."""


class IgnoredCancel(RuntimeError):
    """The trial has ended code that ignored its cancel."""


def load_for_trial(spec: str | object, args: Mapping[str, Any]) -> LoadedEnvironment:
    """The environment, if a virtual clock can run it.  Raises ConfigError."""
    loaded = load(spec, args)
    if loaded.backend == "asyncio":
        raise ConfigError(
            f"{loaded.name} runs on an asyncio loop, which has no virtual clock: test it with "
            "the fixture envserve_server and the fault proxy instead"
        )
    return loaded


def recorded(loaded: LoadedEnvironment, history: History) -> Any:
    """The environment as the server of a trial gets it."""
    kind = RecordedGroups if loaded.run_group is not None else RecordedEnvironment
    return kind(loaded, history)


class RecordedEnvironment:
    """An environment that records in the history what another one does."""

    backend = "trio"

    def __init__(self, loaded: LoadedEnvironment, history: History) -> None:
        self.name = loaded.name
        self.rerun = loaded.rerun
        self._loaded = loaded
        self._history = history

    async def setup(self) -> None:
        """The environment's own."""
        if self._loaded.setup is not None:
            await _called(self._loaded.setup)

    async def teardown(self) -> None:
        """The environment's own."""
        if self._loaded.teardown is not None:
            await _called(self._loaded.teardown)

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """The environment's own, with its value in an envelope."""
        execution, own = self._begin(rollout)
        try:
            value = trim_state(await _called(self._loaded.run_rollout, own), rollout.state_columns)
        except BaseException as error:
            self._failed(execution, error)
            raise
        return self._envelope(execution, value)

    def _begin(self, rollout: Rollout) -> tuple[Execution, Rollout]:
        """Opens the envelope."""
        ask, given = rollout.input
        execution = self._history.begin(trio.current_time(), ask, rollout.member, rollout.attempt)
        model = rollout.model
        if self._loaded.backend == "thread":
            model = _OnTheLoop(model)
        return execution, dataclasses.replace(rollout, input=given, model=model)

    def _failed(self, execution: Execution, error: BaseException) -> None:
        how = "cancelled" if isinstance(error, trio.Cancelled) else "raised"
        self._history.end(trio.current_time(), execution, error=error, how=how)  # type: ignore[arg-type]  # one of two literals

    def _envelope(self, execution: Execution, value: Any) -> dict[str, Any]:
        self._history.end(trio.current_time(), execution, value)
        return {"ask": execution.ask, "execution": execution.number, "value": value}


@final
class RecordedGroups(RecordedEnvironment):
    """The same for an environment that scores groups itself."""

    async def run_group(self, rollouts: list[Rollout]) -> Any:
        """The environment's own, with each value in an envelope."""
        assert self._loaded.run_group is not None
        begun = [self._begin(rollout) for rollout in rollouts]
        try:
            values = await _called(self._loaded.run_group, [own for _, own in begun])
            if not isinstance(values, list | tuple) or len(values) != len(begun):
                values = [TypeError(f"run_group must return {len(begun)} values")] * len(begun)
            trimmed = [
                value if isinstance(value, BaseException) else trim_state(value, own.state_columns)
                for value, (_, own) in zip(values, begun, strict=True)
            ]
        except BaseException as error:
            for execution, _ in begun:
                self._failed(execution, error)
            raise
        return [
            self._member(execution, value)
            for value, (execution, _) in zip(trimmed, begun, strict=True)
        ]

    def _member(self, execution: Execution, value: Any) -> Any:
        if isinstance(value, BaseException):
            self._failed(execution, value)
            return value
        return self._envelope(execution, value)


async def _called(code: Callable[..., Any], *arguments: Any) -> Any:
    """Run environment code to its end; a plain or a coroutine function."""
    value = code(*arguments)
    if inspect.iscoroutine(value):
        return await guarded(value)
    return await value if inspect.isawaitable(value) else value


@types.coroutine
def guarded(code: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Awaits ``code``, and ends it if it keeps ignoring its cancel.

    (trio resumes a task by sending it an outcome, which the innermost function
    unwraps: that is where a ``Cancelled`` is seen on its way in.)
    """
    cancels = 0
    sent: Any = None
    while True:
        try:
            trap = code.send(sent)
        except StopIteration as stop:
            return stop.value
        try:
            sent = yield trap
        except BaseException:  # noqa: ASYNC103
            code.close()  # trio throws nothing into a task: this one is being discarded
            raise
        cancels += isinstance(getattr(sent, "error", None), trio.Cancelled)
        if cancels > CANCELS_MOST:
            with contextlib.suppress(RuntimeError):  # it ignores this, too
                code.close()
            raise IgnoredCancel(
                f"this code went on after {CANCELS_MOST} cancellations: it must let "
                "trio.Cancelled through"
            )


class _Passed:
    """The task of a checkpoint that is passed without the loop."""

    @staticmethod
    def unwrap() -> None:
        """As trio's outcome."""


@final
class _OnTheLoop:
    """The model of a rollout whose code is called on the loop instead of in a thread."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def complete(
        self, messages: Messages, *, name: str, sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:  # fmt: skip
        """The model's own."""
        return await self._model.complete(
            messages, name=name, sampling_args=sampling_args, reference=reference
        )

    def complete_sync(
        self, messages: Messages, *, name: str, sampling_args: Mapping[str, Any],
        reference: str | None = None,
    ) -> Completion:  # fmt: skip
        """The model's own, run through without the loop: the offline models, all
        that a trial has, never wait for anything."""
        asked = self._model.complete(
            messages, name=name, sampling_args=sampling_args, reference=reference
        )
        sent: Any = None
        while True:
            try:
                asked.send(sent)
            except StopIteration as stop:
                return cast(Completion, stop.value)
            sent = _Passed

    async def aclose(self) -> None:
        """The model's own."""
        await self._model.aclose()
