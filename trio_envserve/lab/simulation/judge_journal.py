"""Whether a journal keeps what it promises (G11).

Theory of operation
-------------------
The judge knows what is on the disk: what was written, and what of that is safe.  Nothing
may be told or dispatched before its record is safe, and so a crash loses nothing that
anybody was told.  What the records of a generation say must be a history that can be: it
is opened, started, completed once, closed once, and nothing follows.

The servers of a run with a journal have one memory of keys between them: that of the first
(:meth:`JournalJudge.home`).  What the judge of keys holds against a server it thereby holds
against all that come after it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...core.journal import (
    Cancelled,
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Record,
    Started,
)
from ...core.key_records import KeyAct
from ...core.terms import RequestId
from .judge_records import Call
from .plan import Fault

if TYPE_CHECKING:
    from ...retrylab.world import Process
    from .judge_wires import Wires


def _label(record: Opened | Cancelled | Commanded) -> str:
    """How the environment's log names its key."""
    return f"{record.namespace.decode()}.{record.key.decode()}"


class Facts:
    """The facts in a journal, as far as it goes."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.labels: dict[int, str] = {}
        """The key of each generation, as the log names it."""
        self.open: dict[str, int] = {}
        self.callers: dict[int, set[bytes]] = {}
        """The callers that may count for each."""
        self.allowances: dict[int, int] = {}
        self.starts: Counter[int] = Counter()
        self.outcomes: dict[int, bytes] = {}
        self.closed: set[int] = set()
        self.commands: set[tuple[bool, bytes, bytes, bytes]] = set()
        self.early: set[str] = set()
        """Keys whose next request is cancelled."""
        for record in records:
            for _ in self.read(record):
                pass

    def read(self, record: Record) -> Iterator[str]:
        """One more record; what cannot be about it."""
        if isinstance(record, (Joined, Started, Completed, Closed)):
            number = record.number
            if number not in self.labels or number in self.closed:
                yield f"{record[:1]} of a generation that is not open"
            elif number in self.outcomes and not isinstance(record, Closed):
                yield f"{type(record).__name__} of generation {number}, which has its outcome"
        match record:
            case Opened(number):
                label = _label(record)
                if number in self.labels or label in self.open:
                    yield f"generation {number} of {label} is opened beside another"
                self.labels[number], self.open[label] = label, number
                self.callers[number] = {record.caller}
                self.allowances[number] = record.allowance
            case Joined(number, caller):
                self.callers[number].add(caller)
            case Started(number):
                self.starts[number] += 1
            case Completed(number, frames):
                self.outcomes[number] = bytes(frames[1])
            case Closed(number):
                self.closed.add(number)
                self.open.pop(self.labels.get(number, ""), None)
            case Commanded(forget, namespace, key, tag):
                self.commands.add((forget, namespace, key, tag))
                if record.early:
                    self.early.add(_label(record))
            case Cancelled():
                self.early.discard(_label(record))


class JournalJudge:
    """The part of the judge that knows the disk."""

    def __init__(self, book: Wires) -> None:
        self._book = book
        self.on = book.plan.has(Fault.JOURNAL)
        self.safe = Facts()
        self._written = Facts()
        self._first: Process | None = None
        self._dispatches: Counter[int] = Counter()
        """Of each generation, over all epochs."""
        self._damaged: set[int] = set()
        """Generations whose outcomes could not be read once."""
        self._started_s: dict[int, float] = {}
        """When each generation was last to start."""
        self._of: dict[RequestId, int | None] = {}
        """The generation in which each request waits, or has waited; none if a cancel that
        had come before it has hit it."""

    def home(self, server: Process) -> Process:
        """The first server whose memory of keys this one has."""
        if not self.on:
            return server
        self._first = self._first or server
        return self._first

    # -- the disk -------------------------------------------------------------

    def written(self, server: Process, records: Sequence[Record]) -> None:
        """A server has written a group."""
        for record in records:
            for wrong in self._written.read(record):
                self._broken(f"{wrong}, says {server.name}")
            if isinstance(record, Started):
                self._started_s[record.number] = self._book.clock()
            if isinstance(record, Closed):
                label = self._written.labels.get(record.number, "")
                self._book.keys.over((self.home(server), label))
            elif isinstance(record, Cancelled):
                self._book.keys.over((self.home(server), _label(record)))

    def saved(self, records: Iterable[Record]) -> None:
        """These are safe from now on."""
        for record in records:
            for _ in self.safe.read(record):
                pass  # it was said when it was written
            if isinstance(record, Cancelled) and self._first is not None:
                self._book.keys.said.hit((self._first, _label(record)))

    def crashed(self, server: Process, records: Sequence[Record]) -> None:
        """A server is dead, and these records are there."""
        self.safe, self._written = Facts(records), Facts(records)
        home = self.home(server)
        known = {number for number in self.safe.outcomes if number not in self.safe.closed}
        callers = {(home, label): self.safe.callers[n] for label, n in self.safe.open.items()}
        self._book.keys.server_died(server, known, callers)
        # Whom one has hit that is used up may not have heard of it, and asks as if anew.
        self._book.keys.said.left({(home, label) for label in self.safe.early})

    def read(self, server: Process, number: int) -> None:
        """A server asks its disk for the outcome of a generation."""
        if number not in self.safe.outcomes:
            self._broken(f"{server.name} reads generation {number}, whose outcome is not safe")

    def damaged(self, number: int) -> None:
        """The outcome of a generation cannot be read, this time."""
        self._damaged.add(number)

    def started_s(self, number: int) -> float:
        """When it was last decided to start this generation."""
        return self._started_s.get(number, math.inf)

    def is_used(self, label: str) -> bool:
        """Whether a cancel that came before any request has hit one by now."""
        return self.on and label not in self._written.early

    # -- what is done and told ------------------------------------------------

    def dispatched(self, number: int) -> None:
        """An execution of this generation is sent to a worker, for the first time."""
        if not self.on:
            return
        self._dispatches[number] += 1
        if self._dispatches[number] > self.safe.starts[number]:
            self._broken(f"generation {number} is dispatched, and its start is not safe")
        most = self._written.allowances.get(number, 0)
        if self._dispatches[number] > most:
            text = f"generation {number} is dispatched once more, and {most} were allowed"
            self._book.violation("G2", text, self._written.labels.get(number, ""))
        if number in self.safe.outcomes:
            self._broken(f"generation {number} is dispatched, and it had its outcome")

    def waits(self, request: RequestId, label: str) -> None:
        """A server has dealt with a request that it took in, for the first time or again."""
        if self.on:
            self._of.setdefault(request, self._written.open.get(label))

    def told(
        self, call: Call, request: RequestId, payload: bytes, *, of_key: bool, executions: int,
        code: str = "",
    ) -> None:  # fmt: skip
        """A request is answered; with the outcome of its key, and the number of executions that
        led to it, or because that is over, or, as the code says, because it cannot be read."""
        number = self._of.get(request)
        if not self.on or number is None:
            return
        if not of_key:
            self._over(call, number)
        elif code == "not-durable":
            if number not in self._damaged:
                self._broken(f"{call.key} is told that what can be read cannot be", call.key)
        elif self.safe.outcomes.get(number) != payload:
            text = f"{call.key} is told an outcome of generation {number} that is not safe"
            self._broken(text, call.key)
        elif executions != self.safe.starts[number]:
            text = f"{call.key} is told of {executions} executions of generation {number}; by the "
            self._broken(f"{text}journal there were {self.safe.starts[number]}", call.key)

    def confirmed(self, call: Call, request: RequestId) -> None:
        """The cancel of a request is answered."""
        number = self._of.get(request)
        if number is not None and number in self._written.closed:
            self._over(call, number)

    def command_told(self, call: Call, record: dict[str, Any]) -> None:
        """A command by key is answered."""
        use, number = call.use, record["generation"]
        assert use is not None
        if not self.on or use.act not in (KeyAct.CANCEL, KeyAct.FORGET):
            return
        said = use.act is KeyAct.FORGET, *use.name, use.tag
        if isinstance(use.tag, bytes) and said not in self.safe.commands:
            self._broken(f"{call.key} is answered, and what is said is not safe", call.key)
        if number is not None:
            self._over(call, number)
        if record.get("finished") and not any(
            self.safe.labels[each] == use.label for each in self.safe.outcomes
        ):
            text = f"{call.key} is told that its key has its outcome, and none is safe"
            self._broken(text, call.key)

    def _over(self, call: Call, number: int) -> None:
        if number not in self.safe.closed:
            text = f"{call.key} is told that generation {number} is over, and that is not safe"
            self._broken(text, call.key)

    def _broken(self, text: str, key: str = "") -> None:
        self._book.violation("G11", text, key)
