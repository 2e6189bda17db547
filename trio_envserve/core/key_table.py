"""The life of a generation of a key: the table that decides it.

Theory of operation
-------------------
A generation goes ``(HELD ->) WAITING -> RUNNING -> COMPLETED -> CLOSED`` and may leave
out steps.  It goes back once, when an execution ends without an outcome: RUNNING ->
WAITING.  HELD: an execution of an earlier generation of the key still lives, and so
nothing of this one may start (G1).  ABSENT: the key has no open generation.  CLOSED: it
is over, and what it answered is not said again; it is held only while its execution lives.
With a journal, COMPLETED -> (at rest) -> READING -> COMPLETED: its outcome is on the disk, and
is read for those who wait (:mod:`.resting`).

:meth:`.keys.Keys.step` looks up :data:`TABLE`.  A cell is one short function: it changes
the generation and says what must be done about it (:mod:`.key_records`).  Whatever
changes who waits ends with :func:`_who_waits`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from .journal import Completed, Joined, Opened, Started
from .key_records import (
    NOBODY,
    Answer,
    AnswerCancelled,
    CallerToken,
    Enter,
    Finish,
    Generation,
    GenerationState,
    KeyEffects,
    KeyName,
    Refusal,
    Refuse,
    Tag,
)
from .requests import Ask, Entry, RetainedOutcome
from .terms import Body, Incarnation, RequestId, SessionId, quick

if TYPE_CHECKING:
    from .keys import Keys


class KeyInput(enum.Enum):
    """An input of a generation, or of a key that has no open one."""

    ASK = "request"
    OTHER_INPUT = "request, other input"
    ATTACH = "attached without input"
    LEAVE = "a waiter leaves"
    LOSE = "a waiter's lease ended"
    WITHDRAW = "a caller is back and wants none"
    CANCEL = "cancel by key"
    FORGET = "forget by key"
    DISPATCH = "dispatched to a worker"
    EXECUTION_ENDED = "its execution has ended"
    OUTCOME = "outcome, it was started"
    NEVER_RAN = "outcome, it was never started"
    ORPHANED = "orphan deadline"
    RETENTION_ENDED = "retention ended"
    READ = "its outcome was read from the disk"
    UNREADABLE = "its outcome could not be read"

    __hash__ = object.__hash__  # they are looked up with each step, and Enum's own is slow


class KeyCommand(NamedTuple):
    """A cancel or a forget by key."""

    input: KeyInput
    name: KeyName
    tag: Tag


class Withdrawn(NamedTuple):
    """A caller, back in this session, wants nothing that it asked for in others."""

    name: KeyName
    caller: CallerToken
    session: SessionId


Cell: TypeAlias = Callable[["Keys", Any, Any, float], KeyEffects]

# Each generation comes by here: to look a state up in its class takes as long as a line (3.11).
_WAITING, _RUNNING, _COMPLETED = (
    GenerationState.WAITING, GenerationState.RUNNING, GenerationState.COMPLETED,
)  # fmt: skip
_answer, _enter = quick(Answer), quick(Enter)


# -- cells ----------------------------------------------------------------------------


def _ignore(keys: Keys, generation: object, arg: object, now_s: float) -> KeyEffects:
    return ()


def _never(keys: Keys, generation: object, arg: object, now_s: float) -> NoReturn:
    raise AssertionError("this input cannot reach a generation in this state")


def _open(keys: Keys, generation: None, asked: Entry, now_s: float) -> KeyEffects:
    waiter = asked.id
    _, name, caller, _, reissue = asked.key
    earlier = 0
    if reissue is not None:
        earlier = reissue.earlier
        if not keys.may_start(asked, reissue):
            return (Refuse(waiter, Refusal.UNKNOWN_KEY),)
    if keys.commands.early and keys.commands.take_early(name):
        return (AnswerCancelled(waiter, started=earlier > 0),)
    body_bytes, body, allowance = asked.body_bytes, asked.body, asked.allowance - earlier
    name_bytes = len(name[0]) + len(name[1])
    held = name in keys.ending
    if not keys.room.may_open(name[0], name_bytes + body_bytes if held else name_bytes):
        return (Refuse(waiter, Refusal.FULL),)
    assert body is not None
    number = keys.next_number
    opened = Generation(
        number, name, asked.digest, body_bytes, asked.rerun, earlier, _WAITING, None, name_bytes,
        {waiter: caller}, NOBODY, now_s,
    )  # fmt: skip
    if held:
        opened.hold(Ask(
            asked.digest, body, asked.rerun, allowance, None, asked.traceparent, asked.execution_s
        ))  # fmt: skip
    if keys.journal.on:
        keys.journal.append(_opened, opened, body, allowance, caller, asked.execution_s)
    keys.next_number = number + 1
    keys.generations[number] = keys.open[name] = keys.waiting[waiter] = opened
    keys.room.add(opened)
    if held:
        return ()
    return (_enter((opened, body, allowance, asked.traceparent, asked.execution_s, False)),)


def _join(keys: Keys, generation: Generation, asked: Entry, now_s: float) -> KeyEffects:
    if _crowded(keys, generation, asked.key.caller):
        return (Refuse(asked.id, Refusal.CROWDED),)
    _place(keys, generation, asked.id, asked.key.caller)
    generation.wait_no_more()
    return ()


def _replay(keys: Keys, generation: Generation, asked: Entry, now_s: float) -> KeyEffects:
    refused = _join(keys, generation, asked, now_s)
    return refused or (Answer(asked.id, _outcome_of(generation)),)


def _conflict(keys: Keys, generation: Generation, asked: Entry, now_s: float) -> KeyEffects:
    return (Refuse(asked.id, Refusal.CONFLICT),)


def _unknown(keys: Keys, generation: None, waiter: RequestId, now_s: float) -> KeyEffects:
    return (Refuse(waiter, Refusal.UNKNOWN_KEY),)


def _watch(keys: Keys, generation: Generation, waiter: RequestId, now_s: float) -> KeyEffects:
    if _crowded(keys, generation):
        return (Refuse(waiter, Refusal.CROWDED),)
    generation.watch(waiter)
    keys.waiting[waiter] = generation
    return ()


def _show(keys: Keys, generation: Generation, waiter: RequestId, now_s: float) -> KeyEffects:
    return (Answer(waiter, _outcome_of(generation)),)


def _leave(keys: Keys, generation: Generation, waiter: RequestId, now_s: float) -> KeyEffects:
    del keys.waiting[waiter]
    if waiter in generation.waiters:
        del generation.waiters[waiter]
        return _who_waits(keys, generation, now_s)
    del generation.watchers[waiter]
    return ()


def _lose(keys: Keys, generation: Generation, waiter: RequestId, now_s: float) -> KeyEffects:
    caller = generation.waiters.get(waiter)
    if caller is not None:
        generation.lost |= {caller}
    return _leave(keys, generation, waiter, now_s)


def _withdraw(keys: Keys, generation: Generation, withdrawn: Withdrawn, now_s: float) -> KeyEffects:
    before = len(generation.lost) + len(generation.waiters)
    generation.lost -= {withdrawn.caller}
    _replace(keys, generation, withdrawn.caller, withdrawn.session)
    if len(generation.lost) + len(generation.waiters) == before:
        return ()
    return _who_waits(keys, generation, now_s)


def _remember(keys: Keys, generation: None, command: KeyCommand, now_s: float) -> KeyEffects:
    if command.name not in keys.ending:  # else the key was seen, and what it means is over
        keys.commands.early[command.name] = command
    return ()


def _run(
    keys: Keys, generation: Generation, where: tuple[Incarnation, int] | None, now_s: float
) -> KeyEffects:
    generation.state = _RUNNING
    generation.executions += 1
    generation.live = True
    if keys.journal.on and where is not None:
        keys.journal.append(Started, generation.number, *where)
    return ()


def _end(
    keys: Keys, generation: Generation, brought: RetainedOutcome | None, now_s: float
) -> KeyEffects:
    generation.live = False
    if brought is not None:
        return _complete(keys, generation, brought, now_s)
    generation.state = _WAITING  # an outcome of the router follows, or another run
    return ()


def _end_late(keys: Keys, generation: Generation, arg: None, now_s: float) -> KeyEffects:
    assert generation.live
    generation.live = False
    return ()


def _release(keys: Keys, generation: Generation, arg: None, now_s: float) -> KeyEffects:
    generation.live = False
    keys.release(generation)
    following = keys.open.get(generation.name)
    if following is None or following.state is not GenerationState.HELD:
        return ()
    return keys.enter_held(following)


def _complete(
    keys: Keys, generation: Generation, outcome: RetainedOutcome, now_s: float
) -> KeyEffects:
    generation.state = _COMPLETED
    if keys.journal.on:
        keys.journal.append(Completed, generation.number, outcome.frames)
    keys.retain(generation, outcome)
    return _answers(keys, generation, outcome)


def _fail(keys: Keys, generation: Generation, outcome: RetainedOutcome, now_s: float) -> KeyEffects:
    """Nothing of it has run: so nothing is retained, and the next ask may start anew."""
    answers = _answers(keys, generation, outcome)
    for waiter in list(generation.waiters):
        del keys.waiting[waiter]
    generation.waiters.clear()
    return *_close(keys, generation), *answers


def _abandon(keys: Keys, generation: Generation, arg: None, now_s: float) -> KeyEffects:
    generation.lost = frozenset()
    return _who_waits(keys, generation, now_s)


def _end_unread(keys: Keys, generation: Generation, arg: object, now_s: float) -> KeyEffects:
    waiting = [*generation.waiters, *generation.watchers]
    return *_close(keys, generation), *(AnswerCancelled(each, started=True) for each in waiting)


def _show_read(
    keys: Keys, generation: Generation, read: RetainedOutcome, now_s: float
) -> KeyEffects:
    outcome = _outcome_of(generation)
    generation.state = _COMPLETED
    outcome.outcome, outcome.payload = read.outcome, read.payload
    return _answers(keys, generation, outcome)


def _send_away(keys: Keys, generation: Generation, arg: None, now_s: float) -> KeyEffects:
    """They have been told why.  It is not lost: the next ask reads again."""
    for waiter in (*generation.waiters, *generation.watchers):
        del keys.waiting[waiter]
    generation.waiters.clear()
    generation.watchers.clear()
    return _who_waits(keys, generation, now_s)


def _opened(
    generation: Generation, body: Body, allowance: int, caller: CallerToken,
    execution_s: float | None,
) -> Opened:  # fmt: skip
    return Opened(
        generation.number, *generation.name, generation.digest, generation.rerun, allowance,
        generation.earlier, caller, body, execution_s=execution_s,
    )  # fmt: skip


# -- what cells share -----------------------------------------------------------------


def _outcome_of(generation: Generation) -> RetainedOutcome:
    assert generation.outcome is not None
    return generation.outcome


def _answers(keys: Keys, generation: Generation, outcome: RetainedOutcome) -> list[Answer]:
    """Everybody hears it.  Who counts goes on counting until it has left."""
    answers = list(map(_answer, zip(generation.waiters, repeat(outcome))))
    if generation.watchers:
        for watcher in generation.watchers:
            answers.append(Answer(watcher, outcome))
            del keys.waiting[watcher]
        generation.watchers.clear()
    return answers


def _crowded(keys: Keys, generation: Generation, caller: CallerToken = b"") -> bool:
    """Whether nobody may wait besides (G8); a caller that is back takes its old place."""
    places = len(generation.waiters) + len(generation.watchers) + len(generation.lost)
    return places - (caller in generation.lost) >= keys.limits.waiters


def _place(keys: Keys, generation: Generation, waiter: RequestId, caller: CallerToken) -> None:
    """One more waiter, in place of those that its caller had in other sessions."""
    if generation.outcome is None:
        keys.journal.append(Joined, generation.number, caller)
    generation.lost -= {caller}
    _replace(keys, generation, caller, waiter.session)
    generation.count(waiter, caller)
    keys.waiting[waiter] = generation


def _replace(keys: Keys, generation: Generation, caller: CallerToken, session: SessionId) -> None:
    """A caller is in this session now: its waiters of others are answered, and count
    no more."""
    old = [w for w, c in generation.waiters.items() if c == caller and w.session != session]
    for waiter in old:
        del generation.waiters[waiter]
        if generation.state is _COMPLETED:
            del keys.waiting[waiter]
        else:
            generation.watch(waiter)


def _who_waits(keys: Keys, generation: Generation, now_s: float) -> KeyEffects:
    """Take a change of those that count.  Nobody is there: the deadline for orphans runs.  Nobody
    counts: without an outcome that is the end, with one its retention begins."""
    if generation.waiters:
        generation.wait_no_more()
        return ()
    generation.waiters = NOBODY
    if generation.lost:
        generation.wait_in(keys.orphans, now_s)
    elif generation.outcome is not None:
        generation.wait_in(keys.retained, now_s)
    else:
        return _close(keys, generation)
    return ()


def _close(
    keys: Keys, generation: Generation, arg: object = None, now_s: float = 0.0
) -> KeyEffects:
    """It is over: the next ask opens another.  Who still waits hears "cancelled"."""
    generation.wait_no_more()
    unanswered = generation.outcome is None
    waiting = [*generation.waiters, *generation.watchers]
    for waiter in waiting:
        del keys.waiting[waiter]
    keys.close(generation)
    if not unanswered:
        return ()
    started = generation.started
    return Finish(generation), *(AnswerCancelled(waiter, started) for waiter in waiting)


_COLUMNS = (
    GenerationState.ABSENT, GenerationState.HELD, _WAITING, _RUNNING, _COMPLETED,
    GenerationState.CLOSED,
)  # fmt: skip
_I = KeyInput

# fmt: off
TABLE: dict[KeyInput, dict[GenerationState, Cell]] = {
    row[0]: dict(zip(_COLUMNS, row[1:], strict=True))
    for row in (
        # input              absent     held       waiting    running    completed  closed
        (_I.ASK,             _open,     _join,     _join,     _join,     _replay,   _never),
        (_I.OTHER_INPUT,     _never,    _conflict, _conflict, _conflict, _conflict, _never),
        (_I.ATTACH,          _unknown,  _watch,    _watch,    _watch,    _show,     _never),
        (_I.LEAVE,           _never,    _leave,    _leave,    _leave,    _leave,    _never),
        (_I.LOSE,            _never,    _lose,     _lose,     _lose,     _lose,     _never),
        (_I.WITHDRAW,        _ignore,   _withdraw, _withdraw, _withdraw, _withdraw, _never),
        (_I.CANCEL,          _remember, _close,    _close,    _close,    _ignore,   _never),
        (_I.FORGET,          _ignore,   _close,    _close,    _close,    _close,    _never),
        (_I.DISPATCH,        _never,    _never,    _run,      _never,    _never,    _never),
        (_I.EXECUTION_ENDED, _never,    _never,    _never,    _end,      _end_late, _release),
        (_I.OUTCOME,         _never,    _complete, _complete, _complete, _never,    _never),
        (_I.NEVER_RAN,       _never,    _fail,     _fail,     _never,    _never,    _never),
        (_I.ORPHANED,        _never,    _abandon,  _abandon,  _abandon,  _abandon,  _never),
        (_I.RETENTION_ENDED, _never,    _never,    _never,    _never,    _close,    _never),
    )
}
"""The step of each input: of a key's open generation, or of a closed one whose execution lives."""

_READING: dict[KeyInput, Cell] = {
    _I.ASK: _join, _I.OTHER_INPUT: _conflict, _I.ATTACH: _watch, _I.LEAVE: _leave,
    _I.LOSE: _lose, _I.WITHDRAW: _withdraw, _I.CANCEL: _ignore, _I.FORGET: _end_unread,
    _I.ORPHANED: _abandon, _I.RETENTION_ENDED: _end_unread, _I.READ: _show_read,
    _I.UNREADABLE: _send_away,
}
"""The step of each input of a generation whose outcome is being read, from a journal."""
# fmt: on

for _input in KeyInput:
    _row = TABLE.setdefault(_input, dict.fromkeys(_COLUMNS, _never))
    _row[GenerationState.READING] = _READING.get(_input, _never)
