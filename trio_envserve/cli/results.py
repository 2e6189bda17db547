"""What ``eval`` writes and counts: a line for each outcome, and their summary.

Theory of operation
-------------------
A result line is one JSON object::

    {"index": 3, "input": ..., "value": ..., "error": null, "worker": "w0-1",
     "duration_s": 0.8, "took_s": 1.1, "executions": 1}

``value`` is what the environment returned, or null beside an ``error``, which
has ``class``, ``code``, ``verdict`` ("it did not run", "it ran and failed", "it
may have run"), ``type``, ``message`` and ``traceback``.  ``duration_s`` is the
execution on the worker, ``took_s`` the caller's wait.

A value that JSON lacks is an object with one key that begins with ``$`` (see
:func:`jsonable`), so that a reader can tell it from other values.
"""

from __future__ import annotations

import base64
import datetime
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any, final

from ..client import Outcome
from ..core.status import ClientCounters
from .render import Table

_PERCENTILES = (50, 90, 99)


def jsonable(value: Any) -> Any:
    """``value`` in JSON.

    ==========================  ==============================================
    bytes                       ``{"$bytes": base64}``
    arrays (numpy, torch, raw)  ``{"$array": {"dtype", "shape", "data"}}``, the
                                data as nested lists (of a raw one: base64)
    nan, inf, -inf              ``{"$float": "nan"}``
    complex                     ``{"$complex": [real, imaginary]}``
    sets                        ``{"$set": [...]}``
    mappings with other keys    ``{"$map": [[key, value], ...]}``
    dates and times             ``{"$time": ISO 8601}``
    anything else               ``{"$text": str(value)}`` (UUID, Decimal, ...)
    ==========================  ==============================================

    Tuples become lists, numpy scalars numbers.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {str(key): jsonable(item) for key, item in value.items()}
        return {"$map": [[jsonable(key), jsonable(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return _rare(value)


def _rare(value: Any) -> Any:
    if isinstance(value, complex):
        return {"$complex": [jsonable(value.real), jsonable(value.imag)]}
    if isinstance(value, Set):
        return {"$set": [jsonable(item) for item in value]}
    if isinstance(value, (datetime.date, datetime.time)):
        return {"$time": value.isoformat()}
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple):
        if not hasattr(value, "tolist"):
            data = jsonable(value.data)["$bytes"]
        elif not shape:
            return jsonable(value.tolist())
        else:
            data = jsonable(value.tolist())
        return {"$array": {"dtype": str(dtype), "shape": list(shape), "data": data}}
    return {"$text": str(value)}


def record(index: int, input: Any, outcome: Outcome) -> dict[str, Any]:
    """The result line of one outcome."""
    return {
        "index": index,
        "input": jsonable(input),
        "value": jsonable(outcome.value),
        "error": _error(outcome),
        "worker": outcome.worker,
        "duration_s": outcome.duration_s,
        "took_s": outcome.took_s,
        "executions": outcome.executions,
    }


def _error(outcome: Outcome) -> dict[str, Any] | None:
    error = outcome.error
    if error is None:
        return None
    return {
        "class": type(error).__name__,
        "code": error.code if error.info is None else error.info.code,
        "verdict": error.verdict.value,
        "type": error.info.type if error.info else "",
        "message": str(error) if error.info is None else error.info.message,
        "traceback": error.info.traceback if error.info else "",
    }


def reward_of(value: Any) -> float | None:
    """The reward in a result, by the convention ``{"reward": number, ...}``."""
    reward = value.get("reward") if isinstance(value, Mapping) else None
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        return None
    return float(reward)


@final
class Tally:
    """Counts outcomes as they come."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.results = 0
        self.errors: Counter[tuple[str, str]] = Counter()
        """By class and verdict."""
        self.first_errors: dict[tuple[str, str], str] = {}
        """The message of the first error of each kind."""
        self.rerun = 0
        """Outcomes that took more than one execution."""
        self._took_s: list[float] = []
        self._duration_s: list[float] = []

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        if outcome.error is None:
            self.results += 1
            reward = reward_of(outcome.value)
            if reward is not None:
                self.rewards.append(reward)
        else:
            kind = type(outcome.error).__name__, outcome.error.verdict.value
            self.errors[kind] += 1
            self.first_errors.setdefault(kind, str(outcome.error)[:500])
        self.rerun += outcome.executions > 1
        self._took_s.append(outcome.took_s)
        if outcome.duration_s is not None:
            self._duration_s.append(outcome.duration_s)

    @property
    def error_count(self) -> int:
        """Outcomes that are errors."""
        return self.errors.total()

    def summary(self, seconds: float, counters: ClientCounters) -> dict[str, Any]:
        """The figures, as in ``--json``; null if there are none."""
        done = self.results + self.error_count
        reward = _spread(self.rewards)
        return {
            "results": self.results,
            "mean_reward": reward["mean"],
            "errors": self.error_count,
            "seconds": round(seconds, 3),
            "rate": round(done / seconds, 3) if seconds > 0 else 0.0,
            "reward": reward,
            "errors_by": [
                {"class": name, "verdict": verdict, "count": count}
                for (name, verdict), count in self.errors.most_common()
            ],
            "took_s": _percentiles(self._took_s),
            "duration_s": _percentiles(self._duration_s),
            "retries": {
                "retransmitted": counters.retransmitted,
                "reissued": counters.reissued,
                "rerun": self.rerun,
            },
        }


def summary_tables(summary: Mapping[str, Any], title: str) -> list[Table]:
    """The figures for people."""
    reward, retries = summary["reward"], summary["retries"]
    rows = [
        ("results", str(summary["results"])),
        ("errors", str(summary["errors"])),
        ("mean reward", _shown(summary["mean_reward"])),
        ("reward std", _shown(reward["std"])),
        ("reward min, max", f"{_shown(reward['min'])}, {_shown(reward['max'])}"),
        ("seconds", f"{summary['seconds']:.2f}"),
        ("rollouts per second", f"{summary['rate']:.1f}"),
        ("retransmitted", str(retries["retransmitted"])),
        ("issued again after a lost server", str(retries["reissued"])),
        ("executed more than once, by consent", str(retries["rerun"])),
    ]
    tables = [Table(title, (), rows)]
    names = tuple(f"p{p}" for p in _PERCENTILES)
    latencies = [
        (what, *(_shown(summary[key][name]) for name in names))
        for what, key in (("caller's wait", "took_s"), ("execution", "duration_s"))
    ]
    tables.append(Table("latency in seconds", ("", *names), latencies))
    if summary["errors_by"]:
        errors = [(e["class"], e["verdict"], str(e["count"])) for e in summary["errors_by"]]
        tables.append(Table("errors", ("class", "what is known", "count"), errors))
    return tables


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    """Null without rewards, and if one of them is not a finite number: a figure
    without that one would mislead."""
    if not values or not all(map(math.isfinite, values)):
        return dict.fromkeys(("mean", "std", "min", "max"))
    return {
        "mean": round(statistics.fmean(values), 9),
        "std": round(statistics.pstdev(values), 9),
        "min": min(values),
        "max": max(values),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    return {
        f"p{p}": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 6)
        if ordered else None
        for p in _PERCENTILES
    }  # fmt: skip


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
