"""Whether the work of keys is stopped when it should be, and not before.

Theory of operation
-------------------
What runs under a key is wanted as long as somebody counts: a request that sent the input
and has not left, or one whose session was lost, until its caller is back or the deadline
for orphans has passed.  When the server has dealt with something, nothing may run for
which surely nobody counts and which was not told to stop; and nothing may have been told
to stop for which somebody surely counts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

from ...core.terms import RequestId
from .judge_records import Call, Execution

if TYPE_CHECKING:
    from ...retrylab.world import Process
    from .judge_wires import Wires

Place: TypeAlias = "tuple[Process, str]"
"""A server, and how the log names a key."""


@dataclasses.dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for a key, or has its outcome and was not finished."""

    request: RequestId
    call: Call
    caller: bytes
    order: int
    left: int = -1
    """When it was finished, by its client or by a deadline."""
    generation: int | None = None
    """In which it surely waits."""
    answered: bool = False
    counts: bool = True
    """False once its caller has asked in another session, and always if it attached."""


def label_of(name: str) -> str:
    """The key of an input; empty for the name of a call without one."""
    label, slash, _ = name.partition("/")
    return label if slash else ""


class Wanted:
    """The part of the judge of keys that watches what runs."""

    def __init__(self, book: Wires, waiters: dict[Place, dict[RequestId, Waiter]]) -> None:
        self._book = book
        self._waiters = waiters
        self._running: dict[Place, list[Execution]] = {}
        """The executions that were not told to stop."""
        self._lost: dict[Place, set[bytes]] = {}
        """Callers that may count though their sessions are lost."""
        self._stops: list[Execution] = []
        """The executions that were told to stop just now."""
        self._early: set[tuple[Process, int]] = set()
        """Dispatches that were to stop before they began."""

    def _place(self, execution: Execution) -> Place:
        return self._book.journal.home(execution.server), label_of(execution.key)

    def is_back(self, place: Place, caller: bytes) -> bool:
        """A caller asks again, or withdraws.  Whether it was lost."""
        lost = self._lost.get(place, set())
        was_lost = caller in lost
        lost.discard(caller)
        return was_lost

    def lost(self, place: Place, caller: bytes) -> None:
        """A session is lost in which this caller counted."""
        self._lost.setdefault(place, set()).add(caller)

    def started(self, execution: Execution) -> None:
        """Environment code begins under a key."""
        place = self._place(execution)
        if (execution.worker, execution.number) not in self._early:
            self._running.setdefault(place, []).append(execution)

    def stop_sent(self, worker: Process, number: int) -> None:
        """A worker is told to stop this dispatch."""
        execution = self._book.by_dispatch.get((worker, number))
        if execution is None:
            self._early.add((worker, number))
            return
        place = self._place(execution)
        if execution in self._running.get(place, ()):
            self._running[place].remove(execution)
            self._stops.append(execution)

    def dealt(self, server: Process) -> None:
        """A server has done all that follows from what came in."""
        if not self._stops and not self._running:
            return
        stops, self._stops = self._stops, []
        if not server.alive or server in self._book.draining:
            return
        for execution in stops:
            self._stopped(execution)
        home = self._book.journal.home(server)
        for place, running in self._running.items():
            if running and place[0] is home:
                running[:] = [e for e in running if e.live() and e.server is server]
                if running and not self._may_count(place):
                    execution = running.pop()
                    text = f"{execution.key} goes on, and nobody waits for it"
                    self._book.violation("G7", text, execution.key)

    def _may_count(self, place: Place) -> bool:
        """Whether anybody may count for what runs."""
        waits = any(waiter.counts for waiter in self._waiters.get(place, {}).values())
        return waits or bool(self._lost.get(place))

    def _stopped(self, execution: Execution) -> None:
        """G7: who waits, or was lost a short while ago, has not cancelled it."""
        place, number = self._place(execution), execution.request.sequence
        if (place[0], number) in self._book.keys.closed:
            return
        plan, book = self._book.plan, self._book
        for waiter in self._waiters.get(place, {}).values():
            if waiter.answered or not waiter.counts or waiter.generation != number:
                continue
            if book.keys.is_over(place, waiter):
                continue
            session = waiter.request.session
            if session in book.unknown:
                continue  # what came late is no sign that it was still held
            heard = book.heard[session]
            for_s = book.clock() - heard.at_s
            if for_s < plan.server.lease_s + plan.keys.orphan_s - 1.0:
                text = f"{execution.key} is stopped, and {waiter.call.key} counts for it"
                book.violation("G7", text, waiter.call.key)
