"""The worker's shell: one environment, one task for each execution.

Theory of operation
-------------------
:class:`~trio_envserve.core.worker.WorkerCore` decides; this module moves its messages and runs the
environment's code.  The nursery owns the receiver, the beat, the lag sampler and the executions
(:mod:`.execution_tasks`).  Whatever an execution does, it ends in exactly one
:class:`~trio_envserve.core.worker.OutcomeMade`, which the core takes synchronously.  There a
completion that races with a cancel has one winner.

The shell runs in a worker process and, with a stream in memory, inside the server's own process
(``workers=0``).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import trio

from ..core import error_records, messages, worker_history
from ..core.clock import LagMeter
from ..core.errors import ConfigError
from ..core.limits import ServerLimits, WireLimits
from ..core.messages import Clean
from ..core.scope import Stated
from ..core.terms import Body, Incarnation, Status
from ..core.worker import (
    BeatDue,
    BeginRun,
    CancelRun,
    DeltaMade,
    EnvironmentReady,
    Exit,
    GoOn,
    NoteMade,
    OutcomeMade,
    OutcomeParked,
    Park,
    RouterMessage,
    SaveEnded,
    SaveMade,
    SetUpFailed,
    ToRouter,
    WorkerCore,
    WorkerEffect,
    WorkerInput,
    frames_to_router,
    never_began,
)
from ..envs.loading import LoadedEnvironment
from ..models.endpoints import hide_secrets
from ..net import MessageStream
from . import forks
from .deltas import Deltas
from .execution_tasks import ExecutionTasks
from .failures import EnvironmentFailure, log
from .outcomes import Outcome, OutcomeMaker, described
from .parking import Parking
from .permits import WorkerPermits
from .resources import WorkerResources
from .runners import ExecutionContext, Runner, open_runner
from .saves import Saves


async def run_worker(
    stream: MessageStream,
    *,
    worker: bytes,
    incarnation: Incarnation,
    load: Callable[[], LoadedEnvironment],
    limits: ServerLimits,
    wire: WireLimits,
    touch: Callable[[float], None] = lambda period_s: None,
) -> bool:
    """Serve one environment until told to retire; False if it could not be set up.

    ``stream``: the link to the server; when it ends, the worker ends.  ``load`` makes the
    environment.  ``touch`` is called in each turn of the lag sampler, for the heartbeat thread.
    """
    hide_secrets()
    core = WorkerCore(incarnation, limits=limits, wire=wire)
    ready = True
    with forks.watched():
        try:
            environment = load()
            capacity = environment.capacity_by(limits.worker_capacity)
            async with open_runner(
                environment, threads=capacity, teardown_s=limits.teardown_s
            ) as runner:
                outcomes = OutcomeMaker(
                    runner, worker=worker.decode(), incarnation=incarnation, wire=wire
                )
                shell = _Shell(stream, core, outcomes, runner, environment, limits, wire)
                await shell.run(touch)
        except (ConfigError, EnvironmentFailure) as error:
            ready = False
            log(logging.ERROR, "the environment cannot be set up: %s", error)
            code = messages.UNLOADABLE if isinstance(error, ConfigError) else "broken"
            effects = core.take(SetUpFailed(described(error, code, worker.decode())))
            out = [effect for effect in effects if isinstance(effect, ToRouter)]
            stream.send_many_nowait(list(frames_to_router(out)))
        with trio.move_on_after(wire.flush_s):
            await stream.flush()
    return ready


@final
class _Shell:
    """One incarnation at work."""

    def __init__(
        self, stream: MessageStream, core: WorkerCore, outcomes: OutcomeMaker, runner: Runner,
        environment: LoadedEnvironment, limits: ServerLimits, wire: WireLimits,
    ) -> None:  # fmt: skip
        self._stream = stream
        self._core = core
        self._outcomes = outcomes
        self._runner = runner
        self._environment = environment
        self._limits = limits
        self._parking = Parking(self._parked, limits.worker_held_bytes)
        self._deltas = Deltas(self._deltas_made)
        self._saves = Saves(self._save_made, wire, core.save_bytes)
        self._noted: dict[int, bytes] = {}
        """Last note of each execution since the last beat.  Set in any thread, and only popped by
        the loop: notes cost the loop nothing before the next beat."""
        self._given: deque[WorkerInput] = deque()
        """Inputs that the core has not taken in."""
        self._takes = False
        """Whether it takes one in: others wait for the end of that, or for the next input."""
        self._unsent: list[ToRouter] = []
        self._has_unsent = trio.Event()
        """Set while a message is unsent."""
        self._lag = LagMeter()
        self._nursery: trio.Nursery
        """Nursery of all tasks but the executions, while it runs."""
        self._done = trio.Event()
        self._resources = WorkerResources(self._take, wire, limits.destroy_s, runner.call_code)
        runner.resources = self._resources
        self._permits = WorkerPermits(self._take)
        self._tasks = ExecutionTasks(outcomes, self._parking, self._begins, self._ended, self._done)

    async def run(self, touch: Callable[[float], None]) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._tasks.run)
            nursery.start_soon(self._receive)
            nursery.start_soon(self._send)
            nursery.start_soon(self._beat)
            nursery.start_soon(self._measure, touch)
            nursery.start_soon(self._parking.run)
            try:
                await self._done.wait()
            finally:
                self._tasks.close()
            nursery.cancel_scope.cancel()

    async def _receive(self) -> None:
        while True:
            try:
                batch = await self._stream.receive()
            except trio.EndOfChannel:
                self._done.set()  # the server is gone
                return
            for frames in batch:
                self._take(RouterMessage(frames))

    def _parked(self, number: int, payload: Body | None) -> None:
        if payload is not None:
            self._take(OutcomeParked(number, payload))

    async def _send(self) -> None:
        """Send the outcomes of one turn of the loop together, so that the router wakes once."""
        while True:
            await self._has_unsent.wait()
            self._send_now()

    def _send_now(self) -> None:
        if self._has_unsent.is_set():
            self._has_unsent = trio.Event()
        unsent, self._unsent = self._unsent, []
        if unsent and not self._stream.send_many_nowait(list(frames_to_router(unsent))):
            self._done.set()  # the server is gone, or would never get one of them

    async def _beat(self) -> None:
        environment = self._environment
        ready = EnvironmentReady(
            os.getpid(), environment.name, environment.rerun,
            environment.capacity_by(self._limits.worker_capacity),
        )  # fmt: skip
        self._take(ready)
        while True:
            self._runner.tell_waits()
            self._permits.tell_waits()
            for _ in range(len(self._noted)):
                self._take(NoteMade(*self._noted.popitem()))
            self._send_now()
            has_left = not self._stream.is_unsent()
            self._take(BeatDue(self._stats(), has_left))
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
            "malformed": core.malformed,
            **worker_history.to_statistics(runner.usage.to_record(), runner.took),
        }

    def _take(self, given: WorkerInput) -> None:
        """Give the core an input, and carry out what follows.  One that comes meanwhile, from an
        effect or from the end of an object that nobody holds any more, is taken after that."""
        self._given.append(given)
        if self._takes:
            return
        self._takes = True
        try:
            while self._given:
                self._do(self._core.take(self._given.popleft()))
        finally:
            self._takes = False

    def _do(self, effects: Sequence[WorkerEffect]) -> None:
        for effect in effects:
            match effect:
                case ToRouter():
                    self._unsent.append(effect)
                case BeginRun():
                    self._tasks.add(effect)
                case CancelRun(number):
                    self._tasks.cancel(number)
                case SaveEnded(number, refused):
                    self._saves.answered(number, refused)
                case Park():
                    self._parking.add(effect.number, effect.payload)
                case GoOn(claim, after_s):
                    self._permits.go_on(claim, after_s)
                case Stated():
                    self._resources.stated(effect)
                case Clean():
                    self._nursery.start_soon(self._resources.clean, effect)
                case Exit():
                    self._done.set()
        if self._tasks.closing or not self._core.running:
            self._send_now()  # no further outcome could share the batch
        elif self._unsent and not self._has_unsent.is_set():
            self._has_unsent.set()

    def _begins(self, run: BeginRun) -> ExecutionContext:
        return ExecutionContext(
            pass_delta=self._deltas.of(run.number),
            noted=partial(self._noted.__setitem__, run.number),
            traceparent=run.traceparent, permits=self._permits.of(run.number),
            saves=self._saves.begin(run),
        )  # fmt: skip

    def _save_made(self, number: int, save: bytes) -> None:
        """Give the core a save of an execution."""
        self._take(SaveMade(number, save))

    def _deltas_made(self, made: list[DeltaMade]) -> None:
        """Give the core the deltas of executions."""
        for each in made:
            self._take(each)

    def _ended(self, run: BeginRun, outcome: Outcome | None, began_s: float | None) -> None:
        """Give the core the end of an execution, completed or cancelled, without an await after the
        decision."""
        if self._deltas.due:
            self._deltas.drain()  # an execution's deltas precede its outcome
        self._saves.end(run.number)
        now_s = trio.current_time()
        if began_s is None:
            began_s = now_s
            outcome = Status.CANCELLED, error_records.encode(never_began(run.request))
        elif outcome is None:
            outcome = self._outcomes.cancelled(began_s)
        status, payload = outcome
        if self._tasks.closing and status is Status.CANCELLED:
            return  # nobody cancelled it: it is lost with its worker
        self._take(OutcomeMade(run.number, status, payload, now_s - began_s))
