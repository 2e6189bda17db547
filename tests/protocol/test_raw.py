"""A client and a worker that know nothing but docs/protocol.md, against the real server."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.proc import is_alive
from trio_envserve import (
    Client,
    ConfigError,
    Server,
    ServerLimits,
    ServerStartError,
    WorkerLost,
    open_client,
    open_server,
)
from trio_envserve.envs.recorder import read_run_log

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("name", "allowed"), [("raw_client.py", {"zmq", "cbor2"}), ("raw_worker.py", {"cbor2"})]
)
def test_raw_peers_stand_on_nothing_of_this_package(name: str, allowed: set[str]):
    tree = ast.parse((HERE / name).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").partition(".")[0])
    assert imported <= allowed | sys.stdlib_module_names


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
            counted = server.stats().cache
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
    assert counted.replayed >= 1
    assert counted.conflicts >= 1
    assert counted.spent >= 1


RAW_WORKER = [sys.executable, str(HERE / "raw_worker.py")]


@asynccontextmanager
async def raw_pool(
    environment: str | None = None, workers: int = 1, args: dict[str, Any] | None = None,
    **limits: Any,
) -> AsyncIterator[tuple[Server, Client]]:  # fmt: skip
    """A server whose workers are raw, and a client of it."""
    quick: dict[str, Any] = {
        "beat_s": 0.2,
        "heartbeat_s": 0.1,
        "restart_pause_s": 0.02,
        "reap_settle_s": 0.05,
    }
    with trio.fail_after(180):
        async with (
            open_server(
                environment, args=args, workers=workers, worker_command=RAW_WORKER,
                limits=ServerLimits(**{**quick, **limits}),
            ) as server,
            open_client(server.address) as client,
        ):  # fmt: skip
            yield server, client


@pytest.mark.real
async def test_a_raw_worker_serves_a_real_server():
    async with raw_pool() as (server, client):
        await server.wait_ready()
        answers = [await client.run_rollout({"i": i}) for i in range(3)]
        stats = server.stats()
    assert answers == [{"echo": {"i": i}, "number": i} for i in range(3)]
    assert stats.environment == "raw"
    assert stats.worker_restarts == 0
    assert (stats.malformed, stats.fenced, stats.strays) == (0, 0, 0)


@pytest.mark.real
@pytest.mark.parametrize("environment", [None, "whatever it is called"])
async def test_a_command_is_told_what_it_is_to_host(environment: str | None):
    """The name is for the command alone, and so are arguments larger than 8 MiB."""
    args = {"level": 3, "text": "x" * 9_000_000}
    async with raw_pool(environment, args=args) as (server, client):
        told = (await client.run_rollout({"do": "tell"}))["echo"]
        pid = server.stats().per_worker[0].pid
    assert told["worker"] == "w0-1"
    assert told["environment"] == environment
    assert told["args"] == args
    assert told["pid"] == told["group"] == pid  # what was started has become the command
    assert told["pipe"] is True  # Python's own doing, which it did for itself
    assert told["lock"].endswith(".epochs")


@pytest.mark.real
async def test_a_raw_worker_is_told_when_a_rollout_is_late():
    async with raw_pool() as (_, client):
        by_deadline = await client.run_rollout("a", timeout_s=100, grace_s=5)
        by_limit = await client.run_rollout("b", execution_s=50, grace_s=5)
        assert "late_s" not in await client.run_rollout("c", timeout_s=100)
    assert by_limit["late_s"] == 50.0
    assert 0.0 < by_deadline["late_s"] <= 100.0


@pytest.mark.real
async def test_a_worker_can_only_speak_for_itself():
    """A message counts as the word of the worker by whose stream it came."""
    async with raw_pool(workers=2) as (server, client):
        while server.status().ready < 2:  # noqa: ASYNC110  # the server's own
            await trio.sleep(0.01)
        known = [life.incarnation for life in server._router.pool.lives.values()]
        asked = {"do": "speak as others", "incarnations": [*known, b"x" * 16]}
        assert (await client.outcome(asked)).error is None
        stats = server.stats()
    assert (stats.fenced, stats.differences) == (2, 0)
    assert not any("forged" in worker.more for worker in stats.per_worker)


@pytest.mark.real
@pytest.mark.parametrize("what", ["break the framing", "close the link"])
async def test_a_worker_whose_stream_has_ended_is_replaced(
    what: str, caplog: pytest.LogCaptureFixture
):
    async with raw_pool(stop_s=0.3) as (_, client):
        outcome = await client.outcome({"do": what}, rerun=False)
        assert type(outcome.error) is WorkerLost
        assert await client.run_rollout("next") == {"echo": "next", "number": 0}
    said = {"break the framing":
            "sent bytes on its link that are no message (a frame with the flags",
            "close the link": "it closed its link and did not exit"}  # fmt: skip
    assert said[what] in str(outcome.error)


@pytest.mark.real
@pytest.mark.parametrize(
    "line", ['{"memory_bytes": -1}\n', "x" * 200_000 + "\n"], ids=["a lie", "long"]
)
async def test_signs_of_life_that_are_none_end_no_server(
    line: str, caplog: pytest.LogCaptureFixture
):
    async with raw_pool() as (server, client):
        sent = 0
        while "sends a malformed heartbeat" not in caplog.text:
            # One that comes together with a good one behind it is passed over.
            await client.run_rollout({"do": "send signs", "line": line})
            sent += 1
        assert await client.run_rollout("next") == {"echo": "next", "number": sent}
        assert server.stats().worker_restarts == 0


@pytest.mark.real
async def test_a_worker_without_signs_of_life_is_killed():
    async with raw_pool(args={"silent": True}, silence_report_s=0.5, silence_kill_s=1.0) as (
        server, _,
    ):  # fmt: skip
        while not server.stats().worker_restarts:
            await trio.sleep(0.05)


@pytest.mark.real
@pytest.mark.parametrize(
    ("command", "args", "why"),
    [
        (RAW_WORKER, {"broken": True}, "there is no data"),
        (["there-is-no-such-program"], {}, "exited with status 127: its command could not be run"),
        ([sys.executable, "-c", "raise SystemExit(5)"], {}, "it exited with status 5"),
    ],
)
async def test_a_command_that_is_no_worker_is_told_of(
    command: list[str], args: dict[str, Any], why: str
):
    limits = ServerLimits(restart_pause_s=0.02)
    with trio.fail_after(180):
        async with open_server(worker_command=command, args=args, limits=limits) as server:
            with pytest.raises(ServerStartError, match=why):
                await server.wait_ready()


@pytest.mark.real
async def test_a_foreign_worker_dies_with_its_server():
    """Guard, process group and death watch are those of every worker."""
    program = "import sys; from tests.protocol.test_raw import raw_server; raw_server()"
    with trio.fail_after(180):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=HERE.parent.parent
        )
        assert process.stdout is not None
        try:
            worker = int(await process.stdout.receive_some())
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            while is_alive(worker):
                await trio.sleep(0.01)
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                await process.stdout.aclose()


def raw_server() -> None:
    """A server in a process of its own, which prints the pid of its raw worker."""

    async def main() -> None:
        async with open_server(worker_command=[*RAW_WORKER]) as server:
            await server.wait_ready()
            print(server.stats().per_worker[0].pid, flush=True)
            await trio.sleep_forever()

    trio.run(main)


@pytest.mark.parametrize(
    "command", ["", [], "'unfinished", [""], ["a", 3], ["a\0b"], b"bytes", 7, [b"x"]]
)
async def test_a_worker_command_that_is_none_is_refused(command: Any):
    with pytest.raises(ConfigError, match="worker_command"):
        await open_server(worker_command=command).__aenter__()


async def test_a_command_needs_workers():
    with pytest.raises(ConfigError, match="workers=1 or more"):
        await open_server(worker_command="x", workers=0).__aenter__()
