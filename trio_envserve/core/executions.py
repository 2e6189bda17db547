"""Executions: environment code on a worker, holding capacity until it ended.

A request and its execution are two records.  A request may be answered
(deadline) or finished (cancel) while its execution is still being stopped;
such an execution is *abandoned*: it holds its place on the worker until the
worker reports its end, or the worker's process is proven dead (G1).  One whose
outcome was announced takes up no capacity any more, but it ends only when the
outcome is here, or is not wanted.

Dispatches are numbered per incarnation.  The numbers of live executions, and
those among them that are to stop, are all that the router has to tell a worker
to repair any loss on their link (:meth:`Worker.statement`).
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Protocol

from .account import Account
from .messages import Dispatch, Fetch, Statement
from .ranges import Ranges
from .requests import Suspicion
from .spoilt import Results
from .terms import Body, Incarnation, RequestId, worker_name


class Job(Protocol):
    """What an execution runs (:class:`~.work.Work`)."""

    account: Account
    number: int
    body: Body | None
    execution: Any
    executions: int
    allowance: int
    traceparent: str | None
    queued_s: float
    suspicion: Suspicion | None

    @property
    def id(self) -> RequestId:
        """The id under which workers know it."""


class Duty(enum.Enum):
    """The duty of a worker."""

    ANY = "any request"
    DRAINING = "nothing more: it is to be free for suspects"
    SUSPECTS = "a group of suspects, and nothing else until all of them have ended"


@dataclasses.dataclass(slots=True, eq=False)
class Execution:
    """One dispatch of a request to one worker incarnation, not yet ended."""

    worker: Worker
    number: int
    session: Account
    entry: Job | None
    """What it runs, or None once that is answered or closed without it."""
    sequence: int
    dispatched_s: float
    dispatch: Dispatch | None
    body: bytes | memoryview | None
    """The body that was sent, until the worker is known to have it; for repair."""
    serial: int = 0
    """Its number among those of all workers, in the order of dispatch; for people."""
    size_bytes: int | None = None
    """The size of its outcome, if its code has ended and its worker has announced the
    outcome and still holds it."""
    fetched: bool = False
    """Whether the worker was asked for it."""
    note: bytes = b""
    """Its last note; empty until there is one."""
    after: int = 0
    """So many records of the journal are safe before it is sent."""
    stop_s: float | None = None
    """When it was told to stop, on the awake clock."""
    taken_back: bool = False
    """Whether an earlier epoch has dispatched it, for a session of its own."""
    work: Any = None
    """What it runs, wanted or not.  Opaque here."""


@dataclasses.dataclass(slots=True, eq=False)
class Site:
    """A machine with workers that said hello: this one, or a host."""

    workers: int = 0
    running: int = 0
    """The number of executions on all of them."""

    def is_lighter(self, other: Site) -> bool:
        """Whether less runs here for each worker."""
        return self.running * other.workers < other.running * self.workers


@dataclasses.dataclass(slots=True, eq=False)
class Worker:
    """The router's record of one worker incarnation that said hello."""

    id: bytes
    incarnation: Incarnation
    capacity: int
    next_number: int = 0
    live: dict[int, Execution] = dataclasses.field(default_factory=dict)
    stopping: dict[int, Execution] = dataclasses.field(default_factory=dict)
    """The live executions that were told to stop, in the order in which they were told."""
    running: int = 0
    """How many live executions may still run code: all but those announced."""
    accepting: bool = True
    """Whether it may get new work: not while it drains, or is silent."""
    most: int | None = None
    """How many executions it may start in all; None: any number."""
    duty: Duty = Duty.ANY
    done: int = 0
    failed: int = 0
    host: str = ""
    """The name of its host; empty for one of this machine."""
    site: Site = dataclasses.field(default_factory=Site)
    results: Results = dataclasses.field(default_factory=Results)
    suspect: bool = False
    """Whether it fails and others do not (:mod:`.spoilt`): it gets one at a time."""
    resting: bool = False
    """Whether it gets none for now, since it is suspect and has just failed again."""

    @property
    def name(self) -> str:
        """The worker's id as text, and where it is, for logs and errors."""
        return worker_name(self.id, self.host)

    def is_lighter(self, other: Worker) -> bool:
        """Whether the next dispatch should rather go here: to the machine that has less to
        do, and there to the worker that has.  A suspect comes last."""
        if self.suspect is not other.suspect:
            return other.suspect
        site, theirs = self.site, other.site
        if site is theirs:
            return self.running < other.running
        if site.is_lighter(theirs):
            return True
        return self.running < other.running and not theirs.is_lighter(site)

    def open(self) -> bool:
        """Whether an ordinary dispatch may go here."""
        # First what is most often missing.
        room = self.running < (1 - self.resting if self.suspect else self.capacity)
        return room and self.accepting and self.duty is Duty.ANY and self.has_numbers()

    def has_numbers(self) -> bool:
        """Whether it may start another execution before it is recycled."""
        return self.most is None or self.next_number < self.most

    def start(self, session: Account, entry: Job, now_s: float) -> Execution:
        """Number a new execution of ``entry``; the caller encodes and sends it."""
        execution = Execution(
            self, self.next_number, session, entry, entry.number, now_s, None, entry.body,
            work=entry,
        )  # fmt: skip
        self.next_number += 1
        self.live[execution.number] = execution
        self.running += 1
        self.site.running += 1
        session.live_executions += 1
        return execution

    def take_back(
        self, number: int, session: Account, entry: Job | None, now_s: float
    ) -> Execution:
        """An execution that an earlier epoch has dispatched here.  Without a request it is
        to stop.  They come in the order of their numbers, before any other."""
        sequence, body = (0, None) if entry is None else (entry.number, entry.body)
        execution = Execution(
            self, number, session, entry, sequence, now_s, None, body, taken_back=True, work=entry
        )
        self.live[number] = execution
        self.running += 1
        self.site.running += 1
        session.live_executions += 1
        if entry is None:
            self.abandon(execution, now_s)
        return execution

    def announce(self, execution: Execution, size_bytes: int) -> None:
        """Its code has ended; the outcome, of that size, is still with the worker."""
        execution.size_bytes = size_bytes
        execution.body = None
        self._stops_running()

    def end(self, execution: Execution) -> None:
        """The execution has ended: reported, or its process is proven dead."""
        del self.live[execution.number]
        self.stopping.pop(execution.number, None)
        execution.session.live_executions -= 1
        execution.body = None
        if execution.size_bytes is None:
            self._stops_running()

    def _stops_running(self) -> None:
        self.running -= 1
        self.site.running -= 1
        if self.duty is Duty.SUSPECTS and not self.running:
            self.duty = Duty.ANY

    def abandon(self, execution: Execution, now_s: float) -> None:
        """Its request needs it no more: it is to stop, and holds its place."""
        execution.entry = None
        execution.body = None
        execution.stop_s = now_s
        self.stopping[execution.number] = execution

    def statement(self, beat: int) -> Statement:
        """The router's statement about this worker, in answer to a beat (0: to a
        hello); the worker repairs the rest."""
        live, stopping = Ranges(self.live), Ranges(sorted(self.stopping))
        return Statement(beat, self.next_number, live.flat(), stopping.flat())

    def fetches(self) -> Fetch:
        """The announced outcomes that are asked for, and those that are to wait."""
        held = [e for e in self.live.values() if e.size_bytes is not None]
        return Fetch(
            Ranges(e.number for e in held if e.fetched).flat(),
            Ranges(e.number for e in held if not e.fetched).flat(),
        )

    def only_abandoned(self) -> bool:
        """Whether nothing but executions that were told to stop is left."""
        return bool(self.live) and len(self.stopping) == len(self.live)

    def oldest_stop_s(self) -> float | None:
        """When the execution that ignores its cancel longest was told to stop."""
        return next((e.stop_s for e in self.stopping.values()), None)
