"""The environment of the siege: arithmetic, large answers, and a meter on its loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, final

from ...envs.arithmetic import Arithmetic
from ...envs.interface import Rollout
from .meter import watch_loop

MOST_BYTES = 4_000_000


@final
class Besieged:
    """:class:`~trio_envserve.envs.arithmetic.Arithmetic`, and for an input with ``bytes``
    an answer of that size.  What has a ``key`` is logged by its start and its end."""

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
        if isinstance(asked, Mapping) and type(asked.get("bytes")) is int:
            return {"reward": 0.0, "pad": bytes(min(asked["bytes"], MOST_BYTES))}
        if isinstance(asked, Mapping) and "key" in asked:
            return await self._arithmetic.run_rollout(rollout)
        if isinstance(asked, Mapping) and "index" in asked:
            return {"reward": 1.0}
        raise ValueError("an input of the siege has bytes, a key, or an index")
