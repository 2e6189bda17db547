"""The inputs of the client: all that can happen to it, as data.

Each goes into :meth:`~.client.ClientCore.take`.  Times are of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

from .key_records import KeyAct, KeyName, Tag
from .terms import DIGEST_BYTES, Body, SentBody


class CallKey(NamedTuple):
    """A call's request about a key."""

    act: KeyAct
    name: KeyName
    digest: bytes = bytes(DIGEST_BYTES)
    """Of an ask: :func:`~.key_records.input_digest`."""
    tag: Tag = None
    """Of a cancel or a forget: what it hits."""


class CallSubmitted(NamedTuple):
    """A caller asks."""

    call: int
    """Its number, by which effects and further inputs name it.  Whoever gives the
    numbers gives none twice."""
    body: SentBody
    now_s: float
    rerun: bool | None = None
    max_executions: int | None = None
    """At most so many in all; None: the limit of that name."""
    limit_s: float | None = None
    """How long the caller waits; it travels with the request and holds on the server too."""
    key: CallKey | None = None
    """Its request about a key, if it names one."""
    traceparent: str | None = None
    """The caller's span."""
    execution_s: float | None = None
    """How long each execution may last; None: as long as the server lets any."""


class OutcomeReceived(NamedTuple):
    """The caller has the outcome in hands: the server may forget it."""

    call: int
    now_s: float


class CallsCancelled(NamedTuple):
    """Nobody wants the outcomes of these calls any more.  Some may be over."""

    calls: Collection[int]
    now_s: float


class ServerMessage(NamedTuple):
    """A message from the server: a header, and for an outcome or statistics a body."""

    frames: Sequence[Body]
    now_s: float


class Connected(NamedTuple):
    """A connection was made."""

    now_s: float


class Disconnected(NamedTuple):
    """The connection is gone, or could not be made."""

    now_s: float
    trouble: str
    """The transport's words about it."""


class ClientTick(NamedTuple):
    """Time has passed.  It comes after all other input that is there."""

    now_s: float
    late_s: float = 0.0
    """How late this side's own loop was."""


class ClientClosed(NamedTuple):
    """Every call ends now, and nothing is asked any more."""

    now_s: float


ClientInput: TypeAlias = (
    CallSubmitted | OutcomeReceived | CallsCancelled | ServerMessage | Connected | Disconnected
    | ClientTick | ClientClosed
)  # fmt: skip
"""Everything that changes a client."""
