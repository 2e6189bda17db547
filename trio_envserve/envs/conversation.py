"""The messages of a rollout object's conversation, and what a tool's result becomes.

Theory of operation
-------------------
What goes to the model and into the result is made here, so that it can always be
encoded, whatever the model wrote and the tools returned.  A message is as OpenAI's chat
completions have it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .. import foreign
from ..models.interface import Completion, ToolCall, image_part

RESULT_CHARS = 100_000
"""Longest text of a tool's result; of a longer one the middle is left out."""

PARTS_CHARS = 16_000_000
"""Most characters of a tool's result that has parts such as images, which cannot be cut."""

_PARTS: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "image_url": (Mapping, str),
    "input_audio": (Mapping,),
    "audio_url": (Mapping,),
    "video_url": (Mapping,),
    "file": (Mapping,),
}
"""The kinds of parts that a message may have, and what stands in each under its kind."""

_CALL = "tool_call"


def first_messages(asked: Mapping[str, Any], observation: Any, system: str) -> list[Any]:
    """The prompt: that of the input, and what ``reset`` returned.

    As TRL does it: what ``reset`` returned goes to the end of the input's last message.
    Raises ``ValueError`` if there is neither, ``TypeError`` for what is no prompt.
    """
    prompt = _messages(observed(asked.get("prompt")), "the input's prompt")
    content = _content(observation)
    if prompt and content is not None and prompt[-1].get("role") == "user":
        last = prompt[-1]
        prompt[-1] = {**last, "content": _joined(last.get("content"), content)}
    else:
        prompt += _messages(observation, "what reset() returned")
    if not prompt:
        raise ValueError(
            "there is no prompt: reset() returned nothing, and the input has no prompt"
        )
    return [{"role": "system", "content": system}, *prompt] if system else prompt


def observed(value: Any) -> Any:
    """The observation of ``reset``, with its images as parts of messages.  Takes long with
    large images."""
    if isinstance(value, list) and value and all(_is_message(each) for each in value):
        return [{**each, "content": observed(each.get("content"))} for each in value]
    content = _content(value)
    return value if content is None else content


def _messages(given: Any, what: str) -> list[dict[str, Any]]:
    if given is None:
        return []
    if _content(given) is not None:
        return [{"role": "user", "content": given}]
    if isinstance(given, Sequence) and all(_is_message(each) for each in given):
        return [dict(each) for each in given]
    raise TypeError(f"{what} must be text or a list of messages, not {type(given).__name__}")


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str)


def _content(value: Any) -> Any:
    """The value as the content of a message, if it is one: text, an image or another part
    of a message, or a list of these.  Otherwise None."""
    if isinstance(value, str):
        return value
    part = _part(value)
    if part is not None:
        return [part]
    if not isinstance(value, list) or all(isinstance(each, str) for each in value):
        return None  # a list of texts is data like any other
    parts = [_text_part(each) if isinstance(each, str) else _part(each) for each in value]
    return None if None in parts else parts


def _part(value: Any) -> dict[str, Any] | None:
    """A part of a message, if the value is one.

    A part has what its type says: ``{"type": "text", "text": ...}``.  An image may be one of
    Pillow's, by itself or as TRL has it: ``{"type": "image", "image": ...}``.
    """
    if not isinstance(value, Mapping):
        return _image(value)
    kind = value.get("type")
    if kind == "image":
        return _image(value.get("image"))
    if isinstance(kind, str) and isinstance(value.get(kind), _PARTS.get(kind, ())):
        return dict(value)
    return None


def _image(value: Any) -> dict[str, Any] | None:
    """A message part for an image of Pillow's.  It is known by what it can do: nothing is
    imported."""
    if not foreign.call(_is_image, value).value:
        return None
    drawn = io.BytesIO()
    # PNG has none of the other modes.
    plain = value if value.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else value.convert("RGB")
    plain.save(drawn, format="PNG")
    return image_part(drawn.getvalue())


def _is_image(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "save")


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    parts: list[Any] = []
    for each in (first or "", second):
        parts += [_text_part(each)] if isinstance(each, str) else each
    return parts


def calls_of(completion: Completion, turn: int) -> tuple[ToolCall, ...]:
    """The tools that the model asks for.

    Some endpoints do not look into the text for them: then the calls that are written
    in it, ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, count.
    """
    if completion.tool_calls:
        return completion.tool_calls
    return tuple(
        ToolCall(f"written-{turn}-{number}", *_written(text))
        for number, text in enumerate(tagged(completion.text, _CALL), 1)
    )


def _written(text: str) -> tuple[str, str]:
    """Name and arguments of a call that is written in the text."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return "", text
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return "", text
    arguments = call.get("arguments", {})
    return call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments)


def written_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as :func:`calls_of` finds it in a text."""
    call = json.dumps({"name": name, "arguments": dict(arguments)})
    return f"<tool_call>{call}</tool_call>"


def answer_message(completion: Completion, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """The model's answer as a message."""
    message = encodable(completion.message)
    if calls and not completion.tool_calls:
        text = without(completion.text, _CALL).strip()
        message["content"] = encodable(text)
        message["tool_calls"] = encodable([call.record for call in calls])
    return dict(message)


def tool_message(call: ToolCall, content: Any) -> dict[str, Any]:
    """The answer to a tool call."""
    return {
        "role": "tool",
        "tool_call_id": encodable(call.id),
        "name": encodable(call.name),
        "content": content,
    }


def told(error: str) -> str:
    """A mistake, as the model is told of it."""
    return json.dumps({"error": encodable(cut(error))}, ensure_ascii=False)


def content_of(value: Any) -> Any:
    """A tool's result as the content of a message.

    Text stays text, images and other parts of a message stay parts; all else becomes JSON,
    or the text that Python has for it.  Raises ``TypeError`` if there is none, and
    ``ValueError`` if parts are too large.
    """
    if isinstance(value, str):
        return encodable(cut(str.__str__(value)))
    parts = _content(value)
    if parts is not None:
        written = json.dumps(parts)
        if len(written) > PARTS_CHARS:
            raise ValueError(
                f"the tool's result has {len(written)} characters in parts such as images; "
                f"{PARTS_CHARS} are allowed"
            )
        return encodable(json.loads(written))
    made = foreign.call(json.dumps, value, ensure_ascii=False)
    text = foreign.text(value) if made.error is not None else str(made.value)
    if text is None:
        raise TypeError(f"the tool's result, a {type(value).__name__}, has no text")
    return encodable(cut(text))


def cut(text: str) -> str:
    """A text without its middle, if it is too long."""
    if len(text) <= RESULT_CHARS:
        return text
    half = RESULT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def encodable(value: Any) -> Any:
    """Plain data in which each text can be encoded: lone surrogates are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encodable(item) for item in value]
    return value


# -- parts of a text between two marks ------------------------------------------
#
# Found in one pass: a regular expression takes quadratic time for a text with many first marks
# and no second one, which a model can write.


def tagged(text: str, tag: str) -> list[str]:
    """The texts between ``<tag>`` and ``</tag>``, each from the first mark on."""
    return [inner for _, inner in _split(text, tag) if inner is not None]


def without(text: str, tag: str) -> str:
    """The text without such parts and their marks."""
    return "".join(outer for outer, _ in _split(text, tag))


def _split(text: str, tag: str) -> list[tuple[str, str | None]]:
    """The text in pairs: what stands outside, and the part after it if there is one."""
    begin, end, at = f"<{tag}>", f"</{tag}>", 0
    pairs: list[tuple[str, str | None]] = []
    while True:
        start = text.find(begin, at)
        stop = text.find(end, start + len(begin)) if start >= 0 else -1
        if stop < 0:
            return [*pairs, (text[at:], None)]
        pairs.append((text[at:start], text[start + len(begin) : stop]))
        at = stop + len(end)
