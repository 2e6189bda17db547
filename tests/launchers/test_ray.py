"""``up ray`` on a cluster of nodes that die and come, and the commands of the page on
launchers as a user gives them.  Needs Ray: ``nox -s ray``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import ROOT, command
from tests.real.support import ACTOR, PATIENCE_S, QUICK
from trio_envserve import (
    Client,
    MayHaveRun,
    Server,
    ServerLimits,
    WorkerRange,
    open_client,
    open_server,
)
from trio_envserve.cli.up import Keys
from trio_envserve.core.errors import CallError
from trio_envserve.launchers.hosts import keep_hosts

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402  # it is there

from trio_envserve.launchers.ray import RayHosts, connect  # noqa: E402  # it needs Ray

pytestmark = [pytest.mark.slow, pytest.mark.real]

ROLLOUTS = 1000
AT_ONCE = 24
CPUS = 2


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch):
    """A head without processors, and three nodes."""
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else a busy machine starves the hosts
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [made.add_node(num_cpus=CPUS) for _ in range(3)]
    made.wait_for_nodes()
    made.workers = nodes
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@asynccontextmanager
async def served(judge, cluster: Any, hosts: WorkerRange) -> AsyncIterator[tuple[Server, Client]]:
    """What ``up ray`` opens, in this process."""
    keys = Keys.new()
    where = await trio.to_thread.run_sync(connect, cluster.address)
    limits = ServerLimits(**{**QUICK, "start_s": PATIENCE_S, "worker_capacity": 8,
                             "grow_after_s": 1.0, "shrink_after_s": 5.0})  # fmt: skip
    serves: dict[str, Any] = {"environment": ACTOR, "args": {"directory": str(judge.directory)}}
    async with (
        open_server(
            **serves, workers=0, hosts_bind=f"tcp://{where}:0", curve=keys.of_server,
            limits=limits, fence_s=20.0,
        ) as server,
        open_client(server.address, curve=keys.of_client) as client,
        trio.open_nursery() as nursery,
    ):  # fmt: skip
        options = {"address": server.hosts_address, "workers": 1, "curve": keys.of_host}
        start = RayHosts(options, {"CPU": CPUS}).start
        how: dict[str, Any] = {"workers": 1, "limits": limits, "name": "ray"}
        nursery.start_soon(lambda: keep_hosts(server, start, hosts, **how))
        yield server, client
        nursery.cancel_scope.cancel()


async def test_a_node_dies_and_one_is_added_and_nothing_runs_twice_without_consent(judge, cluster):
    """Half of the callers consent to a second run."""
    outcomes: dict[str, CallError | None] = {}
    numbers = iter(range(ROLLOUTS))

    async def call(client: Client) -> None:
        for number in numbers:
            key = f"r{number}"
            asked = {"key": key, "do": [["sleep", 0.05]]}
            outcome = await client.outcome(asked, rerun=number % 2 == 1)
            outcomes[key] = outcome.error

    async def fail() -> None:
        while len(outcomes) < ROLLOUTS // 3:
            await trio.sleep(0.05)
        await trio.to_thread.run_sync(cluster.remove_node, cluster.workers[0], False)
        # It wants the main thread, so the server sleeps for some seconds.
        cluster.add_node(num_cpus=CPUS)

    with trio.fail_after(2 * PATIENCE_S):
        async with served(judge, cluster, WorkerRange(3, 3)) as (server, client):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                for _ in range(AT_ONCE):
                    nursery.start_soon(call, client)
            while server.status().ready < 3:  # another host has taken the place
                await trio.sleep(0.1)
    assert len(outcomes) == ROLLOUTS
    starts = Counter(record["key"] for record in judge.records("start"))
    judge.assert_one_at_a_time()
    twice = {key for key, count in starts.items() if count > 1}
    assert all(int(key[1:]) % 2 for key in twice)
    failed = {key: error for key, error in outcomes.items() if error is not None}
    # Dispatched to the node that died, and not begun: that counts as an execution.
    assert outcomes.keys() - starts.keys() <= failed.keys()
    assert all(isinstance(error, MayHaveRun) for error in failed.values()), failed
    assert not any(int(key[1:]) % 2 for key in failed)
    assert twice or failed  # the node ran something when it died


async def test_hosts_are_asked_for_and_given_back(judge, cluster):
    """From one to three and back; nothing is lost, and nothing runs twice."""
    with trio.fail_after(2 * PATIENCE_S):
        async with served(judge, cluster, WorkerRange(1, 3)) as (server, client):
            while server.status().ready < 1:
                await trio.sleep(0.1)
            keys = [f"k{n}" for n in range(3 * 8)]

            async def call(key: str) -> None:
                (await client.outcome({"key": key, "do": [["wait", "go"]]})).unwrap()

            async with trio.open_nursery() as nursery:
                for key in keys:
                    nursery.start_soon(call, key)
                while server.stats().running < len(keys):
                    await trio.sleep(0.1)
                assert server.status().ready == 3
                judge.put("go")
            while len(server.stats().per_worker) > 1:
                await trio.sleep(0.1)
    judge.assert_exactly_once(*keys)


async def test_the_commands_of_the_page_serve_on_a_cluster_of_three_nodes(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    at = ["--bind", "tcp://127.0.0.1:0", "--ray-address", cluster.address, "--json"]
    size = ["--hosts", "2..3", "--workers", "2", "--resource", "CPU=2"]
    async with command(tmp_path, "up", "ray", "arithmetic", *size, *at) as up:
        serving = await up.event("serving")
        await up.event("ready")
        asked = ["--address", serving["address"], "--curve", "up.key", "--model", "oracle"]
        async with command(
            tmp_path, "eval", "arithmetic", "-n", "1000", *asked, "--json"
        ) as evaluating:
            done = await evaluating.wait()
        assert done.code == 0, done.err
        assert (done.last["results"], done.last["mean_reward"]) == (1000, 1.0)
        up.signal(signal.SIGTERM)
        assert (await up.wait()).code == 0
    assert not (tmp_path / "up.key").exists()


@pytest.mark.parametrize("name", ["evaluate.py", "router.py"])
def test_an_example_evaluates_inside_of_ray(name):
    path = Path(ROOT, "examples", "ray", name)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "100 rollouts, mean reward 1" in done.stdout
