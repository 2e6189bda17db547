"""Rows in the forms that NeMo Gym's own data have, answered by a class with tools.

``TRIO_ENVSERVE_NEMO_GYM`` is the path of a checkout of that library; with it the slow test runs
all of its examples.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.doors.http.door import asking, open_door
from trio_envserve.doors.http.rows import lowest_free
from trio_envserve.envs import load

CHECKOUT = os.environ.get("TRIO_ENVSERVE_NEMO_GYM", "")


USER = {"role": "user", "content": "What is 2 + 2?"}
SYSTEM = {"role": "system", "content": "Be brief."}
LOOK_UP = {
    "type": "function", "name": "look_up", "description": "Look something up.", "strict": True,
    "parameters": {
        "type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"],
        "additionalProperties": False,
    },
}  # fmt: skip
NULLS = dict.fromkeys((
    "background", "include", "instructions", "max_output_tokens", "max_tool_calls", "metadata",
    "model", "previous_response_id", "prompt", "reasoning", "service_tier", "store",
    "temperature", "text", "top_logprobs", "top_p", "truncation", "user", "stream",
))  # fmt: skip
SAID: dict[str, Any] = {
    "type": "output_text",
    "text": "It is 4.",
    "annotations": [],
    "logprobs": None,
}
CALL = {
    "type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"what": "2 + 2"}',
    "id": "fc1", "status": "completed",
}  # fmt: skip
THOUGHT = {
    "type": "reasoning", "id": "rs1", "encrypted_content": None,
    "summary": [{"type": "summary_text", "text": "They want a sum."}],
}  # fmt: skip
IMAGE = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,iVBORw0K"}

# Forms of rows that the examples of NeMo Gym have, one of each, in words of this project.
FORMS: dict[str, dict[str, Any]] = {
    "text": {"responses_create_params": {"input": "What is 2 + 2?"}},
    "user": {"responses_create_params": {"input": [USER]}, "expected_answer": "4"},
    "system": {"responses_create_params": {"input": [SYSTEM, USER]}, "uuid": "u-1", "answer": 4},
    "developer": {
        "responses_create_params": {
            "input": [{"role": "developer", "content": "Be brief."}, USER],
            "tools": [LOOK_UP], "tool_choice": "auto", "parallel_tool_calls": True,
        },
        "agent_ref": {"type": "responses_api_agents", "name": "simple_agent"},
    },
    "typed messages": {
        "responses_create_params": {"input": [{"type": "message", **SYSTEM}, USER]}
    },
    "dialogue": {
        "responses_create_params": {
            "input": [SYSTEM, USER, {"role": "assistant", "content": "4"}, USER]
        },
        "rubric": [{"criterion": "is right", "weight": 1.0}],
    },
    "parts": {
        "responses_create_params": {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "See:"}, IMAGE]}]
        },
        "verifier_metadata": {"answer": "a cat"},
    },
    "instructions": {
        "responses_create_params": {
            "instructions": "Use the tools.", "input": "What is 2 + 2?", "tools": [LOOK_UP],
            "reasoning": {"effort": "medium"},
        },
        "prompt": "the name of a prompt's file",
    },
    "calls": {
        "responses_create_params": {
            **NULLS, "parallel_tool_calls": False, "tool_choice": "auto", "tools": [LOOK_UP],
            "input": [
                {"type": "message", **USER}, THOUGHT,
                {"type": "message", "role": "assistant", "id": "m", "status": "completed",
                 "content": [SAID]},
                CALL, {"type": "function_call_output", "call_id": "c1", "output": "4"},
                {"type": "message", **USER},
            ],
        },
        "expected_action": {"type": "message", "content": "4"},
    },
    "sampling": {
        "responses_create_params": {
            "input": [USER], "temperature": 0.6, "top_p": 0.95, "max_output_tokens": 2048,
            "stream": False, "store": None,
        },
        "id": 7, "seed": 3,
    },
    "choice": {
        "responses_create_params": {
            "input": [USER], "tools": [LOOK_UP], "tool_choice": "none",
            "parallel_tool_calls": False,
        },
    },
    "metadata": {
        "responses_create_params": {
            "input": [USER], "metadata": {"extra_body": '{"stop": ["</tool_call>"]}'},
        },
        "difficulty": "hard", "options": [{"A": "3"}, {"B": "4"}],
    },
}  # fmt: skip


class Student:
    """Takes any row.  It calls a tool of its own, then one of the row's if there is one."""

    def reset(self, **row: Any) -> str | None:
        self.asked = row.get("responses_create_params") or {}
        return None if self.asked.get("input") else "Begin."  # some have no conversation yet

    def reckon(self, sum: str) -> str:
        """Reckon.

        Args:
            sum: The sum.
        """
        return "4"

    def oracle(self) -> list[Any]:
        tools = self.asked.get("tools") or []
        last = {"name": tools[-1]["name"], "arguments": {}} if tools else "It is 4."
        return [{"name": "reckon", "arguments": {"sum": "2 + 2"}}, last]

    def get_reward(self) -> float:
        return 1.0


class Narrow:
    """Takes one field of a row by its name."""

    def reset(self, expected_answer: str) -> None:
        self.answer = expected_answer

    def oracle(self) -> list[str]:
        return [self.answer]

    def get_reward(self) -> float:
        return 1.0


def environment(kind: type) -> Any:
    return load(f"class:{kind.__module__}:{kind.__qualname__}")


def check(row: dict[str, Any], answer: dict[str, Any]) -> None:
    """The answer to a row is whole: the row's fields, reward, and what the model has said."""
    assert answer["reward"] == 1.0, answer
    assert answer["responses_create_params"] == row["responses_create_params"]
    output = answer["response"]["output"]
    called = [item["name"] for item in output if item["type"] == "function_call"]
    tools = [tool["name"] for tool in row["responses_create_params"].get("tools") or []]
    assert called == ["reckon", *tools[-1:]]
    assert answer["stop"] == ("tool_calls" if tools else "answer")


async def test_row_of_each_form_runs_in_a_class_with_tools():
    async with open_door(environment(Student)) as door, asking(door) as client:
        for form, row in FORMS.items():
            answer = await client.post("/run", json=row)
            assert answer.status_code == 200, (form, answer.text)
            check(row, answer.json())


async def test_fields_that_a_class_does_not_take_are_said():
    row = {**FORMS["user"], "uuid": "u-1", "prompt": "another"}
    async with open_door(environment(Narrow)) as door, asking(door) as client:
        answer = (await client.post("/run", json=row)).json()
    assert (answer["reward"], answer["not_heeded"]) == (1.0, ["uuid"])


async def test_ids_of_a_row_are_no_arguments_of_a_class():
    """A row without a conversation, which is an input like any other, was refused for them."""
    row = {"_ng_rollout_id": "r1", "_ng_task_index": 3, "expected_answer": "4"}
    async with open_door(environment(Narrow)) as door, asking(door) as client:
        answer = await client.post("/run", json=row)
        other = await client.post("/run", json={**row, "_ng_rollout_id": "r2", "odd": 1})
    assert answer.status_code == 500  # it has no prompt
    assert "there is no prompt" in answer.json()["detail"]
    assert "unexpected keyword argument 'odd'" in other.json()["detail"]


async def test_what_a_row_asks_for_in_vain_is_said():
    params = {
        "input": [USER], "tools": [LOOK_UP, {"type": "web_search"}], "background": True,
        "store": False, "text": {"format": {"type": "text"}}, "metadata": {"a": "b"},
    }  # fmt: skip
    row = {"responses_create_params": params, "_ng_group_id": "g1", "_ng_rollout_id": "r1"}

    async def plain(rollout: Any) -> Any:
        tools = [tool["function"]["name"] for tool in rollout.sampling_args["tools"]]
        return {"reward": 1.0, "tools_seen": tools}

    async with open_door(plain) as door, asking(door) as client:
        answer = (await client.post("/run", json=row)).json()
        other = (await client.post("/run", json=FORMS["calls"])).json()
    assert answer["tools_seen"] == ["look_up"]
    assert answer["not_heeded"] == [
        "_ng_group_id", "responses_create_params.background", "responses_create_params.metadata",
        "responses_create_params.tools",
    ]  # fmt: skip
    assert "not_heeded" not in other


def examples() -> list[dict[str, Any]]:
    """All rows of the checkout's examples that ask a model something."""
    rows = [
        json.loads(line)
        for file in sorted(Path(CHECKOUT).glob("resources_servers/*/data/example*.jsonl"))
        if "rollouts" not in file.name
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    return [row for row in rows if "responses_create_params" in row]


@pytest.mark.slow
@pytest.mark.skipif(not CHECKOUT, reason="TRIO_ENVSERVE_NEMO_GYM is not set")
async def test_rows_of_nemo_gyms_own_examples_run():
    rows = await trio.to_thread.run_sync(examples)
    assert len(rows) > 340
    turn = trio.CapacityLimiter(16)

    async def run(client: Any, row: dict[str, Any]) -> None:
        async with turn:
            answer = await client.post("/run", json=row)
        assert answer.status_code == 200, answer.text
        check(row, answer.json())

    async with (
        open_door(environment(Student)) as door,
        asking(door) as client,
        trio.open_nursery() as nursery,
    ):
        for row in rows:
            nursery.start_soon(run, client, row)


def test_the_lowest_number_that_is_free_comes_next():
    assert [lowest_free(taken) for taken in (set(), {0, 1}, {1, 2}, {0, 2})] == [0, 2, 0, 1]
