"""Readings of a worker's messages, for the router."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from .executions import Execution
from .requests import RetainedOutcome, Suspicion
from .terms import Body


class ExecutionEnded(NamedTuple):
    """An execution has ended: with an outcome, or, if None, with its worker."""

    execution: Execution
    kept: RetainedOutcome | None
    why: str
    suspicion: Suspicion | None = None


class Stray(NamedTuple):
    """An outcome came from an execution that had already ended."""

    session: bytes
    sequence: int


class Said(NamedTuple):
    """An execution has said one piece of its outcome."""

    execution: Execution
    delta: int
    body: Body


class Noted(NamedTuple):
    """These executions have noted how far they are."""

    executions: list[Execution]


class Wrong(NamedTuple):
    """A row of a batch says what cannot be.  The other rows are as if it were not there."""

    text: str


Heard: TypeAlias = ExecutionEnded | Stray | Said | Noted | Wrong
"""The router's reading of a message of a worker."""
