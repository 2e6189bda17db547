"""The forms of samples that trainers take, as plain data.  Pure.

Theory of operation
-------------------
What a trainer requires is a table here, drawn from the trainer's own types at the version
that is named, so that each form is held to it wherever the trainer is not installed.  The
modules of the trainers turn a form into the trainer's own type.

A rollout that counts and cannot be trained on is a *placeholder*: a token that nobody
sampled, with mask 0, and the reward, which belongs to the baseline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import EnvServeError
from .samples import Sample, SampledRollout

VERL = "verl 0.9.1"
VERL_OUTPUT: Mapping[str, type] = {
    "prompt_ids": list,
    "response_ids": list,
    "response_mask": list,
    "reward_score": float,
    "num_turns": int,
    "metrics": dict,
    "extra_fields": dict,
}
"""The fields of an ``AgentLoopOutput`` that its trainer of version 1 reads."""
VERL_EXTRA: Mapping[str, type] = {
    "reward_extra_info": dict,
    "min_global_steps": int,
    "max_global_steps": int,
}
"""Those of its ``extra_fields``: an output without them ends the step."""

SLIME = "slime 624b824 and miles 31f1ca9, after 0.3.1 and 0.1.0"
SLIME_SAMPLE: Mapping[str, type] = {
    "tokens": list,
    "response_length": int,
    "loss_mask": list,
    "reward": float,
    "rollout_id": int,
    "remove_sample": bool,
    "status": str,
    "weight_versions": list,
    "metadata": dict,
}
"""The attributes of a ``Sample`` that are set."""

SKYRL = "skyrl 0.3.0"
SKYRL_OUTPUT: Mapping[str, type] = {
    "prompt_token_ids": list,
    "response_ids": list,
    "rewards": list,
    "loss_masks": list,
    "stop_reasons": list,
    "rollout_metrics": dict,
    "trajectory_ids": list,
    "is_last_step": list,
}
"""The keys of a ``GeneratorOutput`` in step-wise training, each but the metrics with one item
for each sample; ``rollout_logprobs`` is one of these, or None."""


class RolloutNotUsable(EnvServeError):
    """A rollout that the trainer has no form for.  The message says why."""


def usable(rollout: SampledRollout) -> tuple[Sample, ...]:
    """The samples that are handed on: those that are trained on, or a placeholder; none if
    the rollout does not count."""
    if not rollout.counts:
        return ()
    return rollout.trained or (placeholder(rollout),)


def placeholder(rollout: SampledRollout) -> Sample:
    """A sample that is not trained on: the rollout's first prompt, and one token."""
    prompts = [sample.prompt_ids for sample in rollout.samples if sample.prompt_ids]
    return Sample(
        group=rollout.group, rollout=rollout.rollout, segment=0,
        prompt_ids=prompts[0] if prompts else [0], response_ids=[0], response_mask=[0],
        logprobs=[0.0] if rollout.logprobs else None, reward=rollout.reward,
        masked=rollout.masked or "it is a placeholder",
    )  # fmt: skip


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


def verl_outputs(
    rollout: SampledRollout, *, step: Any = None, lengths: tuple[int, int] | None = None
) -> list[dict[str, Any]]:
    """The fields of verl's outputs of a rollout; none if it is left out.

    ``step``: the trainer's step, for samples whose weights' version is not known.
    ``lengths``: most tokens of a prompt and of a response, where verl pads to them; the rest
    of a longer response is cut off, as verl's own loops do, and a sample with a longer
    prompt is not trained on.
    """
    samples = usable(rollout)
    if lengths is not None:
        samples = tuple(_fitting(sample, rollout, *lengths) for sample in samples)
    asked = step if isinstance(step, int) else -1
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
                "min_global_steps": _or(sample.oldest_version, asked),
                "max_global_steps": _or(sample.newest_version, asked),
                "trio_envserve": ids_of(sample, rollout),
            },
        }
        for sample in samples
    ]


def _fitting(sample: Sample, rollout: SampledRollout, prompt: int, response: int) -> Sample:
    if len(sample.prompt_ids) > prompt:
        short = dataclasses.replace(placeholder(rollout), prompt_ids=sample.prompt_ids[-prompt:])
        return dataclasses.replace(
            short, masked=f"its prompt has {len(sample.prompt_ids)} tokens, and may have {prompt}"
        )
    logprobs = sample.logprobs
    return dataclasses.replace(
        sample,
        response_ids=sample.response_ids[:response],
        response_mask=sample.response_mask[:response],
        logprobs=None if logprobs is None else logprobs[:response],
    )


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
            "weight_versions": list(sample.weight_versions),
            "metadata": {"trio_envserve": ids_of(sample, rollout)},
        }
        for sample in usable(rollout) or (placeholder(rollout),)
    ]


def _slime_status(rollout: SampledRollout) -> str:
    if not rollout.counts:
        return "failed"
    return "truncated" if rollout.stop in CUT else "completed"


CUT = ("length", "context", "truncated")
"""The words of results whose last answer was cut at a limit of tokens."""


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
        samples = usable(rollout)
        if rollout.group not in handed:
            handed.add(rollout.group)
            samples = (placeholder(rollout),)
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
