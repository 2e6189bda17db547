"""Whether a model call is sent again, and when.  Pure.

Theory of operation
-------------------
A call is sent again only if the endpoint has not answered it (there was no connection, or
it broke before the answer was whole), or if the answer says so: status 408, 429, 502, 503
and 504, a ``Retry-After``, or ``x-should-retry: true``; or if it cut its answer, gave an error
in its place, or broken numbers.  An answer cut in its middle has reached nobody, so nothing is
run twice but the generation.  A timeout, any other status and an answer that is no completion
end the call, and so does a conversation that does not fit into the context
(:data:`CONTEXT_FULL`).

The pauses double from half a second to half a minute, each with jitter; ten of them last
at least 75 s.  After an answer that was cut they end at five seconds: ten last at least 18 s.
``Retry-After`` replaces a pause, and nobody comes sooner than it says.  An endpoint that asks
for more than two minutes has refused.  One that has never answered is most likely not there:
while it cannot be connected it has :data:`FIRST_ANSWER_S` in all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime

from .interface import ContextFull, ModelAborted, ModelError

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LONGEST_CUT_PAUSE_S = 5.0
"""Longest pause after an answer that was cut or had broken numbers: its engine is there, and
updates weights, say."""
LONGEST_RETRY_AFTER_S = 120.0
FIRST_ANSWER_S = 9.0
"""Time for an endpoint that has never answered, from the first request to it."""

_COME_AGAIN = frozenset({408, 429, 502, 503, 504})

CONTEXT_STATUSES = frozenset({400, 413, 422, 500})
"""Statuses with which engines say that a conversation is too long.  413 needs no words."""

CONTEXT_CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, and most that are compatible
        "exceed_context_size_error",  # llama.cpp
    }
)

CONTEXT_FULL = (
    "maximum context length",  # vLLM, OpenAI, SGLang (the answer's tokens counted)
    "context length is only",  # vLLM since 0.14
    "longer than the maximum model length",  # vLLM's engine
    "longer than the model's context length",  # SGLang
    "exceeds the maximum allowed length",  # SGLang's scheduler
    "exceeds the context window",  # OpenAI
    "exceeds the available context size",  # llama.cpp
    "context size has been exceeded",  # llama.cpp, while it generates
    "`inputs` must have less than",  # TGI
    "`inputs` tokens + `max_new_tokens` must be",  # TGI
    "should not exceed max_num_tokens",  # TensorRT-LLM
    "exceeds maximum input length",  # TensorRT-LLM
    "exceeds the context length",  # Ollama
    "exceeds maximum context length",  # Ollama
    "greater than the context length",  # LM Studio
    "prompt is too long",  # Anthropic
    "exceeds the maximum number of tokens allowed",  # Gemini
    "reduce the length of the messages",  # Groq
)
"""Words, in lower case, that say so."""


@dataclasses.dataclass(frozen=True, slots=True)
class EndpointFailure:
    """A request that was not answered with a completion."""

    text: str
    """The failure, as the end of a sentence about the endpoint."""
    again: bool
    """The call may be sent again."""
    retry_after_s: float | None = None
    """The endpoint wants nothing sooner."""
    error: type[ModelError] = ModelError
    """The error with which the call ends, if it is not sent again."""
    status: int | None = None
    code: str = ""
    """The endpoint's own code of the error."""
    unconnected: bool = False
    """Whether there was no connection."""


def failure_of_error(text: str, codes: Sequence[str], status: int | None) -> EndpointFailure:
    """The failure of an error in an answer's place that names no status of a refusal."""
    if _is_context_full(status or 400, text, codes):
        return EndpointFailure(text, False, error=ContextFull, status=status, code=_code(codes))
    told = f"gave an error in its answer: {text}"
    return EndpointFailure(told, True, error=ModelAborted, status=status, code=_code(codes))


def failure_of_status(
    status: int, headers: Mapping[str, str], text: str, *, now_s: float, codes: Sequence[str] = ()
) -> EndpointFailure:
    """The failure of a status other than 200.  ``now_s`` is the calendar's time, in seconds
    since 1970; ``headers`` finds lower-case names; ``codes`` are the codes of the error in
    the answer."""
    if _is_context_full(status, text, codes):
        told = f"answered {status}: {text}"
        return EndpointFailure(told, False, error=ContextFull, status=status, code=_code(codes))
    wait_s = retry_after_s(headers, now_s)
    again = status in _COME_AGAIN or wait_s is not None
    if headers.get("x-should-retry") in ("true", "false"):
        again = headers["x-should-retry"] == "true"
    told = f"answered {status}"
    if 300 <= status < 400 and "location" in headers:
        told += f" (it wants to be called at {headers['location'][:200]!r})"
    if wait_s is not None and wait_s > LONGEST_RETRY_AFTER_S:
        again, told = False, f"{told} and asks to wait for {wait_s:.0f} s"
    told = f"{told}: {text}" if text else told
    return EndpointFailure(told, again, wait_s, status=status, code=_code(codes))


def _is_context_full(status: int, text: str, codes: Sequence[str]) -> bool:
    if status not in CONTEXT_STATUSES or "rate_limit_exceeded" in codes:
        return False
    words = text.lower()
    return (
        status == 413
        or not CONTEXT_CODES.isdisjoint(codes)
        or any(phrase in words for phrase in CONTEXT_FULL)
    )


def _code(codes: Sequence[str]) -> str:
    """The code that says most: a word rather than the status again."""
    return next((code for code in codes if not code.isdecimal()), codes[0] if codes else "")


def pause_s(retry: int, failure: EndpointFailure, jitter: float) -> float:
    """The pause before the ``retry``-th repetition (from 1), in seconds.  ``jitter`` is a random
    number from 0 to 1.
    """
    longest_s = LONGEST_PAUSE_S if failure.error is ModelError else LONGEST_CUT_PAUSE_S
    backoff_s = min(FIRST_PAUSE_S * 2.0 ** min(retry - 1, 10), longest_s)
    if failure.retry_after_s is None:
        return backoff_s * (1 + jitter) / 2
    return failure.retry_after_s + jitter * min(backoff_s, max(failure.retry_after_s, 1.0))


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """The pause that the endpoint asks for, if it can be read."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            asked_s = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        if 0 <= asked_s < math.inf:
            return asked_s
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(moment.timestamp() - now_s, 0.0)
