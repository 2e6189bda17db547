"""How late an event loop is: a window of samples and its percentiles."""

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
