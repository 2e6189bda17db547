"""Deadlines: the requests that the server itself answers, and as many in one turn as it may.

Theory of operation
-------------------
A request ends without a word of its environment when its deadline has passed, when its
execution has lasted for longer than it may (``execution_s``, of the call or of the server,
whichever is less), when the server closes, and when the environment is broken for good.  Often
many end so at once: no more than :data:`ANSWERS_AT_ONCE` are answered in one turn (G10); the
rest waits here, and :attr:`Deadlines.behind` says so.  The outcome of each is recorded by the
cache; whose outcome is there already gets that.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from . import outcomes
from .executions import Execution
from .key_answers import Say
from .request_table import RequestInput
from .requests import Entry, RequestState, RetainedOutcome, Session
from .terms import SessionId

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

ANSWERS_AT_ONCE = 1024
"""Answers that one input may cause, where many requests end together: some 40 ms."""

AGAIN_S = 1.0
"""How long until a request is looked at again whose answer waits for the journal when its
deadline passes."""

Outcome: TypeAlias = Callable[[Entry], RetainedOutcome]


class Due(NamedTuple):
    """A request that ends together with others, and was not answered yet."""

    session: SessionId
    sequence: int
    still: Callable[[Entry], bool]
    """Whether it is still to be answered."""
    outcome: Outcome


class Deadlines:
    """The requests that end so, of a dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.heap: list[tuple[float, SessionId, int]] = []
        """When which request ends.  Those that were answered before are dropped now and then."""
        self._limited: list[tuple[float, int, SessionId, int]] = []
        """Until when, in time awake, which execution may last: its serial number, and its
        request.  Those that have ended are dropped now and then, too."""
        self.behind = False
        """Whether there is more to answer than one turn may."""
        self._due: deque[Due] = deque()
        self._late = False
        """Deadlines have passed whose requests were not answered yet."""
        self._left = ANSWERS_AT_ONCE
        self._most = 1024

    @property
    def are_due(self) -> bool:
        """Whether requests of :meth:`answer_all` still wait for their answers."""
        return bool(self._due)

    def add(self, at_s: float, session: Session, sequence: int) -> None:
        """This request ends then."""
        heapq.heappush(self.heap, (at_s, session.id, sequence))

    def add_execution(self, execution: Execution, entry: Entry) -> None:
        """This execution may last for as long as its caller and this server let it."""
        most_s: float | None = self._dispatcher.limits.execution_s
        if entry.execution_s is not None:
            most_s = entry.execution_s if most_s is None else min(most_s, entry.execution_s)
        if most_s is not None:
            until_s = execution.dispatched_s + most_s
            heapq.heappush(self._limited, (until_s, execution.serial, *entry.id))

    def begin_turn(self) -> None:
        """Another input may answer as many again."""
        self._left = ANSWERS_AT_ONCE

    def go_on(self, now_s: float) -> None:
        """Answer those that waited for another turn, and those whose deadlines have passed."""
        self._answer_due()
        self._late = not (self._answer_passed(now_s) and self._answer_old())
        self.behind = self._late or bool(self._due)

    def answer_all(self, choose: Callable[[Entry], bool], outcome: Outcome) -> None:
        """Answer all of these requests, as many now as this turn may.  Those with a key
        follow the work of that."""
        for session in self._dispatcher.cache.sessions.values():
            self._due.extend(
                Due(session.id, sequence, choose, outcome)
                for sequence, entry in session.entries.items()
                if entry.key is None and choose(entry)
            )
        self._answer_due()
        self.behind = self._late or bool(self._due)

    def _answer_due(self) -> None:
        """Go on with :meth:`answer_all`.  Whoever was answered since is left out.  Each may
        be the work of a key for which many wait: they come first."""
        while self._due and self._left and not self._dispatcher.keyed.answers_due:
            self._left -= 1
            due = self._due.popleft()
            session = self._dispatcher.cache.sessions.get(due.session)
            entry = None if session is None else session.entries.get(due.sequence)
            if session is not None and entry is not None and due.still(entry):
                self._dispatcher.step(session, due.sequence, RequestInput.DEADLINE, due.outcome)

    def _answer_passed(self, now_s: float) -> bool:
        """Answer the requests whose deadlines have passed; whether that was all of them."""
        while self.heap and self.heap[0][0] <= now_s:
            if not self._left or self._dispatcher.keyed.answers_due:
                return False
            self._left -= 1
            _, session_id, sequence = heapq.heappop(self.heap)
            session = self._dispatcher.cache.sessions.get(session_id)
            entry = None if session is None else session.entries.get(sequence)
            if session is not None and entry is not None:
                self._answer_late(session, entry, now_s)
        return True

    def _answer_late(self, session: Session, entry: Entry, now_s: float) -> None:
        """Tell an outcome that waits for the journal, once it is safe.  A journal that fails, now
        or later, holds nobody up: then all that is known is that it may have run."""
        journal = self._dispatcher.journal
        if not self._dispatcher.keyed.answers.is_decided(entry.id) or journal.failed:
            before = journal.appended
            outcome = self._deadline(entry)
            if journal.appended == before or journal.failed:
                self._dispatcher.step(session, entry.id.sequence, RequestInput.DEADLINE, outcome)
                return
            self._dispatcher.keyed.answers.give(Say(entry.id, outcome(entry)))
        self.add(now_s + AGAIN_S, session, entry.id.sequence)

    def _answer_old(self) -> bool:
        """Answer the requests whose executions have lasted for longer than they may; whether
        that was all of them.  The executions are told to stop."""
        limited, awake_s = self._limited, self._dispatcher.clock.awake_s
        outcome = outcomes.too_old(self._dispatcher.limits.execution_s)
        while limited and limited[0][0] <= awake_s:
            if not self._left or self._dispatcher.keyed.answers_due:
                return False
            self._left -= 1
            first = heapq.heappop(limited)
            if self._may_run(first):
                _, _, session_id, sequence = first
                session = self._dispatcher.cache.sessions[session_id]
                self._dispatcher.step(session, sequence, RequestInput.DEADLINE, outcome)
        return True

    def _may_run(self, limited: tuple[float, int, SessionId, int]) -> bool:
        """Whether the code of this execution may still run, and its request wants its outcome."""
        _, serial, session_id, sequence = limited
        session = self._dispatcher.cache.sessions.get(session_id)
        entry = None if session is None else session.entries.get(sequence)
        if entry is None or entry.state is not RequestState.RUNNING:
            return False
        execution: Execution = entry.execution
        return execution.serial == serial and execution.size_bytes is None

    def _deadline(self, entry: Entry) -> Outcome:
        if entry.key is None or entry.state is not RequestState.WAITING:
            return outcomes.deadline
        started = self._dispatcher.keyed.leave(entry) or bool(self._dispatcher.journal.failed)
        return outcomes.key_deadline(started=started)

    def drop(self) -> None:
        """Drop those of finished requests, and of executions that have ended, once they are
        most of all (G8)."""
        if len(self.heap) + len(self._limited) < self._most:
            return
        sessions = self._dispatcher.cache.sessions
        self.heap = [
            each for each in self.heap
            if each[1] in sessions and each[2] in sessions[each[1]].entries
        ]  # fmt: skip
        self._limited = list(filter(self._may_run, self._limited))
        heapq.heapify(self.heap)
        heapq.heapify(self._limited)
        self._most = max(1024, 2 * (len(self.heap) + len(self._limited)))
