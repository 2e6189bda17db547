"""The forms of samples that trainers take, as plain data.  Pure.

Theory of operation
-------------------
The modules of the trainers turn a form into the trainer's own type.  The requirements of each
trainer stand in the tests as data, so the forms are checked without any trainer.

A rollout that counts and cannot be trained on is a *placeholder*: a token that nobody
sampled, with mask 0, and the reward, which belongs to the baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .samples import Sample, SampledGroup, SampledRollout

CUT = ("length", "context", "truncated", "deadline")
"""The words of results that were cut at a limit: of tokens, of a game, or of time."""


def ids_of(sample: Sample, rollout: SampledRollout) -> dict[str, Any]:
    """The ids of a sample, and how its rollout ended, for a trainer's own records."""
    return {
        "group": sample.group,
        "rollout": sample.rollout,
        "segment": sample.segment,
        "counts": rollout.counts,
        "stop": rollout.stop,
        "code": rollout.code,
        "masked": sample.masked,
    }


def verl_outputs(rollout: SampledRollout, *, step: int = -1) -> list[dict[str, Any]]:
    """The fields of verl's outputs of a rollout, one for each segment; none if it is left out.

    ``step``: the trainer's step, for samples whose weights' version is not known.
    """
    return [
        {
            "prompt_ids": sample.prompt_ids,
            "response_ids": sample.response_ids,
            "response_mask": sample.response_mask,
            **({"response_logprobs": sample.logprobs} if rollout.logprobs else {}),
            "reward_score": sample.reward,
            # With what the model was told before each of its answers.
            "num_turns": 2 * sum(each.turns for each in rollout.samples),
            "metrics": {"generate_sequences": rollout.outcome.duration_s or 0.0},
            "extra_fields": {
                "reward_extra_info": {},
                "min_global_steps": _or(sample.oldest_version, step),
                "max_global_steps": _or(sample.newest_version, step),
                "trio_envserve": ids_of(sample, rollout),
            },
        }
        for sample in rollout.usable
    ]


def _or(version: int | None, step: int) -> int:
    return step if version is None else version


def slime_samples(rollout: SampledRollout, rollout_id: int) -> list[dict[str, Any]]:
    """The attributes of the samples of slime, or of miles, of a rollout: at least one, since a
    group must have all its members.  One that does not count has the reward 0.0, and is
    marked as one to remove, and as one that the baseline leaves out."""
    return [
        {
            "tokens": [*sample.prompt_ids, *sample.response_ids],
            "response_length": len(sample.response_ids),
            "loss_mask": sample.response_mask,
            "rollout_log_probs": sample.logprobs,
            "reward": 0.0 if sample.reward is None else sample.reward,
            "rollout_id": rollout_id,
            "remove_sample": bool(sample.masked),
            "status": _slime_status(rollout),
            "weight_versions": [each for each in sample.weight_versions if each is not None],
            "metadata": {"trio_envserve": ids_of(sample, rollout)},
        }
        for sample in rollout.usable or (rollout.placeholder(),)
    ]


def _slime_status(rollout: SampledRollout) -> str:
    if not rollout.counts:
        return "failed"
    return "truncated" if rollout.stop in CUT else "completed"


def skyrl_output(
    rollouts: Sequence[SampledRollout], trajectory_ids: Sequence[Any]
) -> dict[str, Any]:
    """A ``GeneratorOutput`` for step-wise training: a row for each segment.

    The rollouts that do not count are left out.  Of a group without any that does, the first
    one is a masked row with the reward 0.0: SkyRL wants a row of each prompt.
    """
    handed = {rollout.group for rollout in rollouts if rollout.counts}
    rows: list[tuple[Sample, SampledRollout, Any, bool]] = []
    for rollout, trajectory in zip(rollouts, trajectory_ids, strict=True):
        samples = rollout.usable
        if rollout.group not in handed:
            handed.add(rollout.group)
            samples = (rollout.placeholder(),)
        last = len(samples) - 1
        rows += [(each, rollout, trajectory, n == last) for n, each in enumerate(samples)]
    failed = sum(not rollout.counts for rollout in rollouts)
    masked = sum(bool(sample.masked) for rollout in rollouts for sample in rollout.samples)
    logprobs = [sample.logprobs for sample, *_ in rows]
    return {
        "prompt_token_ids": [sample.prompt_ids for sample, *_ in rows],
        "response_ids": [sample.response_ids for sample, *_ in rows],
        # That of the last row is the rollout's, for SkyRL and for us.
        "rewards": [(sample.reward or 0.0) if last else 0.0 for sample, _, _, last in rows],
        "loss_masks": [sample.response_mask for sample, *_ in rows],
        "stop_reasons": ["length" if r.stop in CUT else "stop" for _, r, _, _ in rows],
        "rollout_metrics": {
            "trio_envserve/rollouts": len(rollouts),
            "trio_envserve/left_out": failed,
            "trio_envserve/masked_segments": masked,
        },
        "rollout_logprobs": None if None in logprobs else logprobs,
        "trajectory_ids": [trajectory for _, _, trajectory, _ in rows],
        "is_last_step": [last for *_, last in rows],
    }


def trl_row(rollout: SampledRollout, pad: int) -> dict[str, Any]:
    """The fields of a row of TRL's ``rollout_func``, which takes one row of a rollout: its last
    segment that can be trained on (``rollout_left_out`` is the number of those before it), or a
    placeholder with the token ``pad``, so that TRL does not count it as cut."""
    sample = (rollout.trained or (rollout.placeholder(pad),))[-1]
    return {
        "prompt_ids": sample.prompt_ids,
        "completion_ids": sample.response_ids,
        # None is TRL's word for a log-probability that the engine did not give.
        "logprobs": sample.logprobs or [None] * len(sample.response_ids),
        "env_mask": sample.response_mask,
        "rollout_reward": rollout.reward,
        "rollout_result": rollout.outcome.value,
        "rollout_masked": rollout.masked,
        "rollout_segments": len(rollout.samples),
        "rollout_left_out": len(rollout.trained[:-1]),
    }


def trl_samples(
    group: SampledGroup, prompt: Any, *, number: int, version: int
) -> Iterator[dict[str, Any]]:
    """The fields of TRL's ``RolloutSample`` for each segment of a group that can be trained on.

    ``version``: version of the weights when the group began.
    """
    for rollout, advantage in zip(group.rollouts, group.advantages(), strict=True):
        result = rollout.outcome.value
        completion = result.get("completion") if isinstance(result, Mapping) else None
        for sample in rollout.trained:
            before = len(sample.prompt_ids)
            yield {
                "prompt": _messages(prompt),
                "completion": _messages(completion),
                "input_ids": [*sample.prompt_ids, *sample.response_ids],
                "completion_mask": [*[0] * before, *sample.response_mask],
                "old_log_probs": [*[0.0] * before, *(sample.logprobs or ())],
                "advantage": advantage,
                "model_version": version,
                "group_id": number,
                "metrics": {"reward": rollout.reward, "reward_std": group.std},
            }


def _messages(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
