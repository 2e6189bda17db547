"""The soak itself: it passes, and with a broken server it fails."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
import trio

from tests.cli.commands import ROOT, check_nothing_left

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="finds leftovers in /proc"),
]

HERE = Path(__file__).parent
LIMIT_S = 1800.0
"""Only a hang takes so long."""


async def soak(folder, *arguments):
    """Run it to its end; its figures."""
    command = [sys.executable, "-m", "trio_envserve", "soak", "--json", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            command, cwd=folder, env=environ, check=False, capture_stdout=True,
            capture_stderr=True,
        )  # fmt: skip
    said = done.stderr.decode()
    assert "Traceback" not in said
    await check_nothing_left(folder)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), said


@pytest.mark.parametrize("host", [(), ("--remote-host",)], ids=["here", "on a host"])
@pytest.mark.parametrize(
    "minutes",
    [pytest.param("0.3", marks=pytest.mark.slow), pytest.param("10", marks=pytest.mark.soak)],
)
async def test_nothing_runs_twice_nothing_is_lost_and_all_is_given_back(tmp_path, minutes, host):
    code, figures, said = await soak(tmp_path, "--minutes", minutes, *host)
    assert code == 0, (figures, said)
    assert figures["ok"] is True
    assert figures["started_twice"] == figures["lost"] == figures["untrue_errors"] == 0
    assert figures["right"] > 100
    assert min(figures["kills"].values()) > 0
    assert min(figures["cuts"].values()) > 0
    assert figures["growth_kib_per_10000"]["router"] < 1024
    assert figures["growth_kib_per_10000"]["client"] < 1024
    of_host = {"host", "keeper of host", "guard of host"} if host else set()
    assert set(figures["samples"]) == {"soak", "server", "client", "worker", "guard"} | of_host
    assert figures["left_over"] == {}


@pytest.mark.soak
async def test_with_a_server_that_asks_for_no_consent_it_fails(tmp_path):
    server = shlex.join([sys.executable, str(HERE / "broken_server.py")])
    code, figures, _ = await soak(tmp_path, "--minutes", "0.3", "--server-command", server)
    assert code == 1
    assert figures["ok"] is False
    assert figures["finished"] is True
    assert figures["started_twice"] > 0
    assert any("second run" in problem for problem in figures["problems"])
