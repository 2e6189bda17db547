"""Announced outcomes: their workers hold them until the router has memory for them (G8).

Theory of operation
-------------------
A worker announces the size of a large outcome.  The outcome waits in the line of its session.
Lines take turns, and the first outcome of a line is fetched when
:meth:`~.account.Accounts.may_keep` allows.  From then on its size counts as kept, so all outcomes
that are kept or under way are within the bound.  A waiting outcome counts when the router
dispatches (:meth:`~.account.Accounts.may_run`), so workers hold at most the outcomes of the
executions that ran when the bound was reached.

The work is RUNNING until its outcome has arrived.  A cancel, a deadline or the end of its
session's lease ends the execution at once, because its code has ended.
"""

from __future__ import annotations

from collections import OrderedDict

from .account import Accounts
from .executions import Execution
from .terms import SessionId


class Announcements:
    """The announced outcomes that have not arrived."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.lines: OrderedDict[SessionId, OrderedDict[tuple[bytes, int], Execution]]
        """Outcomes that are not fetched yet, by session, then by worker and dispatch."""
        self.lines = OrderedDict()

    def __len__(self) -> int:
        """Number of outcomes that are not fetched yet."""
        return sum(map(len, self.lines.values()))

    def add(self, execution: Execution) -> None:
        """Append the announced outcome of an execution."""
        line = self.lines.setdefault(execution.session.id, OrderedDict())
        line[_key(execution)] = execution
        self._accounts.announce(execution.session, _size_bytes(execution))

    def remove(self, execution: Execution) -> None:
        """Take out an outcome that has arrived or is not wanted, or whose worker is dead."""
        if execution.fetched:
            self._accounts.reserve(execution.session, -_size_bytes(execution))
        else:
            self._remove_waiting(execution)

    def grant(self) -> list[Execution]:
        """The executions whose outcomes are to be fetched now; sessions take turns."""
        granted: list[Execution] = []
        refused = 0
        while refused < len(self.lines):
            session_id, line = next(iter(self.lines.items()))
            execution = next(iter(line.values()))
            size_bytes = _size_bytes(execution)
            self.lines.move_to_end(session_id)
            if self._accounts.may_keep(execution.session, size_bytes):
                self._remove_waiting(execution)
                self._accounts.reserve(execution.session, size_bytes)
                execution.fetched = True
                granted.append(execution)
                refused = 0
            else:
                refused += 1
        return granted

    def _remove_waiting(self, execution: Execution) -> None:
        session = execution.session
        line = self.lines[session.id]
        del line[_key(execution)]
        if not line:
            del self.lines[session.id]
        self._accounts.announce(session, -_size_bytes(execution))


def _key(execution: Execution) -> tuple[bytes, int]:
    return execution.worker.id, execution.number


def _size_bytes(execution: Execution) -> int:
    assert execution.size_bytes is not None
    return execution.size_bytes
