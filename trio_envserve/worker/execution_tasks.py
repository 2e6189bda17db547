"""The tasks that run executions: each runs one execution after the other.

Theory of operation
-------------------
A task of the execution nursery runs one execution after the other, because a new task costs more
than an empty rollout.  One of the tasks, the *intake*, begins the dispatches that have arrived.
Before it begins an execution it wakes another task for the rest.  If the execution waits, the other
task becomes the intake; if not, the first one goes on for ``TURN_S``.  So there are as many tasks
as executions that wait at one time.  The executions of a task share a cancel scope until one of
them is cancelled; only one of them runs at a time, so the cancel reaches no other.

The environment's code runs in such a task.  Scopes, nurseries and context variables that it leaves
behind there end with the task, which then runs no other execution.  If a nursery is left open, trio
raises an error when the task has ended and has reported, and fails the nursery around it.  That is
why there is an execution nursery: a failed one keeps its executions, and a new one runs the next.
Their scopes are shielded from the failure, so the end of the shell cancels each of them.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, final

import trio

from .. import foreign
from ..core.worker import Run
from .parking import Parking

TURN_S = 0.002
"""Time for which one task runs executions that do not wait before other tasks have a turn, in
seconds."""

Execute: TypeAlias = Callable[
    [trio.lowlevel.Task, contextvars.Context, float, float], Awaitable[float | None]
]
"""Runs arrived dispatches in a task, from one moment until another at the latest.  Returns the
moment at which the last one ended; None if its code left something behind in the task."""


@final
class ExecutionTasks:
    """The tasks of all executions of one incarnation."""

    def __init__(self, execute: Execute, parking: Parking, done: trio.Event) -> None:
        """``done`` is set when the worker's own code has failed."""
        self.arrived: deque[Run] = deque()
        """Dispatches that have not begun."""
        self.closing = False
        """Whether no further dispatch is to begin."""
        self._execute = execute
        self._parking = parking
        self._done = done
        self._nursery: trio.Nursery | None = None
        self._execution_nursery: trio.Nursery | None = None
        self._idle: dict[trio.lowlevel.Task, None] = {}
        """Tasks without an execution, used last in, first out: the caches of the last are warm."""
        self._intake: trio.lowlevel.Task | None = None
        """The task that begins arrived dispatches."""
        self._coming = False
        """Whether another task was woken, and has not run yet."""
        self._failed = False
        """Whether the worker's own code has failed in an execution."""

    def open(self, nursery: trio.Nursery) -> None:
        """Begin with this nursery, in which the execution nurseries are to be."""
        self._nursery = nursery

    def wake(self) -> None:
        """Make sure that a task begins the dispatches that have arrived."""
        if self._coming or not self.arrived or self._parking.is_behind:
            return
        self._coming = True
        if self._idle:
            task, _ = self._idle.popitem()
            trio.lowlevel.reschedule(task)
        elif self._execution_nursery is None or self._execution_nursery.cancel_scope.cancel_called:
            assert self._nursery is not None
            self._nursery.start_soon(self._open_execution_nursery)
        else:
            self._execution_nursery.start_soon(self._run)

    async def _open_execution_nursery(self) -> None:
        """Hold the tasks that run executions, until one of them fails the nursery."""
        try:
            async with trio.open_nursery() as self._execution_nursery:
                self._execution_nursery.start_soon(self._run)
                await trio.sleep_forever()
        except BaseException as exc:  # noqa: ASYNC103
            # Code left a nursery open in its task, and its outcome says so already.
            # Usually it is a group; but trio asks the groups in it to split.  (If this
            # is the end of the shell, the nursery around it is cancelled anyway.)
            if self._failed or foreign.holds_interrupt(exc):
                raise

    async def _run(self) -> None:
        """Run executions, one after the other, until one leaves something behind here."""
        task = trio.lowlevel.current_task()
        context = task.context.copy()

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._idle[task]
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            with self.failing():
                clean = await self._take(task, context)
            if not clean:
                return
            self._idle[task] = None
            task.name = "idle"
            await trio.lowlevel.wait_task_rescheduled(abort)

    async def _take(self, task: trio.lowlevel.Task, context: contextvars.Context) -> bool:
        """Run arrived dispatches; returns False if one left something behind in this
        task."""
        self._intake, self._coming = task, False
        now_s = trio.current_time()
        until_s = now_s + TURN_S
        while self.may_take(task, now_s, until_s):
            ended_s = await self._execute(task, context, now_s, until_s)
            if ended_s is None:
                return False
            now_s = ended_s
        return True

    def may_take(self, task: trio.lowlevel.Task, now_s: float, until_s: float) -> bool:
        """Whether this task goes on with the next dispatch: only the intake does, so not a task
        that has waited meanwhile.  While the parking is behind nothing begins; an intake is woken
        afterwards.  Dispatches that have not begun when the worker closes are lost with it."""
        return (
            bool(self.arrived)
            and self._intake is task
            and now_s < until_s
            and not self._parking.is_behind
            and not self.closing
        )

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Ends the shell if its own code fails."""
        try:
            yield
        except BaseException:
            self._failed = True
            self._done.set()  # the execution nursery waits for the others, which are shielded
            raise
