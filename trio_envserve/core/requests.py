"""Records of requests: what one may start, and what it comes to.

Plain state, no decisions: those are the cells of the table in :mod:`.work`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

from . import messages
from .errors import ProtocolError
from .messages import Outcome
from .terms import Body, weight

Suspicion: TypeAlias = "tuple[bytes, int]"
"""A worker that died, and how many executions it had then: any of them may be why."""


def grant(allowance: int) -> int:
    """Executions that one session may start: three quarters of the allowance that is left, at
    least 1.

    All that were granted to a lost session count as used, since nobody knows how many it has
    started (G2, over the whole life of the call).  If each session is lost in turn, an allowance of
    4 is granted as 3 and 1, and one of 50 as 37, 9, 3 and 1.
    """
    return max(1, allowance * 3 // 4)


OUTCOME_BYTES = 64
"""An outcome counts for so much besides its payload: about the size of its header."""


@dataclasses.dataclass(slots=True)
class RetainedOutcome:
    """An outcome; every transmission of it has these fields and this body (G3)."""

    outcome: Outcome
    payload: Body
    size_bytes: int
    """The bytes it counts for: all of it, but for those that are counted in ``shared``."""
    shared: Any = dataclasses.field(default=None, compare=False)
    """The payload that others hold, too.  Opaque here (:class:`~.key_records.Payload`)."""

    @property
    def frames(self) -> tuple[Body, ...]:
        """Frames of the outcome alone, as a journal keeps them."""
        return messages.encode(self.outcome), self.payload

    @classmethod
    def made(cls, outcome: Outcome, payload: Body) -> RetainedOutcome:
        """An outcome that holds its payload alone."""
        return cls(outcome, payload, OUTCOME_BYTES + weight(payload))

    @classmethod
    def of_frames(cls, frames: Sequence[Body]) -> RetainedOutcome:
        """Read an outcome of a journal.  ProtocolError if it is none."""
        outcome, payload = messages.read(frames, most_bytes=len(frames[0]))[0]
        if not isinstance(outcome, Outcome) or payload is None:
            raise ProtocolError(f"{type(outcome).__name__} in the place of an outcome")
        return cls.made(outcome, payload)


@dataclasses.dataclass(slots=True, eq=False)
class Owner:
    """The key to which sessions belong (:mod:`.rights`)."""

    name: str
    unfinished: int = 0
    """Requests of all of these sessions."""
