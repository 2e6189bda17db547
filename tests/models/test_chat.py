"""OpenAI's chat completions, read and written."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.models.chat import (
    ChatProblem,
    StreamReader,
    excerpt,
    read_answer,
    request_body,
)
from trio_envserve.models.endpoints import Endpoint
from trio_envserve.models.interface import Completion

MOST_BYTES = 100_000
WHERE = Endpoint(url="http://x/v1")

FIELDS = [
    "choices", "index", "message", "delta", "content", "tool_calls", "function", "id", "name",
    "arguments", "logprobs", "logprob", "token_ids", "prompt_token_ids", "usage", "prompt_tokens",
    "error", "sglext", "input_ids", "output_ids", "metadata", "weight_version", "finish_reason",
    "reasoning", "text",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=40,
)
ANSWERS = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "index": JSON, "finish_reason": st.just("stop") | JSON, "token_ids": JSON,
                    "logprobs": JSON,
                    "message": st.fixed_dictionaries(
                        {}, optional={"content": JSON, "tool_calls": JSON, "reasoning": JSON}
                    ),
                },
            ) | JSON,
            max_size=2,
        ),
        "usage": JSON, "sglext": JSON, "metadata": JSON, "prompt_token_ids": JSON, "error": JSON,
    },
)  # fmt: skip


@given(st.binary() | ANSWERS.map(json.dumps).map(str.encode) | JSON.map(json.dumps).map(str.encode))
def test_whatever_an_endpoint_sends_is_a_completion_or_told(data):
    for read in (read_answer, _streamed):
        try:
            completion = read(data, WHERE)
        except ChatProblem:
            continue
        assert isinstance(completion, Completion)


def _streamed(data, endpoint):
    reader = StreamReader(endpoint, MOST_BYTES)
    reader.feed(b"data: " + data.replace(b"message", b"delta") + b"\n\ndata: [DONE]\n\n")
    return reader.completion()


def event(**delta):
    return json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
STOP = b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}'


@given(st.data(), st.sampled_from([b"\n", b"\r\n"]))
def test_a_stream_may_be_cut_into_pieces_anywhere(data, end):
    lines = [
        b": hello", b"event: message", b"data: " + event(content="ä\n"), b"",
        b"data:" + event(content="b", tool_calls=[{"index": 0, "id": "x", "function": {
            "name": "f", "arguments": "{"}}]), b"", b"",
        b"data: " + event(tool_calls=[{"index": 0, "function": {"arguments": "}"}}]), b"",
        b"data: " + STOP, b"", b"data: [DONE]", b"",
    ]  # fmt: skip
    whole = end.join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    reader = StreamReader(WHERE, MOST_BYTES)
    for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        reader.feed(whole[start:stop])
    completion = reader.completion()
    assert completion.text == "ä\nb"
    assert [(c.id, c.name, c.arguments) for c in completion.tool_calls] == [("x", "f", "{}")]


def test_stream_that_ends_at_any_byte_is_whole_or_asked_for_again():
    """In its last word, which is no JSON, it was refused for good."""
    told = b"".join(b"data: %s\n\n" % each for each in (event(content="ab"), STOP, b"[DONE]"))
    refused = []
    for end in range(len(told) + 1):
        reader = StreamReader(WHERE, MOST_BYTES)
        reader.feed(told[:end])
        try:
            assert reader.completion().text == "ab"
        except ChatProblem as problem:
            refused += [] if problem.failure.again else [told[:end]]
    assert refused == []


def calls_of(*given):
    choice = {"message": {"tool_calls": list(given)}, "finish_reason": "tool_calls"}
    return read_answer(json.dumps({"choices": [choice]}).encode(), WHERE).tool_calls


def test_an_id_that_is_no_text_is_none():
    """It was used as a key, and a list cannot be one."""
    (call,) = calls_of({"id": {"x": 1}, "function": {"name": "f"}})
    assert call.id == "call"
    reader = StreamReader(WHERE, MOST_BYTES)
    reader.feed(b"data: " + event(tool_calls=[{"id": {"x": 1}}, {"id": [1]}]) + b"\n\n")


def test_sampling_arguments_come_before_the_endpoints_own_fields():
    endpoint = Endpoint(url="http://x", model="own", body={"seed": 1, "top_p": 0.5}, stream=True)
    request = request_body(endpoint, [{"role": "user", "content": "\ud800"}], "", {"seed": 2})
    body = json.loads(request.body)
    assert request.stream
    assert (body["seed"], body["top_p"], body["model"]) == (2, 0.5, "own")
    assert body["stream_options"] == {"include_usage": True}
    request = request_body(endpoint, [], "other", {"stream": False})
    body = json.loads(request.body)
    assert not request.stream
    assert body["model"] == "other"
    assert "stream" not in body


def test_an_excerpt_is_one_short_line():
    assert excerpt(b"a\x1b[31m\n\tb\xff") == "a [31m b\N{REPLACEMENT CHARACTER}"
    assert len(excerpt("x" * 10_000)) == 2000


def test_thousands_of_calls_with_one_id_took_seconds():
    """Each looked for a free id from the first one on."""
    given = [{"id": name, "function": {"name": "f"}} for name in ("a", None, "", *["a"] * 1_997)]
    with_numbers = [{"id": f"a-{n}", "function": {"name": "f"}} for n in range(2, 2_000)]
    lines = 0

    def count(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        calls = calls_of(*with_numbers, *given)
    finally:
        sys.settrace(before)
    assert len({call.id for call in calls}) == len(calls) == 3_998
    assert lines < 100 * len(calls)


def test_an_answer_of_tiny_lists_is_refused_before_it_is_read():
    with pytest.raises(ChatProblem, match="more than 1000000 lists and objects"):
        read_answer(b"[" + b"[]," * 1_000_000 + b"1]", WHERE)


def test_a_stream_may_be_longer_than_its_events():
    reader = StreamReader(WHERE, 1000)
    for _ in range(100):
        reader.feed(b"data: " + event(content="x" * 100) + b"\n\n")
    with pytest.raises(ChatProblem, match="an event of more than 1000 bytes"):
        for _ in range(11):
            reader.feed(b"data: " + b"x" * 100 + b"\n")


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        ({"content": "", "tool_calls": [CALL]}, {"content": "", "tool_calls": [CALL]}),
        ({"content": None, "tool_calls": [CALL]}, {"content": None, "tool_calls": [CALL]}),
        ({"content": None}, {"content": ""}),
        ({"content": "x", "refusal": None, "audio": None}, {"content": "x"}),
        (
            {"content": "x", "reasoning_content": "hm", "tool_calls": []},
            {"content": "x", "reasoning_content": "hm"},
        ),
        ({"content": "x", "reasoning": "hm"}, {"content": "x", "reasoning": "hm"}),
        (
            {"content": "x", "reasoning": "hm", "reasoning_content": "hm"},
            {"content": "x", "reasoning": "hm", "reasoning_content": "hm"},
        ),
        (
            {"content": "", "tool_calls": [{**CALL, "extra_content": {"google": {"a": "b"}}}]},
            {"content": "", "tool_calls": [{**CALL, "extra_content": {"google": {"a": "b"}}}]},
        ),
    ],
)
def test_a_message_is_sent_back_as_it_came(message, sent):
    """An empty text became null, which templates write as None."""
    choice = {"message": {"role": "assistant", **message}, "finish_reason": "stop"}
    whole = read_answer(json.dumps({"choices": [choice]}).encode(), WHERE)
    assert whole.message == {"role": "assistant", **sent}
    reader = StreamReader(WHERE, MOST_BYTES)
    choice = {"delta": choice["message"], "finish_reason": "stop"}
    reader.feed(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    assert reader.completion().message == whole.message


def thinking(number):
    thought, said = {"type": "thinking", "thinking": []}, {"type": "text", "text": f"{number}"}
    return {
        "role": "assistant", "content": [thought, said], "reasoning_content": "a", "reasoning": "b",
        "reasoning_details": [], "thinking_blocks": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("keep", "kept"),
    [("tools", [False, True, True]), ("always", [True] * 3), ("never", [False] * 3)],
)
def test_thoughts_are_sent_back_as_the_endpoint_says(keep, kept):
    messages = [
        {"role": "user", "content": "?"}, thinking(0), {"role": "user", "content": "!"},
        thinking(1), {"role": "tool", "content": "t"}, thinking(2),
    ]  # fmt: skip
    request = request_body(Endpoint(url="http://x", keep=keep), messages, "m", {})
    sent = [each for each in json.loads(request.body)["messages"] if each["role"] == "assistant"]
    assert [each == thinking(number) for number, each in enumerate(sent)] == kept
    bare = [
        each == {"role": "assistant", "content": [{"type": "text", "text": f"{number}"}]}
        for number, each in enumerate(sent)
    ]
    assert bare == [not each for each in kept]
    assert messages[1] == thinking(0)
