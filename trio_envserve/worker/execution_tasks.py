"""The executions of a worker: a task and a cancel scope for each.

Theory of operation
-------------------
The environment's code runs in the task of its execution, inside the execution's cancel scope.  So
whatever the code leaves behind in its task ends with the task: context variables, scopes and
nurseries.  If the code leaves a scope open, trio raises an error where the execution's scope is
closed.  If the code leaves a nursery open, trio raises an error when the task has ended and has
reported, and fails the nursery around it.  That is why there is an *execution nursery*: a failed
one keeps its executions, and a new one has the next.  Their scopes are shielded from the failure,
so the end of the worker cancels each of them.

Environment code that does not wait holds up the loop.  So the executions that have arrived start in
portions, with turns of the loop between them.  A portion has as many executions as would have taken
``TURN_S`` at the speed of the portion before, and at most twice as many as that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

import trio

from .. import foreign, tracing
from ..core.terms import Status
from ..core.worker import BeginRun
from ..envs.late import Late
from ..models.waits import EndpointWaits
from .outcomes import LargeValue, Outcome, OutcomeMaker
from .parking import Parking
from .runners import ExecutionContext
from .stacks import REQUEST

TURN_S = 0.05
"""Time that the executions of one portion should take until each of them waits, in seconds."""
PORTION = 256
"""Most executions of one portion."""

SHORTEST_S = 0.05
"""Shortest sleep of a task that looks how long an execution has worked, in seconds: one that waits
for its model has as much time left after it as before."""


def _nursery() -> trio.Nursery:
    """The execution nursery of this task."""
    nursery = trio.lowlevel.current_task().parent_nursery
    assert nursery is not None
    return nursery


def _working_s(asked: foreign.CodeResult) -> float | None:
    return None if asked.error is not None else asked.value.working_s


@final
class _Working:
    """Ends an execution that has worked for too long: the time in which its rollouts wait for the
    endpoint of their model is none."""

    def __init__(
        self, working_s: float, began_s: float, scope: trio.CancelScope, waits: EndpointWaits
    ) -> None:
        self.working_s = working_s
        self.began_s = began_s
        self.waits = waits
        self.over = trio.CancelScope(shield=True)
        """Cancelled once the code has ended."""
        self.passed = False
        self._scope = scope

    async def run(self) -> None:
        """Cancel the execution when its time has passed."""
        with self.over:
            left_s = self.working_s
            while left_s > 0:
                await trio.sleep(max(left_s, SHORTEST_S))
                now_s = trio.current_time()
                left_s = self.working_s - (now_s - self.began_s - self.waits.waited_s(now_s))
            if not self._scope.cancel_called:
                self.passed = True
                self._scope.cancel()


@final
class ExecutionTasks:
    """The executions of one incarnation."""

    def __init__(
        self, outcomes: OutcomeMaker, parking: Parking,
        begins: Callable[[BeginRun], ExecutionContext],
        ended: Callable[[BeginRun, Outcome | None, float | None], None], done: trio.Event,
    ) -> None:  # fmt: skip
        """``begins`` is called when the code of an execution begins.  ``ended`` is called with each
        end: with an outcome, or None if the execution was cancelled; and with the time at which
        its code began, or None if it did not.  ``done`` is set when the worker's own code has
        failed."""
        self.closing = False
        """Whether no further execution is to start."""
        self._outcomes = outcomes
        self._parking = parking
        self._begins = begins
        self._ended = ended
        self._done = done
        self._arrived: deque[tuple[BeginRun, trio.CancelScope, Late | None]] = deque()
        """Executions that have not started."""
        self._has_arrived = trio.Event()
        self._scopes: dict[int, trio.CancelScope] = {}
        """Scope of each execution, until it has ended."""
        self._failed = False
        """Whether the worker's own code has failed in an execution."""

    def add(self, run: BeginRun) -> None:
        """Start an execution, in this turn of the loop or a later one."""
        if not self.closing:
            scope = self._scopes[run.number] = trio.CancelScope(shield=True)
            late = None
            if run.late_s is not None:  # counted from here, wherever it waits
                late = Late(
                    trio.current_time() + run.late_s, trio.lowlevel.current_clock().current_time
                )
            self._arrived.append((run, scope, late))
            self._has_arrived.set()

    def cancel(self, number: int) -> None:
        """Cancel an execution, unless it has ended."""
        if number in self._scopes:
            self._scopes[number].cancel()

    def close(self) -> None:
        """Cancel all executions, and start no other."""
        self.closing = True
        for scope in self._scopes.values():
            scope.cancel()

    async def run(self) -> None:
        """Run all executions, until cancelled and until the last of them has ended."""
        portion = 1
        async with trio.open_nursery() as nursery:
            executions: trio.Nursery = await nursery.start(self._hold)
            while True:
                await self._has_arrived.wait()
                self._has_arrived = trio.Event()
                while self._arrived:
                    if executions.cancel_scope.cancel_called:
                        executions = await nursery.start(self._hold)
                    started_s = trio.current_time()
                    for _ in range(min(portion, len(self._arrived))):
                        run, scope, late = self._arrived.popleft()
                        request = str(run.request)
                        executions.start_soon(
                            self._execute, run, request, scope, late, name=f"{REQUEST}{request}"
                        )
                    if self._arrived:
                        for _ in range(2):  # tasks of one turn run in any order
                            await trio.lowlevel.checkpoint()
                        took_s = max(trio.current_time() - started_s, 1e-6)
                        portion = min(int(portion * TURN_S / took_s) or 1, 2 * portion, PORTION)

    async def _hold(self, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Hold an execution nursery, until code in it fails it."""
        try:
            async with trio.open_nursery() as executions:
                task_status.started(executions)
                await trio.sleep_forever()
        except BaseException as exc:  # noqa: ASYNC103
            # Code left a nursery open in its task, and its outcome says so already.
            # Usually it is a group; but trio asks the groups in it to split.  (If this
            # is the end of the worker, the nursery around it is cancelled anyway.)
            if self._failed or foreign.holds_interrupt(exc):
                raise

    async def _execute(
        self, run: BeginRun, request: str, scope: trio.CancelScope, late: Late | None
    ) -> None:
        """Run one execution, from its dispatch to its outcome."""
        outcome: Outcome | LargeValue | None = None
        began_s: float | None = None
        working: _Working | None = None
        try:
            try:
                with scope:
                    if self._parking.is_behind:
                        await self._parking.wait_for_room()
                    asked = self._outcomes.decoded_at_once(run.body)
                    if asked is None:
                        asked = await self._outcomes.decoded(run.body)
                    if not scope.cancel_called:
                        began_s = trio.current_time()
                        context = self._begins(run)
                        if late is not None:
                            context.late = late
                        if (working_s := _working_s(asked)) is not None:
                            working = _Working(working_s, began_s, scope, context.waits)
                            _nursery().start_soon(working.run)
                        made = self._outcomes.of(request, asked, began_s, scope, context)
                        if run.traceparent is None:
                            outcome = await made
                        else:
                            with tracing.below(run.traceparent):
                                outcome = await made
            except RuntimeError:
                # With an outcome, the error is trio's: the code left a scope open.
                if outcome is None:
                    raise
            finally:
                if working is not None:
                    working.over.cancel()
            if working is not None and working.passed:
                outcome = self._overworked(working, outcome)
            if isinstance(outcome, LargeValue):
                assert began_s is not None
                # In a task of its own: the code may have left anything in this one.
                name = trio.lowlevel.current_task().name
                _nursery().start_soon(self._encode, run, scope, outcome, began_s, name=name)
            else:
                self._end(run, outcome, began_s)
        except BaseException:
            self._fail()
            raise

    async def _encode(
        self, run: BeginRun, scope: trio.CancelScope, large: LargeValue, began_s: float
    ) -> None:
        """Encode a value that takes long, and end its execution."""
        try:
            outcome: Outcome | None = None
            with trio.CancelScope(shield=True) as encoding:
                if scope.cancel_called:
                    encoding.cancel()
                self._scopes[run.number] = encoding
                outcome = await self._outcomes.of_large(large, began_s)
            self._end(run, outcome, began_s)
        except BaseException:
            self._fail()
            raise

    def _overworked(
        self, working: _Working, outcome: Outcome | LargeValue | None
    ) -> Outcome | LargeValue:
        """The outcome of an execution that has worked for too long: an error, unless its code
        returned a value all the same."""
        if isinstance(outcome, LargeValue) or (outcome and outcome[0] is Status.RESULT):
            return outcome
        waited_s = working.waits.waited_s(trio.current_time())
        return self._outcomes.overworked(working.began_s, working.working_s, waited_s)

    def _end(self, run: BeginRun, outcome: Outcome | None, began_s: float | None) -> None:
        del self._scopes[run.number]
        self._ended(run, outcome, began_s)

    def _fail(self) -> None:
        """End the worker, whose own code has failed."""
        self._failed = True
        self._done.set()  # the execution nursery waits for the others, which are shielded
