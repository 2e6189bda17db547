"""What the page on launchers says of Ray, as a user does it.  Needs Ray: ``nox -s ray``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, command

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402  # it is there

pytestmark = [pytest.mark.slow, pytest.mark.real]


async def test_the_commands_of_the_page_serve_on_a_cluster_of_three_nodes(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else a busy machine starves the hosts
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
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
    finally:
        cluster.shutdown()


@pytest.mark.parametrize("name", ["evaluate.py", "router.py"])
def test_an_example_evaluates_inside_of_ray(name):
    path = Path(ROOT, "examples", "ray", name)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "100 rollouts, mean reward 1" in done.stdout
