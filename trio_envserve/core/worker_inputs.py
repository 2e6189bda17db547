"""The inputs of the worker: all that can happen to it, as data.

Each goes into :meth:`~.worker.WorkerCore.take`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from .errors import ErrorInfo
from .limits import CAPACITY
from .terms import Body, SentBody, Status


class EnvironmentReady(NamedTuple):
    """The environment is set up.  Given before each beat until the worker is
    :attr:`~.worker.WorkerCore.acknowledged`."""

    pid: int
    environment: str
    rerun: bool
    capacity: int = CAPACITY
    """Executions at once."""


class SetUpFailed(NamedTuple):
    """The environment could not be set up."""

    info: ErrorInfo


class BeatDue(NamedTuple):
    """It is time for a beat, with these statistics."""

    stats: dict[str, Any]


class RouterMessage(NamedTuple):
    """A message from the router: incarnation, header, and for a dispatch a body."""

    frames: Sequence[Body]


class DeltaMade(NamedTuple):
    """An execution says one piece of what it will come to, after so many others that were
    dropped before they got here."""

    number: int
    payload: bytes
    skipped: int = 0


class NoteMade(NamedTuple):
    """An execution has noted how far it is; see :mod:`.notes`."""

    number: int
    note: bytes


class OutcomeMade(NamedTuple):
    """An execution has ended in this outcome."""

    number: int
    status: Status
    payload: SentBody
    duration_s: float | None


class OutcomeParked(NamedTuple):
    """The outcome of this execution is elsewhere now, and reads as ``payload``."""

    number: int
    payload: Body


WorkerInput: TypeAlias = (
    EnvironmentReady | SetUpFailed | BeatDue | RouterMessage | DeltaMade | NoteMade
    | OutcomeMade | OutcomeParked
)  # fmt: skip
"""Everything that changes a worker."""
