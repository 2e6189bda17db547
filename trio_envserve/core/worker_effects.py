"""The effects of the worker: all that its shell must do, as data.

:meth:`~.worker.WorkerCore.take` gives them, to be carried out in their order.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from .terms import Body, RequestId


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
    payload: Body


class ToRouter(NamedTuple):
    """Send these frames to the router."""

    frames: tuple[Body, ...]


class Exit(NamedTuple):
    """Tear down and exit: there is no more work to come."""


WorkerEffect: TypeAlias = Run | CancelRun | Park | ToRouter | Exit
"""Everything that a worker can have done."""
