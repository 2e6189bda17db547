"""The effects of the router: all that a server must do, as data.

:meth:`~.router.Router.take` gives them, to be carried out in their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from . import messages
from .journal import Record
from .lease import EpochWait
from .terms import Body, Incarnation, Route


class ToClient(NamedTuple):
    """Send a message to a client, with others in a batch if it may be."""

    route: Route
    message: messages.Message
    body: Body | None = None

    @property
    def frames(self) -> tuple[Body, ...]:
        """Frames of the message alone."""
        header = messages.encode(self.message)
        return (header,) if self.body is None else (header, self.body)


def answer_to(route: Route, probe: int, record: dict[str, Any]) -> ToClient:
    """The answer to a query."""
    return ToClient(route, messages.QueryAnswer(probe), messages.encode_record(record))


class ToWorker(NamedTuple):
    """Send a message to this incarnation of a worker, with others in a batch if it may be."""

    worker: bytes
    incarnation: Incarnation
    message: messages.Message
    body: Body | None = None

    @property
    def frames(self) -> tuple[Body, ...]:
        """Frames of the message alone; the first one is the incarnation."""
        header = messages.encode(self.message)
        if self.body is None:
            return self.incarnation, header
        return self.incarnation, header, self.body


class TellStats(NamedTuple):
    """Send a client the statistics for which it asked."""

    route: Route
    probe: int
    stats: dict[str, Any]
    """Statistics of the router: one object for all queries of one turn."""

    def told(self, record: bytes) -> ToClient:
        """The message to send; ``record``: the statistics and the shell's counters, encoded."""
        return ToClient(self.route, messages.QueryAnswer(self.probe), record)


class Spawn(NamedTuple):
    """Start a worker process in this slot."""

    slot: int
    worker: bytes
    incarnation: Incarnation


class Kill(NamedTuple):
    """Kill the process and all it has started."""

    worker: bytes
    why: str


class Lost(NamedTuple):
    """The process is dead and reaped: its executions are over.  Nothing is left to do."""

    worker: bytes
    why: str
    host: str = ""
    """The name of its host; empty for one of this machine."""


class AskWorker(NamedTuple):
    """Ask a worker's process where an execution stands.  The answer is a
    :class:`~.router_inputs.StackTaken`; there may be none."""

    worker: bytes
    number: int
    """Number of its dispatch."""
    request: str
    """As logs have it."""


class ToHost(NamedTuple):
    """Send these frames to a host."""

    route: Route
    frames: tuple[Body, ...]


class RecordHosts(NamedTuple):
    """Replace durably what a later server must know of hosts, and say
    :class:`~.router_inputs.HostsRecorded`."""

    waits: tuple[EpochWait, ...]


class Report(NamedTuple):
    """A line for the log."""

    level: str
    text: str


class Flush(NamedTuple):
    """Let what waits for clients leave, then say :class:`~.router_inputs.Flushed`."""


class ClosingOver(NamedTuple):
    """Closing is over."""

    left: tuple[bytes, ...]
    """The ids of workers that did not end in time."""


class Save(NamedTuple):
    """Make these records of the journal safe, after all earlier ones, and say
    :class:`~.router_inputs.Saved`."""

    records: tuple[Record, ...]
    upto: int
    """Number of all records up to the last one of these."""


class Load(NamedTuple):
    """Read the outcome of this generation from the journal, and say
    :class:`~.router_inputs.Loaded`."""

    number: int


PoolEffect: TypeAlias = Spawn | Kill | Lost | Report
RouterEffect: TypeAlias = (
    ToClient | ToWorker | TellStats | AskWorker | PoolEffect | Flush | ClosingOver | Save | Load
    | ToHost | RecordHosts
)  # fmt: skip
"""Everything that a router can have done.  Those for a worker of a host are carried out by a
:class:`ToHost`, and are here for who watches."""
