"""What an environment's author is promised about results and rollouts."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest

import trio_envserve.envs.interface as interface
from tests.envs.scripted import a_rollout
from trio_envserve.envs import RolloutCancelled, trim_state

RESULT = {"reward": 1.0, "state": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    ("value", "columns", "trimmed"),
    [
        (RESULT, ("a",), {"reward": 1.0, "state": {"a": 1}}),
        (RESULT, (), {"reward": 1.0}),
        ({}, ("a",), {"state": {"a": None}}),
        ({"state": None}, ("a",), {"state": {"a": None}}),
        ({"state": {"b": 1}}, ("a",), {"state": {"a": None}}),
        (None, ("a",), None),
        ("state", ("a",), "state"),
        ([1, 2], ("a",), [1, 2]),
    ],
)
def test_result_has_the_wanted_columns_of_its_state_and_no_other(value, columns, trimmed):
    before = copy.deepcopy(value)
    assert trim_state(value, columns) == trimmed
    assert value == before


def test_a_state_that_is_no_mapping_is_refused():
    with pytest.raises(TypeError, match="'state' must be a mapping, not list"):
        trim_state({"state": [1]}, ())


def test_a_cancelled_rollout_is_not_caught_as_an_exception():
    assert not issubclass(RolloutCancelled, Exception)


@pytest.mark.parametrize("messages", ["What is it?", {"role": "user", "content": "What?"}])
async def test_messages_that_are_no_list_are_told(messages):
    """The offline models answered, and an endpoint got a list of letters."""
    with pytest.raises(TypeError, match="messages are a list, such as"):
        await a_rollout().ask(messages, reference="5")


async def test_ask_sync_is_for_threads():
    with pytest.raises(TypeError, match="await ask"):
        a_rollout().ask_sync([])


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
