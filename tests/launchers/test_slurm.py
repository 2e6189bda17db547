"""``up slurm``: what is submitted, and with a Slurm of one node what becomes of it."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import pytest
import trio

from tests.cli.commands import ROOT, command, run
from tests.launchers.conftest import jobs
from tests.real.support import ACTOR, PATIENCE_S, QUICK
from trio_envserve import ConfigError, ServerLimits, WorkerRange, open_client, open_server
from trio_envserve.cli.up import Keys
from trio_envserve.launchers import slurm as launcher
from trio_envserve.launchers.hosts import keep_hosts
from trio_envserve.launchers.slurm import SlurmHosts, script
from trio_envserve.net.keypairs import write_whole


def test_a_job_joins_is_signalled_before_its_wall_time_and_is_not_requeued():
    text = script(
        ["tcp://h:1", "arithmetic", "--curve", "/a b/host.key"], name="h-1",
        folder=Path("/a b"), leave_s=120, log="/a b/h-1.log",
    )  # fmt: skip
    lines = text.splitlines()
    assert lines[0] == "#!/bin/sh"
    assert "#SBATCH --signal=B:TERM@120" in lines
    assert "#SBATCH --nodes=1 --ntasks=1 --no-requeue" in lines
    assert "#SBATCH --chdir='/a b'" in lines
    assert lines[-1].startswith("exec ")
    assert lines[-1].endswith(" join tcp://h:1 arithmetic --curve '/a b/host.key' --name h-1")


def test_a_machine_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="needs the commands of Slurm: no sbatch"):
        launcher.check_installed()


# -- with a Slurm ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.real
async def test_a_host_leaves_before_its_wall_time_and_another_one_takes_its_place(
    judge, slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A job may run for a minute; its host leaves after some seconds of it, ends what it runs,
    and nothing is lost or runs twice."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    keys = Keys.new()
    key = tmp_path / "host.key"
    write_whole(key, keys.of_host.to_text(), 0o600)
    limits = ServerLimits(**{**QUICK, "start_s": PATIENCE_S, "drain_s": 60.0})
    numbers = iter(range(100_000))
    done: list[str] = []

    async def call(client, left: trio.Event) -> None:
        while not left.is_set():
            name = f"k{next(numbers)}"
            value = (await client.outcome({"key": name, "do": [["sleep", 0.2]]})).unwrap()
            done.append(value["key"])

    with trio.fail_after(2 * PATIENCE_S):
        async with (
            open_server(
                ACTOR, args={"directory": str(judge.directory)}, workers=0,
                hosts_bind="tcp://127.0.0.1:0", curve=keys.of_server, limits=limits,
            ) as server,
            open_client(server.address, curve=keys.of_client) as client,
            trio.open_nursery() as nursery,
        ):  # fmt: skip
            join = [server.hosts_address, "--workers", "1", "--curve", str(key)]
            # Slurm may signal up to a minute too early, and it does.
            hosts = SlurmHosts(join, ["--time=1"], folder=tmp_path, leave_s=20)
            assert "to start at" in await hosts.test()

            async def keep() -> None:
                await keep_hosts(
                    server, hosts.start, WorkerRange(1, 1), workers=1, limits=limits, name="s"
                )

            nursery.start_soon(keep)
            second = trio.Event()
            async with trio.open_nursery() as callers:
                for _ in range(4):
                    callers.start_soon(call, client, second)
                while len({record["pid"] for record in judge.records("start")}) < 2:
                    await trio.sleep(0.5)
                second.set()
            nursery.cancel_scope.cancel()
        while jobs():
            await trio.sleep(0.5)
    judge.assert_exactly_once(*done)
    log = (tmp_path / "s-1.log").read_text()
    assert "no worker of this host is left" in log


def of_the_page() -> list[str]:
    """The command of the page on launchers, for one small host here."""
    page = ROOT.joinpath("docs", "launchers.md").read_text(encoding="utf-8")
    block = re.search(r"^trio-envserve (up slurm .*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    words = shlex.split(block[1].replace("\\\n", " "))
    smaller = {"4": "1", "16": "1", "tcp://login1:5556": "tcp://127.0.0.1:0"}
    assert smaller.keys() <= {*words}
    return [smaller.get(word, word) for word in words]


@pytest.mark.slow
@pytest.mark.real
async def test_the_command_of_the_page_serves_on_a_job_and_leaves_neither_job_nor_key(
    slurm, tmp_path: Path
):
    with trio.fail_after(2 * PATIENCE_S):
        async with command(tmp_path, *of_the_page(), "--bind", "tcp://127.0.0.1:0", "--json") as up:
            serving = await up.event("serving")
            await up.event("ready")
            key = tmp_path / "up.key"
            assert key.stat().st_mode & 0o777 == 0o600
            asked = ["--address", serving["address"], "--curve", "up.key", "--model", "oracle"]
            done = await run(tmp_path, "eval", "arithmetic", "-n", "5", *asked, "--json")
            assert done.code == 0
            assert jobs() == 1
            up.signal(signal.SIGTERM)
            assert (await up.wait()).code == 0
        while jobs():
            await trio.sleep(0.5)
    assert not key.exists()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".envserve-")]
