"""SkyRL over an environment server.

::

    trainer.override_entrypoint=trio_envserve.trainers.skyrl
    trio_envserve.address=tcp://127.0.0.1:5555

Theory of operation
-------------------
SkyRL hands its generator a batch of prompts, each as often as a group has members, and takes
back rows.  In step-wise training a row is a step of a trajectory, here a segment of a
rollout: SkyRL computes the baseline from the last rows, so that a rollout counts once, and
takes a batch in which rollouts are missing, so that failed ones are left out.  Without it
every rollout must be one row, with a reward that counts; so it is required.

Importing this module imports SkyRL.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from skyrl.train.generators.base import GeneratorInterface, GeneratorOutput, TrajectoryID
from skyrl.train.generators.utils import apply_overlong_filtering

from ..core.errors import ConfigError
from .calls import CallSettings, ask_rollout, input_of
from .forms import skyrl_output


class Generator(GeneratorInterface):  # type: ignore[misc]  # skyrl has its own environment
    """A generator whose rollouts run on an environment server.

    ``generator_cfg`` is SkyRL's; ``settings`` are those of :class:`.CallSettings`.
    """

    def __init__(self, generator_cfg: Any, **settings: Any) -> None:
        if not generator_cfg.step_wise_trajectories:
            raise ConfigError(
                "a rollout may have several segments, and one that failed is left out, which "
                "SkyRL takes in step-wise training only: set generator.step_wise_trajectories=true"
            )
        engine = generator_cfg.inference_engine
        for replayed in ("enable_return_routed_experts", "enable_return_sample_support_set"):
            # The second one is new in SkyRL 0.4.
            if getattr(engine, replayed, False):
                raise ConfigError(
                    "chat completions do not say what SkyRL would replay: set "
                    f"generator.inference_engine.{replayed}=false"
                )
        if generator_cfg.chat_template.name_or_path:
            raise ConfigError(
                "SkyRL's engines put messages into the model's own template: set "
                "generator.chat_template.name_or_path=null"
            )
        if generator_cfg.vision_language_generator:
            raise ConfigError(
                "chat completions do not say the pixels that belong to their tokens: set "
                "generator.vision_language_generator=false"
            )
        self._config = generator_cfg
        self._settings = CallSettings.of(settings, where="SkyRL's generator")

    def use_engine(self, url: str, name: str) -> None:
        """Send turns to SkyRL's own router of vLLM engines, unless the settings name a model."""
        asked = self._config.chat_template_kwargs
        self._settings = self._settings.at_engine("vllm", url, name, chat_template_kwargs=asked)

    async def generate(self, input_batch: Mapping[str, Any]) -> GeneratorOutput:
        """The rows of a batch, in the order of its prompts."""
        sampling_params = input_batch.get("sampling_params") or {}
        wanted = self._settings.logprobs and sampling_params.get("logprobs") is not None
        settings = dataclasses.replace(self._settings, logprobs=wanted)
        prompts = input_batch["prompts"]
        extras = input_batch.get("env_extras") or [{}] * len(prompts)
        ids = input_batch.get("trajectory_ids") or [
            TrajectoryID(instance_id=str(number), repetition_id=0) for number in range(len(prompts))
        ]
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(
                    ask_rollout(
                        settings,
                        input_of({"prompt": prompt, "extras": extra}, "extras", settings.input),
                        group=each.instance_id,
                        rollout=each.to_string(),
                        sampling_params=sampling_params,
                    )
                )
                for prompt, extra, each in zip(prompts, extras, ids, strict=True)
            ]
        output: GeneratorOutput = skyrl_output([task.result() for task in asked], ids)
        # SkyRL leaves these two to its generators.
        reasons = output["stop_reasons"]
        if self._config.apply_overlong_filtering:
            output["loss_masks"] = apply_overlong_filtering(output["loss_masks"], reasons)
        if self._config.zero_reward_on_non_stop:
            pairs = zip(output["rewards"], reasons, strict=True)
            output["rewards"] = [number if reason == "stop" else 0.0 for number, reason in pairs]
        return output


PREFIX = "trio_envserve."
"""Overrides of this prefix are settings of :class:`.CallSettings`."""

ENTRYPOINT = "trainer.override_entrypoint="


def main() -> None:
    """SkyRL's command, with this generator.  The rollouts' turns go to SkyRL's own router of
    engines, unless the setting ``model`` names another endpoint."""
    import ray
    from omegaconf import OmegaConf
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg
    from skyrl.train.utils.utils import initialize_ray

    ours = [each.removeprefix(PREFIX) for each in sys.argv[1:] if each.startswith(PREFIX)]
    # SkyRL's command dispatches by the entry point, and its configuration does not know it.
    theirs = [each for each in sys.argv[1:] if not each.startswith((PREFIX, ENTRYPOINT))]
    settings = OmegaConf.to_container(OmegaConf.from_dotlist(ours))
    CallSettings.of(settings, where=f"overrides that begin with {PREFIX}").server()
    cfg = SkyRLTrainConfig.from_cli_overrides(theirs)
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(ray.remote(num_cpus=1)(run).remote(cfg, settings))


def run(cfg: Any, settings: Mapping[str, Any]) -> None:
    """SkyRL's experiment with this generator.  Blocks until the training is over."""
    from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
    from skyrl.train.entrypoints.main_base import BasePPOExp

    class Experiment(BasePPOExp):  # type: ignore[misc]  # as above
        def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
            made = Generator(cfg.generator, **settings)
            made.use_engine(inference_engine_client.proxy_url, resolve_policy_model_name(cfg))
            return made

    Experiment(cfg).run()
