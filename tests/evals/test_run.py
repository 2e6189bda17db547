"""Evaluations against a server in this process: repeats, cancels, and the keys of named ones."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.memory import pair
from trio_envserve import ConfigError, KeyConflict, NoAnswer, Outcome, ServerLost, WorkerLost
from trio_envserve.core.errors import CallError, RolloutFailed
from trio_envserve.evals import run as run_module
from trio_envserve.evals.files import ResultsFile, open_results, records
from trio_envserve.evals.output import Output
from trio_envserve.evals.records import record_of, result_of
from trio_envserve.evals.run import (
    HELD,
    MOST_NAME_BYTES,
    Evaluation,
    EvaluationPlan,
    Progress,
    RunKeys,
    check_name,
    is_told,
)
from trio_envserve.evals.tally import ResultsTally
from trio_envserve.json_values import pieces

LONG_S = 300.0
"""Only what hangs takes so long."""


class Env:
    """Rewards its input; fails for what is negative, and waits for ever for None."""

    def __init__(self) -> None:
        self.waits = trio.Event()

    async def run_rollout(self, rollout: Any) -> Any:
        if rollout.input is None:
            self.waits.set()
            await trio.sleep_forever()
        if rollout.input < 0:
            raise ValueError("negative")
        return {"reward": rollout.input}


async def run(evaluation: Evaluation, environment: Env, in_flight: int = 5) -> None:
    """All of its rollouts, on a server in this process."""
    with trio.fail_after(LONG_S):
        async with pair(environment) as (_, client):
            await evaluation.run(client, list(evaluation.plan.names()), in_flight)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, there is time to write what came before a cancel."""
    monkeypatch.setattr(run_module, "LAST_S", 60.0)


def written(path: Path) -> list[tuple[int, int]]:
    return sorted(one.result.name for one in records(str(path)))


async def test_several_rollouts_of_each_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.time", lambda: 1772700000.5)
    path = tmp_path / "r.jsonl"
    file = open_results(str(path))
    plan = EvaluationPlan([0.0, 1.0, -1], first=10, repeat=3)
    evaluation = Evaluation(plan, ResultsTally(), file=file, run="r")
    await run(evaluation, Env(), in_flight=2)
    file.close()
    assert written(path) == [(i, r) for i in (10, 11, 12) for r in range(3)]
    assert {one.result.ended_s for one in records(str(path))} == {1772700000.5}
    found = evaluation.tally.summary()
    assert (found["results"], found["errors"], found["mean_reward"]) == (6, 3, 0.5)
    assert evaluation.progress.done == 9
    assert evaluation.unwritten == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has none")
async def test_a_disk_that_is_full_ends_an_evaluation_and_what_came_is_counted():
    file = open_results("/dev/full")
    evaluation = Evaluation(EvaluationPlan([1.0] * 5 + [None]), ResultsTally(), file=file)
    await run(evaluation, Env(), in_flight=10)
    file.close()
    assert "No space left" in str(evaluation.not_written)
    found = evaluation.tally.summary()
    assert found["results"] == evaluation.unwritten >= 1
    assert found["mean_reward"] == 1.0


async def test_an_evaluation_that_is_cancelled_has_written_what_came(patient: None, tmp_path: Path):
    path = tmp_path / "r.jsonl"
    file = open_results(str(path))
    environment = Env()
    evaluation = Evaluation(EvaluationPlan([1.0] * 20 + [None]), ResultsTally(), file=file)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, evaluation, environment)
        await environment.waits.wait()
        nursery.cancel_scope.cancel()
    file.close()
    assert written(path) == sorted(evaluation.tally.found)
    assert evaluation.unwritten == 0
    assert 16 <= len(evaluation.tally.found) <= 20


@pytest.mark.parametrize("grouped", [False, True])
async def test_results_that_all_came_at_once_were_held_for_a_slow_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped: bool
):
    """As many were held as were in flight, and not as many as may be held: the rest waits as the
    bytes that came."""
    file = open_results(str(tmp_path / "r.jsonl"))
    begun, together = 0, trio.Event()
    written, held = threading.Event(), []
    append = ResultsFile.append

    def wait(file: ResultsFile, record: Any) -> None:
        written.wait(LONG_S)
        append(file, record)

    class Together:
        async def run_rollout(self, rollout: Any) -> Any:
            nonlocal begun
            begun += 1
            if begun == 200:
                together.set()
            await together.wait()
            return {"reward": 1.0}

    monkeypatch.setattr(ResultsFile, "append", wait)
    plan = EvaluationPlan([1.0] * (100 if grouped else 200), repeat=2 if grouped else 1)
    plan = dataclasses.replace(plan, grouped=grouped)
    evaluation = Evaluation(plan, ResultsTally(), file=file)
    async with pair(Together()) as (_, client), trio.open_nursery() as nursery:
        nursery.start_soon(evaluation.run, client, list(plan.names()), 200)
        with trio.fail_after(LONG_S):
            while not evaluation._taken:  # noqa: ASYNC110  # until outcomes come
                await trio.sleep(0.01)
        for _ in range(40):
            held.append(len(evaluation._taken))
            await trio.sleep(0.02)
        written.set()
    file.close()
    assert max(held) <= HELD
    assert evaluation.progress.done == 200


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
async def test_an_evaluation_that_is_cancelled_at_any_moment_leaves_a_whole_file(
    steps: int, patient: None, tmp_path: Path
):
    path = tmp_path / "r.jsonl"
    file = open_results(str(path))
    plan = EvaluationPlan([float(n) for n in range(40)])
    evaluation = Evaluation(plan, ResultsTally(), file=file)
    async with pair(Env()) as (_, client):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(evaluation.run, client, list(plan.names()), 7)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    file.close()
    assert written(path) == sorted(evaluation.tally.found)
    assert evaluation.unwritten == 0


def test_rate_in_the_last_line_was_another_one_than_in_the_table():
    """Of 0.35049 a second, it was 0.4 in the one and, rounded twice, 0.3 in the other."""
    rate = Progress(1, 0.0, done=1, ended_s=1 / 0.35049).rate
    assert f"{rate:.1f}" == f"{round(rate, 3):.1f}"


@pytest.mark.parametrize(("seconds", "left_s"), [(10_000.0, 10_000.0), (0.0, 0.0)])
def test_time_that_is_left_is_known_at_any_rate(seconds: float, left_s: float):
    assert Progress(2, 0.0, done=1, ended_s=seconds).left_s == left_s


# -- the keys of evaluations with a name ----------------------------------------------


def test_outcomes_of_a_rollout_are_as_many_where_only_the_last_result_is_kept(tmp_path: Path):
    error = Outcome(error=RolloutFailed("it raised"))
    found = [result_of(0, 0, error, run="r", again=number) for number in range(3)]
    found.append(result_of(0, 0, Outcome(error=NoAnswer("late")), run="r", again=3))
    for name, some in (("all", found), ("last", found[-1:]), ("told", found[:1])):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(b"".join(b"".join(pieces(record_of(one, {}, None))) for one in some))
        output = Output(str(path), "r")
        output.open()
        output.close()
        assert output.told() == {(0, 0): 1 if name == "told" else 3}


def test_a_rollout_that_was_told_its_error_gets_another_key():
    keys = RunKeys("r1", {(3, 1): 2}.get)  # type: ignore[arg-type]  # asked for that one only
    assert keys.rollout((3, 1)) == "r1/3/1/again-2"
    assert RunKeys("r1").rollout((3, 1)) == "r1/3/1"


@pytest.mark.parametrize(
    ("told", "key"),
    [([0, 0, 0], "r1/7/group"), ([1, 1, 0], "r1/7/group"), ([1, 1, 1], "r1/7/group/again-1"),
     ([2, 1, 1], "r1/7/group/again-1"), ([2, 2, 2], "r1/7/group/again-2")],
)  # fmt: skip
def test_a_group_of_which_a_member_was_not_written_is_asked_for_under_its_last_key(
    told: list[int], key: str
):
    assert RunKeys("r1", lambda name: told[name[1]]).group(7, 3) == key


@pytest.mark.parametrize(
    ("error", "told"),
    [(None, True), (RolloutFailed("it raised"), True), (WorkerLost("died"), True),
     (NoAnswer("late"), False), (ServerLost("gone"), False), (KeyConflict("other"), False)],
    ids=str,
)  # fmt: skip
def test_what_the_server_did_not_say_is_not_told(error: CallError | None, told: bool):
    assert is_told(result_of(0, 0, Outcome(error=error))) is told


@pytest.mark.parametrize("name", ["", "x" * (MOST_NAME_BYTES + 1), "\ud800"], ids=repr)
def test_a_name_that_is_no_part_of_a_key_is_refused(name: str):
    with pytest.raises(ConfigError, match="--run: a name"):
        check_name(name)
