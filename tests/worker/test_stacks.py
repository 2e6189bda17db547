"""Where an execution stands, whatever runs its code, is found by the name of its request."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.memory import pair
from tests.worker import helpers
from tests.worker.helpers import Held
from trio_envserve import Rollout
from trio_envserve.worker import stacks
from trio_envserve.worker.stacks import (
    ASYNCIO_THREAD,
    TREE_CHARACTERS,
    describe_request,
    describe_requests,
    request_name,
)


class Trio:
    """Its rollouts wait, with as many tasks below them as they are told."""

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


async def test_g10_of_thousands_of_tasks_some_are_shown():
    environment = Trio()
    async with pair(environment) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(client.run_rollout, 1000)
        await trio.testing.wait_all_tasks_blocked(0.01)
        try:
            text = await client.stack((await client.list_running()).running[0].number)
        finally:
            environment.gate.set()
    assert text is not None
    assert text.startswith("the environment's code stands here:\n  File ")
    assert len(text) < 2 * TREE_CHARACTERS
    *shown, last = text.splitlines()
    tasks = [line for line in shown if line.startswith("  ") and line.endswith("Trio.below_it")]
    assert last == f"and {1000 - len(tasks)} tasks more, with those below them"


@pytest.mark.parametrize("backend", ["thread", "asyncio"])
async def test_code_that_is_not_trio_is_shown_where_it_stands(backend: str):
    begun = threading.Event()
    environment = Held(backend, lambda _: begun.set())
    async with pair(environment) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.run_rollout, 1, key="one"))
        await trio.to_thread.run_sync(begun.wait, abandon_on_cancel=True)
        try:
            text = await client.stack((await client.list_running()).running[0].number)
        finally:
            environment.over.set()
    assert text is not None
    assert Path(helpers.__file__).name in text


# -- tasks, threads and tasks of asyncio, without a worker -------------------------------

NAME = "request ab#1"


async def nested(depth: int, then: Callable[[], Awaitable[None]]) -> None:
    """A task below a task, and so on."""
    if not depth:
        await then()
        return
    async with trio.open_nursery() as nursery:  # noqa: ASYNC112  # a task of its own is wanted
        nursery.start_soon(nested, depth - 1, then, name=f"level {depth}")


async def described(depth: int, describe: Callable[[trio.lowlevel.Task], str]) -> str:
    """What is said of two executions, one of which has tasks below it, beside a task of none."""
    gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(nested, depth, gate.wait, name=NAME)
        nursery.start_soon(gate.wait, name="request cd#2")
        nursery.start_soon(gate.wait, name="idle")
        await trio.testing.wait_all_tasks_blocked()
        try:
            text = describe(trio.lowlevel.current_task())
        finally:
            gate.set()
    return text


async def test_all_executions_are_described_with_the_tasks_below_them():
    text = await described(2, describe_requests)
    assert sorted(line for line in text.splitlines() if not line.startswith(" ")) == [
        f"{NAME} stands here:",
        "request cd#2 stands here:",
    ]
    assert text.count("in nested") == 3
    assert text.count("await then()") == 1


async def test_tasks_nested_deeper_than_python_recurses_are_described():
    """Whoever asked where such an execution stands ended the server in whose process it ran."""
    depth = sys.getrecursionlimit() + 100
    text = await described(depth, describe_requests)
    assert text.count("in nested") == depth + 1


async def test_an_execution_is_described_with_the_tasks_below_it_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(stacks, "TREE_CHARACTERS", 100_000)
    text = await described(25, lambda root: describe_request(root, "ab#1"))
    lines = text.splitlines()
    assert "in nested" in lines[1]
    assert lines[3:5] == ["tasks of trio:", NAME]
    assert [line for line in lines if line.lstrip().startswith("level ")] == [
        f"{'  ' * min(depth, 20)}level {26 - depth}" for depth in range(1, 26)
    ]
    assert "cd#2" not in text
    assert "late" not in text


LIBRARY = """
async def request(depth, then):
    if depth:
        await request(depth - 1, then)
    else:
        await then()
"""


async def test_own_frame_below_fifty_of_a_library_is_shown_first():
    """The innermost frames alone were a line of httpcore, and nothing of the environment."""
    library: dict[str, Any] = {}
    exec(compile(LIBRARY, "/x/site-packages/httpcore/pool.py", "exec"), library)
    gate = trio.Event()

    async def run_rollout() -> None:
        await library["request"](50, gate.wait)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_rollout, name=NAME)
        await trio.testing.wait_all_tasks_blocked()
        text = describe_request(trio.lowlevel.current_task(), "ab#1")
        gate.set()
    lines = text.splitlines()
    assert lines[1].endswith("in run_rollout")
    assert __file__ in lines[1]
    assert lines[4].strip() == NAME
    assert lines[5].endswith("in run_rollout")
    assert "frames are left out" in text
    assert text.count("File ") <= 1 + stacks.FRAMES_MOST


async def test_a_task_knows_of_which_execution_it_is():
    found: list[str] = []

    async def look() -> None:
        found.append(request_name())

    async with trio.open_nursery() as nursery:  # noqa: ASYNC112  # a task of its own is wanted
        nursery.start_soon(nested, 3, look, name=NAME)
    await look()
    assert found == [NAME, ""]


async def test_the_threads_of_an_execution_and_a_loop_that_is_late_are_described():
    gate = threading.Event()

    def wait_for_it() -> None:
        gate.wait()

    threads = [threading.Thread(target=wait_for_it, name=name) for name in (NAME, "other")]
    for thread in threads:
        thread.start()
    root, late = trio.lowlevel.current_task(), threading.get_ident()
    try:
        in_time, text = describe_request(root, "ab#1"), describe_request(root, "ab#1", late)
    finally:
        gate.set()
        for thread in threads:
            thread.join()
    own = "the environment's code stands here:\n  File "
    assert in_time.startswith(own)
    assert "\n\nthread:\n  File " in in_time
    assert in_time.count("in wait_for_it") == 2
    assert text.startswith(own)
    assert "\n\nthe event loop is late, and stands here:\n  File " in text
    assert text.count("in wait_for_it") == 2
    assert "in describe_request" in text


async def test_a_thread_that_has_not_begun_stands_nowhere(monkeypatch: pytest.MonkeyPatch):
    """Its stack would be that of whoever looks."""
    names = [NAME, ASYNCIO_THREAD]
    monkeypatch.setattr(
        threading, "enumerate", lambda: [threading.Thread(name=name) for name in names]
    )
    root = trio.lowlevel.current_task()
    assert describe_request(root, "ab#1") == (
        f"{NAME} has no task here: it has not begun, or it has ended\n"
    )


@types.coroutine
def passed_on(awaitable: Any) -> Generator[Any, None, None]:
    """What older libraries have between coroutines."""
    yield from awaitable


async def inner() -> None:
    await asyncio.sleep(60)


async def outer() -> None:
    await passed_on(inner())


def test_a_task_of_asyncio_is_described_with_all_that_it_awaits():
    texts: list[str] = []

    async def describe() -> str:
        return describe_request(trio.lowlevel.current_task(), "ab#1")

    async def main() -> None:
        tasks = {asyncio.create_task(outer()): NAME, asyncio.create_task(inner()): "request cd#2"}
        await asyncio.sleep(0)
        stacks.ASYNCIO_TASKS.update(tasks)
        texts.append(trio.run(describe))
        for task in tasks:
            del stacks.ASYNCIO_TASKS[task]
            task.cancel()
        texts.append(trio.run(describe))

    thread = threading.Thread(target=lambda: asyncio.run(main()), name=ASYNCIO_THREAD)
    thread.start()
    thread.join()
    text, after = texts
    assert "\n\ntask of asyncio:\n  File " in text
    assert text.count("task of asyncio:") == 1
    assert [text.count(f"in {name}\n") for name in ("outer", "passed_on", "inner")] == [1, 1, 2]
    assert text.count("the loop of asyncio stands here:\n  File ") == 1
    assert "in main" in text
    assert "has no task here" in after
