"""One rollout as a page for people: what was asked, said, called and scored.

The lines have a style by name, for a terminal that has colours.  Text of others is made
harmless, and shortened unless the whole is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .plain import cut_middle, plain_line, plain_text
from .records import RolloutFailure, RolloutResult, result_from, usage_words

MOST_CHARS = 2000
"""Longest text of one part of a page, unless all is wanted."""

MOST_LEVELS = 200
"""Most levels of a nested value that are shown: more than any decoded value here has."""

CONVERSATION = ("prompt", "messages", "completion")
"""Fields of a result that are conversations, in this order."""

_APART = {"reward", "metrics", "rewards", "usage"}
"""Fields of a result that the head of a page has already."""


class Line(NamedTuple):
    """A line of a page, or several."""

    text: str
    style: str = ""
    """``title``, ``name``, ``error``, ``dim``, a role of a message, or empty."""
    names: bool = False
    """Whether the line is a heading of the lines after it."""


def page(record: Mapping[str, Any], *, which: str = "", full: bool = False) -> list[Line]:
    """The page of a record; ``which`` says which of several it is."""
    result = result_from(record)
    most = MOST_CHARS if not full else None
    lines = (*_head(result, which), *_body(record, result.failure, most))
    return [line._replace(text=plain_text(line.text)) for line in lines]


def body(record: Mapping[str, Any]) -> list[Line]:
    """The lines without the heading, with nothing shortened."""
    lines = _body(record, result_from(record).failure, None)
    return [line._replace(text=plain_text(line.text)) for line in lines]


def _head(result: RolloutResult, which: str) -> Iterator[Line]:
    where = f" ({which})" if which else ""
    yield Line(f"input {result.index}, repeat {result.repeat}{where}", "title")
    reward = "none" if result.reward is None else f"{result.reward:.6g}"
    metrics = "".join(f", {plain_line(n, 40)} {v:.6g}" for n, v in result.metrics.items())
    before = result.rescored_from
    before_words = "" if before is None else f" ({before:.6g} before it was scored anew)"
    yield Line(f"reward {reward}{before_words}{metrics}", "name")
    about = [f"{result.took_s:.3g} s waited"]
    if result.duration_s is not None:
        about.insert(0, f"{result.duration_s:.3g} s")
    if result.worker:
        about.append(f"worker {result.worker}")
    if result.executions > 1:
        about.append(f"{result.executions} executions")
    about += [f"{usage_words(name)} {n:g}" for name, n in result.usage.items() if n]
    about += filter(None, (result.environment, result.model))
    yield Line(plain_line(", ".join(about)), "dim")


def _body(
    record: Mapping[str, Any], failure: RolloutFailure | None, most: int | None
) -> Iterator[Line]:
    if failure is not None:
        raised = f": {failure.type}" if failure.type else ""
        yield Line(f"\n{failure.kind}{raised} ({failure.verdict})", "error", names=True)
        yield Line(_cut(failure.traceback.rstrip() or failure.message, most), "error")
    yield Line("\ninput", "title", names=True)
    yield Line(_cut(_json(record.get("input")), most))
    value = record.get("value")
    if not isinstance(value, Mapping):
        if value is not None or failure is None:
            yield Line("\nvalue", "title", names=True)
            yield Line(_cut(_json(value), most))
        return
    talked = [name for name in CONVERSATION if _is_conversation(value.get(name))]
    for name in talked:
        yield Line(f"\n{name}", "title", names=True)
        for message in value[name]:
            yield from _message(message, most)
    for name, item in value.items():
        if name not in talked and name not in _APART:
            yield Line(f"\n{plain_line(str(name), 60)}", "title", names=True)
            yield Line(_cut(_json(item), most))


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, Mapping) and "role" in each for each in value)
    )


def _message(message: Mapping[str, Any], most: int | None) -> Iterator[Line]:
    role = str(message["role"])
    name = message.get("name") or message.get("tool_call_id") or ""
    yield Line(plain_line(f"[{role}] {name}".rstrip(), 100), role, names=True)
    content = message.get("content")
    if content:
        yield Line(_cut(_content(content), most), role)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        inner = call.get("function", call) if isinstance(call, Mapping) else {"name": call}
        if isinstance(inner, Mapping):
            arguments = inner.get("arguments", "")
            given = arguments if isinstance(arguments, str) else _json(arguments)
            yield Line(_cut(f"→ {inner.get('name')}({given})", most), "tool")


def _content(content: Any) -> str:
    """The text of a message: as it is, or of its parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return _json(content)
    parts = []
    for part in content:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif isinstance(part, Mapping):
            parts.append(f"({part.get('type', 'a part without a type')})")
        else:
            parts.append(_json(part))
    return "\n".join(parts)


def _json(value: Any) -> str:
    """A value for people: text as it is, the rest as JSON without the bytes of arrays."""
    if isinstance(value, str):
        return value
    return json.dumps(plain_value(value), indent=2, ensure_ascii=False)


def plain_value(value: Any, levels: int = MOST_LEVELS) -> Any:
    """A value without the bytes in it: for each array and each text of bytes some words, and
    so for what is nested deeper than so many levels."""
    if not isinstance(value, list | Mapping):
        return value
    if not levels:
        return f"(nested deeper than {MOST_LEVELS} levels)"
    if isinstance(value, list):
        return [plain_value(item, levels - 1) for item in value]
    inner = value.get("$array")
    if len(value) == 1 and isinstance(inner, Mapping):
        return f"array of {inner.get('dtype')}, shape {inner.get('shape')}"
    if len(value) == 1 and isinstance(value.get("$bytes"), str):
        return f"{len(value['$bytes']) * 3 // 4} bytes"
    return {str(key): plain_value(item, levels - 1) for key, item in value.items()}


def _cut(text: str, most: int | None) -> str:
    return text if most is None else cut_middle(text, most, "shown with --full")
