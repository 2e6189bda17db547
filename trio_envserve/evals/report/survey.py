"""The summary of all rollouts on a page: figures, rows of the table, differences."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...core.errors import short_type
from ..comparison import Comparison, as_record
from ..files import Check, Entry, is_table, nothing, overview
from ..page import plain_value
from ..plain import headline, plain_line
from ..records import Name, RolloutResult, usage_words
from ..tally import Tally
from .details import number_text

_INPUT_CHARS = 120
_ERROR_CHARS = 120
_WORKER_CHARS = 40
_SEEN_CHARS = 4 * _INPUT_CHARS

_TOKENS = ("prompt_tokens", "completion_tokens")


class Survey(NamedTuple):
    """The first reading of a file."""

    path: str
    entries: list[Entry]
    """The rollouts that count, in the order of their inputs."""
    about: dict[str, str]
    inputs: dict[Name, str]
    """The beginning of each input."""
    is_cut_off: bool
    """The last line is not whole, and nobody reads it."""


def survey(path: str, check: Check = nothing) -> Survey:
    """Read a file for the first time.  Raises ConfigError."""
    inputs: dict[Name, str] = {}

    def see(result: RolloutResult, record: Mapping[str, Any]) -> None:
        inputs[result.name] = _beginning(record.get("input"))

    found = overview(path, check, see)
    return Survey(path, found.entries, found.about, inputs, _is_cut_off(path))


def _beginning(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(plain_value(value), ensure_ascii=False)
    return plain_line(text[:_SEEN_CHARS], _INPUT_CHARS)


def _is_cut_off(path: str) -> bool:
    if is_table(path):
        return False
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"\n", b"")


def page_data(found: Survey, *, passed_from: float, most: int | None) -> dict[str, Any]:
    """All of a page but its rollouts' texts, as plain data."""
    tally = Tally(passed_from=passed_from)
    for entry in found.entries:
        tally.add(entry.result)
    summary = tally.summary()
    summary["usage"] = {usage_words(name): n for name, n in summary["usage"].items()}
    return {
        "file": os.path.basename(found.path),
        "about": [plain_line(each, _INPUT_CHARS) for each in found.about.values() if each],
        "is_cut_off": found.is_cut_off, "cut": most, "summary": _plain(summary),
        "columns": _columns(found), "compared": None,
    }  # fmt: skip


def _columns(found: Survey) -> dict[str, Sequence[Any]]:
    """The table of rollouts, column by column."""
    results = [entry.result for entry in found.entries]
    return {
        "index": [one.index for one in results],
        "repeat": [one.repeat for one in results],
        "reward": [number_text(one.reward) for one in results],
        "error": [_error(one) for one in results],
        "worker": [plain_line(one.worker, _WORKER_CHARS) for one in results],
        "seconds": [one.duration_s for one in results],
        "waited": [one.took_s for one in results],
        "ended": [one.ended_s for one in results],
        "executions": [one.executions for one in results],
        "tokens": [_tokens(one) for one in results],
        "input": [found.inputs[one.name] for one in results],
    }


def _error(one: RolloutResult) -> str:
    if one.failure is None:
        return ""
    what = f"{short_type(one.failure.type) or one.failure.kind}: {one.failure.message.strip()}"
    return plain_line(headline(what), _ERROR_CHARS)


def _tokens(one: RolloutResult) -> float | None:
    counts = [one.usage[name] for name in _TOKENS if name in one.usage]
    return sum(counts) if counts else None


def compared_data(other: str, found: Comparison) -> dict[str, Any]:
    """The differences to another file, as plain data."""
    record = as_record(found)
    changed = [[index, first, second] for index, first, second in found.changed]
    metrics = [
        {"name": plain_line(name, _WORKER_CHARS), **each}
        for name, each in record["metrics"].items()
    ]
    shown: dict[str, Any] = _plain(
        {**record, "metrics": metrics, "changed": changed, "file": os.path.basename(other)}
    )
    return shown


def _plain(value: Any) -> Any:
    """The same with text that is harmless, and numbers that JSON has."""
    if isinstance(value, dict):
        return {plain_line(str(key), _INPUT_CHARS): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return plain_line(value, _INPUT_CHARS)
    return number_text(value) if isinstance(value, float) else value
