"""What each trainer requires, as data, held against what is made for it in every case."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.trainers import made
from trio_envserve.trainers import forms
from trio_envserve.trainers.samples import SampledRollout, sampled_group, sampled_rollout

VERL_OUTPUT: Mapping[str, type] = {
    "prompt_ids": list, "response_ids": list, "response_mask": list, "reward_score": float,
    "num_turns": int, "metrics": dict, "extra_fields": dict,
}  # fmt: skip
"""The fields of an ``AgentLoopOutput`` that the trainer of verl 0.9.1 of version 1 reads."""
VERL_EXTRA: Mapping[str, type] = {
    "reward_extra_info": dict, "min_global_steps": int, "max_global_steps": int,
}  # fmt: skip
"""Those of its ``extra_fields``: an output without them ends the step."""

SLIME_SAMPLE: Mapping[str, type] = {
    "tokens": list, "response_length": int, "loss_mask": list, "reward": float, "rollout_id": int,
    "remove_sample": bool, "status": str, "weight_versions": list, "metadata": dict,
}  # fmt: skip
"""The attributes of a ``Sample`` that are set: slime 624b824 and miles 31f1ca9, after 0.3.1 and
0.1.0."""

SKYRL_OUTPUT: Mapping[str, type] = {
    "prompt_token_ids": list, "response_ids": list, "rewards": list, "loss_masks": list,
    "stop_reasons": list, "rollout_metrics": dict, "trajectory_ids": list, "is_last_step": list,
}  # fmt: skip
"""The keys of a ``GeneratorOutput`` of SkyRL 0.3 and 0.4 in step-wise training, each but the
metrics with one item for each sample; ``rollout_logprobs`` is one of these, or None."""

TRL_ROW: Mapping[str, type] = {
    "prompt_ids": list, "completion_ids": list, "logprobs": list, "env_mask": list,
}  # fmt: skip
"""What TRL 1.16 reads of a ``rollout_func``, for each prompt."""

TRL_SAMPLE: Mapping[str, type] = {
    "prompt": list, "completion": list, "input_ids": list, "completion_mask": list,
    "old_log_probs": list, "advantage": float, "model_version": int, "group_id": int,
    "metrics": dict,
}  # fmt: skip
"""The fields of TRL 1.16's ``RolloutSample``; the worker makes arrays of three of them, and adds
``enqueued_at``."""


def rollout(case: str, *, logprobs: bool = True) -> SampledRollout:
    return sampled_rollout(made.CASES[case](), group="g", rollout="g/0", logprobs=logprobs)


def check(fields: Mapping[str, Any], required: Mapping[str, type]) -> None:
    for name, kind in required.items():
        assert type(fields[name]) is kind, name


def check_tokens(prompt: Any, response: Any, mask: Any, logprobs: Any) -> None:
    """What every trainer indexes without looking."""
    assert prompt
    assert response
    assert len(mask) == len(response)
    assert logprobs is None or len(logprobs) == len(response)
    assert {type(token) for token in [*prompt, *response, *mask]} == {int}
    assert all(math.isfinite(number) for number in logprobs or ())


@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("case", made.CASES)
def test_verl_output_has_what_verl_requires(case: str, logprobs: bool):
    read = rollout(case, logprobs=logprobs)
    outputs = forms.verl_outputs(read, step=3)
    assert bool(outputs) == read.counts
    for output in outputs:
        check(output, VERL_OUTPUT)
        check(output["extra_fields"], VERL_EXTRA)
        assert ("response_logprobs" in output) == logprobs
        names = ("prompt_ids", "response_ids", "response_mask", "response_logprobs")
        check_tokens(*[output.get(name) for name in names])
        assert output["reward_score"] == read.reward


@pytest.mark.parametrize("case", made.CASES)
def test_slime_sample_has_what_slime_requires(case: str):
    read = rollout(case)
    samples = forms.slime_samples(read, 7)
    assert len({sample["rollout_id"] for sample in samples}) == 1, "and at least one"
    for sample in samples:
        check(sample, SLIME_SAMPLE)
        length = sample["response_length"]
        tokens = sample["tokens"]
        check_tokens(
            tokens[:-length], tokens[-length:], sample["loss_mask"], sample["rollout_log_probs"]
        )
        assert sample["remove_sample"] == (not any(sample["loss_mask"]))
        assert (sample["status"] == "failed") == (not read.counts)


@pytest.mark.parametrize("logprobs", [True, False])
def test_skyrl_output_has_what_skyrl_requires(logprobs: bool):
    groups = {
        name: sampled_group([made.CASES[case]() for case in cases], group=name, logprobs=logprobs)
        for name, cases in made.BATCH.items()
    }
    rollouts = [each for group in groups.values() for each in group.rollouts]
    output = forms.skyrl_output(rollouts, [each.rollout for each in rollouts])
    check(output, SKYRL_OUTPUT)
    rows = len(output["response_ids"])
    for name in SKYRL_OUTPUT:
        assert name == "rollout_metrics" or len(output[name]) == rows, name
    numbers = output["rollout_logprobs"]
    assert (numbers is not None) == logprobs
    for number in range(rows):
        names = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")
        check_tokens(*[output[name] and output[name][number] for name in names])
    lasts = [
        (identity.partition("/")[0], reward)
        for identity, reward, last in zip(
            output["trajectory_ids"], output["rewards"], output["is_last_step"], strict=True
        )
        if last
    ]
    for name, group in groups.items():
        counted = [reward for owner, reward in lasts if owner == name]
        assert len(counted) == max(group.count, 1)
        assert sum(counted) / len(counted) == pytest.approx(made.MEANS[name])
        assert group.mean == pytest.approx(made.MEANS[name])


@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("case", made.CASES)
def test_trl_row_has_what_trl_requires(case: str, logprobs: bool):
    read = rollout(case, logprobs=logprobs)
    row = forms.trl_row(read, 7)
    check(row, TRL_ROW)
    numbers = [0.0 if each is None else each for each in row["logprobs"]]
    check_tokens(row["prompt_ids"], row["completion_ids"], row["env_mask"], numbers)
    assert any(row["env_mask"]) == bool(read.trained)
    assert row["rollout_reward"] == read.reward
    assert row["rollout_left_out"] == max(len(read.trained) - 1, 0)


@pytest.mark.parametrize("name", made.BATCH)
def test_trl_sample_has_what_trl_requires(name: str):
    group = sampled_group([made.CASES[case]() for case in made.BATCH[name]], group=name)
    samples = list(forms.trl_samples(group, "2 + 2?", number=3, version=5))
    assert len(samples) == sum(len(each.trained) for each in group.rollouts)
    for sample in samples:
        check(sample, TRL_SAMPLE)
        assert sample.keys() == TRL_SAMPLE.keys()
        ids, mask = sample["input_ids"], sample["completion_mask"]
        check_tokens(ids, ids, mask, sample["old_log_probs"])


def test_step_of_verl_stands_for_a_version_that_is_not_known():
    (known,) = forms.verl_outputs(rollout("good"), step=9)
    (asked,) = forms.verl_outputs(rollout("no-segments"), step=9)
    names = ("min_global_steps", "max_global_steps")
    assert [known["extra_fields"][name] for name in names] == [4, 4]
    assert [asked["extra_fields"][name] for name in names] == [9, 9]


def test_sample_says_whose_it_is_and_how_that_ended():
    (sample,) = forms.slime_samples(rollout("failed"), 1)
    assert sample["metadata"]["trio_envserve"] == {
        "group": "g",
        "rollout": "g/0",
        "segment": 0,
        "counts": False,
        "stop": "",
        "code": "rollout-failed",
        "masked": "the rollout failed: the tool broke (it ran and failed)",
    }
