"""The door's records of peers and runs, and its effects.

Plain state, no decisions: those are in :mod:`.runs`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from .asks import Message, Wire
from .streaming import Streaming


@dataclasses.dataclass(slots=True, eq=False)
class Peer:
    """One connection."""

    route: bytes
    place: str
    """The address of its machine, or its user on this one."""
    number: int
    """The larger, the later it was opened."""
    closed_s: float | None = None
    """When it was lost; what it had said before may still come in."""
    runs: dict[bytes, Run] = dataclasses.field(default_factory=dict)
    """Those that it waits for."""


class Stage(enum.Enum):
    """Where a run stands."""

    WAITING = "waiting"
    """There is no room for another outcome."""
    RUNNING = "running"
    KEPT = "kept"
    """Its outcome is there, and not known to have arrived."""


@dataclasses.dataclass(slots=True, eq=False)
class Run:
    """One run, from its request until its outcome is taken to have arrived."""

    name: bytes
    digest: bytes
    wire: Wire
    place: str
    asked_bytes: int
    payload: bytes | None
    """The run's payload, until it is started."""
    newest: int
    """The number of the last connection that asked for it."""
    stage: Stage = Stage.WAITING
    waiters: dict[bytes, bool] = dataclasses.field(default_factory=dict)
    """The open connections that asked for it, by route, and whether they were sent its
    outcome."""
    streaming: Streaming = dataclasses.field(default_factory=Streaming)
    """Its deltas, as they come."""
    messages: Sequence[Message] = ()
    """Of the outcome: the deltas, and the reply."""
    afresh: Sequence[Message] = ()
    """The messages before them for a client that may have some of them."""
    size_bytes: int = 0
    """Of the outcome."""
    since_s: float = 0.0
    """When it was sent to all that wait, or when the last of them was lost."""
    forget: bool = True
    """Whether the server retains something of it."""


class Outcome(NamedTuple):
    """The outcome of a run."""

    reply: bytes = b""
    deltas: Sequence[bytes] = ()
    traces: Sequence[str] = ()
    """The traces that the deltas are of."""
    error: str = ""
    """Why there is nothing of this; the verdict is part of it."""
    ran: bool = True
    """False: nothing is retained of what did not run."""


# -- effects --------------------------------------------------------------------------


class Send(NamedTuple):
    """Send this at once, if it can be sent."""

    route: bytes
    message: Message


class Stream(NamedTuple):
    """Send one delta of a run now, or say at once that it could not be sent."""

    route: bytes
    name: bytes
    message: Message


class Deliver(NamedTuple):
    """Send the outcomes of runs, message by message, as the peer takes them, and say of
    each when that is done.  Those that are over by then are left out."""

    route: bytes
    names: tuple[bytes, ...]
    afresh: bool
    """Whether the peer may have a part of them."""
    has: int = 0
    """Else: how many messages of each it has."""


class Start(NamedTuple):
    """Run this."""

    name: bytes
    wire: Wire
    payload: bytes


class Stop(NamedTuple):
    """Nobody waits for the run any more."""

    name: bytes


class Forget(NamedTuple):
    """The outcome needs to be retained no longer."""

    name: bytes


Effect: TypeAlias = Send | Stream | Deliver | Start | Stop | Forget
