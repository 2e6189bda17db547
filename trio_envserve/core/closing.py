"""Closing a server: its stages, and the end of each.

Theory of operation
-------------------
A server that closes goes through the stages below, in this order.  A stage ends when
what it waits for is gone, or when its time is over, so closing ends within the sum of
the limits, whatever happens.  A stage with nothing to wait for ends at once.

========== ======================================================= =======
stage      what the server waits for                               at most
========== ======================================================= =======
DRAINING   executions end, resources are destroyed, outcomes are   drain_s
           safe and clients have them
CANCELLING cancelled executions end, resources are destroyed       stop_s
ENDING     workers that were told to exit do                       stop_s
KILLING    killed workers are reaped, the disk saves and reads     reap_s
FLUSHING   the last answers leave                                  flush_s
========== ======================================================= =======

This module decides which stage it is; the router does what belongs to entering one.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from .limits import ServerLimits


class ClosingStage(enum.Enum):
    """A stage of closing, in their order; the values go into the status."""

    SERVING = "serving"
    DRAINING = "draining"
    CANCELLING = "cancelling"
    ENDING = "ending"
    KILLING = "killing"
    FLUSHING = "flushing"
    CLOSED = "closed"


class Held(NamedTuple):
    """The things that a closing server still waits for."""

    running: int
    """Executions."""
    outcomes: int
    """Outcomes that clients who are still there have not fetched, or that wait for the disk."""
    workers: int
    """Workers that are not proven dead."""
    on_disk: int = 0
    """Number of outcomes that wait for the disk: they are not safe, or are being read."""
    resources: int = 0
    """Number of resources that are being destroyed, or wait for that."""


class Closing:
    """Which stage a server is in, and until when.  Times are monotonic."""

    __slots__ = ("_times_s", "_until_s", "drained", "flushed", "stage")

    def __init__(self, limits: ServerLimits, flush_s: float) -> None:
        self.stage = ClosingStage.SERVING
        self.drained = False
        """Whether the drain ended because nothing was left to wait for."""
        self.flushed = False
        """Whether the last answers have left."""
        self._until_s = 0.0
        self._times_s = {
            ClosingStage.DRAINING.value: limits.drain_s,
            ClosingStage.CANCELLING.value: limits.stop_s,
            ClosingStage.ENDING.value: limits.stop_s,
            ClosingStage.KILLING.value: limits.reap_s,
            ClosingStage.FLUSHING.value: flush_s,
        }

    @property
    def begun(self) -> bool:
        """Whether the server takes no more work in."""
        return self.stage is not ClosingStage.SERVING

    @property
    def cancels(self) -> bool:
        """Whether all that runs is answered and stopped."""
        return self.stage not in (ClosingStage.SERVING, ClosingStage.DRAINING)

    @property
    def flushes(self) -> bool:
        """Whether the last answers leave: what is not decided by now is told to nobody."""
        return self.stage is ClosingStage.FLUSHING

    def until(self, to: ClosingStage) -> list[ClosingStage]:
        """The stages to enter, in their order, for this one to be reached."""
        return _ORDER[_ORDER.index(self.stage) + 1 : _ORDER.index(to) + 1]

    def enter(self, stage: ClosingStage, now_s: float) -> None:
        """A stage begins."""
        self.stage = stage
        self._until_s = now_s + self._times_s.get(stage.value, 0.0)

    def limit_drain(self, until_s: float) -> None:
        """End a drain at this time, unless it ends earlier."""
        if self.stage is ClosingStage.DRAINING:
            self._until_s = min(self._until_s, until_s)

    def following(self, now_s: float, held: Held) -> ClosingStage | None:
        """The stage to enter now; None to stay in this one."""
        match self.stage:
            case ClosingStage.SERVING | ClosingStage.CLOSED:
                return None
            case ClosingStage.DRAINING:
                ended = self.drained = not (held.running or held.outcomes or held.resources)
            case ClosingStage.CANCELLING:
                ended = not (held.running or held.resources)
            case ClosingStage.ENDING:
                ended = not held.workers
            case ClosingStage.KILLING:  # the next stage sends what is there then
                ended = not (held.workers or held.on_disk)
            case _:
                ended = self.flushed
        if not ended and now_s < self._until_s:
            return None
        return _ORDER[_ORDER.index(self.stage) + 1]

    def left_s(self, now_s: float) -> float:
        """Seconds until the next stage at the latest."""
        return max(0.0, self._until_s - now_s)


_ORDER = list(ClosingStage)
