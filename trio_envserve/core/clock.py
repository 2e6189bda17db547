"""Time awake, and the lateness (lag) of an event loop: measured by the loop itself, and by a
thread beside it."""

from __future__ import annotations

from collections import deque


class AwakeClock:
    """Counts the seconds in which its owner was awake.

    Leases and suspicions must not run while this process was stopped or its loop was held up:
    nobody could have been heard then.  Each reading may add at most one step, however much time
    has passed; a loop that runs reads it often.
    """

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


class LagMeter:
    """The latest samples of an event loop's lag, in seconds."""

    __slots__ = ("_samples", "period_s")

    def __init__(self, period_s: float = 0.1, window: int = 600) -> None:
        self.period_s = period_s
        """Length of the sampler's sleep; what a sleep takes longer is lag."""
        self._samples: deque[float] = deque(maxlen=window)

    def record(self, slept_s: float) -> float:
        """Record that a sleep of one period took ``slept_s``; returns the lag."""
        lag_s = max(0.0, slept_s - self.period_s)
        self._samples.append(lag_s)
        return lag_s

    def summary(self, prefix: str) -> dict[str, float]:
        """Median, 99th percentile and maximum of the window, in seconds."""
        ordered = sorted(self._samples) or [0.0]
        return {
            f"{prefix}_lag_p50_s": ordered[len(ordered) // 2],
            f"{prefix}_lag_p99_s": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            f"{prefix}_lag_max_s": ordered[-1],
        }


class BlockedFor:
    """Measures how long an event loop is blocked, from a thread beside it.

    The loop notes the time of each of its turns; the thread reads that every ``turn_s``.  If the
    thread itself runs later than it meant to, either the process was busy (some code held the
    interpreter), or the process or the whole machine was stopped.  In the second case the loop
    could not have run either, and that time does not count as blocked.
    """

    __slots__ = ("_busy_s", "_looked_s", "_missed_s", "_ran_s", "_turn_s")

    def __init__(self, turn_s: float, *, now_s: float, busy_s: float) -> None:
        """``now_s``, ``busy_s``: as for :meth:`look`, which is first called a turn later."""
        self._turn_s = turn_s
        self._looked_s = now_s
        self._busy_s = busy_s
        self._ran_s: float | None = None
        self._missed_s = 0.0
        """Time for which the process was stopped since the loop ran last."""

    def look(self, now_s: float, busy_s: float, ran_s: float | None, period_s: float) -> float:
        """The lag of the loop, in seconds.

        ``busy_s``: processor time that the process has used so far.  ``ran_s``: moment of the
        loop's last turn; None if it has not begun.  ``period_s``: time after which the loop meant
        to run again."""
        since_s = now_s - self._looked_s
        late_s = min(since_s - self._turn_s, since_s - (busy_s - self._busy_s))
        self._looked_s, self._busy_s = now_s, busy_s
        if ran_s is None:
            return 0.0
        if ran_s != self._ran_s:
            self._ran_s, self._missed_s = ran_s, 0.0
        self._missed_s += max(0.0, min(late_s, now_s - ran_s))
        return max(0.0, now_s - ran_s - period_s - self._missed_s)
