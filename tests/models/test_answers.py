"""The answers of engines, streamed and not, and what comes out of each.

Each row was seen, or is what an engine's source says it sends.  ``AGAIN`` is sent again
within the endpoint's patience and ends as that error; ``ENDS`` ends the call at once.
"""

import itertools
import json
import math
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.endpoint import Reply, Status
from tests.models.helpers import HELLO, scripted, served
from trio_envserve.models import BrokenNumbers, ContextFull, ModelAborted, ModelError
from trio_envserve.models.chat import ChatProblem, StreamReader, read_answer
from trio_envserve.models.endpoints import Endpoint as Where

pytestmark = pytest.mark.usefixtures("quick")

WHERE = Where(url="http://x/v1")


class Good(NamedTuple):
    """The fields of the completion that matter."""

    fields: dict[str, Any]


class Again(NamedTuple):
    """Sent again, then this error, whose text has this."""

    error: type[ModelError]
    told: str
    status: int | None = None
    code: str = ""


class Ends(NamedTuple):
    """This error at once."""

    error: type[ModelError]
    told: str
    status: int | None = None
    code: str = ""


def whole(message: Any = None, reason: Any = "stop", **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Let me"} if message is None else message
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason, **choice}]}


def piece(reason: Any = None, *, choice: Any = None, **delta: Any) -> dict[str, Any]:
    more = choice or {}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason, **more}]}


def stream(*events: Any, done: bool = True) -> Status:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    text = "".join(lines) + ("data: [DONE]\n\n" if done else "")
    return Status(200, text.encode(), {"content-type": "text/event-stream"})


def plain(body: Any, status: int = 200) -> Status:
    return Status(status, json.dumps(body).encode(), {"content-type": "application/json"})


def logprobs(*numbers: Any) -> dict[str, Any]:
    return {"content": [{"token": "x", "logprob": number} for number in numbers]}


def fragment(
    index: int | None = None, id: Any = None, name: Any = None, arguments: Any = None
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {
        "index": index,
        "id": id,
        "function": {k: v for k, v in function.items() if v is not None},
    }
    return piece(tool_calls=[{key: value for key, value in call.items() if value is not None}])


def calls(*fragments: dict[str, Any]) -> Status:
    return stream(piece(role="assistant", content=""), *fragments, piece("tool_calls"))


def called(*given: tuple[str, str]) -> Good:
    return Good({"tools": list(given)})


JSON = {"content-type": "application/json"}
THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
STEP, NEXT = ("step", '{"n": 1}'), ("step", '{"n": 2}')
GOOD = Good({"text": "Let me", "finish_reason": "stop"})

ANSWERS: dict[str, tuple[Status, Good | Again | Ends]] = {
    # -- reasons to finish
    "OpenAI: stop": (plain(whole()), GOOD),
    "OpenAI: length": (plain(whole(reason="length")), Good({"finish_reason": "length"})),
    "OpenAI: function_call": (plain(whole(reason="function_call")), Good({"text": "Let me"})),
    "TGI: eos_token": (plain(whole(reason="eos_token")), Good({"text": "Let me"})),
    "TGI: stop_sequence": (plain(whole(reason="stop_sequence")), Good({"text": "Let me"})),
    "Together: eos": (plain(whole(reason="eos")), Good({"text": "Let me"})),
    "SGLang: abort, the weights change": (
        plain(whole(reason="abort")), Again(ModelAborted, "cut its answer (the reason 'abort'"),
    ),
    "vLLM: error": (plain(whole(reason="error")), Again(ModelAborted, "the reason 'error'")),
    "null at the end": (plain(whole(reason=None)), Again(ModelAborted, "no reason to finish")),
    "DeepSeek: a word that is not known": (
        plain(whole(reason="insufficient_system_resource")), Again(ModelAborted, "insufficient"),
    ),
    "an empty word at the end": (
        plain(whole(reason="")), Again(ModelAborted, "no reason to finish"),
    ),
    "SGLang of old, Ollama of old, streamed: an empty word until the end": (
        stream(piece("", content="Let "), piece("", content="me"), piece("stop")), GOOD,
    ),
    "no word at all": (plain(whole(reason=[1])), Again(ModelAborted, "cut its answer")),
    "streamed: stop without [DONE]": (stream(piece("stop", content="Let me"), done=False), GOOD),
    "streamed: [DONE] without a reason": (
        stream(piece(content="Let")), Again(ModelAborted, "no reason to finish"),
    ),
    "streamed: the end comes early": (
        stream(piece(content="Let"), done=False), Again(ModelAborted, "before the answer was"),
    ),
    "streamed: nothing but [DONE]": (stream(), Again(ModelAborted, "without an answer")),
    "streamed: abort, then stop": (
        stream(piece("abort", content="Let"), piece("stop")), Again(ModelAborted, "'abort'"),
    ),
    "tool_calls, and no call": (
        plain(whole({"role": "assistant", "content": ""}, "tool_calls")),
        Again(ModelAborted, "calls no tool"),
    ),
    "an empty body": (Status(200, b"", JSON), Again(ModelAborted, "broke off its answer")),
    "half a body": (
        Status(200, b'{"choices": [{"message": {"content": "Let', JSON),
        Again(ModelAborted, "broke off its answer"),
    ),
    "a choice without a message": (
        plain({"choices": [{"index": 0, "finish_reason": "stop"}]}),
        Again(ModelAborted, "without a message"),
    ),
    "a text completion": (
        plain({"choices": [{"index": 0, "text": "Let me", "finish_reason": "stop"}]}),
        Again(ModelAborted, "without a message"),
    ),
    "streamed: whole messages": (
        stream({"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}),
        Again(ModelAborted, "without an answer"),
    ),
    "content that is a number": (
        plain(whole({"role": "assistant", "content": 42})), Ends(ModelError, "neither text nor"),
    ),
    "a call without a name": (
        plain(whole({"role": "assistant", "content": "",
                     "tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]}, "tool_calls")),
        Again(ModelAborted, "without the name of its tool"),
    ),
    "two answers in one": (
        plain({"choices": [{"message": {"content": c}, "finish_reason": "stop"} for c in "ab"]}),
        Ends(ModelError, "there are 2 answers in one"),
    ),
    # -- who answered
    "the model that was asked": (plain({**whole(), "model": "m"}), Good({"answered_by": ""})),
    "OpenAI: a dated name": (
        plain({**whole(), "model": "m-2026-01-01"}), Good({"answered_by": "m-2026-01-01"}),
    ),
    "streamed: a router's choice": (
        stream({**piece(content="a"), "model": "o\ud800ther"}, {**piece("stop"), "model": None}),
        Good({"answered_by": "o ther"}),
    ),
    # -- what is sent back as it came
    "OpenRouter: details of thoughts": (
        plain(whole({"role": "assistant", "content": "Let me", "reasoning": "hm",
                     "reasoning_details": [{"type": "reasoning.text", "signature": "s"}]})),
        Good({"message": {"role": "assistant", "content": "Let me", "reasoning": "hm",
                          "reasoning_details": [{"type": "reasoning.text", "signature": "s"}]}}),
    ),
    "LiteLLM: blocks of thoughts": (
        plain(whole({"role": "assistant", "content": "Let me",
                     "thinking_blocks": [{"type": "thinking", "signature": "s"}]})),
        Good({"message": {"role": "assistant", "content": "Let me",
                          "thinking_blocks": [{"type": "thinking", "signature": "s"}]}}),
    ),
    "Mistral: thoughts among the content": (
        plain(whole({"role": "assistant", "content": [THINKING, {"type": "text", "text": "So"}]})),
        Good({"text": "So", "message": {
            "role": "assistant", "content": [THINKING, {"type": "text", "text": "So"}],
        }}),
    ),
    "Mistral, streamed: thoughts among the content": (
        stream(piece(content=[THINKING]), piece(content="S"), piece("stop", content="o")),
        Good({"text": "So", "message": {
            "role": "assistant", "content": [THINKING, {"type": "text", "text": "So"}],
        }}),
    ),
    "OpenAI: a refusal": (
        plain(whole({"role": "assistant", "content": None, "refusal": "I can't."})),
        Good({"message": {"role": "assistant", "content": "", "refusal": "I can't."}}),
    ),
    "streamed: a refusal in pieces": (
        stream(piece(refusal="I "), piece("stop", refusal="can't.")),
        Good({"message": {"role": "assistant", "content": "", "refusal": "I can't."}}),
    ),
    # -- errors in an answer's place
    "OpenRouter: choices[0].error": (
        plain(whole(reason="error", error={"code": 502, "message": "upstream died"})),
        Again(ModelAborted, "upstream died", 502, "502"),
    ),
    "OpenRouter: no credits, with the status 200": (
        plain({"error": {"code": 402, "message": "Insufficient credits"}}),
        Ends(ModelError, "answered 402: Insufficient credits", 402, "402"),
    ),
    "a rate limit with the status 200": (
        plain({"error": {"code": 429, "message": "slow down"}}), Again(ModelError, "slow down", 429,
        "429"),
    ),
    "an error with the status 200": (
        plain({"error": "no GPU"}), Again(ModelAborted, "gave an error in its answer: no GPU"),
    ),
    "no choices": (plain({}), Again(ModelAborted, "without choices")),
    "vLLM, streamed: an error": (
        stream(
            piece(content="Let"),
            {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}},
        ),
        Again(ModelAborted, "EngineCore died", 500, "InternalServerError"),
    ),
    "SGLang, streamed: an error": (
        stream({"object": "error", "message": "aborted", "type": "ServiceUnavailable",
                "code": 503}),
        Again(ModelAborted, "aborted", 503, "ServiceUnavailable"),
    ),
    "TGI, streamed: an error": (
        stream({"error": "Model is overloaded", "error_type": "overloaded"}),
        Again(ModelAborted, "Model is overloaded", None, "overloaded"),
    ),
    "llama.cpp, streamed: the context is full": (
        stream(
            piece(content="Let"),
            {"error": {"code": 500, "message": "Context size has been exceeded.", "type":
             "server_error"}},
        ),
        Ends(ContextFull, "Context size has been exceeded", 500, "server_error"),
    ),
    "SGLang, streamed: the context is full": (
        stream({"error": {
            "object": "error", "code": 400, "type": "BadRequestError", "message":
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        }}),
        Ends(ContextFull, "longer than the model's context length", 400, "BadRequestError"),
    ),
    # -- the context is full; the rest of these is in FULL
    "OpenAI: full": (
        plain({"error": {"message": "Your input is too long.", "type": "invalid_request_error",
               "param": "messages", "code": "context_length_exceeded"}}, 400),
        Ends(ContextFull, "too long", 400, "context_length_exceeded"),
    ),
    "llama.cpp: full, by its code": (
        plain({"error": {"message": "no", "type": "exceed_context_size_error", "code": 400}}, 400),
        Ends(ContextFull, "answered 400: no", 400, "exceed_context_size_error"),
    ),
    "TGI: full": (
        plain({"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= "
               "4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`",
               "error_type": "validation"}, 422),
        Ends(ContextFull, "max_new_tokens", 422, "validation"),
    ),
    "Ollama: full": (
        plain({"error": {"message": "the input length exceeds the context length"}}, 500),
        Ends(ContextFull, "exceeds the context length", 500),
    ),
    "a proxy: too large": (
        Status(413, b"<html>413 Request Entity Too Large</html>"),
        Ends(ContextFull, "Request Entity Too Large", 413),
    ),
    "another 400": (
        plain({"error": {"message": "temperature must be positive", "code": 400}}, 400),
        Ends(ModelError, "temperature", 400, "400"),
    ),
    "Groq: tokens of a minute": (
        plain({"error": {"message": "Request too large for model on tokens per minute (TPM)",
               "type": "tokens", "code": "rate_limit_exceeded"}}, 413),
        Ends(ModelError, "tokens per minute", 413, "rate_limit_exceeded"),
    ),
    # -- what else is no completion
    "another status": (Status(500, b"oh\x00\n no"), Ends(ModelError, "answered 500: oh no")),
    "FastAPI: what is wrong": (
        plain({"detail": [{"loc": 1}]}, 422), Ends(ModelError, 'answered 422: [{"loc": 1}]'),
    ),
    "FastAPI: a text": (plain({"detail": "no"}, 403), Ends(ModelError, "answered 403: no")),
    "a form of its own": (plain({"a": 1}, 403), Ends(ModelError, 'answered 403: {"a": 1}')),
    "a page": (
        Status(200, b"<html>\n<h1>Sign in</h1></html>", {"content-type": "text/html"}),
        Ends(ModelError, "no completion: the answer is not JSON: <html> <h1>Sign in</h1></html>"),
    ),
    "a list": (Status(200, b"[1]", JSON), Ends(ModelError, "not an object")),
    "lists in lists": (Status(200, b"[" * 100_000, JSON), Ends(ModelError, "not JSON")),
    "a pause that is too long": (
        Status(429, headers={"retry-after": "9999"}), Ends(ModelError, "asks to wait for 9999 s"),
    ),
    "another address": (
        Status(307, headers={"location": "http://else"}), Ends(ModelError, "at 'http://else'"),
    ),
    # -- numbers
    "fewer log-probabilities than tokens": (
        plain(whole(token_ids=[1, 2], logprobs=logprobs(-1.0))),
        Ends(BrokenNumbers, "1 log-probabilities for 2 tokens"),
    ),
    "a token of 41 bits": (
        plain(whole(token_ids=[2**40])), Ends(ModelError, "not integers of 32 bits"),
    ),
    "NaN": (
        plain(whole(logprobs=logprobs(-0.5, math.nan))), Again(BrokenNumbers, "that is nan"),
    ),
    "minus infinity": (
        plain(whole(logprobs=logprobs(-math.inf))), Again(BrokenNumbers, "that is -inf"),
    ),
    "too large for 32 bits": (
        plain(whole(logprobs=logprobs(-1e39))), Again(BrokenNumbers, "that is -inf"),
    ),
    "null": (plain(whole(logprobs=logprobs(None))), Again(BrokenNumbers, "not numbers")),
    "the text NaN": (plain(whole(logprobs=logprobs("NaN"))), Again(BrokenNumbers, "not numbers")),
    "logits": (plain(whole(logprobs=logprobs(-0.5, 3.5))), Again(BrokenNumbers, "above 0")),
    "rounded to a little above 0": (
        plain(whole(logprobs=logprobs(0.0009765625))), Good({"logprobs": [0.0009765625]}),
    ),
    "text without tokens": (
        plain(whole(token_ids=[])), Again(BrokenNumbers, "no token ids for what it sampled"),
    ),
    "fewer tokens than were sampled": (
        plain({**whole(token_ids=[1]), "usage": {"completion_tokens": 5}}),
        Again(BrokenNumbers, "1 token ids for 5 sampled tokens"),
    ),
    "SGLang: fewer tokens than were sampled": (
        plain({**whole(), "sglext": {"output_ids": [[1]]}, "usage": {"completion_tokens": 5}}),
        Again(BrokenNumbers, "1 token ids for 5 sampled tokens"),
    ),
    "a thought without tokens": (
        plain(whole({"content": None, "reasoning_content": "Hm"}, token_ids=[])),
        Again(BrokenNumbers, "no token ids for what it sampled"),
    ),
    "nothing, of tokens that were counted": (
        plain({**whole({"content": ""}, token_ids=[]), "usage": {"completion_tokens": 3}}),
        Again(BrokenNumbers, "0 token ids for 3 sampled tokens"),
    ),
    "tokens after a prompt of none": (
        plain({**whole(token_ids=[1]), "prompt_token_ids": []}),
        Again(BrokenNumbers, "no token ids for what it read"),
    ),
    "more tokens than there can be": (
        plain({**whole(), "usage": {"prompt_tokens": 1 << 70, "completion_tokens": -1}}),
        Good({"usage": (None, None)}),
    ),
    "a token below 0": (
        plain(whole(token_ids=[1, -1])), Ends(ModelError, "integers of 32 bits from 0 on"),
    ),
    "vLLM, streamed: tokens of a piece that was left out": (
        stream(piece(content="a", choice={"token_ids": [1]}), piece("stop", content="b"),
               {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
        Again(BrokenNumbers, "1 token ids for 2 sampled tokens"),
    ),
    "OpenAI: -9999, a token that is not among the likely ones": (
        plain(whole(logprobs=logprobs(-9999.0))), Good({"logprobs": [-9999.0]}),
    ),
    "vLLM: -9999, its word for minus infinity, beside tokens to train on": (
        plain(whole(token_ids=[1, 2], logprobs=logprobs(-0.5, -9999.0))),
        Again(BrokenNumbers, "no log-probability for a sampled token, but -9999"),
    ),
    # -- what belongs to tokens
    "routed experts": (
        plain(whole(token_ids=[1, 2], routed_experts=[[0, 1], [2, 3]])),
        Good({"per_token": {"routed_experts": [[0, 1], [2, 3]]}}),
    ),
    "streamed: routed experts": (
        stream(
            piece(content="a", choice={"token_ids": [1], "routed_experts": [[0, 1]]}),
            piece("stop", choice={"token_ids": [2], "routed_experts": [[2, 3]]}),
        ),
        Good({"per_token": {"routed_experts": [[0, 1], [2, 3]]}}),
    ),
    "routed experts of another number of tokens": (
        plain(whole(token_ids=[1, 2], routed_experts=[[0, 1]])),
        Ends(BrokenNumbers, "1 items of routed_experts for 2 tokens"),
    ),
    "routed experts that are not finite": (
        plain(whole(routed_experts=[[math.nan]])), Again(BrokenNumbers, "routed_experts"),
    ),
    "routed experts as text": (
        plain(whole(routed_experts="AAAA")), Ends(ModelError, "an item for each token"),
    ),
    "SGLang: the version of the weights": (
        plain({**whole(), "metadata": {"weight_version": "7"}}), Good({"versions": ((0, "7"),)}),
    ),
    "streamed: the weights change": (
        stream(
            {**piece(content="a", choice={"token_ids": [1, 2]}), "weight_version": 7},
            {**piece(content="b", choice={"token_ids": [3]}), "weight_version": 8},
            {**piece("stop"), "weight_version": 8},
        ),
        Good({"versions": ((0, "7"), (2, "8"))}),
    ),
    "streamed: the weights change, and nobody says which tokens are whose": (
        # All of them were told as sampled by the last version.
        stream(
            {**piece(content="a"), "weight_version": 7},
            {**piece(content="b"), "weight_version": 8},
            {**piece("stop"), "weight_version": 8},
            {"choices": [], "sglext": {"input_ids": [1], "output_ids": [[1, 2, 3]]}},
        ),
        Good({"versions": (), "version": None}),
    ),
    "streamed: the weights change before the first token": (
        stream(
            {**piece(), "weight_version": 7},
            {**piece(content="a", choice={"token_ids": [1]}), "weight_version": 8},
            {**piece("stop"), "weight_version": 8},
        ),
        Good({"versions": ((0, "7"), (0, "8")), "version": "8"}),
    ),
    "streamed: the version comes last": (
        stream(piece(content="a", choice={"token_ids": [1]}), {**piece("stop"), "weight_version":
               "7"}),
        Good({"versions": ((0, "7"),)}),
    ),
    "OpenAI of old: a function call": (
        plain(whole({"role": "assistant", "content": None,
                     "function_call": {"name": "step", "arguments": '{"n": 1}'}}, "function_call")),
        called(STEP),
    ),
    "OpenAI of old, streamed: a function call in pieces": (
        stream(piece(function_call={"name": "step", "arguments": '{"n"'}),
               piece(function_call={"arguments": ": 1}"}), piece("function_call")),
        called(STEP),
    ),
    # -- streamed tool calls
    "Ollama: whole calls, all with the index 0": (
        calls(fragment(0, "a", *STEP), fragment(0, "b", *NEXT)), called(STEP, NEXT),
    ),
    "Gemini: no index": (
        calls(fragment(None, "a", *STEP), fragment(None, "b", *NEXT)), called(STEP, NEXT),
    ),
    "one id for all": (
        calls(fragment(0, "a", *STEP), fragment(1, "a", *NEXT)), called(STEP, NEXT),
    ),
    "no index and no ids": (
        calls(fragment(None, None, *STEP), fragment(None, None, *NEXT)), called(STEP, NEXT),
    ),
    "arguments as an object": (calls(fragment(0, "a", "step", {"n": 1})), called(STEP)),
    "all of an object again": (
        calls(*[fragment(0, "a", "step", {"n": 1})] * 3), called(STEP),
    ),
    "all arguments so far again": (
        calls(*(fragment(0, "a", "step", '{"n": 1}'[:size]) for size in (4, 6, 8, 8))),
        called(STEP),
    ),
    "an empty object, then text": (
        calls(fragment(0, "a", "step", {}), fragment(0, None, None, '{"n": 1}')), called(STEP),
    ),
    "two tools without arguments under one index": (
        calls(fragment(0, "a", "go", ""), fragment(0, "b", "step", "")),
        called(("go", ""), ("step", "")),
    ),
    "two tools without ids under one index": (
        calls(fragment(0, None, "go", "{}"), fragment(0, None, *STEP)), called(("go", "{}"), STEP),
    ),
    "calls that take turns without an index": (
        calls(fragment(None, "a", "go", "["), fragment(None, "b", "step", "{"),
              fragment(None, "a", None, "]"), fragment(None, "b", None, "}")),
        called(("go", "[]"), ("step", "{}")),
    ),
    "no tool's arguments are JSON": (
        calls(fragment(0, "a", "step", "n"), fragment(0, None, None, "=1")),
        called(("step", "n=1")),
    ),
}  # fmt: skip


FULL = {
    "vLLM": "This model's maximum context length is 4096 tokens. However, you requested 5000 "
    "tokens (4000 in the messages, 1000 in the completion).",
    "vLLM since 0.14": "You passed 4097 input tokens and requested 1 output tokens. However, the "
    "model's context length is only 4096 tokens.",
    "SGLang": "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    "llama.cpp": "request (5000 tokens) exceeds the available context size (4096 tokens), try "
    "increasing it",
    "TensorRT-LLM": "The sum of prompt length (5000.0), query length (0) should not exceed "
    "max_num_tokens (4096)",
}
"""The words of engines for a conversation that is too long, which come in two forms."""
for engine, words in FULL.items():
    about = {"message": words, "type": "BadRequestError", "param": None, "code": 400}
    expected = Ends(ContextFull, f"answered 400: {words}", 400, "BadRequestError")
    ANSWERS[f"{engine}: full"] = plain({"error": about}, 400), expected
    ANSWERS[f"{engine}: full, as of old"] = plain({"object": "error", **about}, 400), expected


def in_a_stream(answer: Status) -> Status | None:
    """A whole answer as the events of a stream: its role, all that it says, its end."""
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(body, dict)
        or len(body.get("choices", ())) != 1
        or "message" not in body["choices"][0]
    ):
        return None
    beside = {name: value for name, value in body.items() if name != "choices"}
    (choice,) = body["choices"]
    more = {k: v for k, v in choice.items() if k not in ("message", "finish_reason")}
    delta = {k: v for k, v in choice["message"].items() if k != "role"}
    return stream(
        {**beside, **piece(role="assistant", content="")},
        {**beside, **piece(choice=more, **delta)},
        {**beside, **piece(choice["finish_reason"])},
    )


STREAMED = {
    f"{name}, in a stream": (streamed, expected)
    for name, (answer, expected) in ANSWERS.items()
    if answer.status == 200 and (streamed := in_a_stream(answer))
}
"""Each whole answer once more, as a stream."""
EVERY = ANSWERS | STREAMED


@pytest.mark.parametrize(("answer", "expected"), EVERY.values(), ids=EVERY)
async def test_an_engines_answer(answer, expected):
    async with served(scripted(answer), retries=1) as model:
        if isinstance(expected, Good):
            _check(await model.complete(HELLO, name="m", sampling_args={}), expected)
            return
        with pytest.raises(ModelError) as caught:
            await model.complete(HELLO, name="m", sampling_args={})
    error = caught.value
    assert type(error) is expected.error
    assert expected.told in str(error)
    status = expected.status or (None if answer.status == 200 else answer.status)
    assert (error.status, error.endpoint_code) == (status, expected.code)
    assert error.requests == (2 if isinstance(expected, Again) else 1)


def _check(completion, expected):
    assert completion.requests == 1
    found = {
        "tools": [(call.name, call.arguments) for call in completion.tool_calls],
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "per_token": completion.per_token,
        "versions": completion.version_starts,
        "version": completion.weight_version,
        "logprobs": list(completion.logprobs or ()),
        "message": completion.message,
        "usage": (completion.prompt_tokens, completion.completion_tokens),
        "answered_by": completion.answered_by,
    }
    assert {name: found[name] for name in expected.fields} == expected.fields
    assert len({call.id for call in completion.tool_calls}) == len(completion.tool_calls)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cut_answer_leaves_nothing_in_the_next_one(streamed):
    cut = Reply("half a word", reasoning="hm", finish_reason="abort", tools=[("go", {})])
    async with served(scripted(cut, Reply("whole"))) as model:
        more = {"stream": streamed, "return_token_ids": True, "logprobs": True}
        answer = await model.complete(HELLO, name="m", sampling_args=more)
    assert (answer.text, answer.reasoning, answer.tool_calls) == ("whole", "", ())
    assert answer.requests == 2
    assert answer.response_ids is not None
    assert bytes(answer.response_ids[:-1].tolist()) == b"whole"


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (True, {"return_output_ids_in_sglext": True}),
        (False, {"return_input_ids_in_sglext": False}),
        (False, {}),
    ],
)
async def test_stream_that_ends_before_the_ids_it_was_asked_for_was_cut(cut, told):
    """It was an answer without ids, and its rollout one without segments."""
    answer = stream(piece("stop", content="Let me"), done=False)
    async with served(scripted(answer, Reply("whole"))) as model:
        found = await model.complete(HELLO, name="m", sampling_args={"stream": True, **told})
    assert found.text == ("whole" if cut else "Let me")
    assert (found.response_ids is not None) == cut


def test_a_further_ending_is_good_where_the_endpoint_has_it():
    where = Where(url="http://x/v1", finish_reasons=("repetition",))
    data = json.dumps(whole(reason="repetition")).encode()
    assert read_answer(data, where).finish_reason == "repetition"
    with pytest.raises(ChatProblem, match="'repetition'"):
        read_answer(data, WHERE)


TEXTS = st.text(max_size=8) | st.text('{}[]"\\,: ', max_size=8)
JSON_OBJECTS = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.integers() | TEXTS,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    ),
    max_size=3,
).map(json.dumps)


def first(n: int, value: str, later: str | None = None) -> str | None:
    return value if n == 0 else later


MANNERS = {
    # For the number of a fragment of a call: its index, id and name.
    "OpenAI": lambda call, n: (call, first(n, f"c{call}"), first(n, "go")),
    "vLLM, a named tool: another id each time": lambda call, n: (call, f"c{call}-{n}", "go"),
    "another id each time, without a name": lambda call, n: (call, f"c{call}-{n}", first(n, "go")),
    "vLLM of old: one index": lambda call, n: (0, first(n, f"c{call}", ""), first(n, "go")),
    "SGLang of old: one index, the id in each": lambda call, n: (0, f"{call}", first(n, "go")),
    "SGLang: empty names": lambda call, n: (call, first(n, f"c{call}"), first(n, "go", "")),
    "one index, nothing but empty": lambda call, n: (
        0, first(n, f"c{call}", ""), first(n, "go", ""),
    ),
    "the name is repeated": lambda call, n: (call, first(n, f"c{call}"), "go"),
    "id and name are repeated": lambda call, n: (call, f"c{call}", "go"),
    "no index": lambda call, n: (None, first(n, f"c{call}"), first(n, "go")),
    "a proxy: no index, empty ids": lambda call, n: (
        None, first(n, f"c{call}", ""), first(n, "go"),
    ),
}  # fmt: skip


@given(wanted=st.lists(JSON_OBJECTS, min_size=1, max_size=3), data=st.data())
def test_fragments_are_the_whole_message_however_it_is_split(wanted, data):
    bounds = [
        [0, *data.draw(st.lists(st.integers(0, len(each)), max_size=6).map(sorted)), len(each)]
        for each in wanted
    ]
    for manner, said in MANNERS.items():
        found = put_together(
            fragment(*said(number, n), arguments[start:stop])
            for number, arguments in enumerate(wanted)
            for n, (start, stop) in enumerate(itertools.pairwise(bounds[number]))
        )
        calls = [(call.name, call.arguments) for call in found]
        assert calls == [("go", each) for each in wanted], manner


def put_together(fragments):
    """The tool calls of a streamed answer."""
    reader = StreamReader(WHERE, 1_000_000)
    for event in (*fragments, piece("tool_calls")):
        reader.feed(f"data: {json.dumps(event)}\n\n".encode())
    return reader.completion().tool_calls


@given(st.lists(st.text(max_size=10), min_size=1, max_size=8))
def test_arguments_that_are_no_json_come_as_they_are(parts):
    assume("".join(parts))
    (call,) = put_together(fragment(*MANNERS["OpenAI"](0, n), part) for n, part in enumerate(parts))
    assert call.arguments == "".join(parts)
