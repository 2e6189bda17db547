"""Calls that wait at the client: to be sent, or to be tried again.

Theory of operation
-------------------
A refusal for now names the account that is full: that of the session, a namespace of keys, or
none.  The calls of an account are tried again in a line of their own, and the lines take turns:
else many calls for which there is no room would hold up those of another account.  While a call
waits for room that any request needs, nothing new is sent.

Calls that wait for keys may be refused, or run, for very long.  They leave a part of the window
free: else a window full of them would keep back what makes room for them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from .calls import Call, ClientSession
from .client_messages import SESSION_FULL

BURST = 64
"""Calls refused for now that are tried again at once, to begin with."""

_ROUND = 256
"""Number of tries after which each call of a line had its turn, however often all are refused:
about a minute."""

FullAccount: TypeAlias = "bytes | None"
"""The account that a refusal names: a namespace, :data:`.SESSION_FULL`, or None for none."""


class CallQueue(OrderedDict[int, Call]):
    """The calls that wait to be sent, by number, the first one first."""

    def __init__(self) -> None:
        super().__init__()
        self._others: OrderedDict[int, Call] = OrderedDict()
        """Calls that wait for no key."""

    def put(self, call: Call) -> None:
        """Add a call at the end."""
        self[call.number] = call
        if not call.waits_for_key:
            self._others[call.number] = call

    def take(self, call: Call) -> None:
        """Remove a call."""
        del self[call.number]
        self._others.pop(call.number, None)

    def first(self, session: ClientSession) -> Call | None:
        """The call to be sent next in this session; None if there is no room for one."""
        enough = session.waiting_for_keys >= session.most_waiting_for_keys
        return next(iter((self._others if enough else self).values()), None)


class HeldCalls(dict[int, FullAccount]):
    """The calls that were refused for now: by number, the account that is full.  Each account has a
    line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: OrderedDict[FullAccount, _Line] = OrderedDict()
        """Lines that hold something; the first one has the next turn."""

    def put(self, call: Call, full: FullAccount, until_s: float) -> None:
        """Hold back a call of this account until then."""
        self.drop(call)
        call.held_until_s = until_s
        line = self.lines.setdefault(full, _Line())
        line.calls[call.number] = call
        line.refused = True
        self[call.number] = full

    def drop(self, call: Call) -> None:
        """Hold back a call no more, if it was."""
        if call.number not in self:
            return
        full = self.pop(call.number)
        line = self.lines[full]
        del line.calls[call.number]
        if not line.calls:
            del self.lines[full]

    def due(self, now_s: float) -> list[Call]:
        """Calls that are to be tried again now: first calls that stop all others, then calls of one
        account after the other, until there are enough for one time."""
        due: list[Call] = []
        for full, line in sorted(self.lines.items(), key=lambda each: each[0] != SESSION_FULL):
            if len(due) < BURST and (found := line.due(now_s)):
                due += found
                self.lines.move_to_end(full)
        return due


class _Line:
    """The calls of one account that are held back."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        self.burst = BURST
        """Number of calls that are tried again at once."""
        self.refused = False
        """Whether one was refused since the last ones were tried."""

    def due(self, now_s: float) -> list[Call]:
        """Calls that are to be tried again now: twice as many as last time if none was refused
        since, else half as many."""
        least, most = max(1, len(self.calls) // _ROUND), max(BURST, len(self.calls))
        self.burst = max(least, self.burst // 2) if self.refused else min(most, 2 * self.burst)
        self.refused = False
        due = [call for call in self.calls.values() if call.held_until_s <= now_s][: self.burst]
        if len(due) == len(self.calls):
            self.burst = BURST
        return due
