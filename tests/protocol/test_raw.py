"""A client and a worker that know nothing but docs/protocol.md, against the real server."""

from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve import open_client, open_server
from trio_envserve.envs.recorder import read_run_log
from trio_envserve.server import workers
from trio_envserve.server.processes import WorkerProcess
from trio_envserve.worker.config import WorkerConfig

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["raw_client.py", "raw_worker.py"])
def test_raw_peers_stand_on_nothing_of_this_package(name: str):
    tree = ast.parse((HERE / name).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").partition(".")[0])
    assert imported <= {"zmq", "cbor2"} | sys.stdlib_module_names


async def run_raw_client(address: str) -> dict[str, Any]:
    with trio.fail_after(120):
        done = await trio.run_process(
            [sys.executable, str(HERE / "raw_client.py"), address], capture_stdout=True
        )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.real
@pytest.mark.parametrize("processes", [0, 1])
async def test_a_raw_client_is_served_replayed_and_refused(tmp_path: Path, processes: int):
    log = tmp_path / "runs"
    with trio.fail_after(180):
        async with open_server(
            "arithmetic", args={"log_path": str(log)}, workers=processes
        ) as server:
            said = await run_raw_client(server.address)
            counted = server.stats()["cache"]
    assert said["status"] == 0
    assert said["result"]["reward"] == 1.0
    assert list(said["result"]["state"]) == ["answers"]
    assert said["executions"] == 1
    assert said["replayed"] is True
    assert said["conflict"] == "conflict"
    assert said["gone"] is False
    assert said["missing"] == []
    assert said["finished"] == "finished"
    # What ran is known to the environment alone.
    assert [line["event"] for line in read_run_log(log)] == ["start", "end"]
    assert counted["replayed"] >= 1
    assert counted["conflicts"] >= 1
    assert counted["spent"] >= 1


def start_raw_worker(config: WorkerConfig, **_: Any) -> WorkerProcess:
    """In the place of the server's own: only how a process is started is replaced,
    and the private channel, on which a raw worker says nothing."""
    ours, theirs = socket.socketpair()
    program = [sys.executable, str(HERE / "raw_worker.py")]
    process = subprocess.Popen(
        [*program, config.address, config.worker, config.incarnation], process_group=0
    )
    theirs.close()
    return WorkerProcess(process, ours)


@pytest.mark.real
async def test_a_raw_worker_serves_a_real_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "start_process", start_raw_worker)
    with trio.fail_after(180):
        async with open_server("arithmetic", workers=1) as server:
            await server.wait_ready()
            async with open_client(server.address) as client:
                answers = [await client.run_rollout({"i": i}) for i in range(3)]
            stats = server.stats()
    assert answers == [{"echo": {"i": i}, "number": i} for i in range(3)]
    assert stats["environment"] == "raw"
    assert stats["worker_restarts"] == 0
    assert (stats["malformed"], stats["fenced"], stats["strays"]) == (0, 0, 0)
