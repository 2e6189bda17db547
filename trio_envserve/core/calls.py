"""The calls of a client: their records, the lines in which they wait, and their table.

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

A lost session may go on counting its caller for the work of a key (:mod:`.work`).  So a call that
is given up in a lost session is issued again only to leave: see :meth:`Calls.leave`.

Every input of a call goes through :meth:`Calls.step`, which looks up :data:`TABLE`.  A cell is one
short function: it changes the call and returns the actions that follow (:class:`CallAction`).  A
call that is gone has no column, because inputs do not change it.

The table knows nothing of links, and of sessions only the ids of their calls.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import error_records, messages
from .client_effects import Answer
from .client_inputs import CallKey, CallSubmitted
from .errors import ErrorInfo
from .key_records import KeyAct, KeyName
from .limits import ClientLimits
from .messages import SESSION_FULL
from .terms import ID_BYTES, Body, Epoch, SentBody, SessionId, Status, Verdict

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
    rerun: bool | None
    most: int
    """Most executions in all, by its caller."""
    limit_s: float | None
    asked_s: float
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
    key: CallKey | None = None
    traceparent: str | None = None
    """Span of the caller."""
    execution_s: float | None = None
    """Longest time of each execution, in seconds; None: the server's limit."""
    grace_s: float | None = None
    """End of these limits in which the rollout is late, in seconds; None: there is none."""
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
    is_leaving: bool = False
    """Whether it is issued again only to leave: a lost session may go on counting its caller."""

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
    waiting_for_keys: int = 0
    """Number of these that wait for keys."""
    unflushed: list[int] = dataclasses.field(default_factory=list)
    """Finished sequences of which the server does not know yet."""
    leaving: dict[int, Call] = dataclasses.field(default_factory=dict)
    """Calls that were issued again only to leave, by sequence."""
    left: list[tuple[int, Call]] = dataclasses.field(default_factory=list)
    """Calls for the work of keys that were given up in this session, each with the last probe
    before that: until a later probe is answered, the server may not know of it.  At most as many
    as the window; the orphan deadline ends the work of the others."""
    lost_s: float | None = None
    """Moment at which the server said that it does not know the session; None: it knows it."""

    def __post_init__(self) -> None:
        others = max(1, self.window // _OTHERS_PART)
        self.most_waiting_for_keys = max(1, self.window - others)

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


class Reply(NamedTuple):
    """An outcome as it arrived."""

    outcome: messages.Outcome
    status: Status
    body: Body
    error: ErrorInfo | None
    """The error in the body; None if it is a result."""

    @classmethod
    def of(cls, outcome: messages.Outcome, body: Body) -> Reply:
        """Read a message.  An unknown status is that of an error."""
        status = _STATUSES.get(outcome.status, Status.ERROR)
        error = None if status is Status.RESULT else error_records.decode(body)
        return cls(outcome, status, body, error)

    def for_caller(self, call: Call) -> Answer:
        """The effect that gives it to the caller.  Its error has the executions that lost sessions
        may have started."""
        worker, duration_s, executions = self.outcome[3:]
        error = self.error
        if error is not None:
            if not error.executions:  # a worker does not know how many there were
                error = dataclasses.replace(error, executions=executions)
            if call.may_have_run:
                error = after_loss(error, call)
        return Answer(call.number, self.status, self.body, worker, duration_s, executions, error)


def grant(allowance: int) -> int:
    """Executions that one session may start, of those that are left: three quarters.

    Nobody knows how many executions a lost session has started, so all that were granted to it
    count as used (G2 holds over the whole life of the call).  The quarter is for later sessions:
    of 4 the first may start 3 and the second 1, of 50 they may start 37, 9, 3 and 1.
    """
    return max(1, allowance * 3 // 4)


def info(code: str, verdict: Verdict, text: str) -> ErrorInfo:
    """An error record of the client itself."""
    return ErrorInfo(code=code, verdict=verdict, message=text)


def refused(code: str, text: str) -> ErrorInfo:
    """The error of a request that the server refuses for good."""
    if code in ("unknown-key", "server-lost"):
        return info(code, Verdict.MAY_HAVE_RUN, text)
    if code == "finished":
        text = "the server has forgotten the request; it may have run"
        return info("server-lost", Verdict.MAY_HAVE_RUN, text)
    return info(code, Verdict.DID_NOT_RUN, text)


def too_large(size_bytes: int, most_bytes: int, session: ClientSession) -> ErrorInfo | None:
    """Why a body cannot be sent; None if it can.  ``most_bytes``: most that the client may send."""
    if size_bytes > most_bytes:
        # The socket would not send it, and each sync would ask for it again.
        text = f"{size_bytes} bytes; this client's message_bytes is {most_bytes}"
    elif size_bytes > session.message_bytes:
        text = f"{size_bytes} bytes; the server takes {session.message_bytes}"
    else:
        return None
    return info("too-large", Verdict.DID_NOT_RUN, text)


def limit_passed(*, started: bool | None) -> ErrorInfo:
    """The error of a call whose limit has passed; ``started`` None: the server did not say."""
    if started is False:
        text = "the limit passed before the request was dispatched; it is cancelled"
        return info("never-started", Verdict.DID_NOT_RUN, text)
    if started:
        text = "the limit passed after the request was dispatched; it is cancelled"
    else:
        text = "the limit passed and the server did not say whether the request ever ran"
    return info("no-answer", Verdict.MAY_HAVE_RUN, text)


def abandoned() -> ErrorInfo:
    """The error of a call that was under way when the client was closed."""
    text = "the client was closed while the request was under way; it is cancelled"
    return info("abandoned", Verdict.MAY_HAVE_RUN, text)


def never_sent(connected_before: bool, why: str) -> ErrorInfo:
    """The error of a call whose limit has passed while no server was there to send it to."""
    if connected_before:
        text = f"the limit passed before the request was transmitted ({why})"
        return info("never-started", Verdict.DID_NOT_RUN, text)
    return info("server-unreachable", Verdict.DID_NOT_RUN, f"no server was found: {why}")


def not_reissued() -> ErrorInfo:
    """The error of a call whose limit has passed before it was issued again."""
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
        """Number of calls for each key whose callers wait."""
        self.owed: set[KeyName] = set()
        """Keys for whose work a lost session may count this client, and of which another call is
        under way: the last of these calls leaves, unless it is answered."""
        self.probe = 0
        """Number of the last probe."""

    def new(self, asked: CallSubmitted) -> Call:
        """A new call, at the end of the queue."""
        number, body, now_s, rerun, most, limit_s, key, traceparent, execution_s, grace_s = asked
        assert number not in self.live, "this number was given before"
        if most is None:
            most = self.limits.max_executions
        if limit_s is not None:
            limit_s = float(limit_s) if limit_s < MOST_SECONDS else None
        call = Call(
            number, body, rerun, most, limit_s, now_s, key=key, traceparent=traceparent,
            execution_s=execution_s, grace_s=grace_s,
        )  # fmt: skip
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
        :class:`Reply` for OUTCOME, the error for REFUSED, an :data:`Unsent` for LIMIT, whether
        it was started for CANCELLED, None if it was never seen.
        """
        return () if call is None else TABLE[input][call.stage](self, call, now_s, arg)

    def leave(self, call: Call) -> None:
        """End the counting of a caller that a lost session may go on with: the call is issued
        again, so that it counts in the new session alone, and ends once the server has it.  It
        starts nothing, since its request says that its executions are used up."""
        assert call.asks_for is not None
        if call.asks_for in self.asking:
            self.owed.add(call.asks_for)  # another call counts for the caller
            return
        call.is_leaving = call.alone = call.may_have_run = True
        call.limit_s, call.earlier, call.session = None, call.most, None
        call.stage = Stage.QUEUED
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
    name = call.asks_for
    if call.is_leaving and name is not None and name in calls.asking:
        calls.owed.add(name)  # another call counts for the caller
        return _end(calls, call, CallAction.TELL)
    calls.queue.take(call)
    call.stage = Stage.SENT
    call.session, call.sequence = session, session.next
    session.next += 1
    session.calls[call.sequence] = call
    if call.is_leaving:
        session.leaving[call.sequence] = call
    session.waiting_for_keys += call.waits_for_key
    # No number is given twice: another request under this id has another digest.
    digest = call.number.to_bytes(ID_BYTES, "big") if call.key is None else call.key.digest
    request = messages.Request(
        session.id, call.sequence, digest, call.rerun, call.most, call.left_s(now_s),
        call.execution_s, call.traceparent,
        earlier=call.earlier if call.may_have_run else None, grace_s=call.grace_s,
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


def _answer(calls: Calls, call: Call, now_s: float, reply: Reply) -> Effects:
    error = reply.error
    call.stage = Stage.ANSWERED
    if call.may_have_run and error is not None and error.verdict is Verdict.DID_NOT_RUN:
        return _fail(calls, call, now_s, error)  # with the truth about the lost session
    if call.alone:
        return _end(calls, call, CallAction.TELL_SOON)
    if calls.held:
        calls.held.drop(call)
    return ((CallAction.ANSWER, (call, reply)),)


def _defer(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    """Issue it to the next server: it did not run, and that is final for this id."""
    return ((CallAction.STOPPING, None), *_requeue(calls, call))


def _refuse(calls: Calls, call: Call, now_s: float, error: ErrorInfo) -> Effects:
    call.stage = Stage.ANSWERED
    return _fail(calls, call, now_s, error)


def _receive(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    return _end(calls, call, CallAction.TELL_SOON)


def _cancel(calls: Calls, call: Call, now_s: float, arg: Any) -> Effects:
    if call.alone and not call.is_leaving:
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
        call.earlier += 1 if call.rerun is False else grant(left)
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
    name, session = call.asks_for, call.session
    may_count = name is not None and not call.stays and call.stage is not Stage.ANSWERED
    must_leave = call.may_have_run and not call.is_leaving
    if name is not None and not call.is_leaving:
        calls.asking[name] -= 1
        if not calls.asking[name]:
            del calls.asking[name]
            must_leave |= name in calls.owed
            calls.owed.discard(name)
    if call.stage is Stage.QUEUED:
        calls.queue.take(call)
        if may_count and must_leave:
            calls.leave(call)
        return ()
    assert session is not None
    _leave_session(calls, call)
    if may_count and not call.is_leaving and (must_leave or session.lost_s is not None):
        calls.leave(call)
    elif may_count and len(session.left) < session.window:
        session.left.append((calls.probe, call))
    return ((tell, None),)


def _leave_session(calls: Calls, call: Call) -> None:
    """Finish its sequence."""
    session, call.session = call.session, None
    assert session is not None
    del session.calls[call.sequence]
    session.leaving.pop(call.sequence, None)
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
