"""The lives of workers as a host remembers them, for a router that takes it over."""

from __future__ import annotations

import dataclasses

from .messages import Announced, Declined, Dispatch, Message, WorkerHello, WorkerOutcome
from .ranges import Ranges
from .terms import Body, Incarnation


@dataclasses.dataclass(slots=True)
class WorkerLife:
    """A worker that a host reports to the router that takes it over."""

    incarnation: Incarnation
    place: int
    pid: int = 0
    hello: bytes = b""
    """The header of what it said when it was ready."""
    next: int = 0
    """One more than the greatest number of a dispatch to it."""
    running: set[int] = dataclasses.field(default_factory=set)
    """The dispatches that were passed on to it, and whose end it has not said."""

    def told(self, message: Message) -> None:
        """This is for the worker."""
        if isinstance(message, Dispatch):
            self.next = max(self.next, message.number + 1)
            self.running.add(message.number)

    def said(self, header: Body, message: Message) -> None:
        """The worker says this."""
        match message:
            case WorkerHello():
                self.hello = bytes(header)
            case WorkerOutcome() | Announced():
                self.running.discard(message.number)
            case Declined():
                self.running.difference_update(Ranges.from_flat(message.numbers))
            case _:
                pass
