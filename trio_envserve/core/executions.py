"""Executions: environment code on a worker, which holds capacity until it has ended.

A work and its execution are two records.  A work may be answered (deadline) or closed (cancel)
while its execution is still being stopped.  Such an execution is *abandoned*: it holds capacity
of its worker until the worker reports its end or the worker's process is proven dead (G1).  An
execution whose outcome was announced holds no capacity, and ends when the outcome has arrived or
is not wanted.

Dispatches are numbered per incarnation.  Nothing is lost between a router and its worker, so both
know which dispatches are live.  Each beat of a worker names those there, and :meth:`Worker.named`
says which it must name.

Dispatches
----------
A dispatch waits at the :class:`~.gate.Gate` until the journal record of its start is safe, so it is
sent perhaps after greater numbers: a host states which ones have come to its workers.  An unwanted
dispatch is stopped, unless nothing of it is left to stop.  An announced outcome is fetched once the
router has memory for it.

An execution ends when its worker has reported it or is proven dead; both are noticed by the
:class:`~.workforce.Workforce`.

Announced outcomes
------------------
A worker announces the size of a large outcome, and holds it until the router has memory for it
(G8).  The outcome waits in the line of its session.
Lines take turns, and the first outcome of a line is fetched when
:meth:`~.account.Accounts.may_keep` allows.  From then on its size counts as kept, so all outcomes
that are kept or under way are within the bound.  A waiting outcome counts when the router
dispatches (:meth:`~.account.Accounts.may_run`), so workers hold at most the outcomes of the
executions that ran when the bound was reached.

The work is RUNNING until its outcome has arrived.  A cancel, a deadline or the end of its
session's lease ends the execution at once, because its code has ended.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Protocol

from . import messages
from .account import Account, Accounts
from .clock import AwakeClock
from .gate import Gate
from .permits import PermitClaim, Permits
from .ranges import Ranges
from .requests import Suspicion
from .router_effects import RouterEffect, ToWorker
from .scope import HeldResource, Resources
from .spoilt import Results
from .terms import (
    Body,
    BodyParts,
    Incarnation,
    RequestId,
    SentBody,
    SessionId,
    worker_name,
)


class Job(Protocol):
    """A work as executions see it (:class:`~.work.Work`)."""

    account: Account
    number: int
    body: SentBody | None
    execution: Any
    executions: int
    allowance: int
    traceparent: str | None
    queued_s: float
    suspicion: Suspicion | None

    @property
    def id(self) -> RequestId:
        """Id of the request, as workers are told it."""


@dataclasses.dataclass(slots=True, eq=False)
class DeclaredEnvironment:
    """What workers have said of the environment that they host."""

    is_known: bool = False
    """Whether one has said it: before anything is dispatched."""
    name: str = ""
    rerun: bool = False
    """Whether it lets an execution run again, after a loss."""

    def consents(self, rerun: bool | None) -> bool:
        """Whether there is consent to a further execution: its caller's word, or else the
        environment's."""
        return self.rerun if rerun is None else rerun


class Duty(enum.Enum):
    """Kind of requests that a worker gets."""

    ANY = "any request"
    DRAINING = "none: the worker is drained to be free for suspects"
    SUSPECTS = "a group of suspects, and nothing else until all of them have ended"


@dataclasses.dataclass(slots=True, eq=False)
class Execution:
    """One dispatch of a request to one worker incarnation, not yet ended."""

    worker: Worker
    number: int
    session: Account
    work: Any
    """Work that it runs, wanted or not; None if an earlier epoch dispatched it and the journal does
    not know it.  Opaque here."""
    sequence: int
    dispatched_s: float
    body: SentBody | None
    """Body of its dispatch, until that is sent."""
    is_wanted: bool = True
    """Whether its work still waits for its outcome: not once that is answered or closed."""
    serial: int = 0
    """Number among the executions of all workers, in the order of dispatch; for people."""
    size_bytes: int | None = None
    """Size of its announced outcome, which its worker holds; None while the code runs."""
    fetched: bool = False
    """Whether the worker was asked for its announced outcome."""
    note: bytes = b""
    """Its last note; empty until there is one."""
    sent_at: int | None = None
    """Number of its dispatch among the messages to its worker, 0 if an earlier epoch has sent it;
    None: it is not sent, or perhaps not there."""
    late_at: float | None = None
    """Moment at which its rollout is late, on the awake clock; None: never."""
    stop_s: float | None = None
    """Moment at which it was told to stop, on the awake clock."""
    taken_back: bool = False
    """Whether an earlier epoch has dispatched it, for a session of that epoch."""
    claims: dict[int, PermitClaim] | None = None
    """Its claims of permits, by their numbers; None: it has neither claimed any nor made
    resources."""
    saves: int = 0
    """Number of its last save."""
    save_refused: str = ""
    """Reason for which nothing of that is kept; empty if it is kept."""

    @property
    def has_arrived(self) -> bool:
        """Whether its worker is known to have its dispatch."""
        return self.sent_at is not None and self.sent_at <= self.worker.acknowledged

    @property
    def is_unsent(self) -> bool:
        """Whether its dispatch waits for the record of its start, so its worker cannot have it."""
        return self.sent_at is None and not self.taken_back

    @property
    def is_holder(self) -> bool:
        """Whether its code holds the interpreter of its worker, as far as is known."""
        holder = self.worker.holder
        return bool(holder) and holder == str(RequestId(self.session.id, self.sequence))


@dataclasses.dataclass(slots=True, eq=False)
class Site:
    """A machine with workers that said hello: this one, or that of a host."""

    members: int = 0
    """Number of these workers."""
    workers: int = 0
    """Number of those among them that have their places."""
    running: int = 0
    """Number of executions on all of them."""

    def is_lighter(self, other: Site) -> bool:
        """Whether fewer executions run for each worker here than there."""
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
    """Live executions that were told to stop, in the order of the telling."""
    running: int = 0
    """Number of live executions that may still run code: all but the announced ones."""
    accepting: bool = True
    """Whether it may get new work: not while it drains, or is silent."""
    most: int | None = None
    """Most executions that it may start in its life; None: any number."""
    duty: Duty = Duty.ANY
    is_beside: bool = False
    """Whether another worker has its place, and it lives on for what it holds."""
    done: int = 0
    """Number of executions that it has reported."""
    failed: int = 0
    """Number of these that ended without a result."""
    host: str = ""
    """Name of its host; empty for a worker of this machine."""
    site: Site = dataclasses.field(default_factory=Site)
    results: Results = dataclasses.field(default_factory=Results)
    suspect: bool = False
    """Whether it fails where others do not (:mod:`.spoilt`): it gets one execution at a time."""
    resting: bool = False
    """Whether it gets no execution for now: it is suspect, and has just failed again."""
    holder: str = ""
    """Request whose code holds its interpreter; empty if that is not known, or not so."""
    held: str = ""
    """That its interpreter is held, by whom and where, for people; empty if it is not."""
    claims: dict[int, PermitClaim] = dataclasses.field(default_factory=dict)
    """Its claims of permits, by their numbers."""
    epoch: bytes = b""
    """Epoch by which its beats name this router; empty if this router has started it."""
    is_back: bool = True
    """Whether what it says is for this router, not for an earlier one."""
    sent: int = 0
    """Number of messages to it, since it was told of this router."""
    acknowledged: int = 0
    """Number of those that had arrived at its last beat."""
    unread: int = 0
    """Number of its last beats at which the next one of those had not arrived, though it was not
    under way to its host; beats that come together count once."""
    unread_s: float = -math.inf
    """Moment of the last one of these."""
    received: int = 0
    """Number of messages from it to this router, but for those of
    :data:`~.messages.UNCOUNTED`."""
    dropped: dict[int, int] = dataclasses.field(default_factory=dict)
    """Dispatches whose announced outcomes it is to drop: each with the number of the message that
    says so, until a beat shows that this has arrived."""
    resources: dict[int, HeldResource] = dataclasses.field(default_factory=dict)
    """Resources of its executions, by their numbers here."""
    cleanings: dict[str, HeldResource] = dataclasses.field(default_factory=dict)
    """Resources that it is to destroy, by name."""
    held_up_at: float = -math.inf
    """Last moment at which something about its resources waited for the journal: outcomes of its
    executions wait for that."""

    @property
    def name(self) -> str:
        """The worker's id and its host as text, for logs and errors."""
        return worker_name(self.id, self.host)

    def is_lighter(self, other: Worker) -> bool:
        """Whether this worker comes before another one for the next dispatch: a suspect comes
        last, then counts the load of its machine, then its own."""
        if self.suspect is not other.suspect:
            return other.suspect
        site, theirs = self.site, other.site
        if site is theirs:
            return self.running < other.running
        if site.is_lighter(theirs):
            return True
        return self.running < other.running and not theirs.is_lighter(site)

    def join(self, site: Site, *, is_beside: bool) -> None:
        """Enter its machine."""
        self.site, self.is_beside = site, is_beside
        site.members += 1
        site.workers += not is_beside

    def leave_slot(self) -> None:
        """Note that another worker gets its place: its machine takes no more work for it."""
        self.site.workers -= not self.is_beside
        self.is_beside = True

    def open(self) -> bool:
        """Whether an ordinary dispatch may go here."""
        # The condition that fails most often comes first.
        has_capacity = self.running < (1 - self.resting if self.suspect else self.capacity)
        return has_capacity and self.accepting and self.duty is Duty.ANY and self.has_numbers()

    def has_numbers(self) -> bool:
        """Whether it may start another execution before it is recycled."""
        return self.most is None or self.next_number < self.most

    def start(self, session: Account, work: Job, now_s: float) -> Execution:
        """Number a new execution of a work; the caller encodes and sends the dispatch."""
        execution = Execution(self, self.next_number, session, work, work.number, now_s, work.body)
        self.next_number += 1
        self.live[execution.number] = execution
        self.running += 1
        self.site.running += 1
        session.live_executions += 1
        return execution

    def take_back(
        self, number: int, session: Account, work: Job | None, now_s: float, saves: int = 0
    ) -> Execution:
        """Enter an execution that an earlier epoch has dispatched here; without a work it is to
        stop.  They are entered in the order of their numbers, before any other."""
        sequence, body = (0, None) if work is None else (work.number, work.body)
        execution = Execution(
            self, number, session, work, sequence, now_s, body, taken_back=True, saves=saves
        )
        self.live[number] = execution
        self.running += 1
        self.site.running += 1
        session.live_executions += 1
        if work is None:
            self.abandon(execution, now_s)
        return execution

    def announce(self, execution: Execution, size_bytes: int) -> None:
        """Note that its code has ended and the worker holds an outcome of this size."""
        execution.size_bytes = size_bytes
        self._stops_running()

    def end(self, execution: Execution) -> None:
        """Take an execution out: it was reported, or its process is proven dead."""
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
        """Note that its work needs it no more: it is to stop, and holds capacity until it has."""
        execution.is_wanted = False
        execution.stop_s = now_s
        self.stopping[execution.number] = execution

    def tell(self, message: messages.Message, body: Body | None = None) -> ToWorker:
        """The effect that sends it a message, which counts from now on."""
        self.sent += 1
        return ToWorker(self.id, self.incarnation, message, body)

    def named(self, received: int) -> Ranges:
        """Dispatches that its next beat must name if it has received so many messages: the sent
        ones whose outcomes have not come before the beat, unless it has dropped them.  Those of
        earlier messages are forgotten."""
        self.acknowledged = received
        self.dropped = {number: at for number, at in self.dropped.items() if at > received}
        live = [n for n, e in self.live.items() if e.sent_at is not None and e.sent_at <= received]
        return Ranges(sorted([*live, *self.dropped]))

    def only_abandoned(self) -> bool:
        """Whether all its live executions, at least one, were told to stop."""
        return bool(self.live) and len(self.stopping) == len(self.live)

    def oldest_stop_s(self) -> float | None:
        """Moment at which the execution that has ignored its cancel longest was told to stop; None
        if there is none."""
        return next((e.stop_s for e in self.stopping.values()), None)


# -- the dispatches of a router ----------------------------------------------------------


class Dispatches:
    """All dispatches whose executions have not ended."""

    def __init__(
        self, announced: Announcements, gate: Gate[Any], out: list[RouterEffect],
        clock: AwakeClock, resources: Resources,
    ) -> None:  # fmt: skip
        self.announced = announced
        self._clock = clock
        self.out = out
        """Effects, in order; the router takes them out."""
        self.permits = Permits()
        self.resources = resources
        self.environment = DeclaredEnvironment()
        self.unknown = Account(name="an earlier server")
        """Account of the executions of an earlier epoch that are to stop."""
        self._gate = gate
        self._count = 0
        """Number of executions that were ever started."""

    def start(self, session: Account, work: Job, worker: Worker, now_s: float) -> Execution:
        """Number an execution of a work, which is to be sent."""
        execution = worker.start(session, work, now_s)
        self._number(execution)
        return execution

    def send(self, execution: Execution, *, is_safe: bool = True) -> None:
        """Send an execution to its worker, once the record of its start is safe: then it comes
        here again."""
        if not is_safe:
            self._gate.hold(execution, execution, counts=False)
            return
        if execution.worker.live.get(execution.number) is not execution:
            return  # it was dropped meanwhile
        worker, session, body = execution.worker, execution.session, execution.body
        assert body is not None
        late_s = saved_bytes = None
        if execution.late_at is not None:  # counted from the arrival of this transmission
            late_s = max(0.0, execution.late_at - self._clock.awake_s)
        if isinstance(body, BodyParts):  # an input, and a state: joined only now
            saved_bytes, body = len(body.pieces[1]), bytes(body)
        dispatch = messages.Dispatch(
            session.id, execution.sequence, execution.number, session.name,
            execution.work.traceparent, late_s, saved_bytes,
        )  # fmt: skip
        self.out.append(worker.tell(dispatch, body))
        execution.sent_at, execution.body = worker.sent, None

    def stop(self, executions: Iterable[Execution], now_s: float) -> list[Execution]:
        """Cancel executions that nobody needs any more, by one message to each worker; returns
        those that have ended by that.

        An execution that was not sent yet ends at once, and so does one of which only an announced
        outcome is left, which the worker is told to drop."""
        over: list[Execution] = []
        cancelled: dict[Worker, list[int]] = {}
        for execution in executions:
            if execution.size_bytes is not None or execution.is_unsent:
                self.drop(execution)
                over.append(execution)
            else:
                execution.worker.abandon(execution, now_s)
                cancelled.setdefault(execution.worker, []).append(execution.number)
        for worker, numbers in cancelled.items():
            self.tell(worker, messages.Stop(Ranges(numbers).flat()))
        return over

    def fetch(self) -> None:
        """Ask for the announced outcomes that the router has memory for."""
        wanted: dict[Worker, list[int]] = {}
        for execution in self.announced.grant():
            wanted.setdefault(execution.worker, []).append(execution.number)
        for worker, numbers in wanted.items():
            self.tell(worker, messages.Fetch(Ranges(numbers).flat(), []))

    def drop(self, execution: Execution) -> None:
        """Take out an execution of which nothing more is wanted: it was not sent, or is over and
        its worker may hold its announced outcome."""
        if execution.size_bytes is not None:
            self.unwanted(execution.worker, execution.number)
        self.end(execution)

    def unwanted(self, worker: Worker, number: int) -> None:
        """Have a worker drop an announced outcome."""
        self.tell(worker, messages.Fetch([], [number, number + 1]))
        worker.dropped[number] = worker.sent

    def end(self, execution: Execution) -> None:
        """Take out an execution that runs no more, and of which nothing further is wanted."""
        execution.worker.end(execution)
        if execution.claims is not None:
            self.give_back(execution)
        if execution.size_bytes is not None:
            self.announced.remove(execution)

    def give_back(self, execution: Execution) -> None:
        """End the claims of an execution whose code has ended, and give on its resources."""
        self.permits.end(execution)
        self.resources.end(execution, self._clock.awake_s)

    def lost(self, worker: Worker) -> None:
        """Give on the resources of a worker that is proven dead."""
        self.resources.lost(worker, self._clock.awake_s)

    # -- executions of an earlier epoch -------------------------------------------

    def go_on(
        self, worker: Worker, number: int, session: Account, work: Job, now_s: float, saves: int
    ) -> Execution:
        """Enter an execution of an earlier epoch whose work the journal knows, and ``saves`` of its
        states."""
        execution = worker.take_back(number, session, work, now_s, saves)
        self._number(execution)
        return execution

    def stop_unknown(self, worker: Worker, numbers: list[int], now_s: float) -> None:
        """Enter executions of an earlier epoch whose works the journal does not know: they are to
        stop."""
        for number in numbers:
            execution = worker.take_back(number, self.unknown, None, now_s)
            execution.sent_at = 0
            self._number(execution)
        if numbers:
            self.tell(worker, messages.Stop(Ranges(numbers).flat()))

    def settle(self, worker: Worker, live: Ranges) -> list[Execution]:
        """Take in which dispatches a worker of an earlier epoch has, by its first beat; returns the
        executions that have ended there, with outcomes that nobody has any more."""
        over = []
        for execution in list(worker.live.values()):
            if execution.taken_back and execution.sent_at is None:
                if execution.number in live:
                    execution.sent_at, execution.body = 0, None
                else:
                    self.end(execution)
                    over.append(execution)
        return over

    # -- messages to workers ------------------------------------------------------

    def tell(self, worker: Worker, message: messages.Message) -> None:
        """Send a message to a worker."""
        self.out.append(worker.tell(message))

    def grant(self, now_s: float, *, paused: bool) -> None:
        """Grant the claims that can be granted, and tell their workers."""
        told: dict[tuple[Worker, float | None], list[int]] = {}
        for claim, after_s in self.permits.grant(now_s, paused=paused):
            assert isinstance(claim.worker, Worker)
            told.setdefault((claim.worker, after_s), []).append(claim.number)
        for (worker, after_s), numbers in told.items():
            self.tell(worker, messages.Granted(Ranges(sorted(numbers)).flat(), after_s))

    def _number(self, execution: Execution) -> None:
        execution.serial, self._count = self._count, self._count + 1


# -- announced outcomes ------------------------------------------------------------------


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
