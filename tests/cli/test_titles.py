"""What lists of processes call the server and its workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.commands import command, run

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="titles are read in /proc"),
]


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


async def test_the_processes_of_a_server_have_titles(tmp_path: Path):
    pytest.importorskip("setproctitle")
    bind = ("--bind", "tcp://127.0.0.1:0", "--workers", "2", "--json")
    async with command(tmp_path, "serve", "arithmetic", *bind) as server:
        address = (await server.event("ready"))["address"]
        assert title(server.pid) == f"trio-envserve server of arithmetic at {address}"
        workers = (await run(tmp_path, "status", address, "--json")).last["per_worker"]
        assert sorted(worker["worker"] for worker in workers) == ["w0-1", "w1-1"]
        for worker in workers:
            if worker["phase"] == "ready":  # one that still starts has no title yet
                name = f"trio-envserve worker {worker['worker']} of {address}"
                assert title(worker["pid"]) == name
        assert "ready" in {worker["phase"] for worker in workers}
