"""The built-in environment, run as a worker runs it."""

import pytest
import trio

from tests.envs.scripted import offline, running
from trio_envserve.core.errors import ConfigError
from trio_envserve.envs import load, read_run_log
from trio_envserve.envs.arithmetic import Arithmetic
from trio_envserve.worker.failures import EnvironmentFailure


@pytest.mark.parametrize("steps", [1, 4])
async def test_the_oracle_is_right_and_garbage_is_not(steps):
    async with running("arithmetic", args={"steps": steps}) as run:
        for given in load("arithmetic").inputs(50):
            assert (await run(given, endpoint="oracle"))["reward"] == 1.0
            assert (await run(given, endpoint="random"))["reward"] == 0.0


async def test_the_shape_of_a_result():
    result = await offline("arithmetic", {"index": 0}, "turns", "answers", steps=2)
    assert set(result) == {"reward", "prompt", "completion", "answer", "usage", "state"}
    assert result["usage"]["calls"] == 2
    roles = [message["role"] for message in result["completion"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert result["state"]["turns"] == 2
    assert result["state"]["answers"][-1] == result["answer"]


async def test_a_question_of_the_callers_own():
    result = await offline("arithmetic", {"question": "2 + 3?", "answer": 5})
    assert (result["reward"], result["answer"]) == (1.0, 5)


def test_inputs_and_their_tasks_follow_from_seed_and_index():
    first, second = load("arithmetic").inputs(5, 1), load("arithmetic").inputs(5, 2)
    tasks = [[Arithmetic().task(**given) for given in inputs] for inputs in (first, second)]
    assert tasks[0] != tasks[1]
    assert [Arithmetic(seed=1).task(index) for index in range(5)] == tasks[0]
    assert [given["index"] for given in Arithmetic(size=2).inputs(3, 7)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *((given, "an input of arithmetic is")
          for given in (None, 3, {}, {"index": "0"}, {"question": "2 + 3?"})),
        ({"index": 9}, r"index 9 is not within 0\.\.8"),
        *(({"index": 0, "duration_s": wrong}, "duration_s")
          for wrong in (-1, "1", True, float("nan"), float("inf"))),
    ],
)  # fmt: skip
async def test_wrong_inputs_are_failures(given, said):
    with pytest.raises(EnvironmentFailure, match=said):
        await offline("arithmetic", given, size=9)


@pytest.mark.parametrize("args", [{"size": 0}, {"steps": 0}, {"duration_s": -1}])
def test_wrong_arguments(args):
    with pytest.raises(ConfigError, match="arithmetic"):
        load("arithmetic", args)


async def test_rollout_is_logged_and_lasts_as_long_as_its_input_or_the_server_says(
    tmp_path, autojump_clock
):
    path = tmp_path / "log"
    async with running("arithmetic", args={"log_path": path, "duration_s": 5.0}) as run:
        for more, expected_s in (({}, 5.0), ({"duration_s": 60}, 60.0), ({"duration_s": 0.0}, 0.0)):
            began_s = trio.current_time()
            assert (await run({"index": 0, **more}, endpoint="oracle"))["reward"] == 1.0
            assert trio.current_time() - began_s == pytest.approx(expected_s)
    assert [record["event"] for record in read_run_log(path)] == ["start", "end"] * 3
