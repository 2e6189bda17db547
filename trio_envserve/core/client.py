"""The core of a client: its link to the server, its sessions and its calls.

Theory of operation
-------------------
:meth:`ClientCore.take` takes an input and returns effects, which the shell carries out in order.
Nothing else changes a client.  Times are of the monotonic clock.

A table decides what each input does to a call.  It knows nothing of links, and of sessions only the
ids of their calls.  The core knows the time, the link and the sessions: it finds the call of a
message or a timer, gives it its input, and carries out the actions that follow.

Nothing is retransmitted on suspicion.  With every ping, and at once on reconnecting, the client
states its unfinished requests (:class:`~.messages.Sync`).  The server replays those that are
completed and names those that it has never seen, and only these are transmitted again.  So one
mechanism repairs lost requests, replies, cancels and acknowledgements.

A session that the server does not know is *lost*.  A call is issued again, in a new session, only
if the server says that nothing of the lost one runs any more; a call for the work of a key is
issued again in any case, since it may join the work.  The server decides whether it may start.

A request that the server refuses as malformed is never sent again: the server speaks another wire,
or something on the way spoils messages, and neither changes by itself.

Lines
-----
A refusal for now names the account that is full: that of the session, a namespace of keys, or
none.  The calls of an account are tried again in a line of their own, and the lines take turns:
else many calls for which there is no room would hold up those of another account.  While a call
waits for room that any request needs, nothing new is sent.

Calls that wait for keys may be refused, or run, for very long.  They leave a part of the window
free: else a window full of them would keep back what makes room for them.

Table
-----
A call goes ``QUEUED -> SENT -> ANSWERED``, and is gone once its caller has the outcome, or once it
has failed.  If its limit passes after it was sent, it is ``EXPIRED`` until the server has said
whether it ever ran; a call for the work of a key is ``LEFT`` instead, since the work goes on.  A
call goes back to ``QUEUED`` only if it did not run under its id, or if its session is lost.  Then
it gets a new id, and its request has the number of executions that may have been started for it,
so that the server can decide whether it may start again.

A server may go on counting the caller of a call for the work of a key, also after the session is
lost (:mod:`.work`).  So when the last call that asks for the key is given up, the client leaves by
name: see :meth:`Calls.leave`.

Every input of a call goes through :meth:`Calls.step`, which looks up :data:`TABLE`.  A cell is one
short function: it changes the call and returns the actions that follow (:class:`CallAction`).  A
call that is gone has no column, because inputs do not change it.

Sessions
--------
The calls of a lost session stay in it until it is resolved: until
the server says that nothing of it runs any more, or that nothing of it ever ran, or until neither
has come for ``recovery_s``.

Pings
-----
A ping has a :class:`~.messages.Sync` for each session of the client; while no session is in use, it
has a hello, too.  The syncs of one ping have one number, the probe.  Until they are answered, the
syncs of the next ping have the same number, so that the server can tell lost requests from requests
under way.

The pings of a client that has nothing pending and nothing to acknowledge would be alike: the pauses
between them grow until the next call.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, assert_never

from . import error_records, messages
from .errors import ErrorInfo, ProtocolError
from .health import Link, ServerStatus
from .key_records import CallerToken, KeyAct, KeyName, Tag
from .limits import PROTOCOL_VERSION, ClientLimits, WireLimits
from .messages import SESSION_FULL
from .ranges import Ranges
from .requests import grant
from .router_effects import Report
from .terms import (
    DIGEST_BYTES,
    ID_BYTES,
    Body,
    Epoch,
    SentBody,
    SessionId,
    Status,
    Verdict,
    short,
    weight,
    whole,
)

# -- inputs ---------------------------------------------------------------------------------


class CallKey(NamedTuple):
    """A call's request about a key."""

    act: KeyAct
    name: KeyName
    digest: bytes = bytes(DIGEST_BYTES)
    """Digest of an ask: :func:`~.key_records.input_digest`."""
    tag: Tag = None
    """Target of a cancel or a forget."""


class Terms(NamedTuple):
    """The terms on which a call is made."""

    rerun: bool | None = None
    """Consent to a further execution after proof of death; None: as the environment declares."""
    max_executions: int | None = None
    """Most executions in all; None: the limit of that name."""
    limit_s: float | None = None
    """Longest wait of the caller, in seconds.  It travels with the request and holds on the server,
    too."""
    key: CallKey | None = None
    """Request about a key, if the call names one."""
    traceparent: str | None = None
    """Span of the caller."""
    execution_s: float | None = None
    """Longest time of each execution, in seconds; None: the server's limit."""
    grace_s: float | None = None
    """End of these limits in which the rollout is late, in seconds; None: there is none."""


class CallSubmitted(NamedTuple):
    """A caller submits a call."""

    call: int
    """Number of the call in effects and further inputs; no number is given twice."""
    body: SentBody
    now_s: float
    terms: Terms = Terms()


class OutcomeReceived(NamedTuple):
    """The caller has the outcome: the server may forget it."""

    call: int
    now_s: float


class CallsCancelled(NamedTuple):
    """The callers of these calls have given them up.  Some calls may be over."""

    calls: Collection[int]
    now_s: float


class ServerMessage(NamedTuple):
    """A message of the server has arrived: a header, and a body where its kind has one."""

    frames: Sequence[Body]
    now_s: float


class Connected(NamedTuple):
    """A connection was made."""

    now_s: float


class Disconnected(NamedTuple):
    """The connection was lost, or could not be made."""

    now_s: float
    trouble: str
    """The transport's error text."""


class ClientTick(NamedTuple):
    """Time has passed.  All other inputs of the turn come before it."""

    now_s: float
    late_s: float = 0.0
    """Lateness of the client's own loop, in seconds."""


class ClientClosed(NamedTuple):
    """Every call ends now, and no further one is submitted."""

    now_s: float


ClientInput: TypeAlias = (
    CallSubmitted | OutcomeReceived | CallsCancelled | ServerMessage | Connected | Disconnected
    | ClientTick | ClientClosed
)  # fmt: skip
"""All inputs of a client."""


# -- effects --------------------------------------------------------------------------------


class ToServer(NamedTuple):
    """Send a message to the server, with others in a batch if it may be."""

    message: messages.Message
    body: SentBody | None = None

    @property
    def frames(self) -> tuple[Body, ...]:
        """Frames of the message alone, each in one piece."""
        header = messages.encode(self.message)
        return (header,) if self.body is None else (header, whole(self.body))


class Answer(NamedTuple):
    """The outcome of a call.  The input :class:`~.client.OutcomeReceived` is due once the
    caller has it."""

    call: int
    status: Status
    body: Body
    worker: str
    duration_s: float | None
    executions: int
    error: ErrorInfo | None
    """The error in the body; None if it is a result."""


class PassDelta(NamedTuple):
    """Pass a delta of a call's outcome on to its caller.  Deltas are numbered from 0, anew for
    each execution, and any of them may be missing."""

    call: int
    delta: int
    body: Body


class PassNote(NamedTuple):
    """Pass the last note of a call's execution on to its caller; see :mod:`.notes`."""

    call: int
    note: bytes


class Fail(NamedTuple):
    """End a call without an outcome from the server."""

    call: int
    info: ErrorInfo


class QueryAnswered(NamedTuple):
    """Pass the server's answer to a :class:`~.messages.Query` on."""

    probe: int
    body: Body


class QueriesRefused(NamedTuple):
    """Fail all open queries: the server refuses a query as malformed."""

    text: str


class Reconnect(NamedTuple):
    """Replace the connection: nothing is answered on it."""


ClientEffect: TypeAlias = (
    ToServer
    | Answer
    | PassDelta
    | PassNote
    | Fail
    | QueryAnswered
    | QueriesRefused
    | Reconnect
    | Report
)
"""All effects of a client."""


# -- calls ----------------------------------------------------------------------------------

_OTHERS_PART = 8
"""The part of a window, one over this, that calls which wait for keys leave free."""


class Stage(enum.Enum):
    """The stage of a call."""

    QUEUED = "queued"
    SENT = "sent"
    EXPIRED = "expired"
    """Past its limit; the server was asked whether it ever ran."""
    LEFT = "left"
    """Past its limit, and the work of its key goes on: at the server it goes on counting."""
    ANSWERED = "answered"

    __hash__ = object.__hash__  # it is looked up with each step, and Enum's own is slow


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """A call: a caller's request in all its transmissions and sessions."""

    number: int
    body: SentBody
    terms: Terms
    most: int
    """Most executions in all, by its caller."""
    limit_s: float | None
    asked_s: float
    key: CallKey | None = None
    stage: Stage = Stage.QUEUED
    session: ClientSession | None = None
    """Session in which it has its id, once it was sent."""
    sequence: int = -1
    request: messages.Request | None = None
    """The request, which is the same in each transmission."""
    sent_probe: int = 0
    """Last probe that was sent before its latest transmission."""
    refusals_before: int = 0
    """Number of messages like its request that the server had refused as malformed before its
    latest transmission."""
    held_until_s: float = 0.0
    cancel_until_s: float = 0.0
    may_have_run: bool = False
    """Whether a session that had it was lost."""
    earlier: int = 0
    """Most executions that lost sessions may have started; all that are allowed, where it is not
    proven that these have ended."""
    asks_for: KeyName | None = None
    """Name of the key whose input it sends, so that its caller counts for the work."""
    held_as: str = ""
    """Code with which it was refused for now."""
    waits_for_key: bool = False
    """Whether its answer is that of the work of a key, which may take long to begin."""
    stays: bool = False
    """Whether its caller goes on counting for the work of its key, though its limit has passed."""
    alone: bool = False
    """Whether nobody waits for its outcome."""

    def left_s(self, now_s: float) -> float | None:
        """The rest of its limit in seconds, which begins when the server has the request."""
        if self.limit_s is None:
            return None
        return max(0.0, self.asked_s + self.limit_s - now_s)


@dataclasses.dataclass(slots=True, eq=False)
class ClientSession:
    """The client's side of one session."""

    id: SessionId
    epoch: Epoch
    window: int
    message_bytes: int
    next: int = 0
    calls: dict[int, Call] = dataclasses.field(default_factory=dict)
    """Unfinished calls by sequence, in increasing order."""
    most_waiting_for_keys: int = dataclasses.field(init=False)
    """Most of these that may wait for keys, so that a part of the window stays free."""
    most_with_leaves: int = dataclasses.field(init=False)
    """Most of these that may wait for keys or leave them.  Leaves have half of the free part
    besides: the work that a leave ends may run until it is sent."""
    waiting_for_keys: int = 0
    """Number of these that wait for keys, or leave them."""
    unflushed: list[int] = dataclasses.field(default_factory=list)
    """Finished sequences of which the server does not know yet."""
    lost_s: float | None = None
    """Moment at which the server said that it does not know the session; None: it knows it."""

    def __post_init__(self) -> None:
        others = max(1, self.window // _OTHERS_PART)
        self.most_waiting_for_keys = max(1, self.window - others)
        self.most_with_leaves = self.most_waiting_for_keys + others // 2

    def pending(self) -> list[int]:
        """Spans of all unfinished sequences."""
        edges: list[int] = []
        for sequence in self.calls:
            if edges and edges[-1] == sequence:
                edges[-1] = sequence + 1
            else:
                edges += (sequence, sequence + 1)
        return edges


_STATUSES = {int(status): status for status in Status}


def answer_of(call: Call, outcome: messages.Outcome, body: Body) -> Answer:
    """An outcome as it arrived, for the caller.  An unknown status is that of an error."""
    status = _STATUSES.get(outcome.status, Status.ERROR)
    error = None
    if status is not Status.RESULT:
        error = error_records.decode(body)
        if not error.executions:  # a worker does not know how many there were
            error = dataclasses.replace(error, executions=outcome.executions)
    return Answer(call.number, status, body, *outcome[3:], error)


def info(code: str, verdict: Verdict, text: str) -> ErrorInfo:
    """An error record of the client itself."""
    return ErrorInfo(code=code, verdict=verdict, message=text)


def refused(code: str, text: str) -> ErrorInfo:
    """Error of a request that the server refuses for good.  A forgotten one (``finished``) becomes
    ``server-lost``, since it may have run."""
    if code in ("unknown-key", "server-lost"):
        return info(code, Verdict.MAY_HAVE_RUN, text)
    if code == "finished":
        text = "the server has forgotten the request; it may have run"
        return info("server-lost", Verdict.MAY_HAVE_RUN, text)
    return info(code, Verdict.DID_NOT_RUN, text)


def too_large(size_bytes: int, most_bytes: int, session: ClientSession) -> ErrorInfo | None:
    """Error of a body over a bound; None if it fits.  ``most_bytes``: bound of this client."""
    if size_bytes > most_bytes:
        # Otherwise each sync would ask again for a body that the socket never sends.
        text = f"{size_bytes} bytes; this client's message_bytes is {most_bytes}"
    elif size_bytes > session.message_bytes:
        text = f"{size_bytes} bytes; the server takes {session.message_bytes}"
    else:
        return None
    return info("too-large", Verdict.DID_NOT_RUN, text)


def limit_passed(*, started: bool | None) -> ErrorInfo:
    """Error of a call whose limit has passed.  ``started``: None if the server did not say."""
    if started is False:
        text = "the limit passed before the request was dispatched; it is cancelled"
        return info("never-started", Verdict.DID_NOT_RUN, text)
    if started:
        text = "the limit passed after the request was dispatched; it is cancelled"
    else:
        text = "the limit passed and the server did not say whether the request ever ran"
    return info("no-answer", Verdict.MAY_HAVE_RUN, text)


def abandoned() -> ErrorInfo:
    """Error of a call that had not ended when the client was closed."""
    text = "the client was closed while the request was under way; it is cancelled"
    return info("abandoned", Verdict.MAY_HAVE_RUN, text)


def never_sent(connected_before: bool, why: str) -> ErrorInfo:
    """Error of an unsent call whose limit has passed, for want of a server."""
    if connected_before:
        text = f"the limit passed before the request was transmitted ({why})"
        return info("never-started", Verdict.DID_NOT_RUN, text)
    return info("server-unreachable", Verdict.DID_NOT_RUN, f"no server was found: {why}")


def not_reissued() -> ErrorInfo:
    """Error of a call whose limit has passed after its server was lost, before another took it."""
    text = "its server was lost, and no other took the request within the limit"
    return info("server-lost", Verdict.MAY_HAVE_RUN, text)


def after_loss(error: ErrorInfo, call: Call) -> ErrorInfo:
    """The error of a call that lost sessions had before.  If it did not run here, it may have run
    there (G9), and the executions that are counted here are not all."""
    if error.verdict is Verdict.RAN_AND_FAILED:
        return error
    text = f"{error.message}; {_lost_before(call)}"
    if error.verdict is Verdict.MAY_HAVE_RUN:
        return dataclasses.replace(error, message=text)
    return dataclasses.replace(
        error, code="server-lost", verdict=Verdict.MAY_HAVE_RUN, message=text
    )


def _lost_before(call: Call) -> str:
    """The sentence about lost sessions.  A call that attaches, cancels or forgets has sent nothing
    that can run."""
    if call.key is not None and call.key.act is KeyAct.ASK:
        # The allowance is the key's, and this call does not know what was used of it.
        return "servers that were lost may have run the work of its key before"
    if call.key is not None and call.key.act is KeyAct.ATTACH:
        return "servers that were lost may have run the work of its key before, for others"
    if call.key is not None:
        return "servers that were lost may have carried it out before"
    return (
        "servers that were lost may have run it before: at most "
        f"{call.earlier} of the {call.most} executions allowed (max_executions)"
    )


def server_lost() -> ErrorInfo:
    """The error of a call whose session is lost, where nobody says what still runs."""
    text = (
        "the server that had the request is gone, and it is not proven that nothing of the "
        "request still runs"
    )
    return info("server-lost", Verdict.MAY_HAVE_RUN, text)


def of_key(call: Call, error: ErrorInfo) -> ErrorInfo:
    """The error of a call whose limit has passed.  The server's word is about the work of the key,
    which may go on for others."""
    if not call.waits_for_key or error.verdict is Verdict.DID_NOT_RUN:
        return error
    why = f"the server refused it for now ({call.held_as})" if call.held_as else "it waited"
    text = f"the limit passed while {why}; the work of its key may go on: ask for it again"
    return dataclasses.replace(error, message=text)


# -- calls that wait at the client -------------------------------------------------------

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
        """Add a call at the end, or in front if it leaves a key."""
        self[call.number] = call
        if call.alone:
            self.move_to_end(call.number, last=False)
        if not call.waits_for_key:
            self._others[call.number] = call

    def take(self, call: Call) -> None:
        """Remove a call."""
        del self[call.number]
        self._others.pop(call.number, None)

    def first(self, session: ClientSession) -> Call | None:
        """The call to be sent next in this session; None if there is no room for one."""
        first = next(iter(self.values()), None)
        leaves = first is not None and first.alone
        most = session.most_with_leaves if leaves else session.most_waiting_for_keys
        if session.waiting_for_keys < most:
            return first
        return next(iter(self._others.values()), None)


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


# -- the table of a call -----------------------------------------------------------------


class CallInput(enum.Enum):
    """An input of a call."""

    SEND = "a session has room for it"
    MISSING = "the server has never seen it"
    HOLD = "refused for now"
    DUE = "tried again after a refusal for now"
    REFUSED = "refused for good"
    STOPPING = "it did not run, and the server stops"
    OUTCOME = "outcome"
    RECEIVED = "the caller has the outcome"
    CANCEL = "cancelled by its caller"
    LIMIT = "its limit has passed"
    TIME = "time, and its limit has not passed"
    CANCELLED = "cancelled, says the server"
    PROVEN = "its session is lost, and nothing of it runs any more"
    UNPROVEN = "its session is lost, and nobody says what still runs"
    SETTLED = "its session is lost, and it never ran there"
    CLOSED = "the client was closed"

    __hash__ = object.__hash__  # they are looked up with each step, and Enum's own is slow


class CallAction(enum.Enum):
    """An action that follows from a step."""

    TRANSMIT = "send the request"
    ASK = "cancel at the server, and ask whether it ever ran"
    ANSWER = "give the outcome to the caller"
    FAIL = "give the error to the caller"
    STOPPING = "take the server for one that stops"
    TELL = "tell the server at once what is finished"
    TELL_SOON = "tell it with others, within finish_flush_s"
    TELL_NEXT = "tell it with the next tick or request"


MOST_SECONDS = 1e12
"""Longest limit: a longer one counts as none, since the wire has no infinity."""


_ASK, _WAITS = KeyAct.ASK, (KeyAct.ASK, KeyAct.ATTACH)

Effects: TypeAlias = Sequence[tuple[CallAction, Any]]
Cell: TypeAlias = Callable[["Calls", Call, float, Any], Effects]
Unsent: TypeAlias = Callable[[float], ErrorInfo]
"""The error of a call that has never run, and whose limit passes before it is sent."""


class Calls:
    """The calls of a client.  All its methods are synchronous."""

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self.live: dict[int, Call] = {}
        """Calls that are not gone, by number."""
        self.queue = CallQueue()
        self.timed: dict[int, Call] = {}
        """Calls that may end by the clock while the server is well: with a limit of their own, or
        expired."""
        self.held = HeldCalls()
        self.retransmitted = 0
        self.reissued = 0
        self.asking: Counter[KeyName] = Counter()
        """Number of calls that ask for each key."""
        self.given_up: set[KeyName] = set()
        """Those of these keys for which a call was given up that a server may still count."""

    def new(self, asked: CallSubmitted) -> Call:
        """A new call, at the end of the queue."""
        number, body, now_s, terms = asked
        assert number not in self.live, "this number was given before"
        _, most, limit_s, key, *_ = terms
        if most is None:
            most = self.limits.max_executions
        if limit_s is not None:
            limit_s = float(limit_s) if limit_s < MOST_SECONDS else None
        call = Call(number, body, terms, most, limit_s, now_s, key)
        if key is not None:
            if key.act is _ASK:
                call.asks_for = key.name
                self.asking[key.name] += 1
            call.waits_for_key = key.act in _WAITS
        self.live[number] = call
        self.queue.put(call)
        if limit_s is not None:
            self.timed[number] = call
        return call

    def step(self, call: Call | None, input: CallInput, now_s: float, arg: Any = None) -> Effects:
        """Give one input to one call; returns the actions that follow.

        ``call``: None if it is gone.  ``arg``: the session for SEND, the probe that was
        answered for MISSING, for HOLD until when, the account that is full, and the code, a
        :class:`Answer` for OUTCOME, the error for REFUSED, an :data:`Unsent` for LIMIT, whether
        it was started for CANCELLED, None if it was never seen.
        """
        return () if call is None else TABLE[input][call.stage](self, call, now_s, arg)

    def ask_no_more(self, call: Call) -> None:
        """Note the end of a call that asks for a key.  If it was the last one, and one was given
        up, the client leaves."""
        name, stage = call.asks_for, call.stage
        assert name is not None
        if call.stays:
            self.given_up.discard(name)
        elif stage is not Stage.ANSWERED and (call.may_have_run or stage is not Stage.QUEUED):
            self.given_up.add(name)
        self.asking[name] -= 1
        if not self.asking[name]:
            del self.asking[name]
            if name in self.given_up:
                self.given_up.remove(name)
                self.leave(name, call)

    def leave(self, name: KeyName, last: Call) -> None:
        """Leave the work of a key by name, in the place of the last call that asked for it.  That
        is a call like any other, so it is repeated until a server has answered it, which it does
        once it is safe; but nobody waits for it.  No caller gives its number, which is negative."""
        key = CallKey(KeyAct.LEAVE, name)
        call = Call(
            ~last.number, b"", Terms(key=key), last.most, None, last.asked_s, key, alone=True,
            waits_for_key=True,  # until the end of its work is safe, which may take long
        )  # fmt: skip
        self.live[call.number] = call
        self.queue.put(call)

    def was_late(self, late_s: float) -> None:
        """Note that the loop was late: answers to cancels get that time back."""
        for call in self.live.values():
            call.cancel_until_s += late_s


# -- cells: each changes one call and returns the actions that follow ---------


def _ignore(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    return ()


def _never(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    raise AssertionError("this input cannot reach a call in this stage")


def _send(calls: Calls, call: Call, now_s: float, session: ClientSession) -> Effects:
    if call.key is not None and call.key.act is KeyAct.LEAVE and call.key.name in calls.asking:
        calls.given_up.add(call.key.name)  # it is asked for again
        return _end(calls, call, CallAction.TELL)
    calls.queue.take(call)
    call.stage = Stage.SENT
    call.session, call.sequence = session, session.next
    session.next += 1
    session.calls[call.sequence] = call
    session.waiting_for_keys += call.waits_for_key
    terms = call.terms
    # No number is given twice: another request under this id has another digest.
    digest = call.number.to_bytes(ID_BYTES, "big") if call.key is None else call.key.digest
    request = messages.Request(
        session.id, call.sequence, digest, terms.rerun, call.most, call.left_s(now_s),
        terms.execution_s, terms.traceparent,
        earlier=call.earlier if call.may_have_run else None, grace_s=terms.grace_s,
    )  # fmt: skip
    if call.key is not None:
        act, (namespace, key), _, tag = call.key
        request = request._replace(namespace=namespace, key=key, act=int(act) or None, tag=tag)
    call.request = request
    return ((CallAction.TRANSMIT, call),)


def _retransmit(calls: Calls, call: Call, now_s: float, probe: int) -> Effects:
    if call.sent_probe >= probe or call.number in calls.held:
        return ()  # it may be under way, or waits for its next try
    calls.retransmitted += 1
    return ((CallAction.TRANSMIT, call),)


def _hold(calls: Calls, call: Call, now_s: float, arg: tuple[float, FullAccount, str]) -> Effects:
    until_s, full, call.held_as = arg
    calls.held.put(call, full, until_s)
    return ()


def _retry(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    calls.held.drop(call)
    call.held_as = ""
    return ((CallAction.TRANSMIT, call),)


def _answer(calls: Calls, call: Call, now_s: float, answer: Answer) -> Effects:
    error = answer.error
    call.stage = Stage.ANSWERED
    if call.asks_for is not None:
        calls.given_up.discard(call.asks_for)  # this session has taken the place of others
    if call.may_have_run and error is not None:
        if error.verdict is Verdict.DID_NOT_RUN:
            return _fail(calls, call, now_s, error)  # with the truth about the lost session
        answer = answer._replace(error=after_loss(error, call))
    if call.alone:
        return _end(calls, call, CallAction.TELL_SOON)
    if calls.held:
        calls.held.drop(call)
    return ((CallAction.ANSWER, answer),)


def _defer(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    """Issue it to the next server: it did not run, and that is final for this id."""
    return ((CallAction.STOPPING, None), *_requeue(calls, call))


def _refuse(calls: Calls, call: Call, now_s: float, error: ErrorInfo) -> Effects:
    call.stage = Stage.ANSWERED
    return _fail(calls, call, now_s, error)


def _receive(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    return _end(calls, call, CallAction.TELL_SOON)


def _cancel(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    if call.alone:
        return ()
    call.stays = False
    return _end(calls, call, CallAction.TELL)


def _give_up(calls: Calls, call: Call, now_s: float, unsent: Unsent) -> Effects:
    call.stays = _may_stay(call)
    return _fail(calls, call, now_s, not_reissued() if call.may_have_run else unsent(now_s))


def _expire(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    """Wait for the server's word: it has the limit, too, and tells whether it has stopped the
    request.  A cancel that came first would turn "it ran and failed" into "it may have run", so
    the question whether the request ever ran is asked a moment later; at once, if the server did
    not take the request or it has no limit.  A call for the work of a key is not cancelled if it
    has a limit: the server knows that, too, and answers."""
    is_held = call.number in calls.held
    call.stays = _may_stay(call)
    call.stage = Stage.LEFT if call.stays else Stage.EXPIRED
    calls.timed[call.number] = call
    calls.held.drop(call)
    limits = calls.limits
    call.cancel_until_s = now_s + limits.cancel_answer_s
    call.held_until_s = now_s
    if call.limit_s is not None and not is_held:
        call.held_until_s += min(limits.limit_word_s, limits.cancel_answer_s / 2)
    return calls.step(call, CallInput.TIME, now_s)


def _may_stay(call: Call) -> bool:
    """Whether its work goes on when its limit has passed."""
    return call.asks_for is not None and call.limit_s is not None


def _wait(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    if now_s >= call.cancel_until_s:
        return _fail(calls, call, now_s, limit_passed(started=None))
    return _ask(calls, call, now_s) if now_s >= call.held_until_s else ()


def _let_go(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    """Fail it for its caller.  At the server it stays until that has answered, since leaving would
    cancel the work."""
    if call.alone or now_s < call.held_until_s:
        return ()
    call.alone = True
    del calls.timed[call.number]
    return ((CallAction.FAIL, (call, _out_of_time(call))),)


def _out_of_time(call: Call) -> ErrorInfo:
    error = of_key(call, limit_passed(started=None))
    return after_loss(error, call) if call.may_have_run else error


def _lose_left(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    """The server does not count its caller, any more or at all."""
    error = _out_of_time(call)
    ended = _end(calls, call, CallAction.TELL_NEXT)
    return ended if call.alone else (*ended, (CallAction.FAIL, (call, error)))


def _lose_unseen(calls: Calls, call: Call, now_s: float, probe: int) -> Effects:
    return () if call.sent_probe >= probe else _lose_left(calls, call, now_s, probe)


def _cancelled(calls: Calls, call: Call, now_s: float, started: bool | None) -> Effects:
    if started is None:  # it never came; of a key, others may have started the work
        started = call.key is not None
    error = limit_passed(started=started or call.may_have_run)
    return _fail(calls, call, now_s, of_key(call, error))


def _lose(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    call.earlier, call.may_have_run = call.most, True
    if call.key is not None:  # it may join what runs
        return _reissue(calls, call, now_s, arg)
    return _fail(calls, call, now_s, server_lost())


def _lose_proven(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    """Issue it again: the next server decides whether it may run."""
    left = call.most - call.earlier
    if left > 0:
        call.earlier += 1 if call.terms.rerun is False else grant(left)
    call.may_have_run = True
    return _reissue(calls, call, now_s, arg)


def _lose_expired(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    call.earlier, call.may_have_run = call.most, True
    return _fail(calls, call, now_s, limit_passed(started=None))


def _settle_expired(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    return _fail(calls, call, now_s, limit_passed(started=call.may_have_run))


def _reissue(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    calls.reissued += 1
    return _requeue(calls, call)


def _close_queued(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    if call.may_have_run:
        return _abandon(calls, call, now_s, arg)
    error = info("closed", Verdict.DID_NOT_RUN, "the client was closed")
    return _fail(calls, call, now_s, error)


def _abandon(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    return _fail(calls, call, now_s, abandoned())


def _fail(calls: Calls, call: Call, now_s: float, error: ErrorInfo) -> Effects:
    if call.may_have_run:
        error = after_loss(error, call)
    is_alone = call.alone
    ended = _end(calls, call, CallAction.TELL_NEXT)
    return ended if is_alone else (*ended, (CallAction.FAIL, (call, error)))


def _ask(calls: Calls, call: Call, now_s: float) -> Effects:
    """Ask, again with each ping, since question and answer may be lost.  Only the first answer is
    sure: later ones say that it may have run."""
    call.held_until_s = now_s + calls.limits.ping_s
    return ((CallAction.ASK, call),)


def _requeue(calls: Calls, call: Call) -> Effects:
    """Queue a call again, for a new id."""
    _leave_session(calls, call)
    if call.limit_s is None:
        calls.timed.pop(call.number, None)  # it may have expired
    call.stage = Stage.QUEUED
    call.held_until_s, call.held_as = 0.0, ""
    calls.queue.put(call)
    return ((CallAction.TELL_NEXT, None),)


def _end(calls: Calls, call: Call, tell: CallAction) -> Effects:
    """Remove a call; the server is told unless the call never had an id."""
    del calls.live[call.number]
    calls.timed.pop(call.number, None)
    is_queued = call.stage is Stage.QUEUED
    if is_queued:
        calls.queue.take(call)
    else:
        _leave_session(calls, call)
    if call.asks_for is not None:
        calls.ask_no_more(call)
    return () if is_queued else ((tell, None),)


def _leave_session(calls: Calls, call: Call) -> None:
    """Finish its sequence."""
    session, call.session = call.session, None
    assert session is not None
    del session.calls[call.sequence]
    session.waiting_for_keys -= call.waits_for_key
    if calls.held:
        calls.held.drop(call)
    session.unflushed.append(call.sequence)


_COLUMNS = (Stage.QUEUED, Stage.SENT, Stage.EXPIRED, Stage.LEFT, Stage.ANSWERED)

# fmt: off
TABLE: dict[CallInput, dict[Stage, Cell]] = {
    row[0]: dict(zip(_COLUMNS, row[1:], strict=True))
    for row in (
        # input               queued         sent           expired          left          answered
        (CallInput.SEND,      _send,         _never,        _never,          _never,      _never),
        (CallInput.MISSING,   _never,        _retransmit,   _ignore,         _lose_unseen, _ignore),
        (CallInput.HOLD,      _never,        _hold,         _ignore,         _ignore,     _ignore),
        (CallInput.DUE,       _never,        _retry,        _never,          _never,      _never),
        (CallInput.REFUSED,   _fail,         _refuse,       _refuse,         _refuse,     _ignore),
        (CallInput.STOPPING,  _never,        _defer,        _defer,          _lose_left,  _ignore),
        (CallInput.OUTCOME,   _never,        _answer,       _answer,         _answer,     _ignore),
        (CallInput.RECEIVED,  _never,        _never,        _never,          _never,      _receive),
        (CallInput.CANCEL,    _cancel,       _cancel,       _cancel,         _cancel,     _cancel),
        (CallInput.LIMIT,     _give_up,      _expire,       _wait,           _let_go,     _ignore),
        (CallInput.TIME,      _ignore,       _ignore,       _wait,           _let_go,     _ignore),
        (CallInput.CANCELLED, _never,        _ignore,       _cancelled,      _ignore,     _ignore),
        (CallInput.PROVEN,    _never,        _lose_proven,  _lose_expired,   _lose_left,  _ignore),
        (CallInput.UNPROVEN,  _never,        _lose,         _lose_expired,   _lose_left,  _ignore),
        (CallInput.SETTLED,   _never,        _reissue,      _settle_expired, _lose_left,  _ignore),
        (CallInput.CLOSED,    _close_queued, _abandon,      _abandon,        _abandon,    _ignore),
    )
}
"""The step of each input in each stage of a call.  A call that is gone has no column."""
# fmt: on


# -- the sessions of a client ------------------------------------------------------------


class ClientSessions:
    """All sessions in which a client has calls, or may have some."""

    def __init__(self) -> None:
        self.current: ClientSession | None = None
        self.lost: list[ClientSession] = []
        self.opened = 0

    def __iter__(self) -> Iterator[ClientSession]:
        """Lost sessions first, then the one in use."""
        yield from self.lost
        if self.current is not None:
            yield self.current

    def find(self, session_id: SessionId) -> ClientSession | None:
        """The session with this id."""
        if self.current is not None and self.current.id == session_id:
            return self.current
        return next((s for s in self.lost if s.id == session_id), None)

    def call(self, session_id: SessionId, sequence: int) -> Call | None:
        """The call with this id; None if it is gone."""
        session = self.find(session_id)
        return None if session is None else session.calls.get(sequence)

    def open(self, welcome: messages.Welcome) -> None:
        """Use the session that a server has granted."""
        self.opened += 1
        self.current = ClientSession(
            welcome.session, welcome.epoch, welcome.window, welcome.message_bytes
        )

    def lose(self, session: ClientSession, now_s: float) -> None:
        """Note that the server does not know the session in use."""
        self.current = None
        session.lost_s = now_s
        self.lost.append(session)

    def given_up(self, now_s: float, recovery_s: float) -> list[ClientSession]:
        """Lost sessions that are empty, or whose resolution has not come for ``recovery_s``."""
        return [s for s in self.lost if not s.calls or now_s - _lost_s(s) >= recovery_s]

    def was_late(self, late_s: float) -> None:
        """Note that the loop was late: the waits for resolutions get that time back."""
        for session in self.lost:
            session.lost_s = _lost_s(session) + late_s

    def syncs(self, connection: int, probe: int) -> Iterator[messages.Sync]:
        """The syncs of all sessions, which tell finished requests, too."""
        for session in self:
            yield messages.Sync(
                session.id, session.epoch, connection, probe, session.next, session.pending()
            )
            session.unflushed.clear()

    def finishes(self) -> Iterator[messages.Finish]:
        """Messages about finished requests that the server does not know of."""
        for session in self:
            if session.unflushed:
                yield messages.Finish(session.id, Ranges(session.unflushed).flat())
                session.unflushed.clear()


def _lost_s(session: ClientSession) -> float:
    assert session.lost_s is not None
    return session.lost_s


# -- the pings of a client ---------------------------------------------------------------


class Pings:
    """The pings of one client."""

    def __init__(
        self, name: str, caller: CallerToken, new_id: Callable[[], bytes], now_s: float,
        sessions: ClientSessions, limits: ClientLimits, wire: WireLimits,
    ) -> None:  # fmt: skip
        self.name = name
        self._caller = caller
        self.connections = 0
        """Number of connections so far, which numbers them for the server."""
        self.probe = 0
        """Number of the last syncs."""
        self.known = True
        """Whether the server behind this connection is known to know the session.  Until then no
        new request is sent in it: of a lost one nobody could tell that it never ran."""
        self.at_s = now_s
        """Moment of the next ping."""
        self.pause_s = limits.ping_s
        """Pause between pings, in seconds.  It grows with each answer to a sync of nothing, until
        the next call."""
        self._most_pause_s = limits.idle_ping_s
        """Longest pause, in seconds; shorter once a server has forgotten a session meanwhile."""
        self._idle_at: int | None = None
        """``next`` of the last sync, if that had nothing pending and is not answered."""
        self._answered = True
        """Whether the last syncs were answered, or never will be."""
        self._nonce = b""
        """Nonce of the hello that is under way, or whose welcome is."""
        self._nonce_of = 0
        """Number of the connection on which that hello was first sent."""
        self._new_id = new_id
        self._sessions = sessions
        self._limits = limits
        self._wire = wire

    # -- messages to the server -------------------------------------------------

    def next(self, now_s: float, *, idle: bool, closed: bool) -> list[messages.Message]:
        """The messages of a ping.  ``idle``: whether nothing is pending.  ``closed``: whether no
        further session is wanted."""
        sessions, session = self._sessions, self._sessions.current
        self.at_s = now_s + self._limits.ping_s
        self._idle_at = session.next if session is not None and idle else None
        if self._answered and (sessions.lost or session is not None):
            self.probe += 1
            self._answered = False
        out: list[messages.Message] = [*sessions.syncs(self.connections, self.probe)]
        if session is None and not closed:
            self.at_s = now_s + self._limits.hello_retry_s
            if not self._nonce:
                # Before the first connection no server receives it.
                self._nonce, self._nonce_of = self._new_id(), max(1, self.connections)
            out.append(
                messages.Hello(
                    PROTOCOL_VERSION, self._nonce, self.connections, self.name,
                    self._wire.message_bytes, self._caller,
                )
            )  # fmt: skip
        return out

    def goodbyes(self) -> Iterator[messages.Goodbye]:
        """A goodbye for each session, and for the one that a hello has asked for."""
        for session in self._sessions:
            yield messages.Goodbye(session.id)
        if self._nonce:
            yield messages.Goodbye(self._nonce)

    # -- answers of the server --------------------------------------------------

    def connected(self) -> None:
        """Note another connection, with perhaps another server behind it."""
        self.connections += 1
        self._answered = True  # or its answer is lost with the old connection
        self.known = False

    def welcomed(self, welcome: messages.Welcome, now_s: float) -> bool:
        """Take a welcome.  Returns whether it grants the session that was asked for, which is in
        use now."""
        if self._sessions.current is not None or welcome.nonce != self._nonce:
            return False
        self._sessions.open(welcome)
        self._nonce = b""
        # The server behind an earlier connection may have sent it, before that was lost.
        self.known = self._nonce_of == self.connections
        self.at_s = now_s + self._limits.ping_s if self.known else now_s
        return True

    def synced(self, session: ClientSession, probe: int, *, idle: bool, ready: bool) -> None:
        """Note that the server knows the session in use, and has this sync of it.  ``idle``:
        whether nothing is pending.  ``ready``: whether the server is."""
        if probe == self.probe:  # else it is of before a sleep, or of an earlier connection
            self._answered = self.known = True
        if idle and self._answered and self._idle_at == session.next:
            self._idle_at = None  # this answer may come twice
            if ready and not self._sessions.lost:  # else there may be news
                self._rest()

    def _rest(self) -> None:
        """Pause for longer: the server knows that nothing is pending and nothing to acknowledge, so
        the next ping would repeat this one."""
        before_s = self.pause_s
        self.pause_s = max(before_s, min(2 * before_s, self._most_pause_s))
        self.at_s += self.pause_s - self._limits.ping_s

    def hasten(self, now_s: float) -> None:
        """Ping soon: a call was submitted, so something may be lost from now on."""
        self.pause_s = self._limits.ping_s
        self.at_s = min(self.at_s, now_s + self.pause_s)

    def lost(self, session: ClientSession, epoch: Epoch) -> None:
        """Note that a server of this epoch does not know the session that was in use."""
        self._answered = True
        if epoch == session.epoch and self.pause_s > self._limits.ping_s:
            self._most_pause_s /= 2  # its lease, which nobody tells, may be shorter
            self.pause_s = self._limits.ping_s

    def was_late(self, now_s: float) -> None:
        """Note that the loop was late.  The server may have forgotten the session, so a ping comes
        first."""
        if self.known:
            self._answered = True  # what is answered yet was asked before
        self.known = self._sessions.current is None
        self.at_s = now_s


class ClientCore:
    """The core of one client."""

    def __init__(
        self, *, name: str, new_id: Callable[[], bytes], now_s: float,
        limits: ClientLimits | None = None, wire: WireLimits | None = None,
        caller: bytes = bytes(ID_BYTES),
    ) -> None:  # fmt: skip
        self.limits = limits or ClientLimits()
        self.wire = wire or WireLimits()
        self.link = Link(self.limits, now_s)
        self.sessions = ClientSessions()
        self.pings = Pings(name, caller, new_id, now_s, self.sessions, self.limits, self.wire)
        self.calls = Calls(self.limits)
        self.closed = False
        self._flush_at_s: float | None = None
        """Moment at which the server is told of finished requests at the latest; None: there are
        none."""
        self._company_s = 0.5 * self.limits.finish_flush_s
        """Time before that moment in which a request takes them along, in seconds."""
        self._scan_at_s = now_s
        self.refusal: ErrorInfo | None = None
        """Why the server grants no session, as long as it does not change; None: it may."""
        self._refused_text = ""
        self._malformed: dict[type, tuple[int, str]] = {}
        """Number of messages of each class that the server has refused as malformed, and why it
        refused the last one."""
        self._out: list[ClientEffect] = []

    def take(self, given: ClientInput) -> list[ClientEffect]:
        """Take an input; returns the effects, in order."""
        _INPUTS[type(given)](self, given)
        out = self._out
        self._out = []
        return out

    def wake_at_s(self) -> float:
        """Latest moment of the next tick."""
        at_s = min(self.pings.at_s, self._scan_at_s)
        return at_s if self._flush_at_s is None else min(at_s, self._flush_at_s)

    # -- calls ----------------------------------------------------------------

    def _submit(self, given: CallSubmitted) -> None:
        now_s = given.now_s
        call = self.calls.new(given)
        if self.closed:
            self._step(call, CallInput.CLOSED, now_s)
        elif self.refusal is not None:
            self._step(call, CallInput.REFUSED, now_s, self.refusal)
        if self.pings.pause_s > self.limits.ping_s:
            self.pings.hasten(now_s)
        self._pump(now_s)

    def _receive(self, given: OutcomeReceived) -> None:
        number, now_s = given
        self._step(self.calls.live[number], CallInput.RECEIVED, now_s)
        if self.calls.queue:
            self._pump(now_s)  # there may be room in the window again

    def _cancel(self, given: CallsCancelled) -> None:
        """End calls, and tell the server at once, by one message; its answer is not awaited."""
        numbers, now_s = given
        for number in numbers:
            self._step(self.calls.live.get(number), CallInput.CANCEL, now_s)
        self._flush_due(now_s)
        self._pump(now_s)  # calls that waited for room, and calls that are to leave

    def _close(self, given: ClientClosed) -> None:
        """End every pending call now, and tell the server."""
        self.closed = True
        for _ in range(2):  # the second time, calls that leave the work of keys
            for call in list(self.calls.live.values()):
                self._step(call, CallInput.CLOSED, given.now_s)
            self._pump(given.now_s)
        for goodbye in self.pings.goodbyes():
            self._send(goodbye)

    def _step(self, call: Call | None, input: CallInput, now_s: float, arg: Any = None) -> None:
        """Give a call an input, and carry out the actions that follow."""
        for do, what in self.calls.step(call, input, now_s, arg):
            match do:
                case CallAction.TRANSMIT:
                    what.sent_probe = self.pings.probe
                    what.refusals_before, _ = self._refusals(what)
                    if self.link.connected:
                        self._out.append(ToServer(what.request, what.body))
                case CallAction.ANSWER:
                    self._out.append(what)
                case CallAction.TELL_SOON:
                    self._flush_by(now_s + self.limits.finish_flush_s)
                case CallAction.ASK:
                    self._send(messages.Cancel(what.session.id, what.sequence))
                case CallAction.FAIL:
                    failed, error = what
                    self._out.append(Fail(failed.number, error))
                case CallAction.STOPPING:
                    self.link.stopping(now_s)
                case CallAction.TELL:
                    self._flush_at_s = now_s
                case CallAction.TELL_NEXT:
                    self._flush_by(0.0)
                case _:
                    assert_never(do)

    # -- the transport --------------------------------------------------------

    def _connect(self, given: Connected) -> None:
        """Ping at once on a new connection."""
        self.link.connect(given.now_s)
        self.pings.connected()
        self._ping(given.now_s)

    def _disconnect(self, given: Disconnected) -> None:
        self.link.disconnect(*given)

    def _message(self, given: ServerMessage) -> None:
        """Take a message; a malformed one is reported and ignored."""
        frames, now_s = given
        try:
            rows = messages.read(frames, most_bytes=self.wire.header_bytes)
        except ProtocolError as error:
            self._report("warning", f"ignored a message of the server: {error}")
            return
        self.link.answered(now_s)
        message: Any = rows[0][0]
        match message:
            case messages.Outcome():
                for outcome, body in rows:
                    self._outcome(outcome, body, now_s)
            case messages.Delta():
                self._delta(message, frames[1])
            case messages.Notes():
                self._notes(message)
            case messages.Synced():
                self._synced(message, now_s)
            case messages.Welcome():
                self._welcome(message, now_s)
            case messages.Refused():
                self._refused(message, now_s)
            case messages.Unknown():
                self._unknown(message, now_s)
            case messages.Cancelled():
                self._cancelled(message, now_s)
            case messages.Error():
                self._error(message, now_s)
            case messages.QueryAnswer():
                self._out.append(QueryAnswered(message.probe, frames[1]))
            case _:
                self._report("warning", f"ignored a {type(message).__name__} of the server")
        if self.calls.queue:
            self._pump(now_s)

    def _outcome(self, outcome: Any, body: Any, now_s: float) -> None:
        call = self.sessions.call(outcome.session, outcome.sequence)
        if call is None:
            return
        answer = answer_of(call, outcome, body)
        if answer.error is not None and answer.error.code == "stopping" and not answer.executions:
            self._step(call, CallInput.STOPPING, now_s)
        else:
            self._step(call, CallInput.OUTCOME, now_s, answer)

    def _delta(self, delta: messages.Delta, body: Body) -> None:
        call = self.sessions.call(delta.session, delta.sequence)
        if call is not None and call.stage is Stage.SENT:
            self._out.append(PassDelta(call.number, delta.delta, body))

    def _notes(self, told: messages.Notes) -> None:
        sequences = Ranges.from_flat(told.sequences)
        if len(sequences) != len(told.notes):
            self._report("warning", f"ignored {len(told.notes)} notes of {len(sequences)} calls")
            return
        for sequence, note in zip(sequences, told.notes, strict=True):
            call = self.sessions.call(told.session, sequence)
            if call is not None and call.stage is Stage.SENT:
                self._out.append(PassNote(call.number, note))

    def _synced(self, synced: messages.Synced, now_s: float) -> None:
        session = self.sessions.current
        if session is None or synced.session != session.id:
            return
        self._malformed.pop(messages.Sync, None)
        self.link.status(synced.server, now_s)
        idle, ready = not self.calls.live, self.link.unready_s is None
        self.pings.synced(session, synced.probe, idle=idle, ready=ready)
        missing = Ranges.from_flat(synced.missing)
        # The loop is over pending calls, since the server may name anything.
        for sequence, call in list(session.calls.items()) if missing else ():
            if sequence in missing:
                refusals, why = self._refusals(call)
                if refusals > call.refusals_before and synced.probe > call.sent_probe:
                    error = info("malformed", Verdict.DID_NOT_RUN, _another_wire(why))
                    self._step(call, CallInput.REFUSED, now_s, error)
                else:
                    self._step(call, CallInput.MISSING, now_s, synced.probe)

    def _welcome(self, welcome: messages.Welcome, now_s: float) -> None:
        if not self.closed and self.pings.welcomed(welcome, now_s):
            self.refusal = None
            self.link.status(welcome.server, now_s)

    def _refused(self, message: messages.Refused, now_s: float) -> None:
        call = self.sessions.call(message.session, message.sequence)
        if message.delay_s is not None:
            until_s = now_s + message.delay_s
            self._step(call, CallInput.HOLD, now_s, (until_s, message.full, message.code))
            return
        self._step(call, CallInput.REFUSED, now_s, refused(message.code, message.text))

    def _unknown(self, unknown: messages.Unknown, now_s: float) -> None:
        session = self.sessions.find(unknown.session)
        if session is None:
            return
        if session is self.sessions.current:
            self.sessions.lose(session, now_s)
            self.pings.lost(session, unknown.epoch)
            if not self.closed:  # else it has taken the goodbye before it was asked again
                self._report("warning", f"the server does not know session {short(session.id)}")
            self.link.no_session(now_s)
            self._ping(now_s)
        if unknown.gone:
            self._resolve(
                session, CallInput.SETTLED if unknown.settled else CallInput.PROVEN, now_s
            )

    def _resolve(self, session: ClientSession, input: CallInput, now_s: float) -> None:
        """End a lost session: the server has said what may still run of it, or never will."""
        self.sessions.lost.remove(session)
        for call in list(session.calls.values()):
            self._step(call, input, now_s)

    def _cancelled(self, cancelled: messages.Cancelled, now_s: float) -> None:
        call = self.sessions.call(cancelled.session, cancelled.sequence)
        self._step(call, CallInput.CANCELLED, now_s, cancelled.started)

    def _error(self, error: messages.Error, now_s: float) -> None:
        """Take the error of a message that the server could not take.  The error of a hello is why
        there is no session."""
        if error.text != self._refused_text:
            self._report("error", f"the server refuses: {error.text}")
        self._refused_text = self.link.trouble = error.text
        refused: Any = messages.Hello
        text = error.text
        if error.code == "malformed":
            refused, text = messages.refused_class(error.text), _another_wire(error.text)
            count, _ = self._malformed.get(refused, (0, ""))
            self._malformed[refused] = count + 1, error.text
            if refused is messages.Sync and count + 1 == SYNCS_REFUSED:
                self._cannot_state(text, now_s)
        if refused is messages.Query:
            self._out.append(QueriesRefused(text))
        is_hello = refused is messages.Hello and error.code in ("foreign-version", "malformed")
        if is_hello and self.sessions.current is None:
            self.refusal = info(error.code, Verdict.DID_NOT_RUN, text)
            for call in list(self.calls.queue.values()):
                self._step(call, CallInput.REFUSED, now_s, self.refusal)

    def _cannot_state(self, text: str, now_s: float) -> None:
        """Fail all calls: the server understands no sync, so that nothing that is lost is repaired,
        and the lease of the session ends without a word."""
        self.refusal = info("malformed", Verdict.DID_NOT_RUN, text)
        for call in list(self.calls.queue.values()):
            self._step(call, CallInput.REFUSED, now_s, self.refusal)
        unknown = info("no-answer", Verdict.MAY_HAVE_RUN, text)
        for session in self.sessions:
            for call in list(session.calls.values()):
                self._step(call, CallInput.REFUSED, now_s, unknown)

    def _refusals(self, call: Call) -> tuple[int, str]:
        return self._malformed.get(type(call.request), (0, ""))

    # -- time -----------------------------------------------------------------

    def _tick(self, given: ClientTick) -> None:
        now_s, late_s = given
        if late_s > self.limits.late_s:
            self._was_late(now_s, late_s)
        self._flush_due(now_s)
        if now_s >= self.pings.at_s:
            self._ping(now_s)
        if now_s >= self._scan_at_s:
            self._scan_at_s = now_s + self.limits.ping_s / 4
            self._scan(now_s)
        self._pump(now_s)

    def _was_late(self, now_s: float, late_s: float) -> None:
        """Note that the loop was late and could receive nothing: all waits get that time back."""
        self.link.was_late(now_s, late_s)
        self.pings.was_late(now_s)
        self.sessions.was_late(late_s)
        self.calls.was_late(late_s)

    def _ping(self, now_s: float) -> None:
        """Send the messages of a ping."""
        self.link.asked(now_s)
        for message in self.pings.next(now_s, idle=not self.calls.live, closed=self.closed):
            self._send(message)

    def _scan(self, now_s: float) -> None:
        """Look through calls whose limit has passed, held calls that are due, and lost sessions."""
        calls = self.calls
        well = self.link.unready_s is None and not self.link.silent(now_s)
        for call in list((calls.timed if well else calls.live).values()):
            limit_s = call.limit_s
            if limit_s is None:
                limit_s = self.link.limit_s(call.asked_s, now_s, again=bool(self.sessions.opened))
            passed = now_s - call.asked_s >= limit_s
            self._step(call, CallInput.LIMIT if passed else CallInput.TIME, now_s, self._unsent)
        for call in calls.held.due(now_s):
            self._step(call, CallInput.DUE, now_s)
        if self.link.leave(now_s):
            self._report("warning", "nothing is answered on this connection; making a new one")
            self._out.append(Reconnect())
        for session in self.sessions.given_up(now_s, self.limits.recovery_s):
            self._resolve(session, CallInput.UNPROVEN, now_s)

    def _unsent(self, now_s: float) -> ErrorInfo:
        """The error of a call that was not sent within its limit and has never run."""
        return never_sent(bool(self.sessions.opened), self.link.health(now_s)[1])

    # -- sending --------------------------------------------------------------

    def _pump(self, now_s: float) -> None:
        """Transmit queued calls while there is a session with room."""
        queue, session = self.calls.queue, self.sessions.current
        if not queue or session is None or not self.link.connected:
            return
        if not self.pings.known or now_s > self._scan_at_s + self.limits.late_s:
            return  # the sync of a new connection, or the first one after a sleep, comes first
        if self.link.server_is(ServerStatus.STOPPING) or SESSION_FULL in self.calls.held.lines:
            return  # earlier requests still wait for room
        self._flush_due(now_s + self._company_s)
        while queue:
            if len(session.calls) + len(session.unflushed) >= session.window:
                self._flush()
                if len(session.calls) >= session.window:
                    return
            call = queue.first(session)
            if call is None:
                return  # enough calls wait for keys
            error = too_large(weight(call.body), self.wire.message_bytes, session)
            if error is None:
                self._step(call, CallInput.SEND, now_s, session)
            else:
                self._step(call, CallInput.REFUSED, now_s, error)

    def _flush_by(self, at_s: float) -> None:
        """Tell the server of finished requests at this moment, unless it is told before."""
        if self._flush_at_s is None:
            self._flush_at_s = at_s

    def _flush_due(self, now_s: float) -> None:
        if self._flush_at_s is not None and now_s >= self._flush_at_s:
            self._flush()

    def _flush(self) -> None:
        """Tell the server of finished requests.  If the message is lost, the next sync tells it."""
        self._flush_at_s = None
        for finish in self.sessions.finishes():
            self._send(finish)

    def _send(self, message: messages.Message) -> None:
        if self.link.connected:
            self._out.append(ToServer(message))

    def _report(self, level: str, text: str) -> None:
        self._out.append(Report(level, text))


SYNCS_REFUSED = 3
"""Number of statements in a row that the server refuses as malformed before calls end: one may
have been spoilt on the way."""


def _another_wire(why: str) -> str:
    return (
        f"the server refuses it as malformed ({why}): server and client have the versions of this "
        "package that fit together only if these are the same"
    )


_INPUTS: dict[type, Callable[..., None]] = {
    CallSubmitted: ClientCore._submit,
    OutcomeReceived: ClientCore._receive,
    CallsCancelled: ClientCore._cancel,
    ServerMessage: ClientCore._message,
    Connected: ClientCore._connect,
    Disconnected: ClientCore._disconnect,
    ClientTick: ClientCore._tick,
    ClientClosed: ClientCore._close,
}
