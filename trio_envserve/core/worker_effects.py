"""The effects of the worker: all that its shell must do, as data.

:meth:`~.worker.WorkerCore.take` gives them, to be carried out in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from .messages import Message, in_batches
from .terms import Body, Incarnation, RequestId, SentBody, whole


class Run(NamedTuple):
    """Start an execution."""

    number: int
    request: RequestId
    client: str
    body: Body
    traceparent: str | None = None
    """The span below which those of the execution are."""


class CancelRun(NamedTuple):
    """Cancel an execution; its end is still to be reported."""

    number: int


class Park(NamedTuple):
    """Put this outcome where it takes no memory, and say so with
    :class:`~.worker_inputs.OutcomeParked`; it stays where it is if that cannot be done."""

    number: int
    payload: SentBody


class ToRouter(NamedTuple):
    """Send a message to the router, with others in a batch if it may be."""

    incarnation: Incarnation
    message: Message
    body: SentBody | None = None
    client: str = ""
    """Of an outcome and of a delta: whose they are."""

    @property
    def frames(self) -> tuple[Body, ...]:
        """Of the message alone, each in one piece."""
        return (*map(whole, next(frames_to_router((self,)))),)


def frames_to_router(said: Iterable[ToRouter]) -> Iterator[tuple[SentBody, ...]]:
    """The frames of these messages, in this order.  Those of one client share batches."""
    for (incarnation, client), each in groupby(said, _OF):
        for header, *body in in_batches((one.message, one.body) for one in each):
            yield (incarnation, client.encode(), header, *body) if body else (incarnation, header)


_OF = attrgetter("incarnation", "client")


class Exit(NamedTuple):
    """Tear down and exit: there is no more work to come."""


WorkerEffect: TypeAlias = Run | CancelRun | Park | ToRouter | Exit
"""Everything that a worker can have done."""
