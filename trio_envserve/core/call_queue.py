"""Calls that wait at the client: to be sent, or to be tried again.

Theory of operation
-------------------
Some refusals for now say something of one key only: it has no room, or is crowded.  Calls
that are refused so may stay so for long, and must not hold up others.  So they are tried
again apart from the rest, one namespace after the other.  And those that wait for keys leave
a part of the window free: else a window full of them would keep back what makes room for
them, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from .calls import Call, ClientSession

BURST = 64
"""Calls refused for now that are tried again at once, to begin with."""

FOR_KEYS = frozenset(
    {"keys-full", "key-queue-full", "commands-full", "early", "key-crowded", "journal"}
)
"""The codes of refusals for now that say nothing of other requests."""

_ROUND = 256
"""Of calls refused for their keys so many, or fewer, tries are a round: about a minute."""


class CallQueue(OrderedDict[int, Call]):
    """The calls that wait to be sent, by number, the first one first."""

    def __init__(self) -> None:
        super().__init__()
        self._others: OrderedDict[int, Call] = OrderedDict()
        """Those of them that wait for no key."""

    def put(self, call: Call) -> None:
        """It is the last."""
        self[call.number] = call
        if not call.waits_for_key:
            self._others[call.number] = call

    def take(self, call: Call) -> None:
        """It waits here no more."""
        del self[call.number]
        self._others.pop(call.number, None)

    def first(self, session: ClientSession) -> Call | None:
        """Which call is to be sent next in this session, if there is room for one."""
        enough = session.waiting_for_keys >= session.most_waiting_for_keys
        return next(iter((self._others if enough else self).values()), None)


class Retries:
    """How many of the calls that were refused for now are tried again at once."""

    def __init__(self, round: float = float("inf")) -> None:
        self._round = round
        """After so many tries every call has had its turn, however often it is refused."""
        self.burst = BURST
        self.refused = False
        """Whether one was refused since the last ones were tried."""

    def due(self, held: Iterable[Call], now_s: float) -> list[Call]:
        """Some of those that are due: twice as many as last time if none was refused
        since, else half as many."""
        held = list(held)
        least = max(1, int(len(held) / self._round))
        self.burst = max(least, self.burst // 2) if self.refused else self.burst * 2
        self.refused = False
        due = [call for call in held if call.held_until_s <= now_s][: self.burst]
        if len(due) == len(held):
            self.burst = BURST
        return due


class RetriesForKeys:
    """The same of calls that were refused for their keys.  Each namespace has room of its own
    with the server: so each has a line of its own, too, and they take turns.  Else many calls
    for which there is no room would hold up those of another namespace."""

    def __init__(self) -> None:
        self._lines: OrderedDict[bytes, Retries] = OrderedDict()
        """By namespace; the next turn is that of the first.  Those that hold nothing have none."""

    def of(self, call: Call) -> Retries:
        """Those of its namespace."""
        return self._lines.setdefault(_namespace(call), Retries(_ROUND))

    def due(self, held: Iterable[Call], now_s: float) -> list[Call]:
        """Some of those that are due: of one namespace after the other, until they are enough
        for one time."""
        by_namespace: dict[bytes, list[Call]] = {}
        for call in held:
            by_namespace.setdefault(_namespace(call), []).append(call)
            self.of(call)
        due: list[Call] = []
        for namespace, retries in list(self._lines.items()):
            mine = by_namespace.get(namespace)
            if mine is None:
                del self._lines[namespace]
            elif len(due) < BURST and (found := retries.due(mine, now_s)):
                due += found
                self._lines.move_to_end(namespace)
        return due


def _namespace(call: Call) -> bytes:
    return call.key.name.namespace if call.key is not None else b""
