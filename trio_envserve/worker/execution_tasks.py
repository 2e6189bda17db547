"""The executions of a worker: a task and a cancel scope for each.

Theory of operation
-------------------
Each execution ends by its own scope, in which its code runs, with all that it leaves behind
(:mod:`.backends`).  The scope is shielded: an error of the worker's own ends all executions, and
each ends as if it were cancelled.

Environment code that does not wait holds up the loop.  So the executions that have arrived start in
portions, with turns of the loop between them.  A portion has as many executions as would have taken
``TURN_S`` at the speed of the portion before, and at most twice as many as that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import trio

from .. import foreign, tracing
from ..core.worker import BeginRun
from ..envs.late import Late
from ..models.waits import EndpointWaits
from .outcomes import Outcome, OutcomeMaker, Returned
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


def _working_s(asked: foreign.CodeResult) -> float:
    """Longest work of an execution, in seconds; infinite without a limit."""
    limit_s = None if asked.error is not None else asked.value.working_s
    return math.inf if limit_s is None else limit_s


@contextmanager
def _limited(
    working_s: float, began_s: float, waits: EndpointWaits, nursery: trio.Nursery
) -> Iterator[None]:
    """End the code of the block once it has worked for too long since ``began_s``: the time in
    which its rollouts wait for the endpoint of their model is no work.  A task in ``nursery`` looks
    how long it was."""
    if working_s == math.inf:
        yield
        return

    async def watch() -> None:
        with over:
            left_s = working_s
            while left_s > 0:
                await trio.sleep(max(left_s, SHORTEST_S))
                now_s = trio.current_time()
                left_s = working_s - (now_s - began_s - waits.waited_s(now_s))
            code.cancel()

    with trio.CancelScope() as code:
        over = trio.CancelScope()
        nursery.start_soon(watch)
        try:
            yield
        finally:
            over.cancel()


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
            while True:
                await self._has_arrived.wait()
                self._has_arrived = trio.Event()
                while self._arrived:
                    started_s = trio.current_time()
                    for _ in range(min(portion, len(self._arrived))):
                        run, scope, late = self._arrived.popleft()
                        request = str(run.request)
                        nursery.start_soon(
                            self._execute, nursery, run, request, scope, late,
                            name=f"{REQUEST}{request}",
                        )  # fmt: skip
                    if self._arrived:
                        for _ in range(3):  # tasks of a turn run in any order; code has its own
                            await trio.lowlevel.checkpoint()
                        took_s = max(trio.current_time() - started_s, 1e-6)
                        portion = min(int(portion * TURN_S / took_s) or 1, 2 * portion, PORTION)

    async def _execute(
        self, nursery: trio.Nursery, run: BeginRun, request: str, scope: trio.CancelScope,
        late: Late | None,
    ) -> None:  # fmt: skip
        """Run one execution, from its dispatch to its outcome."""
        outcome: Outcome | None = None
        began_s: float | None = None
        try:
            with scope:
                await self._parking.wait_for_space()
                asked = await self._outcomes.decoded(run.body)
                await trio.lowlevel.checkpoint_if_cancelled()
                began_s = trio.current_time()
                context = self._begins(run)
                if late is not None:
                    context.late = late
                working_s = _working_s(asked)
                made: Returned | Outcome | None = None
                with (
                    _limited(working_s, began_s, context.waits, nursery),
                    tracing.below(run.traceparent),
                ):
                    made = await self._outcomes.run(request, asked, began_s, context)
                if made is None:  # it was ended by the limit
                    waited_s = context.waits.waited_s(trio.current_time())
                    outcome = self._outcomes.overworked(began_s, working_s, waited_s)
                elif isinstance(made, Returned):
                    outcome = await self._outcomes.of(made, began_s)
                else:
                    outcome = made
            self._end(run, outcome, began_s)
        except BaseException:
            self._done.set()  # the nursery waits for the others, which are shielded
            raise

    def _end(self, run: BeginRun, outcome: Outcome | None, began_s: float | None) -> None:
        del self._scopes[run.number]
        self._ended(run, outcome, began_s)
