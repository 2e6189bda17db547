"""Effects of a client core, as data: the shell carries them out in order.

:meth:`~.client.ClientCore.take` returns them.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from . import messages
from .errors import ErrorInfo
from .router_effects import Report
from .terms import Body, SentBody, Status, whole


class ToServer(NamedTuple):
    """Send a message to the server, with others in a batch if it may be."""

    message: messages.Message
    body: SentBody | None = None

    @property
    def frames(self) -> tuple[Body, ...]:
        """Frames of the message alone, each in one piece."""
        header = messages.encode(self.message)
        return (header,) if self.body is None else (header, whole(self.body))


class Answer(NamedTuple):
    """The outcome of a call.  The input :class:`~.client_inputs.OutcomeReceived` is due once the
    caller has it."""

    call: int
    status: Status
    body: Body
    worker: str
    duration_s: float | None
    executions: int
    error: ErrorInfo | None
    """The error in the body; None if it is a result."""


class PassDelta(NamedTuple):
    """Pass a delta of a call's outcome on to its caller.  Deltas are numbered from 0, anew for
    each execution, and any of them may be missing."""

    call: int
    delta: int
    body: Body


class PassNote(NamedTuple):
    """Pass the last note of a call's execution on to its caller; see :mod:`.notes`."""

    call: int
    note: bytes


class Fail(NamedTuple):
    """End a call without an outcome from the server."""

    call: int
    info: ErrorInfo


class QueryAnswered(NamedTuple):
    """Pass the server's answer to a :class:`~.messages.Query` on."""

    probe: int
    body: Body


class QueriesRefused(NamedTuple):
    """Fail all open queries: the server refuses a query as malformed."""

    text: str


class Reconnect(NamedTuple):
    """Replace the connection: nothing is answered on it."""


ClientEffect: TypeAlias = (
    ToServer
    | Answer
    | PassDelta
    | PassNote
    | Fail
    | QueryAnswered
    | QueriesRefused
    | Reconnect
    | Report
)
"""All effects of a client."""
