"""Judges of a run: folds over its events, which know what happened, not what cores believe.

Theory of operation
-------------------
The actors of a world say what happens to them, as events (:data:`KINDS`).  A judge sees each in
order and keeps what it needs: what callers asked and were told; the log that environment code
writes as it starts and ends; stops and deaths of processes; what passes on the wires; what is on
disks.  It has no actor and no core in its hands, so the events of a run are all that it takes to
judge it again.  What sizes a core has is told by :mod:`.bounds`, as events, too.

Everything that contradicts a guarantee is a violation: a line that begins with the guarantee's
number.  A run goes on after a violation.

*Keys.*  Three things are known that no core can make up.  The environment's log names the key and
the input of each start.  Each dispatch has the number of its generation.  And the wires
tell who asks, who is answered and who leaves.

From these follows in which generation a request waits: all requests for one key that are
not answered wait for its open generation, and what is dispatched is of the open one.  So
a dispatch of another generation while somebody still waits for an earlier one breaks a
promise, and so do an outcome of another generation, another input's outcome, and a cancel
that says that nothing started.

Where it is not sure, nothing is claimed: of a request whose session may have lapsed, of
one whose caller has asked again in another session, of what closed without a word.

*Commands by key.*  A cancel or a forget is answered with the generation that it has closed, and
whether that had been started.  From then on nothing of that generation may start.  Each copy of a
command with an id of its own is answered as the first one, and hits nothing else.  A
cancel of a key of which nothing was known hits the next request.

*Work of keys.*  What runs under a key is wanted as long as somebody counts: a request that sent
the input and has not left, or one whose session was lost, until its caller is back or the deadline
for orphans has passed.  When the server has dealt with something, nothing may run for
which surely nobody counts and which was not told to stop; and nothing may have been told
to stop for which somebody surely counts.

*Disks.*  What was written is known, and what of that is safe.  Nothing may be told or dispatched
before its record is safe, and so a crash loses nothing that anybody was told.  What the records of
a generation say must be a history that can be: it is opened, started, completed once, closed once,
and nothing follows.  The servers of a run with a journal have one memory of keys between them: that
of the first (:meth:`JournalJudge.home`).  What is held against one is thereby held against all that
come after it.

*Hosts.*  True time is known here, and to none of the cores.  A host's lease is counted from when
the beat was sent that its server answered, on that host's clock: no worker may live longer than
that, and the latency of its guard.  What a server takes for lost, or calls dead of an earlier one,
must be dead, or sleep with its machine: then it is judged as that wakes, once timers have fired.

*Health and time.*  No false alarms, and no all-clear from a pool that is dead or stopped.  Closing
ends within the sum of its limits, the time in which the server was stopped not counted; no work is
begun meanwhile; what was taken in is answered; and the status says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import cbor2

from ...core import error_records, messages
from ...core.closing import ClosingStage
from ...core.errors import ErrorInfo
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
from ...core.limits import CAPACITY, WireLimits
from ...core.ranges import Ranges
from ...core.terms import Body, RequestId, Status, Verdict
from ...retrylab.judges import Event, Judge, Violation
from .plan import Fault, KeyUse, Plan

# -- what is known ------------------------------------------------------------------------


@dataclasses.dataclass(slots=True, eq=False)
class Observed:
    """A process, as events tell of it."""

    name: str
    died_s: float | None = None
    held_s: float = 0.0
    """Time for which it was held up in all, in seconds."""
    held_times: int = 0
    continued_s: float = -math.inf
    """Time at which it was last continued after a stop."""
    stopped_s: float | None = None
    """Time at which it was stopped; None if it is not."""
    asleep: bool = False
    """Whether its machine sleeps: then no code of it runs."""
    # Of a machine with a host.
    rate: float = 1.0
    """How fast its clock is."""
    guard_s: float = 0.0
    """Most time from the deadline of its guard to the death of its workers, in seconds."""
    tenure: bytes = b""
    """That of its newest beat."""
    beats: dict[int, float] = dataclasses.field(default_factory=dict)
    """When each beat of that tenure was sent."""
    until_s: float = -math.inf
    """By then all its workers are dead, by what its server has answered."""
    # Of a worker.
    machine: Observed | None = None
    """The machine of its host, if it is on one."""
    server: Observed | None = None
    slot: int = 0
    set_up_s: float | None = None
    """Time at which its environment was set up."""
    reaped: bool = False
    junk: str = ""
    """Way in which its messages are spoilt; empty if they are not."""
    known_s: float | None = None
    """Time at which its router first answered its hello, which is a sign of life, too."""
    told_to_stop: set[int] = dataclasses.field(default_factory=set)
    """Dispatches that are to stop, of which the router has not heard the end."""
    # Of a server.
    epoch: bytes = b""
    locked: bool = False
    workers: dict[str, Observed] = dataclasses.field(default_factory=dict)
    empty_since_s: dict[int, float] = dataclasses.field(default_factory=dict)
    """The slots that nobody is in, and since when."""
    most_workers: int = 0
    """The most that were there at once."""

    @property
    def alive(self) -> bool:
        """Whether it has not died."""
        return self.died_s is None

    @property
    def home(self) -> Observed:
        """The server of a worker."""
        assert self.server is not None
        return self.server

    def moved_s(self, now_s: float) -> float:
        """Time since it was last continued, in seconds; 0 while stopped."""
        return 0.0 if self.stopped_s is not None else now_s - self.continued_s

    def quiet_s(self, now_s: float) -> float:
        """Time for which its router has had no sign of life: it is stopped, or dead."""
        since_s = (now_s if self.stopped_s is None else self.stopped_s) if self.alive else None
        quiet_s = now_s - (since_s if since_s is not None else self.died_s or 0.0)
        return quiet_s if self.known_s is None else min(quiet_s, now_s - self.known_s)


@dataclasses.dataclass(slots=True, eq=False)
class Execution:
    """One execution, as the environment's log has it."""

    key: str
    worker: Observed
    server: Observed
    request: RequestId
    number: int
    started_s: float
    ended_s: float | None = None
    status: Status | None = None
    payload: bytes = b""
    cancelled: bool = False
    delivered: bool = False
    """Its outcome has arrived at its router, before its worker was declared lost."""

    def live(self) -> bool:
        """From its start to its end, or to the death of its process."""
        return self.ended_s is None and self.worker.alive

    def runs(self) -> bool:
        """Whether it is live, and its machine does not sleep: what counts is whether it would run
        again, and as a machine wakes the timers of its guard come first."""
        return self.live() and not self.worker.asleep


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """One call: its request, and the caller's answer."""

    key: str
    client: str
    consent: bool
    most: int
    limit_s: float | None
    use: KeyUse | None = None
    """The use of a key: its executions, if any, are those of the key."""
    input: str = ""
    """Of such a call: how the environment's log names its input."""
    asked_s: float = 0.0
    honest: bool = True
    cancelled_s: float | None = None
    told: str = ""
    told_s: float = 0.0
    verdict: Verdict | None = None
    received: bool = False
    """The caller has the outcome in hands."""
    executions: list[Execution] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Hearing:
    """When a server last heard a client, and how much, and how often, the server had
    slept then."""

    at_s: float
    slept_s: float
    sleeps: int


def key_of(body: Body) -> str:
    """The unique name of a call, which is the beginning of its body."""
    return bytes(body[:64]).partition(b"|")[0].decode()


class Book(Judge):
    """The facts that all parts of the judge read; none of them is what a core believes."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now_s = 0.0
        """Time of the event that is seen."""
        self.found: list[Violation] = []
        """Violations that the event shows."""
        self.processes: dict[str, Observed] = {}
        self.calls: dict[str, Call] = {}
        self.draining: set[Observed] = set()
        """Servers that were asked to stop."""
        self.broken: set[Observed] = set()
        """Servers that answered, at some time, that their environment is broken."""
        self.gone_clients: dict[str, float] = {}
        """Clients that were killed or closed, and when."""
        self.leaving: set[Observed] = set()
        """Workers that were told to exit, are to be killed, or were reaped."""
        self.sessions: dict[bytes, tuple[Observed, str]] = {}
        """The server that granted each session, and its client."""
        self.first: dict[RequestId, str] = {}
        """The first body under each id that was not refused for now."""
        self.asked_in: dict[str, bytes] = {}
        """The session in which a server last took in a request of this key."""
        self.started_as: dict[RequestId, str] = {}
        """The body that was started under each id."""
        self.finished: dict[bytes, Ranges] = {}
        self.heard: dict[bytes, Hearing] = {}
        """By session: a late message of an earlier one does not count."""
        self.silent: set[bytes] = set()
        """Sessions that were once unheard for a lease."""
        self.by_dispatch: dict[tuple[Observed, int], Execution] = {}

    def violation(self, guarantee: str, text: str, key: str = "") -> None:
        """A guarantee does not hold; for the call of this key, if it is one's."""
        self.found.append(Violation(guarantee, self.now_s, text, key))

    def process(self, name: str) -> Observed:
        """The process of this name."""
        found = self.processes.get(name)
        if found is None:
            found = self.processes[name] = Observed(name)
        return found

    def key_of_request(self, request: RequestId) -> str:
        """The call of this id, as far as one is known."""
        return self.started_as.get(request) or self.first.get(request, "")


# -- the disk ----------------------------------------------------------------------------


def _label(record: Opened | Cancelled | Commanded) -> str:
    """How the environment's log names its key."""
    return f"{record.namespace.decode()}.{record.key.decode()}"


class JournalFacts:
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
        self.safe = JournalFacts()
        self._written = JournalFacts()
        self._first: Observed | None = None
        self._dispatches: Counter[int] = Counter()
        """Of each generation, over all epochs."""
        self._damaged: set[int] = set()
        """Generations whose outcomes could not be read once."""
        self._started_s: dict[int, float] = {}
        """When each generation was last to start."""
        self._of: dict[RequestId, int | None] = {}
        """The generation in which each request waits, or has waited; none if a cancel that
        had come before it has hit it."""

    def home(self, server: Observed) -> Observed:
        """The first server whose memory of keys this one has."""
        if not self.on:
            return server
        self._first = self._first or server
        return self._first

    # -- the disk -------------------------------------------------------------

    def written(self, server: Observed, records: Sequence[Record]) -> None:
        """A server has written a group."""
        for record in records:
            for wrong in self._written.read(record):
                self._broken(f"{wrong}, says {server.name}")
            if isinstance(record, Started):
                self._started_s[record.number] = self._book.now_s
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

    def crashed(self, server: Observed, records: Sequence[Record]) -> None:
        """A server is dead, and these records are there."""
        self.safe, self._written = JournalFacts(records), JournalFacts(records)
        home = self.home(server)
        known = {number for number in self.safe.outcomes if number not in self.safe.closed}
        callers = {(home, label): self.safe.callers[n] for label, n in self.safe.open.items()}
        self._book.keys.server_died(server, known, callers)
        # Whom one has hit that is used up may not have heard of it, and asks as if anew.
        self._book.keys.said.left({(home, label) for label in self.safe.early})

    def read(self, server: Observed, number: int) -> None:
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


# -- keys: what runs ---------------------------------------------------------------------


Dispatch: TypeAlias = "tuple[Observed, int, RequestId]"
"""A worker, a number, and the request that it runs."""

Place: TypeAlias = "tuple[Observed, str]"
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
        self._early: set[tuple[Observed, int]] = set()
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

    def stop_sent(self, worker: Observed, number: int) -> None:
        """A worker is told to stop this dispatch."""
        execution = self._book.by_dispatch.get((worker, number))
        if execution is None:
            self._early.add((worker, number))
            return
        place = self._place(execution)
        if execution in self._running.get(place, ()):
            self._running[place].remove(execution)
            self._stops.append(execution)

    def dealt(self, server: Observed) -> None:
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
                lost = self._book.lost
                running[:] = [
                    e for e in running if e.live() and e.server is server and e.worker not in lost
                ]
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
            for_s = book.now_s - heard.at_s
            if for_s < plan.server.lease_s + plan.keys.orphan_s - 1.0:
                text = f"{execution.key} is stopped, and {waiter.call.key} counts for it"
                book.violation("G7", text, waiter.call.key)


class KeyRuns:
    """The part of the judge of keys that knows the executions."""

    def __init__(self, book: Wires) -> None:
        self._book = book
        self.of_key: dict[str, list[Execution]] = {}
        """All executions of a key."""
        self.of_generation: dict[tuple[Observed, int], list[Execution]] = {}
        """All executions of a generation."""
        self.by_payload: dict[bytes, Execution] = {}

    def started(self, call: Call, execution: Execution) -> None:
        """Environment code begins under a key."""
        label, number = label_of(execution.key), execution.request.sequence
        book, key = self._book, execution.key
        runs = self.of_key.setdefault(label, [])
        for earlier in runs:
            if earlier.runs():
                text = f"{key} starts, and {earlier.key} is live since {earlier.started_s:.3f}"
                book.violation("G1", text, key)
        runs.append(execution)
        home = book.journal.home(execution.server)
        mine = self.of_generation.setdefault((home, number), [])
        if mine and mine[-1].key != key:
            book.violation("G6", f"generation {number} is of {mine[-1].key} and {key}", key)
        if mine and mine[-1].worker.alive and not mine[-1].worker.asleep:
            book.violation("G2", f"{key} starts again, and its worker had not died", key)
        mine.append(execution)
        asked = [each for each in book.calls.values() if each.input == key]
        most = max((each.most for each in asked), default=0)
        if len(mine) > 1 and not any(each.consent for each in asked):
            book.violation("G2", f"{key} starts for the {len(mine)}. time without consent", key)
        elif len(mine) > most:
            text = f"{key} starts for the {len(mine)}. time, {most} allowed"
            book.violation("G2", text, key)
        call.executions.append(execution)

    def ended(self, execution: Execution) -> None:
        """Environment code has ended."""
        self.by_payload[execution.payload] = execution

    def answered(self, call: Call, status: Status, body: bytes) -> None:
        """A caller was given an outcome."""
        assert call.use is not None
        asks = call.use.act in (KeyAct.ASK, KeyAct.ATTACH)
        if status is Status.RESULT and asks and body not in self.by_payload:
            text = f"{call.key} was given a result that no execution gave"
            self._broken("G3", text, call)

    def true(self, call: Call) -> None:
        """The verdict must be true of the key's executions."""
        if call.verdict is Verdict.RAN_AND_FAILED:
            label = call.use.label if call.use else ""
            if not self.of_key.get(label):
                text = f"{call.key}: {call.told} says that it ran, and nothing of its key did"
                self._broken("G9", text, call)

    def _broken(self, guarantee: str, text: str, call: Call) -> None:
        self._book.violation(guarantee, text, call.key)


# -- keys: what is said to commands ------------------------------------------------------


SLACK_S = 1.0
"""A time of retention or memory may seem shorter, by some ticks."""


class Said:
    """The part of the judge of keys that knows what was said to commands."""

    def __init__(
        self, book: Wires, runs: dict[str, list[Execution]],
        of: dict[tuple[Observed, int], list[Execution]],
    ) -> None:  # fmt: skip
        self._book = book
        self._runs = runs
        """All executions of a key."""
        self._of = of
        """All executions of a generation."""
        self.closed: dict[tuple[Observed, int], int] = {}
        """Generations that a command has closed, and when."""
        self._unstarted: set[tuple[Observed, int]] = set()
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
        now_s, most_s = self._book.now_s, self._book.plan.keys.command_s
        first, said_s = self._answers.get((place, act, tag), (None, 0.0))
        if first is None or now_s - said_s >= most_s - SLACK_S:
            self._answers[place, act, tag] = record, now_s
            unknown = record["generation"] is None and act is KeyAct.CANCEL
            unknown = unknown and not record.get("finished")  # it comes late, not early
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
        if self._book.now_s - early_s < self._book.plan.keys.command_s - SLACK_S:
            text = f"generation {number} is started, and a cancel had come before its request"
            self._book.violation("G7", text, label)


# -- keys: who waits ---------------------------------------------------------------------


class KeyJudge:
    """The part of the judge that knows of keys."""

    def __init__(self, book: Wires) -> None:
        self._book = book
        self.calls: dict[RequestId, str] = {}
        """Which call each request is: its client says so as it sends it."""
        self._order = itertools.count()
        """The order of events, within one moment too."""
        self._waiters: dict[Place, dict[RequestId, Waiter]] = {}
        self._asking: RequestId | None = None
        """The request that the server is dealing with."""
        self._undo: list[Callable[[], None]] = []
        """Takes back what that has replaced, for a server that will not have it."""
        self._place: dict[RequestId, Place] = {}
        self._left: dict[RequestId, Waiter] = {}
        """Those that were finished, by their client or by a deadline."""
        self._answered: set[RequestId] = set()
        self._inputs: dict[Place, set[str]] = {}
        """All that were asked under a key."""
        self._commands: dict[Place, int] = {}
        """When its last cancel or forget came."""
        self._forgets: dict[Place, int] = {}
        """Moment of the last forget of each; a cancel drops no outcome."""
        self._asked: dict[Place, int] = {}
        """When its last request with an input came."""
        self._fresh: set[Place] = set()
        """Keys for which somebody asked who may start their work: not again without
        proof and consent."""
        self._never: dict[Place, int] = {}
        """Callers that asked before this were told that nothing was started, nor will be."""
        self._ended: dict[Place, int] = {}
        """When its journal last had it that a generation is over."""
        self._kept: dict[Place, tuple[int, float, int]] = {}
        """The generation whose outcome came while somebody waited, and when that was."""
        self._owed: dict[str, tuple[bytes, RequestId, Observed]] = {}
        """The outcome that came while a call waited for it."""
        self.runs = KeyRuns(book)
        self.said = Said(book, self.runs.of_key, self.runs.of_generation)
        self.closed = self.said.closed
        self.work = Wanted(book, self._waiters)

    # -- who waits ------------------------------------------------------------

    def heard(self, server: Observed, message: messages.KeyedRequest) -> None:
        """A server has dealt with a request; what it says to it comes next."""
        request = RequestId(message.session, message.sequence)
        call = self._book.calls[self.calls[request]]
        assert call.use is not None
        place = self._book.journal.home(server), call.use.label
        order = next(self._order)
        self._asking = request
        here = self._waiters.setdefault(place, {})
        match KeyAct(message.act):
            case KeyAct.CANCEL | KeyAct.FORGET:
                self._commands[place] = order
                if message.act == KeyAct.FORGET:
                    self._forgets[place] = order
                self._place[request] = place
                return
            case KeyAct.WITHDRAW:
                self._is_back(place, message.caller, message.session)
                self._place[request] = place
                return
        if request in here or request in self._answered:
            return
        new = Waiter(request, call, message.caller, order)
        if message.act == KeyAct.ATTACH:
            new.counts = False
        else:
            self._inputs.setdefault(place, set()).add(call.input)
            self._asked[place] = order
            if message.earlier is None or (message.gone and call.consent):
                self._fresh.add(place)
            self._is_back(place, message.caller, message.session)
        new.generation = next((w.generation for w in self._sure(place)), None)
        here[request] = new
        self._place[request] = place

    def _is_back(self, place: Place, caller: bytes, session: bytes) -> None:
        """Count no more what a caller asked in other sessions."""
        if self.work.is_back(place, caller):
            self._undo.append(partial(self.work.lost, place, caller))
        for waiter in self._waiters[place].values():
            if waiter.caller == caller and waiter.request.session != session and waiter.counts:
                waiter.counts = False
                self._undo.append(partial(setattr, waiter, "counts", True))

    def _not_taken(self) -> None:
        """The request that the server is dealing with has replaced nobody."""
        for undo in self._undo:
            undo()
        self._asking = None
        self._undo.clear()

    def dealt(self) -> None:
        """The server has said all that follows from one message."""
        asking = self._asking
        if asking is not None and asking in self._place:
            self._book.journal.waits(asking, self._place[asking][1])
        self._asking = None
        self._undo.clear()

    def _sure(self, place: Place) -> Iterator[Waiter]:
        """Those whose generation is known, and still open."""
        for waiter in self._waiters.get(place, {}).values():
            if waiter.generation is None or not self._here(waiter):
                continue
            if self.is_over(place, waiter):
                continue
            after_forget = self._forgets.get(place, -1) > waiter.order
            if not waiter.answered or (waiter.counts and not after_forget):
                yield waiter

    def _here(self, waiter: Waiter) -> bool:
        return not self._book.unheard(waiter.request.session)

    def is_over(self, place: Place, waiter: Waiter) -> bool:
        """Whether it waits only to be told that its generation is over, once that is safe."""
        return waiter.order < self._ended.get(place, -1)

    def over(self, place: Place) -> None:
        """A journal has it that all who have asked for this key wait for nothing more."""
        self._ended[place] = next(self._order)

    def server_died(
        self, server: Observed, known: set[int], callers: dict[Place, set[bytes]]
    ) -> None:
        """The next server will know only these outcomes, and of these keys that these
        callers may count.  Work that nobody else asks for anew may start again."""
        for request in list(self._place):
            if self._book.sessions[request.session][0] is server:
                self._lose(request)
        for place, (number, _, _) in list(self._kept.items()):
            if number not in known:
                del self._kept[place]
        self._fresh = set(callers)
        for place, names in callers.items():
            for caller in names:
                self.work.lost(place, caller)

    def finished(self, session: bytes, finished: Ranges) -> None:
        """A client wants no more of these."""
        gone = self._book.unheard(session)  # then the server may not know what that was
        for request in [r for r in self._place if r.session == session]:
            if request.sequence in finished:
                leave = self._lose if gone else self._leave
                leave(request)

    def _leave(self, request: RequestId) -> Waiter | None:
        place = self._place.pop(request, None)
        waiter = None if place is None else self._waiters.get(place, {}).pop(request, None)
        if waiter is not None:
            assert place is not None
            waiter.left = next(self._order)
            self._left[request] = waiter
        return waiter

    def lost(self, session: bytes) -> None:
        """A server does not know this session."""
        if self._asking is not None and self._asking.session == session:
            self._not_taken()
        for request in [r for r in self._place if r.session == session]:
            self._lose(request)

    def _lose(self, request: RequestId) -> None:
        """It waits no more, and its caller may go on counting."""
        place = self._place[request]
        waiter = self._leave(request)
        if waiter is not None and waiter.counts:
            self.work.lost(place, waiter.caller)

    # -- what they are told ---------------------------------------------------

    def refused(self, message: messages.Refused) -> None:
        """A request is refused, for good or for now: it does not wait."""
        request = RequestId(message.session, message.sequence)
        place = self._place.get(request)
        if request == self._asking:
            self._not_taken()
        waiter = self._leave(request)
        if waiter is None or place is None:
            return
        del self._left[request]
        call = waiter.call
        if message.code == "key-conflict":
            if not self._inputs[place] - {call.input}:
                text = f"{call.key} is a conflict, and nobody asked anything else of its key"
                self._broken("G6", text, call)
            same = [w for w in self._unanswered(place) if w.counts and w.call.input == call.input]
            if same:
                text = f"{call.key} is a conflict, and {same[0].call.key} waits for the same"
                self._broken("G6", text, call)
        if message.code == "unknown-key":
            for other in self._unanswered(place):
                if other.counts:
                    text = f"nothing is known to {call.key}, and {other.call.key} waits"
                    self._broken("G4", text, call)

    def _unanswered(self, place: Place) -> list[Waiter]:
        here = self._waiters.get(place, {}).values()
        waiting = [w for w in here if not w.answered and self._here(w)]
        return [w for w in waiting if not self.is_over(place, w)]

    def told(self, message: messages.Outcome, body: Body | None) -> None:
        """An outcome is sent, or sent again."""
        request = RequestId(message.session, message.sequence)
        place = self._place.get(request)
        if place is None or request in self._answered:
            return
        self._answered.add(request)
        assert body is not None
        payload = bytes(body)
        waiter = self._waiters[place].get(request)
        if waiter is None:
            if message.status == Status.RESULT:
                call = self._book.calls[self.calls[request]]
                self._command_done(place, call, cbor2.loads(payload))
            return
        waiter.answered = True
        execution = self.runs.by_payload.get(payload)
        if execution is not None:
            self._book.journal.told(
                waiter.call, request, payload, of_key=True, executions=message.executions
            )
            self._given(place, waiter, execution)
        elif message.status != Status.RESULT:
            self._failed(place, waiter, payload, message.executions)

    def _given(self, place: Place, waiter: Waiter, execution: Execution) -> None:
        call, number = waiter.call, execution.request.sequence
        if self._book.journal.home(execution.server) is not place[0]:
            self._broken("G5", f"{call.key} gets an outcome of another epoch", call)
        if label_of(execution.key) != place[1] or (call.input and call.input != execution.key):
            text = f"{call.key} asked for {call.input or place[1]} and gets {execution.key}"
            self._broken("G6", text, call)
        if waiter.generation not in (None, number):
            text = f"{call.key} waits for generation {waiter.generation} and gets {number}"
            self._broken("G3", text, call)
        if execution is not self.runs.of_generation[place[0], number][-1]:
            self._broken("G3", f"{call.key} gets the outcome of an earlier execution", call)
        if self.closed.get((place[0], number), waiter.order) < waiter.order:
            text = f"{call.key} gets generation {number}, which a command had closed before"
            self._broken("G7", text, call)
        waiter.generation = number

    def _failed(self, place: Place, waiter: Waiter, payload: bytes, executions: int) -> None:
        """It is told that there is no outcome, or that there will be none."""
        call, error = waiter.call, error_records.decode(payload)
        over = error.verdict is Verdict.DID_NOT_RUN or "was cancelled by name" in error.message
        if over or error.code not in ("no-answer", "outcome-too-large"):
            self._book.journal.told(
                call, waiter.request, payload, of_key=not over, executions=executions,
                code=error.code,
            )  # fmt: skip
        if error.verdict is Verdict.DID_NOT_RUN:
            self._never[place] = max(self._never.get(place, -1), waiter.order)
        if "was cancelled by name" in error.message:
            self.said.hit(place)
        if "was cancelled by name" in error.message and waiter.counts and self._here(waiter):
            last = self._commands.get(place, -1)
            if last < (waiter.order if waiter.generation is not None else 0):
                text = f"{call.key} is cancelled, and waits, and nobody has cancelled its key"
                self._broken("G7", text, call)
        if error.verdict is Verdict.DID_NOT_RUN and waiter.generation is not None:
            text = f"{call.key} is told that it did not run, and generation "
            self._broken("G7", f"{text}{waiter.generation} was dispatched", call)
        self._leave(waiter.request)

    def _command_done(self, place: Place, call: Call, record: dict[str, Any]) -> None:
        """A command by key is answered: nobody waits any more for what it has closed."""
        self.said.answer(place, call, record, next(self._order))
        self._book.journal.command_told(call, record)
        number = record["generation"]
        for waiter in self._unanswered(place):
            if number is not None and waiter.generation == number:
                text = f"{waiter.call.key} still waits for generation {number}, which was closed"
                self._broken("G7", text, waiter.call)

    def cancelled(self, message: messages.Cancelled) -> None:
        """Judge the answer to the cancel of one request."""
        request = RequestId(message.session, message.sequence)
        waiter = self._left.get(request)
        if waiter is not None:
            self._book.journal.confirmed(waiter.call, request)
        if message.started or waiter is None or request in self._answered:
            return
        call = waiter.call
        if waiter.generation is not None:
            text = f"{call.key} did not run, it is said; generation {waiter.generation} has"
            self._broken("G7", text, call)
        assert call.use is not None
        server = self._book.sessions[request.session][0]
        place = self._book.journal.home(server), call.use.label
        for other in self._unanswered(place):
            if other.counts and other.order < waiter.order and other.call.input == call.input:
                text = f"{call.key} will not run, it is said, and {other.call.key} waits for it"
                self._broken("G7", text, call)
        self._never[place] = max(self._never.get(place, -1), waiter.left)

    # -- what is done ---------------------------------------------------------

    def dispatched(self, server: Observed, number: int, body: Body) -> None:
        """An execution is sent to a worker, for the first time."""
        self._book.journal.dispatched(number)
        place = self._book.journal.home(server), label_of(key_of(body))
        for waiter in list(self._sure(place)):
            if waiter.generation != number:
                text = (
                    f"generation {number} of {place[1]} is started, and {waiter.call.key} "
                    f"has not left generation {waiter.generation}"
                )
                self._broken("G4", text, waiter.call)
        if place not in self._fresh:
            text = f"{place[1]} is started, and was asked again only, without proof or consent"
            self._book.violation("G2", text, place[1])
        if self._asked.get(place, -1) <= self._never.get(place, -2):
            text = f"{place[1]} is started, and it was said that it would not be"
            self._book.violation("G7", text, place[1])
        self.said.dispatched(place, number)
        self._retained(place, number)
        for waiter in self._waiters.get(place, {}).values():
            if not waiter.answered and not self.is_over(place, waiter):
                waiter.generation = number

    def _retained(self, place: Place, number: int) -> None:
        """Judge that what was retained is not run again before its retention has ended."""
        kept, since_s, order = self._kept.get(place, (number, 0.0, 0))
        if kept == number or self._forgets.get(place, -1) > order:
            return
        for_s = self._book.now_s - since_s
        if for_s < self._book.plan.keys.retention_s - SLACK_S:
            text = f"generation {kept} of {place[1]} is forgotten after {for_s:.1f} s"
            self._book.violation("G4", text, place[1])

    def delivered(self, execution: Execution) -> None:
        """Its outcome has come to its server: whoever waits will have it."""
        if execution.cancelled or execution.status is None:
            return
        server, number = execution.server, execution.request.sequence
        place = self._book.journal.home(server), label_of(execution.key)
        for waiter in self._unanswered(place):
            if waiter.generation != number:
                continue
            if waiter.counts:
                self._kept[place] = number, self._book.now_s, next(self._order)
            self._owed[waiter.call.key] = execution.payload, waiter.request, server

    # -- what callers are told ------------------------------------------------

    def kept(self, call: Call, body: bytes | None, *, excused: bool) -> None:
        """G4: the outcome that came while it waited is what it is told."""
        payload, request, server = self._owed.get(call.key, (body, None, None))
        if payload == body or payload is None or excused or request is None:
            return
        assert server is not None
        over = not server.alive or server in self._book.draining
        too_large = len(payload) > self._book.plan.message_bytes
        if not over and not too_large and not self._book.unheard(request.session):
            text = f"{call.key}: the outcome of its key had come, and it was told {call.told}"
            self._broken("G4", text, call)

    def _broken(self, guarantee: str, text: str, call: Call) -> None:
        self._book.violation(guarantee, text, call.key)


# -- wires -------------------------------------------------------------------------------


TICKS_S = 0.6
"""How much shorter or longer a lease may seem than it is: some ticks."""


def dispatch_of(worker: Observed, number: int, request: RequestId, key: str) -> Dispatch:
    """A dispatch, by the name of what it runs.  The number may be used again by a server that
    takes a worker over; and the work of keys has another session in each server."""
    return worker, number, RequestId(b"", request.sequence) if label_of(key) else request


class Wires(Book):
    """The part of the judge that listens."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.stopped: set[tuple[Observed, int]] = set()
        """Dispatches that their workers were told to stop."""
        self.lost: set[Observed] = set()
        """Workers whose executions their router takes for ended."""
        self.outcomes: dict[RequestId, tuple[messages.Outcome, bytes]] = {}
        self._unreceived: dict[RequestId, Call] = {}
        """Under which id a call was answered, until its caller has the outcome."""
        self._given_up: set[RequestId] = set()
        """Requests that their client has asked to end, whatever came of them."""
        self.refused: set[RequestId] = set()
        """Requests that were refused for good."""
        self.unknown: set[bytes] = set()
        """Sessions to whose clients a server has said that it does not know them."""
        self._nonces: dict[bytes, bytes] = {}
        """By session."""
        self._said_goodbye: dict[Observed, list[bytes]] = {}
        """The sessions that goodbyes named, in the order in which a server heard them."""
        self._over: set[bytes] = set()
        """Sessions whose client was told that nothing of them runs any more."""
        self.dispatched: dict[Dispatch, Observed] = {}
        """The server that sent each dispatch to its worker."""
        self.journal = JournalJudge(self)
        self.keys = KeyJudge(self)
        self._owed: tuple[RequestId, str] | None = None
        """A request with another body than the first, whose sender is to be told."""

    # -- between clients and servers ------------------------------------------

    def server_heard(
        self, server: Observed, client: str, message: messages.Message, body: Body | None
    ) -> None:
        """A server has dealt with a client's message; what it says comes next."""
        if isinstance(message, messages.Goodbye):
            left = self._left(server, message.session)
            self._said_goodbye.setdefault(server, []).append(left)
        session = getattr(message, "session", None)
        if session is None or self.sessions.get(session, (None, ""))[0] is not server:
            return
        self._compare(session)
        self.heard[session] = Hearing(self.now_s, server.held_s, server.held_times)
        if isinstance(message, messages.Request):
            assert body is not None
            self._request_heard(RequestId(session, message.sequence), key_of(body))
            return
        if client != "hostile" and isinstance(message, messages.KeyedRequest):
            request = RequestId(session, message.sequence)
            self._request_heard(request, self.keys.calls[request])
            self.keys.heard(server, message)
            return
        if client == "hostile":
            return  # a server may ignore what it states; what it is promised counts
        finished = self.finished.setdefault(session, Ranges())
        match message:
            case messages.Finish():
                finished.update(Ranges.from_flat(message.finished))
            case messages.Cancel() | messages.KeyedCancel():
                finished.add(message.sequence)
                self._given_up.add(RequestId(session, message.sequence))
            case messages.Sync():
                finished.update(Ranges.from_flat(message.pending).gaps(message.next))
            case messages.Goodbye():
                finished.add_span(0, 1 << 40)
                self.keys.finished(session, finished)
                return
        self._acknowledged(session, finished)

    def _left(self, server: Observed, identifier: bytes) -> bytes:
        """The nonce that a goodbye leaves with, if its server must still know the session;
        else what it names, for that is all that the server can remember."""
        opened = sum(1 for whose, _ in self.sessions.values() if whose is server)
        nonce = self._nonces.get(identifier)
        if (
            nonce is None
            or nonce in self._said_goodbye.get(server, ())  # forgotten since, or soon
            or opened > self.plan.server.sessions  # it may have made room for another
            or self.unheard(identifier)
        ):
            return identifier
        return nonce

    def _request_heard(self, request: RequestId, key: str) -> None:
        first = self.first.setdefault(request, key)
        self.asked_in[key] = request.session
        if first != key:
            self._owed = (request, key)

    def server_has_dealt(self) -> None:
        """Everything that follows from the last message was sent."""
        self.keys.dealt()
        if self._owed is not None:
            (request, key), self._owed = self._owed, None
            first = self.first.get(request, "?")
            self.violation("G6", f"{key} comes as {request}, was {first}: not refused", key)

    def _acknowledged(self, session: bytes, finished: Ranges) -> None:
        """G4: nothing is finished between its arrival and its caller's receiving it."""
        self.keys.finished(session, finished)
        for request, call in list(self._unreceived.items()):
            if call.received or call.cancelled_s is not None or call.client in self.gone_clients:
                del self._unreceived[request]
            elif request.session == session and request.sequence in finished:
                del self._unreceived[request]
                if request in self._given_up:
                    continue
                text = f"{call.key} is acknowledged before its caller has the outcome"
                self.violation("G4", text, call.key)

    def _compare(self, session: bytes) -> None:
        """Remember a silence that may have ended the session's lease."""
        last = self.heard.get(session)
        if last is None:
            return
        server = self.sessions[session][0]
        silence_s = self.now_s - last.at_s - (server.held_s - last.slept_s)
        # Each sleep may count as much as one step, however long it was.
        sleeps_s = self.plan.server.awake_step_s * (server.held_times - last.sleeps)
        if silence_s >= self.plan.server.lease_s - sleeps_s - TICKS_S:
            self.silent.add(session)

    def unheard(self, session: bytes) -> bool:
        """Whether the session's lease may have ended: then it is over for all its calls."""
        self._compare(session)
        return session in self.silent

    def server_told_client(
        self, server: Observed, client: str, message: messages.Message, body: Body | None
    ) -> None:
        """A server sends to a client."""
        match message:
            case messages.Welcome():
                self._nonces[message.session] = message.nonce
                left = self._said_goodbye.get(server, [])
                # So many are remembered.
                if message.nonce in left[-self.plan.server.sessions :]:
                    text = f"a session is opened for {client}, who has said goodbye to it"
                    self.violation("G8", text)
                self.sessions[message.session] = (server, client)
                self.heard.setdefault(
                    message.session, Hearing(self.now_s, server.held_s, server.held_times)
                )
                self.status_told(server, message.server)
            case messages.Synced():
                self.status_told(server, message.server)
            case messages.Outcome():
                self._outcome_sent(message, body)
                self.keys.told(message, body)
            case messages.Refused():
                self.keys.refused(message)
                request = RequestId(message.session, message.sequence)
                if self._owed is not None and self._owed[0] == request:
                    self._owed = None
                elif message.delay_s is not None:
                    self.first.pop(request, None)
                else:
                    self.refused.add(request)
            case messages.Unknown():
                self.unknown.add(message.session)
                self._owed = None
                self.keys.lost(message.session)
                if message.gone:
                    self._promised_gone(message.session)
                if message.settled:
                    self._promised_settled(message.session)
            case messages.Cancelled() if not message.started:
                self._promised_not_to_run(RequestId(message.session, message.sequence))
                self.keys.cancelled(message)

    def status_told(self, server: Observed, status: dict[str, Any]) -> None:
        """Judge what a server tells a client of itself."""

    def _promised_not_to_run(self, request: RequestId) -> None:
        """The server says that it never ran and never will."""
        self.finished.setdefault(request.session, Ranges()).add(request.sequence)
        if request in self.started_as:
            key = self.started_as[request]
            self.violation("G9", f"{request} is said not to have started, and it had", key)

    def _promised_gone(self, session: bytes) -> None:
        """The server says that nothing of this session runs any more."""
        for call in self.calls.values():
            if any(e.request.session == session and e.runs() for e in call.executions):
                text = f"{call.key} runs, and its session is said to be gone"
                self.violation("G1", text, call.key)

    def _promised_settled(self, session: bytes) -> None:
        """The server says that of this session nothing was unfinished."""
        finished = self.finished.get(session, Ranges())
        for request, key in self.started_as.items():
            if request.session == session and request.sequence not in finished:
                text = f"{request} has run, and its session is said to be settled"
                self.violation("G9", text, key)

    def _outcome_sent(self, message: messages.Outcome, body: Body | None) -> None:
        assert body is not None
        sent = message, bytes(body)
        request = RequestId(message.session, message.sequence)
        key = self.key_of_request(request)
        if self.outcomes.setdefault(request, sent) != sent:
            self.violation("G3", f"{request}: two outcomes that differ", key)
        if request.sequence in self.finished.get(request.session, ()):
            self.violation("G7", f"{request} is answered after it was finished", key)
        call = self.calls.get(self.started_as.get(request, ""))
        if call is None or not call.executions:
            return
        # A result is never that of an execution that was proven over before.
        *earlier, last = call.executions
        if any(e.payload == sent[1] for e in earlier) and last.request == request:
            text = f"{call.key}: the outcome is of an execution before the last"
            self.violation("G5", text, call.key)

    def client_heard(self, client: Observed, message: messages.Message) -> None:
        """A client has dealt with a server's message."""
        if isinstance(message, messages.Unknown) and message.gone:
            self._over.add(message.session)
        if not isinstance(message, messages.Outcome) or message.session in self._over:
            return
        request = RequestId(message.session, message.sequence)
        call = self.calls.get(self.key_of_request(request))
        if call is None or call.client != client.name:
            return
        if not call.told and call.cancelled_s is None:
            again = message.status != Status.RESULT and not message.executions
            if not again:  # else it did not run here, and another server is asked
                self.violation("G4", f"{call.key}: its outcome was thrown away", call.key)
        elif call.told_s == self.now_s and not call.told.startswith("fail"):
            self._unreceived[request] = call

    # -- between servers and workers ------------------------------------------

    def server_told_worker(
        self, worker: Observed, message: messages.Message, body: Body | None
    ) -> None:
        """A server sends to a worker."""
        if isinstance(message, messages.Retire):
            self.leaving.add(worker)
        if isinstance(message, messages.Stop):
            for number in Ranges.from_flat(message.numbers):
                self.keys.work.stop_sent(worker, number)
        if not isinstance(message, messages.Dispatch):
            return
        request = RequestId(message.session, message.sequence)
        assert body is not None
        key = key_of(body)
        # What waited for the disk was spent before.
        dispatch = dispatch_of(worker, message.number, request, key)
        began = dispatch in self.dispatched or (label_of(key) and self.journal.on)
        if worker in self.leaving and not began:
            text = f"an execution is spent on {worker.name}, which is to end"
            self.violation("G2", text, key)
        if label_of(key) and dispatch not in self.dispatched:
            self.keys.dispatched(worker.home, message.sequence, body)
        self.dispatched.setdefault(dispatch, worker.home)
        if message.sequence in self.finished.get(message.session, ()):
            self.violation("G7", f"{request} is dispatched after it was finished", key)

    def worker_heard(self, worker: Observed, message: messages.Message) -> None:
        """A worker has dealt with a message of its router."""
        if isinstance(message, messages.Stop):
            self.stopped.update((worker, n) for n in Ranges.from_flat(message.numbers))

    def outcome_arrived(self, worker: Observed, message: messages.Message) -> None:
        """An outcome has arrived at the worker's own router."""
        if worker in self.lost:
            return
        if isinstance(message, messages.WorkerOutcome):
            execution = self.by_dispatch.get((worker, message.number))
            of = RequestId(message.session, message.sequence)
            if execution is not None and execution.request == of and self._knows(execution):
                execution.delivered = True
                if label_of(execution.key):
                    self.keys.delivered(execution)

    def _knows(self, execution: Execution) -> bool:
        """Whether the router of its worker takes it for what it has started, or taken over."""
        return execution.server is execution.worker.home

    def declared_lost(self, worker: Observed) -> None:
        """The router takes the worker's executions for ended."""
        self.lost.add(worker)
        if worker.alive and not worker.asleep:
            self.violation("G1", f"{worker.name} is declared lost and lives")

    # -- hosts ----------------------------------------------------------------

    def declared_dead(self, server: Observed, epochs: Iterable[bytes]) -> None:
        """A server takes all workers of earlier ones for dead, but for those that it has."""
        dead = {each for each in self.processes.values() if each.epoch and each.epoch in epochs}
        for worker in list(self.processes.values()):
            if worker.server in dead:
                self.lost.add(worker)
                if worker.alive and not worker.asleep:
                    text = f"{worker.name} lives, and {server.name} takes its server's for dead"
                    self.violation("G1", text)

    def beat(self, machine: Observed, tenure: bytes, number: int) -> None:
        """A host has read its clock, and sent a beat."""
        if tenure != machine.tenure:
            machine.tenure, machine.beats = tenure, {}
        machine.beats.setdefault(number, self.now_s)

    def beat_answered(self, machine: Observed, tenure: bytes, number: int, fence_s: float) -> None:
        """The answer to a beat has come to its host: its lease is counted from when that was
        sent, by its clock, and its guard may be late."""
        if tenure == machine.tenure and number in machine.beats:
            until_s = machine.beats[number] + fence_s / machine.rate + machine.guard_s
            machine.until_s = max(machine.until_s, until_s)

    def lease_seen(self, worker: Observed, what: str) -> None:
        """G1: a worker on a host is dead by the time that the lease of its host says."""
        machine = worker.machine
        if machine is not None and self.now_s > machine.until_s + 1e-6:
            for_s = self.now_s - machine.until_s
            self.violation("G1", f"{worker.name} {what} {for_s:.1f} s after its host's lease")

    def leases_seen(self) -> None:
        """The same of all that live."""
        for worker in self.processes.values():
            if worker.machine is not None and worker.alive and not worker.asleep:
                self.lease_seen(worker, "lives")

    def woke(self, worker: Observed) -> None:
        """The machine of a process has woken, and its timers have fired: it runs again."""
        worker.asleep = False
        self.lease_seen(worker, "wakes")
        if worker in self.lost:
            self.violation("G1", f"{worker.name} was declared lost, and runs again")
        for execution in self.by_dispatch.values():
            if execution.worker is worker and execution.runs():
                self._alone(execution)

    def _alone(self, execution: Execution) -> None:
        """G1: no other execution of its call, or of its key, runs."""
        label = label_of(execution.key)
        for other in self.by_dispatch.values():
            same = other.key == execution.key or (label and label_of(other.key) == label)
            if same and other is not execution and other.runs():
                text = (
                    f"{execution.key} runs again, and {other.key} runs since {other.started_s:.3f}"
                )
                self.violation("G1", text, execution.key)

    def taken_back(self, worker: Observed, server: Observed) -> None:
        """A server takes over a worker on a host of an earlier one, and what runs under keys."""
        worker.server, worker.known_s, worker.told_to_stop = server, None, set()
        worker.reaped = False  # its new server does not know
        self.leaving.discard(worker)
        if self.journal.on:
            for execution in self.by_dispatch.values():
                if execution.worker is worker and label_of(execution.key):
                    execution.server = server


# -- health ------------------------------------------------------------------------------


CATCH_UP_S = 0.5
"""For so long after it was continued, a server may tell what was true before."""

REPLACED_S = 0.9
"""A place in the pool may be empty for so long: the longest pause, and some ticks."""

SETTLE_S = 3.0
"""After it was stopped, a process may be taken for silent for a while."""


SIGN_S = 10.0
"""A sign of life of a worker on a host may be late by so much."""


UNHEARD_S = 8.0
"""For so long a server may not know that a call has ended: a lease and a little more."""


class Health(Wires):
    """The part of the judge that looks after healths."""

    def kills(self, server: Observed, worker: Observed, why: str) -> None:
        """A server kills a worker: does it have a reason that is one?"""
        reason = (
            worker in self.leaving
            or not worker.alive
            or worker.known_s is None
            or bool(worker.junk)
            or server in self.draining
            or bool(worker.told_to_stop)
            or worker.moved_s(self.now_s) < SETTLE_S
            or server.moved_s(self.now_s) < SETTLE_S
        )
        self.leaving.add(worker)
        if not reason:
            text = f"{worker.name} is killed for nothing: {why}"
            keys = [e.key for e in self.by_dispatch.values() if e.worker is worker and e.live()]
            self.violation("G9", text, keys[0] if keys else "")

    def statement_sent(
        self, worker: Observed, message: messages.Message, body: Body | None
    ) -> None:
        """A server sends to a worker: what does the server know, and want to end?"""
        self.server_told_worker(worker, message, body)
        if isinstance(message, messages.Statement):
            if worker.known_s is None:
                worker.known_s = self.now_s
            live = Ranges.from_flat(message.live)
            worker.told_to_stop = {n for n in worker.told_to_stop if n in live}
            worker.told_to_stop.update(Ranges.from_flat(message.cancelled))
        elif isinstance(message, messages.Stop):
            worker.told_to_stop.update(Ranges.from_flat(message.numbers))

    def status_told(self, server: Observed, status: dict[str, Any]) -> None:
        """Judge what a server says of itself: is it ready while nobody could work?"""
        now_s = self.now_s
        if status["status"] != "ready" or server.moved_s(now_s) < CATCH_UP_S:
            return
        workers = server.workers.values()
        there = [w for w in workers if w.set_up_s is not None and not w.reaped]
        limits = self.plan.server
        silent_s = limits.silence_report_s + limits.tick_s + 0.1
        if not there:
            self.violation("G9", f"{server.name} says that it is ready, and has no worker")
        elif server.moved_s(now_s) <= silent_s:
            return  # it measures silence in its own awake time
        elif all(
            worker.quiet_s(now_s) > silent_s + (worker.machine is not None) * SIGN_S
            for worker in there
        ):
            self.violation(
                "G9", f"{server.name} says that it is ready; no worker gives a sign of life"
            )

    def pool_seen(self, server: Observed) -> None:
        """Judge that a worker that ends is replaced soon, however long its process takes to end."""
        now_s = self.now_s
        taken = {w.slot for w in server.workers.values() if w not in self.leaving}
        idle = server in self.draining or not server.locked
        if idle or server.moved_s(now_s) < SETTLE_S:
            server.empty_since_s.clear()
            return
        if self.plan.most_workers:
            self._least_kept(server, len(taken))
            return
        for slot in range(self.plan.workers):
            if slot in taken:
                server.empty_since_s.pop(slot, None)
            elif now_s - server.empty_since_s.setdefault(slot, now_s) > REPLACED_S:
                server.empty_since_s[slot] = now_s
                self.violation("G9", f"{server.name} does not replace a worker that ends")

    def _least_kept(self, server: Observed, workers: int) -> None:
        """Which slots are open the judge does not know, but how many there are at least."""
        now_s, least = self.now_s, self.plan.workers
        if workers >= least:
            server.empty_since_s.clear()
        elif now_s - server.empty_since_s.setdefault(0, now_s) > least * REPLACED_S:
            server.empty_since_s.clear()
            self.violation("G9", f"{server.name} keeps {workers} workers of at least {least}")

    def spawned(self, server: Observed, worker: Observed, slot: int) -> None:
        """There is one more worker: may there be, and is there a reason?"""
        server.workers[worker.name] = worker
        worker.slot = slot
        if not self.plan.most_workers:
            return
        workers = sum(worker not in self.leaving for worker in server.workers.values())
        before = max(server.most_workers, self.plan.workers)
        server.most_workers = max(before, workers)
        if workers > self.plan.most_workers:
            most = self.plan.most_workers
            self.violation("G8", f"{server.name} has {workers} workers of at most {most}")
        elif workers > before and not self._somebody_waits():
            self.violation("G8", f"{server.name} has {workers} workers, and nobody waits for one")

    def _somebody_waits(self) -> bool:
        """Whether anybody may have asked long ago for what does not run: the judge does not
        know how soon a server hears that it is not wanted any more, nor what keys hold."""
        if self.plan.has(Fault.KEYS) or self.plan.has(Fault.HOSTILE):
            return True
        now_s = self.now_s
        return any(
            call.asked_s <= now_s - self.plan.server.grow_after_s
            and (not call.told or now_s - call.told_s < UNHEARD_S)
            and not any(execution.live() for execution in call.executions)
            for call in self.calls.values()
        )


# -- closing -----------------------------------------------------------------------------


STAGES = [stage.value for stage in ClosingStage]


@dataclasses.dataclass(slots=True)
class _Began:
    """When a server began to close, how long it had been held up by then, and the
    latest stage that it told of."""

    at_s: float
    held_s: float
    stage: int = 0
    late: bool = False


class Closings(Health):
    """The part of the judge that watches servers close."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.unsent: set[RequestId] = set()
        """Requests that were answered or refused while their client was not connected."""
        self._began: dict[Observed, _Began] = {}

    def closing_began(self, server: Observed) -> None:
        """A server was told to close, for the first time or again."""
        self.draining.add(server)
        self._began.setdefault(server, _Began(self.now_s, server.held_s))

    def closing_seen(self, server: Observed) -> None:
        """A server has ticked: is it late?"""
        began = self._began.get(server)
        if began is None or began.late or not server.alive:
            return
        limits = self.plan.server
        stages_s = (limits.drain_s, limits.stop_s, limits.stop_s, limits.reap_s)
        most_s = sum(stages_s) + WireLimits().flush_s + len(STAGES) * limits.tick_s
        took_s = self.now_s - began.at_s - (server.held_s - began.held_s)
        if took_s > most_s:
            began.late = True
            text = f"{server.name} has been closing for {took_s:.1f} s, {most_s:.1f} s allowed"
            self.violation("G9", text)

    def server_told_nobody(self, message: messages.Message, body: Body | None) -> None:
        """A server answers a client that is not connected."""
        if isinstance(message, (messages.Outcome, messages.Refused)):
            self.unsent.add(RequestId(message.session, message.sequence))
        elif isinstance(message, messages.Unknown):
            self.unknown.add(message.session)
            self.keys.lost(message.session)
        if isinstance(message, messages.Outcome):
            self.keys.told(message, body)
        elif isinstance(message, messages.Refused):
            self.keys.refused(message)

    def closed(self, server: Observed) -> None:
        """A server has closed: has everybody heard?"""
        for request, key in self.first.items():
            home, client = self.sessions.get(request.session, (None, ""))
            # Who is told that its session is unknown has heard of all that was in it.
            if home is not server or client == "hostile" or request.session in self.unknown:
                continue
            call = self.calls.get(key)
            if self.journal.on and self.plan.has(Fault.SLOW_DISK) and call and call.use:
                continue  # closing ends before a sync that takes longer than its limits
            finished = self.finished.get(request.session, ())
            told = request in self.outcomes or request in self.refused or request in self.unsent
            if not told and request.sequence not in finished and not self.unheard(request.session):
                text = f"{server.name} took {key} in, and closes without an answer"
                self.violation("G9", text, key)

    def statement_sent(
        self, worker: Observed, message: messages.Message, body: Body | None
    ) -> None:
        """No work is begun by a server that closes; that is sent again is no beginning."""
        if isinstance(message, messages.Dispatch):
            assert body is not None
            request = RequestId(message.session, message.sequence)
            dispatch = dispatch_of(worker, message.number, request, key_of(body))
            begun = dispatch in self.dispatched
            if self.journal.on and label_of(key_of(body)):  # it waited for the disk
                began = self._began.get(worker.home)
                begun |= began is None or self.journal.started_s(message.sequence) <= began.at_s
            if worker.home in self.draining and not begun:
                key = self.key_of_request(request)
                self.violation("G7", f"{worker.home.name} closes, and begins {key}", key)
        super().statement_sent(worker, message, body)

    def status_told(self, server: Observed, status: dict[str, Any]) -> None:
        """A server that closes says so, and how far it is."""
        super().status_told(server, status)
        began = self._began.get(server)
        stage = status.get("closing", {}).get("stage", "")
        if (status["status"] == "stopping") != (began is not None):
            self.violation("G9", f"{server.name} says that it is {status['status']}")
        elif began is not None:
            order = STAGES.index(stage) if stage in STAGES else 0
            if order < max(began.stage, 1):
                self.violation("G9", f"{server.name} closes, and says that it is {stage!r}")
            began.stage = order


# -- the whole ---------------------------------------------------------------------------


class Guarantees(Closings):
    """A judge of all guarantees, end to end."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._at_once: dict[Observed, list[Execution]] = {}

    def see(self, event: Event) -> list[Violation]:
        """Violations that an event shows."""
        self.now_s, self.found = event.at_s, []
        who, key, what = self.process(event.actor), event.request, event.what
        match event.kind:
            # The wires.
            case "heard":
                self.server_heard(who, *what)
            case "said":
                self.server_told_client(who, *what)
            case "dealt":
                self.server_has_dealt()
            case "turned":
                self.keys.work.dealt(who)
            case "commanded":
                self.statement_sent(who, *what)
            case "reported":
                self.outcome_arrived(who, *what)
            case "arrived" if who.server is None:
                self.client_heard(who, *what)
            case "arrived":
                self.worker_heard(who, *what)
            case "missed":
                self.server_told_nobody(*what)
            # Callers.
            case "asked":
                self._asked(key, who.name, *what)
            case "names":
                self.keys.calls[what[0]] = key
            case "withdrawn":
                self.calls[key].cancelled_s = self.now_s
            case "told":
                self._call_told(self.calls[key], *what)
            case "received":
                self.calls[key].received = True
            case "gone":
                self.gone_clients.setdefault(who.name, self.now_s)
            # The environment's log.
            case "began":
                self._began_to_run(key, who, *what)
            case "stops":
                self.by_dispatch[who, what[0]].cancelled = True
            case "ended":
                self._ended(self.by_dispatch[who, what[0]], *what[1:])
            # Processes.
            case "is":
                self._is(who, what[0])
            case "ticked":
                self.leases_seen()
                self.pool_seen(who)
                self.closing_seen(who)
            case "spawned":
                self.spawned(who, self.process(what[0]), what[1])
            case "kills":
                self.kills(who, self.process(what[0]), what[1])
            case "reaped":
                self.leaving.add(who)
                who.reaped = True
            case "lost":
                self.declared_lost(who)
            case "broken":
                self.broken.add(who)
            case "closing":
                self.closing_began(who)
            case "closed":
                self.closed(who)
            # Hosts.
            case "beat":
                self.beat(who, *what)
            case "answered":
                self.beat_answered(who, *what)
            case "woke":
                self.woke(who)
            case "back":
                self.taken_back(who, self.process(what[0]))
            case "declares":
                self.declared_dead(who, what[0])
            case "malformed":
                self.violation("CRASH", f"{who.name} is sent what it cannot read: {what[0]}")
            # Disks.
            case "wrote":
                self.journal.written(who, *what)
            case "synced":
                self.journal.saved(*what)
            case "fell":
                self.journal.crashed(who, *what)
            case "reads":
                self.journal.read(who, *what)
            case "damaged":
                self.journal.damaged(*what)
            case _:
                raise ValueError(f"no judge knows an event of the kind {event.kind!r}")
        return self.found

    def _is(self, who: Observed, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            setattr(who, name, self.process(value) if name in ("server", "machine") else value)

    # -- callers --------------------------------------------------------------

    def _asked(
        self, key: str, client: str, consent: bool, most: int, limit_s: float | None,
        use: KeyUse | None, input: str,
    ) -> None:  # fmt: skip
        """A caller has asked."""
        self.calls[key] = Call(key, client, consent, most, limit_s, use, input, asked_s=self.now_s)

    def _call_told(
        self, call: Call, status: Status | None, body: bytes, info: ErrorInfo | None
    ) -> None:
        """A caller was given an outcome, or its call has ended without one."""
        key = call.key
        if status is None:
            assert info is not None
            self._told(call, f"fail {info.code}", info.verdict)
            gave_up = info.code in ("no-answer", "never-started", "server-unreachable")
            if gave_up and call.limit_s is None:  # no fault lasts as long as a client waits
                self.violation("G9", f"{key} was given up: {info.code}, {info.message}", key)
            if info.code == "server-lost" and call.use is None:
                self._session_kept(call)
            self._kept_until_received(call, None)
            return
        if call.use is not None:
            self.keys.runs.answered(call, status, body)
        if status is Status.RESULT:
            self._told(call, "result", None)
            own = call.use is None
            if own and not any(e.payload == body for e in call.executions if e.ended_s is not None):
                text = f"{key} was given a result that none of its executions gave"
                self.violation("G3", text, key)
        else:
            assert info is not None
            self._told(call, f"{status.name.lower()} {info.code}", info.verdict)
        self._kept_until_received(call, body)

    def _told(self, call: Call, what: str, verdict: Verdict | None) -> None:
        if call.told:
            text = f"{call.key} was told twice: {call.told}, then {what}"
            self.violation("G9", text, call.key)
        call.told, call.told_s, call.verdict = what, self.now_s, verdict
        self._true(call)

    def _true(self, call: Call) -> None:
        """The verdict must be true, now and for ever."""
        if call.use is not None:
            self.keys.runs.true(call)
            return
        starts = len(call.executions)
        if call.verdict is Verdict.DID_NOT_RUN and starts:
            text = f"{call.key}: {call.told} says it did not run; starts: {starts}"
            self.violation("G9", text, call.key)
        if call.verdict is Verdict.RAN_AND_FAILED and not starts:
            text = f"{call.key}: {call.told} says that it ran, and it did not"
            self.violation("G9", text, call.key)

    def _kept_until_received(self, call: Call, body: bytes | None) -> None:
        """G4: what has ended is not forgotten, nor replaced by something else."""
        if call.use is not None:
            gone = call.cancelled_s is not None or call.client in self.gone_clients
            self.keys.kept(call, body, excused=gone or self._out_of_time(call))
            return
        if not call.executions:
            return
        last = call.executions[-1]
        if last.ended_s is None or last.cancelled or last.payload == body:
            return
        if len(last.payload) > self.plan.message_bytes:
            return  # the client could not receive it, and is told so
        there = last.worker.alive and last.worker not in self.lost  # if asleep, it may be both
        if not (last.delivered or (there and last.server.alive)):
            return
        excused = (
            not last.server.alive
            or last.server in self.draining
            or call.cancelled_s is not None
            or self._out_of_time(call)
            or call.client in self.gone_clients
            or self.unheard(last.request.session)
        )
        if not excused:
            text = f"{call.key} had ended ({last.status!r}) and was told {call.told}"
            self.violation("G4", text, call.key)

    def _session_kept(self, call: Call) -> None:
        """G4: a session is not forgotten before its lease has ended."""
        session = self.asked_in.get(call.key, b"")
        server, _ = self.sessions.get(session, (None, ""))
        if server is None or not server.alive or server in self.draining:
            return
        excused = call.client in self.gone_clients or self._out_of_time(call)
        # A call that an earlier server may have run is told so, too, when this one cannot.
        excused = excused or server in self.broken
        if not excused and not self.unheard(session):
            text = f"{call.key}: its session was forgotten within its lease"
            self.violation("G4", text, call.key)

    def _out_of_time(self, call: Call) -> bool:
        """Whether the caller's limit has passed."""
        return call.limit_s is not None and self.now_s - call.asked_s >= call.limit_s - 0.1

    # -- the environment's log and the processes' deaths ------------------------

    def _began_to_run(self, key: str, worker: Observed, request: RequestId, number: int) -> None:
        """Environment code begins."""
        self.lease_seen(worker, f"starts {key}")
        server = worker.home
        if not label_of(key):  # it may have been taken over since, with what is to stop there
            dispatch = dispatch_of(worker, number, request, key)
            server = self.dispatched.get(dispatch, server)
        execution = Execution(key, worker, server, request, number, self.now_s)
        call = self.calls.get(key)
        if call is None:  # a hostile client's
            call = Call(key, "hostile", False, 1, None, asked_s=self.now_s, honest=False)
            self.calls[key] = call
        if label_of(key):
            self.keys.runs.started(call, execution)
            self.keys.work.started(execution)
        else:
            self._once(call, execution)
        home = self.sessions.get(request.session)
        if label_of(key):
            if dispatch_of(worker, number, request, key) not in self.dispatched:
                self.violation("G5", f"{key} starts on a worker that was not given it", key)
        elif home is None or home[0] is not server:
            self.violation("G5", f"{key} starts on a worker of another epoch", key)
        if (worker, number) in self.stopped:
            self.violation("G7", f"{key} starts though its worker was told not to", key)
        for names in (self.first, self.started_as):
            if names.get(request, key) != key:
                text = f"{request} starts as {key}, was {names[request]} before"
                self.violation("G6", text, key)
        self.started_as.setdefault(request, key)
        if call.told:
            self._true(call)
        self.by_dispatch[worker, number] = execution
        at_once = self._at_once.setdefault(worker, [])
        at_once[:] = [each for each in at_once if each.live()] + [execution]
        if len(at_once) > (self.plan.server.worker_capacity or CAPACITY):
            self.violation("G8", f"{worker.name} runs {len(at_once)} executions at once", key)

    def _once(self, call: Call, execution: Execution) -> None:
        """G1 and G2: one at a time, and no more than were consented to."""
        key = call.key
        for earlier in call.executions:
            if earlier.runs():
                text = f"{key} starts and is live since {earlier.started_s:.3f}"
                self.violation("G1", text, key)
            elif (
                earlier.worker.alive
                and not earlier.worker.asleep
                and earlier.request == execution.request
            ):
                self.violation("G2", f"{key} starts again, and its worker had not died", key)
        call.executions.append(execution)
        starts = len(call.executions)
        if starts > 1 and not call.consent:
            self.violation("G2", f"{key} starts for the {starts}. time without consent", key)
        elif starts > call.most:
            text = f"{key} starts for the {starts}. time, {call.most} allowed"
            self.violation("G2", text, key)

    def _ended(self, execution: Execution, status: Status, payload: bytes) -> None:
        """Environment code is over and its worker has its outcome."""
        execution.ended_s = self.now_s
        execution.status, execution.payload = status, payload
        if label_of(execution.key):
            self.keys.runs.ended(execution)

    # -- at the end -----------------------------------------------------------

    def live(self) -> Iterator[Execution]:
        """Executions that live."""
        return (e for call in self.calls.values() for e in call.executions if e.live())

    def rest(self, at_s: float) -> list[Violation]:
        """Violations by what has not happened by the end of the run."""
        self.now_s, self.found = at_s, []
        for call in self.calls.values():
            waits = call.honest and not call.told and call.cancelled_s is None
            if waits and call.client not in self.gone_clients:
                self.violation("G9", f"{call.key} was never told anything", call.key)
            if any(execution.live() for execution in call.executions):
                self.violation("G7", f"{call.key} still runs", call.key)
        return self.found
