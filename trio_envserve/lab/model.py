"""A model of what a router must do, from its inputs and effects alone.

Theory of operation
-------------------
:class:`RouterModel` is a second, small specification of a router, written from its rules
(``docs/protocol.md``) and without its code.  It is fed at the router's boundary: what the router
has taken in, what it wants done, what its journal has made safe.  Nothing is in flight there, so
nothing is inferred: an input has been dealt with when its turn ends, and an effect is a fact.

*Works, tickets, runs.*  A :class:`ModelWork` is one piece of work.  The work of a key has the
key's name, and a number: its generation.  A request without a key is a work of its own, which
nobody else can name and of which nothing is retained.  A :class:`ModelTicket` is a request that
waits for a work, or for the answer to a command.  Tickets that sent the input *count*: when the
last one leaves, the work is closed.  A :class:`ModelRun` is one execution, from its dispatch until
its worker has reported it or is proven dead.

*Answers.*  Each input says what is due to whom (:data:`Told`).  What a ticket is told must be what
is due to it, the same each time; what is due is told in the turn in which nothing that it waits for
is unsafe.  A few ends are the router's own decision (a limit, a closing, an environment that is
broken): these are adopted when they are told, and must be true.

*The journal.*  A change that must survive is due as a record in the turn of its change.  A
dispatch, an answer and a confirmation need the records that say so to be safe before.

*Time* passes when somebody says so: :meth:`RouterModel.lapse`,
:meth:`RouterModel.orphaned`, :meth:`RouterModel.expire`, :meth:`RouterModel.out_of_time`.  An
explorer chooses when.  :class:`Clocks` says so by the clock of a simulator, as the limits have it.

:class:`Boundary` is the one place that knows the messages, records and effects of today's router.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import cbor2

from ..core import error_records, messages
from ..core.journal import (
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Record,
    Started,
    StateSaved,
)
from ..core.key_records import KeyAct, Tag
from ..core.limits import KeyLimits, ServerLimits, WireLimits
from ..core.terms import Body, RequestId, Status
from ..retrylab.judges import Event, Judge, Violation

Name: TypeAlias = "tuple[bytes, bytes | int]"
"""Of a work: a namespace and a key, or a session and a sequence."""

Told: TypeAlias = tuple[Any, ...]
"""An answer: ``("outcome", status, payload)``, ``("cancelled", started)``, ``("error", code)``,
``("said", generation, started, finished)``, ``("refused", code)``; to a cancel
``("left", started)``; ``("late", started)`` where a limit has passed."""

Fact: TypeAlias = tuple[Any, ...]
"""A record: its kind, and what it is about."""

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Sequences, as spans from a first one to one behind the last; in order, and apart."""


def spans_of(flat: Sequence[int]) -> Spans:
    """The spans of a message."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def merged(*spans: tuple[int, int]) -> Spans:
    """Spans that may meet or overlap, in order and apart."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return tuple(found)


def within(spans: Spans, number: int) -> bool:
    """Whether a sequence is in one of these."""
    return any(start <= number < stop for start, stop in spans)


def numbers_in(spans: Spans) -> Iterator[int]:
    """All sequences in these."""
    return (number for start, stop in spans for number in range(start, stop))


def left_out(spans: Spans, stop: int) -> Spans:
    """What lies before, between and behind these, below ``stop``."""
    edges = [0, *(edge for span in spans for edge in span), stop]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((first, min(last, stop)) for first, last in pairs if first < min(last, stop))


@dataclasses.dataclass(slots=True)
class ModelWork:
    """One piece of work, from the request that opens it until it is over and nothing of it runs."""

    name: Name
    number: int
    """Generation of its key; -1 for a request without one."""
    input: bytes
    """What two requests for it have in common: the digest of input and consent."""
    consent: bool | None
    """Whether it may be started again; None: as its environment declares."""
    allowance: int
    """Most executions that it may have, or this server may start of it."""
    label: str
    """How the environment's log names its key, or it."""
    earlier: int = 0
    """Executions that may have been started of it elsewhere."""
    starts: int = 0
    spent: bool = False
    """Whether its newest execution is its last one, by what its environment had declared then."""
    live: bool = False
    open: bool = True
    restored: bool = False
    """Whether it waits, after a fall, to go on or to end."""
    outcome: Told | None = None
    waiters: dict[RequestId, bytes] = dataclasses.field(default_factory=dict)
    """The tickets that count, and their callers."""
    watchers: dict[RequestId, None] = dataclasses.field(default_factory=dict)
    """Tickets that are told, and do not count."""
    lost: frozenset[bytes] = frozenset()
    """Callers that count though their sessions have lapsed."""
    timed: str = ""
    """Time that runs while nobody waits: ``orphan``, ``retained``, or none."""
    since_s: float = 0.0
    """When that began."""
    last: tuple[bytes, int] = b"", -1
    """The life of a worker, and the number there, of its last start, by the journal."""
    saved: bytes | None = None
    """The state with which its next execution begins."""
    last_save: int = 0
    """Number of that among the saves of the last execution, by the journal."""

    @property
    def keyed(self) -> bool:
        """Whether it is the work of a key."""
        return self.number >= 0

    @property
    def started(self) -> bool:
        """Whether it may have run."""
        return self.starts > 0 or self.earlier > 0

    @property
    def counted(self) -> bool:
        """Whether somebody waits for it, or may come back for it."""
        return bool(self.waiters or self.lost)


@dataclasses.dataclass(slots=True)
class ModelTicket:
    """A request that is not finished."""

    input: bytes
    """What tells it from another request with its id."""
    label: str
    work: ModelWork | None = None
    command: bool = False
    due: Told | None = None
    needs: tuple[Fact, ...] = ()
    """Records that must be safe before it is told."""
    told: tuple[Any, bytes] | None = None
    """The outcome that it was first told."""
    late: bool = False
    """Whether its limit has passed."""
    left: ModelWork | None = None
    """The work for which it waited then."""


@dataclasses.dataclass(slots=True)
class ModelRun:
    """One execution on a worker, as its router has it."""

    work: ModelWork
    stopped: bool = False
    announced: bool = False
    unsent: bool = False
    """Whether it waits for the record of its start to be safe."""
    taken_back: bool = False
    """Whether an earlier router has started it."""
    session: bytes | None = None
    """The session that its worker was told of; None: nothing was sent yet."""
    save: int = 0
    """Number of its last save."""
    state: bytes = b""
    """The state of that."""
    save_told: str | None = None
    """The answer to that; None: there is none yet."""


@dataclasses.dataclass(slots=True)
class ModelSession:
    """What is not finished of one session, and what is."""

    message_bytes: int
    """Largest outcome that its client takes."""
    nonce: bytes
    """That of its hello."""
    caller: bytes
    tickets: dict[int, ModelTicket] = dataclasses.field(default_factory=dict)
    finished: Spans = ()
    owes: bool = False
    """Whether something of it was cancelled that may have run."""
    seen_at: float = 0.0
    """When its client was last heard."""


class ModelConfirm(NamedTuple):
    """The answer to a cancel."""

    started: bool | None
    """Whether the work may have been started; None: its request never came."""
    keyed: bool
    facts: tuple[Fact, ...]
    """Records that must be safe before."""
    after: int | None = None
    """How many of the unsafe records it may wait for; None in the turn of the cancel."""


OWN: Final = frozenset({
    "worker-lost", "stopping", "environment-broken", "execution-limit", "no-answer", "not-durable",
})  # fmt: skip
"""Codes of the outcomes that a router may give to a work by itself."""
LATE: Final = {
    True: frozenset({"deadline", "no-answer", "worker-lost"}), False: frozenset({"never-started"}),
}  # fmt: skip
"""Codes of the outcomes of a request without a key whose limit has passed, by whether it may
have run."""


def granted(allowance: int) -> int:
    """Most executions that one server starts of what it has not in its journal: three of four
    that are left, for nobody counts those of a server that is lost."""
    return max(1, allowance * 3 // 4)


_BY_ITSELF: Final = ("worker-lost", "stopping", "environment-broken")
"""Codes with which a router ends a work whose execution says nothing."""

AT_LIMITS: Final = ("execution-limit", "no-answer")
"""Codes with which a router ends a work at the limit of its execution."""

UNKNOWN: Final[Told] = ("unknown",)
"""Outcome of a work that the router has ended while nobody was there to be told."""


class RouterModel(Judge):
    """What a router must do about works; its methods are all that can happen to one."""

    def __init__(self, limits: ServerLimits, *, journaled: bool, prompt: bool) -> None:
        self.limits = limits
        self.journaled = journaled
        self.prompt = prompt
        """Whether what is due and safe is told in the same turn."""
        self.damaged: dict[int, float] = {}
        """Generations whose outcomes could not be read, and when they were read last."""
        self.now_s = 0.0
        """Time in which the router was awake."""
        self.begin()
        self.forget_turn()

    def begin(self) -> None:
        """A new router, which knows nothing."""
        self.unsafe: list[Fact] = []
        """Records that are written and not safe, the oldest first."""
        self.reading: dict[int, float] = {}
        """Generations whose outcomes are being read from the disk, and since when."""
        self.sessions: dict[bytes, ModelSession] = {}
        self.open: dict[Name, ModelWork] = {}
        """The works of keys that are open."""
        self.numbers: dict[int, ModelWork] = {}
        """Works of keys by their generations, until they are closed and nothing of them runs."""
        self.next = 0
        """Generation that is opened next."""
        self.ending: dict[Name, ModelWork] = {}
        """The closed work of each key of which an execution lives."""
        self.runs: dict[tuple[str, int], ModelRun] = {}
        self.said: dict[tuple[Name, int, Tag], tuple[Told, Fact]] = {}
        """Answers to the commands with ids of their own, the oldest first, and their records, each
        of which ends with its time."""
        self.confirms: dict[RequestId, ModelConfirm] = {}
        """Cancels that are to be answered."""
        self.pending: dict[RequestId, tuple[Told, int]] = {}
        """What is due and was not told, and how many of the unsafe records it may wait for."""
        self.closing = False
        self.doubtful: set[str] = set()
        """Labels of works that have broken a promise."""
        self.leaving: set[str] = set()
        """Workers that are to end."""
        self.declared: bool | None = None
        """The consent that the environment declares; None: no worker has said it yet."""
        self.enlisted: set[str] = set()
        """Workers that have said hello."""
        self.coming: dict[str, bytes] = {}
        """Epoch by which the router has told each worker of an earlier one that it is another,
        until that has answered; then nothing, until its next beat."""
        self.unsettled: set[bytes] = set()
        """Sessions that have lapsed with something unfinished."""
        self.hopeless = False
        """Whether the environment is broken, and nothing is started for that."""
        self._has_limits = False
        """Whether executions have limits of their callers."""
        self._lost_now: list[ModelWork] = []
        """Works whose executions were lost with their worker in this turn."""
        self._at_limits: list[ModelWork] = []
        """Those of them that a journal says were ended by a limit before: it is told later."""

    def forget_turn(self) -> None:
        """Another turn begins."""
        self._lost_now.clear()
        self.found: list[tuple[str, str, str]] = []
        self._owed: dict[RequestId, Told] = {}
        """What is due since this turn, or again."""
        self._refusals: dict[RequestId, str] = {}
        """Requests that must be refused, and the code."""
        self._unwanted: list[tuple[tuple[str, int], ModelRun, bool]] = []
        self._stopped: list[ModelRun] = []
        self._ended: set[tuple[str, int]] = set()
        """Executions that were reported in this turn."""
        self._facts: list[Fact] = []
        """Records that must be written in this turn."""
        self._saves: list[tuple[ModelWork, int, bytes]] = []
        """States that were saved in this turn, by works, and their numbers."""
        self._told: list[tuple[tuple[Fact, ...], str, str]] = []
        """What was told, and the records that must be safe for that."""
        self._in_vain = False
        """Whether time has ended work that nobody waits for."""
        self._is_broken = False
        """Whether the environment is broken: nothing waits for a worker when the turn is over."""

    def broken(self, guarantee: str, text: str, label: str = "") -> None:
        """A guarantee does not hold, for the work of this label: of which nothing is certain from
        now on, so that nothing more is said of it."""
        if label not in self.doubtful:
            self.found.append((guarantee, text, label))
        if label:
            self.doubtful.add(label)

    # -- requests -------------------------------------------------------------

    def ask(
        self, request: RequestId, ticket: ModelTicket, label: str, consent: bool | None,
        allowance: int, name: Name | None = None, caller: bytes = b"",
        earlier: int | None = None, refused: str = "",
    ) -> None:  # fmt: skip
        """A request with its input, for the first time.  ``earlier``: it is issued again, and so
        many executions may have been started; ``refused``: the code with which the router does
        not take it."""
        again, most = earlier or 0, self.limits.max_executions
        may = earlier is None or (consent is not False and again < allowance)
        if name is None:
            if may and consent and refused == "server-lost":
                self.broken("G9", f"{label} may run again, and is refused", label)
            elif not may and not refused:
                self._refusals[request] = "server-lost"
            elif not refused:
                allowance = min(granted(allowance - again), most)
                work = ModelWork(request, -1, ticket.input, consent, allowance, label)
                work.waiters[request] = caller
                self._enter(request, ticket, work)
                self._stop_if_closing(work)
            return
        here = self.open.get(name)
        if here is not None and here.input != ticket.input:
            if refused == "":
                self._refusals[request] = "key-conflict"
            return
        if refused == "key-conflict":
            self.broken("G6", f"{label}: a conflict with nothing else that was asked", label)
        elif refused == "unknown-key" and (here is not None or earlier is None):
            self.broken("G4", f"{label} is said to be unknown", label)
        if refused and (here is not None or refused != "unknown-key"):
            return
        if here is None:
            if not may or refused:
                if refused != "unknown-key":
                    self._refusals[request] = "unknown-key"
                elif may and consent:
                    self.broken("G4", f"{label} may run again, and is said to be unknown", label)
                return
            here = ModelWork(
                name, self.next, ticket.input, consent, granted(min(allowance - again, most)),
                label, again,
            )  # fmt: skip
            self.next += 1
            self._open(here)
            self._record("opened", here.number, caller)
        else:
            counts = caller in here.lost or caller in here.waiters.values()
            if here.outcome is None and not counts:
                self._record("joined", here.number, caller)
            self._return(here, caller, request.session)
        here.waiters[request] = caller
        here.timed = ""
        self._enter(request, ticket, here)
        if here.outcome is not None:
            self._due(request, ticket, here.outcome, ("completed", here.number))
        self._stop_if_closing(here)

    def attach(
        self, request: RequestId, ticket: ModelTicket, label: str, name: Name, refused: str = ""
    ) -> None:
        """A request that waits for the work of a key without sending the input."""
        here = self.open.get(name)
        if here is None:
            if not refused:
                self._refusals[request] = "unknown-key"
        elif refused:
            if refused == "unknown-key":
                self.broken("G4", f"{label} is said to be unknown", label)
        elif here.outcome is not None:
            self._enter(request, ticket, None)
            self._due(request, ticket, here.outcome, ("completed", here.number))
        else:
            here.watchers[request] = None
            self._enter(request, ticket, here)

    def command(
        self, request: RequestId, ticket: ModelTicket, name: Name, act: KeyAct, tag: Tag
    ) -> None:
        """A cancel or a forget by key."""
        here, known = self.open.get(name), self.said.get((name, act, tag))
        if known is not None:
            self._answer_command(request, ticket, known[0], None, known[1])
            return
        answer: Told = ("said", None, True, False)
        fact: Fact = ("said", name, act, tag, self.now_s)  # it may be said again, when it is over
        if here is not None and (tag == here.number or not isinstance(tag, int)):
            if here.outcome is not None and act is not KeyAct.FORGET:
                answer = ("said", None, True, True)
            else:
                answer = ("said", here.number, here.started, False)
                self._close(here)
        if isinstance(tag, bytes):
            self.said[name, act, tag] = answer, fact
            self._record(*fact)
        self._answer_command(request, ticket, answer, here, fact)

    def leave_by_name(self, request: RequestId, ticket: ModelTicket, name: Name) -> None:
        """A caller counts no more for what it has asked in earlier sessions.  What it may have
        ended before is over for good once that is answered."""
        here = self.open.get(name)
        answer: Told = ("said", None, True, False)
        ended = [fact for fact in self.unsafe if fact[0] == "closed"]
        if here is not None:
            started = here.started
            self._return(here, self.sessions[request.session].caller, request.session)
            self._who_waits(here)
            if not here.open:
                answer = ("said", here.number, started, False)
        self._answer_command(request, ticket, answer, here, *ended)

    def _answer_command(
        self, request: RequestId, ticket: ModelTicket, answer: Told, here: ModelWork | None,
        *facts: Fact,
    ) -> None:  # fmt: skip
        if here is not None and not here.open:
            facts = (*facts, ("closed", here.number))
        elif here is not None and answer[3]:
            facts = (*facts, ("completed", here.number))
        ticket.command = True
        self._enter(request, ticket, None)
        self._due(request, ticket, answer, *facts)

    def _enter(self, request: RequestId, ticket: ModelTicket, work: ModelWork | None) -> None:
        ticket.work = work
        self.sessions[request.session].tickets[request.sequence] = ticket

    def again(self, request: RequestId, ticket: ModelTicket) -> None:
        """A request is sent once more."""
        if ticket.told is not None:
            self._owed[request] = ticket.due or UNKNOWN

    # -- who waits ------------------------------------------------------------

    def finish(self, session: bytes, spans: Spans) -> None:
        """A client has these, or wants none of them."""
        here = self.sessions[session]
        if spans == here.finished or self._too_many(here, spans):
            return
        for sequence in [each for each in here.tickets if within(spans, each)]:
            self._leave(RequestId(session, sequence))
            here.tickets.pop(sequence, None)
        here.finished = merged(*here.finished, *spans)

    def _too_many(self, session: ModelSession, spans: Spans) -> bool:
        """Whether a session would have more gaps than its window, as only a hostile one has."""
        most = self.limits.window + 1
        return len(spans) > most or (
            len(session.finished) + len(spans) > most
            and len(merged(*session.finished, *spans)) > most
        )

    def cancel(self, request: RequestId) -> None:
        """A client wants no outcome of this, and asks whether it was ever started."""
        session = self.sessions[request.session]
        ticket = session.tickets.get(request.sequence)
        one = ((request.sequence, request.sequence + 1),)
        started: bool | None = True
        if self._too_many(session, one):
            pass
        elif ticket is None:
            started = within(session.finished, request.sequence) or None
            session.finished = merged(*session.finished, *one)
        else:
            work = ticket.work
            started = self._leave(request)
            if work is not None and not work.keyed:
                started = work.starts > 0
            session.owes |= bool(started)
            session.tickets.pop(request.sequence)
            session.finished = merged(*session.finished, *one)
            facts: tuple[Fact, ...] = ()
            keyed = work is not None and work.keyed
            if work is not None and work.keyed and not work.open:
                facts = (("closed", work.number),)
            self.confirms[request] = ModelConfirm(started, keyed, facts)
            return
        self.confirms.setdefault(request, ModelConfirm(started, False, ()))

    def lapse(self, session: bytes) -> None:
        """A lease has ended: callers of keys go on counting, the rest leaves."""
        for request, ticket in self._tickets(session):
            work = ticket.work
            if work is not None and work.keyed:
                self._counts_on(work, request)
            self._leave(request)
            self.unsettled.add(session)
        if self.sessions[session].owes:
            self.unsettled.add(session)
        del self.sessions[session]

    def goodbye(self, session: bytes) -> None:
        """A client has gone for good: all of it leaves."""
        for request, _ in self._tickets(session):
            self._leave(request)
        del self.sessions[session]

    def _tickets(self, session: bytes) -> list[tuple[RequestId, ModelTicket]]:
        tickets = self.sessions[session].tickets
        for sequence in tickets:
            self.confirms.pop(RequestId(session, sequence), None)
        return [(RequestId(session, sequence), each) for sequence, each in tickets.items()]

    def _leave(self, request: RequestId) -> bool:
        """A ticket waits no more.  Whether its work may have been started."""
        ticket = self.sessions[request.session].tickets[request.sequence]
        work, ticket.work = ticket.work, None
        if work is None or not work.open:
            return True
        if request in work.waiters:
            del work.waiters[request]
            self._who_waits(work)
            return work.open or work.started
        work.watchers.pop(request, None)
        return True

    def _counts_on(self, work: ModelWork, request: RequestId) -> None:
        """Who waits with this request counts without it."""
        if request in work.waiters:
            work.lost |= {work.waiters[request]}

    def _return(self, work: ModelWork, caller: bytes, session: bytes) -> None:
        """A caller is in this session now: what it asked in earlier ones counts no more."""
        work.lost -= {caller}
        earlier = {*itertools.takewhile(session.__ne__, self.sessions)}
        old = [
            request for request, each in work.waiters.items()
            if each == caller and request.session in earlier
        ]  # fmt: skip
        for request in old:
            del work.waiters[request]
            if work.outcome is None:
                work.watchers[request] = None

    def _who_waits(self, work: ModelWork) -> None:
        """Somebody has left: is that the end?"""
        if work.waiters:
            return
        if work.lost or (work.outcome is not None and work.keyed):
            timed = "orphan" if work.lost else "retained"
            if work.timed != timed:
                work.timed, work.since_s = timed, self.now_s
        else:
            self._close(work)

    # -- time -----------------------------------------------------------------

    def out_of_time(self, request: RequestId) -> None:
        """The limit of a request has passed."""
        ticket = self.sessions[request.session].tickets[request.sequence]
        work = ticket.work
        ticket.late = True
        if ticket.told is not None or ticket.due is not None or work is None:
            return
        if not work.keyed:
            work.outcome = ("late", work.started)
            self._due(request, ticket, work.outcome)
            self._want_no_more(work)
            return
        self._counts_on(work, request)
        started, ticket.left = self._leave(request), work
        code = "no-answer" if started else "never-started"
        facts = () if work.open else (("closed", work.number),)
        self._due(request, ticket, ("error", code), *facts)

    def orphaned(self, work: ModelWork) -> None:
        """Lost callers of a work count no more."""
        self._in_vain = True
        work.lost = frozenset()
        self._who_waits(work)

    def forgotten(self, work: ModelWork) -> None:
        """The retention of a work has ended."""
        self._in_vain = True
        self._close(work)

    def expire(self, command: tuple[Name, int, Tag]) -> None:
        """A command need not be known any more."""
        del self.said[command]

    # -- executions -----------------------------------------------------------

    def start(self, where: tuple[str, int], work: ModelWork, *, unsent: bool = False) -> None:
        """An execution is dispatched, or (unsent) will be when that is safe: it counts, whether
        or not its worker gets it."""
        number = f"generation {work.number} of {work.label}" if work.keyed else work.label
        other = self.ending.get(work.name)
        if work.live or other is not None:
            self.broken("G1", f"{number} starts, and an execution of it or of one before lives",
                        work.label)  # fmt: skip
        if not work.open:
            self.broken("G7", f"{number} starts, and it is over", work.label)
        elif work.outcome is not None:
            # An error is the end of a work that may not be started again.
            guarantee = {"late": "G7", "error": "G2"}.get(work.outcome[0], "G4")
            self.broken(guarantee, f"{number} starts, and it has its outcome", work.label)
        if self.closing:
            self.broken("G7", f"{number} starts, and the router closes", work.label)
        if where[0] in self.leaving:
            self.broken("G2", f"{number} is spent on {where[0]}, which is to end", work.label)
        if work.spent:
            self.broken("G2", f"{number} starts for the {work.starts + 1}. time", work.label)
        work.starts += 1
        work.live, work.restored = True, False
        self._spend(work)
        self.runs[where] = ModelRun(work, unsent=unsent)

    def _spend(self, work: ModelWork) -> None:
        """Note whether its newest execution is its last one."""
        consent = self.declared if work.consent is None else work.consent
        work.spent = consent is False or work.starts >= work.allowance

    def go_on(self, where: tuple[str, int], work: ModelWork) -> None:
        """The last execution of a work lives on at a worker that has come back."""
        work.live, work.restored = True, False
        self._spend(work)
        self.runs[where] = ModelRun(
            work, taken_back=True, save=work.last_save, state=work.saved or b""
        )

    def save(self, where: tuple[str, int], save: int, state: bytes) -> None:
        """An execution saves a state.  One that was answered, or comes before that, is not
        another."""
        run = self.runs[where]
        if save > run.save and (not run.save or run.save_told is not None or run.taken_back):
            run.save, run.state, run.save_told = save, state, None
            self._saves.append((run.work, save, state))

    def save_answered(self, where: tuple[str, int], save: int, refused: str) -> None:
        """A worker is told that a state is safe, or why nothing of it is kept."""
        run = self.runs.get(where)
        if run is None or save < run.save:
            return  # it came together with the outcome, or again together with the next one
        if save > run.save:
            self.broken("G5", f"{where[0]} is told of a save that it has not made: {save}")
            return
        work = run.work
        if run.save_told is not None and run.save_told != refused:
            self.broken("G3", f"{work.label}: two answers to a save that differ", work.label)
        run.save_told = refused
        if refused or run.stopped:
            return
        if not self.journaled or not work.keyed:
            work.saved = run.state
        elif work.saved != run.state:
            self.broken("G11", f"{work.label} is told that a state is safe, and it was not "
                        "recorded", work.label)  # fmt: skip
        self._check_safe([("saved", work.number, save)], "a save is answered", work.label)

    def recorded_state(self, number: int, save: int, state: bytes) -> None:
        """The record of a state is written."""
        self.unsafe.append(("saved", number, save))
        work = self.numbers.get(number)
        made = [*self._saves]  # what ended in the same turn, too
        made += [(run.work, run.save, run.state) for run in self.runs.values() if not run.stopped]
        if (work, save, state) not in [each for each in made if each[0] is work]:
            self.broken("G11", f"a state of generation {number} is recorded, and nothing has saved "
                        "it", _label_of(work))  # fmt: skip
        elif work is not None:
            work.saved = state

    def begins_with(self, work: ModelWork, saved: bytes | None) -> None:
        """An execution is sent to its worker with this state."""
        if saved != work.saved:
            self.broken("G11" if self.journaled and work.keyed else "G4", f"{work.label} is sent "
                        f"with the state {saved!r}, and {work.saved!r} was saved last",
                        work.label)  # fmt: skip

    def stop(self, where: tuple[str, int]) -> None:
        """A worker is told to stop an execution."""
        run = self.runs.get(where)
        if run is not None and not run.stopped:
            run.stopped = True
            self._stopped.append(run)

    def end(self, where: tuple[str, int], outcome: Told | None) -> None:
        """An execution is over: reported with this outcome, or nothing will come of it."""
        run = self.runs.pop(where)
        self._ended.add(where)
        work = run.work
        work.live = False
        if not work.open:
            if self.ending.get(work.name) is work:
                del self.ending[work.name]
                del self.numbers[work.number]
                following = self.open.get(work.name)
                if following is not None:
                    self._stop_if_closing(following)
        elif work.outcome is None:
            if outcome is not None:
                self._complete(work, outcome)
            else:
                consent = self.declared if work.consent is None else work.consent
                if work.spent or self.closing or consent is False:
                    self._complete(work, ("error", "worker-lost"))

    def worker_lost(self, worker: str) -> None:
        """A worker is proven dead, and all of its executions are over."""
        for where in [each for each in self.runs if each[0] == worker]:
            self._lost_now.append(self.runs[where].work)
            self.end(where, None)

    # -- what becomes of a work -----------------------------------------------

    def _open(self, work: ModelWork) -> None:
        self.open[work.name] = self.numbers[work.number] = work

    def _complete(self, work: ModelWork, outcome: Told) -> None:
        work.outcome = outcome
        if work.keyed:
            self._record("completed", work.number)
        for request in (*work.waiters, *work.watchers):
            ticket = self.sessions[request.session].tickets[request.sequence]
            self._due(request, ticket, outcome, ("completed", work.number))
            if request in work.watchers:
                ticket.work = None
        work.watchers.clear()
        self._want_no_more(work)

    def _never_ran(self, work: ModelWork, outcome: Told) -> None:
        """A work that has never run ends, and nothing of it is retained."""
        waiting = (*work.waiters, *work.watchers)
        work.outcome = outcome
        for request in waiting:
            ticket = self.sessions[request.session].tickets[request.sequence]
            facts = (("closed", work.number),) if work.keyed else ()
            self._due(request, ticket, outcome, *facts)
        if work.keyed:
            self._close(work)

    def _close(self, work: ModelWork) -> None:
        work.open = False
        work.timed = ""
        facts: tuple[Fact, ...] = ()
        if work.keyed:
            del self.open[work.name]
            self._record("closed", work.number)
            facts = (("closed", work.number),)
        for request in (*work.waiters, *work.watchers):
            ticket = self.sessions[request.session].tickets[request.sequence]
            ticket.work = None
            if work.outcome is None:
                self._due(request, ticket, ("cancelled", work.started), *facts)
        self._want_no_more(work)
        if work.keyed and work.live:
            self.ending[work.name] = work
        elif work.keyed:
            del self.numbers[work.number]

    def _want_no_more(self, work: ModelWork) -> None:
        """Nobody needs what runs of it: it must be stopped in this turn, or is over already."""
        if not work.live:
            return
        where = next(where for where, run in self.runs.items() if run.work is work)
        run = self.runs[where]
        if run.unsent or run.announced:  # nothing is left to be stopped
            del self.runs[where]
            work.live = False
        else:
            self._unwanted.append((where, run, self._in_vain))

    def close_down(self) -> None:
        """The router begins no work any more."""
        self.closing = True
        works = {id(work): work for work in self.numbers.values()}
        for session in self.sessions.values():
            for ticket in session.tickets.values():
                if ticket.work is not None:
                    works.setdefault(id(ticket.work), ticket.work)
        for work in works.values():
            self._stop_if_closing(work)

    def _stop_if_closing(self, work: ModelWork) -> None:
        """A router that closes retains nothing that never ran."""
        if not self.closing or work.live or work.restored or work.outcome or not work.open:
            return
        if work.starts or work.earlier:
            self._complete(work, ("error", "worker-lost"))
        else:
            self._never_ran(work, ("error", "stopping"))

    def decide(self, work: ModelWork, what: Told) -> bool:
        """A router ends a work by itself.  Whether it may, and what it says is true."""
        if work.outcome is not None or not work.open:
            return work.outcome == UNKNOWN
        code = what[1] if what[0] == "error" else what[0]
        match code:
            case "cancelled":
                may = self.closing and work.live and what[1]
            case "worker-lost":
                may = work.started and not work.live and (work.restored or self.hopeless)
            case "stopping" | "environment-broken":
                may = not work.started and (self.closing or code != "stopping")
            case "execution-limit" | "no-answer":
                may = work.live or (self._has_limits and self._is_lost_now(work))
            case "outcome-too-large":
                may = work.live and not work.keyed
            case _:
                may = code in OWN
        if may and code == "outcome-too-large":  # its worker has announced it, and is rid of it
            self.end(next(at for at, run in self.runs.items() if run.work is work), what)
        elif may and not work.started:
            self._never_ran(work, what)
        elif may:
            self._complete(work, what)
        return may

    # -- what is told ---------------------------------------------------------

    def _due(self, request: RequestId, ticket: ModelTicket, what: Told, *facts: Fact) -> None:
        """This is due to a ticket, once these records are safe."""
        if ticket.told is None:
            ticket.due, ticket.needs = what, facts
            self._owed[request] = what

    def refuse(self, request: RequestId, code: str) -> None:
        """A request is not taken."""
        if self._refusals.get(request) == code:
            del self._refusals[request]

    def tell(self, request: RequestId, outcome: Any, payload: bytes) -> None:
        """A ticket is told an outcome, or told it again."""
        session = self.sessions.get(request.session)
        if session is None:
            return
        if within(session.finished, request.sequence):
            self.broken("G7", f"{request} is answered after it was finished")
            return
        ticket = session.tickets.get(request.sequence)
        if ticket is None:
            self.broken("G3", f"{request} is answered, and was not asked")
            return
        self._owed.pop(request, None)
        self.pending.pop(request, None)
        if ticket.told is not None:
            if ticket.told != (outcome, payload):
                self.broken("G3", f"{request}: two outcomes that differ")
            return
        ticket.told = outcome, payload
        what = told_of(ticket, outcome.status, payload)
        work, label = ticket.work, ticket.label
        if ticket.due is None and work is not None:
            ticket.told = None  # what is decided is due to it, too
            self.decide(work, what)
            ticket.told = outcome, payload
            self._owed.pop(request, None)
        due = ticket.due
        if due is None or not self._same(ticket, due, what, session, outcome.status, payload):
            if not self._instead(request, ticket, what):
                guarantee = _breaks(due, what)
                self.broken(guarantee, f"{label}: {due} is due, and {what} is told", label)
            return
        self._check_safe(ticket.needs, f"{label} is told {what[:2]}", label)
        starts = work.starts if work is not None and work.keyed else outcome.executions
        if self.journaled and due[0] == "outcome" and outcome.executions != starts:
            text = f"{label} is told of {outcome.executions} executions, and there were {starts}"
            self.broken("G11", text, label)

    def _same(
        self, ticket: ModelTicket, due: Told, what: Told, session: ModelSession, status: int,
        payload: bytes,
    ) -> bool:  # fmt: skip
        match due:
            case ("outcome", of, body):
                if (of, body) == (status, payload):
                    return True
                return len(body) > session.message_bytes and what == ("error", "outcome-too-large")
            case ("late", started):
                return what[0] == "error" and what[1] in LATE[started]
            case ("unknown",):
                by_itself = what[0] == "error" and what[1] in OWN
                return by_itself or (self.closing and what == ("cancelled", True))
        return due == what

    def _is_lost_now(self, work: ModelWork) -> bool:
        return any(each is work for each in self._lost_now)

    def _at_its_limit(self, ticket: ModelTicket, what: Told) -> bool:
        """Whether the limit of an execution had passed before its worker was lost."""
        lost = (*self._lost_now, *self._at_limits)
        work = next((each for each in lost if each.label == ticket.label), None)
        if work is None or not self._has_limits or what[1] not in AT_LIMITS:
            return False
        if ticket.due not in (None, ("error", "worker-lost")):
            return False
        if work.outcome is None:
            self._complete(work, what)
        work.outcome = what
        return True

    def _instead(self, request: RequestId, ticket: ModelTicket, what: Told) -> bool:
        """Whether a ticket may be told this though its outcome is due: it is read from a disk,
        where it may be damaged, and where reading takes time."""
        if self._at_its_limit(ticket, what):
            return True
        kinds = "outcome", "error", "cancelled"
        if ticket.due is None or ticket.due[0] not in kinds or not self.journaled:
            return False
        work = ticket.work
        if what == ("error", "not-durable") and ticket.needs[0][1] in self.damaged:
            if work is not None and request in work.waiters:
                del work.waiters[request]
                self._who_waits(work)
            ticket.work = None
            return True
        if what == ("error", "no-answer") and ticket.late:
            if work is not None:
                self._leave(request)
            return True
        if ticket.left is not None and what[0] == "error" and what[1] in _BY_ITSELF:
            # It was decided before the limit passed, and is saved after it: nobody was lost.
            left = ticket.left
            if left.outcome != what and not self.decide(left, what):
                return False
            left.lost -= {self.sessions[request.session].caller}
            if left.open:
                self._who_waits(left)
            return True
        return what == ("cancelled", True) and (work is None or not work.open)

    def confirm(self, request: RequestId, started: bool | None) -> None:
        """The cancel of a request is answered."""
        due, keyed, facts, _ = self.confirms.pop(request, ModelConfirm(started, False, ()))
        if due != started:
            text = f"{request} is cancelled, and was {'' if due else 'never '}started"
            self.broken("G7" if keyed else "G9", text)
        self._check_safe(facts, f"the cancel of {request} is answered")

    def _check_safe(self, facts: Iterable[Fact], what: str, label: str = "") -> None:
        if self.journaled and facts:
            self._told.append((tuple(facts), what, label))

    def closed(self) -> None:
        """The router is about to end.  Its last stage waits for its answers, but not for the disk
        where a read has begun in that stage."""
        begun_s = self.now_s - WireLimits().flush_s
        read = {number for number, since_s in self.reading.items() if since_s > begun_s}
        for session in self.sessions.values():
            for ticket in session.tickets.values():
                is_read = ticket.work is not None and ticket.work.number in read
                if ticket.told is None and not (self.unsafe or is_read):
                    text = f"{ticket.label} was taken in, and the router closes without an answer"
                    self.broken("G9", text, ticket.label)

    # -- the journal ----------------------------------------------------------

    def _record(self, *fact: Any) -> None:
        if self.journaled:
            self._facts.append(fact)

    def record(self, fact: Fact, outcome: Told | None = None) -> None:
        """A record is written.  ``outcome``: that of a completed work."""
        fact = next((each for each in self._facts if each[: len(fact)] == fact), fact)
        self.unsafe.append(fact)
        work = self.numbers.get(fact[1]) if isinstance(fact[1], int) else None
        if fact[0] == "completed" and work is not None and self._is_lost_now(work):
            assert outcome is not None
            if outcome[1] in AT_LIMITS:
                self._at_limits.append(work)
        if fact[0] == "completed" and work is not None and work.outcome is None:
            assert outcome is not None
            self.decide(work, outcome)
        elif fact[0] == "closed" and work is not None and fact not in self._facts:
            unwanted = work.timed == "retained" or work.number in self.damaged
            if work.open and unwanted and self.may_forget(work):
                self.forgotten(work)
            elif work.open and work.outcome is None and not work.started:
                self._never_ran(work, UNKNOWN)
        if fact[0] == "started":
            return
        if fact in self._facts:
            self._facts.remove(fact)
        else:
            self.broken(_of_record(fact), f"{fact} is recorded, and is not so", _label_of(work))
            if fact[0] == "closed" and work is not None and work.open:
                self._close(work)
                self._facts.remove(fact)

    def may_forget(self, work: ModelWork) -> bool:
        """Whether a work was retained for long enough."""
        return True

    def synced(self, records: int) -> None:
        """So many records, the oldest first, are safe."""
        del self.unsafe[:records]
        self.pending = {
            request: (due, max(0, after - records))
            for request, (due, after) in self.pending.items()
        }
        for request, confirm in self.confirms.items():
            if confirm.after:
                after = max(0, confirm.after - records)
                self.confirms[request] = confirm._replace(after=after)

    # -- turns ----------------------------------------------------------------

    def settle(self) -> None:
        """A turn is over, and nothing follows from it any more."""
        if self._is_broken and not self.journaled:  # else its records say so
            self._end_unseen()
        for where, run, in_vain in self._unwanted:
            if self.runs.get(where) is run and not run.stopped:
                text = f"{run.work.label} goes on, and nobody wants it"
                self.broken("G8" if in_vain else "G7", text, run.work.label)
        for run in self._stopped:
            work = run.work
            if work.open and work.outcome is None and work.live:
                if work.waiters and not self.closing:
                    self.broken("G7", f"{work.label} is stopped, and wanted", work.label)
                else:
                    work.outcome = UNKNOWN
        for request, code in self._refusals.items() if self._refusals else ():
            guarantee = "G6" if code == "key-conflict" else "G2"
            self.broken(guarantee, f"{request} must be refused: {code}")
        if self.prompt and (self._owed or self.pending or self.confirms):
            self._be_prompt()
        for facts, what, label in self._told:
            for fact in facts:
                if fact in self.unsafe:
                    self.broken("G11", f"{what}, and {fact} is not safe", label)
        for fact in self._facts:
            self.broken("G11", f"{fact} must be recorded, and is not")

    def _end_unseen(self) -> None:
        """Works that wait for a worker end, of which nobody is told: their callers are lost."""
        for work in list(self.open.values()):
            waits = not (work.live or work.outcome or work.restored or work.name in self.ending)
            if waits and not (work.waiters or work.watchers):
                if work.started:
                    self._complete(work, UNKNOWN)
                else:
                    self._never_ran(work, UNKNOWN)

    def _be_prompt(self) -> None:
        """What is due is told in this turn, unless it waits for what is written and not safe."""
        unsafe = len(self.unsafe)
        for request, due in self._owed.items():
            ticket = self._ticket(request)
            at_once = ticket is not None and due[0] == "outcome"
            if at_once and ticket is not None and not set(ticket.needs) & set(self.unsafe):
                self.pending[request] = due, 0
            else:
                self.pending[request] = due, unsafe
        for request, (due, after) in list(self.pending.items()):
            ticket = self._ticket(request)
            if ticket is None:
                del self.pending[request]
            elif not after:
                text = f"{ticket.label}: {due} is due, and nothing is told"
                self.broken(_breaks(due, None), text, ticket.label)
        for request, confirm in self.confirms.items():
            if confirm.after is None:
                self.confirms[request] = confirm = confirm._replace(after=unsafe)
            if not confirm.after:
                self.broken("G7" if confirm.keyed else "G9", f"the cancel of {request} is ignored")

    def _ticket(self, request: RequestId) -> ModelTicket | None:
        session = self.sessions.get(request.session)
        return None if session is None else session.tickets.get(request.sequence)


def _of_record(fact: Fact) -> str:
    """The guarantee that is broken by a record that nothing leads to."""
    return {"said": "G7", "cancelled": "G7", "opened": "G4", "closed": "G4"}.get(fact[0], "G11")


def _label_of(work: ModelWork | None) -> str:
    return "" if work is None else work.label


def told_of(ticket: ModelTicket, status: int, payload: bytes) -> Told:
    """What an outcome says to a ticket."""
    if status == Status.RESULT:
        if not ticket.command:
            return "outcome", status, payload
        record = cbor2.loads(payload)
        return "said", record["generation"], record["started"], record.get("finished", False)
    code = error_records.decode(payload).code
    if status == Status.CANCELLED:
        return "cancelled", code != "never-started"
    return "error", code


def _breaks(due: Told | None, told: Told | None) -> str:
    """The guarantee that is broken by telling this in the place of that."""
    kinds = {each[0] for each in (due, told) if each is not None}
    if due is not None and due[0] == "said" and due[3] and told is not None and not told[3]:
        return "G4"  # an outcome was there, and is dropped
    if told == ("error", "not-durable"):
        return "G11"
    if kinds & {"cancelled", "said"}:
        return "G7"
    if due is not None and due[0] == "outcome" and told == ("error", "worker-lost"):
        return "G4"  # it had come before its worker was lost
    if told is None:
        return "G4" if due is not None and due[0] == "outcome" else "G9"
    return "G3" if "outcome" in kinds else "G9"


# -- today's router -----------------------------------------------------------------------


class Boundary(RouterModel):
    """The model, fed with the inputs and effects of today's router by events of these kinds, whose
    actor is the server or (*) the worker:

    ``heard`` a client's message, ``reported``* a worker's, ``passes`` (time, and whether leases may
    end), ``time`` (what it ends, where that is chosen), ``back``* (a worker of an earlier server),
    ``broken`` (the environment), ``reaped``* one, ``closing``; ``said`` or ``missed`` an answer,
    ``commanded``* a worker, ``kills``, ``lost``* one, ``wrote`` records, ``closed``; ``synced`` and
    ``fell`` of the disk, ``reads``, ``loaded`` and ``damaged`` of outcomes there; ``turned`` when
    the effects of an input were carried out; ``begins`` a new server.
    """

    def __init__(
        self, limits: ServerLimits, keys: KeyLimits, *, journaled: bool, prompt: bool,
        resting: bool = False,
    ) -> None:  # fmt: skip
        self.keys = keys
        self._resting = resting
        """Whether outcomes that a journal has left are read when they are asked for."""
        self._incarnations: dict[bytes, str] = {}
        self._turn: list[tuple[str, str, tuple[Any, ...]]] = []
        self._effects = 0
        """Where the effects of the last input begin among these."""
        self._refused: dict[int, str] = {}
        """Events of this turn in which a request comes that is refused, and the code."""
        self._gone: set[int] = set()
        """Events of this turn in which a message comes whose session is said to be unknown."""
        self._event = 0
        """The event that is dealt with.  It is known by its id, as each of these: a network may
        bring one message twice."""
        self._hellos: dict[bytes, tuple[int, bytes]] = {}
        """The most bytes of an outcome that each hello names, until it is welcomed."""
        self._left: tuple[Record, ...] = ()
        """What a server that fell has left on its disk."""
        self._safe = 0
        """How many records there are safe."""
        super().__init__(limits, journaled=journaled, prompt=prompt)

    def see(self, event: Event) -> list[Violation]:
        """Violations that an event shows."""
        at_s, kind, actor, _, what = event
        if kind == "turned":
            self._read_clock(at_s)
            return self._deal(at_s) if self._turn or self.found else []
        if kind in _BESIDE:
            getattr(self, f"_{kind}")(at_s, *what)
            return []
        if kind == "lost":  # who is told that a worker is dead may be told before
            self._turn.insert(self._effects, (kind, actor, what))
            return []
        if kind == "spawned":
            self._incarnations[what[2]] = what[0]
            return []
        if kind in ("said", "missed"):
            told = what[-2]
            if type(told) not in _OF_ANSWERS:
                return []
            if type(told) is messages.Refused:
                self._match(told)
            elif type(told) is messages.Unknown and told.session in self.sessions:
                # The answer to the last message of this session that has none: earlier ones it may
                # have known.
                self._gone.update(
                    [
                        id(event) for event in self._turn
                        if event[0] == "heard" and id(event) not in self._gone
                        and getattr(event[2][1], "session", None) == told.session
                    ][-1:]
                )  # fmt: skip
        elif kind in _INPUTS:
            if (
                kind == "reported"
                and type(what[0]) is messages.Beat
                and actor not in self.coming
            ):  # fmt: skip
                return []
            self._effects = len(self._turn) + 1
        self._turn.append((kind, actor, what))
        return []

    def _match(self, told: messages.Refused) -> None:
        """A refusal is the answer to the last copy of its request that has none: earlier ones may
        have been taken in, or may have come before it was finished."""
        for event in reversed(self._turn):
            if event[0] != "heard" or type(event[2][1]) is not messages.Request:
                continue
            request = event[2][1]
            same = request.session == told.session and request.sequence == told.sequence
            if same and id(event) not in self._refused:
                self._refused[id(event)] = told.code
                return

    def _deal(self, at_s: float) -> list[Violation]:
        """Deal with an input and its effects."""
        turn = self._turn
        for event in turn:
            self._event = id(event)
            getattr(self, _OF_A_TURN[event[0]])(event[1], *event[2])
        self._turn, self._effects, self._event = [], 0, 0
        self.settle()
        if self._refused or self._gone:
            self._refused.clear()
            self._gone.clear()
        found = [Violation(g, at_s, text, label) for g, text, label in self.found]
        self.forget_turn()
        return found

    def _read_clock(self, at_s: float) -> None:
        """Time passes for nobody but :class:`Clocks`."""

    def _begins(self, at_s: float) -> None:
        self.begin()
        self._incarnations, self._hellos, self._turn = {}, {}, []
        self.restore()

    # -- inputs -----------------------------------------------------------------

    def _heard(self, server: str, client: str, message: Any, body: Body | None) -> None:
        handler = _OF_CLIENTS.get(type(message))
        if handler is not None:
            if self._event in self._gone:
                self._unknown(message.session)
            elif self._hear(message.session):
                getattr(self, handler)(message, body)
        elif type(message) is messages.Hello:
            self._hellos[message.nonce] = message.message_bytes, message.caller
        elif type(message) is messages.Goodbye:
            for session, each in list(self.sessions.items()):
                if message.session in (session, each.nonce):
                    self.goodbye(session)

    def _hear(self, session: bytes) -> bool:
        """Whether a session is known."""
        return session in self.sessions

    def _request(self, message: Any, body: Body | None) -> None:
        request = RequestId(message.session, message.sequence)
        session = self.sessions[message.session]
        assert body is not None
        known = session.tickets.get(message.sequence)
        of = message.digest + b"%d" % len(body)
        keyed = message.key is not None
        if keyed:
            of += repr(message[8:12]).encode()
        refused = self._refused.get(self._event, "")
        if known is not None:
            if known.input == of:
                if refused:
                    self.broken("G6", f"{request} comes again, and is refused: {refused}")
                self.again(request, known)
            elif not refused:
                self.broken("G6", f"{request} comes with another payload, and is not refused")
            return
        if within(session.finished, message.sequence):
            return
        if not keyed:
            label = bytes(body[:64]).partition(b"|")[0].decode("utf-8", "replace")
            self.ask(
                request, ModelTicket(of, label), label, message.rerun, message.allowance,
                earlier=message.earlier, refused=refused,
            )  # fmt: skip
        else:
            self._keyed(request, message, of, refused)
        self._has_limits = self._has_limits or message.execution_s is not None
        if message.deadline_s is not None and message.sequence in session.tickets:
            self._add_deadline(message.deadline_s, request)

    def _keyed(self, request: RequestId, message: Any, of: bytes, refused: str) -> None:
        name = message.namespace, message.key
        label = f"{message.namespace.decode()}.{message.key.decode()}"
        ticket, act = ModelTicket(of, label), KeyAct(message.act or 0)
        match act:
            case KeyAct.ASK:
                ticket.work = None
                asked = dataclasses.replace(ticket, input=message.digest)
                caller = self.sessions[request.session].caller
                self.ask(
                    request, asked, label, message.rerun, message.allowance, name, caller,
                    message.earlier, refused,
                )  # fmt: skip
                asked.input = of
            case KeyAct.ATTACH:
                self.attach(request, ticket, label, name, refused)
            case _ if refused:
                pass
            case KeyAct.LEAVE:
                self.leave_by_name(request, ticket, name)
            case _:
                self.command(request, ticket, name, act, message.tag)

    def _finish(self, message: Any, _: Body | None) -> None:
        self.finish(message.session, spans_of(message.finished))

    def _sync(self, message: Any, _: Body | None) -> None:
        pending = spans_of(message.pending)
        if sum(stop - start for start, stop in pending) <= self.limits.window:
            self.finish(message.session, left_out(pending, message.next))

    def _cancel(self, message: Any, _: Body | None) -> None:
        request = RequestId(message.session, message.sequence)
        self.cancel(request)

    def _reported(self, worker: str, message: Any, body: Body | None) -> None:
        match message:
            case messages.WorkerHello() if self.coming.get(worker) == message.epoch:
                self.coming[worker] = b""
            case messages.WorkerOutcome(session, sequence, number, status):
                run = self._run_of(worker, number, session, sequence)
                if run is not None and messages.is_status(status):
                    taken_back = run.taken_back and status == Status.CANCELLED
                    outcome = None if taken_back else ("outcome", status, bytes(body or b""))
                    self.end((worker, number), outcome)
            case _ if self.coming.get(worker):
                pass  # it was for an earlier router
            case messages.Beat(live=spans) if worker in self.coming:
                del self.coming[worker]
                live = {*numbers_in(spans_of(spans))}
                for where, run in list(self.runs.items()):
                    is_gone = run.taken_back and not run.session and where[1] not in live
                    if where[0] == worker and is_gone:
                        self.end(where, None)
            case messages.Announced(session, sequence, number):
                run = self._run_of(worker, number, session, sequence)
                if run is not None:
                    run.announced = True
                    if not run.work.open or run.work.outcome is not None:
                        self.end((worker, number), None)
            case messages.WorkerSave(session, sequence, number, save):
                run = self._run_of(worker, number, session, sequence)
                if run is not None and not run.announced:
                    self.save((worker, number), save, bytes(body or b""))
            case messages.WorkerHello() if worker not in self.leaving | self.enlisted:
                self.enlisted.add(worker)
                self.declared = message.rerun
            case None:  # no router can read it: it ends the worker
                self.leaving.add(worker)
            case _:
                pass

    def _run_of(self, worker: str, number: int, session: bytes, sequence: int) -> ModelRun | None:
        """The execution that a worker reports on, if it is one."""
        run = self.runs.get((worker, number))
        if run is None or run.taken_back:
            return run
        work = run.work
        if work.keyed:
            mine = sequence == work.number and session == run.session
        else:
            mine = (session, sequence) == work.name
        return run if mine else None

    def _passes(self, server: str, leases: bool) -> None:
        """Time passes, for nobody but :class:`Clocks`."""

    def _add_deadline(self, for_s: float, request: RequestId) -> None:
        """A request has a limit."""

    def _back(
        self, worker: str, server: str, incarnation: bytes, is_ready: bool,
        declared: bool | None = None,
    ) -> None:  # fmt: skip
        self._incarnations[incarnation] = worker
        if declared is not None:  # by its hello, which the router takes over
            self.enlisted.add(worker)
            self.declared = declared
        for work in is_ready * list(self.open.values()):
            if work.last[0] == incarnation and work.restored and not self.closing:
                self.go_on((worker, work.last[1]), work)

    def _broken(self, server: str) -> None:
        self.hopeless = self._is_broken = True

    def _time(self, server: str, name: str, *what: Any) -> None:
        """Time ends something, as an explorer has chosen."""
        match name:
            case "lapse" if what[0] in self.sessions:
                self.lapse(what[0])
            case "late" if self._ticket(RequestId(*what)) is not None:
                self.out_of_time(RequestId(*what))
            case "expire" if self.said:
                self.expire(next(iter(self.said)))
            case "unwanted":
                for work in list(self.open.values()):
                    if work.timed:
                        end = self.orphaned if work.timed == "orphan" else self.forgotten
                        end(work)

    def _closing(self, server: str) -> None:
        self.close_down()

    # -- effects ----------------------------------------------------------------

    def _missed(self, server: str, message: Any, body: Body | None) -> None:
        handler = _OF_ANSWERS.get(type(message))
        if handler is not None:
            getattr(self, handler)(message, body)

    def _said(self, server: str, client: str, message: Any, body: Body | None) -> None:
        self._missed(server, message, body)

    def _welcome(self, message: Any, _: Body | None) -> None:
        most_bytes, caller = self._hellos.pop(message.nonce)
        new = ModelSession(most_bytes, message.nonce, caller)
        session = self.sessions.setdefault(message.session, new)
        session.message_bytes = most_bytes

    def _unknown(self, session: bytes) -> None:
        """A session is not known any more: it had nothing that is not finished, or has lapsed."""
        if session in self.sessions:
            if self.sessions[session].tickets:
                self.broken("G4", "a session is forgotten, and its lease has not ended")
            self.lapse(session)

    def _told_unknown(self, message: Any, _: Body | None) -> None:
        if message.settled and message.session in self.unsettled:
            self.broken("G9", "a session is said to be settled, and something was unfinished")

    def _refuse(self, message: Any, _: Body | None) -> None:
        self.refuse(RequestId(message.session, message.sequence), message.code)

    def _outcome(self, message: Any, body: Body | None) -> None:
        assert body is not None
        self.tell(RequestId(message.session, message.sequence), message, bytes(body))

    def _cancelled(self, message: Any, _: Body | None) -> None:
        self.confirm(RequestId(message.session, message.sequence), message.started)

    def _commanded(self, worker: str, incarnation: bytes, message: Any, body: Body | None) -> None:
        kind = type(message)
        if kind is messages.Dispatch:
            self._dispatch(worker, message, body)
        elif kind is messages.SaveAnswer:
            self.save_answered((worker, message.number), message.save, message.refused)
        elif kind is messages.Stop:
            for number in numbers_in(spans_of(message.numbers)):
                self.stop((worker, number))
        elif kind is messages.Retire:
            self.leaving.add(worker)
        elif kind is messages.RouterChanged:
            self.coming[worker] = message.epoch

    def _kills(self, server: str, worker: str, why: str) -> None:
        self.leaving.add(worker)

    def _reaped(self, worker: str) -> None:
        self.leaving.add(worker)

    def _closed(self, server: str) -> None:
        self.closed()

    def _dispatch(self, worker: str, message: Any, body: Body | None) -> None:
        where = worker, message.number
        run = self.runs.get(where)
        saved: bytes | None = None
        if message.saved_bytes is not None and body is not None:
            saved = bytes(body[len(body) - message.saved_bytes :])
        if run is not None:  # from the journal, at last
            work = run.work
            if run.unsent:
                self.begins_with(work, saved)
            if run.unsent and ("started", work.number) in self.unsafe:
                text = f"generation {work.number} is sent before its start is safe"
                self.broken("G11", text, work.label)
            run.unsent, run.session = False, message.session
            return
        session = self.sessions.get(message.session)
        if session is not None:
            ticket = session.tickets.get(message.sequence)
            if ticket is None or ticket.work is None:
                text = f"request {message.sequence} is dispatched, and nobody waits for it"
                self.broken("G7", text)
            else:
                self.begins_with(ticket.work, saved)
                self.start(where, ticket.work)
            return
        found = self.numbers.get(message.sequence)
        if found is None:
            guarantee = "G4" if message.sequence >= self.next else "G7"
            text = f"generation {message.sequence} is started, and it is not open"
            self.broken(guarantee, text)
            return
        if self.journaled:
            text = f"generation {found.number} is sent, and no record says that it starts"
            self.broken("G11", text, found.label)
        self.begins_with(found, saved)
        self.start(where, found)
        if where in self.runs:
            self.runs[where].session = message.session

    def _lost(self, worker: str) -> None:
        self.worker_lost(worker)
        self.leaving.discard(worker)
        self._incarnations = {i: name for i, name in self._incarnations.items() if name != worker}
        self.coming.pop(worker, None)

    def _wrote(self, server: str, records: Sequence[Record]) -> None:
        for record in records:
            match record:
                case Started(number, incarnation, dispatch):
                    self.record(("started", number))
                    work = self.numbers.get(number)
                    if work is None:
                        self.broken("G11", f"generation {number} starts, and is not open")
                        continue
                    work.last, work.last_save = (incarnation, dispatch), 0
                    worker = self._incarnations.get(incarnation, "")
                    self.start((worker, dispatch), work, unsent=True)
                case Opened():
                    self.record(("opened", record.number, record.caller))
                case Joined(number, caller):
                    self.record(("joined", number, caller))
                case Completed(number, (header, payload)):
                    _, status, body = _kept(header, payload)
                    self.record(("completed", number), told_of(ModelTicket(b"", ""), status, body))
                case StateSaved(number, save, _, body):
                    self.recorded_state(number, save, bytes(body))
                case Closed(number):
                    self.record(("closed", number))
                case Commanded(forget, namespace, key, tag):
                    act = KeyAct.FORGET if forget else KeyAct.CANCEL
                    self.record(("said", (namespace, key), act, tag))

    # -- the disk ---------------------------------------------------------------

    def _synced(self, at_s: float, records: Sequence[Record]) -> None:
        self.synced(len(records))
        self._safe += len(records)

    def _reads(self, at_s: float, number: int) -> None:
        work = self.numbers.get(number)
        if work is None or work.outcome is None or ("completed", number) in self.unsafe:
            self.broken("G11", f"generation {number} is read, and its outcome is not safe")
        self.reading[number] = self.now_s

    def _loaded(self, at_s: float, number: int) -> None:
        self.reading.pop(number, None)

    def _damaged(self, at_s: float, number: int) -> None:
        self.damaged[number] = self.now_s

    def _fell(self, at_s: float, records: Sequence[Record]) -> None:
        if len(records) < self._safe:
            self.broken("G11", f"{self._safe} records were safe, and {len(records)} are left")
        self._left, self._safe = tuple(records), len(records)

    def restore(self) -> None:
        """What a journal has left is what a new router knows."""
        records, self._left = self._left, ()
        known = [each for each in records if isinstance(each, Commanded)][-self.keys.commands :]
        for record in records:
            match record:
                case Opened(number, namespace, key, digest, rerun, allowance, earlier, caller):
                    label = f"{namespace.decode()}.{key.decode()}"
                    work = ModelWork(
                        (namespace, key), number, digest, rerun, allowance, label, earlier,
                        restored=True, lost=frozenset({caller}), timed="orphan",
                    )  # fmt: skip
                    self._open(work)
                    self.next = max(self.next, number + 1)
                case Joined(number, caller):
                    self.numbers[number].lost |= {caller}
                case Started(number, incarnation, dispatch):
                    work = self.numbers[number]
                    work.starts, work.last = work.starts + 1, (incarnation, dispatch)
                    work.last_save = 0
                    self._spend(work)
                case StateSaved(number, save, _, body):
                    work = self.numbers[number]
                    work.saved, work.last_save = bytes(body), save
                case Completed(number, (header, payload)):
                    work = self.numbers[number]
                    work.outcome, work.restored = _kept(header, payload), False
                case Closed(number):
                    closed = self.numbers.pop(number, None)
                    self.next = max(self.next, number + 1)
                    if closed is not None:
                        del self.open[closed.name]
                case Commanded(forget, namespace, key, tag, generation, started, finished):
                    act = KeyAct.FORGET if forget else KeyAct.CANCEL
                    if record in known:
                        answer = "said", generation, started, finished
                        fact: Fact = ("said", (namespace, key), act, tag, 0.0)
                        self.said[(namespace, key), act, tag] = answer, fact
        for work in self.open.values():
            if self._resting and work.outcome is not None:  # so long callers may count for it
                work.lost, work.timed, work.since_s = frozenset(), "retained", self.keys.orphan_s


def _kept(header: Body, payload: Body) -> Told:
    """The outcome in a journal."""
    outcome = messages.decode(header, most_bytes=1 << 20)
    assert isinstance(outcome, messages.Outcome)
    return "outcome", int(outcome.status), bytes(payload)


_OF_CLIENTS: dict[type, str] = {
    messages.Request: "_request",
    messages.Finish: "_finish",
    messages.Sync: "_sync",
    messages.Cancel: "_cancel",
}
_OF_ANSWERS: dict[type, str] = {
    messages.Welcome: "_welcome",
    messages.Unknown: "_told_unknown",
    messages.Refused: "_refuse",
    messages.Outcome: "_outcome",
    messages.Cancelled: "_cancelled",
}
_OF_A_TURN: dict[str, str] = {
    "heard": "_heard", "reported": "_reported", "passes": "_passes",
    "time": "_time", "back": "_back", "closing": "_closing", "broken": "_broken", "said": "_said",
    "missed": "_missed", "commanded": "_commanded", "lost": "_lost",
    "wrote": "_wrote", "kills": "_kills", "reaped": "_reaped", "closed": "_closed",
}  # fmt: skip
_INPUTS = frozenset({"time", "heard", "reported", "passes", "back", "closing", "broken", "reaped"})
_BESIDE = frozenset({"begins", "synced", "reads", "loaded", "damaged", "fell"})


SLACK_S = 1.0
"""A retention may seem shorter by so much where its beginning is not seen to the tick."""


class Clocks(Boundary):
    """The same of a router in a simulator, whose time is a clock's."""

    SEEN = frozenset({*_OF_A_TURN, *_BESIDE, "turned", "spawned"})

    def __init__(self, limits: ServerLimits, keys: KeyLimits, *, journaled: bool) -> None:
        super().__init__(limits, keys, journaled=journaled, resting=journaled, prompt=not journaled)

    def _begins(self, at_s: float) -> None:
        self._at_s = at_s
        self.now_s = 0.0
        self._deadlines: list[tuple[float, RequestId]] = []
        self._goodbyes: list[bytes] = []
        """The nonces of sessions that their clients have left, in order."""
        self._opened = 0
        """Number of sessions that were opened."""
        super()._begins(at_s)

    def _read_clock(self, at_s: float) -> None:
        self.now_s += min(at_s - self._at_s, self.limits.awake_step_s)
        self._at_s = at_s

    def _hear(self, session: bytes) -> bool:
        if session not in self.sessions:
            return False
        self.sessions[session].seen_at = self.now_s
        return True

    def _heard(self, server: str, client: str, message: Any, body: Body | None) -> None:
        if type(message) is messages.Goodbye:
            nonce, known = message.session, self.sessions.get(message.session)
            # Past the bound it may have made room for another.
            if known is not None and self._opened <= self.limits.sessions:
                nonce = known.nonce
            self._goodbyes.append(message.session if nonce in self._goodbyes else nonce)
        super()._heard(server, client, message, body)

    def _welcome(self, message: Any, body: Body | None) -> None:
        self._opened += message.session not in self.sessions
        # So many are remembered.
        if message.nonce in self._goodbyes[-self.limits.sessions :]:
            self.broken("G8", "a session is opened, and its client has said goodbye to it")
        super()._welcome(message, body)
        self.sessions[message.session].seen_at = self.now_s

    def _add_deadline(self, for_s: float, request: RequestId) -> None:
        heapq.heappush(self._deadlines, (self._at_s + for_s, request))

    def may_forget(self, work: ModelWork) -> bool:
        """Whether its retention has passed.  Who waits for what cannot be read has left when that
        is known, and may be told later."""
        slack_s = SLACK_S if self.journaled else 0.0
        since_s = min(work.since_s, self.damaged.get(work.number, work.since_s))
        return self.now_s - since_s >= self.keys.retention_s - slack_s

    def _passes(self, server: str, leases: bool) -> None:
        now_s, keys = self.now_s, self.keys
        while self._deadlines and self._deadlines[0][0] <= self._at_s:
            _, request = heapq.heappop(self._deadlines)
            session = self.sessions.get(request.session)
            if session is not None and request.sequence in session.tickets:
                self.out_of_time(request)
        if leases:
            silent = [
                id_ for id_, each in self.sessions.items()
                if now_s - each.seen_at > self.limits.lease_s
            ]  # fmt: skip
            for id_ in silent:
                self.lapse(id_)
        for work in [each for each in self.open.values() if each.timed]:
            if work.timed == "orphan" and now_s - work.since_s >= keys.orphan_s:
                if work.restored and self.closing and not work.started:
                    pass  # a server that closes answers it first
                elif (work.restored or self._has_limits) and self._ends(work.number):
                    # That comes first: it ends as its caller's limit does.
                    work.lost, work.timed, work.since_s = frozenset(), "retained", now_s
                else:
                    self.orphaned(work)
            elif work.timed == "retained" and not self.journaled and self.may_forget(work):
                self.forgotten(work)
        for command, (_, fact) in list(self.said.items()):
            if fact[-1] > now_s - keys.command_s:
                break
            self.expire(command)

    def _ends(self, number: int) -> bool:
        """Whether a router gives a work that a journal has left its outcome in this turn."""
        return any(
            isinstance(record, Completed) and record.number == number
            for kind, _, what in self._turn if kind == "wrote"
            for record in what[0]
        )  # fmt: skip
