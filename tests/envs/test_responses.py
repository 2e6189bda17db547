"""Conversations in the form of OpenAI's Responses API."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from trio_envserve.envs.responses import (
    messages_of,
    not_heeded,
    response_of,
    response_of_messages,
    sampling_args_of,
    tools_of,
)
from trio_envserve.models.interface import Completion, ToolCall

TOKENS: dict[str, Any] = {
    "prompt_ids": array("i", [1, 2]), "response_ids": array("i", [3]), "logprobs": array("f", [-1]),
}  # fmt: skip
NAMES = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def test_the_tokens_of_a_model_call_are_in_its_last_item():
    call = ToolCall("c1", "look", "{}")
    response = response_of([Completion("I look.", tool_calls=(call,), **TOKENS), Completion("4")])
    said, called, answered = response["output"]
    assert said["content"][0]["text"] == "I look."
    assert [called[name] for name in NAMES] == list(TOKENS.values())
    assert (called["call_id"], called["name"], called["arguments"]) == ("c1", "look", "{}")
    assert not {*NAMES} & ({*said} | {*answered})


@pytest.mark.parametrize("missing", TOKENS)
def test_tokens_are_there_with_all_that_belongs_to_them_or_not_at_all(missing: str):
    (item,) = response_of([Completion("4", **{**TOKENS, missing: None})])["output"]
    assert not {*NAMES} & {*item}


def test_an_empty_answer_is_an_item_too():
    (item,) = response_of([Completion("", **TOKENS)])["output"]
    assert item["content"][0]["text"] == ""
    assert item["generation_token_ids"] == TOKENS["response_ids"]


@pytest.mark.parametrize(
    ("messages", "kinds"),
    [
        (None, []),
        ("text", []),
        ([None, 1, {}, {"role": "system", "content": "s"}], []),
        ([{"role": "assistant", "content": ""}], []),
        ([{"role": "assistant", "tool_calls": [None, {"function": None}, {"function": {}}]}],
         ["function_call"]),
        ([{"role": "tool", "content": {"a": {1}}}], ["function_call_output"]),
        ([{"role": "user", "content": [{"text": 1}, "x"]}], ["message"]),
    ],
)  # fmt: skip
def test_what_is_no_message_is_left_out(messages: object, kinds: list[str]):
    output = response_of_messages(messages)["output"]
    assert [item["type"] for item in output] == kinds


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


INPUTS: list[tuple[Any, list[Any]]] = [
    ({"input": "a"}, [{"role": "user", "content": "a"}]),
    ({"input": "a", "instructions": "s"},
     [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]),
    ({"input": []}, []),
    ({"input": [{"type": "message", "role": "developer", "content": "a"}]},
     [{"role": "developer", "content": "a"}]),
    ({"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:", "detail": None},
        image("data:")]}]},
     [{"role": "user", "content": [{"type": "text", "text": "a"}, image("data:"),
                                   image("data:")]}]),
    ({"input": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "d", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "function_call", "call_id": "e", "name": "f", "arguments": "{}"}]},
     [{"role": "assistant", "content": "a", "reasoning_content": "hm", "tool_calls": [
         {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
         {"id": "d", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "c", "content": "1"},
      {"role": "assistant", "content": None, "tool_calls": [
          {"id": "e", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]),
]  # fmt: skip


@pytest.mark.parametrize(("params", "messages"), INPUTS, ids=map(str, range(len(INPUTS))))
def test_request_becomes_messages(params: Any, messages: list[Any]):
    assert messages_of(params) == messages


@pytest.mark.parametrize(
    ("given", "error", "what"),
    [
        (None, TypeError, "is text or a list, not NoneType"),
        ([1], TypeError, "an item of a row's input is a mapping, not int"),
        ([{"type": "computer_call"}], ValueError, "the type 'computer_call' in a row's input"),
        ([{"content": "a"}], ValueError, "the type 'message' in a row's input"),
        ([{"role": "user", "content": ["a"]}], TypeError, "a part of a row's message"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], ValueError, "'hologram'"),
    ],
)  # fmt: skip
def test_request_that_is_not_understood_is_an_error(given: Any, error: Any, what: str):
    with pytest.raises(error, match=what):
        messages_of({"input": given})


def test_arguments_of_a_request_go_to_the_model_or_are_named():
    tool: dict[str, Any] = {"type": "function", "name": "f", "parameters": {}, "description": None}
    params = {
        "input": "a", "temperature": 0.5, "top_p": None, "max_output_tokens": 9,
        "tools": [tool, {"type": "web_search"}], "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "name": "f"}, "reasoning": {"effort": "low"},
        "store": False, "metadata": {}, "truncation": "auto", "model": "m",
    }  # fmt: skip
    function = {"name": "f", "parameters": {}}
    assert sampling_args_of(params) == {
        "temperature": 0.5, "max_tokens": 9, "reasoning_effort": "low",
        "tools": [{"type": "function", "function": function}], "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    }  # fmt: skip
    assert not_heeded(params) == ["model", "tools", "truncation"]
    assert not_heeded({"reasoning": {"effort": "low", "summary": "auto"}}) == ["reasoning"]
    assert sampling_args_of({"tools": 1, "tool_choice": "auto"}) == {}
    assert not_heeded({"tools": 1}) == ["tools"]
    chat = {"type": "function", "function": {"name": "f"}}
    assert tools_of({"tools": [chat]}) == [chat]


@pytest.mark.parametrize("function", ["f", None, ["f"]])
def test_tool_whose_function_is_no_mapping_failed_its_request(function: Any):
    params = {"tools": [{"type": "function", "function": function}]}
    assert (sampling_args_of(params), not_heeded(params)) == ({}, ["tools"])
