"""The result of one rollout: from an outcome, as a record, and from a record.

Theory of operation
-------------------
A file of results has a record for each rollout::

    {"index": 3, "repeat": 0, "reward": 0.5, "metrics": {...}, "usage": {...},
     "error": null, "worker": "w0-1", "duration_s": 0.8, "took_s": 1.1, "executions": 1,
     "ended_s": 1772700000.5, "environment": "arithmetic", "model": "oracle",
     "run": "1f0a...", "input": ..., "value": ...}

``value`` is what the environment returned, or null beside an ``error``, which has
``class``, ``code``, ``fault``, ``verdict`` ("it did not run", "it ran and failed", "it may have
run"), ``type``, ``message`` and ``traceback``.  ``reward``, ``metrics`` and ``usage`` are
read from the value by this module, so that no reader has to guess.  ``duration_s`` is the
execution on the worker, ``took_s`` the caller's wait, ``ended_s`` the wall-clock time at its
end, in seconds since 1970.  ``run`` stands for all that decides
what a rollout is asked (:func:`run_digest`): results of one file have the same.

A rollout has the name (``index``, ``repeat``).  If a file has several records of one name,
the last one counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from .. import foreign
from ..client import Outcome
from ..core.endings import Ending, Fault, ending_of
from ..core.terms import Verdict
from ..envs.rewards import number_of, numbers_of, reward_of_named
from ..json_values import base64_text, jsonable, restored

Name: TypeAlias = tuple[int, int]
"""The index of the input, and the number of the repeat."""

FAULTS = tuple(fault.value for fault in Fault)
"""The parties that errors are put down to."""

_MODEL_ERRORS = frozenset({"ModelError", "ModelAborted", "BrokenNumbers", "ContextFull"})
"""The classes of what a rollout raises whose model gave no answer."""

_TOKENS = {
    "prompt_ids": "prompt_tokens", "response_ids": "completion_tokens",
}  # fmt: skip
"""Arrays of tokens in a result, and what their lengths count."""


_VERDICTS = {verdict.value: verdict for verdict in Verdict}

_USAGE_WORDS = {
    "calls": "model calls", "failed": "model calls that failed", "retries": "model retries",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """The error of a rollout."""

    kind: str
    """The class of the error, such as ``RolloutFailed``."""
    verdict: str
    type: str = ""
    """The type of the environment's exception."""
    message: str = ""
    traceback: str = ""
    code: str = ""
    """How it ended; empty in files of earlier versions."""

    @property
    def fault(self) -> str:
        """The party that it is put down to: one of :data:`FAULTS`."""
        return self._ending.fault.value

    @property
    def mask(self) -> bool:
        """Whether it is left out of the gradient."""
        return self._ending.mask

    @property
    def _ending(self) -> Ending:
        return ending_of(self.code, _VERDICTS.get(self.verdict, Verdict.MAY_HAVE_RUN))


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutResult:
    """The counted part of a rollout.  It has neither input nor value."""

    index: int
    repeat: int = 0
    reward: float | None = None
    """None without a reward that is a number; it may be infinite or NaN."""
    bad_reward: str = ""
    """Why ``reward`` is none, if the result has one: its type."""
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    usage: Mapping[str, float] = dataclasses.field(default_factory=dict)
    failure: Failure | None = None
    worker: str = ""
    duration_s: float | None = None
    took_s: float = 0.0
    executions: int = 0
    ended_s: float | None = None
    """When the caller had it: seconds since 1970, for people.  None if a record does not say."""

    @property
    def name(self) -> Name:
        """Its name among the rollouts of its evaluation."""
        return self.index, self.repeat

    @property
    def score(self) -> float | None:
        """The reward if it is finite: what enters a mean."""
        return self.reward if self.reward is not None and math.isfinite(self.reward) else None

    @property
    def did_not_run(self) -> bool:
        """Whether the environment never saw it."""
        return self.failure is not None and self.failure.verdict == Verdict.DID_NOT_RUN.value


# -- from an outcome -------------------------------------------------------------


def result_of(
    index: int, repeat: int, outcome: Outcome, *, ended_s: float | None = None
) -> RolloutResult:
    """The figures of an outcome that are counted."""
    reward, bad, metrics = scores_of(outcome.value)
    return RolloutResult(
        index=index, repeat=repeat, reward=reward, bad_reward=bad, metrics=metrics,
        usage=usage_of(outcome.value), failure=_failure(outcome), worker=outcome.worker,
        duration_s=outcome.duration_s, took_s=outcome.took_s, executions=outcome.executions,
        ended_s=ended_s,
    )  # fmt: skip


def scores_of(value: Any) -> tuple[float | None, str, dict[str, float]]:
    """Reward and metrics in a result, by the convention ``{"reward": number, ...}``; and
    the type of a reward that is no number, or the empty string.

    ``reward`` may be named numbers: each of them is a metric then.  So are the numbers in
    ``metrics`` and in ``rewards``.
    """
    if not isinstance(value, Mapping):
        return None, "", {}
    metrics: dict[str, float] = {}
    for group in ("metrics", "rewards"):
        inner = value.get(group)
        if isinstance(inner, Mapping):
            named = {str(name): number_of(item) for name, item in inner.items()}
            metrics |= {name: number for name, number in named.items() if number is not None}
    given = value.get("reward")
    if given is None:
        return None, "", metrics
    numbers = numbers_of(given)
    if numbers is not None:
        return reward_of_named(numbers), "", {**numbers, **metrics}
    reward = number_of(given)
    return reward, "" if reward is not None else type(given).__name__, metrics


def usage_of(value: Any) -> dict[str, float]:
    """The tokens and model calls of a result: the numbers in ``usage``,
    ``model_calls``, and the lengths of arrays of tokens where usage has no count."""
    if not isinstance(value, Mapping):
        return {}
    found: dict[str, float] = {}
    usage = value.get("usage")
    if isinstance(usage, Mapping):
        numbers = {str(name): number_of(item) for name, item in usage.items()}
        found |= {n: each for n, each in numbers.items() if each is not None and each >= 0}
    calls = number_of(value.get("model_calls"))
    if calls is not None and calls >= 0:
        found.setdefault("model_calls", calls)
    for array, name in _TOKENS.items():
        length = _length(value.get(array))
        if length is not None:
            found.setdefault(name, length)
    return {name: number for name, number in found.items() if math.isfinite(number)}


def usage_words(name: str) -> str:
    """The name of a count of usage, for people."""
    return _USAGE_WORDS.get(name, name.replace("_", " "))


def _length(value: Any) -> int | None:
    if isinstance(value, list):
        return len(value)
    shape = getattr(value, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and len(shape) == 1 else None


def _failure(outcome: Outcome) -> Failure | None:
    error = outcome.error
    if error is None:
        return None
    kind, info = type(error).__name__, error.info
    raised = info.type if info else ""
    return Failure(
        kind=kind, verdict=error.verdict.value, type=raised,
        message=info.message if info else str(error), traceback=info.traceback if info else "",
        code=error.code,
    )  # fmt: skip


# -- as a record, and back -------------------------------------------------------


def record_of(
    result: RolloutResult, input: Any, value: Any, *, environment: str, model: str, run: str
) -> dict[str, Any]:
    """The record of a rollout; its input and value are not JSON yet."""
    failure = result.failure
    return {
        "index": result.index, "repeat": result.repeat, "reward": result.reward,
        **({"bad_reward": result.bad_reward} if result.bad_reward else {}),
        "metrics": dict(result.metrics), "usage": dict(result.usage),
        "error": None if failure is None else {
            "class": failure.kind, "code": failure.code, "verdict": failure.verdict,
            "fault": failure.fault,
            "type": failure.type, "message": failure.message, "traceback": failure.traceback,
        },
        "worker": result.worker, "duration_s": result.duration_s, "took_s": result.took_s,
        "executions": result.executions, "ended_s": result.ended_s,
        "environment": environment, "model": model, "run": run,
        "input": input, "value": value,
    }  # fmt: skip


def result_from(record: Mapping[str, Any]) -> RolloutResult:
    """The figures of a record that are counted.  ValueError if it is not the record of a rollout.

    Records of other programs, with ``index`` and ``value`` alone, are taken, too.
    """
    index, repeat = _whole(record.get("index")), _whole(record.get("repeat", 0))
    if index is None or repeat is None:
        raise ValueError("it has no index")
    value = record.get("value")
    reward, bad, metrics = scores_of(value)
    if "reward" in record:
        reward = number_of(restored(record["reward"]))
    if isinstance(record.get("metrics"), Mapping):
        metrics = numbers_of(restored(record["metrics"])) or {}
    usage = record.get("usage")
    return RolloutResult(
        index=index, repeat=repeat, reward=reward,
        bad_reward=str(record.get("bad_reward", bad) or ""),
        metrics=metrics, usage=(numbers_of(usage) or {}) if usage is not None else usage_of(value),
        failure=_failure_from(record.get("error")), worker=str(record.get("worker") or ""),
        duration_s=_seconds(record.get("duration_s")), took_s=_seconds(record.get("took_s")) or 0.0,
        executions=_whole(record.get("executions")) or 0,
        ended_s=_seconds(record.get("ended_s")),
    )  # fmt: skip


def _failure_from(error: Any) -> Failure | None:
    if error is None:
        return None
    if not isinstance(error, Mapping):
        return Failure("error", "", message=str(error))
    kind, raised = str(error.get("class", "")), str(error.get("type") or "")
    return Failure(
        kind=kind, verdict=str(error.get("verdict", "")), type=raised,
        message=str(error.get("message", "")), traceback=str(error.get("traceback", "")),
        code=str(error.get("code") or ""),
    )  # fmt: skip


def _whole(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
        return value
    return None


def _seconds(value: Any) -> float | None:
    number = number_of(value)
    return number if number is not None and math.isfinite(number) else None


def run_digest(**asked: Any) -> str:
    """Stands for all that decides what the rollouts of an evaluation are asked.  Only a
    digest: arguments may hold what nobody wants in a file of results."""
    return digest(asked)


def digest(value: Any, *, is_json: bool = False) -> str:
    """16 hex digits for a value, by what stands in a record for it."""

    def text() -> str:
        # Arrays of a table are bytes, and those of JSON lines text: both have one digest.
        return json.dumps(
            value if is_json else jsonable(value), sort_keys=True, default=base64_text
        )

    ended = foreign.call(text)
    found = "" if ended.error is not None else str(ended.value)  # it cannot be written
    return hashlib.blake2b(found.encode(), digest_size=8).hexdigest()
