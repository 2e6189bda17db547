"""A caller's note of an outcome of the arithmetic environment, for a judge."""

from __future__ import annotations

from typing import Any

from ..client import Outcome
from ..envs.arithmetic import Arithmetic


def is_right(tasks: Arithmetic, number: int, value: Any) -> bool:
    """Whether the value of an outcome is the result of the task of that number."""
    task = tasks.task(number % tasks.size)
    found = value["completion"][0]["content"], value["answer"], value["reward"]
    return found == (task.questions[0], task.answers[-1], 1.0)


def noted(outcome: Outcome) -> dict[str, Any]:
    """The record of an outcome in the callers' log."""
    error = outcome.error
    return {
        "ok": outcome.ok,
        "executions": outcome.executions,
        "error": error.info.code if error and error.info else error.code if error else None,
        "message": str(error)[:300] if error else None,
        "verdict": error.verdict.name if error else None,
    }
