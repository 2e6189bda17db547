"""What an environment's author is promised about results and rollouts."""

import subprocess
import sys
from pathlib import Path

import pytest

import trio_envserve.envs.interface as interface
from trio_envserve.envs import Rollout, RolloutCancelled, trim_state
from trio_envserve.models.offline import OracleModel


def test_only_the_wanted_columns_come_back():
    result = {"reward": 1.0, "state": {"a": 1, "b": 2}}
    assert trim_state(result, ("a",)) == {"reward": 1.0, "state": {"a": 1}}
    assert result["state"] == {"a": 1, "b": 2}


def test_no_columns_no_state():
    assert trim_state({"reward": 1.0, "state": {"a": 1}}, ()) == {"reward": 1.0}


@pytest.mark.parametrize("result", [{}, {"state": None}, {"state": {"b": 1}}])
def test_missing_columns_come_back_as_none(result):
    assert trim_state(result, ("a",)) == {"state": {"a": None}}


@pytest.mark.parametrize("value", [None, 3, "state", [1, 2]])
def test_values_that_are_no_mapping_are_left_alone(value):
    assert trim_state(value, ("a",)) is value


def test_a_state_that_is_no_mapping_is_refused():
    with pytest.raises(TypeError, match="'state' must be a mapping, not list"):
        trim_state({"state": [1]}, ())


def test_a_cancelled_rollout_is_not_caught_as_an_exception():
    assert not issubclass(RolloutCancelled, Exception)


def rollout():
    return Rollout(
        input=None,
        model=OracleModel(),
        model_name="m",
        sampling_args={},
        state_columns=(),
        attempt=1,
        request="r",
    )


async def test_ask_asks_the_model():
    assert (await rollout().ask([], reference="5")).text == "5"
    assert rollout().cancelled() is False


@pytest.mark.parametrize("messages", ["What is it?", {"role": "user", "content": "What?"}])
async def test_messages_that_are_no_list_are_told(messages):
    """The offline models answered, and an endpoint got a list of letters."""
    with pytest.raises(TypeError, match="messages are a list, such as"):
        await rollout().ask(messages, reference="5")


async def test_ask_sync_is_for_threads():
    with pytest.raises(TypeError, match="await ask"):
        rollout().ask_sync([])


def test_importing_environments_imports_nothing_large():
    code = (
        "import sys, trio_envserve.envs, trio_envserve.models\n"
        "large = {'numpy', 'hypothesis', 'rich', 'click', 'torch', 'reasoning_gym', 'zmq',"
        " 'asyncio', 'importlib.metadata'}\n"
        "print(sorted(large & set(sys.modules)))"
    )
    root = Path(interface.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=root
    )
    assert done.stdout.strip() == "[]"
