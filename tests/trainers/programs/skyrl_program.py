"""SkyRL's own validators, metrics and advantages over what its generator gives.

Run by the interpreter of an environment with skyrl; prints what came of each group.
"""

from __future__ import annotations

import asyncio
import json
import sys
import typing
from typing import Any

if sys.version_info < (3, 12):
    # Its types are pydantic's, which takes no ``typing.TypedDict`` before 3.12.
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict

import numpy as np
import torch
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset.preprocess import compute_prompt_mini_batch_boundaries
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.utils import (
    concatenate_generator_outputs,
    get_metrics_from_generator_output,
)
from skyrl.train.utils.trainer_utils import validate_generator_output

from trio_envserve.trainers.skyrl import Generator


def batch_of(batch: Any, **sampling: Any) -> dict[str, Any]:
    rows = [(name, n, case) for name, cases in batch.items() for n, case in enumerate(cases)]
    return {
        "prompts": [[{"role": "user", "content": "?"}]] * len(rows),
        "env_classes": ["none"] * len(rows),
        "env_extras": [{"case": case} for _, _, case in rows],
        "sampling_params": {"max_generate_length": 8, **sampling},
        "trajectory_ids": [TrajectoryID(name, n) for name, n, _ in rows],
        "batch_metadata": None,
    }


def advantages(output: Any) -> dict[str, list[float]]:
    """The advantages that SkyRL computes from the last row of each trajectory."""
    lasts = [n for n, last in enumerate(output["is_last_step"]) if last]
    width = max(len(output["response_ids"][n]) for n in lasts)
    rewards, mask = torch.zeros(len(lasts), width), torch.zeros(len(lasts), width)
    for row, n in enumerate(lasts):
        rewards[row, len(output["response_ids"][n]) - 1] = output["rewards"][n]
        mask[row, : len(output["response_ids"][n])] = 1
    ids = [output["trajectory_ids"][n] for n in lasts]
    found, _ = ppo_utils.compute_grpo_outcome_advantage(
        rewards, mask, np.array([each.instance_id for each in ids]), grpo_norm_by_std=False
    )
    return {each.to_string(): row[0].item() for each, row in zip(ids, found, strict=True)}


def command(address: str) -> Any:
    """The settings that an experiment gets by SkyRL's command with the lines of the page."""
    import ray
    import skyrl.train.utils
    from skyrl.train.entrypoints import main_base

    found: list[Any] = []

    class Remote:
        @staticmethod
        def remote(cfg: Any, settings: Any) -> None:
            found.extend([cfg.generator.step_wise_trajectories, settings])

    # No cluster, and no model: what they would be given is looked at.
    ray.remote, ray.get = lambda **_: lambda function: Remote, lambda result: result
    skyrl.train.utils.utils.initialize_ray = skyrl.train.utils.validate_cfg = lambda cfg: None
    sys.argv = [
        "main_base",
        "trainer.override_entrypoint=trio_envserve.trainers.skyrl",
        f"trio_envserve.address={address}",
        "trio_envserve.timeout_s=600",
        "trio_envserve.sampling.top_p=0.9",
        "generator.step_wise_trajectories=true",
    ]
    main_base.main()
    return found


def generator_cfg(*overrides: str) -> Any:
    given = [f"generator.{each}=true" for each in ("step_wise_trajectories", *overrides)]
    return SkyRLTrainConfig.from_cli_overrides(given).generator


async def cut(address: str) -> dict[str, Any]:
    """The masks and rewards of a cut rollout and a whole one, with each setting."""
    found = {}
    for name in ("", "apply_overlong_filtering", "zero_reward_on_non_stop"):
        cfg = generator_cfg(*filter(None, [name]))
        made = Generator(cfg, address=address, model="oracle", timeout_s=60)
        output = await made.generate(batch_of({"cut": ["cut-good", "good"]}, logprobs=1))
        found[name] = [output["loss_masks"], output["rewards"]]
    return found


def replayed(address: str) -> dict[str, str]:
    """What is said of each setting for data that chat completions do not have."""
    found = {}
    for name in ("enable_return_routed_experts", "enable_return_sample_support_set"):
        cfg = generator_cfg()
        if hasattr(cfg.inference_engine, name):  # the second is of 0.4
            setattr(cfg.inference_engine, name, True)
            found[name] = refusal(cfg, address)
    name = "vision_language_generator"
    found[name] = refusal(generator_cfg(name), address)
    return found


def refusal(cfg: Any, address: str) -> str:
    try:
        Generator(cfg, address=address)
    except ValueError as error:
        return str(error)
    return ""


async def main(address: str, batch: Any) -> None:
    cfg = generator_cfg()
    generator = Generator(cfg, address=address, model="oracle", timeout_s=60)
    asked = batch_of(batch, logprobs=1)
    output = await generator.generate(asked)
    validate_generator_output(len(asked["prompts"]), output, step_wise=True)
    uids = [each.instance_id for each in output["trajectory_ids"]]
    compute_prompt_mini_batch_boundaries(uids, 1, len(batch), True, 4)
    halves = [dict(list(batch.items())[:2]), dict(list(batch.items())[2:])]
    joined = concatenate_generator_outputs(
        [await generator.generate(batch_of(half, logprobs=1)) for half in halves], step_wise=True
    )
    plain = await generator.generate(batch_of(batch, logprobs=None))
    validate_generator_output(len(asked["prompts"]), plain, step_wise=True)
    get_metrics_from_generator_output(output, uids)
    made = {
        "advantages": advantages(output),
        "rows": len(output["response_ids"]),
        "joined": joined["response_ids"] == output["response_ids"],
        "logprobs": [output["rollout_logprobs"] is not None, plain["rollout_logprobs"] is not None],
        "metrics": output["rollout_metrics"],
        "refused": refusal(SkyRLTrainConfig.from_cli_overrides([]).generator, address),
        "replayed": replayed(address),
        "cut": await cut(address),
    }
    cfg.chat_template.name_or_path = "qwen3_with_thinking"
    made["template"] = refusal(cfg, address)
    cfg.chat_template.name_or_path = None
    cfg.chat_template_kwargs = {"enable_thinking": False}
    engine = Generator(cfg, address=address)
    engine.use_engine("http://10.0.0.1:8080/", "tiny/model")
    given = engine._settings
    made["engine"] = [given.model, given.model_name, given.sampling.get("chat_template_kwargs")]
    made["command"] = command(address)
    print("RESULT " + json.dumps(made))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
