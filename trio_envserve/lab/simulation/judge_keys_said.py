"""Whether commands by key do what their answers say.

Theory of operation
-------------------
A cancel or a forget is answered with the generation that it has closed, and whether that
had been started.  From then on nothing of that generation may start.  Each copy of a
command with an id of its own is answered as the first one, and hits nothing else.  A
cancel of a key of which nothing was known hits the next request.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...core.key_records import KeyAct
from .judge_keys_work import Place
from .judge_records import Call, Execution

if TYPE_CHECKING:
    from ...retrylab.world import Process
    from .judge_wires import Wires

SLACK_S = 1.0
"""A time of retention or memory may seem shorter, by some ticks."""


class Said:
    """The part of the judge of keys that knows what was said to commands."""

    def __init__(
        self, book: Wires, runs: dict[str, list[Execution]],
        of: dict[tuple[Process, int], list[Execution]],
    ) -> None:  # fmt: skip
        self._book = book
        self._runs = runs
        """All executions of a key."""
        self._of = of
        """All executions of a generation."""
        self.closed: dict[tuple[Process, int], int] = {}
        """Generations that a command has closed, and when."""
        self._unstarted: set[tuple[Process, int]] = set()
        """Generations that, it was said, were never started."""
        self._early: dict[Place, float] = {}
        """Keys of which nothing was known when a cancel came, and when that was."""
        self._sent: dict[Place, tuple[int, int]] = {}
        """The last generation of which an execution was sent, and how often one was."""
        self._answers: dict[tuple[Place, KeyAct, bytes], tuple[Any, float]] = {}
        """The answers to commands with ids of their own, and their times."""

    def answer(self, place: Place, call: Call, record: dict[str, Any], order: int) -> None:
        """A command by key is answered."""
        number, started = record["generation"], record["started"]
        server, label = place
        assert call.use is not None
        if isinstance(call.use.tag, bytes) and call.use.tag:
            self._again(place, call, call.use.act, call.use.tag, record)
        if number is None:
            return
        if isinstance(call.use.tag, int) and call.use.tag != number:
            text = f"{call.key} names generation {call.use.tag}, and {number} is closed"
            self._book.violation("G7", text, call.key)
        self.closed.setdefault((server, number), order)
        if not started:
            self._unstarted.add((server, number))
            if self._of.get((server, number)):
                text = f"generation {number} of {label} has run; its cancel says that it had not"
                self._book.violation("G7", text, label)

    def _again(
        self, place: Place, call: Call, act: KeyAct, tag: bytes, record: dict[str, Any]
    ) -> None:
        """Each copy of a command is answered as the first one, and hits nothing else."""
        now_s, most_s = self._book.clock(), self._book.plan.keys.command_s
        first, said_s = self._answers.get((place, act, tag), (None, 0.0))
        if first is None or now_s - said_s >= most_s - SLACK_S:
            self._answers[place, act, tag] = record, now_s
            unknown = record["generation"] is None and act is KeyAct.CANCEL
            used = self._book.journal.is_used(place[1])
            if unknown and not used and not self._may_live(place):
                self._early[place] = now_s
        elif first != record:
            text = f"{call.key} comes again, and is told {record}; it was {first}"
            self._book.violation("G7", text, call.key)

    def _may_live(self, place: Place) -> bool:
        """Whether an execution of this key may live, as far as its server knows: one that was
        sent and lost on the way lives until its worker declines it."""
        server, label = place
        number, sent = self._sent.get(place, (-1, 0))
        if len(self._of.get((server, number), ())) < sent:
            return True
        runs, home = self._runs.get(label, ()), self._book.journal.home
        return any(home(e.server) is server and e.server.alive and not e.delivered for e in runs)

    def hit(self, place: Place) -> None:
        """A request was cancelled by key: a cancel that came early hits one."""
        self._early.pop(place, None)

    def left(self, places: set[Place]) -> None:
        """Of the cancels that came early only these are left."""
        for place in self._early.keys() - places:
            del self._early[place]

    def dispatched(self, place: Place, number: int) -> None:
        """An execution of a generation is sent to a worker."""
        server, label = place
        last, sent = self._sent.get(place, (-1, 0))
        self._sent[place] = number, (sent + 1 if last == number else 1)
        if (server, number) in self._unstarted:
            text = f"generation {number} is started, and it was said that it never would be"
            self._book.violation("G7", text, label)
        if (server, number) in self.closed:
            text = f"generation {number} is started, and a command had closed it"
            self._book.violation("G7", text, label)
        early_s = self._early.pop(place, -math.inf)
        if self._book.clock() - early_s < self._book.plan.keys.command_s - SLACK_S:
            text = f"generation {number} is started, and a cancel had come before its request"
            self._book.violation("G7", text, label)
