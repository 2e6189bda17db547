"""The effects of :class:`~.host.Host`, which are done in their order."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from .terms import Body, Incarnation


class ToRouter(NamedTuple):
    """Send these frames over the newest connection."""

    frames: tuple[Body, ...]


class StartWorker(NamedTuple):
    """Start a process for this worker; then say :meth:`.Host.spawned`, and, when it is
    reaped or cannot be started, :meth:`.Host.exited`."""

    worker: bytes
    incarnation: Incarnation
    slot: int
    """Which of the host's places it has, from 0: one that was started there before may still
    be ending."""


class TellWorker(NamedTuple):
    """Send these frames to a worker."""

    worker: bytes
    frames: tuple[Body, ...]


class KillWorker(NamedTuple):
    """Kill the process and all that it has started."""

    worker: bytes
    why: str


class SetDeadline(NamedTuple):
    """Tell the guard by when it, and all workers, must be dead.  It comes before the
    workers that may be started for it."""

    deadline_s: float


class NewGuard(NamedTuple):
    """Whatever lives is dead by now, or is reaped: a guard that was never told a deadline is
    to take the place of the one before."""


class Serve(NamedTuple):
    """The router says what is to be run, before the first worker of a tenure starts."""

    serves: dict[str, Any]


class Say(NamedTuple):
    """A line for the log."""

    level: str
    text: str


HostEffect: TypeAlias = (
    ToRouter | StartWorker | TellWorker | KillWorker | SetDeadline | NewGuard | Serve | Say
)
