"""A clock that stands still while its owner sleeps.

Leases and suspicions must not run while this process was stopped or its loop
was held up: nobody could have been heard then.  Each reading may add at most
one step, however much time has passed; a loop that runs reads it often.
"""

from __future__ import annotations


class AwakeClock:
    """Counts the seconds in which its owner was awake."""

    __slots__ = ("awake_s", "last_s", "step_s")

    def __init__(self, step_s: float, now_s: float) -> None:
        self.step_s = step_s
        self.awake_s = 0.0
        self.last_s = now_s
        """The latest reading of the monotonic clock."""

    def read(self, now_s: float) -> float:
        """Awake time at ``now_s`` of the monotonic clock."""
        passed_s = now_s - self.last_s
        if passed_s > 0:
            self.last_s = now_s
            self.awake_s += min(passed_s, self.step_s)
        return self.awake_s
