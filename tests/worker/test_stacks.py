"""Where an execution stands, whatever runs its code, is found by the name of its request."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest
import trio

from tests.memory import pair
from trio_envserve import Client, Rollout
from trio_envserve.worker.stacks import TREE_CHARACTERS, describe_request


class Trio:
    def __init__(self) -> None:
        self.gate = trio.Event()

    async def run_rollout(self, rollout: Rollout) -> str:
        async with trio.open_nursery() as nursery:
            for _ in range(rollout.input):
                nursery.start_soon(self.below_it)
            await self.gate.wait()
        return "done"

    async def below_it(self) -> None:
        await self.gate.wait()


class Thread:
    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()

    def run_rollout(self, rollout: Rollout) -> str:
        self.begun.set()
        self.gate.wait()
        return "done"


class Asyncio:
    backend = "asyncio"

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()

    async def run_rollout(self, rollout: Rollout) -> str:
        self.begun.set()
        while not self.gate.is_set():
            await asyncio.sleep(0.01)
        return "done"


async def stack_of_one(client: Client) -> str | None:
    page = await client.list_running()
    return await client.stack(page.running[0].number)


async def test_the_tasks_of_a_rollout_are_a_tree():
    environment = Trio()
    async with pair(environment) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(client.run_rollout, 2)
        await trio.testing.wait_all_tasks_blocked(0.01)
        text = await stack_of_one(client)
        environment.gate.set()
    assert text is not None
    assert "in run_rollout" in text
    assert text.count("in below_it") == 2
    assert any(line.startswith("  ") and line.endswith("below_it") for line in text.splitlines())


async def test_g10_of_thousands_of_tasks_some_are_shown():
    environment = Trio()
    async with pair(environment) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(client.run_rollout, 1000)
        await trio.testing.wait_all_tasks_blocked(0.01)
        text = await stack_of_one(client)
        environment.gate.set()
    assert text is not None
    assert len(text) < 2 * TREE_CHARACTERS
    assert "tasks more" in text


@pytest.mark.parametrize("environment", [Thread(), Asyncio()], ids=["thread", "asyncio"])
async def test_code_that_is_not_trio_is_shown_where_it_stands(environment: Any):
    async with pair(environment) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.run_rollout, 1, key="one"))
        await trio.to_thread.run_sync(environment.begun.wait)
        text = await stack_of_one(client)
        environment.gate.set()
    assert text is not None
    assert "in run_rollout" in text


async def test_what_has_ended_has_no_stack():
    environment = Trio()
    environment.gate.set()
    async with pair(environment) as (_, client):
        await client.run_rollout(0)
        assert await client.stack(0) is None


def test_what_has_no_task_says_so():
    async def main() -> str:
        return describe_request(trio.lowlevel.current_task(), "ab#1")

    assert "has not begun" in trio.run(main)
