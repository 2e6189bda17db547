"""Pausing: nothing is dispatched while a service that rollouts need is broken (a circuit breaker).

Theory of operation
-------------------
A model endpoint that is down fails every rollout within seconds, and workers that die one after
the other lose theirs: thousands of requests would be used up before a person looks.  So after
``pause_after_errors`` failures in a row of the engine or the infrastructure (:data:`FAULTS`, by the
table of endings) nothing more is dispatched, and requests wait.  The result of any rollout ends the
pause, also of one that ran before it began.  During the pause one request is dispatched every
``pause_s`` as a trial; so dispatching goes on by itself once the endpoint is back.

An error of the environment's own code neither counts nor ends a pause: it says nothing about
services.
"""

from __future__ import annotations

from typing import Final, final

from . import error_records
from .endings import Fault, ending_of
from .limits import ServerLimits
from .router_effects import Report
from .terms import Body, Status, one_line

FAULTS: Final = (Fault.ENGINE, Fault.INFRASTRUCTURE)
"""Faults of the services around environments."""

_WHY_BYTES = 300
"""Most bytes of the last failure's text in the reason of a pause."""


@final
class Pausing:
    """Counts failures in a row, and decides whether dispatching is paused."""

    def __init__(self, limits: ServerLimits) -> None:
        self._most = limits.pause_after_errors
        self._pause_s = limits.pause_s
        self._failures = 0
        """Number of failures in a row."""
        self.why = ""
        """Reason of the pause; empty while there is none."""
        self._again_s = 0.0
        """Moment of the next trial in a pause, on the awake clock."""

    def holds(self, now_s: float) -> bool:
        """Whether nothing is to be dispatched now."""
        return bool(self.why) and now_s < self._again_s

    def dispatched(self, now_s: float) -> None:
        """Note a dispatch: in a pause it was a trial, and the next one is ``pause_s`` away."""
        if self.why:
            self._again_s = now_s + self._pause_s

    def reported(self, status: int, payload: Body, now_s: float) -> list[Report]:
        """Count the outcome of an execution."""
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
        """Count the death of a worker with executions: one failure, however many were lost."""
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
