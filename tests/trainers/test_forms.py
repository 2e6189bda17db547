"""What each trainer requires, as data, held against what is made for it in every case."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.trainers import made
from trio_envserve.trainers import forms
from trio_envserve.trainers.samples import SampledRollout, sampled_group, sampled_rollout


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
        check(output, forms.VERL_OUTPUT)
        check(output["extra_fields"], forms.VERL_EXTRA)
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
        check(sample, forms.SLIME_SAMPLE)
        length = sample["response_length"]
        tokens = sample["tokens"]
        check_tokens(
            tokens[:-length], tokens[-length:], sample["loss_mask"], sample["rollout_log_probs"]
        )
        assert sample["remove_sample"] == (not any(sample["loss_mask"]))
        assert (sample["status"] == "failed") == (not read.counts)


def test_slime_says_of_a_cut_rollout_that_it_is_truncated():
    assert [each["status"] for each in forms.slime_samples(rollout("cut"), 1)] == ["truncated"]


@pytest.mark.parametrize("logprobs", [True, False])
def test_skyrl_output_has_what_skyrl_requires(logprobs: bool):
    groups = {
        name: sampled_group([made.CASES[case]() for case in cases], group=name, logprobs=logprobs)
        for name, cases in made.BATCH.items()
    }
    rollouts = [each for group in groups.values() for each in group.rollouts]
    output = forms.skyrl_output(rollouts, [each.rollout for each in rollouts])
    check(output, forms.SKYRL_OUTPUT)
    rows = len(output["response_ids"])
    for name in forms.SKYRL_OUTPUT:
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


@pytest.mark.parametrize(
    ("lengths", "prompt", "response", "masked"),
    [
        ((9, 9), [1, 2], [3, 4, 5], False),
        ((2, 2), [1, 2], [3, 4], False),
        ((1, 9), [2], [0], True),
    ],
)
def test_verl_output_is_cut_to_the_lengths_that_are_padded_to(
    lengths: tuple[int, int], prompt: list[int], response: list[int], masked: bool
):
    (output,) = forms.verl_outputs(rollout("good"), lengths=lengths)
    assert (output["prompt_ids"], output["response_ids"]) == (prompt, response)
    assert len(output["response_logprobs"]) == len(output["response_mask"]) == len(response)
    assert masked == (not any(output["response_mask"]))
    assert masked == bool(output["extra_fields"]["trio_envserve"]["masked"])


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
