"""The tasks that run executions, one after the other; there are as many as have to wait.

Theory of operation
-------------------
A task of the execution nursery runs one execution after the other, because a new task
costs more than an empty rollout.  One of the tasks, the *taker*, takes the dispatches
that have arrived.  Before it begins an execution it wakes another task for the rest: if
the execution waits, the other one is the taker; if not, the first goes on for
``TURN_S``.  The executions that a task runs one after the other share a cancel scope
until one of them is cancelled; only one of them runs at a time, so the cancel reaches no
other.

The environment's code runs in such a task.  Whatever it leaves behind there (open
cancel scopes, nurseries, context variables) ends with the task, which then takes no
other execution.  If a nursery is left open, trio complains when the task has ended and
has reported, and fails the nursery around it.  That is why there is an execution
nursery: a failed one keeps its executions, and a new one takes the next.  Their scopes
are shielded from the failure, so the end of the shell cancels each of them.
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
"""Runs arrived dispatches in a task, from a time until another one at the latest.  Returns when
the last of them ended; None if its code left something behind in the task."""


@final
class ExecutionTasks:
    """The tasks of all executions of one incarnation."""

    def __init__(self, execute: Execute, parking: Parking, done: trio.Event) -> None:
        """``done`` is set when the worker's own code has failed."""
        self.arrived: deque[Run] = deque()
        """The dispatches that have not begun."""
        self.closing = False
        """Whether no further dispatch is to begin."""
        self._execute = execute
        self._parking = parking
        self._done = done
        self._nursery: trio.Nursery | None = None
        self._execution_nursery: trio.Nursery | None = None
        self._idle: dict[trio.lowlevel.Task, None] = {}
        """Tasks without an execution.  The last one in is the first one out: its caches
        are warm."""
        self._taker: trio.lowlevel.Task | None = None
        """The task that takes arrived dispatches."""
        self._coming = False
        """Whether another task was woken, and has not had its step yet."""
        self._failed = False
        """Whether the worker's own code has failed in an execution."""

    def open(self, nursery: trio.Nursery) -> None:
        """Have execution nurseries in this one."""
        self._nursery = nursery

    def wake(self) -> None:
        """Make sure that a task takes the dispatches that have arrived."""
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
        self._taker, self._coming = task, False
        now_s = trio.current_time()
        until_s = now_s + TURN_S
        while self.may_take(task, now_s, until_s):
            ended_s = await self._execute(task, context, now_s, until_s)
            if ended_s is None:
                return False
            now_s = ended_s
        return True

    def may_take(self, task: trio.lowlevel.Task, now_s: float, until_s: float) -> bool:
        """Whether this task goes on with the next dispatch.  One that has waited meanwhile, and is
        not the taker any more, does not; a taker is woken once the parking has caught up.
        Dispatches that have not begun when the worker closes are lost with it."""
        return (
            bool(self.arrived)
            and self._taker is task
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
