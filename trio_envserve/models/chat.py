"""OpenAI's chat completions: the body of a request, and what comes back.  Pure.

Theory of operation
-------------------
:func:`request_body` makes the bytes to send.  An answer, whole (:func:`read_answer`) or streamed
(:class:`StreamReader`), is collected in a draft, and the draft becomes a :class:`Completion`.  An
answer that does not have this form raises :class:`ChatProblem`.

Only reasons to finish that are known to be good end an answer (:data:`FINISH_REASONS`):
engines have many words for a cut one, and will have more.  An error in an answer's place, with
the status 200 or in a stream, is judged by the status that it names.

Token ids come as vLLM gives them (``return_token_ids``: ``prompt_token_ids`` beside the
choices, ``token_ids`` in the choice) or as SGLang does (``return_input_ids_in_sglext`` and
``return_output_ids_in_sglext``: ``sglext`` beside the choices, in a stream after the
last).  Log-probabilities come as OpenAI's ``logprobs.content``.
"""

from __future__ import annotations

import array
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, final

from ..turns import after
from . import patience
from .endpoints import Endpoint
from .interface import (
    MISSING_LOGPROB,
    BrokenNumbers,
    Completion,
    Logprobs,
    Message,
    Messages,
    ModelAborted,
    ModelError,
    TokenIds,
)
from .patience import EndpointFailure
from .tool_calls import ToolCalls

MAX_CONTAINERS = 1_000_000
"""Most lists and objects of one answer; log-probabilities have three for each token."""

NAME_CHARS = 200
"""Most characters of a model's name, as the endpoint says it."""

EXCERPT_CHARS = 2000
"""Most characters of an answer in a problem's text, which is shortened when it is told."""


FINISH_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "stop": "the model ended, or wrote a stop sequence (all engines)",
        "length": "max_tokens or the context was reached (all engines)",
        "tool_calls": "the model calls tools (all engines)",
        "function_call": "the name of tool_calls before there were several (OpenAI)",
        "eos_token": "the model ended (TGI)",
        "stop_sequence": "the model wrote a stop sequence (TGI)",
        "eos": "the model ended (Together)",
    }
)
"""The reasons to finish that end an answer, and what each means.  An endpoint's
``finish_reasons`` adds to them; with any other reason, or none, the answer was cut."""

THOUGHTS = ("reasoning_content", "reasoning")
"""The fields of a message that have the model's thoughts as text."""

FORMED_THOUGHTS = (
    "reasoning_details",  # OpenRouter
    "thinking_blocks",  # LiteLLM
)
"""Fields with thoughts in a form of the endpoint's own, with signatures, say."""

_MORE = (*FORMED_THOUGHTS, "refusal")

_ASKS_IDS = ("return_token_ids", "return_input_ids_in_sglext", "return_output_ids_in_sglext")
"""The fields of a request that ask for token ids."""

_DONE = b"[DONE]"
"""The last event of a stream."""

MOST_TOKENS = 1 << 40
"""Far more than any model call has."""

HIGHEST_LOGPROB = 0.01
"""A log-probability is never above 0, but for how it was rounded."""


class ChatProblem(ValueError):
    """An endpoint sent something that is no completion."""

    def __init__(self, text: str, failure: EndpointFailure | None = None) -> None:
        super().__init__(text)
        self.failure = failure or EndpointFailure(f"gave no completion: {text}", again=False)


def _cut(text: str) -> ChatProblem:
    return ChatProblem(text, EndpointFailure(text, again=True, error=ModelAborted))


def _broken(text: str, *, again: bool = True) -> ChatProblem:
    return ChatProblem(text, EndpointFailure(text, again=again, error=BrokenNumbers))


class ChatRequest(NamedTuple):
    """A request, ready to be sent as often as need be."""

    body: bytes
    stream: bool
    model: str = ""
    """The name of the model that is asked; empty if it names none."""
    asks_ids: bool = False
    """Whether it asks for token ids."""


def request_body(
    endpoint: Endpoint, messages: Messages, name: str, sampling_args: Mapping[str, Any]
) -> ChatRequest:
    """The body of a request.  Raises :class:`ModelError` for what JSON does not have."""
    fields = {"stream": endpoint.stream, **endpoint.body, **sampling_args}
    if fields.get("n") not in (None, 1):
        raise ModelError("a model call gives one answer: n must be 1")
    fields["messages"] = _kept(messages, endpoint.keep)
    if name or endpoint.model:
        fields["model"] = name or endpoint.model
    stream = bool(fields.pop("stream"))
    if stream:
        fields["stream"] = True
        fields.setdefault("stream_options", {"include_usage": True})
    try:
        text = json.dumps(fields, allow_nan=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"messages and sampling arguments must be JSON: {error}") from None
    asks_ids = any(fields.get(name) for name in _ASKS_IDS)
    return ChatRequest(text.encode(), stream, str(fields.get("model") or ""), asks_ids)


def _kept(messages: Messages, keep: str) -> list[Message]:
    """The messages with the thoughts that are sent back: with ``tools`` those since the last
    message of the user, as chat templates keep them."""
    first = len(messages)
    if keep == "always":
        first = 0
    while keep == "tools" and first > 0 and _role(messages[first - 1]) != "user":
        first -= 1
    return [
        _without_thoughts(message) if number < first and _role(message) == "assistant" else message
        for number, message in enumerate(messages)
    ]


def _without_thoughts(message: Message) -> Message:
    kept = {
        name: value
        for name, value in message.items()
        if name not in THOUGHTS and name not in FORMED_THOUGHTS
    }
    if isinstance(kept.get("content"), list):
        kept["content"] = [part for part in kept["content"] if not _is_thought(part)]
    return kept


def _is_thought(part: object) -> bool:
    """Whether a part of a content is one of Mistral's thoughts."""
    return isinstance(part, Mapping) and part.get("type") == "thinking"


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, Mapping) else None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, array.array):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} has no JSON")


def read_answer(
    data: bytes, endpoint: Endpoint, pause: Callable[[], None] | None = None
) -> Completion:
    """A whole answer.  ``pause`` is called now and then.  Raises :class:`ChatProblem`."""
    body = parsed(data, pause)
    draft = _Draft(endpoint)
    draft.add(body, "message")
    if not draft.chosen:
        what = "a message" if body.get("choices") else "choices"
        raise _cut(f"gave an answer without {what}: {excerpt(data)}")
    return draft.completion()


@final
class StreamReader:
    """Reads a streamed answer of an endpoint as it arrives.  No event may have more than
    ``most_bytes``; ``asks_ids``: whether token ids were asked for."""

    def __init__(self, endpoint: Endpoint, most_bytes: int, *, asks_ids: bool = False) -> None:
        self._draft = _Draft(endpoint)
        self._asks_ids = asks_ids
        self._lines = _Lines(most_bytes)
        self._done = False

    def feed(self, data: bytes) -> bool:
        """Take what has arrived; returns whether there was an event in it.

        Raises :class:`ChatProblem`.
        """
        found = False
        for event in self._lines.events(data):
            found = True
            if event.strip() == _DONE:
                self._done = True
            elif not self._done:
                self._draft.add(parsed(event), "delta")
        return found

    def completion(self) -> Completion:
        """The completion after the last byte.  Raises :class:`ChatProblem`, also if the stream
        was not whole."""
        self.feed(b"\n\n")
        if not (self._done or self._draft.finish_reason):
            raise _cut("ended its stream before the answer was whole")
        if not self._done and self._asks_ids and not self._draft.has_ids:
            raise _cut("ended its stream before the token ids that it was asked for")
        if not self._draft.chosen:
            raise _cut("ended its stream without an answer")
        return self._draft.completion()


@final
class _Lines:
    """Splits a stream of server-sent events into the data of each."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._rest: list[bytes] = []
        self._data: list[bytes] = []

    def events(self, data: bytes) -> Iterator[bytes]:
        """The events that end in ``data``.  Raises :class:`ChatProblem`."""
        self._held_bytes += len(data)
        if self._held_bytes > self._most_bytes:
            raise ChatProblem(f"the answer has an event of more than {self._most_bytes} bytes")
        if b"\n" not in data:
            self._rest.append(data)
            return
        *lines, rest = b"".join((*self._rest, data)).split(b"\n")
        self._rest = [rest]
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                event, self._data = b"\n".join(self._data), []
                self._held_bytes = len(rest)
                yield event


@final
class _Draft:
    """An answer while it is put together."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.chosen = False
        self.finish_reason: str | None = None
        self._text: list[str] = []
        self._null_content = True
        self._reasoning: list[str] = []
        self._reasoning_fields: dict[str, None] = {}
        self._parts: list[Any] = []
        """The content, if it has parts that are no text."""
        self._more: dict[str, Any] = {}
        self._calls = ToolCalls()
        self._prompt_ids: TokenIds | None = None
        self._response_ids: TokenIds | None = None
        self._logprobs: Logprobs | None = None
        self._usage: Mapping[str, Any] = {}
        self._version_starts: list[tuple[int, str]] = []
        self._is_told_apart = True
        """Whether the tokens of each version are known."""
        self._per_token: dict[str, list[Any]] = {}
        self._model = ""

    def add(self, body: Mapping[str, Any], field: str) -> None:
        """Take a whole answer (``message``) or a part of one (``delta``)."""
        if body.get("error") or body.get("object") == "error":
            raise _error(body)
        usage = body.get("usage")
        if isinstance(usage, Mapping):
            self._usage = usage
        if isinstance(body.get("model"), str):
            self._model = excerpt(body["model"][:NAME_CHARS])
        if body.get("prompt_token_ids") is not None:
            self._prompt_ids = _ids(body["prompt_token_ids"])
        self._add_extension(body.get("sglext"))
        self._add_version(body)  # before the tokens of this part
        choices = _list(body.get("choices"), "choices")
        if not all(isinstance(choice, Mapping) for choice in choices):
            raise ChatProblem("a choice is not an object")
        ours = [choice for choice in choices if choice.get("index") in (0, None)]
        if field == "message" and len(ours) > 1:
            raise ChatProblem(f"there are {len(ours)} answers in one")
        for choice in ours:
            self._add_choice(choice, field)

    def _add_extension(self, extension: object) -> None:
        if not isinstance(extension, Mapping):
            return
        if extension.get("input_ids") is not None:
            self._prompt_ids = _ids(extension["input_ids"])
        if outputs := _list(extension.get("output_ids"), "output_ids"):
            self._response_ids = _ids(outputs[0])

    def _add_version(self, body: Mapping[str, Any]) -> None:
        metadata = body.get("metadata")
        for part in (body, metadata if isinstance(metadata, Mapping) else {}):
            if part.get("weight_version") is not None:
                version = str(part["weight_version"])
                if not self._version_starts:
                    self._version_starts.append((0, version))  # some say it at the end only
                elif self._version_starts[-1][1] != version:
                    tokens = len(self._response_ids or self._logprobs or ())
                    self._version_starts.append((tokens, version))
                    self._is_told_apart &= bool(tokens) or not self._has_sampled

    @property
    def has_ids(self) -> bool:
        """Whether token ids have come, of the answer or of its prompt."""
        return self._prompt_ids is not None or self._response_ids is not None

    @property
    def _has_sampled(self) -> bool:
        return any(self._text) or bool(self._reasoning) or self._calls.begun

    def _add_choice(self, choice: Mapping[str, Any], field: str) -> None:
        if choice.get("error"):
            raise _error(choice)
        message = choice.get(field)
        self.chosen |= isinstance(message, Mapping)
        message = message if isinstance(message, Mapping) else {}
        content = message.get("content")
        if not isinstance(content, str | list | None):
            raise ChatProblem("the content of its message is neither text nor parts")
        self._null_content &= content is None
        self._text.append(_text(content))
        if isinstance(content, list):
            self._parts += [part for part in content if isinstance(part, Mapping)]
        elif _text(content):
            self._parts.append(content)
        self._add_thought(message)
        self._add_more(message)
        for call in _calls(message):
            (self._calls.add if field == "message" else self._calls.add_fragment)(call)
        # The first that is not good counts: no later one makes a cut answer whole.
        reason = choice.get("finish_reason")
        if reason not in (None, "") and self._is_good(self.finish_reason):  # "" is none, too
            self.finish_reason = str(reason)
        if choice.get("token_ids") is not None:
            self._response_ids = self._response_ids or array.array("i")
            self._response_ids.extend(_ids(choice["token_ids"]))
        for name in self._endpoint.per_token:
            if choice.get(name) is not None:
                self._add_per_token(name, choice[name])
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, Mapping) and logprobs.get("content") is not None:
            self._logprobs = self._logprobs or array.array("f")
            self._logprobs.extend(_numbers(_list(logprobs["content"], "logprobs")))

    def _add_per_token(self, name: str, items: object) -> None:
        if not isinstance(items, list):
            raise ChatProblem(
                f"{name}, of the endpoint's per_token, is not a list with an item for each token"
            )
        if not _is_finite(items):
            raise _broken(f"gave a number in {name} that is not finite")
        self._per_token.setdefault(name, []).extend(items)

    def _add_thought(self, message: Mapping[str, Any]) -> None:
        """Add a piece of the thought, which some engines give under two names."""
        texts = {name: _text(message.get(name)) for name in THOUGHTS}
        given = {name: text for name, text in texts.items() if text}
        self._reasoning_fields.update(dict.fromkeys(given))
        self._reasoning += list(given.values())[:1]

    def _add_more(self, message: Mapping[str, Any]) -> None:
        """Put together the parts of the fields of :data:`_MORE`, which a stream cuts."""
        for name in _MORE:
            value, before = message.get(name), self._more.get(name)
            if value is None:
                continue
            joins = isinstance(value, str | list) and type(value) is type(before)
            self._more[name] = before + value if joins else value

    def _is_good(self, reason: str | None) -> bool:
        """Whether a further reason to finish may come, or this is none yet."""
        return reason is None or reason in (*FINISH_REASONS, *self._endpoint.finish_reasons)

    def completion(self) -> Completion:
        """The completion, put together.  Raises :class:`ChatProblem`."""
        reason = self.finish_reason
        if reason is None or not self._is_good(reason):
            why = "no reason" if reason is None else f"the reason {excerpt(reason)[:80]!r}"
            raise _cut(f"cut its answer ({why} to finish)")
        text, calls = "".join(self._text), tuple(self._calls.whole())
        if reason in ("tool_calls", "function_call") and not calls and not text.strip():
            raise _cut(f"gave {reason!r} as its reason to finish, and calls no tool")
        if not all(call.name for call in calls):
            raise _cut("gave a call without the name of its tool")
        if any(not isinstance(part, str) and _kind(part) != "text" for part in self._parts):
            self._more["content"] = [*_joined(self._parts)]
        ids, logprobs = self._response_ids, self._logprobs
        if ids is not None and logprobs is not None and len(ids) != len(logprobs):
            raise _broken(
                f"gave {len(logprobs)} log-probabilities for {len(ids)} tokens", again=False
            )
        if ids and logprobs is not None and min(logprobs) <= MISSING_LOGPROB:
            raise _broken(f"gave no log-probability for a sampled token, but {MISSING_LOGPROB:g}")
        counted = _count(self._usage.get("completion_tokens"))
        if ids is not None and not ids and (text or calls or self._reasoning):
            raise _broken("gave no token ids for what it sampled")
        if ids and self._prompt_ids is not None and not self._prompt_ids:
            raise _broken("gave no token ids for what it read")
        if ids is not None and len(ids) < (counted or 0):
            raise _broken(f"gave {len(ids)} token ids for {counted} sampled tokens")
        for name, items in self._per_token.items():
            if ids is not None and len(items) != len(ids):
                raise _broken(
                    f"gave {len(items)} items of {name} for {len(ids)} tokens", again=False
                )
        starts = tuple(self._version_starts) if self._is_told_apart else ()
        return Completion(
            text=text,
            prompt_tokens=_count(self._usage.get("prompt_tokens")),
            completion_tokens=counted,
            finish_reason=reason,
            tool_calls=calls,
            reasoning="".join(self._reasoning),
            reasoning_fields=tuple(self._reasoning_fields) or THOUGHTS[:1],
            null_content=self._null_content,
            more=self._more,
            prompt_ids=self._prompt_ids,
            response_ids=ids,
            logprobs=logprobs,
            weight_version=starts[-1][1] if starts else None,
            version_starts=starts,
            per_token=self._per_token,
            answered_by=self._model,
        )


# -- values that anybody may have written -----------------------------------------


def parsed(data: bytes, pause: Callable[[], None] | None = None) -> Mapping[str, Any]:
    """A JSON object.  Raises :class:`ChatProblem`.  With ``pause`` it lacks what
    nobody reads beside log-probabilities: the garbage collector would look at it for long."""
    # A tiny list takes many times the memory of its two bytes.
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
        raise ChatProblem(f"the answer has more than {MAX_CONTAINERS} lists and objects")
    hooks: dict[str, Any] = {}
    if pause is not None:
        hooks = {
            "parse_int": after(pause, int), "parse_float": after(pause, float),
            "object_hook": after(pause, _less),
        }  # fmt: skip
    try:
        body = json.loads(data, **hooks)
    except (ValueError, RecursionError) as error:
        is_begun = data.lstrip()[:1] in (b"", b"{") or _DONE.startswith(data.strip())
        if isinstance(error, ValueError) and is_begun:
            raise _cut(f"broke off its answer: {excerpt(data)}") from None
        raise ChatProblem(f"the answer is not JSON: {excerpt(data)}") from None
    if not isinstance(body, dict):
        raise ChatProblem(f"the answer is not an object: {excerpt(data)}")
    return body


def _less(part: dict[str, Any]) -> dict[str, Any]:
    """An object, without what an engine says of a token beside its log-probability."""
    if "logprob" in part:
        part.pop("top_logprobs", None)
        part.pop("bytes", None)
    return part


def _list(value: object, name: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ChatProblem(f"{name} is not a list")
    return value


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # parts
        return "".join(_text(part.get("text")) for part in value if isinstance(part, Mapping))
    return ""


def _calls(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The tool calls of a message, and the one of the form before there were several."""
    yield from (
        call for call in _list(message.get("tool_calls"), "tool_calls") if isinstance(call, Mapping)
    )
    if isinstance(message.get("function_call"), Mapping):
        yield {"index": 0, "function": message["function_call"]}


def _kind(part: object) -> object:
    return part.get("type") if isinstance(part, Mapping) else None


def _joined(parts: list[Any]) -> Iterator[Any]:
    """Parts of a content, with the texts that follow each other in one."""
    for kind, some in itertools.groupby(parts, type):
        if kind is str:
            yield {"type": "text", "text": "".join(some)}
        else:
            yield from some


def _ids(value: object) -> TokenIds:
    try:
        ids = array.array("i", _list(value, "token ids"))
    except (TypeError, OverflowError):
        ids = array.array("i", [-1])
    if ids and min(ids) < 0:
        raise ChatProblem("token ids are not integers of 32 bits from 0 on")
    return ids


def _numbers(content: list[Any]) -> Logprobs:
    """The log-probabilities of sampled tokens.  An engine gives NaN, or null in its place, where
    its own numbers broke."""
    try:
        numbers = array.array("f", [item["logprob"] for item in content])
    except (TypeError, KeyError, OverflowError):
        raise _broken("gave log-probabilities that are not numbers") from None
    for number in numbers:
        if not math.isfinite(number):
            raise _broken(f"gave a log-probability that is {number}")
        if number > HIGHEST_LOGPROB:
            raise _broken(f"gave a log-probability that is {number:g}, above 0: is it a logit?")
    return numbers


def _is_finite(value: object) -> bool:
    """Whether no number in nested lists is NaN or infinite."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, float) and not math.isfinite(each):
            return False
    return True


def _count(value: object) -> int | None:
    """A number of tokens; None for what can be none."""
    return value if type(value) is int and 0 <= value < MOST_TOKENS else None


def _error(body: Mapping[str, Any]) -> ChatProblem:
    """The problem of an error in an answer's place."""
    text, codes = error_text(body), error_codes(body)
    status = next((int(code) for code in codes if code.isdecimal() and len(code) == 3), None)
    if status is not None and 400 <= status < 500:
        failure = patience.failure_of_status(status, {}, text, now_s=0.0, codes=codes)
        return ChatProblem(text, failure)
    failure = patience.failure_of_error(text, codes, status)
    return ChatProblem(text, failure)


def error_codes(body: object) -> tuple[str, ...]:
    """The code and the type of an error in one of these forms, for programs."""
    found = []
    while isinstance(body, Mapping):
        for field in ("code", "type", "error_type", "status"):
            value = body.get(field)
            if isinstance(value, str | int) and not isinstance(value, bool):
                found.append(str(value)[:100])
        body = body.get("error")
    return tuple(found)


def error_text(body: object) -> str:
    """The message of an error in OpenAI's form, or in one of the others that there are."""
    for field in ("error", "message", "detail"):
        if isinstance(body, Mapping) and body.get(field):
            body = body[field]
    return excerpt(body if isinstance(body, str) else json.dumps(body))


def excerpt(text: str | bytes) -> str:
    """The beginning of a text, as one line."""
    if isinstance(text, bytes):
        text = text[: 4 * EXCERPT_CHARS].decode(errors="replace")
    text = text[:EXCERPT_CHARS]
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
