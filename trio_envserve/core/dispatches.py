"""The dispatches of a router: which work runs on which worker.

Theory of operation
-------------------
A dispatch is sent once the journal record of its start is safe, and again each time its worker
says that it has not arrived.  An unwanted dispatch is stopped, unless nothing of it is left to
stop.  An announced outcome is fetched once the router has memory for it.

An execution ends when its worker has reported it or is proven dead; both are noticed by the
:class:`~.workforce.Workforce`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from . import messages
from .account import Account
from .announced import Announcements
from .executions import Execution, Job, Worker
from .journal import Journal
from .ranges import Ranges
from .router_effects import RouterEffect, ToWorker


class Dispatches:
    """All dispatches whose executions have not ended."""

    def __init__(self, announced: Announcements, journal: Journal) -> None:
        self.announced = announced
        self.out: list[RouterEffect] = []
        """Effects, in order; the router takes them out."""
        self.unknown = Account(name="an earlier server")
        """Account of the executions of an earlier epoch that are to stop."""
        self._journal = journal
        self._held: deque[Execution] = deque()
        """Executions that are not sent yet, since the record of their start is not safe."""
        self._count = 0
        """Number of executions that were ever started."""

    def dispatch(
        self, session: Account, work: Job, worker: Worker, now_s: float, after: int = 0
    ) -> Execution:
        """Number an execution of a work, and send it once the first ``after`` records of the
        journal are safe."""
        execution = worker.start(session, work, now_s)
        self._number(execution)
        execution.after = after
        if self._journal.is_safe(after):
            self._send(execution)
        else:
            self._held.append(execution)
        return execution

    def release(self) -> None:
        """Send the dispatches whose records are safe now and that are still wanted."""
        while self._held and self._journal.is_safe(self._held[0].after):
            execution = self._held.popleft()
            if execution.worker.live.get(execution.number) is not execution:
                continue
            if execution.body is not None:  # else the worker claims to have what was never sent
                self._send(execution)

    def repeat(self, worker: Worker, numbers: Ranges) -> None:
        """Send again the dispatches that have not arrived, as the worker says; those that were
        never sent go on waiting for the journal."""
        for number, execution in worker.live.items():
            is_sent = self._journal.is_safe(execution.after)
            if number in numbers and execution.body is not None and is_sent:
                self._send(execution)

    def stop(self, executions: Iterable[Execution], now_s: float) -> list[Execution]:
        """Cancel executions that nobody needs any more, by one message to each worker; returns
        those that have ended by that.

        An execution that was not sent yet ends at once, and so does one of which only an announced
        outcome is left: the next statement lets the worker drop the outcome."""
        over: list[Execution] = []
        cancelled: dict[Worker, list[int]] = {}
        for execution in executions:
            if execution.size_bytes is not None or not self._journal.is_safe(execution.after):
                self.end(execution)
                over.append(execution)
            else:
                execution.worker.abandon(execution, now_s)
                cancelled.setdefault(execution.worker, []).append(execution.number)
        for worker, numbers in cancelled.items():
            self.tell(worker, messages.Stop(Ranges(numbers).flat()))
        return over

    def fetch(self) -> None:
        """Ask for the announced outcomes that the router has memory for."""
        wanted: dict[Worker, list[int]] = {}
        for execution in self.announced.grant():
            wanted.setdefault(execution.worker, []).append(execution.number)
        for worker, numbers in wanted.items():
            self.tell(worker, messages.Fetch(Ranges(numbers).flat(), []))

    def end(self, execution: Execution) -> None:
        """Take out an execution that runs no more, and of which nothing further is wanted."""
        execution.worker.end(execution)
        if execution.size_bytes is not None:
            self.announced.remove(execution)

    # -- executions of an earlier epoch -------------------------------------------

    def go_on(
        self, worker: Worker, number: int, session: Account, work: Job, now_s: float
    ) -> Execution:
        """Enter an execution of an earlier epoch whose work the journal knows."""
        execution = worker.take_back(number, session, work, now_s)
        self._number(execution)
        return execution

    def stop_unknown(self, worker: Worker, number: int, now_s: float) -> None:
        """Enter an execution of an earlier epoch whose work the journal does not know: it is to
        stop."""
        self._number(worker.take_back(number, self.unknown, None, now_s))

    # -- messages to workers ------------------------------------------------------

    def tell(self, worker: Worker, message: messages.Message) -> None:
        """Send a message to a worker."""
        self.out.append(ToWorker(worker.id, worker.incarnation, message))

    def _number(self, execution: Execution) -> None:
        execution.serial, self._count = self._count, self._count + 1
        work = execution.work
        execution.dispatch = messages.Dispatch(
            execution.session.id,
            execution.sequence,
            execution.number,
            execution.session.name,
            None if work is None else work.traceparent,
        )

    def _send(self, execution: Execution) -> None:
        assert execution.dispatch is not None
        assert execution.body is not None
        worker = execution.worker
        self.out.append(ToWorker(worker.id, worker.incarnation, execution.dispatch, execution.body))
