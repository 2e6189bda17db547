"""Environments whose rollouts make folders, sandboxes, and processes that stay."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from tests.real.environments import Stage
from trio_envserve import Rollout, Sandboxed
from trio_envserve.sandboxes import bubblewrap

BOXES = f"trio-envserve-sandboxes-{os.geteuid()}"
"""Folder of the folders of all sandboxes, in that for temporary files."""

FAMILY = """
import os, sys, time
for settle in ([], [os.setsid], [os.setpgrp]):
    if os.fork() == 0:
        for each in settle:
            each()
        if os.fork():
            os._exit(0)
        break
sys.stdout.write(f"{os.getpid()}\\n")
sys.stdout.flush()
time.sleep(120)
"""
"""The command, and three grandchildren whose parents have ended, in a session and in a group of
their own; each says its process id."""


class Making:
    """Makes a folder and processes, tells in the file ``KEY.made`` what, and ends as its input
    says."""

    def __init__(self, directory: str) -> None:
        self.stage = Stage(directory)

    @asynccontextmanager
    async def made(self, rollout: Rollout) -> AsyncIterator[tuple[Path, list[int]]]:
        """A folder, and the ids of processes."""
        (rollout.folder / "file").write_text("there")
        async with rollout.process([sys.executable, "-c", FAMILY]) as process:
            yield rollout.folder, [int(await process.receive_line()) for _ in range(4)]

    async def run_rollout(self, rollout: Rollout) -> Any:
        key, then = rollout.input["key"], rollout.input["value"]
        async with self.made(rollout) as (folder, pids):
            made = {
                "folder": str(folder), "pids": pids, "worker": os.getpid(), "guard": os.getppid(),
            }  # fmt: skip
            self.stage.put(f"{key}.made", json.dumps(made))
            if then == "raises":
                raise RuntimeError("it was told to")
            if then == "waits":
                await trio.sleep_forever()
        return {"key": key}


class Boxing(Making):
    """The same of a sandbox, in which a command may run."""

    @asynccontextmanager
    async def made(self, rollout: Rollout) -> AsyncIterator[tuple[Path, list[int]]]:
        async with rollout.sandbox("bubblewrap", processes=16) as sandbox:
            folder = Path(tempfile.gettempdir(), BOXES, sandbox.name)
            yield folder, [pid for pid, _ in bubblewrap.processes_of(sandbox.name)]
            command = ["sleep", "120"] if rollout.input["value"] == "runs" else ["true"]
            assert (await sandbox.exec(command)).returncode == 0


def create(name: str) -> None:
    """Make a folder that only this host has."""
    Path(os.environ["HOST_FOLDERS"], name).mkdir()


def destroy(name: str, handle: None) -> None:
    """Remove it, if it is there."""
    with suppress(FileNotFoundError):
        Path(os.environ["HOST_FOLDERS"], name).rmdir()


class HeldHere:
    """Holds a folder of this host, and waits."""

    def __init__(self, directory: str) -> None:
        pass

    async def run_rollout(self, rollout: Rollout) -> None:
        async with rollout.resource("folder", create, destroy, here=True):
            await trio.sleep_forever()


# -- sandboxes on every backend, and of classes -------------------------------------------


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
