"""The environment: each execution writes its begin and its end to a file of its key.

At its begin it looks for earlier executions of that key that have not ended: if the process
of one is still there, whatever state it is in, two are live.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import trio

from ...envs import Rollout


class Apart:
    """Sleeps for as long as its input says.  ``directory``: where the files are."""

    rerun = False

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """One execution."""
        path = self._directory / f"{rollout.input['key']}.runs"
        pid = os.getpid()
        began = read_runs(path)
        ended = [run["ended"] for run in began if "ended" in run]
        live = [
            run["began"] for run in began
            if "began" in run and run["began"] not in ended and is_live(run["pid"], run["ticks"])
        ]  # fmt: skip
        number = sum("began" in run for run in began)
        _append(path, {"began": number, "pid": pid, "ticks": ticks_of(pid), "live": live})
        try:
            await trio.sleep(rollout.input["seconds"])
        finally:
            _append(path, {"ended": number})
        return {"reward": 1.0, "key": rollout.input["key"]}


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The lines that were written about a key; a line that was cut off by a death is none."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="ascii").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def ticks_of(pid: int) -> int:
    """When a process started: with its id, this is its name.  -1 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # it has been reaped
        return -1
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])


def is_live(pid: int, ticks: int) -> bool:
    """Whether that process is still there, stopped or not."""
    return ticks_of(pid) == ticks


def _append(path: Path, run: dict[str, Any]) -> None:
    # In one write: so a line is whole, or is not there.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(run).encode() + b"\n")
    finally:
        os.close(descriptor)
