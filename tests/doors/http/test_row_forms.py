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
from tests.doors.http.row_forms import FORMS, LOOK_UP, USER
from trio_envserve.envs import load

CHECKOUT = os.environ.get("TRIO_ENVSERVE_NEMO_GYM", "")


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
