"""The runner of requests: attempts, groups, set-up and tear-down of an environment.

Theory of operation
-------------------
One :class:`Runner` serves a worker for its whole life.  :meth:`Runner.run` is
one *execution*: it returns the value to encode, or raises

- :class:`ConfigError` if a model endpoint is unknown, or if a stored result is to be scored and
  the environment cannot do that.  Nothing ran.
- :class:`EnvironmentFailure` if the environment failed in the last attempt
  too.  A rollout that failed is repeated up to ``max_retries`` times; the input
  is copied for each attempt, so that none sees what another did to it.
  It begins with the newest state that is saved by then (:mod:`.saves`).
- ``trio.Cancelled`` if the calling scope was cancelled, after the environment's
  code has ended.  Cancellation is no failure: nothing is repeated.  An exception
  that the code raised on its way out is logged.  If it returned a value nevertheless,
  the value is returned: work that is done is not thrown away.

It raises nothing else, whatever the environment raises.

A group runs as the environment's ``run_group``, and is repeated as a whole; without ``run_group``
its members run concurrently and are repeated one by one.  In both cases the value is a list in the
order of the inputs, of ``{"ok": True, "value": v}`` and
``{"ok": False, "error": {"type", "message", "traceback", "code", "attempts"}}``.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, final

import trio

from .. import foreign, tracing
from ..carrier import WorkCarrier
from ..core.durations import Durations
from ..core.errors import ConfigError, EnvServeError
from ..core.limits import ServerLimits
from ..core.values import DecodingError
from ..envs.interface import Rollout, recorded, resumed, trim_state
from ..envs.late import Late
from ..envs.loading import LoadedEnvironment
from ..envs.notes import RolloutNotes
from ..envs.request import RolloutRequest
from ..envs.rescoring import NoScore, rescored, scorer_of
from ..envs.rewards import ScorerFailed
from ..envs.services import WorkerServices
from ..foreign import CodeResult
from ..models.interface import AskingRollout, Model
from ..models.registry import Models, open_models
from ..models.usage import ModelUsage
from ..models.waits import EndpointWaits
from .apart import ApartPool, open_apart
from .backends import CodeBackend, open_backend
from .carriers import RunContext
from .failures import EnvironmentFailure, Stage, failure_record, log
from .made import AttemptMade, Maker
from .model_calls import AskedModel, Find, no_policy
from .permits import ExecutionPermits, permits_here
from .resources import CarriedResources, ExecutionResources, resources_here
from .saves import ExecutionSaves


@dataclasses.dataclass(slots=True, kw_only=True)
class ExecutionContext:
    """What one execution is given beside its request; by default, what it has without a router."""

    pass_delta: Callable[[bytes], None] | None = None
    """Called with each delta of a rollout, in any thread."""
    noted: Callable[[bytes], None] | None = None
    """Called with each note, in any thread."""
    traceparent: str | None = None
    """The span above those of model calls and of the code."""
    permits: ExecutionPermits | None = None
    """Where the code gets its permits; None: limits hold over the runner."""
    late: Late = dataclasses.field(default_factory=Late)
    """When its rollouts are late."""
    waits: EndpointWaits = dataclasses.field(default_factory=EndpointWaits)
    """Counts how long its rollouts wait for their model."""
    saves: ExecutionSaves | None = None
    """Keeps what its rollouts save; None: nothing is kept."""


@final
class Runner:
    """Runs requests on one environment.  Made by :func:`open_runner`."""

    def __init__(
        self, env: LoadedEnvironment, backend: CodeBackend, models: Models, apart: ApartPool,
        maker: Maker,
    ) -> None:  # fmt: skip
        self._env = env
        self._backend = backend
        self.models = models
        self.calls_apart = apart
        self.maker = maker
        self.took = Durations()
        self.usage = ModelUsage(took=self.took)
        """Totals of all rollouts' model calls, and the histogram of their durations."""
        self.resources = resources_here(self.call_code)
        """Where rollouts get resources; by default nobody keeps them."""
        self._permits = permits_here()
        """Permits of executions that bring none."""
        self._numbers = itertools.count()

    async def run(
        self, request: RolloutRequest, *, request_id: str, context: ExecutionContext | None = None
    ) -> Any:
        """Run one execution of ``request``; returns the value of a rollout, or the list of a
        group.  May be called any number of times at once.  The module's docstring explains the
        errors.
        """
        context = context or ExecutionContext()
        found = request.endpoint, self.models.get(request.endpoint)
        for role in self._env.roles_of(request.roles):
            self.models.in_role(role, request.roles)
        scorer = scorer_of(self._env) if request.kind == "rescore" else None
        find: Find = no_policy if scorer is not None else lambda: found
        permits = context.permits or self._permits.of(next(self._numbers))
        job = _Job(self, request, request_id, find, permits, context)
        try:
            if scorer is not None:
                return await self._attempts(_RescoreCode(scorer, job))
            if request.kind == "rollout":
                return await self._attempts(_RolloutCode(self._env, job, 0))
            if self._env.run_group is not None:
                return await self._attempts(_GroupCode(self._env.run_group, job))
            return await self._members(job)
        finally:
            permits.close()
            if job.resources is not None:
                await job.resources.close()  # noqa: ASYNC102  # shields itself, and has limits

    def tell_waits(self) -> None:
        """Let the notes of rollouts say how long they wait for their model; called with each
        beat."""
        self.models.tell_waits()

    async def _members(self, job: _Job) -> list[dict[str, Any]]:
        """The members of a group, concurrently, each with attempts of its own."""
        records: list[dict[str, Any]] = [{} for _ in job.request.inputs]

        async def run_member(member: int) -> None:
            code = _RolloutCode(self._env, job, member)
            try:
                records[member] = {"ok": True, "value": await self._attempts(code)}
            except EnvironmentFailure as failure:
                records[member] = {"ok": False, "error": failure_record(failure)}

        async with trio.open_nursery() as nursery:
            for member in range(len(records)):
                nursery.start_soon(run_member, member)
        return records

    async def _attempts(self, code: _RepeatedCode) -> Any:
        """Repeat attempts until one returns a value, ``max_retries`` is used up, or it is late: a
        further attempt would have nothing to give.  Each begins with what is saved by then."""
        while True:
            await code.begin()
            try:
                return await self._call(code)
            except EnvironmentFailure as failure:
                if code.attempt > code.max_retries or code.late.is_set():
                    raise
                log(logging.DEBUG, "%s", failure)
            code.attempt += 1

    async def _call(self, code: _Code) -> Any:
        """One attempt, to its end."""
        try:
            ended = await self._backend.call(code)
        finally:
            await _close(code.made)  # noqa: ASYNC102  # shielded
        try:
            return _value(code, ended)
        except EnvironmentFailure as error:
            failure = error
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            log(logging.DEBUG, "ended by cancellation: %s", failure)
            raise
        raise failure

    async def call_code(self, function: Callable[[], Any]) -> CodeResult:
        """Call a coroutine function of the environment's modules; see ``CodeBackend.call``."""
        return await self._backend.call(lambda context: function())

    async def _hook(self, during: Stage) -> None:
        """Run setup or teardown, if the environment has it."""
        hook = self._env.setup if during == "setup" else self._env.teardown
        if hook is not None:
            await self._call(_HookCode(during, hook))


class _Code(Protocol):
    """Code of the environment, as a backend calls it."""

    during: Stage
    attempt: int
    """Number of the attempt in this execution, from 1."""
    made: list[AttemptMade]
    """The things that the attempt under way makes, of each rollout."""

    def __call__(self, context: RunContext) -> Any:
        """One attempt."""
        ...

    def finish(self, value: Any) -> Any:
        """The value to send, made from the returned one."""
        ...


async def _close(made: list[AttemptMade]) -> None:
    """End and remove what an attempt has made, before its value counts."""
    for each in made:
        each.end()
    while made:
        await made.pop().close()


def _value(code: _Code, ended: CodeResult) -> Any:
    """The value to send.  Raises :class:`EnvironmentFailure`."""
    if ended.error is None:
        # A value of the environment may be a mapping with code of its own.
        ended = foreign.call(code.finish, ended.value)
    error = ended.error
    if error is None:
        return ended.value
    if code.during == "rescore" and foreign.is_exception(error, Exception):
        error = _of_scorer(error)
    raise EnvironmentFailure(error, attempts=code.attempt, during=code.during) from error


def _of_scorer(error: BaseException) -> BaseException:
    """An error of a scorer: one of this package says itself whose fault it is."""
    if foreign.is_exception(error, EnvServeError) or foreign.is_exception(error, NoScore):
        return error
    failed = ScorerFailed("rescore()", error)
    failed.__cause__ = error
    return failed


class _RepeatedCode:
    """Code for members of a request, which is repeated if it fails."""

    during: Stage

    def __init__(self, job: _Job, members: Sequence[int]) -> None:
        self._job = job
        self._members = members
        self.late = job.late
        self.made: list[AttemptMade] = []
        self.attempt = 1
        self.max_retries = job.request.max_retries
        self._saved: list[Mapping[str, Any] | None]
        """What each member had saved before the attempt."""
        self._rollouts: list[Rollout]

    async def begin(self) -> None:
        """Read what was saved before this attempt.  Raises :class:`EnvironmentFailure` for bytes
        that are no save."""
        saves = self._job.saves
        try:
            self._saved = [
                None if saves is None else await saves.saved(member) for member in self._members
            ]
        except DecodingError as error:
            raise EnvironmentFailure(error, attempts=self.attempt, during=self.during) from error

    def __call__(self, context: RunContext) -> Any:
        self._rollouts = [
            self._job.rollout(context, member, self, saved)
            for member, saved in zip(self._members, self._saved, strict=True)
        ]
        return self._run()

    def _run(self) -> Any:
        raise NotImplementedError

    def finish(self, value: Any) -> Any:
        """See :meth:`_Code.finish`."""
        raise NotImplementedError


@final
class _RolloutCode(_RepeatedCode):
    """A rollout: alone, or a member of a group."""

    during = "rollout"

    def __init__(self, env: LoadedEnvironment, job: _Job, member: int) -> None:
        super().__init__(job, (member,))
        self._env = env

    def _run(self) -> Any:
        return self._env.run_rollout(self._rollouts[0])

    def finish(self, value: Any) -> Any:
        """The result with the recorded data, and with the wanted columns of its state."""
        value = trim_state(value, self._job.request.state_columns)
        return recorded(value, self._rollouts[0])


@final
class _GroupCode(_RepeatedCode):
    """A group that the environment runs itself."""

    during = "group"

    def __init__(self, run_group: Callable[[list[Rollout]], Any], job: _Job) -> None:
        super().__init__(job, range(len(job.request.inputs)))
        self._run_group = run_group

    def _run(self) -> Any:
        return self._run_group(list(self._rollouts))

    def finish(self, values: Any) -> Any:
        """A record for each member."""
        if not isinstance(values, (list, tuple)) or len(values) != len(self._members):
            what = len(values) if isinstance(values, (list, tuple)) else type(values).__name__
            raise TypeError(
                "run_group must return a list with a value for each of its "
                f"{len(self._members)} rollouts, not {what}"
            )
        columns = self._job.request.state_columns
        return [
            _record(value, columns, self.attempt, rollout)
            for value, rollout in zip(values, self._rollouts, strict=True)
        ]


@final
class _RescoreCode(_RepeatedCode):
    """The scorer of a stored result."""

    during = "rescore"

    def __init__(self, scorer: Callable[[Rollout, Any], Any], job: _Job) -> None:
        super().__init__(job, (0,))
        self._scorer = scorer

    async def begin(self) -> None:
        """Nothing is read: a scorer begins anew."""
        self._saved = [None]

    def _run(self) -> Any:
        (rollout,) = self._rollouts
        self._rollout = dataclasses.replace(rollout, input=rollout.input["input"])
        return self._scorer(self._rollout, rollout.input["value"])

    def finish(self, value: Any) -> Any:
        """The stored result with its new reward."""
        return rescored(self._job.request.input["value"], value, self._rollout)


@final
class _HookCode:
    """Setup or teardown."""

    attempt = 1

    def __init__(self, during: Stage, hook: Callable[[], Any]) -> None:
        self.during = during
        self.made: list[AttemptMade] = []
        self._hook = hook

    def __call__(self, context: RunContext) -> Any:
        return self._hook()

    def finish(self, value: Any) -> None:
        """Ignore the value of a hook."""


@final
class _Job:
    """A running request, which makes the rollouts for its attempts."""

    def __init__(
        self, runner: Runner, request: RolloutRequest, request_id: str, find: Find,
        permits: ExecutionPermits, context: ExecutionContext,
    ) -> None:  # fmt: skip
        self._runner = runner
        self._permits = permits
        self._context = context
        self.late = context.late
        self.saves = context.saves
        self.resources: ExecutionResources | None = None
        """Those of the execution; None before the first one."""
        above = context.traceparent
        self._trace = tracing.NO_TRACE if above is None else tracing.Trace(above)
        self.request = request
        self._request_id = request_id
        self._find = find

    def rollout(
        self, context: RunContext, member: int, code: _Code, saved: Mapping[str, Any] | None
    ) -> Rollout:
        """The environment's argument for one attempt."""
        request, attempt = self.request, code.attempt
        made = AttemptMade(self._runner.maker)
        code.made.append(made)
        alone = request.kind != "group"
        given = request.input if alone else request.input[member]
        sampling_args = dict(request.sampling_args)
        if attempt <= request.max_retries or request.kind == "rescore":
            # Another attempt may follow, or what was stored is to stay as it is.
            given, sampling_args = copy.deepcopy((given, sampling_args))
        elif not alone:
            sampling_args = copy.deepcopy(sampling_args)  # each member has its own
        note = self._notes(member, attempt)
        name = self._request_id if alone else f"{self._request_id}/{member}"
        waits = functools.partial(_waits, note)
        endpoint_waits = EndpointWaits(self._context.waits)
        asker = AskingRollout(
            name, self._request_id, member, attempt, waits, permit=self._permits.of_endpoint,
            endpoint_waits=endpoint_waits,
        )  # fmt: skip

        def in_role(role: str) -> Model:
            find = functools.partial(self._runner.models.in_role, role, request.roles)
            asks = dataclasses.replace(asker, model=f"the {role}")
            return AskedModel(find, asks, self._trace, context.carrier, role)

        services = WorkerServices(
            carrier=context.carrier,
            apart=self._runner.calls_apart.run,
            save=_unsaved if self.saves is None else functools.partial(self.saves.save, member),
            claim=functools.partial(self._permits.acquire, waits=waits),
            made=made,
            resources=functools.partial(self._opener, context.carrier),
        )
        rollout = Rollout(
            input=given,
            model=AskedModel(self._find, asker, self._trace, context.carrier),
            model_name=request.model_name,
            sampling_args=sampling_args,
            state_columns=request.state_columns,
            attempt=attempt,
            request=self._request_id,
            member=member,
            cancelled=context.cancelled,
            endpoint=request.endpoint,
            usage=ModelUsage(self._runner.usage, waits=endpoint_waits),
            delta=_delta(self._context.pass_delta if alone else None),
            note=note,
            late=self.late,
            _in_role=in_role,
            _trace=self._trace,
            _services=services,
        )
        return rollout if saved is None else resumed(rollout, saved)

    def _opener(self, carrier: WorkCarrier) -> CarriedResources:
        """Opener of the resources of a rollout; in any thread."""
        if self.resources is None:
            number = self._permits.number
            made = ExecutionResources(self._runner.resources, number, self._request_id)
            self.resources = made
        return CarriedResources(self.resources, carrier)

    def _notes(self, member: int, attempt: int) -> RolloutNotes:
        """The notes of one attempt, without the fields that earlier attempts wrote."""
        always: dict[str, int] = {"attempt": attempt} if attempt > 1 else {}
        if self.request.kind == "group":
            always["member"] = member
        return RolloutNotes(self._context.noted, **always)


async def _unsaved(record: Mapping[str, Any]) -> None:
    """Keep nothing of a save."""
    await trio.lowlevel.checkpoint()


def _waits(note: RolloutNotes, text: str | None) -> None:
    note.add(waits=text)


def _delta(pass_delta: Callable[[bytes], None] | None) -> Callable[[bytes], None]:
    """The function that environment code calls with a delta; without ``pass_delta`` it drops it."""

    def delta(piece: bytes) -> None:
        if type(piece) is not bytes:  # other kinds may change, or have code of their own
            raise TypeError(f"a delta is bytes, not {type(piece).__name__}")
        if pass_delta is not None:
            pass_delta(piece)

    return delta


def _record(value: Any, columns: tuple[str, ...], attempt: int, rollout: Rollout) -> dict[str, Any]:
    if foreign.is_exception(value):
        ended = CodeResult(error=value)
    else:  # it may be a mapping with code of its own
        ended = foreign.call(lambda: recorded(trim_state(value, columns), rollout))
    if ended.error is None:
        return {"ok": True, "value": ended.value}
    failure = EnvironmentFailure(ended.error, attempts=attempt, during="group")
    return {"ok": False, "error": failure_record(failure)}


@asynccontextmanager
async def open_runner(
    env: LoadedEnvironment,
    *,
    threads: int,
    models: Models | None = None,
    teardown_s: float = ServerLimits().teardown_s,
) -> AsyncIterator[Runner]:
    """Set an environment up and open its runner; tear the environment down at the end.

    ``threads``: most rollouts at once of an environment that runs in threads (setup and teardown
    use a thread as well).  ``models``: the model clients to use, which stay open; None: the runner
    has its own.

    All executions must have ended before the block does.  Raises :class:`EnvironmentFailure` if
    ``setup`` fails, and :class:`ConfigError` if that is what it raises; there is no ``teardown``
    then.  A ``teardown`` that fails, or takes longer than ``teardown_s``, is logged.
    """
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        maker = Maker(nursery)
        try:
            async with AsyncExitStack() as stack:
                if models is None:
                    models = await stack.enter_async_context(open_models())
                backend = stack.enter_context(
                    open_backend(env.backend, nursery, threads=threads, mixed=env.mixed)
                )
                apart = await stack.enter_async_context(open_apart())
                runner = Runner(env, backend, models, apart, maker)
                await _set_up(runner)
                try:
                    yield runner
                finally:
                    await _tear_down(runner, teardown_s)  # noqa: ASYNC102
        except BaseException as exc:  # noqa: ASYNC103
            # Raised again below, outside this nursery, which would wrap it.
            raised = exc
        nursery.cancel_scope.cancel()
    await maker.close()
    if raised is not None:
        try:
            raise raised
        finally:
            del raised  # no cycle with its own traceback


async def _set_up(runner: Runner) -> None:
    try:
        return await runner._hook("setup")
    except EnvironmentFailure as failure:
        if type(failure.exception) is not ConfigError:
            raise
        refused = failure.exception
    raise refused  # here, where it gets no context: its message says what to do


async def _tear_down(runner: Runner, teardown_s: float) -> None:
    # Shielded: an environment cleans up, within a limit, even if its worker is cancelled.
    with trio.move_on_after(teardown_s, shield=True) as scope:
        try:
            await runner._hook("teardown")
        except EnvironmentFailure as failure:
            # No caller is left to whom it could be reported.
            log(logging.WARNING, "the environment's %s", failure, about=failure.exception)
    if scope.cancelled_caught:
        log(logging.WARNING, "the environment's teardown took longer than %g s", teardown_s)
