"""Files of results, as an evaluation would have written them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HOSTILE = '</script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\u2028'
BEGAN_S = 1772700000.0
TALK = [
    {"role": "user", "content": "Look up."},
    {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": '{"at": 1}'}}]},
    {"role": "tool", "content": "a heron"},
]


def failure(
    message: str = "no such page", traceback: str = "in look\nValueError"
) -> dict[str, Any]:
    return {
        "class": "RolloutFailed", "code": "rollout-failed", "verdict": "it ran and failed",
        "fault": "environment",
        "type": "ValueError", "message": message, "traceback": traceback,
    }  # fmt: skip


def result(index: int, reward: Any = 0.5, **more: Any) -> dict[str, Any]:
    """The record of a rollout, which ran for ten seconds on one of two workers."""
    failed = more.get("error") is not None
    value = {"reward": reward, "metrics": {"turns": 3}, "completion": TALK}
    return {
        "index": index, "repeat": 0, "reward": None if failed else reward,
        "metrics": {} if failed else {"turns": 3}, "error": None,
        "usage": {} if failed else {"prompt_tokens": 30, "completion_tokens": 12},
        "worker": f"w{index % 2}-1", "duration_s": 10.0, "took_s": 10.5, "executions": 1,
        "ended_s": BEGAN_S + 10 * (index // 2 + 1), "environment": "birds", "model": "m",
        "run": "r", "input": {"q": f"question {index}"}, "value": None if failed else value, **more,
    }  # fmt: skip


def written(path: Path, records: Sequence[Mapping[str, Any]], *, rest: str = "") -> str:
    """A file of these; ``rest`` is what was left of its last line."""
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records) + rest)
    return str(path)
