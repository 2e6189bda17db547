"""Requests and sessions: the records that the dedup cache decides about.

Plain state, no decisions: those are the cells of the table in :mod:`.request_table`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, TypeAlias

from . import messages
from .errors import ProtocolError
from .messages import Outcome
from .ranges import Ranges
from .terms import Body, RequestId, Route, SessionId


class RequestState(enum.Enum):
    """Where a request stands."""

    NOT_SEEN = "not seen"
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FINISHED = "finished"

    __hash__ = object.__hash__  # they are looked up with each step, and Enum's own is slow


Suspicion: TypeAlias = "tuple[bytes, int]"
"""A worker that died, and how many executions it had then: any of them may be why."""


@dataclasses.dataclass(slots=True)
class Ask:
    """The content of a request besides its id; the same in each transmission."""

    digest: bytes
    body: Body
    rerun: bool | None
    """Consent to a further execution after proof of death; None: as the
    environment declares (:attr:`DedupCache.declared_rerun`)."""
    allowance: int
    """Most executions that may be started for it here."""
    key: Any = None
    """Its request about a key, if it names one.  Opaque here (:class:`~.key_records.Keyed`)."""
    traceparent: str | None = None
    """The caller's span.  Another one is no conflict: the first is passed on."""
    execution_s: float | None = None
    """How long each execution may last, by its caller; None: as long as any."""


OUTCOME_BYTES = 64
"""An outcome counts for so much besides its payload: about the size of its header."""


@dataclasses.dataclass(slots=True)
class RetainedOutcome:
    """An outcome; every transmission of it has these fields and this body (G3)."""

    outcome: Outcome
    payload: Body
    size_bytes: int
    """The bytes it counts for: all of it, but for those that are counted in ``shared``."""
    shared: Any = dataclasses.field(default=None, compare=False)
    """The payload that others hold, too.  Opaque here (:class:`~.key_records.Payload`)."""
    sent_probe: int = 0
    """The last probe of its session that was answered before it was last sent; -1 if
    that was over an older connection."""

    @property
    def frames(self) -> tuple[Body, ...]:
        """Of the outcome alone, as a journal keeps them."""
        return messages.encode(self.outcome), self.payload

    @classmethod
    def made(cls, outcome: Outcome, payload: Body) -> RetainedOutcome:
        """An outcome that holds its payload alone."""
        return cls(outcome, payload, OUTCOME_BYTES + len(payload))

    @classmethod
    def of_frames(cls, frames: Sequence[Body]) -> RetainedOutcome:
        """Read an outcome of a journal.  ProtocolError if it is none."""
        outcome, payload = messages.read(frames, most_bytes=len(frames[0]))[0]
        if not isinstance(outcome, Outcome) or payload is None:
            raise ProtocolError(f"{type(outcome).__name__} in the place of an outcome")
        return cls.made(outcome, payload)


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """A request that was seen and is not finished."""

    id: RequestId
    digest: bytes
    rerun: bool | None
    allowance: int
    body: Body | None
    """Held until no further execution is possible."""
    body_bytes: int
    state: RequestState = RequestState.WAITING
    key: Any = None
    """Its request about a key.  It waits for the work of that, and none is its own."""
    traceparent: str | None = None
    """The span below which its executions are."""
    execution: Any = None
    """The execution that will bring its outcome, while RUNNING.  Opaque here."""
    executions: int = 0
    """How many were ever dispatched, whether or not a worker got to them."""
    queued_s: float = 0.0
    """When it was last put into the queue, on the awake clock."""
    suspicion: Suspicion | None = None
    """A worker died of, or beside, its last execution: the next one is in a smaller
    group of those that it was with (:mod:`.scheduler`)."""
    kept: RetainedOutcome | None = None
    execution_s: float | None = None
    """How long each of its executions may last, by its caller; None: as long as any."""


@dataclasses.dataclass(slots=True, eq=False)
class Owner:
    """The key to which sessions belong (:mod:`.rights`)."""

    name: str
    unfinished: int = 0
    """Requests of all of these sessions."""


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """The server's memory of one client."""

    id: SessionId
    nonce: bytes
    name: str
    route: Route
    connection: int
    heard_s: float
    """The awake time at which the client was last heard."""
    own: bytes = b""
    """The namespace, if it is the server's own, for the work of the keys of that
    (:mod:`.keyed`): it has no client, and what it has finished is not asked for again."""
    opener: Route = b""
    """The connection on which it was opened, and among whose sessions it counts."""
    owner: Owner | None = None
    """The key to which it belongs, where clients have keys."""
    entries: dict[int, Entry] = dataclasses.field(default_factory=dict)
    finished: Ranges = dataclasses.field(default_factory=Ranges)
    ended: bool = False
    """Its lease has ended or it said goodbye; it is forgotten when nothing of it runs."""
    message_bytes: int = 2**63
    """The largest frame that the client takes; its connection ends at a larger one."""
    probe: int = 0
    """The newest probe that was answered."""
    live_executions: int = 0
    """Executions on workers, those without a request included."""
    running_count: int = 0
    queued_count: int = 0
    held_bytes: int = 0
    kept_bytes: int = 0
    """Bytes of kept outcomes, and of those under way from a worker."""
    announced_bytes: int = 0
    """Bytes of outcomes that wait at their workers for room."""
    kept_count: int = 0
    kept_unrun: int = 0
    """Kept outcomes of requests that never ran."""

    def state(self, sequence: int) -> RequestState:
        """Where a sequence of this session stands."""
        entry = self.entries.get(sequence)
        if entry is not None:
            return entry.state
        return RequestState.FINISHED if self.has_finished(sequence) else RequestState.NOT_SEEN

    def has_finished(self, sequence: int) -> bool:
        """Whether a sequence without an entry had one."""
        return self.ended or sequence in self.finished


@dataclasses.dataclass(slots=True)
class Counters:
    """The counters of the cache since it was made."""

    requests: int = 0
    entered: int = 0
    coalesced: int = 0
    replayed: int = 0
    conflicts: int = 0
    spent: int = 0
    refused_for_now: int = 0
    dispatched: int = 0
    completed: int = 0
    finished: int = 0
    cancelled: int = 0
    stray_outcomes: int = 0
    reruns: int = 0
    lost: int = 0
    deadlines: int = 0
    sessions_opened: int = 0
    sessions_refused: int = 0
    sessions_ended: int = 0
