"""An environment whose results say by which execution they were made.

So a second execution cannot give the result of the first: who is told two things of one
key can tell.  Each start and end is in the environment's own log, with the key, the process
and the execution.
"""

from __future__ import annotations

import secrets
from typing import Any, final

import trio

from ...envs.interface import Rollout
from ...envs.recorder import RunLog
from ...envs.witness import Witness


@final
class Executions:
    """An input is ``{"key": str, "duration_s": float, "pad": int}``; a result has ``key``,
    ``execution`` and so many bytes."""

    name = "executions"

    def __init__(self, log_path: str) -> None:
        self._log = RunLog(log_path)
        self._witness: Witness | None = None

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """Write that it begins, last as long as the input says, write that it ends."""
        key, execution = rollout.input["key"], secrets.token_hex(8)
        if self._witness is None:
            self._witness = Witness(f"{self._log.path}.lives")
        predecessor = self._witness.begin(key)
        with self._log.record(
            rollout, key=key, process=self._witness.process, predecessor=predecessor,
            execution=execution,
        ):  # fmt: skip
            await trio.sleep(rollout.input["duration_s"])
        return {
            "key": key,
            "execution": execution,
            "pad": secrets.token_bytes(rollout.input["pad"]),
        }
