from __future__ import annotations

import decimal
import fractions
import math
import statistics
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers import made
from trio_envserve import Outcome
from trio_envserve.core.arrays import RawArray
from trio_envserve.core.values import decode, encode
from trio_envserve.evals.records import result_of
from trio_envserve.trainers.forms import slime_samples, verl_outputs
from trio_envserve.trainers.samples import (
    NO_LOGPROBS,
    NO_TOKENS,
    sampled_group,
    sampled_rollout,
)

FLAWS: dict[str, list[dict[str, Any]]] = {
    "the model sampled no token of the segment": [{"response_mask": [0, 0, 0]}],
    "the segment has 3 response tokens, and no 0 or 1 for each as mask": [
        {"response_mask": [1]}, {"response_mask": [1, 2, [0]]},
    ],
    "the segment has 3 response tokens and 1 log-probabilities": [{"logprobs": [-1.0]}],
    "the segment's token ids are no whole numbers of 32 bits from 0 on": [
        {"response_ids": [1.5, 2.5, 3.5]}, {"response_ids": [1, -100, 3]},
        {"prompt_ids": [1 << 31]},
    ],
}  # fmt: skip
"""By what is said of a segment: its fields that are wrong."""
REWARDS = [
    "1.0", " 7 ", b"3", True, 3, np.float32(0.5), np.array(2.0), np.array([1.0]), {}, [1.0],
    {"a": 0.5, "b": 1}, {"a": 0.5, "reward": 2}, {"a": "x"}, fractions.Fraction(1, 4),
    decimal.Decimal("sNaN"), 10**400, math.inf,
]  # fmt: skip
CUT = {"parts": 1, "bytes": 70_000, "of": {"segments": 70_000}, "why": "it was too large"}
NOT_COUNTED = [made.failed(), made.lost(), made.without_reward(), Outcome(value=None)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.floats(-10, 10), st.integers(1, 4)),
            st.sampled_from(range(len(NOT_COUNTED))),
        ),
        max_size=8,
    )
)
def test_baseline_is_over_rollouts_that_have_a_reward(members: list[Any]):
    """Segments, and rollouts that failed, change nothing."""
    outcomes = [
        NOT_COUNTED[member]
        if isinstance(member, int)
        else made.answered(member[0], *[made.segment(n) for n in range(member[1])])
        for member in members
    ]
    rewards = [member[0] for member in members if not isinstance(member, int)]
    group = sampled_group(outcomes)
    assert group.count == len(rewards)
    assert group.mean == (statistics.fmean(rewards) if rewards else 0.0)
    assert group.std == (statistics.stdev(rewards) if len(rewards) > 1 else 0.0)
    advantages = group.advantages(scaled=False)
    for member, advantage in zip(members, advantages, strict=True):
        assert advantage == (0.0 if isinstance(member, int) else member[0] - group.mean)
    assert math.isclose(sum(advantages), 0.0, abs_tol=1e-6)


def test_sample_has_the_ids_of_its_segment_and_the_advantage_of_its_rollout():
    group = sampled_group([made.forked(), made.failed(), made.answered(0.0)], group="g")
    ids = [(sample.group, sample.rollout, sample.segment) for sample, _ in group.samples()]
    assert ids == [("g", "g/0", 0), ("g", "g/0", 1), ("g", "g/0", 2), ("g", "g/2", 0)]
    assert [advantage for _, advantage in group.samples(scaled=False)] == [0.5] * 3 + [-0.5]


@pytest.mark.parametrize(
    ("outcome", "reward", "masked"),
    [
        (made.answered(), 1.0, ""),
        (made.answered(True), 1.0, ""),
        (made.answered(np.float32(0.5)), 0.5, ""),
        (made.forked(), 1.0, ""),
        (made.failed(), None, "the rollout failed: the tool broke (it ran and failed)"),
        (made.lost(), None, "the rollout failed: killed (it may have run)"),
        (made.without_reward(), None, "the result has no reward: the game was not finished"),
        (
            Outcome(value=None),
            None,
            'the result is no mapping such as {"reward": 1.0}, but a NoneType',
        ),
        (made.answered(math.nan), None, "the reward is no finite number: nan"),
        (made.answered("high"), None, "the reward is no finite number: 'high'"),
        (made.answered(10**400), None, f"the reward is no finite number: {10**400!r:.100}"),
        (made.answered(-1e39), None, "the reward -1e+39 is larger than a number of 32 bits can be"),
        (made.without_segments(), 1.0, NO_TOKENS),
        (made.answered(1.0, segments="(cut: 70000 bytes or so)", cut=CUT), 1.0, CUT["why"]),
        (made.answered(1.0, segments="none"), 1.0, NO_TOKENS),
        (made.without_logprobs(), 1.0, NO_LOGPROBS),
        (made.with_nan(), 1.0, "a sampled token has no finite log-probability"),
        (made.without_answer(), 0.0, "the segment has no response tokens"),
        (made.without_prompt(), 1.0, "the segment has no prompt tokens"),
        (made.answered(1.0, segments=["?"]), 1.0, "the segment has no response tokens"),
        *(
            (made.answered(1.0, made.segment(**wrong)), 1.0, masked)
            for masked, wrongs in FLAWS.items()
            for wrong in wrongs
        ),
    ],
    ids=lambda value: None if isinstance(value, Outcome) else repr(value)[:40],
)
def test_rollout_counts_or_is_masked_in_words(outcome: Outcome, reward: float, masked: str):
    rollout = sampled_rollout(outcome)
    assert (rollout.reward, rollout.masked) == (reward, masked)
    assert rollout.counts == (reward is not None)
    assert bool(rollout.trained) == (not masked)
    for sample in rollout.samples:
        sizes = {len(sample.response_ids), len(sample.response_mask), len(sample.logprobs or "")}
        assert len(sizes) == 1
        assert all(math.isfinite(number) for number in sample.logprobs or ())
        if sample.masked:
            assert not any(sample.response_mask)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"response_mask": [1, np.array([0, 1]), 0]}, "no 0 or 1 for each as mask"),
        ({"logprobs": [-(10**400), -0.5, 0.0]}, "a sampled token has no finite log-probability"),
        ({"logprobs": [-9999.0, -0.5, 0.0]}, "a sampled token has no finite log-probability"),
    ],
)
def test_one_rollout_ended_the_step_by_an_array_or_a_large_number_in_its_segment(
    wrong: dict[str, Any], told: str
):
    assert told in sampled_rollout(made.answered(1.0, made.segment(**wrong))).masked


def test_good_segment_beside_a_bad_one_is_trained_on():
    rollout = sampled_rollout(made.answered(1.0, made.segment(logprobs=None), made.segment(9)))
    assert [bool(sample.masked) for sample in rollout.samples] == [True, False]
    assert rollout.masked == ""
    assert [sample.segment for sample in rollout.trained] == [1]


def test_one_huge_reward_made_the_advantages_of_its_whole_group_infinite_or_ended_the_step():
    group = sampled_group(map(made.answered, (1e308, 1.7e308, 1.0, 0.0)))
    assert group.rewards == [None, None, 1.0, 0.0]
    assert np.isfinite(np.asarray(group.advantages(), np.float32)).all()
    assert sampled_rollout(made.answered(np.finfo(np.float32).max)).counts


@pytest.mark.parametrize("outcome", [made.answered(), made.without_logprobs()])
def test_no_sample_has_logprobs_where_none_are_asked_for(outcome: Outcome):
    (sample,) = sampled_rollout(outcome, logprobs=False).samples
    assert (sample.logprobs, sample.masked) == (None, "")


def test_number_of_a_token_that_was_not_sampled_is_nought():
    record = made.segment(logprobs=[-0.5, -0.5, math.nan])
    (sample,) = sampled_rollout(made.answered(1.0, record)).samples
    assert (sample.logprobs, sample.masked) == ([-0.5, -0.5, 0.0], "")


@pytest.mark.parametrize(
    ("versions", "number"),
    [
        (["4"], 4), ([7], 7), (["5", "4", None, "6"], None), (["default"], None),
        (["4", "²"], None), (["4" * 5000], None), ([], None), (None, None),
    ],
)  # fmt: skip
def test_versions_of_the_weights_are_numbers_if_all_are(versions: Any, number: int | None):
    record = made.segment(weight_versions=versions)
    (sample,) = sampled_rollout(made.answered(1.0, record)).samples
    assert (sample.oldest_version, sample.newest_version) == (number, number)


@pytest.mark.parametrize(
    ("spans", "versions"),
    [
        ([(0, 1, "5"), (1, 2, "9")], ("5", "9")),
        ([(0, 1, "5")], ("5", None)),
        ([(1, 2, "9")], (None, "9")),
        ([(0, 2, "9"), "?", (3,), (0.5, 1, "1")], ("9",)),
        ([], ("4",)),
    ],
)
def test_weights_that_changed_within_an_answer_are_all_told(spans: Any, versions: Any):
    """Only the last of each answer was."""
    rollout = sampled_rollout(made.answered(1.0, made.segment(version_spans=spans)))
    (sample,) = rollout.samples
    assert sample.weight_versions == versions
    told = [version for version in versions if version is not None]
    assert slime_samples(rollout, 0)[0]["weight_versions"] == told
    (output,) = verl_outputs(rollout, step=-1)
    steps = (-1, -1) if None in versions else (int(told[0]), int(told[-1]))
    names = ("min_global_steps", "max_global_steps")
    assert tuple(output["extra_fields"][name] for name in names) == steps


@pytest.mark.parametrize("reward", REWARDS, ids=repr)
def test_reward_is_that_of_an_evaluation(reward: Any):
    outcome = made.answered(reward)
    counted = result_of(0, 0, outcome).score
    assert sampled_rollout(outcome).reward == counted


@pytest.mark.parametrize("kind", [list, np.asarray])
def test_segment_of_any_arrays_is_read(kind: Any):
    record = {
        name: kind(list(value)) if name in ("prompt_ids", "response_ids") else value
        for name, value in made.segment().items()
    }
    (sample,) = sampled_rollout(made.answered(1.0, record)).samples
    assert (sample.prompt_ids, sample.response_ids) == ([1, 2], [3, 4, 5])
    assert {type(token) for token in sample.response_ids} == {int}


def test_samples_of_a_trainer_without_numpy_were_masked_as_if_they_had_no_tokens():
    body = encode(made.answered(1.0, made.segment(0)).value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numpy", None)
        value: Any = decode(body)
    assert isinstance(value["segments"][0]["prompt_ids"], RawArray)
    assert sampled_rollout(Outcome(value=value)).samples == (
        sampled_rollout(Outcome(value=decode(body))).samples
    )
