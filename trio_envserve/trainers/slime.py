"""slime and miles over an environment server, by two lines of their arguments.

::

    --custom-generate-function-path trio_envserve.trainers.slime.generate
    --custom-reward-post-process-path trio_envserve.trainers.slime.rewards

Theory of operation
-------------------
Both hand ``generate`` a ``Sample`` for each rollout and take back a list of them, one for each
segment, with one ``rollout_id``.  A group must have all its members, so a failed one
comes back as a placeholder that is marked to be removed (its mask is 0).  Both would count
its reward all the same, and slime counts each segment of a forked rollout, over the whole
batch; ``rewards`` has the baselines over rollouts.

Neither trainer is imported: what is made is a copy of the sample that was handed in.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import ConfigError
from .calls import CallSettings, ask_rollout, input_of, joined
from .forms import slime_samples
from .samples import advantages

PREFIX = "trio_envserve_"
"""Settings are arguments of this prefix, from the file of ``--custom-config-path``."""

SCALED = ("grpo", "gspo", "cispo")
CENTRED = (*SCALED, "reinforce_plus_plus_baseline")
"""The estimators whose rewards are less their mean."""

ADAPTER = "miles_lora"
"""The name of the adapter that is trained, at the engines of miles."""


async def generate(
    args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
) -> Any:
    """A list of the samples of a rollout, one for each segment.  It is a list also of one:
    both flatten a batch as its first rollout is.

    In an evaluation, which has no mask and counts samples, it is one sample; a failed rollout
    has the reward 0.0 there, and is logged.
    """
    settings = _settings(args)
    if not evaluation:
        _check(args, sample, settings)
    label = {} if sample.label is None else {"label": sample.label}
    metadata = joined(label, sample.metadata or {}, "metadata")
    row = {"prompt": sample.prompt, "metadata": metadata}
    read = await ask_rollout(
        settings,
        input_of(row, "metadata", settings.input),
        group=str(sample.group_index),
        rollout=str(sample.index),
        sampling_params=sampling_params,
    )
    made = [_copied(sample, fields) for fields in slime_samples(read, sample.index)]
    return made[-1] if evaluation else made


def rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """The rewards of the samples, and those that are trained with: less the mean of their
    group, over its rollouts, without those that failed."""
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    groups: dict[Any, dict[Any, float | None]] = defaultdict(dict)
    for sample, reward in zip(samples, raw, strict=True):
        groups[sample.group_index][_rollout_of(sample)] = reward if _counts(sample) else None
    if args.advantage_estimator in CENTRED and args.rewards_normalization:
        scaled = args.advantage_estimator in SCALED and args.grpo_std_normalization
        for group, members in groups.items():
            found = advantages(list(members.values()), scaled=scaled)
            groups[group] = dict(zip(members, found, strict=True))
    return raw, [groups[each.group_index][_rollout_of(each)] or 0.0 for each in samples]


def differing_rewards(args: Any, samples: Sequence[Any], **_: Any) -> bool:
    """Whether the rollouts of a group that count have different rewards: a filter for
    ``--dynamic-sampling-filter-path``.  slime's own takes no rollouts of several samples."""
    flat = [s for each in samples for s in (each if isinstance(each, list) else [each])]
    return len({sample.get_reward_value(args) for sample in flat if _counts(sample)}) > 1


def _settings(args: Any) -> CallSettings:
    """The settings of the arguments.  Without the setting ``model``, turns go to the trainer's own
    router of SGLang engines, if it has one."""
    given = {
        name.removeprefix(PREFIX): value
        for name, value in vars(args).items()
        if name.startswith(PREFIX) and value is not None
    }
    settings = CallSettings.of(given, where=f"arguments that begin with {PREFIX}")
    host = getattr(args, "sglang_router_ip", None)
    if not host:
        return settings
    url = f"http://{host}:{args.sglang_router_port}"
    trained = getattr(args, "lora_rank", 0) or getattr(args, "lora_adapter_path", None)
    adapter = ADAPTER if trained and not getattr(args, "lora_train_only", False) else None
    return settings.at_engine(
        "sglang", url, args.hf_checkpoint,
        lora_path=adapter, chat_template_kwargs=args.apply_chat_template_kwargs,
    )  # fmt: skip


def _check(args: Any, sample: Any, settings: CallSettings) -> None:
    """Raise ConfigError for what the trainer would miss in every sample, or not mean."""
    if isinstance(sample.prompt, str) and args.apply_chat_template and not settings.input:
        raise ConfigError(
            "the prompt is the text of a chat template, which the engine would put into the "
            "template once more: no --apply-chat-template"
        )
    pictures = getattr(sample, "multimodal_inputs", None) or {}
    if any(each is not None for each in pictures.values()):
        raise ConfigError(
            "chat completions do not say the pixels that belong to their tokens: "
            "no --multimodal-keys"
        )
    if getattr(sample, "adapter", None) is not None:
        raise ConfigError("one adapter is asked for all samples: no --multi-lora-n-adapters")
    if hasattr(sample, "rollout_top_p_token_ids") and getattr(args, "rollout_top_p", 1.0) != 1.0:
        raise ConfigError(
            "slime replays the tokens that top-p kept, which chat completions do not say: "
            "give --rollout-top-p 1.0"
        )
    if getattr(args, "use_rollout_routing_replay", False):
        raise ConfigError("chat completions say no routed experts: no --use-rollout-routing-replay")
    if getattr(args, "partial_rollout", False):
        raise ConfigError(
            "the trainer goes on with half a rollout only where that is one sample: "
            "no --partial-rollout"
        )
    if getattr(args, "use_rollout_indexer_replay", False):
        raise ConfigError("chat completions say no indexer: no --use-rollout-indexer-replay")


def _copied(sample: Any, fields: Mapping[str, Any]) -> Any:
    made = copy.copy(sample)
    for name, value in fields.items():
        setattr(made, name, value)
    made.status = type(sample).Status(fields["status"])
    made.metadata = {**(sample.metadata or {}), **fields["metadata"]}
    return made


def _counts(sample: Any) -> bool:
    """Whether its reward is part of the baseline; samples of other functions do unless they
    are removed."""
    ours = (sample.metadata or {}).get("trio_envserve")
    return bool(ours["counts"]) if ours else not sample.remove_sample


def _rollout_of(sample: Any) -> Any:
    return sample.index if sample.rollout_id is None else sample.rollout_id
