"""Servers in processes of their own: broken on purpose, or to be killed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from trio_envserve.lab.processes import Process, program


@asynccontextmanager
async def served(
    folder: Path, *, mutant: str = "", limits: dict[str, Any], bind: str = "tcp://127.0.0.1:0"
) -> AsyncIterator[str]:
    """The address of a server in a process of its own, which is killed at the end.

    ``mutant`` is what is broken in it, by name; none if empty."""
    options = {
        "environment": "trio_envserve.lab.conformance.environment:Conformance",
        "args": {"directory": str(folder / "runs")}, "bind": bind, "workers": 1, "limits": limits,
        "wire": {"message_bytes": 1 << 20}, "mutant": mutant,
    }  # fmt: skip
    # A mutant need not end by itself; its workers end with it.
    command = program("tests.rig.server", options)
    async with Process(command, "server", ready="serving", log=folder / "log", end_s=0) as server:
        yield server.address
