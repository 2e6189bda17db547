"""Mutants of batches: each row of a batch must get what is its own.

A message names many requests, as spans, or is a batch of them, as columns.  A client
cancels many calls with one input.  Of requests that arrive together some are refused.  A
worker that dies takes with it what it has not reported yet.  All of this must come to the
same as if it were done to one after the other; each mutant treats many as one.
"""

from __future__ import annotations

from typing import Any

from ...core import call_table, client, messages
from ...core import router as routing
from ...core.call_steps import CallInput
from ...core.calls import Stage
from ...core.client_inputs import CallsCancelled
from ...core.ranges import Ranges
from ...core.router import Router
from ...core.router_inputs import ClientMessage
from ...core.work import Works, WorkState
from ...core.workforce import ExecutionEnded, Workforce
from ...retrylab.mutants import Family, Patches
from ..simulation.plan import ANY, Fault

FAMILY = Family(ANY)


@FAMILY.mutant("G7", "G8", needs=(Fault.CANCEL_STORM,))
def a_span_ends_as_its_first(patch: Patches) -> None:
    """If the first request of a finished span does not run, nothing of the span is stopped."""

    @patch.around(Works, "finish")
    def as_the_first(finish: Any, self: Any, session: Any, spans: Ranges) -> None:
        self.stop = lambda: None
        for start, stop in spans.spans():
            one, before = Ranges(), len(self._stopping)
            one.add_span(start, stop)
            first = min((n for n in session.tickets if start <= n < stop), default=None)
            work = None if first is None else session.tickets[first].work
            runs = work is not None and work.state is WorkState.RUNNING
            finish(self, session, one)
            if not runs:
                del self._stopping[before:]
        del self.stop
        self.stop()


@FAMILY.mutant("G7", "G8", "G9", needs=(Fault.CANCEL_STORM,))
def calls_cancelled_together_are_as_one(patch: Patches) -> None:
    """If one of the calls cancelled together was never sent, the server hears of none."""

    @patch.around_cell(client._INPUTS, CallsCancelled)
    def as_one(cancel: Any, self: Any, given: CallsCancelled) -> None:
        calls = [call for n in given.calls if (call := self.calls.live.get(n)) is not None]
        if all(call.stage is not Stage.QUEUED for call in calls):
            cancel(self, given)
            return
        for call in calls:
            for records in (self.calls.live, self.calls.queue, self.calls.timed, self.calls.held):
                records.pop(call.number, None)


@FAMILY.mutant("G1", "G2", needs=(Fault.TINY_BOUNDS,))
def a_refusal_is_of_all_that_was_sent(patch: Patches) -> None:
    """If one request is refused for now, all that are under way are asked for anew."""

    @patch.around_cell(call_table.TABLE[CallInput.HOLD], Stage.SENT)
    def all_anew(
        hold: Any, calls: Any, call: Any, now_s: float, until_s: float
    ) -> call_table.Effects:
        effects = [*hold(calls, call, now_s, until_s)]
        for each in list(call.session.calls.values()):
            if each.stage is Stage.SENT and each.number not in calls.held:
                effects += call_table._requeue(calls, each)
        return effects


@FAMILY.mutant("G4", "G9", needs=(Fault.TINY_BOUNDS,))
def what_is_refused_for_now_is_spent(patch: Patches) -> None:
    """A request that is refused for now counts as taken, as those accepted before it do."""

    @patch.around(Works, "request")
    def spend(request: Any, self: Any, session: Any, sequence: int, ask: Any, asker: Any) -> Any:
        ticket = request(self, session, sequence, ask, asker)
        if ask.key is None and sequence not in session.tickets:
            session.finished.add(sequence)
        return ticket


@FAMILY.mutant("G8", "G9")
def work_half_done_is_done(patch: Patches) -> None:
    """When a worker that has reported something dies, nothing of it counts as lost."""

    @patch.around(Workforce, "_lost")
    def forget(lost: Any, self: Any, lost_: Any) -> Any:
        worker = self.workers.get(lost_.worker)
        ended = lost(self, lost_)
        if worker is not None and worker.done:
            return [each for each in ended if not each.execution.is_wanted]
        return ended


@FAMILY.mutant("G2", "G3", "G4", needs=(Fault.KILL_AFTER_OUTCOME,))
def work_half_done_is_lost(patch: Patches) -> None:
    """When a worker dies at work, what it had reported is lost with the rest."""

    @patch.around(Workforce, "_outcome")
    def note(outcome: Any, self: Any, worker: Any, message: Any, payload: Any, now_s: float) -> Any:
        execution = worker.live.get(message.number)
        if execution is not None and execution.is_wanted:
            reported = self.__dict__.setdefault("reported", {}).setdefault(worker.id, [])
            work = execution.work
            reported.append((execution, work, work.body, work.tickets))
        return outcome(self, worker, message, payload, now_s)

    @patch.around(Workforce, "_lost")
    def lose(lost: Any, self: Any, lost_: Any) -> Any:
        ended = lost(self, lost_)
        if not ended:
            return ended
        for execution, work, body, tickets in self.__dict__.get("reported", {}).pop(
            lost_.worker, ()
        ):
            if work.name is None and any(_is_kept(ticket) for ticket in tickets):
                _unkeep(self.announced._accounts, execution, work, body, tickets[0])
                ended.append(ExecutionEnded(execution, None, lost_.why, ended[0].suspicion))
        return ended


def _is_kept(ticket: Any) -> bool:
    known = ticket.session.tickets.get(ticket.sequence)
    return known is ticket and ticket.kept is not None


def _unkeep(accounts: Any, execution: Any, work: Any, body: Any, ticket: Any) -> None:
    """As if its outcome had never come."""
    accounts.keep(work.account, -1, -ticket.kept.size_bytes, ran=True)
    accounts.run(work.account, +1)
    if body is not None:
        accounts.hold(work.account, work.body_bytes)
    work.state, work.execution, work.body = WorkState.RUNNING, execution, body
    work.tickets, ticket.work = (ticket,), work
    ticket.kept, ticket.ran = None, False


@FAMILY.mutant("G2", "G3", "G5", "G6", "G9")
def rows_are_shifted_by_one(patch: Patches) -> None:
    """Each row of a batch gets the body of the next one."""

    @patch.around(messages, "_rows")
    def shifted(rows: Any, *args: Any) -> Any:
        said = rows(*args)
        bodies = [body for _, body in said]
        return list(zip((message for message, _ in said), bodies[1:] + bodies[:1], strict=True))


@FAMILY.mutant("G9", needs=(Fault.TINY_BOUNDS,))
def a_refused_row_drops_the_rest(patch: Patches) -> None:
    """Behind a request that is refused, the rest of its batch counts as finished."""

    @patch.around(Router, "_request")
    def taken(request: Any, router: Any, route: Any, asked: Any, body: Any, now_s: float) -> None:
        session = router.sessions.known.get(asked.session)
        if session is not None and session in router.__dict__.get("refused", ()):
            session.finished.add(asked.sequence)
            return
        request(router, route, asked, body, now_s)
        if session is not None and asked.sequence not in session.tickets:
            router.__dict__.setdefault("refused", []).append(session)

    @patch.around_cell(routing._INPUTS, ClientMessage)
    def all_of(message: Any, router: Any, given: Any) -> None:
        message(router, given)
        router.__dict__.pop("refused", None)


@FAMILY.mutant("G3", "G4", "G5", "G9", "CRASH")
def a_batch_is_freed_with_its_first(patch: Patches) -> None:
    """Outcomes that came together share memory, and that ends with the first of them."""
    together = 4  # batches: one alone is too rarely kept in part
    arena: list[bytearray] = []

    @patch.around(messages, "_rows")
    def shared(rows: Any, cls: Any, checks: Any, fields: Any, sizes: Any, blob: Any) -> Any:
        said = rows(cls, checks, fields, sizes, blob)
        whole, at, views = bytearray(blob), 0, []
        arena.append(whole)
        del arena[:-together]
        for size in sizes:
            views.append(memoryview(whole)[at : at + size])
            at += size
        return list(zip((message for message, _ in said), views, strict=True))

    @patch.around(Works, "_forget")
    def freed(forget: Any, self: Any, ticket: Any) -> None:
        payload = None if ticket.kept is None else ticket.kept.payload
        if isinstance(payload, memoryview) and any(payload.obj is whole for whole in arena):
            for whole in arena:
                whole[:] = bytes(len(whole))
        forget(self, ticket)


@FAMILY.mutant("G2")
def a_lost_batch_was_never_dispatched(patch: Patches) -> None:
    """Requests dispatched together, and lost with their worker, do not count as dispatched."""

    @patch.around(Workforce, "_lost")
    def uncounted(lost: Any, self: Any, lost_: Any) -> Any:
        ended = lost(self, lost_)
        at_once: dict[float, int] = {}
        for each in ended:
            at_s = each.execution.dispatched_s
            at_once[at_s] = at_once.get(at_s, 0) + 1
        for each in ended:
            if each.execution.is_wanted and at_once[each.execution.dispatched_s] > 1:
                each.execution.work.executions -= 1
        return ended
