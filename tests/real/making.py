"""An environment whose rollouts make a folder, and processes that stay."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from tests.real.environments import Stage
from trio_envserve import Rollout

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
    """Makes, tells in the file ``KEY.made`` what, and ends as its input says."""

    def __init__(self, directory: str) -> None:
        self.stage = Stage(directory)

    async def run_rollout(self, rollout: Rollout) -> Any:
        key, then = rollout.input["key"], rollout.input["value"]
        (rollout.folder / "file").write_text("there")
        async with rollout.process([sys.executable, "-c", FAMILY]) as process:
            pids = [int(await process.receive_line()) for _ in range(4)]
            made = {
                "folder": str(rollout.folder), "pids": pids,
                "worker": os.getpid(), "guard": os.getppid(),
            }  # fmt: skip
            self.stage.put(f"{key}.made", json.dumps(made))
            if then == "raises":
                raise RuntimeError("it was told to")
            if then == "waits":
                await trio.sleep_forever()
        return {"key": key}


def create(name: str) -> None:
    """Make a folder that only this host has."""
    Path(os.environ["HOST_FOLDERS"], name).mkdir()


def destroy(name: str, handle: None) -> None:
    """Remove it, if it is there."""
    with suppress(FileNotFoundError):
        Path(os.environ["HOST_FOLDERS"], name).rmdir()


async def held_here(rollout: Rollout) -> None:
    """Hold a folder of this host, and wait."""
    async with rollout.resource("folder", create, destroy, here=True):
        await trio.sleep_forever()
