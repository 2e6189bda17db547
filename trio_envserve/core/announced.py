"""Outcomes that their workers hold until the router has room for them (G8).

Theory of operation
-------------------
A worker announces the size of a large outcome.  The outcome waits in the line of
its session; lines take turns, and the first of a line gets room as
:meth:`~.account.Accounts.may_keep` allows.  From then on its size counts as
kept, so all that is kept or under way is within the bound.  An outcome that waits
also counts when the router dispatches (:meth:`~.account.Accounts.may_run`), so
workers hold at most what was running when the bound was reached.

The request is RUNNING until the outcome has arrived.  Its cancel, its deadline and
the end of its lease end the execution at once, because its code has ended.
"""

from __future__ import annotations

from collections import OrderedDict

from .account import Accounts
from .executions import Execution
from .terms import SessionId


class Announcements:
    """The outcomes that were announced and have not arrived."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.lines: OrderedDict[SessionId, OrderedDict[tuple[bytes, int], Execution]]
        """The lines of the sessions; empty if nothing waits."""
        self.lines = OrderedDict()

    def __len__(self) -> int:
        """How many outcomes wait for room."""
        return sum(map(len, self.lines.values()))

    def add(self, execution: Execution) -> None:
        """The outcome of this execution waits for room."""
        line = self.lines.setdefault(execution.session.id, OrderedDict())
        line[_key(execution)] = execution
        self._accounts.announce(execution.session, _size_bytes(execution))

    def remove(self, execution: Execution) -> None:
        """Its outcome has arrived, or is not wanted, or its worker is dead."""
        if execution.fetched:
            self._accounts.reserve(execution.session, -_size_bytes(execution))
        else:
            self._take(execution)

    def grant(self) -> list[Execution]:
        """The executions whose outcomes have room now; sessions take turns."""
        granted: list[Execution] = []
        refused = 0
        while refused < len(self.lines):
            session_id, line = next(iter(self.lines.items()))
            execution = next(iter(line.values()))
            size_bytes = _size_bytes(execution)
            self.lines.move_to_end(session_id)
            if self._accounts.may_keep(execution.session, size_bytes):
                self._take(execution)
                self._accounts.reserve(execution.session, size_bytes)
                execution.fetched = True
                granted.append(execution)
                refused = 0
            else:
                refused += 1
        return granted

    def _take(self, execution: Execution) -> None:
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
