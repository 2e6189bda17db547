"""Conversations in the form of OpenAI's Responses API, which NeMo Gym's answers have.

Theory of operation
-------------------
A response is a list of items: messages, calls of tools, and what the tools answered.  A
trainer finds the tokens of a model call in the last item that the call made:
``prompt_token_ids``, ``generation_token_ids`` and ``generation_log_probs``, all of them or
none.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..models.interface import Completion


def response_of(answers: Sequence[Completion], *, model: str = "") -> dict[str, Any]:
    """The response that a model's answers make, in order, with their tokens where the
    endpoint told them."""
    output: list[dict[str, Any]] = []
    for answer in answers:
        items = [_call(call.record) for call in answer.tool_calls]
        if answer.text or not items:
            items.insert(0, _message(answer.text))
        if None not in (answer.prompt_ids, answer.response_ids, answer.logprobs):
            items[-1] |= {
                "prompt_token_ids": answer.prompt_ids,
                "generation_token_ids": answer.response_ids,
                "generation_log_probs": answer.logprobs,
            }
        output += items
    return _response(f"resp_{secrets.token_hex(8)}", time.time(), model, output)


def response_of_messages(messages: object) -> dict[str, Any]:
    """The response that messages of chat completions make; what is none is left out."""
    output: list[dict[str, Any]] = []
    for message in messages if isinstance(messages, (list, tuple)) else ():
        if isinstance(message, dict):
            output += _items(message)
    return _response("resp", 0.0, "", output)


def _items(message: dict[str, Any]) -> Iterable[dict[str, Any]]:
    content, calls = message.get("content"), message.get("tool_calls")
    match message.get("role"):
        case "assistant":
            if content:
                yield _message(_text(content))
            for call in calls if isinstance(calls, (list, tuple)) else ():
                if isinstance(call, dict) and isinstance(call.get("function"), dict):
                    yield _call(call)
        case "tool":
            yield {
                "type": "function_call_output", "call_id": str(message.get("tool_call_id", "")),
                "output": _text(content),
            }  # fmt: skip
        case "user":
            yield {"type": "message", "role": "user", "content": _text(content)}


def _message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": "msg", "type": "message", "role": "assistant", "status": "completed",
        "content": [part],
    }  # fmt: skip


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "type": "function_call", "call_id": str(call.get("id", "")), "status": "completed",
        "name": str(function.get("name", "")), "arguments": _text(function.get("arguments")),
    }  # fmt: skip


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return "" if content is None else json.dumps(content, default=str)


def _response(id: str, created_at: float, model: str, output: list[Any]) -> dict[str, Any]:
    return {
        "id": id, "object": "response", "created_at": created_at, "model": model,
        "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip
