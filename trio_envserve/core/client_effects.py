"""The effects of the client: all that its shell must do, as data.

:meth:`~.client.ClientCore.take` gives them, to be carried out in their order.
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
        """Of the message alone, each in one piece."""
        header = messages.encode(self.message)
        return (header,) if self.body is None else (header, whole(self.body))


class Answer(NamedTuple):
    """The outcome of a call.  Say :class:`~.client_inputs.OutcomeReceived` when the
    caller has it."""

    call: int
    status: Status
    body: Body
    worker: str
    duration_s: float | None
    executions: int


class Say(NamedTuple):
    """One piece of what a call will come to.  They are numbered from 0; of another
    execution they begin anew, and any of them may be missing."""

    call: int
    delta: int
    body: Body


class SayNote(NamedTuple):
    """The last note of a call's execution; see :mod:`.notes`."""

    call: int
    note: bytes


class Fail(NamedTuple):
    """A call ends without an outcome from the server."""

    call: int
    info: ErrorInfo


class QueryAnswered(NamedTuple):
    """The server's answer to a :class:`~.messages.Query`."""

    probe: int
    body: Body


class QueriesRefused(NamedTuple):
    """The server refuses a query as malformed: those that are open are not sent again."""

    text: str


class Reconnect(NamedTuple):
    """Give the connection up and make a new one: nothing is answered on it."""


ClientEffect: TypeAlias = (
    ToServer | Answer | Say | SayNote | Fail | QueryAnswered | QueriesRefused | Reconnect | Report
)
"""Everything that a client can have done."""
