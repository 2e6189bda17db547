"""Conversations in the form of OpenAI's Responses API, which NeMo Gym's answers have.

Theory of operation
-------------------
A response is a list of items: messages, calls of tools, and what the tools answered.  A
trainer finds the tokens of a model call in the last item that the call made:
``prompt_token_ids``, ``generation_token_ids`` and ``generation_log_probs``, all of them or
none.

The other way round, ``responses_create_params`` of a row is a request in that form: its
messages (:func:`messages_of`), its tools (:func:`tools_of`) and its arguments for sampling
(:func:`sampling_args_of`) become those of chat completions.  Nothing of it is dropped without
a word: :func:`not_heeded` names the rest.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..models.interface import Completion

_SAMPLING: Final[Mapping[str, str]] = {
    "temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_tokens",
    "user": "user",
}  # fmt: skip
"""Arguments of a request, by the names of chat completions."""

_ELSEWHERE: Final = ("input", "instructions", "tools", "tool_choice", "parallel_tool_calls")
"""Further fields that are heeded."""

_NOTHING: Final[Mapping[str, tuple[object, ...]]] = {
    "background": (False,), "stream": (False,), "store": (False,), "truncation": ("disabled",),
    "service_tier": ("auto", "default"), "top_logprobs": (0,), "include": ([],),
    "metadata": ({},), "text": ({}, {"format": {"type": "text"}}), "reasoning": ({},),
}  # fmt: skip
"""Values that ask for nothing, besides null."""

_PARTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
"""Parts of a message that are text."""


def messages_of(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request, as chat completions have them: its ``instructions``, and its
    ``input``, which is text or a list of items.

    Earlier thoughts of the model (items of the type ``reasoning``) stand in the message after them.
    Raises ``TypeError`` for an input that is neither, and ``ValueError`` for an item of another
    kind.
    """
    given, instructions = params.get("input"), params.get("instructions")
    messages: list[dict[str, Any]] = []
    if isinstance(instructions, str) and instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"the input of a row is text or a list, not {type(given).__name__}")
    thought = ""
    for item in given:
        if isinstance(item, Mapping) and item.get("type") == "reasoning":
            thought += _text(item.get("summary")) + _text(item.get("content"))
            continue
        _add(messages, item)
        if thought and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("reasoning_content", thought)
        thought = ""
    return messages


def _add(messages: list[dict[str, Any]], item: object) -> None:
    """Add an item of an input."""
    if not isinstance(item, Mapping):
        raise TypeError(f"an item of a row's input is a mapping, not {type(item).__name__}")
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": _text(item.get("arguments"))}
        call = {"id": str(item.get("call_id", "")), "type": "function", "function": function}
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant":
            last.setdefault("tool_calls", []).append(call)  # of the same answer
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        text, id = _text(item.get("output")), str(item.get("call_id", ""))
        messages.append({"role": "tool", "tool_call_id": id, "content": text})
    elif kind == "message" and isinstance(item.get("role"), str):
        content = item.get("content")
        if isinstance(content, (list, tuple)):
            content = [_part(part) for part in content]
            if item["role"] == "assistant":
                content = _text(content)
        messages.append({"role": item["role"], "content": content})
    else:
        raise ValueError(f"an item of the type {kind!r} in a row's input is not understood")


def _part(part: object) -> dict[str, Any]:
    """A part of a message."""
    if not isinstance(part, Mapping):
        raise TypeError(f"a part of a row's message is a mapping, not {type(part).__name__}")
    kind = part.get("type")
    if kind in _PARTS:
        return {"type": "text", "text": part.get("text", part.get("refusal"))}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        image = {"url": part["image_url"]}
        if part.get("detail"):
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    if kind in ("image_url", "input_audio", "audio_url", "video_url", "file"):
        return dict(part)  # as chat completions have it
    raise ValueError(f"a part of the type {kind!r} in a row's message is not understood")


def tools_of(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The functions among the tools of a request, as chat completions have them."""
    tools = params.get("tools")
    listed = tools if isinstance(tools, (list, tuple)) else ()
    return [_function(tool) for tool in listed if _is_function(tool)]


def _is_function(tool: object) -> bool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        return False
    function = tool.get("function", tool)
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "function" in tool:
        return dict(tool)
    names = ("name", "description", "parameters", "strict")
    about = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": about}


def sampling_args_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for the model, with its tools."""
    found = {theirs: params.get(name) for name, theirs in _SAMPLING.items()}
    reasoning = params.get("reasoning")
    if isinstance(reasoning, Mapping):
        found["reasoning_effort"] = reasoning.get("effort")
    if tools := tools_of(params):
        found["tools"] = tools
        found["parallel_tool_calls"] = params.get("parallel_tool_calls")
        choice = params.get("tool_choice")
        if isinstance(choice, Mapping) and isinstance(choice.get("name"), str):
            choice = {"type": "function", "function": {"name": choice["name"]}}
        found["tool_choice"] = choice
    return {name: value for name, value in found.items() if value is not None}


def not_heeded(params: Mapping[str, Any]) -> list[str]:
    """The fields of a request that ask for something and are not passed on, in order."""
    found = []
    for name, value in params.items():
        if value is None or value in _NOTHING.get(name, ()) or name in (*_SAMPLING, *_ELSEWHERE):
            continue
        if name == "reasoning" and isinstance(value, Mapping) and {*value} == {"effort"}:
            continue
        found.append(name)
    tools = params.get("tools")
    if tools and not (isinstance(tools, (list, tuple)) and all(map(_is_function, tools))):
        found.append("tools")
    return sorted(found)


def response_of(answers: Sequence[Completion], *, model: str = "") -> dict[str, Any]:
    """The response that a model's answers make, in order, with their tokens where the
    endpoint told them.

    Args:
        answers: Answers of a model, in order.
        model: Its name.
    """
    output: list[dict[str, Any]] = []
    for answer in answers:
        items = [*_items(answer.message)] or [_message("")]
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
