"""The dispatches of a router: what runs where.

Theory of operation
-------------------
A dispatch is sent once the record of its start is safe, and again each time its worker says
that it has not arrived.  One that is not wanted any more is stopped, unless there is nothing
left to stop.  An announced outcome is fetched once there is room for it.

An execution ends when its worker has reported it or is proven dead: which is heard by the
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
        """Effects, in order; the dispatcher takes them."""
        self.unknown = Account(name="an earlier server")
        """The account of those executions of an earlier epoch that are to stop."""
        self._journal = journal
        self._held: deque[Execution] = deque()
        """Those that were not sent yet, since the record of their start is not safe."""
        self._count = 0
        """Executions that were ever started."""

    def dispatch(
        self, session: Account, entry: Job, worker: Worker, now_s: float, after: int = 0
    ) -> Execution:
        """Number an execution, and send it once so many records of the journal are safe."""
        execution = worker.start(session, entry, now_s)
        self._number(execution)
        execution.after = after
        if self._journal.is_safe(after):
            self._send(execution)
        else:
            self._held.append(execution)
        return execution

    def release(self) -> None:
        """Send what was to wait for records that are safe now, and is still wanted."""
        while self._held and self._journal.is_safe(self._held[0].after):
            execution = self._held.popleft()
            if execution.worker.live.get(execution.number) is not execution:
                continue
            if execution.body is not None:  # else it says that it has that, and never can have
                self._send(execution)

    def repeat(self, worker: Worker, numbers: Ranges) -> None:
        """These have not arrived, says the worker; it may never have been sent them."""
        for number, execution in worker.live.items():
            is_sent = self._journal.is_safe(execution.after)
            if number in numbers and execution.body is not None and is_sent:
                self._send(execution)

    def stop(self, executions: Iterable[Execution], now_s: float) -> list[Execution]:
        """Their requests need these executions no more: cancel them, by one message to each
        worker.  If only the outcome of one is left, it is over, and the next statement lets
        the worker drop that; and if it was not sent yet.  Those that are over."""
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
        """Ask for announced outcomes, as far as there is room."""
        wanted: dict[Worker, list[int]] = {}
        for execution in self.announced.grant():
            wanted.setdefault(execution.worker, []).append(execution.number)
        for worker, numbers in wanted.items():
            self.tell(worker, messages.Fetch(Ranges(numbers).flat(), []))

    def end(self, execution: Execution) -> None:
        """It runs no more, and nothing further is wanted of its worker."""
        execution.worker.end(execution)
        if execution.size_bytes is not None:
            self.announced.remove(execution)

    # -- what an earlier epoch has left -----------------------------------------

    def go_on(
        self, worker: Worker, number: int, session: Account, entry: Job, now_s: float
    ) -> Execution:
        """An execution of an earlier epoch that the journal knows."""
        execution = worker.take_back(number, session, entry, now_s)
        self._number(execution)
        return execution

    def stop_unknown(self, worker: Worker, number: int, now_s: float) -> None:
        """One that it does not know: it is to stop."""
        self._number(worker.take_back(number, self.unknown, None, now_s))

    # -- what is said -----------------------------------------------------------

    def tell(self, worker: Worker, message: messages.Message) -> None:
        """Say this to a worker."""
        self.out.append(ToWorker(worker.id, worker.incarnation, message))

    def _number(self, execution: Execution) -> None:
        execution.serial, self._count = self._count, self._count + 1
        entry = execution.entry
        execution.dispatch = messages.Dispatch(
            execution.session.id,
            execution.sequence,
            execution.number,
            execution.session.name,
            None if entry is None else entry.traceparent,
        )

    def _send(self, execution: Execution) -> None:
        assert execution.dispatch is not None
        assert execution.body is not None
        worker = execution.worker
        self.out.append(ToWorker(worker.id, worker.incarnation, execution.dispatch, execution.body))
