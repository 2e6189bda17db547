"""Counting results as they come, and their summary."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, final

from ..core.status import ClientCounters
from .records import FAULTS, Name, RolloutFailure, RolloutResult
from .statistics import (
    CONFIDENCE,
    deviation,
    estimate,
    histogram,
    input_means,
    mean,
    pass_at,
    percentile,
)

PERCENTILES = (50, 90, 99)
SHOWN = 5
"""Number of the slowest and of the failed rollouts that a summary names."""

_MESSAGE_CHARS = 500
_METRICS = 100
"""Most metrics that are counted: their names come from results."""


@final
class ResultsTally:
    """Counts results as they come.  The last one of a name counts."""

    def __init__(self, *, passed_from: float = 1.0) -> None:
        self.passed_from = passed_from
        """A rollout with at least this reward has passed."""
        self.found: dict[Name, RolloutResult] = {}
        self.by_fault: Counter[str] = Counter()
        self._first_tracebacks: dict[tuple[str, str, str], tuple[Name, str]] = {}
        """The first rollout of each kind of failure, with its traceback: others are not kept."""
        self.reward_mean = 0.0
        """The mean of the finite rewards so far; 0 before the first."""
        self.reward_count = 0

    def add(self, result: RolloutResult) -> None:
        """Count one result."""
        before = self.found.pop(result.name, None)
        if before is not None:
            self._count(before, -1)
        failure = result.failure
        if failure is not None and failure.traceback:
            self._first_tracebacks.setdefault(_kind(failure), (result.name, failure.traceback))
        self.found[result.name] = result.short(_MESSAGE_CHARS)
        self._count(result, 1)

    def _count(self, result: RolloutResult, times: int) -> None:
        if result.failure is not None:
            self.by_fault[result.failure.fault] += times
        if result.score is not None:
            self.reward_count += times
            count = max(1, self.reward_count)  # the sum may be too large for a float
            self.reward_mean += times * (result.score / count - self.reward_mean / count)

    @property
    def errors(self) -> int:
        """Rollouts that ended in errors."""
        return self.by_fault.total()

    @property
    def results(self) -> int:
        """Rollouts with a value."""
        return len(self.found) - self.errors

    def rewards(self) -> list[float]:
        """All finite rewards."""
        return [one.score for one in self.found.values() if one.score is not None]

    def metrics(self) -> dict[str, list[float]]:
        """The numbers of each named metric, the finite ones."""
        found: dict[str, list[float]] = {}
        for one in self.found.values():
            for name, number in one.metrics.items():
                if name in found or len(found) < _METRICS:
                    numbers = found.setdefault(name, [])
                    if math.isfinite(number):
                        numbers.append(number)
        return found

    def _metrics_left_out(self) -> int:
        """Number of names of metrics beyond those that are counted."""
        names = {name for one in self.found.values() for name in one.metrics}
        return max(0, len(names) - _METRICS)

    def failed(self) -> dict[tuple[str, str, str], list[RolloutResult]]:
        """The rollouts that ended in errors, by class, code and verdict, most first."""
        kinds: dict[tuple[str, str, str], list[RolloutResult]] = defaultdict(list)
        for one in self.found.values():
            if one.failure is not None:
                kinds[_kind(one.failure)].append(one)
        return dict(sorted(kinds.items(), key=lambda item: -len(item[1])))

    def traceback_of(self, one: RolloutResult) -> str:
        """The traceback of a failed rollout, if that is the first of its kind; else empty."""
        assert one.failure is not None
        name, traceback = self._first_tracebacks.get(_kind(one.failure), (None, ""))
        return traceback if name == one.name else ""

    def summary(self) -> dict[str, Any]:
        """The figures, as in ``--json``; null where there are none."""
        found = self.found.values()
        means = input_means((one.index, one.score) for one in found)
        reward = estimate(list(means.values()))
        rewards = self.rewards()
        spread = _spread(rewards)
        odd = Counter(_odd(one) for one in found)
        return {
            "results": self.results,
            "mean_reward": _rounded(reward.mean),
            "errors": self.errors,
            "inputs": len({one.index for one in found}),
            "reward": {
                "mean": _rounded(reward.mean), "std_error": _rounded(reward.std_error),
                "low": _rounded(reward.low), "high": _rounded(reward.high),
                "confidence": CONFIDENCE, "inputs": reward.inputs, "std": spread["std"],
                "min": spread["min"], "max": spread["max"],
                "histogram": bins(rewards), "passed_from": self.passed_from,
                "pass_at": self._pass_at(),
            },
            "rewards_left_out": {
                "nan": odd["nan"], "infinite": odd["infinite"], "not_a_number": odd["no number"],
                "missing": odd["missing"],
                "types": sorted({one.bad_reward for one in found if one.bad_reward}),
            },
            "metrics": {
                name: {**_spread(numbers), "histogram": bins(numbers)}
                for name, numbers in self.metrics().items()
            },
            "metrics_left_out": self._metrics_left_out(),
            "usage": usage_totals(found),
            "errors_by": [
                {"class": kind, "code": code, "verdict": verdict, "count": len(rollouts),
                 "fault": rollouts[0].failure.fault if rollouts[0].failure else ""}
                for (kind, code, verdict), rollouts in self.failed().items()
            ],
            "errors_by_fault": {fault: self.by_fault[fault] for fault in FAULTS},
            "left_out_of_gradient": sum(
                one.failure is not None and one.failure.mask for one in found
            ),
            "failed": [shown(one) for group in self.failed().values() for one in group[:SHOWN]],
            "slowest": [shown(one) for one in slowest(found)],
            "took_s": percentiles([one.took_s for one in found]),
            "duration_s": percentiles(
                [one.duration_s for one in found if one.duration_s is not None]
            ),
            "rerun": sum(one.executions > 1 for one in found),
        }  # fmt: skip

    def _pass_at(self) -> dict[str, Any]:
        """pass@k for 1, 2, 4, ... and for the most repeats, each with its inputs."""
        passed: dict[int, list[bool]] = defaultdict(list)
        for one in self.found.values():
            if one.score is not None:
                passed[one.index].append(one.score >= self.passed_from)
        most = max(map(len, passed.values()), default=0)
        ks = sorted({*(k for k in (2**n for n in range(31)) if k <= most), most} - {0})
        found = {}
        for k in ks:
            each = [pass_at(k, len(one), sum(one)) for one in passed.values() if len(one) >= k]
            found[str(k)] = {"mean": _rounded(mean(each)), "inputs": len(each)}
        return found


def _kind(failure: RolloutFailure) -> tuple[str, str, str]:
    """What failures that are told together have in common."""
    return failure.kind, failure.code, failure.verdict


def retries(counters: ClientCounters, rerun: int) -> dict[str, int]:
    """The requests that were sent or run more than once."""
    return {
        "retransmitted": counters.retransmitted, "reissued": counters.reissued, "rerun": rerun,
    }  # fmt: skip


def slowest(found: Iterable[RolloutResult]) -> list[RolloutResult]:
    """The rollouts whose executions took longest."""
    timed = [one for one in found if one.duration_s is not None]
    return sorted(timed, key=lambda one: -(one.duration_s or 0))[:SHOWN]


def usage_totals(found: Iterable[RolloutResult]) -> dict[str, float]:
    """The sums of what results say of tokens and model calls."""
    totals: Counter[str] = Counter()
    for one in found:
        for name, number in one.usage.items():
            if name in totals or len(totals) < _METRICS:
                totals[name] += number  # type: ignore[assignment]  # a Counter of floats
    return {
        name: int(total) if total == int(total) else total
        for name, total in sorted(totals.items())
        if math.isfinite(total)
    }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """The percentiles of a summary, interpolated; None without values."""
    ordered = sorted(values)
    return {
        f"p{p}": round(percentile(ordered, p), 6) if ordered else None for p in PERCENTILES
    }  # fmt: skip


def bins(values: Sequence[float]) -> list[dict[str, float]]:
    """The histogram of values as plain data."""
    return [dict(each._asdict()) for each in histogram(values)]


def _odd(one: RolloutResult) -> str:
    """The reason for which a result has no finite reward; empty if it has one, or is an error."""
    if one.failure is not None or one.score is not None:
        return ""
    if one.reward is None:
        return "no number" if one.bad_reward else "missing"
    return "nan" if math.isnan(one.reward) else "infinite"


def shown(one: RolloutResult) -> dict[str, Any]:
    """A rollout in a list, as plain data."""
    return {
        "index": one.index, "repeat": one.repeat, "worker": one.worker,
        "duration_s": one.duration_s, "took_s": round(one.took_s, 6),
        "error": None if one.failure is None else one.failure.to_record(traceback=False),
    }  # fmt: skip


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("mean", "std", "min", "max"))
    return {
        "mean": _rounded(mean(values)), "std": _rounded(deviation(values)),
        "min": min(values), "max": max(values),
    }  # fmt: skip


def _rounded(value: float | None) -> float | None:
    """A figure rounded to nine digits behind the point; below 1, to nine significant ones."""
    if value is None or not math.isfinite(value):
        return None
    return round(value, 9) if abs(value) >= 1 else float(f"{value:.9g}")
