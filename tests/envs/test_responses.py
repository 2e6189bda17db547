"""Conversations in the form of OpenAI's Responses API."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from trio_envserve.envs.responses import response_of, response_of_messages
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
