"""Environments whose rollouts have sandboxes."""

from __future__ import annotations

import json
import os
from typing import Any

import trio

from tests.real.environments import Stage
from trio_envserve import Rollout, Sandboxed
from trio_envserve.sandboxes import bubblewrap


class Boxing:
    """Opens a sandbox, tells in the file ``KEY.made`` what it is, and does what its input says."""

    def __init__(self, directory: str) -> None:
        self.stage = Stage(directory)

    async def run_rollout(self, rollout: Rollout) -> Any:
        key, then = rollout.input["key"], rollout.input["value"]
        async with rollout.sandbox("bubblewrap", processes=16) as sandbox:
            pids = [pid for pid, _ in bubblewrap.processes_of(sandbox.name)]
            made = {"name": sandbox.name, "pids": pids, "worker": os.getpid()}
            self.stage.put(f"{key}.made", json.dumps(made))
            if then == "raises":
                raise RuntimeError("it was told to")
            if then == "waits":
                await trio.sleep_forever()
            done = await sandbox.exec(["sleep", "120"] if then == "runs" else ["echo", "hi"])
        return {"key": key, "told": done.text}


class AsyncioBoxing:
    """Writes and reads a file on asyncio."""

    backend = "asyncio"

    async def run_rollout(self, rollout: Rollout) -> Any:
        async with rollout.sandbox("bubblewrap", files={"a": "of asyncio"}) as sandbox:
            return {"told": (await sandbox.read("a")).decode()}


def in_a_thread(rollout: Rollout) -> Any:
    """The same in a thread."""
    with rollout.sandbox("bubblewrap") as sandbox:
        sandbox.write_sync("a", "of a thread")
        if rollout.input == "waits":
            sandbox.exec_sync(["sleep", "120"])
        return {"told": sandbox.read_sync("a").decode()}


class Shell:
    """A class with tools, plain and on the loop."""

    sandbox: Any = Sandboxed("bubblewrap", env={"LAND": "there"}, files={"begin": "1\n"})

    def reset(self, **_: Any) -> str:
        self.sandbox.write_sync("number", self.sandbox.read_sync("begin"))
        return "Add one."

    def add(self) -> str:
        """Add one."""
        line = 'echo $(($(cat number) + 1)) > number; echo "$LAND"'
        told: str = self.sandbox.exec_sync(["sh", "-c", line]).text
        return told

    async def look(self) -> str:
        """Look at the number."""
        told: bytes = await self.sandbox.read("number")
        return told.decode()

    def get_reward(self) -> float:
        return float(self.sandbox.read_sync("number"))

    def oracle(self) -> list[Any]:
        return [{"name": "add", "arguments": {}}, {"name": "look", "arguments": {}}, "Done."]

    def close(self) -> None:
        assert self.sandbox.exec_sync(["true"]).returncode == 0


class AsyncioShell:
    """A class with tools on asyncio."""

    backend = "asyncio"
    sandbox: Any = "bubblewrap"

    async def reset(self, **_: Any) -> str:
        await self.sandbox.write("number", "5")
        return "Nothing."

    async def get_reward(self) -> float:
        return float(await self.sandbox.read("number"))

    def oracle(self) -> list[Any]:
        return ["Done."]


class Imaged:
    """A class whose provider cannot make its sandbox."""

    sandbox: Any = Sandboxed("bubblewrap", image="python:3.12")

    def reset(self, **_: Any) -> str:
        return "It does not begin."
