"""The inputs of the router: all that can happen to a server, as data.

Each goes into :meth:`~.router.Router.take`.  Times are of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

from .closing import ClosingStage
from .heartbeat import Heartbeat
from .journal import Record
from .lease import EpochWait
from .terms import Body, Epoch, Route


class ClientMessage(NamedTuple):
    """A message from a client: a header, and for a request a body."""

    route: Route
    frames: Sequence[Body]
    now_s: float


class WorkerMessage(NamedTuple):
    """A message on the workers' socket; ``frames[0]`` is the worker's id."""

    frames: Sequence[Body]
    now_s: float


class HeartbeatReceived(NamedTuple):
    """A heartbeat of a worker's process; see :class:`~.heartbeat.Heartbeat`."""

    worker: bytes
    now_s: float
    lag_s: float
    memory_bytes: int
    where: str


class Spawned(NamedTuple):
    """A process was started for this worker."""

    worker: bytes
    pid: int


class Exited(NamedTuple):
    """A worker's process was reaped, or could not be started."""

    worker: bytes
    now_s: float
    how: str


class Tick(NamedTuple):
    """Time has passed.  It comes after all other input that is there."""

    now_s: float


class PoolWaits(NamedTuple):
    """No worker may be started yet, and this is the reason."""

    why: str


class PoolOpened(NamedTuple):
    """Nothing of these earlier epochs lives on this machine: workers may be started, and hosts are
    welcome."""

    dead_epochs: Collection[Epoch]
    now_s: float


class HostsBefore(NamedTuple):
    """The earlier epochs whose hosts may still have workers."""

    waits: Sequence[EpochWait]
    lease_s: float


class HostMessage(NamedTuple):
    """A message from a host."""

    route: Route
    frames: Sequence[Body]
    now_s: float
    lease_s: float | None = None
    """The time on the clock of leases, where that is another one."""


class HostsTick(NamedTuple):
    """Time has passed for hosts.  It comes before each :class:`Tick`."""

    now_s: float
    lease_s: float | None = None
    """See :class:`HostMessage`."""


class HostsRecorded(NamedTuple):
    """The record of :class:`~.router_effects.RecordHosts` was written, or could not be."""

    why: str
    """Why it could not be; empty if it is safe."""


class TurnOver(NamedTuple):
    """All input that has come together was given: hosts may be sent what they are to have."""


class WorkerBack(NamedTuple):
    """A worker that an earlier epoch has started lives on, at a host that has come back.  It
    follows from a :class:`HostMessage`."""

    worker: bytes
    slot: int
    incarnation: bytes
    pid: int
    is_to_end: bool
    """Whether there is no place for it: the slot is another one's."""
    hello: bytes
    """The header of what it said when it was ready; empty if it has not."""
    next: int
    """No dispatch to it that its host knows had this number, or a greater one."""
    running: Sequence[int]
    """The spans of the dispatches whose code may run."""
    now_s: float
    missing: Sequence[int] = ()
    """The spans of the numbers below ``next`` that no dispatch to it had."""


class HostsDead(NamedTuple):
    """The work of hosts for these epochs is proven dead: nothing of it lives, but for what has
    come back and is known here.  It follows from a :class:`HostsTick`."""

    dead_epochs: Collection[Epoch]
    now_s: float


class CloseAsked(NamedTuple):
    """Take no more work in, and close: from this stage on, whatever an earlier one
    would still wait for.  ``drain_s``: in place of the limit of that name."""

    now_s: float
    stage: ClosingStage = ClosingStage.DRAINING
    drain_s: float | None = None


class Flushed(NamedTuple):
    """The messages that waited for clients have left."""

    now_s: float


class Resume(NamedTuple):
    """Another turn for a router that is behind, after others had theirs."""

    now_s: float


class Restored(NamedTuple):
    """The records of the journal that an earlier epoch has left, the oldest first.  It comes
    before all other inputs; :class:`PoolOpened` says later that the epoch is dead."""

    records: Sequence[Record]
    now_s: float


class Saved(NamedTuple):
    """Records of the journal are safe."""

    upto: int
    now_s: float


class StackTaken(NamedTuple):
    """A worker's answer to the question for the stack of an execution."""

    worker: bytes
    now_s: float
    number: int
    """Number of its dispatch."""
    text: str


class SaveFailed(NamedTuple):
    """Records could not be saved; the shell tries again."""

    why: str
    final: bool
    """Whether it never will: nobody knows what is on the disk."""
    now_s: float


class PeerKnown(NamedTuple):
    """The peer behind a route is known.  After the first of these every message needs a right
    (:mod:`.rights`)."""

    route: Route
    name: str
    """The name of its key; empty: the peer has gone."""
    roles: str
    """With spaces between them."""
    namespaces: str
    """Namespaces of the key, one a line; empty: any."""
    share: float


class AtRest(NamedTuple):
    """Keys with outcomes that an earlier epoch has left in the journal, as
    :data:`~.archive.Packed` packs them.  It may come right after :class:`Restored`."""

    keys: Sequence[bytes]
    now_s: float


class Loaded(NamedTuple):
    """The outcome of a generation, read from the journal."""

    number: int
    frames: Sequence[Body]
    """Header and payload; empty if the outcome could not be read."""
    why: str
    """Reason why it could not be read; empty if it was."""
    now_s: float


class HolderFound(NamedTuple):
    """The interpreter of a silent worker process is held."""

    worker: bytes
    now_s: float
    request: str
    """Request whose code holds it; empty if that is not known."""
    where: str
    """Stack at which it is held."""


RouterInput: TypeAlias = (
    ClientMessage | WorkerMessage | HeartbeatReceived | Spawned | Exited | Tick | PoolWaits
    | PoolOpened | CloseAsked | Flushed | Resume
    | Saved | Restored | StackTaken | SaveFailed | PeerKnown | AtRest | Loaded | HostsBefore
    | HostMessage | HostsTick | HostsRecorded | TurnOver | HolderFound
)  # fmt: skip
"""Everything that changes a router.  Recordings number them: a new one comes last."""

OfHost: TypeAlias = (
    WorkerMessage
    | HeartbeatReceived
    | HolderFound
    | StackTaken
    | Spawned
    | Exited
    | WorkerBack
    | HostsDead
)
"""What follows from the messages and the silence of hosts."""


def inputs_of(
    worker: bytes, heartbeat: Heartbeat, now_s: float
) -> Sequence[HeartbeatReceived | StackTaken | HolderFound]:
    """The inputs that a heartbeat gives: itself, and the answer to a question if it has one; or who
    holds the interpreter."""
    if heartbeat.holder is not None:
        return (HolderFound(worker, now_s, heartbeat.holder, heartbeat.where),)
    received = HeartbeatReceived(worker, now_s, *heartbeat[:3])
    if heartbeat.asked is None:
        return (received,)
    return received, StackTaken(worker, now_s, heartbeat.asked, heartbeat.stack)
