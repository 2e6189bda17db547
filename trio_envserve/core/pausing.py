"""Whether dispatching is paused, because what rollouts need is broken.

Theory of operation
-------------------
A model endpoint or a service that is down fails every rollout within seconds, and workers that
die one after the other lose them: thousands of requests would be used up before anybody looks.
So after ``pause_after_errors`` failures in a row that are the engine's or the infrastructure's
(:data:`FAULTS`, by the table of endings) nothing more is dispatched, and requests wait.  A
result of any rollout says that all is well again, also of one that ran on.  If none runs, one
request in each ``pause_s`` is dispatched to try; so nobody has to be awake when the endpoint
comes back.

An error of the environment's own code is neither: it says nothing about what is around it.
"""

from __future__ import annotations

from typing import Final, final

from . import error_records
from .endings import Fault, ending_of
from .limits import ServerLimits
from .router_effects import Report
from .terms import Body, Status, one_line

FAULTS: Final = (Fault.ENGINE, Fault.INFRASTRUCTURE)
"""Faults of what is around environments."""

_WHY_BYTES = 300


@final
class Pausing:
    """Counts failures in a row, and says whether to wait."""

    def __init__(self, limits: ServerLimits) -> None:
        self._most = limits.pause_after_errors
        self._pause_s = limits.pause_s
        self._failures = 0
        """In a row."""
        self.why = ""
        """Why dispatching is paused; empty if it is not."""
        self._again_s = 0.0
        """While it is: when the next request is tried, on the awake clock."""

    def holds(self, now_s: float) -> bool:
        """Whether nothing is to be dispatched now."""
        return bool(self.why) and now_s < self._again_s

    def dispatched(self, now_s: float) -> None:
        """Something was; if dispatching is paused, to try."""
        if self.why:
            self._again_s = now_s + self._pause_s

    def reported(self, status: int, payload: Body, now_s: float) -> list[Report]:
        """An execution has this outcome."""
        if self._most is None:
            return []
        if status == Status.RESULT:
            return self._succeeded()
        if status == Status.ERROR:
            info = error_records.decode(payload)
            if ending_of(info.code, info.verdict).fault in FAULTS:
                return self._failed(info.message, now_s)
        return []

    def lost(self, worker: str, why: str, now_s: float) -> list[Report]:
        """A worker has died, and what it ran is lost: one failure, however much that was."""
        return [] if self._most is None else self._failed(f"worker {worker}: {why}", now_s)

    def _succeeded(self) -> list[Report]:
        was_paused, self._failures, self.why = bool(self.why), 0, ""
        return [Report("info", "a rollout has a result: dispatching goes on")] if was_paused else []

    def _failed(self, why: str, now_s: float) -> list[Report]:
        assert self._most is not None
        self._failures += 1
        if self._failures < self._most:
            return []
        was_paused = bool(self.why)
        last = one_line(why, _WHY_BYTES)
        self.why = f"failures in a row: {self._failures}; the last one: {last}"
        if was_paused:
            return []
        self._again_s = now_s + self._pause_s
        text = (
            f"dispatching is paused: {self.why}. What waits goes on waiting; one request "
            f"is tried every {self._pause_s:g} s, and a result lets all go on"
        )
        return [Report("error", text)]
