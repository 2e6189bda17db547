"""How late an event loop is: seen by itself, and by a thread beside it."""

from __future__ import annotations

from collections import deque


class LagMeter:
    """Keeps the last samples of lateness, in seconds."""

    __slots__ = ("_samples", "period_s")

    def __init__(self, period_s: float = 0.1, window: int = 600) -> None:
        self.period_s = period_s
        """How long the sampler sleeps; later than this is lag."""
        self._samples: deque[float] = deque(maxlen=window)

    def record(self, slept_s: float) -> float:
        """A sleep of one period took ``slept_s``; returns the lag."""
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
    """For how long a loop is blocked, as a thread beside it sees it.

    The loop says each time when it runs; the thread looks at that every ``turn_s``.  A
    thread that comes to look later than it meant to has not run itself.  Unless the
    process was busy meanwhile (code that holds the interpreter), it was stopped, or the
    whole machine was: the loop could not have run either, and is not blamed for it.
    """

    __slots__ = ("_busy_s", "_looked_s", "_missed_s", "_ran_s", "_turn_s")

    def __init__(self, turn_s: float, *, now_s: float, busy_s: float) -> None:
        """``now_s`` and ``busy_s`` are as for :meth:`look`, which comes first one turn on."""
        self._turn_s = turn_s
        self._looked_s = now_s
        self._busy_s = busy_s
        self._ran_s: float | None = None
        self._missed_s = 0.0
        """Since the loop ran last."""

    def look(self, now_s: float, busy_s: float, ran_s: float | None, period_s: float) -> float:
        """How late the loop is, in seconds.

        ``busy_s`` is the processor time that the process has used so far; ``ran_s`` is
        when the loop ran last (None: it has not begun), ``period_s`` after which it
        meant to run again.
        """
        since_s = now_s - self._looked_s
        late_s = min(since_s - self._turn_s, since_s - (busy_s - self._busy_s))
        self._looked_s, self._busy_s = now_s, busy_s
        if ran_s is None:
            return 0.0
        if ran_s != self._ran_s:
            self._ran_s, self._missed_s = ran_s, 0.0
        self._missed_s += max(0.0, min(late_s, now_s - ran_s))
        return max(0.0, now_s - ran_s - period_s - self._missed_s)
