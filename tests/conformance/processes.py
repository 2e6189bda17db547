"""Servers in processes of their own: broken on purpose, or to be killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

PROGRAM = Path(__file__).with_name("mutant_server.py")
ROOT = PROGRAM.parent.parent.parent


@asynccontextmanager
async def served(
    folder: Path, *, mutant: str = "", limits: dict[str, Any], bind: str = "tcp://127.0.0.1:0"
) -> AsyncIterator[str]:
    """The address of a server in a process of its own, which is killed at the end.

    ``mutant`` is what is broken in it, by name; none if empty."""
    options = {
        "mutant": mutant, "directory": str(folder / "runs"), "limits": limits, "bind": bind,
        "wire": {"message_bytes": 1 << 20},
    }  # fmt: skip
    command = [sys.executable, str(PROGRAM), json.dumps(options)]
    with (folder / "log").open("ab") as log:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with process.stdin, process.stdout:
            said = b""
            while not said.endswith(b"\n"):
                more = await process.stdout.receive_some()
                assert more, (folder / "log").read_text()
                said += more
            yield json.loads(said)["address"]
    finally:
        # A mutant need not end by itself; its workers end with it.
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
