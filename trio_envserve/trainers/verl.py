"""verl's agent loop over an environment server.

::

    - name: trio_envserve
      _target_: trio_envserve.trainers.verl.AgentLoop
      address: tcp://127.0.0.1:5555

Theory of operation
-------------------
verl makes the loop's object anew for each rollout and calls ``run`` once.  Its trainer of
version 1 (``trainer.use_v1``, the default) takes a list of outputs from it, one for each
segment: it computes GRPO's baseline from the last output of each rollout, gives the others
that advantage, and leaves out a rollout without outputs.  Its filter of groups
(``algorithm.filter_groups``) ends the training if a group has finished without any, but not if
a rollout of it has raised, so there a rollout that is left out raises.  Its older trainer, which
verl is about to remove, has no form for several segments, or for a rollout that failed: it is
refused.

Importing this module imports verl.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from ..core.errors import ConfigError
from .calls import TOKENS_AND_LOGPROBS, CallSettings, ask_rollout, input_of, plain
from .forms import verl_outputs

_SGLANG_ADAPTER = "verl_actor_lora_name"
"""The name of the adapter that is trained, at verl's SGLang servers."""

_VERLS_OWN = {"name", "tools", *inspect.signature(AgentLoopBase.__init__).parameters}
"""Arguments that are no settings of ours."""


class AgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl is installed in its own environment
    """An agent loop whose rollouts run on an environment server.

    The other keys of its entry in verl's file of agent loops are the settings of
    :class:`.CallSettings`.  Without ``model``, a rollout's turns go to one of verl's own
    engines, chosen by verl's balancer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = {name: kwargs.pop(name) for name in set(kwargs) - _VERLS_OWN}
        super().__init__(*args, **kwargs)
        self._settings = CallSettings.of(given, where="verl's agent loop")

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        """The outputs of one rollout, of which ``session_id`` is the number in its group."""
        if "session_id" not in kwargs:
            raise ConfigError(
                "verl's older trainer takes exactly one output of each rollout, also of one that "
                "failed: set trainer.use_v1=true"
            )
        row = plain(kwargs)
        row["prompt"] = row.get("raw_prompt")
        group = str(row.get("uid", row.get("index", "")))
        rollout = f"{group}/{row['session_id']}"
        logprobs = bool(sampling_params.get("logprobs")) and self._settings.logprobs
        async with self._engine(rollout) as settings:
            read = await ask_rollout(
                dataclasses.replace(settings, logprobs=logprobs),
                input_of(row, "extra_info", settings.input),
                group=group,
                rollout=rollout,
                sampling_params=sampling_params,
            )
        # Of a balanced step the version that was asked for, if the engine says none.
        step = row.get("global_steps")
        outputs = verl_outputs(read, step=step if isinstance(step, int) else -1)
        if not outputs and OmegaConf.select(self.config, "algorithm.filter_groups.enable"):
            raise RuntimeError(f"rollout {rollout} is left out: {read.masked}")
        return [
            AgentLoopOutput(**{**fields, "metrics": AgentLoopMetrics(**fields["metrics"])})
            for fields in outputs
        ]

    @asynccontextmanager
    async def _engine(self, rollout: str) -> AsyncGenerator[CallSettings, None]:
        """The settings, with the endpoint of one of verl's engines until the block ends."""
        settings, engines, kind = self._settings, self.server_manager, self.rollout_config.name
        if settings.model:
            yield settings
            return
        if kind not in TOKENS_AND_LOGPROBS:
            raise ConfigError(
                f"verl's engine {kind!r} has no chat completions with token ids: use "
                f"{' or '.join(TOKENS_AND_LOGPROBS)}, or give the setting model"
            )
        given = f"engine_kwargs.{kind}.chat_template"
        template = self.config.actor_rollout_ref.model.get("custom_chat_template")
        if template and not OmegaConf.select(self.rollout_config, given):
            raise ConfigError(
                "verl's engines put messages into the template of the model's folder, not into "
                f"custom_chat_template: give it to them, too (actor_rollout_ref.rollout.{given})"
            )
        adapter = self._adapter(kind)
        server, _ = await engines._acquire_server(rollout)
        try:
            yield settings.at_engine(
                kind, f"http://{server}", self._served_name(),
                lora_path=adapter, chat_template_kwargs=self.apply_chat_template_kwargs,
            )  # fmt: skip
        finally:
            engines._release_server(server, request_id=rollout)

    def _adapter(self, kind: str) -> str | None:
        """The name of the adapter that is trained, which verl's own client gives with each request;
        None without one."""
        model = self.config.actor_rollout_ref.model
        lora = model.get("lora") or {}
        if not (model.get("lora_rank") or lora.get("rank")) or lora.get("merge"):
            return None
        if kind != "sglang":
            raise ConfigError(
                "verl's vLLM answers chat completions with the weights below the adapter that is "
                "trained: set actor_rollout_ref.model.lora.merge=true"
            )
        return _SGLANG_ADAPTER

    def _served_name(self) -> str:
        """The model's name at verl's engines."""
        prometheus = self.rollout_config.get("prometheus") or {}
        name = prometheus.get("served_model_name") if prometheus.get("enable") else None
        path = self.config.actor_rollout_ref.model.path
        return str(name).rpartition("/")[2] if name else str(path)
