"""Inputs of a client core, as data: :meth:`~.client.ClientCore.take` takes them.

Times are of the monotonic clock.
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
    """Digest of an ask: :func:`~.key_records.input_digest`."""
    tag: Tag = None
    """Target of a cancel or a forget."""


class CallSubmitted(NamedTuple):
    """A caller submits a call."""

    call: int
    """Number of the call in effects and further inputs; no number is given twice."""
    body: SentBody
    now_s: float
    rerun: bool | None = None
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
