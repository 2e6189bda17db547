"""Sandboxes of rollouts on a server: what they give, and that they go, whatever ends them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from tests.proc import is_alive, stats
from tests.real.judge import Judge
from tests.real.support import assert_gone, serving, serving_process, until
from trio_envserve import (
    Client,
    EnvironmentBroken,
    Fault,
    RolloutFailed,
    WorkerLost,
    open_client,
    open_server,
)

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

BOXING = "tests.real.boxing:Boxing"


class Box(NamedTuple):
    """The sandbox of a rollout, and where that ran."""

    name: str
    pids: list[int]
    worker: int


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that has the folders of all sandboxes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / f"trio-envserve-sandboxes-{os.geteuid()}"


async def box_of(judge: Judge, key: str) -> Box:
    return Box(**json.loads(await judge.wait_for(f"{key}.made")))


async def assert_over(box: Box, boxes: Path) -> None:
    await assert_gone(*box.pids)
    await until(lambda: not (boxes / box.name).exists())


@asynccontextmanager
async def asked(environment: str) -> AsyncIterator[Client]:
    with trio.fail_after(120):
        async with open_server(f"tests.real.boxing:{environment}", workers=1) as server:
            async with open_client(server.address) as client:
                yield client


async def test_sandbox_is_gone_before_its_rollout_has_an_outcome(judge, boxes):
    async with serving(judge, environment=BOXING) as (_, calls):
        assert (await calls.value(calls.start("a", value="returns")))["told"] == "hi"
        await calls.error(calls.start("b", value="raises"), RolloutFailed)
        for key in "ab":
            box = await box_of(judge, key)
            assert box.pids
            assert not any(map(is_alive, box.pids))
        assert not list(boxes.iterdir())


async def test_sandbox_of_a_cancelled_rollout_goes_and_that_of_its_neighbour_stays(judge, boxes):
    async with serving(judge, environment=BOXING) as (_, calls):
        for key in "ab":
            calls.start(key, value="waits")
        one, other = await box_of(judge, "a"), await box_of(judge, "b")
        calls.cancel("b")
        await assert_over(other, boxes)
        assert (boxes / one.name).exists()
        assert all(map(is_alive, one.pids))


async def test_sandbox_whose_rollout_is_cancelled_while_it_starts_goes(judge, boxes):
    async with serving(judge, environment=BOXING) as (_, calls):
        calls.start("first", value="waits")
        first = await box_of(judge, "first")
        for key in "abcde":
            calls.start(key, value="waits")
            await until(lambda: len(list(boxes.iterdir())) > 1)
            calls.cancel(key)
            await until(lambda: len(list(boxes.iterdir())) == 1)
        below = {pid for pid, fields in stats() if int(fields[1]) == first.worker}
        assert below == {first.pids[1]}


async def test_sandbox_of_a_killed_worker_is_destroyed_by_another(judge, boxes):
    async with serving(judge, environment=BOXING, workers=2) as (_, calls):
        for key in "ab":
            calls.start(key, value="waits", rerun=False)
        one, other = await box_of(judge, "a"), await box_of(judge, "b")
        os.kill(one.worker, signal.SIGKILL)
        await calls.error("a", WorkerLost)
        await assert_over(one, boxes)
        assert (boxes / other.name).exists()
        assert all(map(is_alive, other.pids))


async def test_sandboxes_of_a_killed_server_have_no_process(judge, boxes):
    async with serving_process(judge, environment=BOXING) as (server, calls):
        calls.start("a", value="waits")
        box = await box_of(judge, "a")
        server.signal(signal.SIGKILL)
        await server.wait()
        await assert_gone(*box.pids)


async def test_sandbox_that_dies_is_put_down_to_the_infrastructure(judge, boxes):
    async with serving(judge, environment=BOXING) as (_, calls):
        calls.start("a", value="runs")
        os.kill((await box_of(judge, "a")).pids[0], signal.SIGKILL)
        error = await calls.error("a", RolloutFailed)
        assert error.code == "sandbox-died"
        assert (error.fault, error.mask, error.again) == (Fault.INFRASTRUCTURE, True, True)
        assert not list(boxes.iterdir())


@pytest.mark.parametrize(
    ("environment", "told"), [("AsyncioBoxing", "of asyncio"), ("in_a_thread", "of a thread")]
)
async def test_sandbox_is_had_on_asyncio_and_in_a_thread(boxes, environment: str, told: str):
    async with asked(environment) as client:
        assert (await client.run_rollout({}))["told"] == told
        assert not list(boxes.iterdir())


async def test_command_of_a_cancelled_thread_ends(boxes):
    async with asked("in_a_thread") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_rollout, "waits")
            await until(lambda: len(list(boxes.glob("*/processes"))) == 1)
            nursery.cancel_scope.cancel()
        await until(lambda: not list(boxes.iterdir()))


async def test_class_with_tools_has_a_sandbox_in_each_method(boxes):
    async with asked("Shell") as client:
        result: Any = await client.run_rollout({}, model="oracle")
        assert result["reward"] == 2.0
        said = [each["content"] for each in result["completion"] if each["role"] == "tool"]
        assert said == ["there", "2\n"]
        assert not list(boxes.iterdir())


async def test_class_on_asyncio_has_a_sandbox(boxes):
    async with asked("AsyncioShell") as client:
        assert (await client.run_rollout({}, model="oracle"))["reward"] == 5.0


async def test_class_whose_sandbox_cannot_be_made_is_refused_before_its_first_rollout():
    with pytest.raises(EnvironmentBroken, match="bubblewrap has no images"):
        async with asked("Imaged") as client:
            await client.run_rollout({})
