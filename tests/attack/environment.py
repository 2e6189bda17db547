"""The environment of the siege: arithmetic, large answers, and a meter on its loop."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, final

import trio

from trio_envserve.envs.arithmetic import Arithmetic
from trio_envserve.envs.interface import Rollout

from .meter import watch_loop

MOST_BYTES = 4_000_000
MOST_S = 60.0
DELTAS = 4
"""Of a large answer by the wire of verifiers, each as large as its reply."""


@final
class Besieged:
    """:class:`~trio_envserve.envs.arithmetic.Arithmetic`, and for an input with ``bytes``
    an answer of that size, after ``sleep_s``.  What has a ``key`` is logged by its start and
    its end.  A run by the wire of verifiers holds its input as JSON, and is answered so."""

    name = "besieged"
    backend = "trio"

    def __init__(self, log_path: str, loop_path: str, size: int, meter: bool = True) -> None:
        self._arithmetic = Arithmetic(size=size, log_path=log_path)
        self._loop_path = loop_path
        self._meter = meter

    def setup(self) -> None:
        """Begin to measure the loop that runs this."""
        if self._meter:
            watch_loop(self._loop_path, f"worker {os.getpid()}")

    async def run_rollout(self, rollout: Rollout) -> Any:
        """Answer at the size asked for, or as arithmetic does."""
        asked = rollout.input
        if isinstance(asked, Mapping) and type(asked.get("run")) is bytes:
            return await self._run_of_verifiers(rollout, asked["run"])
        if isinstance(asked, Mapping) and "key" in asked:
            return await self._arithmetic.run_rollout(rollout)
        if isinstance(asked, Mapping) and type(asked.get("sleep_s")) in (int, float):
            await trio.sleep(min(max(0.0, asked["sleep_s"]), MOST_S))
        if isinstance(asked, Mapping) and type(asked.get("bytes")) is int:
            return {"reward": 0.0, "pad": bytes(min(asked["bytes"], MOST_BYTES))}
        if isinstance(asked, Mapping) and "index" in asked:
            return {"reward": 1.0}
        raise ValueError("an input of the siege has bytes, a key, or an index")

    async def _run_of_verifiers(self, rollout: Rollout, run: bytes) -> Any:
        value = await self.run_rollout(dataclasses.replace(rollout, input=json.loads(run)))
        if "pad" in value:
            deltas = [value["pad"]] * DELTAS
            return {"state": {"deltas": deltas, "reply": value["pad"], "traces": ["t"]}}
        reply = json.dumps(value).encode()
        return {"state": {"deltas": [b"{}"], "reply": reply, "traces": ["t"]}}
