"""The table of a request: the step of each input in each state.

Theory of operation
-------------------
A request goes ``NOT_SEEN -> WAITING -> RUNNING -> COMPLETED -> FINISHED`` and
may leave out steps, but never goes back, with one exception that needs proof
and consent: RUNNING -> WAITING after its worker is proven dead.

:meth:`.dedup.DedupCache.step` looks up :data:`TABLE`.  A cell is one short function:
it changes the entry, counts in cache and session what has changed, and says what must
be done about it as :class:`RequestAction`.  FINISHED is absorbing: it is not a column, because
every input to it changes nothing (a retransmitted request is told so).

The table knows nothing of workers, queues or sockets.  An execution is an opaque object
here; whoever stops one (``RequestAction.STOP``) keeps track of its end.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from . import error_records
from .endings import ENDINGS, OTHER_CODE
from .requests import Ask, Entry, RequestState, RetainedOutcome, Session
from .terms import RequestId

if TYPE_CHECKING:
    from .dedup import DedupCache


class RequestInput(enum.Enum):
    """An input of a request."""

    REQUEST = "request"
    OTHER_DIGEST = "request, other digest"
    DISPATCH = "dispatched to a worker"
    OUTCOME = "outcome from its live execution"
    STRAY_OUTCOME = "outcome from any other"
    FINISH = "finished, says the client"
    WORKER_DEAD = "its worker is proven dead"
    DEADLINE = "deadline"
    LEASE_ENDED = "lease ended"
    ANSWERED = "answered for its key"
    TURNED_AWAY = "refused for its key"

    __hash__ = object.__hash__  # they are looked up with each step, and Enum's own is slow


class RequestAction(enum.Enum):
    """An action after a step; they are done in order."""

    QUEUE = "put the entry into the queue"
    UNQUEUE = "take the entry out of the queue"
    ANSWER = "send the kept outcome"
    STOP = "stop the execution, which no longer has a request"
    LEAVE = "tell its key that it waits no more"
    CONFLICT = "refuse: the id names another payload"
    SPENT = "refuse: the id is finished"
    WINDOW = "refuse for now: the session's window is full"
    FULL = "refuse for now: the queue is full"


REFUSALS: dict[RequestAction, tuple[str, str, bool]] = {
    RequestAction.CONFLICT: (
        "conflict", "this id was used for a request with another payload", False,
    ),
    RequestAction.SPENT: ("finished", "this id is finished; its outcome is forgotten", False),
    RequestAction.WINDOW: ("window", "the session's window is full", True),
    RequestAction.FULL: ("queue-full", "the server's queue is full", True),
}  # fmt: skip
"""Refusals: code, text, and whether they are for now."""

Effects: TypeAlias = Sequence[tuple[RequestAction, Any]]
Cell: TypeAlias = Callable[..., Effects]


# Each request comes by here: to look one of them up in its class takes as long as a line (3.11).
_ANSWER, _QUEUE, _LEAVE = RequestAction.ANSWER, RequestAction.QUEUE, RequestAction.LEAVE
_WAITING, _RUNNING, _COMPLETED, _FINISHED = (
    RequestState.WAITING, RequestState.RUNNING, RequestState.COMPLETED, RequestState.FINISHED,
)  # fmt: skip

# -- cells: each changes one entry and says what follows ----------------------


def _ignore(cache: DedupCache, session: Session, sequence: int, entry: Any, arg: Any) -> Effects:
    return ()


def _never(cache: DedupCache, session: Session, sequence: int, entry: Any, arg: Any) -> Effects:
    raise AssertionError("this input cannot reach a request in this state")


def absorb(cache: DedupCache, session: Session, sequence: int, input: RequestInput) -> Effects:
    """FINISHED: whatever comes changes nothing; who asks is told."""
    if input in (RequestInput.REQUEST, RequestInput.OTHER_DIGEST):
        cache.counters.spent += 1
        return ((RequestAction.SPENT, sequence),)
    cache.counters.stray_outcomes += input is RequestInput.STRAY_OUTCOME
    return ()


def _enter(cache: DedupCache, session: Session, sequence: int, entry: Any, ask: Ask) -> Effects:
    if len(session.entries) >= cache.limits.window:
        cache.counters.refused_for_now += 1
        return ((RequestAction.WINDOW, sequence),)
    if not cache.may_enter(session, len(ask.body)):
        cache.counters.refused_for_now += 1
        return ((RequestAction.FULL, sequence),)
    entry = Entry(
        RequestId(session.id, sequence), ask.digest, ask.rerun, ask.allowance, ask.body,
        len(ask.body), _WAITING, ask.key, ask.traceparent, execution_s=ask.execution_s,
    )  # fmt: skip
    place(cache, session, entry)
    return ((_QUEUE, entry),)


def place(cache: DedupCache, session: Session, entry: Entry) -> None:
    """A request that was never seen, and that the bounds have let in, is WAITING."""
    entries, size = session.entries, entry.body_bytes
    if not entries:
        cache._idle.pop(session.id, None)
    entries[entry.id.sequence] = entry
    cache.held_bytes += size
    session.held_bytes += size
    cache.queued_count += 1
    session.queued_count += 1
    cache.counters.entered += not session.own  # the work of a key was entered with its request
    if session.owner is not None:
        session.owner.unfinished += 1


def _coalesce(
    cache: DedupCache, session: Session, sequence: int, entry: Entry, ask: Any
) -> Effects:
    cache.counters.coalesced += 1
    return ()


def _replay(cache: DedupCache, session: Session, sequence: int, entry: Entry, ask: Any) -> Effects:
    cache.counters.replayed += 1
    return ((_ANSWER, entry),)


def _conflict(cache: DedupCache, session: Session, sequence: int, entry: Any, ask: Any) -> Effects:
    cache.counters.conflicts += 1
    return ((RequestAction.CONFLICT, sequence),)


def _run(
    cache: DedupCache, session: Session, sequence: int, entry: Entry, execution: Any
) -> Effects:
    _queue(cache, session, -1)
    _run_count(cache, session, +1)
    cache.counters.dispatched += 1
    cache.counters.reruns += entry.executions > 0
    entry.state = _RUNNING
    entry.execution = execution
    entry.executions += 1
    if not cache.may_rerun(entry):
        drop_body(cache, session, entry)
    return ()


def _complete(
    cache: DedupCache, session: Session, sequence: int, entry: Entry, kept: RetainedOutcome
) -> Effects:
    cache.counters.completed += 1
    _run_count(cache, session, -1)
    _keep(cache, session, entry, kept)
    return ((_ANSWER, entry),)


def _stray(cache: DedupCache, session: Session, sequence: int, entry: Any, arg: Any) -> Effects:
    cache.counters.stray_outcomes += 1
    return ()


def _finish_new(
    cache: DedupCache, session: Session, sequence: int, entry: Any, arg: Any
) -> Effects:
    session.finished.add(sequence)
    return ()


def _finish_waiting(
    cache: DedupCache, session: Session, sequence: int, entry: Entry, arg: Any
) -> Effects:
    cache.counters.cancelled += entry.key is None  # else that of its work is counted
    _queue(cache, session, -1)
    _remove(cache, session, entry)
    return (_out(entry),)


def _finish_running(
    cache: DedupCache, session: Session, sequence: int, entry: Entry, arg: Any
) -> Effects:
    cache.counters.cancelled += 1
    _run_count(cache, session, -1)
    execution, entry.execution = entry.execution, None
    _remove(cache, session, entry)
    return ((RequestAction.STOP, execution),)


def _finish_kept(
    cache: DedupCache, session: Session, sequence: int, entry: Entry, arg: Any
) -> Effects:
    assert entry.kept is not None
    _count_kept(cache, session, entry, -1, -entry.kept.size_bytes)
    _remove(cache, session, entry)
    return () if entry.key is None else ((_LEAVE, entry),)


def _lose(
    cache: DedupCache, session: Session, sequence: int, entry: Entry,
    outcome: Callable[[Entry], RetainedOutcome],
) -> Effects:  # fmt: skip
    _run_count(cache, session, -1)
    # Without its body it was dispatched for the last time, whatever is declared since.
    if entry.body is not None and cache.may_rerun(entry):
        entry.state = _WAITING
        entry.execution = None
        _queue(cache, session, +1)
        return ((_QUEUE, entry),)
    cache.counters.lost += 1
    _keep(cache, session, entry, outcome(entry))
    return ((_ANSWER, entry),)


def _expire_waiting(
    cache: DedupCache, session: Session, sequence: int, entry: Entry,
    outcome: Callable[[Entry], RetainedOutcome],
) -> Effects:  # fmt: skip
    cache.counters.deadlines += 1
    _queue(cache, session, -1)
    _keep(cache, session, entry, outcome(entry))
    return (_out(entry), (_ANSWER, entry))


def _out(entry: Entry) -> tuple[RequestAction, Any]:
    """It waits no more: for a worker, or for its key."""
    return RequestAction.UNQUEUE if entry.key is None else _LEAVE, entry


def _answer(
    cache: DedupCache, session: Session, sequence: int, entry: Entry, kept: RetainedOutcome
) -> Effects:
    """The work of its key has an outcome.  It goes on taking its place in the queue until
    it is finished, since nothing of its own has run (G8)."""
    cache.queued_count -= 1
    session.queued_count -= 1
    _keep(cache, session, entry, kept)
    return ((_ANSWER, entry),)


def _turn_away(
    cache: DedupCache, session: Session, sequence: int, entry: Entry, arg: Any
) -> Effects:
    """As if it had never been seen: it may be tried again under the same id."""
    _queue(cache, session, -1)
    _drop(cache, session, entry)
    return ()


def _expire_running(
    cache: DedupCache, session: Session, sequence: int, entry: Entry,
    outcome: Callable[[Entry], RetainedOutcome],
) -> Effects:  # fmt: skip
    cache.counters.deadlines += 1
    _run_count(cache, session, -1)
    execution = entry.execution
    _keep(cache, session, entry, outcome(entry))
    return ((_ANSWER, entry), (RequestAction.STOP, execution))


def _keep(cache: DedupCache, session: Session, entry: Entry, kept: RetainedOutcome) -> None:
    """The outcome is final: keep it until the client has it (G3, G4).  That of the work of a
    key is retained there."""
    entry.execution = None
    entry.kept = kept
    if kept.outcome[2] and entry.key is None:  # else that of its work is counted
        count_failure(cache, kept)
    if session.own:
        _remove(cache, session, entry)
        return
    entry.state = _COMPLETED
    if entry.body is not None:
        drop_body(cache, session, entry)
    _count_kept(cache, session, entry, +1, kept.size_bytes)


def count_failure(cache: DedupCache, kept: RetainedOutcome) -> None:
    """One more outcome is no result."""
    code = error_records.decode(kept.payload).code
    cache.failures[code if code in ENDINGS else OTHER_CODE] += 1


def _count_kept(
    cache: DedupCache, session: Session, entry: Entry, change: int, change_bytes: int
) -> None:
    """One more, or one less, outcome is kept."""
    cache.kept_count += change
    cache.kept_bytes += change_bytes
    session.kept_count += change
    session.kept_bytes += change_bytes
    if not entry.executions:
        cache.kept_unrun += change
        session.kept_unrun += change


def _queue(cache: DedupCache, session: Session, change: int) -> None:
    """One more, or one less, request waits for a worker."""
    cache.queued_count += change
    session.queued_count += change


def _run_count(cache: DedupCache, session: Session, change: int) -> None:
    """One more, or one less, request runs."""
    cache.running_count += change
    session.running_count += change


def drop_body(cache: DedupCache, session: Session, entry: Entry) -> None:
    """The body is held no more."""
    if entry.body is not None:
        cache.held_bytes -= entry.body_bytes
        session.held_bytes -= entry.body_bytes
        entry.body = None


def _remove(cache: DedupCache, session: Session, entry: Entry) -> None:
    """FINISHED: only the sequence is remembered."""
    cache.counters.finished += not session.own
    entry.state = _FINISHED
    if not session.own:
        session.finished.add(entry.id.sequence)
    _drop(cache, session, entry)


def _drop(cache: DedupCache, session: Session, entry: Entry) -> None:
    if entry.body is not None:
        drop_body(cache, session, entry)
    del session.entries[entry.id.sequence]
    if session.owner is not None:
        session.owner.unfinished -= 1
    if not session.entries:
        cache._idle[session.id] = session


_COLUMNS = (
    RequestState.NOT_SEEN,
    RequestState.WAITING,
    RequestState.RUNNING,
    RequestState.COMPLETED,
)

# fmt: off
TABLE: dict[RequestInput, dict[RequestState, Cell]] = {
    row[0]: dict(zip(_COLUMNS, row[1:], strict=True))
    for row in (
        # input                      not seen     waiting          running          completed
        (RequestInput.REQUEST,       _enter,      _coalesce,       _coalesce,       _replay),
        (RequestInput.OTHER_DIGEST,  _never,      _conflict,       _conflict,       _conflict),
        (RequestInput.DISPATCH,      _never,      _run,            _never,          _never),
        (RequestInput.OUTCOME,       _never,      _never,          _complete,       _never),
        (RequestInput.STRAY_OUTCOME, _stray,      _stray,          _stray,          _stray),
        (RequestInput.FINISH,        _finish_new, _finish_waiting, _finish_running, _finish_kept),
        (RequestInput.WORKER_DEAD,   _never,      _never,          _lose,           _never),
        (RequestInput.DEADLINE,      _ignore,     _expire_waiting, _expire_running, _ignore),
        (RequestInput.LEASE_ENDED,   _never,      _finish_waiting, _finish_running, _finish_kept),
        (RequestInput.ANSWERED,      _never,      _answer,         _never,          _never),
        (RequestInput.TURNED_AWAY,   _never,      _turn_away,      _never,          _never),
    )
}
"""The step of each input in each state of a request.  FINISHED has no column: it absorbs."""
# fmt: on
