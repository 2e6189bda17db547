"""The environment of the server that is attacked."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, final

import trio

from tests.rig.meter import watch_loop
from trio_envserve.envs.interface import Rollout
from trio_envserve.lab.environment import LoggedEnvironment


@final
class Besieged:
    """An input with a ``request`` is logged by its begin and its end, as that of any rig; others
    are not.  With ``bytes`` an answer has that size, after ``sleep_s``.  A run by the wire of
    verifiers has its input as JSON, and is answered so, in four deltas if it is large."""

    name = "besieged"

    def __init__(self, log: str, meter: bool = True) -> None:
        self._logged = LoggedEnvironment(log)
        self._log = log if meter else ""

    def setup(self) -> None:
        if self._log:
            watch_loop(self._log, "worker")

    async def run_rollout(self, rollout: Rollout) -> Any:
        match rollout.input:
            case {"run": bytes(run)}:
                asked = dataclasses.replace(rollout, input=json.loads(run))
                value = await self.run_rollout(asked)
                pad = value.pop("pad")
                deltas = [pad] * 4 if pad else [b"{}"]
                reply = pad or json.dumps(value).encode()
                return {"state": {"deltas": deltas, "reply": reply, "traces": ["t"]}}
            case {"request": str(request)} if request:
                return await self._logged.run_rollout(rollout)
            case {"bytes": _} | {"index": _} | {"request": _}:
                seconds, size = rollout.input.get("sleep_s", 0.0), rollout.input.get("bytes", 0)
                await trio.sleep(min(max(0.0, seconds), 60.0))
                return {"reward": 1.0, "pad": bytes(min(size, 4_000_000))}
        raise ValueError("an input of an attack has bytes, an index, or a request")
