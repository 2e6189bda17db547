"""The environment that counts its own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve.core.errors import ConfigError
from trio_envserve.envs.interface import Rollout
from trio_envserve.lab.conformance.environment import OPERATIONS, Conformance
from trio_envserve.models.offline import OracleModel


async def run(environment: Conformance, **asked: Any) -> Any:
    rollout = Rollout(
        input=asked, model=OracleModel(), model_name="", sampling_args={}, state_columns=(),
        attempt=1, request="r",
    )  # fmt: skip
    with trio.fail_after(60):
        return await environment.run_rollout(rollout)


async def test_starts_and_ends_are_counted_over_all_workers(tmp_path: Path):
    one, other = Conformance(tmp_path / "deep" / "runs"), Conformance(tmp_path / "deep" / "runs")
    first = await run(one, op="echo", key="a", value=[1])
    second = await run(other, op="echo", key="a")
    assert (first["started"], first["value"], second["started"]) == (1, [1], 2)
    assert first["run"] != second["run"]
    assert first["state"] == {"op": "echo", "key": "a"}
    with pytest.raises(ValueError, match="as told: a"):
        await run(one, op="fail", key="a")
    with trio.move_on_after(0):
        await run(one, op="wait", key="a")
    counts = {"started": 4, "results": 2, "errors": 1, "cancelled": 1}
    assert await run(other, op="count", key="a") == counts
    assert set((await run(other, op="count", key="b")).values()) == {0}


async def test_a_gate_opens_for_all_and_for_good(tmp_path: Path):
    environment = Conformance(tmp_path)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(lambda: run(environment, op="wait", key="a"))
        await trio.testing.wait_all_tasks_blocked()
        await run(environment, op="open", key="a")
    await run(environment, op="wait", key="a")
    assert (await run(environment, op="count", key="a"))["results"] == 4


async def test_what_is_stubborn_ends_as_cancelled_once_it_may(tmp_path: Path):
    environment = Conformance(tmp_path)
    with trio.CancelScope() as scope:
        scope.cancel()
        await run(environment, op="wait", key="a", stubborn=True, seconds=0.05)
    counts = await run(environment, op="count", key="a")
    assert counts == {"started": 1, "results": 0, "errors": 0, "cancelled": 1}


async def test_failing_a_number_of_times(tmp_path: Path):
    environment = Conformance(tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match="as told"):
            await run(environment, op="fail", key="a", times=2)
    assert (await run(environment, op="fail", key="a", times=2))["started"] == 3


async def test_what_is_not_offered_is_refused(tmp_path: Path):
    safe = Conformance(tmp_path, die=False)
    about = await run(safe, op="about")
    assert about == {"conformance": 1, "operations": [o for o in OPERATIONS if o != "die"]}
    for operation in ("die", "fly", None):
        with pytest.raises(ValueError, match="op must be one of"):
            await run(safe, op=operation, key="a")


def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_user(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="conformance"):
        Conformance(tmp_path / "file" / "runs")
