"""What the adapters make, held against the trainers' own types, checks and advantages.

Each trainer has an interpreter of its own, in an environment that ``nox -s trainers`` makes;
the variables name them, and without one its test is skipped.  Those of slime and miles, which
are no packages, are for a folder with their source, and all that this imports.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.trainers import made

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(__file__).with_name("programs")
HANG_S = 600

REWARDS: dict[str, list[float | None]] = {
    "mixed": [1.0, 0.0, None, 0.0],
    "forked": [1.0, 0.0, 0.0, 0.0],
    "flawed": [1.0, 0.0, 1.0, 1.0],
    "unfinished": [None, 1.0, 0.0, 1.0],
}
EXPECTED = {
    f"{group}_{number}": reward - made.MEANS[group]
    for group, rewards in REWARDS.items()
    for number, reward in enumerate(rewards)
    if reward is not None
}
"""The advantages of the rollouts that count, without division by the standard deviation."""

UNTRAINED = {"flawed_0", "flawed_1", "flawed_2", "unfinished_3"}
"""Those of which no token is trained on: their reward counts all the same."""


def run(trainer: str, program: str, *arguments: str) -> dict[str, Any]:
    """What the program prints under the interpreter of a trainer."""
    python = os.environ.get(f"TRIO_ENVSERVE_{trainer.upper()}_PYTHON")
    if not python:
        pytest.skip(f"no interpreter with {trainer}: nox -s trainers")
    source = os.environ.get(f"TRIO_ENVSERVE_{trainer.upper()}_SOURCE", "")
    command = [python, "-W", "ignore", str(PROGRAMS / program), *arguments, json.dumps(made.BATCH)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), source]))}
    ran = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=HANG_S
    )
    lines = [each for each in ran.stdout.splitlines() if each.startswith("RESULT ")]
    assert lines, f"{ran.stdout[-3000:]}\n{ran.stderr[-6000:]}"
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


@pytest.fixture(scope="module")
def verl(address: str) -> dict[str, Any]:
    return run("verl", "verl_program.py", address)


@pytest.fixture(scope="module")
def skyrl(address: str) -> dict[str, Any]:
    return run("skyrl", "skyrl_program.py", address)


def test_verl_takes_the_outputs_and_has_the_advantages_of_rollouts(verl: dict[str, Any]):
    found = verl
    by_rollout: dict[str, set[float]] = {}
    for key, advantages in found["advantages"].items():
        by_rollout.setdefault(key.rpartition("_")[0], set()).update(map(float, advantages))
    # A token that is not trained on has none, whatever the rollout's is.
    wanted = {k: 0.0 if k in UNTRAINED else value for k, value in EXPECTED.items()}
    assert {key: sum(values - {0.0}) for key, values in by_rollout.items()} == pytest.approx(
        wanted, abs=1e-6
    )
    assert found["advantages"].keys() >= {"forked_0_0", "forked_0_1", "forked_0_2"}
    assert "set trainer.use_v1=true" in found["refused"]
    assert found["engine"] == {
        "model": "http://10.0.0.1:8001/v1",
        "model_name": "tiny/model",
        "sampling": {
            "return_token_ids": True,
            "logprobs": True,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    }


def test_turns_of_verls_adapter_were_sampled_from_the_weights_below_it(verl: dict[str, Any]):
    refused = "the adapter that is trained: set actor_rollout_ref.model.lora.merge=true"
    said = verl["adapters"]
    for form in ("flat", "nested"):
        assert refused in said.pop(f"{form} vllm")
        assert said.pop(f"{form} sglang") == "verl's"
    assert set(said.values()) == {None}


def test_messages_were_put_into_another_template_than_the_trainers(
    verl: dict[str, Any], skyrl: dict[str, Any]
):
    without, own = verl["templates"]
    assert "(actor_rollout_ref.rollout.engine_kwargs.vllm.chat_template)" in without
    assert not own
    assert "generator.chat_template.name_or_path=null" in skyrl["template"]


def test_group_without_rollouts_ended_a_training_that_filters_groups(verl: dict[str, Any]):
    assert verl["filtered"] == {
        "ReplayBuffer": ["differing", "lost", "partly"],
        "ReplayBufferAsync": ["differing"],
    }


def test_skyrl_takes_the_rows_and_has_the_advantages_of_rollouts(
    skyrl: dict[str, Any], address: str
):
    found = skyrl
    assert found["advantages"] == pytest.approx({**EXPECTED, "lost_0": 0.0}, abs=1e-6)
    assert (found["rows"], found["joined"], found["logprobs"]) == (19, True, [True, False])
    assert found["metrics"] == {
        "trio_envserve/rollouts": 20,
        "trio_envserve/left_out": 6,
        "trio_envserve/masked_segments": 4,
    }
    assert "set generator.step_wise_trajectories=true" in found["refused"]
    assert found["engine"] == ["http://10.0.0.1:8080/v1", "tiny/model", {"enable_thinking": False}]
    settings = {"address": address, "timeout_s": 600, "sampling": {"top_p": 0.9}}
    assert found["command"] == [True, settings]


def test_cut_rollouts_were_trained_on_though_skyrl_was_told_to_filter_them(skyrl: dict[str, Any]):
    assert skyrl["cut"] == {
        "": [[[1, 1, 0], [1, 1, 0]], [1.0, 1.0]],
        "apply_overlong_filtering": [[[0, 0, 0], [1, 1, 0]], [1.0, 1.0]],
        "zero_reward_on_non_stop": [[[1, 1, 0], [1, 1, 0]], [0.0, 1.0]],
    }


def test_rows_lacked_what_skyrl_was_told_to_replay(skyrl: dict[str, Any]):
    for name, said in skyrl["replayed"].items():
        assert f"{name}=false" in said


@pytest.mark.parametrize("trainer", ["slime", "miles"])
def test_slime_takes_the_samples_and_has_the_advantages_of_rollouts(trainer: str, address: str):
    found = run(trainer, "slime_program.py", trainer, address)
    assert found["advantages"] == pytest.approx(EXPECTED, abs=1e-6)
    assert found["rows"] == 24
    assert found["statuses"] == ["completed", "failed", "truncated"]
