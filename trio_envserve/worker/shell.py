"""The worker's shell: one environment, one task for each execution.

Theory of operation
-------------------
:class:`~trio_envserve.core.worker.WorkerCore` decides; this module moves its messages and runs the
environment's code.  The nursery owns the receiver, the beat, the lag sampler and the *execution
nursery*, whose tasks run executions (:mod:`.execution_tasks`).  Whatever an execution does, it ends
in exactly one :class:`~trio_envserve.core.worker.OutcomeMade`, which the core takes synchronously.
There a completion that races with a cancel has one winner.

The shell runs in a worker process and, with a stream in memory, inside the server's own process
(``workers=0``).
"""

from __future__ import annotations

import contextvars
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, final

import trio

from .. import tracing
from ..core import error_records, messages, model_totals
from ..core.errors import ConfigError
from ..core.lag import LagMeter
from ..core.limits import WireLimits, WorkerLimits
from ..core.terms import Body, Incarnation, Status
from ..core.worker import (
    BeatDue,
    CancelRun,
    DeltaMade,
    EnvironmentReady,
    Exit,
    NoteMade,
    OutcomeMade,
    OutcomeParked,
    Park,
    RouterMessage,
    Run,
    SetUpFailed,
    ToRouter,
    WorkerCore,
    WorkerEffect,
    frames_to_router,
    never_began,
)
from ..envs.loading import LoadedEnvironment
from ..models.endpoints import endpoints_file, read_endpoints
from ..net import MessageStream
from ..redaction import hide_named
from . import forks
from .deltas import Deltas
from .execution_tasks import ExecutionTasks
from .failures import EnvironmentFailure, log
from .left_behind import innermost_scope, is_clean
from .outcomes import LargeValue, Outcome, OutcomeMaker, described
from .parking import Parking
from .runners import Runner, open_runner
from .stacks import REQUEST


def _hide_secrets() -> None:
    """Hide the secrets that variables and the file of endpoints name, before any text is made."""
    hide_named()
    with suppress(ConfigError):  # a malformed file is reported when a model is asked
        if os.path.exists(endpoints_file()):
            read_endpoints()


async def run_worker(
    stream: MessageStream,
    *,
    worker: bytes,
    incarnation: Incarnation,
    load: Callable[[], LoadedEnvironment],
    limits: WorkerLimits,
    wire: WireLimits,
    touch: Callable[[float], None] = lambda period_s: None,
) -> bool:
    """Serve one environment until told to retire; False if it could not be set up.

    ``stream``: the link to the server; when it ends, the worker ends.  ``load`` makes the
    environment.  ``touch`` is called in each turn of the lag sampler, for the heartbeat thread.
    """
    _hide_secrets()
    core = WorkerCore(
        incarnation, header_bytes=wire.header_bytes, announce_bytes=limits.announce_bytes,
        most_held_bytes=limits.held_bytes,
    )  # fmt: skip
    ready = True
    with forks.watched():
        try:
            environment = load()
            capacity = environment.capacity_by(limits.capacity)
            async with open_runner(
                environment, threads=capacity, teardown_s=limits.teardown_s
            ) as runner:
                outcomes = OutcomeMaker(
                    runner, worker=worker.decode(), incarnation=incarnation, wire=wire
                )
                shell = _Shell(stream, core, outcomes, runner, environment, limits)
                await shell.run(touch)
        except (ConfigError, EnvironmentFailure) as error:
            ready = False
            log(logging.ERROR, "the environment cannot be set up: %s", error)
            code = messages.UNLOADABLE if isinstance(error, ConfigError) else "broken"
            effects = core.take(SetUpFailed(described(error, code, worker.decode())))
            said = [effect for effect in effects if isinstance(effect, ToRouter)]
            stream.send_many_nowait(list(frames_to_router(said)))
        with trio.move_on_after(wire.flush_s):
            await stream.flush()
    return ready


@final
class _Shell:
    """One incarnation at work."""

    def __init__(
        self, stream: MessageStream, core: WorkerCore, outcomes: OutcomeMaker, runner: Runner,
        environment: LoadedEnvironment, limits: WorkerLimits,
    ) -> None:  # fmt: skip
        self._stream = stream
        self._core = core
        self._outcomes = outcomes
        self._runner = runner
        self._environment = environment
        self._limits = limits
        self._parking = Parking(self._parked, limits.held_bytes)
        self._scopes: dict[int, trio.CancelScope] = {}
        """Scope of each execution that has begun, until it is cancelled or its end is reported."""
        self._stopped: set[int] = set()
        """Executions that were cancelled before they began."""
        self._deltas = Deltas(self._deltas_made)
        self._noted: dict[int, bytes] = {}
        """Last note of each execution since the last beat.  Set in any thread, and only popped by
        the loop: notes cost the loop nothing before the next beat."""
        self._unsent: list[ToRouter] = []
        self._has_unsent = trio.Event()
        """Set while a message is unsent."""
        self._lag = LagMeter()
        self._done = trio.Event()
        self._tasks = ExecutionTasks(self._execute, self._parking, self._done)

    async def run(self, touch: Callable[[float], None]) -> None:
        async with trio.open_nursery() as nursery:
            self._tasks.open(nursery)
            nursery.start_soon(self._receive)
            nursery.start_soon(self._send)
            nursery.start_soon(self._beat)
            nursery.start_soon(self._measure, touch)
            nursery.start_soon(self._parking.run)
            try:
                await self._done.wait()
            finally:
                self._tasks.closing = True  # dispatches that arrive from now on are not begun
                for scope in self._scopes.values():
                    scope.cancel()
            nursery.cancel_scope.cancel()

    async def _receive(self) -> None:
        while True:
            try:
                batch = await self._stream.receive()
            except trio.EndOfChannel:
                self._done.set()  # the server is gone
                return
            effects: list[WorkerEffect] = []
            for frames in batch:
                effects += self._core.take(RouterMessage(frames))
            self._do(effects)
            self._tasks.wake()

    def _parked(self, number: int, payload: Body | None) -> None:
        if payload is not None:
            self._do(self._core.take(OutcomeParked(number, payload)))
        self._tasks.wake()

    async def _send(self) -> None:
        """Send the outcomes of one turn of the loop together, so that the router wakes once."""
        while True:
            await self._has_unsent.wait()
            self._send_now()

    def _send_now(self) -> None:
        if self._has_unsent.is_set():
            self._has_unsent = trio.Event()
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._stream.send_many_nowait(list(frames_to_router(unsent)))

    async def _beat(self) -> None:
        while True:
            if not self._core.acknowledged:
                environment = self._environment
                ready = EnvironmentReady(
                    os.getpid(), environment.name, environment.rerun,
                    environment.capacity_by(self._limits.capacity),
                )  # fmt: skip
                self._do(self._core.take(ready))
            self._runner.tell_waits()
            for _ in range(len(self._noted)):
                self._do(self._core.take(NoteMade(*self._noted.popitem())))
            self._do(self._core.take(BeatDue(self._stats())))
            self._send_now()  # a beat counts the messages before it as sent
            await trio.sleep(self._limits.beat_s)

    async def _measure(self, touch: Callable[[float], None]) -> None:
        while True:
            touch(self._lag.period_s)
            asked_s = trio.current_time()
            await trio.sleep(self._lag.period_s)
            self._lag.record(trio.current_time() - asked_s)

    def _stats(self) -> dict[str, Any]:
        core, runner = self._core, self._runner
        return {
            **self._lag.summary("loop"),
            "running": len(core.running),
            "fenced": core.fenced,
            "repeated": core.repeated,
            "malformed": core.malformed,
            **model_totals.to_statistics(runner.usage.to_record(), runner.took),
        }

    def _do(self, effects: Sequence[WorkerEffect]) -> None:
        for effect in effects:
            match effect:
                case ToRouter():
                    self._unsent.append(effect)
                case Run():
                    self._tasks.arrived.append(effect)
                case CancelRun(number):
                    scope = self._scopes.pop(number, None)
                    if scope is None:
                        self._stopped.add(number)
                    else:
                        scope.cancel()
                case Park():
                    self._parking.add(effect.number, effect.payload)
                case Exit():
                    self._done.set()
        if self._tasks.closing or not self._core.running:
            self._send_now()  # no further outcome could share the batch
        elif self._unsent and not self._has_unsent.is_set():
            self._has_unsent.set()

    async def _execute(
        self, task: trio.lowlevel.Task, context: contextvars.Context, now_s: float, until_s: float
    ) -> float | None:
        """Run executions, from their dispatches to their outcomes, until one is cancelled.  They
        share a scope, since opening and closing one takes longer than an empty rollout.  Returns
        the moment at which the last one ended; None if its code left something behind in this
        task."""
        outcome: Outcome | LargeValue | None = None
        closed = True
        scope = trio.CancelScope(shield=True)
        try:
            with scope:
                around = innermost_scope(task)
                while True:
                    run, began_s = self._tasks.arrived.popleft(), now_s
                    self._tasks.wake()
                    outcome = await self._run_one(task, run, began_s, scope)
                    if run.number not in self._scopes or not is_clean(task, context, around):
                        break
                    made, outcome = outcome, None
                    now_s = self._report(task, run, made, began_s)
                    if not self._tasks.may_take(task, now_s, until_s):
                        return now_s
        except RuntimeError:
            # With an outcome, the error is trio's: the code left a scope open.
            if outcome is None:
                raise
            closed = False
        now_s = self._report(task, run, outcome, began_s)
        return now_s if closed and is_clean(task, context, innermost_scope(task)) else None

    def _report(
        self, task: trio.lowlevel.Task, run: Run, outcome: Outcome | LargeValue | None,
        began_s: float,
    ) -> float:  # fmt: skip
        """Report the outcome of an execution, or its cancel if there is none; returns the time."""
        if not isinstance(outcome, LargeValue):
            return self._ended(run, outcome, began_s)
        # In a task of its own: the code may have left anything in this one.
        scope = trio.CancelScope(shield=True)
        if self._tasks.closing or run.number not in self._scopes:
            scope.cancel()
        else:
            self._scopes[run.number] = scope
        nursery = task.parent_nursery
        assert nursery is not None
        nursery.start_soon(self._encode_large, run, outcome, began_s, scope, name=task.name)
        return trio.current_time()

    async def _run_one(
        self, task: trio.lowlevel.Task, run: Run, began_s: float, scope: trio.CancelScope
    ) -> Outcome | LargeValue:
        """The outcome of one execution; raises Cancelled if it is cancelled."""
        request = str(run.request)
        task.name = f"{REQUEST}{request}"
        if run.number in self._stopped:
            self._stopped.discard(run.number)
            return _never_began(run)
        self._scopes[run.number] = scope
        try:
            asked = self._outcomes.decoded_at_once(run.body)
            if asked is None:
                asked = await self._outcomes.decoded(run.body)
        except trio.Cancelled:  # noqa: ASYNC103  # the scope is the caller's, and is left next
            return _never_began(run)  # noqa: ASYNC104  # as above
        make = self._outcomes.of if run.traceparent is None else self._traced
        return await make(
            request,
            asked,
            began_s,
            scope,
            self._deltas.of(run.number),
            partial(self._noted.__setitem__, run.number),
            run.traceparent,
        )

    async def _traced(self, *args: Any) -> Outcome | LargeValue:
        """An outcome, as :meth:`.OutcomeMaker.of` makes it, below the span of its execution."""
        with tracing.below(args[-1]):
            return await self._outcomes.of(*args)

    def _deltas_made(self, made: list[DeltaMade]) -> None:
        """Give the core the deltas of executions."""
        self._do([effect for each in made for effect in self._core.take(each)])

    async def _encode_large(
        self, run: Run, large: LargeValue, began_s: float, scope: trio.CancelScope
    ) -> None:
        """Encode a value that takes long, and end its execution."""
        with self._tasks.failing():
            outcome: Outcome | None = None
            with scope:
                outcome = await self._outcomes.of_large(large, began_s)
            self._ended(run, outcome, began_s)

    def _ended(self, run: Run, outcome: Outcome | None, began_s: float) -> float:
        """Give the core the end of an execution, completed or cancelled, without an await after the
        decision; returns the time."""
        self._scopes.pop(run.number, None)
        if self._deltas.due:
            self._deltas.drain()  # an execution's deltas precede its outcome
        if outcome is None:
            outcome = self._outcomes.cancelled(began_s)
        now_s = trio.current_time()
        if self._tasks.closing and outcome[0] is Status.CANCELLED:
            return now_s  # nobody cancelled it: it is lost with its worker
        status, payload = outcome
        self._do(self._core.take(OutcomeMade(run.number, status, payload, now_s - began_s)))
        return now_s


def _never_began(run: Run) -> Outcome:
    """The outcome of an execution that was cancelled before its code had begun."""
    return Status.CANCELLED, error_records.encode(never_began(run.request))
