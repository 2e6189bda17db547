"""Keys: the records that :mod:`.keys` decides about, and what it says must be done.

Plain state, no decisions: those are cells of the table in :mod:`.key_table`.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, final

from .requests import Ask, RetainedOutcome
from .terms import Body, RequestId, SentBody, pieces_of

CallerToken: TypeAlias = bytes
"""Said with each keyed request of a caller, also after its process was started anew; of a
caller that gives none, one that its client has drawn, the same in all sessions of that."""

Tag: TypeAlias = "int | bytes"
"""The target of a command by key: the generation of this number, or, for an id of the command's
own, whichever is open when it first arrives.  So a copy of it hits nothing else.  Empty: the
same, and copies are known by the id of the request, which is refused if it is issued again."""


class KeyName(NamedTuple):
    """A key in its namespace.  The same key in another namespace is another one."""

    namespace: bytes
    key: bytes

    @property
    def size_bytes(self) -> int:
        """The bytes of both."""
        return len(self.namespace) + len(self.key)


def input_digest(body: SentBody, rerun: bool | None) -> bytes:
    """The digest of a keyed request: a strong hash, since other processes must come to the
    same one and nobody to it with another input.  ``body`` is encoded deterministically."""
    digest = _BEGUN[rerun].copy()
    for piece in pieces_of(body):
        digest.update(piece)
    return digest.digest()


_BEGUN = {
    rerun: hashlib.blake2b(first, digest_size=32)
    for rerun, first in ((None, b"?"), (True, b"1"), (False, b"0"))
}
"""To begin one anew takes as long as to hash a small input."""


class KeyAct(enum.IntEnum):
    """The kind of a request about a key."""

    ASK = 0
    """Run this input under the key, unless that is done or under way; and the outcome."""
    ATTACH = 1
    """The outcome of what was asked under it."""
    CANCEL = 2
    FORGET = 3
    WITHDRAW = 4
    """The caller is back, and wants none of what it asked for in earlier sessions."""


class Reissue(NamedTuple):
    """A keyed request is issued again, because its session was unknown."""

    gone: bool
    """Whether that session's epoch is proven dead."""
    earlier: int
    """How many executions may have been started for it there."""


class Keyed(NamedTuple):
    """A request about a key."""

    act: KeyAct
    name: KeyName
    caller: CallerToken
    tag: Tag = b""
    """Of a cancel or a forget."""
    reissue: Reissue | None = None
    """Of an ask, or a command."""


class GenerationState(enum.Enum):
    """Where a generation of a key stands."""

    ABSENT = "absent"
    HELD = "held"
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    CLOSED = "closed"
    READING = "reading"

    __hash__ = object.__hash__  # they are looked up with each step, and Enum's own is slow


@dataclasses.dataclass(slots=True, eq=False)
class Payload:
    """The outcome of a generation: its namespace is charged once with it, however many
    requests are answered with it and have not finished, and until the last of them has."""

    namespace: bytes
    size_bytes: int
    holders: int
    """The generation while it is open, and those requests."""
    after: int = 0
    """So much of the journal is to be safe before anybody is answered with it."""


@final
class _Nobody(dict[RequestId, Any]):
    def __setitem__(self, waiter: RequestId, _: Any) -> NoReturn:
        raise TypeError("nobody comes here: it is shared by all for which nobody waits")


NOBODY: Final = _Nobody()
"""Those who wait, or watch, where nobody does.  Much may be retained for which nobody waits."""


@dataclasses.dataclass(slots=True, eq=False)
class Generation:
    """The work under a key, from the ask that opened it until it is closed and
    none of its executions lives."""

    number: int
    """No two of an epoch have the same, whatever their keys."""
    name: KeyName
    digest: bytes
    body_bytes: int
    rerun: bool | None
    earlier: int
    """Executions that epochs may have started of which nothing is recorded here."""
    state: GenerationState
    ask: Ask | None
    """The ask to be run, while it is HELD."""
    own_bytes: int
    """Of its name, and of that: its outcome others may hold, too."""
    waiters: dict[RequestId, CallerToken]
    """The requests that count: when the last one leaves, the work is cancelled."""
    watchers: dict[RequestId, None]
    """Requests that are answered and never count: they did not send the input, or their
    caller asked again in another session."""
    opened_s: float
    executions: int = 0
    """How many were dispatched: here, and in earlier epochs as far as a journal has them."""
    live: bool = False
    """Whether one of them has not ended."""
    lost: frozenset[CallerToken] = frozenset()
    """Callers whose waiters were lost with their lease.  They go on counting."""
    outcome: RetainedOutcome | None = None
    timed: OrderedDict[int, Generation] | None = None
    """Those with it whose time runs, orphans or retained, while nobody waits."""
    since_s: float = 0.0
    """When nobody waited any more: the orphan deadline or the retention runs from then."""

    @property
    def started(self) -> bool:
        """Whether an execution of it was ever dispatched, as far as anybody knows."""
        return self.executions > 0 or self.earlier > 0

    @property
    def size_bytes(self) -> int:
        """Its part of the bound in bytes."""
        kept = self.outcome.size_bytes if self.outcome is not None else 0
        return self.own_bytes + kept

    def count(self, waiter: RequestId, caller: CallerToken) -> None:
        """One more counts."""
        if not self.waiters:
            self.waiters = {}
        self.waiters[waiter] = caller

    def watch(self, waiter: RequestId) -> None:
        """One more is answered, and does not count."""
        if not self.watchers:
            self.watchers = {}
        self.watchers[waiter] = None

    def wait_in(self, timed: OrderedDict[int, Generation], now_s: float) -> None:
        """Nobody waits for it: from now on, if it was not so before, this time runs."""
        if self.timed is not timed:
            if self.timed is not None:
                self.wait_no_more()
            self.since_s, self.timed = now_s, timed
            timed[self.number] = self

    def wait_no_more(self) -> None:
        """Somebody waits for it, or nothing is left to wait for."""
        if self.timed is not None:
            del self.timed[self.number]
            self.timed = None

    def hold(self, ask: Ask) -> None:
        """It waits for an earlier generation, and needs its input until then."""
        self.state, self.ask = GenerationState.HELD, ask
        self.own_bytes += self.body_bytes

    def drop_ask(self) -> None:
        """It needs its input no more."""
        self.ask = None
        self.own_bytes = self.name.size_bytes


@dataclasses.dataclass(slots=True)
class Usage:
    """The part of the bounds that generations take."""

    generations: int = 0
    own_bytes: int = 0
    """Of their names, and of inputs that are held."""
    outcome_bytes: int = 0
    part: int = dataclasses.field(default=0, compare=False)
    """Of a bound, that no other namespace can take (:mod:`.key_room`)."""

    @property
    def size_bytes(self) -> int:
        """All of their bytes."""
        return self.own_bytes + self.outcome_bytes


class CommandAnswer(NamedTuple):
    """The answer to a cancel or a forget by key, the same to each copy of it."""

    generation: int | None = None
    """Which generation it has closed."""
    started: bool = True
    """False: it ended a generation that had never started, and now never will."""
    refused: bool = False
    """For now: nothing has changed, and the command is to be sent again."""
    finished: bool = False
    """Whether it was to cancel a generation that has its outcome, which stays."""


# -- effects --------------------------------------------------------------------------


class Enter(NamedTuple):
    """Put the work of this generation into the queue, as one request of the server's own,
    which is dispatched when :meth:`.KeyRoom.may_retain` says so, too."""

    generation: Generation
    body: Body
    allowance: int
    traceparent: str | None
    execution_s: float | None
    counted: bool = False
    """Whether a journal has it, with all of its executions."""


class Finish(NamedTuple):
    """Finish that request, if there is one: nobody needs what would come of it, so it is
    unqueued, or its execution stopped."""

    generation: Generation


class Answer(NamedTuple):
    """Complete this request with the outcome: a header of its own, and the same payload."""

    waiter: RequestId
    outcome: RetainedOutcome


class AnswerCancelled(NamedTuple):
    """Complete this request with "cancelled"."""

    waiter: RequestId
    started: bool
    """False: it did not run.  True: it may have run."""


class Refusal(enum.Enum):
    """Why a request does not wait for a generation."""

    CONFLICT = "the key was used for another input"
    UNKNOWN_KEY = "nothing is known under this key: no request came, or its outcome is forgotten"
    FULL = "for now: there is no room for new keys"
    COMMANDS_FULL = "for now: too many commands with ids of their own are remembered"
    CROWDED = "for now: too many requests wait for this key"


class Refuse(NamedTuple):
    """Refuse this request, as if it had never been seen."""

    waiter: RequestId
    why: Refusal


KeyEffect: TypeAlias = Enter | Finish | Answer | AnswerCancelled | Refuse
KeyEffects: TypeAlias = Sequence[KeyEffect]
