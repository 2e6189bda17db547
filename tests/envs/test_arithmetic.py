"""The built-in environment, run as a worker runs it."""

import pytest
import trio

from trio_envserve.core.errors import ConfigError
from trio_envserve.envs import RolloutRequest, load, read_run_log
from trio_envserve.envs.arithmetic import Arithmetic
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.runners import open_runner


async def run(env, given, endpoint="oracle", **more):
    request = RolloutRequest(kind="rollout", input=given, endpoint=endpoint, model_name="m", **more)
    async with open_runner(env, threads=1) as runner:
        return await runner.run(request, request_id="ab#0")


@pytest.mark.parametrize("steps", [1, 4])
async def test_the_oracle_is_right_and_garbage_is_not(steps):
    env = load("arithmetic", {"steps": steps})
    for given in env.inputs(50):
        assert (await run(env, given))["reward"] == 1.0
        assert (await run(env, given, "random"))["reward"] == 0.0


async def test_the_shape_of_a_result():
    env = load("arithmetic", {"steps": 2})
    result = await run(env, {"index": 0}, state_columns=("turns", "answers"))
    assert set(result) == {"reward", "prompt", "completion", "answer", "usage", "state"}
    assert result["usage"]["calls"] == 2
    roles = [message["role"] for message in result["completion"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert result["state"]["turns"] == 2
    assert result["state"]["answers"][-1] == result["answer"]


async def test_a_question_of_the_callers_own():
    result = await run(load("arithmetic"), {"question": "2 + 3?", "answer": 5})
    assert (result["reward"], result["answer"]) == (1.0, 5)


def test_tasks_follow_from_seed_and_index():
    assert Arithmetic(seed=1).task(5) == Arithmetic(seed=1).task(5)
    assert Arithmetic(seed=1).task(5) == Arithmetic(seed=2).task(5, seed=1)
    assert Arithmetic(seed=1).task(5) != Arithmetic(seed=2).task(5)
    assert [given["index"] for given in Arithmetic(size=2).inputs(3, 7)] == [0, 1, 0]


def test_inputs_are_of_their_seed():
    first, second = load("arithmetic").inputs(5, 1), load("arithmetic").inputs(5, 2)
    tasks = [[Arithmetic().task(**given) for given in inputs] for inputs in (first, second)]
    assert tasks[0] != tasks[1]
    assert [Arithmetic().task(index, seed=1) for index in range(5)] == tasks[0]


@pytest.mark.parametrize("given", [None, 3, {}, {"index": "0"}, {"question": "2 + 3?"}])
async def test_wrong_inputs_are_failures(given):
    with pytest.raises(EnvironmentFailure, match="an input of arithmetic is"):
        await run(load("arithmetic"), given)


async def test_an_index_outside_of_the_size_is_a_failure():
    with pytest.raises(EnvironmentFailure, match=r"index 9 is not within 0\.\.8"):
        await run(load("arithmetic", {"size": 9}), {"index": 9})


@pytest.mark.parametrize("args", [{"size": 0}, {"steps": 0}, {"duration_s": -1}])
def test_wrong_arguments(args):
    with pytest.raises(ConfigError, match="arithmetic"):
        load("arithmetic", args)


async def test_it_logs_its_runs_and_lasts_as_long_as_told(tmp_path, autojump_clock):
    path = tmp_path / "log"
    env = load("arithmetic", {"log_path": path, "duration_s": 7.0})
    before = trio.current_time()
    await run(env, {"index": 0})
    assert trio.current_time() - before == pytest.approx(7.0)
    assert [record["event"] for record in read_run_log(path)] == ["start", "end"]


def test_rerun_is_declared_on_request():
    assert load("arithmetic", {"rerun": True}).rerun


async def test_an_input_may_say_how_long_it_lasts(autojump_clock):
    env = load("arithmetic", {"duration_s": 5.0})
    for more, expected_s in (({}, 5.0), ({"duration_s": 60}, 60.0), ({"duration_s": 0.0}, 0.0)):
        began_s = trio.current_time()
        assert (await run(env, {"index": 0, **more}))["reward"] == 1.0
        assert trio.current_time() - began_s == pytest.approx(expected_s)


@pytest.mark.parametrize("duration_s", [-1, "1", True, float("nan"), float("inf")])
async def test_a_duration_that_is_none_fails_the_rollout(duration_s):
    with pytest.raises(EnvironmentFailure, match="duration_s"):
        await run(load("arithmetic"), {"index": 0, "duration_s": duration_s})
