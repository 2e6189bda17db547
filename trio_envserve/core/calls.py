"""A client's records of its calls, and of the sessions in which they have their ids.

The table in :mod:`.call_table` decides how a call moves between its stages.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

from . import error_records, messages
from .client_effects import Answer
from .client_inputs import CallKey
from .errors import ErrorInfo
from .key_records import KeyAct, KeyName
from .terms import Body, Epoch, SentBody, SessionId, Status, Verdict

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
        """The effect that gives it to the caller."""
        worker, duration_s, executions = self.outcome[3:]
        return Answer(call.number, self.status, self.body, worker, duration_s, executions)


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
