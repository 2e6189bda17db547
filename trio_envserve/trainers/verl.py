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
that advantage, and leaves out a rollout without outputs.  Its older trainer takes exactly
one output, so a rollout is its last segment there, and a failed one, for which that trainer
has no form, is an error.

Importing this module imports verl.  The required fields of an output, as data, are in
``trio_envserve.trainers.forms``.
"""

from __future__ import annotations

import dataclasses
import inspect
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from ..core.errors import ConfigError
from .calls import TOKENS_AND_LOGPROBS, CallSettings, ask_rollout, input_of, plain
from .forms import RolloutNotUsable, verl_outputs

_VERLS_OWN = {"name", "tools", *inspect.signature(AgentLoopBase.__init__).parameters}
"""Arguments that are no settings of ours."""


class AgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl is installed in its own environment
    """An agent loop whose rollouts run on an environment server.

    The other keys of its entry in verl's file of agent loops are the settings of
    :class:`.CallSettings`.  ``model`` is ``verl`` by default: the rollout's turns go to one
    of verl's own engines, chosen by verl's balancer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = {name: kwargs.pop(name) for name in set(kwargs) - _VERLS_OWN}
        super().__init__(*args, **kwargs)
        self._settings = CallSettings.of({"model": "verl", **given}, where="verl's agent loop")

    async def run(
        self, sampling_params: dict[str, Any], **kwargs: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """The outputs of one rollout: a list for the trainer of version 1, which says the
        number of the rollout in its group (``session_id``), else one output."""
        whole_list = "session_id" in kwargs
        group = str(kwargs.get("uid", kwargs.get("index", "")))
        rollout = f"{group}/{kwargs['session_id'] if whole_list else uuid.uuid4().hex[:8]}"
        logprobs = bool(sampling_params.get("logprobs")) and self._settings.logprobs
        row = plain(kwargs)
        row["prompt"] = row.get("raw_prompt")
        async with self._engine(rollout) as settings:
            read = await ask_rollout(
                dataclasses.replace(settings, logprobs=logprobs),
                input_of(row, "extra_info", settings.input),
                group=group,
                rollout=rollout,
                sampling_params=sampling_params,
            )
        outputs = self._made(
            verl_outputs(
                read,
                # Of a balanced step the version that was asked for, if the engine says none.
                step=row.get("global_steps"),
                lengths=None if whole_list else self._lengths(),
            )
        )
        if whole_list:
            return outputs
        if not outputs:
            raise RolloutNotUsable(
                f"{read.masked}; verl's older trainer has no form for a rollout that is left out: "
                "set trainer.use_v1=true"
            )
        return outputs[-1]

    def _lengths(self) -> tuple[int, int]:
        config = self.rollout_config
        return config.prompt_length, config.response_length

    @staticmethod
    def _made(outputs: Sequence[Mapping[str, Any]]) -> list[AgentLoopOutput]:
        return [
            AgentLoopOutput(**{**fields, "metrics": AgentLoopMetrics(**fields["metrics"])})
            for fields in outputs
        ]

    @asynccontextmanager
    async def _engine(self, rollout: str) -> AsyncGenerator[CallSettings, None]:
        """The settings, with the endpoint of one of verl's engines until the block ends."""
        settings, engines = self._settings, self.server_manager
        if settings.model != "verl":
            yield settings
            return
        fields = TOKENS_AND_LOGPROBS.get(self.rollout_config.name)
        if fields is None:
            raise ConfigError(
                f"verl's engine {self.rollout_config.name!r} has no chat completions with token "
                f"ids: use {' or '.join(TOKENS_AND_LOGPROBS)}, or give the setting model"
            )
        server, _ = await engines._acquire_server(rollout)
        try:
            yield dataclasses.replace(
                settings,
                model=f"http://{server}/v1",
                model_name=settings.model_name or self._served_name(),
                sampling={**fields, **settings.sampling},
            )
        finally:
            engines._release_server(server, request_id=rollout)

    def _served_name(self) -> str:
        """The model's name at verl's engines."""
        prometheus = self.rollout_config.get("prometheus") or {}
        name = prometheus.get("served_model_name") if prometheus.get("enable") else None
        path = self.config.actor_rollout_ref.model.path
        return str(name).rpartition("/")[2] if name else str(path)
