"""Work: what requests ask for, who waits for it, and the one table that decides about both.

Theory of operation
-------------------
Every request names a :class:`Work`.  A request without a key names one of its own: its
session and sequence, which nobody else can say, since the key of a caller is bytes.  A
request with a key joins the work that is open under the name, or opens a *generation* of it.

A :class:`Ticket` is one request of one session: it waits for a work, and then holds its
outcome until its client has it.  A work goes ``(HELD ->) WAITING -> RUNNING -> COMPLETED ->
CLOSED`` and may leave out steps.  It goes back once, after proof of death and with consent:
RUNNING -> WAITING.  HELD: an execution of an earlier generation lives, so nothing of this one
may start (G1).  ARCHIVED: its outcome is in the journal only.  CLOSED: nobody asks for it any
more; it is held only while its execution lives.

Who counts: a ticket whose caller sent the input.  When the last one leaves, the work is
cancelled.  One that is lost with its session goes on counting for the account's ``orphan_s``,
until its caller is back; an outcome is retained for ``retention_s`` after the last one has
left.  Both are 0 for the works of a session: so a lost ticket cancels at once, an outcome is
held by its ticket alone, and there is no second table.

Each input goes through :meth:`Works.step`, which looks up :attr:`Works.TABLE`.  A cell is one
short method: it changes the work, and what follows is done at once on the parts of the router
that are pure as well: queue, dispatches, journal, gate.  What must leave the router is
collected in :attr:`Works.out`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

from . import error_records, messages, outcomes
from .account import Account, Accounts
from .archive import Archive, Archived, Packed, fits, pack
from .clock import AwakeClock
from .closing import Closing
from .endings import ENDINGS, OTHER_CODE
from .errors import ProtocolError
from .executions import Dispatches, Execution
from .gate import Gate
from .journal import (
    Closed,
    Commanded,
    Completed,
    Joined,
    Journal,
    Left,
    LeftResource,
    Opened,
    Record,
    Remains,
    Started,
    StateSaved,
    remains_of,
)
from .key_records import CallerToken, KeyAct, Keyed, KeyName, Payload, Tag
from .limits import KeyLimits, ServerLimits
from .messages import SESSION_FULL, Outcome, Request
from .ranges import Ranges
from .requests import RetainedOutcome, Suspicion, grant
from .router_effects import Load, ToClient
from .scheduler import Scheduler
from .scope import ToHolder
from .sessions import Session, Sessions
from .status import CacheStats
from .terms import (
    DIGEST_BYTES,
    ID_BYTES,
    Body,
    BodyParts,
    Incarnation,
    RequestId,
    Route,
    SentBody,
    Status,
    pieces_of,
    weight,
)


class WorkState(enum.Enum):
    """The state of a work."""

    ABSENT = "absent"
    HELD = "held"
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    ARCHIVED = "archived"
    CLOSED = "closed"

    __hash__ = object.__hash__  # they are looked up with each step, and Enum's own is slow


class WorkInput(enum.Enum):
    """An input of a work, or of a name without an open one."""

    ASK = "request"
    CLASH = "request, other input"
    ATTACH = "attached without input"
    LEAVE = "a ticket leaves"
    LOSE = "its session is lost, or its time has passed"
    CANCEL = "cancel by name"
    FORGET = "forget by name"
    QUIT = "leave by name"
    RELEASE = "nothing earlier of its name lives"
    DISPATCH = "dispatched to a worker"
    REPORT = "outcome from its execution"
    DEAD = "its worker is proven dead"
    ANSWER = "outcome of the router"
    ORPHANED = "orphan deadline"
    OUTDATED = "retention ended"
    READ = "its outcome was read from the disk"
    UNREAD = "its outcome could not be read"

    __hash__ = object.__hash__  # they are looked up with each step, and Enum's own is slow


class Full(enum.Enum):
    """The account that is full where a request is refused for now."""

    NONE = "no account: other requests may have room"
    SESSION = "that of the session: no request has room"
    NAMESPACE = "that of the namespace"


class Refusal(enum.Enum):
    """Why a request is not taken: code, text, and the account that is full; None: for good."""

    CONFLICT = "conflict", "this id was used for a request with another payload", None
    SPENT = "finished", "this id is finished; its outcome is forgotten", None
    WINDOW = "window", "the session's window is full", Full.SESSION
    FULL = "queue-full", "the server's queue is full", Full.SESSION
    REFUSED = "refused", "its fields contradict each other, or a bound of the wire", None
    KEY_CONFLICT = "key-conflict", "the key was used for another input", None
    UNKNOWN_KEY = (
        "unknown-key",
        "nothing is known under this key: no request came, or its outcome is forgotten",
        None,
    )
    NO_CONSENT = (
        "server-lost",
        "the server that had the request is gone; a further execution needs rerun=True",
        None,
    )
    NONE_LEFT = (
        "server-lost",
        "the server that had the request is gone; its executions are used up, those counted that "
        "may have been started",
        None,
    )
    REPEATED = "unknown-key", "it has no id of its own, and may have been carried out before", None
    KEYS_FULL = "keys-full", "for now: there is no room for new keys", Full.NAMESPACE
    ARCHIVE_FULL = "keys-full", "for now: there is no room for another key", Full.NAMESPACE
    KEY_QUEUE_FULL = (
        "key-queue-full",
        "for now: there is no room for the work of another key",
        Full.NAMESPACE,
    )
    EARLY = (
        "early",
        "for now: no worker has said yet whether what may have run may run again",
        Full.NONE,
    )
    COMMANDS_FULL = (
        "commands-full",
        "for now: too many commands with ids of their own are remembered",
        Full.NAMESPACE,
    )
    UNSAVED = "journal", "for now: the journal cannot save it", Full.NAMESPACE
    CROWDED = "key-crowded", "for now: too many requests wait for this key", Full.NAMESPACE


@dataclasses.dataclass(slots=True, eq=False)
class Ticket:
    """A request of a session that is not finished: it waits for a work, or holds an outcome."""

    session: Session[Ticket]
    sequence: int
    digest: bytes
    body_bytes: int
    key: Keyed | None
    """Question about a key; None: it names a work of its own."""
    counts: bool = True
    """Whether the work is cancelled when it is the last one that counts, and leaves."""
    work: Work | None = None
    """The work that it waits for, or still counts for."""
    kept: RetainedOutcome | None = None
    """Outcome, for as long as its client may ask for it (G3, G4)."""
    ran: bool = False
    """Whether that ran for its own session."""
    sent_probe: int = 0
    """The last probe of its session that was answered before the outcome was last sent; -1 if
    that was over an older connection."""

    @property
    def id(self) -> RequestId:
        """Id of the request."""
        return RequestId(self.session.account.id, self.sequence)

    @property
    def caller(self) -> CallerToken:
        """The token of its caller."""
        return self.session.caller

    @property
    def execution(self) -> None:
        """No execution is a ticket's own; see :mod:`.outcomes`."""
        return None

    @property
    def executions(self) -> int:
        """No execution is a ticket's own."""
        return 0

    @property
    def standing(self) -> str:
        """State of the request, in a word: that of its work."""
        if self.kept is not None:
            return WorkState.COMPLETED.value
        state = WorkState.WAITING if self.work is None else self.work.state
        return state.value


@dataclasses.dataclass(slots=True, eq=False)
class Work:
    """A piece of work, which runs at most once, or again with consent (G2)."""

    account: Account
    number: int
    """Sequence in its session, or number of the generation, which is unique in a journal.  Workers
    know the work by account and number."""
    name: KeyName | None
    """The name under which callers know it; None: its id, which nobody else can say."""
    digest: bytes
    rerun: bool | None
    """Consent to a further execution; None: as the environment declares."""
    allowance: int
    """Most executions that may be started for it here."""
    body: SentBody | None
    """Its input, and the newest state that an execution has saved, if there is one.  Held until no
    further execution is possible."""
    body_bytes: int
    traceparent: str | None
    execution_s: float | None
    """Longest time of each execution by its caller, in seconds; None: none is set."""
    grace_s: float | None
    """End of each limit in which its rollout is late, in seconds; None: there is none."""
    state: WorkState = WorkState.WAITING
    execution: Execution | None = None
    """The execution that will bring its outcome, while RUNNING."""
    executions: int = 0
    """Number of dispatches, whether or not a worker got to them: here, and in earlier epochs as
    far as a journal has them."""
    earlier: int = 0
    """Executions that epochs may have started of which nothing is recorded here."""
    live: bool = False
    """Whether an execution of it has not ended, wanted or not."""
    queued_s: float = 0.0
    """Moment at which it was last put into the queue, on the awake clock."""
    ends_at: float | None = None
    """Deadline of its request, on the monotonic clock; None: no deadline ends it."""
    suspicion: Suspicion | None = None
    """A worker died of, or beside, its last execution (:mod:`.scheduler`)."""
    tickets: tuple[Ticket, ...] = ()
    lost: frozenset[CallerToken] = frozenset()
    """Callers whose tickets were lost with their sessions.  They go on counting."""
    outcome: RetainedOutcome | None = None
    """The outcome, while it is retained."""
    weight: int = 0
    """Bytes for which its body, with the saved state, counts while that is here."""
    saves: int = 0
    """Number of saves of all executions."""
    own_bytes: int = 0
    """Bytes that it takes of ``retained_bytes``, besides its outcome."""
    opened_s: float = 0.0
    timed: OrderedDict[int, Work] | None = None
    """The works with it whose time runs, orphans or retained, while nobody waits."""
    since_s: float = 0.0
    """When that began."""

    @property
    def id(self) -> RequestId:
        """The id under which workers know it."""
        return RequestId(self.account.id, self.number)

    @property
    def saved(self) -> Body | None:
        """The saved state, while it is held."""
        return self.body.pieces[1] if isinstance(self.body, BodyParts) else None

    def save(self, state: Body) -> None:
        """Hold a state, beside the input and in the place of the state before."""
        assert self.body is not None
        self.body = BodyParts((pieces_of(self.body)[0], state))

    @property
    def started(self) -> bool:
        """Whether an execution of it was ever dispatched, as far as anybody knows."""
        return self.executions > 0 or self.earlier > 0

    @property
    def size_bytes(self) -> int:
        """Bytes that count against the bound."""
        return self.own_bytes + (0 if self.outcome is None else self.outcome.size_bytes)

    def wait_in(self, timed: OrderedDict[int, Work], now_s: float) -> None:
        """Start a time that runs while nobody waits for it, unless that runs already."""
        if self.timed is not timed:
            self.wait_no_more()
            self.since_s, self.timed = now_s, timed
            timed[self.number] = self

    def wait_no_more(self) -> None:
        """Somebody waits for it, or nothing is left to wait for."""
        if self.timed is not None:
            del self.timed[self.number]
            self.timed = None


Asking: TypeAlias = "tuple[Ticket, Request, Body]"
"""A request about a key that was not seen before: its ticket, its header and its body."""

Outcomes: TypeAlias = Callable[[Any], RetainedOutcome]
"""The outcome that the router gives to a work, or a ticket."""


class Told(NamedTuple):
    """A ticket is told the outcome of its work."""

    ticket: Ticket
    outcome: RetainedOutcome


class ToldByRouter(NamedTuple):
    """A ticket is told what the router makes up: the answer to a command, or why there is no
    outcome."""

    ticket: Ticket
    outcome: Outcomes


class TellSaved(NamedTuple):
    """A worker is told that the last save of an execution is safe."""

    execution: Execution


class Confirm(NamedTuple):
    """The answer to the cancel of a request."""

    request: RequestId
    started: bool | None


Answer: TypeAlias = Told | ToldByRouter | Confirm | ToClient | TellSaved | Execution | ToHolder
"""What waits at the gate; an execution is to be sent to its worker."""


class Command(NamedTuple):
    """A cancel or a forget by name, with an id of its own."""

    input: WorkInput
    name: KeyName
    tag: Tag


class CommandAnswer(NamedTuple):
    """The answer to a cancel or a forget by name, the same to each copy of it."""

    generation: int | None = None
    """The generation that it has closed."""
    started: bool = True
    """False: it ended a generation that had never started, and now never will."""
    finished: bool = False
    """Whether it was to cancel a generation that has its outcome, which stays."""


PAGES = 64
"""Pages of keys that wait for the journal.  Who asked for others asks again."""
COMMANDS_PART = 2.0
"""Commands may leave so much for the disk, in parts of what requests may: they end work."""
ENDS_PART = 0.5
"""The ends of retentions may leave so much for the disk."""
FOLLOWERS = 16
"""Tickets of one key that are sent its deltas."""
LOST_CALLERS = 1024
"""Most lost callers that count for one work.  A further one does not: the others keep the work
going as long as it would."""
READS_AT_ONCE = 64
"""Outcomes that are read from the journal at one time."""

_W, _I = WorkState, WorkInput
_COMMANDS = {KeyAct.CANCEL: _I.CANCEL, KeyAct.FORGET: _I.FORGET, KeyAct.LEAVE: _I.QUIT}
_Cell: TypeAlias = Callable[["Works", Any, Any], Any]


@final
class Works:
    """All works and tickets of one epoch.  All its methods are synchronous."""

    def __init__(
        self, limits: ServerLimits, keys: KeyLimits, accounts: Accounts, journal: Journal,
        gate: Gate[Answer], closing: Closing, queue: Scheduler[Work], dispatches: Dispatches,
        clock: AwakeClock,
        new_id: Callable[[], bytes], never: Callable[[], Outcomes | None],
        warn: Callable[[str], None], message_bytes: int,
    ) -> None:  # fmt: skip
        """``never``: the outcome of a work that will never start, now that it is asked for; None
        if it may start.  ``message_bytes``: the largest body of a dispatch."""
        self._message_bytes = message_bytes
        self.limits = limits
        self.keys = keys
        self.accounts = accounts
        self.journal = journal
        self.queue = queue
        self.dispatches = dispatches
        self.clock = clock
        self.counters = CacheStats()
        self.failures: Counter[str] = Counter()
        """Number of works that have ended without a result, by the code of their ending."""
        self.sessions: Sessions[Ticket] = Sessions(limits, accounts, self.counters)
        self.budget = gate.budget
        self.gate = gate
        self._closing = closing
        self.out = dispatches.out
        """Effects, in order; the router takes them out."""
        self.environment = dispatches.environment
        self.earlier_lives = True
        """Whether something of an earlier epoch may still run, on hosts once the pool is open: then
        no work of keys begins, since it may be for one whose last generation was not known to
        end."""
        self.generations: dict[int, Work] = {}
        """The works with keys: open, or closed while an execution lives; by number."""
        self.open: dict[KeyName, Work] = {}
        self.ending: dict[KeyName, Work] = {}
        """Closed works with keys whose execution lives: one of a name at most."""
        self.orphans: OrderedDict[int, Work] = OrderedDict()
        """Works that go on for lost tickets only, the longest ago first."""
        self.retained: OrderedDict[int, Work] = OrderedDict()
        """Works with outcomes for which nobody waits, the longest ago first."""
        self.next_number = 0
        self.started_as: dict[Incarnation, dict[int, tuple[Work, int]]] = {}
        """The works that an earlier epoch has dispatched to each life of a worker, by the number
        there, and of which the journal has no outcome; with the number of the last save there."""
        self.archive: Archive | None = Archive(keys) if journal.reads else None
        """Works whose outcomes are in the journal only."""
        self._wanted: dict[int, None] = {}
        """Archived works whose outcomes are to be read, and for which there was no room yet."""
        self._reading: set[int] = set()
        self._restored: deque[Work] = deque()
        """Works of an earlier epoch that were not decided about yet, the oldest first."""
        self._leaving: deque[tuple[Ticket, WorkInput]] = deque()
        """Tickets that leave, or are lost, and for which there was no budget yet."""
        self._due: deque[tuple[Work, Callable[[Work], bool], Any]] = deque()
        """Works that end together, whether each is still to end, and with which outcome."""
        self._late = False
        """More was due by time at the last tick than the budget had."""
        self._stopping: list[Execution] = []
        """Executions that nobody needs any more."""
        self._pages = 0
        self.commands: OrderedDict[Command, tuple[CommandAnswer, float]] = OrderedDict()
        """The answer to each command with an id of its own, and its time; the oldest first."""
        self.commands_of: Counter[bytes] = Counter()
        self._new_id = new_id
        self._never_starts = never
        self._warn = warn

    def step(self, work: Work | None, input: WorkInput, arg: Any = None) -> Any:
        """Give an input to a work, or to a name without an open one."""
        return self.TABLE[input][_W.ABSENT if work is None else work.state](self, work, arg)

    # -- requests of clients ------------------------------------------------------------

    def request(
        self, session: Session[Ticket], ask: Request, body: Body, key: Keyed | None, asker: Route
    ) -> Ticket | None:
        """A transmission of a request, with its question about a key if it names one.  Returns
        the ticket if this one has entered it."""
        self.counters.requests += 1
        sequence = ask.sequence
        ticket = session.tickets.get(sequence)
        if ticket is not None:
            # The digest of a request with a key is that of the input only.
            same = ticket.digest == ask.digest and ticket.body_bytes == len(body)
            if not (same and ticket.key == key):
                self.counters.conflicts += 1
                self.refuse(session, sequence, Refusal.CONFLICT, asker)
            elif ticket.kept is None:
                self.counters.coalesced += 1
            else:
                self.counters.replayed += 1
                self.send(ticket)
            return None
        if session.has_finished(sequence):
            self.counters.spent += 1
            self.refuse(session, sequence, Refusal.SPENT, asker)
            return None
        body_weight = weight(body)
        is_window_full = len(session.tickets) >= self.limits.window
        if is_window_full or not self.accounts.may_wait(session.account, body_weight):
            self.counters.refused_for_now += 1
            full = Refusal.WINDOW if is_window_full else Refusal.FULL
            self.refuse(session, sequence, full, asker)
            return None
        ticket = Ticket(session, sequence, ask.digest, len(body), key)
        if key is not None:
            return self._ask_key(ticket, key, ask, body)
        if ask.earlier is not None and (why := self._why_not_again(ask)):
            self.refuse(session, sequence, why, asker)
            return None
        self._admit(ticket)
        work = Work(
            session.account, sequence, None, ask.digest, ask.rerun,
            min(grant(ask.allowance - (ask.earlier or 0)), self.limits.max_executions),
            body, len(body), ask.traceparent, ask.execution_s, ask.grace_s,
            tickets=(ticket,), weight=body_weight,
        )  # fmt: skip
        ticket.work = work
        self.enter(work)
        return ticket

    def _why_not_again(self, ask: Request) -> Refusal | None:
        """Why what a lost session may have started may not be started here; None if it may.  That
        needs consent and allowance (G2)."""
        assert ask.earlier is not None
        if ask.earlier >= ask.allowance:
            return Refusal.NONE_LEFT
        may_still_say = self._closing.begun or self._never_starts() is None
        if ask.rerun is None and not self.environment.is_known and may_still_say:
            return Refusal.EARLY
        return None if self.environment.consents(ask.rerun) else Refusal.NO_CONSENT

    def _admit(self, ticket: Ticket) -> None:
        """A request that was never seen is unfinished now."""
        session = ticket.session
        if not session.tickets:
            self.sessions.busy(session)
        session.tickets[ticket.sequence] = ticket
        self.counters.entered += 1
        if session.owner is not None:
            session.owner.unfinished += 1
        if ticket.key is not None:  # what runs for it, runs for another account
            self.accounts.wait(session.account, +1)

    def refuse(
        self, session: Session[Ticket], sequence: int, why: Refusal, asker: Route | None = None,
        *, text: str = "", namespace: bytes = b"",
    ) -> None:  # fmt: skip
        """Refuse a transmission, as if it had not come; its sender is told."""
        code, known, full = why.value
        delay_s = None if full is None else self.limits.retry_delay_s
        account = {Full.SESSION: SESSION_FULL, Full.NAMESPACE: namespace}.get(full)
        refused = messages.Refused(session.id, sequence, code, text or known, delay_s, account)
        self.out.append(ToClient(asker or session.route, refused))

    # -- requests with keys ------------------------------------------------------------

    def _ask_key(self, ticket: Ticket, asked: Keyed, ask: Request, body: Body) -> Ticket | None:
        """A request that names a key: a ticket of its work, or a command by name."""
        session, sequence = ticket.session, ticket.sequence
        work: Work | None = None
        try:
            self._check(asked, ask.digest)
            work, refusal = self._find(asked)
            if refusal is None:
                refusal = self._ask_work(ticket, asked, ask, body, work)
        except ProtocolError as error:  # what cannot be a key
            self.refuse(session, sequence, Refusal.REFUSED, text=str(error))
            return None
        if work is not None and work.state is _W.ARCHIVED:
            self._read_or_rest(work)
        if refusal is None:
            return ticket
        text = self._unsaved() if refusal is Refusal.UNSAVED else ""
        self.refuse(session, sequence, refusal, text=text, namespace=asked.name.namespace)
        return None

    def _ask_work(
        self, ticket: Ticket, asked: Keyed, ask: Request, body: Body, work: Work | None
    ) -> Refusal | None:
        """Why the ticket was not admitted; None if it was."""
        if self.journal.on and not self._may_be_saved(asked, work):
            return Refusal.UNSAVED
        refusal: Refusal | None
        asking = ticket, ask, body
        if asked.act is KeyAct.ASK:
            if work is None:
                refusal = self._may_open(asked, ask, body) or self.step(None, _I.ASK, asking)
                return refusal
            same = (work.digest, work.body_bytes, work.rerun) == (
                ask.digest, len(body), ask.rerun,
            )  # fmt: skip
            refusal = self.step(work, _I.ASK if same else _I.CLASH, asking)
            return refusal
        if asked.act is KeyAct.ATTACH:
            ticket.counts = False
            refusal = self.step(work, _I.ATTACH, asking)
            return refusal
        return self._command(ticket, asked, work, is_again=ask.earlier is not None)

    def _check(self, asked: Keyed, digest: bytes) -> None:
        """ProtocolError if this cannot be a key, or its digest; nothing has changed."""
        if len(digest) != DIGEST_BYTES:
            raise ProtocolError(f"the digest with a key has {DIGEST_BYTES} bytes")
        for what, part, most in (
            ("namespace", asked.name.namespace, self.keys.namespace_bytes),
            ("key", asked.name.key, self.keys.key_bytes),
        ):
            if not 0 < len(part) <= most:
                raise ProtocolError(f"a {what} has 1 to {most} bytes, this one {len(part)}")

    def _find(self, asked: Keyed) -> tuple[Work | None, Refusal | None]:
        """The open work of this name, taken from the archive if it is there; or why not."""
        work, archive = self.open.get(asked.name), self.archive
        if work is not None or archive is None or not archive.all.keys:
            return work, None
        name = asked.name
        if archive.find(name) is None:
            full = asked.act is KeyAct.ASK and not archive.may_open(name.namespace)
            return None, Refusal.ARCHIVE_FULL if full else None
        waits = asked.act in (KeyAct.ASK, KeyAct.ATTACH)
        if waits and not self.accounts.may_open(name.namespace, name.size_bytes):
            return None, Refusal.ARCHIVE_FULL
        fields = archive.take(name)
        assert fields is not None
        return self._wake(fields), None

    def _may_open(self, asked: Keyed, ask: Request, body: Body) -> Refusal | None:
        """Why a work of this name may not begin; None if it may."""
        if self.journal.failed:
            return Refusal.UNSAVED
        if not self.accounts.may_work(asked.name.namespace, weight(body)):
            return Refusal.KEY_QUEUE_FULL
        why = None if ask.earlier is None else self._why_not_again(ask)
        return Refusal.UNKNOWN_KEY if why in (Refusal.NO_CONSENT, Refusal.NONE_LEFT) else why

    def _may_be_saved(self, asked: Keyed, work: Work | None) -> bool:
        """Whether the disk is not too far behind for what this leaves in the journal, or lets
        wait for it.  While the last answers leave the disk is waited for no more."""
        if not self._closing.flushes and self.gate.may_hold():
            return True
        if asked.act not in (KeyAct.ASK, KeyAct.ATTACH):
            return not self._closing.flushes and self.gate.may_hold(COMMANDS_PART)
        if work is None or work.outcome is None:
            return asked.act is KeyAct.ATTACH
        return self.journal.is_safe(work.outcome.shared.after)

    def _unsaved(self) -> str:
        behind = "what came before is not on the disk yet"
        why = self.journal.failed or ("the server ends" if self._closing.flushes else behind)
        return f"for now: the journal cannot save it: {why}"

    # -- cells: tickets ---------------------------------------------------------------

    def _open(self, work: None, arg: Asking) -> Refusal | None:
        ticket, ask, body = arg
        asked = ticket.key
        assert asked is not None
        name, earlier = asked.name, ask.earlier or 0
        held = name in self.ending
        body_weight = weight(body)
        own_bytes = name.size_bytes + (body_weight if held else 0)
        if not self.accounts.may_open(name.namespace, own_bytes):
            return Refusal.KEYS_FULL
        account = self._account(name.namespace)
        number = self.next_number
        allowance = min(ask.allowance - earlier, self.limits.max_executions)
        opened = Work(
            account, number, name, ask.digest, ask.rerun, allowance,
            body, len(body), ask.traceparent, ask.execution_s, ask.grace_s, _W.HELD,
            earlier=earlier, weight=body_weight, own_bytes=own_bytes, opened_s=self.clock.awake_s,
        )  # fmt: skip
        self.journal.append(
            Opened, number, *name, ask.digest, ask.rerun, allowance, earlier, ticket.caller,
            body, execution_s=ask.execution_s, grace_s=ask.grace_s,
        )  # fmt: skip
        self.next_number = number + 1
        self.generations[number] = self.open[name] = opened
        self.accounts.retain(account, 1, own_bytes, 0)
        self._admit(ticket)
        self._seat(opened, ticket)
        if not held or self._closing.begun:
            self.step(opened, _I.RELEASE)
        return None

    def _join(self, work: Work, arg: Asking) -> Refusal | None:
        ticket = arg[0]
        if self._crowded(work):
            return Refusal.CROWDED
        if work.outcome is None and not self._counts(work, ticket.caller):
            self.journal.append(Joined, work.number, ticket.caller)
        self._admit(ticket)
        work.lost -= {ticket.caller}
        self._replace(work, ticket)
        self._seat(work, ticket)
        work.wait_no_more()
        return None

    def _replay(self, work: Work, arg: Asking) -> Refusal | None:
        refusal = self._join(work, arg)
        if refusal is None:
            assert work.outcome is not None
            self._tell(work, Told(arg[0], work.outcome))
        return refusal

    def _clash(self, work: Work, arg: Asking) -> Refusal:
        return Refusal.KEY_CONFLICT

    def _unknown(self, work: None, arg: Asking) -> Refusal:
        return Refusal.UNKNOWN_KEY

    def _watch(self, work: Work, arg: Asking) -> Refusal | None:
        if self._crowded(work):
            return Refusal.CROWDED
        self._admit(arg[0])
        self._seat(work, arg[0])
        return None

    def _show(self, work: Work, arg: Asking) -> None:
        assert work.outcome is not None
        self._admit(arg[0])
        self._tell(work, Told(arg[0], work.outcome))

    def _leave(self, work: Work, ticket: Ticket) -> None:
        self._unseat(work, ticket)
        if ticket.counts:
            self._who_waits(work)

    def _lose(self, work: Work, ticket: Ticket) -> None:
        if ticket.counts and work.account.orphan_s and len(work.lost) < LOST_CALLERS:
            work.lost |= {ticket.caller}
        self._leave(work, ticket)

    # -- cells: commands ----------------------------------------------------------------

    def _quit(self, work: Work, ticket: Ticket) -> None:
        """A caller counts no more for what it has asked in earlier sessions than that of this
        command."""
        work.lost -= {ticket.caller}
        self._replace(work, ticket)
        self._who_waits(work)

    def _close(self, work: Work, arg: object = None) -> None:
        """End a work: its tickets are told "cancelled", and the next ask opens another."""
        tickets, unanswered = self._unseat_all(work), work.outcome is None
        self._shut(work)
        if unanswered:
            cancelled = outcomes.key_cancelled(started=work.started)
            for ticket in tickets:
                self._tell(work, ToldByRouter(ticket, cancelled))

    def _disown(self, work: Work, arg: object = None) -> None:
        """End a work whose outcome was never read: its tickets are told that it may have run."""
        tickets = self._by_weight(work)
        self._close(work)
        for ticket in tickets:
            self._tell(work, ToldByRouter(ticket, outcomes.key_cancelled(started=True)))

    # -- cells: executions --------------------------------------------------------------

    def _release(self, work: Work, counted: bool = False) -> None:
        """Queue a work: nothing of its name lives any more that it had to wait for; or answer it,
        since the server closes.

        Where one session may start all that is left, the next could start nothing: so this
        epoch starts as many as :func:`~.requests.grant` says, which callers count.  Of what a
        journal has left all executions are counted, and all that is left may be started."""
        self._need_no_input(work)
        if not counted:
            work.allowance = grant(work.allowance)
        self.enter(work)

    def enter(self, work: Work) -> None:
        """Queue a work for a worker, unless none will ever take it."""
        self._wait(work)
        self._queue(work)
        outcome = self._never_starts()
        if outcome is not None:
            self.step(work, _I.ANSWER, outcome)

    def _wait(self, work: Work) -> None:
        work.state = _W.WAITING
        self.accounts.wait(work.account, +1)
        self.accounts.hold(work.account, work.weight)
        if work.account.namespace:
            self.accounts.at_work.add(work.account.namespace)

    def _queue(self, work: Work) -> None:
        work.queued_s = self.clock.awake_s
        self.queue.add(work)

    def _run(self, work: Work, execution: Execution) -> None:
        self.accounts.wait(work.account, -1)
        self.accounts.run(work.account, +1)
        self.counters.dispatched += 1
        self.counters.reruns += work.executions > 0
        work.state = _W.RUNNING
        work.execution = execution
        work.executions += 1
        work.live = True
        if not self.may_rerun(work):
            self._drop_body(work)

    def may_rerun(self, work: Work) -> bool:
        """Whether consent and allowance are left for a further execution (G2)."""
        return self.environment.consents(work.rerun) and work.executions < work.allowance

    def _complete(self, work: Work, brought: RetainedOutcome) -> None:
        self.counters.completed += 1
        self.accounts.run(work.account, -1)
        fitting = outcomes.fitting(brought, work, work.account.message_bytes)
        work.execution = None
        work.live = False
        self._conclude(work, fitting)

    def _retry(self, work: Work, outcome: Callable[[Work], RetainedOutcome]) -> None:
        self.accounts.run(work.account, -1)
        work.live = False
        # Without its body it was dispatched for the last time, whatever is declared since.
        if work.body is not None and self.may_rerun(work):
            work.state = _W.WAITING
            work.execution = None
            self.accounts.wait(work.account, +1)
            self._queue(work)
            if self._closing.begun:  # it waits again, but nothing will be started any more
                self.step(work, _I.ANSWER, outcomes.stopping)
            return
        self.counters.lost += 1
        lost = outcome(work)
        work.execution = None
        self._conclude(work, lost)

    def _expire(self, work: Work, outcome: Callable[[Work], RetainedOutcome]) -> None:
        self.counters.deadlines += 1
        given = outcome(work)
        self.queue.remove(work)
        self.accounts.wait(work.account, -1)
        self._conclude(work, given)

    def _abort(self, work: Work, outcome: Callable[[Work], RetainedOutcome]) -> None:
        self.counters.deadlines += 1
        given, execution = outcome(work), work.execution
        assert execution is not None
        self.accounts.run(work.account, -1)
        work.execution = None
        self._conclude(work, given)
        self._stopping.append(execution)

    def _free(self, work: Work, arg: object) -> None:
        """An execution that nobody wanted any more has ended."""
        work.live = False

    def _remove(self, work: Work, arg: object) -> None:
        if work.name is None:
            return
        self.accounts.retain(work.account, -1, -work.own_bytes, 0)
        self.accounts.leave(work.account)
        del self.ending[work.name], self.generations[work.number]
        following = self.open.get(work.name)
        if following is not None and following.state is _W.HELD:
            self.step(following, _I.RELEASE)

    # -- cells: time and disk -------------------------------------------------------------

    def _abandon(self, work: Work, arg: object) -> None:
        work.lost = frozenset()
        self._who_waits(work)

    def _reveal(self, work: Work, read: RetainedOutcome) -> None:
        outcome = work.outcome
        assert outcome is not None
        work.state = _W.COMPLETED
        outcome.outcome, outcome.payload = read.outcome, read.payload
        self._tell_all(work, outcome)

    def _puzzle(self, work: Work, why: str) -> None:
        """Tell the tickets of a work why its outcome cannot be read.  The outcome is not lost: the
        next ask reads again."""
        outcome = work.outcome
        assert outcome is not None
        self._let_go(outcome.shared)
        outcome.shared = Payload(work.account.namespace, 0, 1)
        self._warn(f"the outcome of generation {work.number} cannot be read: {why}")
        unreadable = outcomes.unreadable(why, work.executions)
        for ticket in self._unseat_all(work):
            self._tell(work, ToldByRouter(ticket, unreadable))
        self._who_waits(work)

    def _ignore(self, work: object, arg: object) -> None:
        return None

    def _never(self, work: object, arg: object) -> None:
        raise AssertionError("this input cannot reach a work in this state")

    # fmt: off
    TABLE: ClassVar[dict[WorkInput, dict[WorkState, _Cell]]] = {
        row[0]: dict(zip(WorkState, row[1:], strict=True))
        for row in (
            # input       absent    held      waiting   running    completed archived  closed
            (_I.ASK,      _open,    _join,    _join,    _join,     _replay,  _join,    _never),
            (_I.CLASH,    _never,   _clash,   _clash,   _clash,    _clash,   _clash,   _never),
            (_I.ATTACH,   _unknown, _watch,   _watch,   _watch,    _show,    _watch,   _never),
            (_I.LEAVE,    _never,   _leave,   _leave,   _leave,    _leave,   _leave,   _never),
            (_I.LOSE,     _never,   _lose,    _lose,    _lose,     _lose,    _lose,    _never),
            (_I.CANCEL,   _ignore,  _close,   _close,   _close,    _ignore,  _ignore,  _never),
            (_I.FORGET,   _ignore,  _close,   _close,   _close,    _close,   _disown,  _never),
            (_I.QUIT,     _never,   _quit,    _quit,    _quit,     _quit,    _quit,    _never),
            (_I.RELEASE,  _never,   _release, _never,   _never,    _never,   _never,   _never),
            (_I.DISPATCH, _never,   _never,   _run,     _never,    _never,   _never,   _never),
            (_I.REPORT,   _never,   _never,   _never,   _complete, _free,    _never,   _remove),
            (_I.DEAD,     _never,   _never,   _never,   _retry,    _free,    _never,   _remove),
            (_I.ANSWER,   _never,   _never,   _expire,  _abort,    _never,   _never,   _never),
            (_I.ORPHANED, _never,   _abandon, _abandon, _abandon,  _abandon, _abandon, _never),
            (_I.OUTDATED, _never,   _never,   _never,   _never,    _close,   _disown,  _never),
            (_I.READ,     _never,   _never,   _never,   _never,    _never,   _reveal,  _never),
            (_I.UNREAD,   _never,   _never,   _never,   _never,    _never,   _puzzle,  _never),
        )
    }
    """The cell of each input in each state."""
    # fmt: on

    # -- what cells share ------------------------------------------------------------

    def _is_durable(self, work: Work) -> bool:
        """Whether a work is in the journal: one with a key."""
        return self.journal.on and work.name is not None

    def _account(self, namespace: bytes) -> Account:
        known = self.accounts.namespaces.get(namespace)
        if known is not None:
            return known
        return self.accounts.open(namespace, self._new_id())

    def _by_weight(self, work: Work) -> Sequence[Ticket]:
        """Tickets of a work, those that count first."""
        tickets = work.tickets
        if len(tickets) < 2:
            return tickets
        return sorted(tickets, key=lambda ticket: not ticket.counts)

    def _crowded(self, work: Work) -> bool:
        """Whether nobody may wait besides (G8).  Callers that were lost are in nobody's way."""
        return len(work.tickets) >= self.keys.waiters

    def _counts(self, work: Work, caller: CallerToken) -> bool:
        """Whether a caller counts already, here or, if it was lost, until it is back."""
        return caller in work.lost or any(
            each.counts and each.caller == caller for each in work.tickets
        )

    def _seat(self, work: Work, ticket: Ticket) -> None:
        work.tickets += (ticket,)
        ticket.work = work

    def _unseat(self, work: Work, ticket: Ticket) -> None:
        at = work.tickets.index(ticket)
        work.tickets = work.tickets[:at] + work.tickets[at + 1 :]
        ticket.work = None

    def _unseat_all(self, work: Work) -> Sequence[Ticket]:
        """The tickets of a work, which wait for it no more; those that count come first."""
        tickets, work.tickets = self._by_weight(work), ()
        for ticket in tickets:
            ticket.work = None
        return tickets

    def _replace(self, work: Work, ticket: Ticket) -> None:
        """A caller is in this session now: its tickets of earlier ones are answered, and count no
        more.  Those of later ones do: what comes late of a process that was killed takes nothing
        from the next."""
        for old in work.tickets:
            is_earlier = old.session.number < ticket.session.number
            if old.counts and old.caller == ticket.caller and is_earlier:
                old.counts = False
                if work.state is _W.COMPLETED:
                    self._unseat(work, old)

    def _who_waits(self, work: Work) -> None:
        """Take a change of those that count.  Nobody is there: the orphan deadline runs.  Nobody
        counts: without an outcome that is the end, with one its retention begins."""
        if any(ticket.counts for ticket in work.tickets):
            work.wait_no_more()
        elif work.lost:
            work.wait_in(self.orphans, self.clock.awake_s)
        elif work.outcome is not None:
            work.wait_in(self.retained, self.clock.awake_s)
        else:
            self._close(work)

    def _conclude(self, work: Work, outcome: RetainedOutcome) -> None:
        """The outcome is final (G3), and the work waits and runs no more.  One that never ran is
        not retained: the next ask may start anew."""
        if work.earlier and not work.executions:
            outcome = outcomes.lost_before(0)  # "did not run" is true of this epoch only
        self._drop_body(work)
        work.state = _W.COMPLETED
        if outcome.outcome[2]:  # no result
            code = error_records.decode(outcome.payload).code
            self.failures[code if code in ENDINGS else OTHER_CODE] += 1
        if work.account.retention_s and work.started:
            self._retain(work, outcome)
            self._tell_all(work, outcome)
            return
        tickets = self._unseat_all(work)
        self._shut(work)
        for ticket in tickets:
            ticket.ran = work.executions > 0
            self._tell(work, Told(ticket, outcome))

    def _retain(self, work: Work, outcome: RetainedOutcome) -> None:
        self.journal.append(Completed, work.number, outcome.frames)
        account, size_bytes = work.account, outcome.size_bytes
        outcome.shared = Payload(account.namespace, size_bytes, 1, self.journal.appended)
        self.accounts.retain(account, 0, 0, size_bytes)
        work.outcome = outcome

    def _let_go(self, payload: Payload) -> None:
        """Note that a holder of an outcome holds it no more."""
        payload.holders -= 1
        if not payload.holders:
            account = self._account(payload.namespace)
            self.accounts.retain(account, 0, 0, -payload.size_bytes)
            self.accounts.leave(account)

    def _hold(self, payload: Payload) -> None:
        if not payload.holders:  # it may have been forgotten, and is to be answered all the same
            self.accounts.retain(self._account(payload.namespace), 0, 0, payload.size_bytes)
        payload.holders += 1

    def _need_no_input(self, work: Work) -> None:
        """A work with a key is charged for its body only while it is held."""
        name = work.name
        assert name is not None
        self.accounts.retain(work.account, 0, name.size_bytes - work.own_bytes, 0)
        work.own_bytes = name.size_bytes

    def _drop_body(self, work: Work) -> None:
        if work.body is not None:
            if work.state is not _W.HELD:
                self.accounts.hold(work.account, -work.weight)
            work.body = None

    def _shut(self, work: Work) -> None:
        """Remove a work from the open ones and the queue, and stop its execution; it is kept only
        while one lives."""
        account, before = work.account, work.state
        work.wait_no_more()
        if before is _W.WAITING:
            self.counters.cancelled += 1
            self.queue.remove(work)
            self.accounts.wait(account, -1)
        elif before is _W.RUNNING:
            assert work.execution is not None
            self.counters.cancelled += 1
            self.accounts.run(account, -1)
            self._stopping.append(work.execution)
            work.execution = None
        self._drop_body(work)
        work.state = _W.CLOSED
        if work.name is None:
            return
        self.journal.append(Closed, work.number)
        del self.open[work.name]
        if work.live:
            self._need_no_input(work)
            self.ending[work.name] = work
        else:
            self.accounts.retain(account, -1, -work.own_bytes, 0)
            del self.generations[work.number]
        if work.outcome is not None:
            payload, work.outcome = work.outcome.shared, None
            self._let_go(payload)
        self.accounts.leave(account)

    # -- answers ------------------------------------------------------------

    def _tell_all(self, work: Work, outcome: RetainedOutcome) -> None:
        """Everybody hears it.  Who counts goes on counting until it has left."""
        tickets = self._by_weight(work)
        for ticket in tickets:
            self._tell(work, Told(ticket, outcome))
            if not ticket.counts:
                ticket.work = None
        work.tickets = tuple(ticket for ticket in work.tickets if ticket.counts)

    def _tell(self, work: Work, answer: Told | ToldByRouter) -> None:
        """Give a ticket its answer: at once, if it is safe and this turn may."""
        if not work.account.namespace:
            self._give(answer, is_safe=True)
        else:
            self.tell(answer)

    def tell(self, answer: Told | ToldByRouter) -> None:
        """Answer a ticket of a key, once the records for that are safe."""
        gate = self.gate
        if self.journal.on and not gate.is_safe() and not self._was_safe(answer):
            gate.hold(answer.ticket.id, answer)
        elif gate.passes():
            self._give(answer, is_safe=True)
        else:
            gate.delay(answer)

    def _was_safe(self, answer: Answer) -> bool:
        """Whether it is an outcome that was safe before what is not."""
        if not isinstance(answer, Told) or answer.outcome.shared is None:
            return False
        return self.journal.is_safe(answer.outcome.shared.after)

    def confirm(self, confirm: Confirm, *, waits: bool) -> None:
        """Answer the cancel of a request."""
        if waits and not self.gate.is_safe():
            self.gate.hold(confirm.request, confirm)
        else:
            self._confirm(confirm, is_safe=True)

    def page(self, page: ToClient) -> None:
        """Answer which keys there are, once all that was recorded of them is safe."""
        if self.journal.failed or self.gate.is_safe():  # the status says that it is not safe
            self.out.append(page)
        elif self._pages < PAGES:
            self._pages += 1
            self.gate.hold(page.route, page)

    def _give_due(self) -> None:
        for answer, is_safe in self.gate.take_due():
            if isinstance(answer, ToClient):
                self._pages -= 1
                self.out.append(answer)
            elif isinstance(answer, Confirm):
                self._confirm(answer, is_safe)
            elif isinstance(answer, TellSaved):
                execution = answer.execution
                execution.save_refused = "" if is_safe else self._unsaved()
                self._answer_save(execution)
            elif isinstance(answer, ToHolder):
                self.dispatches.resources.tell(answer)
            elif isinstance(answer, Execution):
                # Otherwise its work is answered, or soon will be.
                if is_safe and not self._closing.cancels:
                    self.dispatches.send(answer)
            else:
                self._give(answer, is_safe)

    def _confirm(self, confirm: Confirm, is_safe: bool) -> None:
        session = self.sessions.known.get(confirm.request.session)
        if session is not None:
            started = confirm.started if is_safe else True
            self.out.append(ToClient(session.route, messages.Cancelled(*confirm.request, started)))

    def _give(self, answer: Told | ToldByRouter, is_safe: bool) -> None:
        ticket = answer.ticket
        session = ticket.session
        if ticket.kept is not None or session.tickets.get(ticket.sequence) is not ticket:
            return  # it is finished, or its deadline passed while nothing could be saved
        if not is_safe:  # what never will be safe: the work may have run
            kept = outcomes.not_durable(self.journal.failed)(ticket)
        elif isinstance(answer, ToldByRouter):
            kept = answer.outcome(ticket)
        elif ticket.key is None:
            kept = answer.outcome
        else:
            kept = outcomes.for_key(answer.outcome, ticket, session.account.message_bytes)
            if kept.shared is not None:
                self._hold(kept.shared)
        self.keep(ticket, kept)

    def keep(self, ticket: Ticket, kept: RetainedOutcome) -> None:
        """A ticket has its outcome: keep it until its client has it, and send it."""
        ticket.kept = kept
        account = ticket.session.account
        if ticket.key is not None:  # its place in the queue goes on, as that of what never ran
            self.accounts.wait(account, -1)
        self.accounts.keep(account, +1, kept.size_bytes, ran=ticket.ran)
        self.send(ticket)

    def send(self, ticket: Ticket) -> None:
        """Send the outcome of a ticket to the newest connection of its session."""
        session, kept = ticket.session, ticket.kept
        assert kept is not None
        ticket.sent_probe = session.probe
        self.out.append(ToClient(session.route, kept.outcome, kept.payload))

    # -- tickets end ------------------------------------------------------------

    def finish(self, session: Session[Ticket], spans: Ranges) -> None:
        """The client is done with these sequences.  Ignored whole if it would leave more gaps
        than a window can, as only a hostile client does."""
        if self.too_many_gaps(session, spans):
            return
        leaving = [session.tickets[each] for each in _members(session.tickets, spans)]
        session.finished.update(spans)
        self._drop(leaving, _I.LEAVE)

    def too_many_gaps(self, session: Session[Ticket], spans: Ranges) -> bool:
        """Whether finishing these would cost more memory than a window can (G8)."""
        most = self.limits.window + 1
        if session.finished.span_count() + spans.span_count() <= most:
            return False
        if spans.span_count() > most:
            return True
        merged = session.finished.copy()
        merged.update(spans)
        return merged.span_count() > most

    def end_session(self, session: Session[Ticket], *, lost: bool) -> None:
        """A session ends, by its lease (lost) or by a goodbye."""
        self.sessions.end(session)
        # Watchers first: else they would hear of what the last one that counts ends.
        leaving = sorted(session.tickets.values(), key=lambda ticket: ticket.counts)
        self._drop(leaving, _I.LOSE if lost else _I.LEAVE)
        self.sessions.forget(session)

    def _drop(self, tickets: Iterable[Ticket], input: WorkInput) -> None:
        """These tickets are finished.  Those of sessions leave at once, those of keys as many as
        the budget has."""
        for ticket in tickets:
            self._forget(ticket)
            if ticket.work is None:
                continue
            if ticket.key is None:
                self.step(ticket.work, input, ticket)
            else:
                self._leaving.append((ticket, input))
        self._leave_on()

    def _forget(self, ticket: Ticket) -> None:
        """Only the sequence of a ticket is remembered."""
        session, kept = ticket.session, ticket.kept
        self.counters.finished += 1
        del session.tickets[ticket.sequence]
        if session.owner is not None:
            session.owner.unfinished -= 1
        if not session.tickets:
            self.sessions.idle(session)
        if kept is not None:
            self.accounts.keep(session.account, -1, -kept.size_bytes, ran=ticket.ran)
            if kept.shared is not None:
                self._let_go(kept.shared)
        elif ticket.key is not None:
            self.accounts.wait(session.account, -1)

    def _leave_on(self) -> None:
        while self._leaving and self.budget.spend():
            ticket, input = self._leaving.popleft()
            if ticket.work is not None:  # else it has heard meanwhile that it is over
                self.step(ticket.work, input, ticket)

    def answer(self, work: Work, outcome: Outcomes) -> None:
        """The router ends a work."""
        self.step(work, _I.ANSWER, outcome)

    def expire(self, ticket: Ticket) -> bool:
        """The deadline of a ticket has passed.  That ends the work of a request without a key.
        Of a key it ends the wait: its caller goes on counting, as if its session was lost.
        False: ask again later, since its answer waits for the journal."""
        work = ticket.work
        if ticket.kept is not None:
            return True
        if ticket.key is None:
            assert work is not None
            self.step(work, _I.ANSWER, outcomes.deadline)
            return True
        if self.gate.is_decided(ticket.id) and not self.journal.failed:
            return False
        if work is not None:
            self.step(work, _I.LOSE, ticket)
        self.counters.deadlines += 1
        self.keep(ticket, outcomes.key_deadline(ticket))
        return True

    def cancel(self, session: Session[Ticket], sequence: int) -> None:
        """The client is done with a sequence, and asks whether an execution was ever dispatched:
        True also where that is not known any more, None if the sequence was never seen."""
        request, before = RequestId(session.id, sequence), self.journal.appended
        ticket, is_decided = session.tickets.get(sequence), self.gate.is_decided(request)
        if is_decided and ticket is None:
            return  # it comes again, and its answer waits for the journal
        started: bool | None = True
        if self.too_many_gaps(session, Ranges((sequence,))):
            pass
        elif ticket is None:
            started = session.has_finished(sequence) or None
            session.finished.add(sequence)
        else:
            session.finished.add(sequence)
            started = self._cancel(ticket)
            session.owes |= started
        self.confirm(Confirm(request, started), waits=is_decided or self.journal.appended > before)

    def _cancel(self, ticket: Ticket) -> bool:
        """A ticket leaves.  Whether an execution may have been started; of a key False only if
        this ended a work that never was, and never will be."""
        work = ticket.work
        if work is None:
            started = ticket.ran or ticket.key is not None
        else:
            self.step(work, _I.LEAVE, ticket)
            started = work.started or work.state is not _W.CLOSED
        self._forget(ticket)
        return started

    def sync(
        self, session: Session[Ticket], next_sequence: int, pending: Ranges, sent_before: float
    ) -> Ranges:
        """The client states what it holds.  Everything below ``next`` and not pending is
        finished; what is pending and answered, and was last sent before the answer to probe
        ``sent_before``, is replayed; what is pending and was never seen is returned.

        A statement of more than a window of pending requests is ignored.
        """
        missing = Ranges()
        if len(pending) > self.limits.window:
            return missing
        self.finish(session, pending.gaps(next_sequence))
        for sequence in pending:
            ticket = session.tickets.get(sequence)
            if ticket is None:
                if sequence < next_sequence and sequence not in session.finished:
                    missing.add(sequence)
            elif ticket.kept is not None and ticket.sent_probe < sent_before:
                self.counters.replayed += 1
                self.send(ticket)
        return missing

    # -- commands by name ------------------------------------------------------------

    def _command(
        self, ticket: Ticket, asked: Keyed, work: Work | None, *, is_again: bool
    ) -> Refusal | None:
        tag, name = asked.tag, asked.name
        if asked.act is KeyAct.LEAVE:  # a copy of it does no harm
            tag = None
        elif tag is None and is_again:
            return Refusal.REPEATED
        command = Command(_COMMANDS[asked.act], name, tag)
        is_of_another = isinstance(tag, int) and (work is None or work.number != tag)
        if is_of_another or (tag is None and work is None):
            answer = CommandAnswer()
        elif command in self.commands:
            answer = self.commands[command][0]
        elif isinstance(tag, bytes) and not self._remembers(name.namespace):
            return Refusal.COMMANDS_FULL
        else:
            answer = self._end_by(command, work, ticket)
        self._admit(ticket)
        record: dict[str, Any] = {"generation": answer.generation, "started": answer.started}
        if answer.finished:
            record["finished"] = True
        self.tell(ToldByRouter(ticket, outcomes.of_record(record)))
        return None

    def _end_by(self, command: Command, work: Work | None, ticket: Ticket) -> CommandAnswer:
        self.step(work, command.input, ticket)
        answer = CommandAnswer()
        if work is not None and work.state is _W.CLOSED:
            answer = CommandAnswer(work.number, work.started)
        elif work is not None:
            answer = CommandAnswer(finished=command.input is _I.CANCEL)
        if isinstance(command.tag, bytes):
            self._remember(command, answer, self.clock.awake_s)
            self.journal.append(
                Commanded, command.input is _I.FORGET, *command.name, command.tag,
                answer.generation, answer.started, answer.finished,
            )  # fmt: skip
        return answer

    def _remembers(self, namespace: bytes) -> bool:
        mine = self.commands_of[namespace]
        return self.accounts.of_commands(mine, len(self.commands) - mine)

    def _remember(self, command: Command, answer: CommandAnswer, now_s: float) -> None:
        self.commands_of[command.name.namespace] += command not in self.commands
        self.commands[command] = answer, now_s

    def _forget_commands(self, now_s: float) -> None:
        """Forget those of which nothing can be under way any more."""
        while self.commands:
            command, (_, at_s) = next(iter(self.commands.items()))
            if at_s > now_s - self.keys.command_s:
                return
            del self.commands[command]
            self.commands_of[command.name.namespace] -= 1
            if not self.commands_of[command.name.namespace]:
                del self.commands_of[command.name.namespace]

    # -- executions ------------------------------------------------------------

    def dispatched(self, work: Work, execution: Execution) -> bool:
        """An execution of it was numbered.  Whether its start is safe, so that it may be sent."""
        self.step(work, _I.DISPATCH, execution)
        is_durable = self._is_durable(work)
        if is_durable:
            incarnation = execution.worker.incarnation
            self.journal.append(Started, work.number, incarnation, execution.number)
        return not is_durable

    def go_on_as_before(self, work: Work, execution: Execution) -> None:
        """An execution of an earlier epoch lives on; that has counted and recorded it."""
        before = self.counters.dispatched, self.counters.reruns
        self.step(work, _I.DISPATCH, execution)
        self.counters.dispatched, self.counters.reruns = before

    def ended(
        self, execution: Execution, brought: RetainedOutcome | None, lost: Outcomes | None
    ) -> None:
        """An execution has ended: reported, with its outcome if that is wanted, or its worker is
        proven dead, for which ``lost`` is the outcome; None for one that nobody needed any more."""
        work: Work | None = execution.work
        if work is None:
            return  # of an earlier epoch, and unknown
        if brought is not None:
            self.step(work, _I.REPORT, brought)
        else:
            self.step(work, _I.DEAD, lost)
        session = self.sessions.known.get(work.account.id)
        if session is not None and session.ended:
            self.sessions.forget(session)

    def save(self, execution: Execution, save: int, body: Body) -> None:
        """An execution saves a state for further ones of its work.  Its worker is told once that
        is safe.  A save that comes again gets the same answer; one before that is answered is
        ignored, as only a worker that breaks the protocol sends it."""
        where = execution.worker.incarnation, execution.number
        if save < execution.saves or self.gate.is_decided(where):
            return
        if save > execution.saves:
            execution.saves = save
            appended = self.journal.appended
            execution.save_refused = self._save(execution, body)
            if self.journal.appended > appended:
                self.gate.hold(where, TellSaved(execution))
                return
        self._answer_save(execution)

    def _save(self, execution: Execution, body: Body) -> str:
        """Keep the state that an execution has saved, in the place of the one before; or why not.
        Where no further execution is possible, only a journal gets it."""
        work: Work | None = execution.work
        if work is None or work.execution is not execution:
            return "the request is answered, or nobody waits for it: nothing goes on from here"
        size_bytes = weight(body)
        most_bytes = min(self.limits.save_bytes, self._message_bytes - work.body_bytes)
        if size_bytes > most_bytes:
            return (
                f"it has {size_bytes} bytes, and {max(most_bytes, 0)} are allowed (save_bytes, and "
                "message_bytes for input and state together)"
            )
        is_durable = self._is_durable(work)
        if is_durable and (self.journal.lost or not self.gate.may_hold()):
            return self._unsaved()
        if work.body is not None:
            more_bytes = size_bytes - (0 if work.saved is None else weight(work.saved))
            if not self.accounts.may_save(work.account, more_bytes):
                return f"there is no room for {more_bytes} bytes more of this caller (queue_bytes)"
            self.accounts.hold(work.account, more_bytes)
            work.weight += more_bytes
            work.save(body)
        work.saves += 1
        if is_durable:
            self.journal.append(StateSaved, work.number, execution.saves, work.saves, body)
        return ""

    def _answer_save(self, execution: Execution) -> None:
        worker, number = execution.worker, execution.number
        if worker.live.get(number) is execution:
            answer = messages.SaveAnswer(number, execution.saves, execution.save_refused)
            self.dispatches.tell(worker, answer)

    def stop(self) -> None:
        """Stop the executions that nobody needs any more: one message to each worker.  Some are
        over at once: not sent yet, or nothing but their outcome was left."""
        while self._stopping:
            stopping, self._stopping = self._stopping, []
            for execution in self.dispatches.stop(stopping, self.clock.awake_s):
                self.ended(execution, None, None)

    # -- time and turns ------------------------------------------------------------

    def answer_all(self, choose: Callable[[Work], bool], outcome: Any) -> None:
        """Answer all of these works, as many now as the budget has."""
        of_sessions = (
            ticket.work
            for session in self.sessions.known.values()
            for ticket in session.tickets.values()
            if ticket.key is None and ticket.work is not None
        )
        for work in (*of_sessions, *self.generations.values()):
            if self._may_answer(work) and choose(work):
                self._due.append((work, choose, outcome))
        self._answer_due()

    def _answer_due(self) -> None:
        """Answer works that end together, but for those that were answered meanwhile.  Each may be
        the work of a key with many tickets: these come first."""
        while self._due and not self.gate.is_due and self.budget.spend():
            work, still, outcome = self._due.popleft()
            if self._may_answer(work) and still(work):
                if work.state is _W.HELD:
                    self.step(work, _I.RELEASE)  # which answers it
                else:
                    self.step(work, _I.ANSWER, outcome)

    def _may_answer(self, work: Work) -> bool:
        """Whether the router may end a work.  Work that is held for an earlier generation is ended
        by a server that closes: nothing will start it, however long that generation lives."""
        is_held = work.state is _W.HELD and self._closing.begun and work.name in self.ending
        return is_held or work.state in (_W.WAITING, _W.RUNNING)

    @property
    def has_due(self) -> bool:
        """Whether works of :meth:`answer_all` still wait for their answers."""
        return bool(self._due)

    def go_on(self) -> None:
        """Go on with what earlier turns have left."""
        self._give_due()
        self._go_on_restored()
        self._answer_due()

    def tick(self) -> None:
        """Do what is due by time, as much as the budget has."""
        if self.journal.lost:
            self.give_up()
        self._leave_on()
        self._end_due()
        now_s = self.clock.awake_s
        self._forget_commands(now_s)
        if self.archive is not None:
            self._end_archived(self.archive)
            self._archive_some(self.archive)
            self._read_on()
        self.stop()  # before lives are looked at: what nobody needs is not lost with its worker

    def _end_due(self) -> None:
        self._late = False
        for work, input in self._timed():
            if not self.budget.spend():
                self._late = True
                return
            self.step(work, input)

    def _timed(self) -> Iterator[tuple[Work, WorkInput]]:
        now_s = self.clock.awake_s
        for timed, most_s, input in (
            (self.orphans, self.keys.orphan_s, _I.ORPHANED),
            (self.retained, self.keys.retention_s, _I.OUTDATED),
        ):
            for work in list(islice(timed.values(), self.budget.left + 1)):
                if now_s - work.since_s < most_s:
                    break
                yield work, input

    @property
    def behind(self) -> bool:
        """Whether more is due than this turn could do."""
        return bool(
            self.gate.is_due or self._late or self._leaving or self._due or self.may_go_on
            or (self.archive is not None and self._is_archive_behind(self.archive))
        )  # fmt: skip

    @property
    def answers_due(self) -> bool:
        """Whether requests that end together still wait for their answers, or what a journal has
        left."""
        return bool(self._due or self.gate.is_due or self.may_go_on)

    def give_up(self) -> None:
        """The journal has failed for good: what has not been started never will be, here, and
        whether a later server starts it depends on what is on the disk.  It is told so, as much
        as the budget has; the next tick goes on."""
        outcome = outcomes.not_durable(self.journal.failed)
        for work in list(self.generations.values()):
            unsent = work.execution is None or work.execution.is_unsent
            if work.state in (_W.WAITING, _W.RUNNING) and unsent:
                if not self.budget.spend():
                    break
                self.step(work, _I.ANSWER, outcome)
        self._give_due()

    # -- who follows ------------------------------------------------------------

    def followers(self, work: Work) -> Iterator[Ticket]:
        """The tickets that are sent its deltas: some of those that count, since others have them
        with the outcome, and one turn must not serve a thousand (G10)."""
        counting = (ticket for ticket in work.tickets if ticket.counts)
        for ticket in islice(counting, FOLLOWERS):
            if ticket.session.tickets.get(ticket.sequence) is ticket:
                yield ticket

    # -- after a crash ------------------------------------------------------------

    def restore(self, records: Iterable[Record]) -> Iterable[LeftResource]:
        """Take over what a journal has left, before anything else comes.  All that are open count
        for those who had asked, until these are back or the orphan deadline has passed.  Returns
        the resources, which are not works."""
        remains: Remains = remains_of(records)
        self.next_number = remains.next_number
        now_s = self.clock.awake_s
        for left in remains.generations.values():
            work = self._restore(left, now_s)
            if left.frames is None:
                self._restored.append(work)
                incarnation, dispatch = left.last
                self.started_as.setdefault(incarnation, {})[dispatch] = work, left.last_save
            else:
                work.body = None
                outcome = RetainedOutcome.of_frames(left.frames)
                size_bytes = outcome.size_bytes
                outcome.shared = Payload(
                    work.account.namespace, size_bytes, 1, self.journal.appended
                )
                self._need_no_input(work)
                self.accounts.retain(work.account, 0, 0, size_bytes)
                work.outcome, work.state = outcome, _W.COMPLETED
            work.wait_in(self.orphans, now_s)
        for known in remains.commands[-self.keys.commands :]:
            input = _I.FORGET if known.forget else _I.CANCEL
            command = Command(input, KeyName(known.namespace, known.key), known.tag)
            answer = CommandAnswer(known.generation, known.started, finished=known.finished)
            self._remember(command, answer, now_s)
        return remains.resources.values()

    def _restore(self, left: Left, now_s: float) -> Work:
        number, namespace, key, digest, rerun, allowance, earlier, _, body, *_ = left.opened
        account, name = self._account(namespace), KeyName(namespace, key)
        saved = left.saved if left.frames is None else None
        body_weight = weight(body) + (0 if saved is None else weight(saved))
        work = Work(
            account, number, name, digest, rerun, allowance, body,
            len(body), None, left.opened.execution_s, left.opened.grace_s, _W.HELD,
            executions=left.executions, earlier=earlier,
            lost=frozenset(islice(left.callers, LOST_CALLERS)), weight=body_weight,
            own_bytes=name.size_bytes + body_weight, opened_s=now_s, saves=left.saves,
        )  # fmt: skip
        if saved is not None:
            work.save(saved)
        self.generations[number] = self.open[name] = work
        self.accounts.retain(account, 1, work.own_bytes, 0)
        return work

    @property
    def may_go_on(self) -> bool:
        """Whether something that a journal has left can be entered, or answered, now."""
        if not self._restored or self._closing.begun:
            return bool(self._restored)
        may_start = not self._restored[0].started or self.environment.is_known
        return may_start and not self.earlier_lives

    def _go_on_restored(self) -> None:
        """Enter what a journal has left.  What may have been started waits for a worker to say
        what its environment consents to."""
        while self.may_go_on and self.budget.spend():
            work = self._restored.popleft()
            if work.state is not _W.HELD:
                continue  # it was closed meanwhile, or taken back
            if not work.started or (not self._closing.begun and self.may_rerun(work)):
                self.step(work, _I.RELEASE, True)
            else:
                self._need_no_input(work)
                self.counters.lost += 1
                self._conclude(work, outcomes.lost_before(work.executions, work.saves))

    def take_back(self, work: Work) -> None:
        """The last start of an earlier epoch lives on: it waits to be dispatched, and is counted
        then, in the place of before."""
        self._need_no_input(work)
        self._wait(work)
        work.executions -= 1

    # -- the archive ------------------------------------------------------------

    def restore_archive(self, packed: Iterable[Packed]) -> None:
        """Restore the works that a journal has with their outcomes.  Their callers count until
        the orphan deadline: so long the retention has not begun."""
        assert self.archive is not None
        self.archive.restore(packed, self.clock.awake_s + self.keys.orphan_s)

    def _wake(self, fields: Archived) -> Work:
        """A work of the archive whose outcome is to be read.  It has one, so it was started
        somewhere."""
        name, executions = fields.name, fields.executions
        account = self._account(name.namespace)
        unread = Outcome(bytes(ID_BYTES), 0, Status.ERROR, "", None, 0)
        outcome = RetainedOutcome(unread, b"", fields.size_bytes, Payload(name.namespace, 0, 1))
        work = Work(
            account, fields.number, name, fields.digest, fields.rerun, 0,
            None, fields.body_bytes, None, None, None, _W.ARCHIVED, executions=executions,
            earlier=int(not executions), outcome=outcome, own_bytes=name.size_bytes,
            opened_s=fields.opened_s,
        )  # fmt: skip
        self.generations[work.number] = self.open[name] = work
        self.accounts.retain(account, 1, work.own_bytes, 0)
        work.wait_in(self.retained, fields.since_s)
        return work

    def _may_rest(self, work: Work) -> bool:
        outcome = work.outcome
        assert outcome is not None
        number = work.number
        return (
            not work.live and not work.tickets and self._fits(work)
            and number not in self._reading and number not in self._wanted
            and self.journal.is_safe(outcome.shared.after)
        )  # fmt: skip

    def _fits(self, work: Work) -> bool:
        """Whether the archive can have it; else it stays in memory for as long as any."""
        name = work.name
        assert name is not None
        return fits(name.namespace, work.digest, work.body_bytes, work.executions)

    def _rest(self, work: Work, archive: Archive) -> None:
        name, outcome = work.name, work.outcome
        assert name is not None
        assert outcome is not None
        rested = pack(
            work.number, work.since_s, work.opened_s,
            outcome.shared.size_bytes or outcome.size_bytes, work.body_bytes, work.executions,
            work.rerun, work.digest, *name,
        )  # fmt: skip
        assert rested is not None, "it fits"
        work.wait_no_more()
        del self.open[name], self.generations[work.number]
        self.accounts.retain(work.account, -1, -work.own_bytes, 0)
        self._let_go(outcome.shared)
        self.accounts.leave(work.account)
        archive.add(rested)

    def _archive_some(self, archive: Archive) -> None:
        for work in list(islice(self.retained.values(), self.budget.left)):
            if self._may_rest(work):
                self._rest(work, archive)

    def _end_archived(self, archive: Archive) -> None:
        """End the retention of some works of the archive."""
        if not self.gate.may_hold(ENDS_PART):
            return
        for fields in archive.due(self.clock.awake_s):
            archive.take(fields.name)
            self.step(self._wake(fields), _I.OUTDATED)

    def _is_archive_behind(self, archive: Archive) -> bool:
        retained, budget = self.retained, 1024
        return (archive.has_due(self.clock.awake_s) and self.gate.may_hold(ENDS_PART)) or (
            len(retained) > budget and self._may_rest(next(iter(retained.values())))
        )

    def _read_or_rest(self, work: Work) -> None:
        """A work of the archive was asked for: read its outcome if anybody waits."""
        if work.tickets:
            if work.number not in self._reading:
                self._wanted[work.number] = None
                self._read_on()
        elif work.timed is self.retained and self._may_rest(work):
            assert self.archive is not None
            self._rest(work, self.archive)

    def _read_on(self) -> None:
        """Read what is wanted, as much as there is room for."""
        for number in list(islice(self._wanted, 1024)):
            if len(self._reading) >= READS_AT_ONCE:
                return
            del self._wanted[number]
            work = self.generations.get(number)
            if work is None or work.state is not _W.ARCHIVED:
                continue  # it was closed meanwhile
            if not work.tickets:
                self._read_or_rest(work)
            elif self.accounts.may_retain(work.account):
                self._read(work)
            else:
                self._wanted[number] = None  # others come first

    def _read(self, work: Work) -> None:
        """Read the outcome of a work, which counts in memory from now on."""
        outcome = work.outcome
        assert outcome is not None
        outcome.shared = Payload(work.account.namespace, outcome.size_bytes, 1)
        self.accounts.retain(work.account, 0, 0, outcome.size_bytes)
        self._reading.add(work.number)
        self.out.append(Load(work.number))

    @property
    def reads_due(self) -> int:
        """Number of archived works whose outcomes are to be read, or are being read."""
        return len(self._wanted) + len(self._reading)

    def loaded(self, number: int, frames: Sequence[Body], why: str) -> None:
        """The outcome of an archived work was read, or cannot be."""
        self._reading.discard(number)
        work = self.generations.get(number)
        if work is not None and work.state is _W.ARCHIVED:
            read = None
            try:
                read = RetainedOutcome.of_frames(frames) if frames else None
            except ProtocolError as error:
                why = str(error)
            if read is not None:
                self.step(work, _I.READ, read)
            else:
                self.step(work, _I.UNREAD, why)
        self._read_on()


def _members(tickets: dict[int, Ticket], spans: Ranges) -> list[int]:
    """The keys of tickets inside the spans; cost by the smaller of the two."""
    if len(spans) < len(tickets):
        return [sequence for sequence in spans if sequence in tickets]
    return [sequence for sequence in tickets if sequence in spans]
