"""Runs requests: attempts, groups, set-up and tear-down of an environment.

Theory of operation
-------------------
One :class:`Runner` serves a worker for its whole life.  :meth:`Runner.run` is
one *execution*: it returns the value to encode, or raises

- :class:`ConfigError` if the model endpoint is unknown.  Nothing ran.
- :class:`EnvironmentFailure` if the environment failed in the last attempt
  too.  A rollout that failed is repeated up to ``max_retries`` times; the input
  is copied for each attempt, so that none sees what another did to it.
- ``trio.Cancelled`` if the calling scope was cancelled, after the environment's
  code has ended.  Cancellation is no failure: nothing is repeated.  What the
  code raised on its way out is logged.  If it returned a value nevertheless,
  the value is returned: work that is done is not thrown away.

It raises nothing else, whatever the environment raises.

A task that exists for this execution only, and awaits nothing more after it, runs the
execution ``here``: the last attempt then needs no task of its own.  Something that the
code leaves behind in the task (a shielded scope, say) may hide a cancel.  So a cancelled
execution may end with :class:`EnvironmentFailure`, too, and the caller looks at the
scope that it owns.

A group runs as the environment's ``run_group``, repeated as a whole; without
one, its members run concurrently and are repeated one by one.  Either way the
value is a list in the order of the inputs, of ``{"ok": True, "value": v}`` and
``{"ok": False, "error": {"type", "message", "traceback", "attempts"}}``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, final

import trio

from .. import foreign, tracing
from ..core.durations import Durations
from ..core.limits import WorkerLimits
from ..envs.interface import Rollout, trim_state
from ..envs.loading import LoadedEnvironment
from ..envs.notes import RolloutNotes
from ..envs.request import RolloutRequest
from ..foreign import CodeResult
from ..models.interface import Model
from ..models.registry import Models, open_models
from ..models.usage import ModelUsage
from .backends import Call, CodeBackend, open_backend
from .failures import EnvironmentFailure, Stage, failure_record, log
from .model_calls import RunContext
from .traced import TracedModel


@final
class Runner:
    """Runs requests on one environment.  Made by :func:`open_runner`."""

    def __init__(self, env: LoadedEnvironment, backend: CodeBackend, models: Models) -> None:
        self._env = env
        self._backend = backend
        self._models = models
        self.took = Durations()
        self.usage = ModelUsage(took=self.took)
        """What the model calls of all rollouts came to, and how long they took."""

    async def run(
        self, request: RolloutRequest, *, request_id: str, here: bool = False,
        said: Callable[[bytes], None] | None = None,
        noted: Callable[[bytes], None] | None = None, traceparent: str | None = None,
    ) -> Any:  # fmt: skip
        """One execution of ``request``: the value of a rollout, or the list of a
        group.  May be called any number of times at once.  The module's docstring has
        the errors and the meaning of ``here``.  ``said`` is called with each delta of a
        rollout, ``noted`` with each note, in any thread.  Spans of the model calls, and of
        the code's own, are below ``traceparent``.
        """
        model, trace = self._models.get(request.endpoint), tracing.NO_TRACE
        if traceparent is not None:
            trace = tracing.Trace(traceparent)
            model = TracedModel(model, trace, request.endpoint)
        job = _Job(request, request_id, model, self.usage, said, noted, trace)
        if request.kind == "rollout":
            return await self._rollout(job, 0, here=here)
        if self._env.run_group is not None:
            return await self._group(job, self._env.run_group, here=here)
        return await self._members(job)

    async def _rollout(self, job: _Job, member: int, *, here: bool) -> Any:
        """One rollout: alone, or a member of a group."""

        def code(context: RunContext, attempt: int) -> Any:
            return self._env.run_rollout(job.rollout(context, member, attempt))

        def finish(value: Any, attempt: int) -> Any:
            return trim_state(value, job.request.state_columns)

        return await self._attempts(job, _Code("rollout", code, finish), here=here)

    async def _group(
        self, job: _Job, run_group: Callable[[list[Rollout]], Any], *, here: bool
    ) -> Any:
        """A group that the environment runs itself."""
        members = range(len(job.request.inputs))

        def code(context: RunContext, attempt: int) -> Any:
            return run_group([job.rollout(context, member, attempt) for member in members])

        def finish(values: Any, attempt: int) -> Any:
            if not isinstance(values, (list, tuple)) or len(values) != len(members):
                what = len(values) if isinstance(values, (list, tuple)) else type(values).__name__
                raise TypeError(
                    "run_group must return a list with a value for each of its "
                    f"{len(members)} rollouts, not {what}"
                )
            return [_record(value, job.request.state_columns, attempt) for value in values]

        return await self._attempts(job, _Code("group", code, finish), here=here)

    async def _members(self, job: _Job) -> list[dict[str, Any]]:
        """The members of a group, concurrently, each with attempts of its own."""
        records: list[dict[str, Any]] = [{} for _ in job.request.inputs]

        async def run_member(member: int) -> None:
            try:
                records[member] = {
                    "ok": True,
                    "value": await self._rollout(job, member, here=False),
                }
            except EnvironmentFailure as failure:
                records[member] = {"ok": False, "error": failure_record(failure)}

        async with trio.open_nursery() as nursery:
            for member in range(len(records)):
                nursery.start_soon(run_member, member)
        return records

    async def _attempts(self, job: _Job, code: _Code, *, here: bool) -> Any:
        """Call until a value comes back, or ``max_retries`` is used up."""
        attempt = 1
        while attempt <= job.request.max_retries:
            try:
                return await self._call(code, attempt)
            except EnvironmentFailure as failure:
                log(logging.DEBUG, "%s", failure)
            attempt += 1
        if not here:
            return await self._call(code, attempt)
        return code.value(await self._backend.call_here(code.bound(attempt)), attempt)

    async def _call(self, code: _Code, attempt: int) -> Any:
        """One attempt, to its end."""
        ended = await self._backend.call(code.bound(attempt))
        try:
            return code.value(ended, attempt)
        except EnvironmentFailure as error:
            failure = error
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            log(logging.DEBUG, "ended by cancellation: %s", failure)
            raise
        raise failure

    async def _hook(self, during: Stage) -> None:
        """Run setup or teardown, if the environment has it."""
        hook = self._env.setup if during == "setup" else self._env.teardown
        if hook is not None:
            await self._call(_Code(during, lambda context, attempt: hook(), lambda *_: None), 1)


@final
class _Code:
    """A call of the environment, the same in all attempts."""

    def __init__(
        self,
        during: Stage,
        code: Callable[[RunContext, int], Any],
        finish: Callable[[Any, int], Any],
    ) -> None:
        self._during = during
        self._code = code
        self._finish = finish
        """Makes the value to send from the code's result and the attempt."""

    def bound(self, attempt: int) -> Call:
        return lambda context: self._code(context, attempt)

    def value(self, ended: CodeResult, attempt: int) -> Any:
        """The value to send.  Raises :class:`EnvironmentFailure`."""
        if ended.error is None:
            # The value is the environment's, and may be a mapping with code of its own.
            ended = foreign.call(self._finish, ended.value, attempt)
        error = ended.error
        if error is None:
            return ended.value
        raise EnvironmentFailure(error, attempts=attempt, during=self._during) from error


@final
class _Job:
    """A request under way: makes the rollouts for its attempts."""

    def __init__(
        self, request: RolloutRequest, request_id: str, model: Model, usage: ModelUsage,
        said: Callable[[bytes], None] | None, noted: Callable[[bytes], None] | None,
        trace: tracing.Trace,
    ) -> None:  # fmt: skip
        self._trace = trace
        self._said = said
        self._noted = noted
        self.request = request
        self._request_id = request_id
        self._model = model
        self._usage = usage

    def rollout(self, context: RunContext, member: int, attempt: int) -> Rollout:
        given = self.request.inputs[member]
        sampling_args = dict(self.request.sampling_args)
        if attempt <= self.request.max_retries:  # another attempt may follow
            given, sampling_args = copy.deepcopy((given, sampling_args))
        said = self._said if self.request.kind == "rollout" else None
        return Rollout(
            input=given,
            model=context.adapt(self._model),
            model_name=self.request.model_name,
            sampling_args=sampling_args,
            state_columns=self.request.state_columns,
            attempt=attempt,
            request=self._request_id,
            member=member,
            cancelled=context.cancelled,
            endpoint=self.request.endpoint,
            usage=ModelUsage(self._usage),
            delta=_delta(said),
            note=self._notes(member, attempt),
            _trace=self._trace,
        )

    def _notes(self, member: int, attempt: int) -> RolloutNotes:
        """Those of one attempt: what the one before noted holds no more."""
        always: dict[str, int] = {"attempt": attempt} if attempt > 1 else {}
        if self.request.kind == "group":
            always["member"] = member
        return RolloutNotes(self._noted, **always)


def _delta(said: Callable[[bytes], None] | None) -> Callable[[bytes], None]:
    """What the environment's code calls with a delta, which goes nowhere if nobody is told."""

    def delta(piece: bytes) -> None:
        if type(piece) is not bytes:  # other kinds may change, or have code of their own
            raise TypeError(f"a delta is bytes, not {type(piece).__name__}")
        if said is not None:
            said(piece)

    return delta


def _record(value: Any, columns: tuple[str, ...], attempt: int) -> dict[str, Any]:
    if foreign.is_exception(value):
        failure = EnvironmentFailure(value, attempts=attempt, during="group")
        return {"ok": False, "error": failure_record(failure)}
    return {"ok": True, "value": trim_state(value, columns)}


@asynccontextmanager
async def open_runner(
    env: LoadedEnvironment,
    *,
    threads: int,
    models: Models | None = None,
    teardown_s: float = WorkerLimits().teardown_s,
) -> AsyncIterator[Runner]:
    """A runner whose environment is set up, and torn down at the end.

    ``threads`` bounds the rollouts at once of an environment that runs in
    threads (setup and teardown use one as well).  ``models`` are the clients to use;
    they stay open.  Without it the runner has its own.

    All executions must have ended before the block does.  Raises
    :class:`EnvironmentFailure` if ``setup`` fails; there is no ``teardown``
    then.  A ``teardown`` that fails, or takes longer than ``teardown_s``, is
    logged.
    """
    async with AsyncExitStack() as stack:
        if models is None:
            models = await stack.enter_async_context(open_models())
        backend = await stack.enter_async_context(open_backend(env.backend, threads=threads))
        runner = Runner(env, backend, models)
        await runner._hook("setup")
        try:
            yield runner
        finally:
            await _tear_down(runner, teardown_s)  # noqa: ASYNC102


async def _tear_down(runner: Runner, teardown_s: float) -> None:
    # Shielded: an environment cleans up, within a limit, even if its worker is cancelled.
    with trio.move_on_after(teardown_s, shield=True) as scope:
        try:
            await runner._hook("teardown")
        except EnvironmentFailure as failure:
            # The rollouts are done; no caller is left to report to.
            log(logging.WARNING, "the environment's %s", failure, about=failure.exception)
    if scope.cancelled_caught:
        log(logging.WARNING, "the environment's teardown took longer than %g s", teardown_s)
