"""The kills themselves: nothing gives way, and with a server that forgets something does."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import trio

from tests.cli.commands import ROOT, check_nothing_left
from trio_envserve.lab.kills.judge import judge
from trio_envserve.lab.kills.run import Kills, Options

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc"),
]

HERE = Path(__file__).parent
LIMIT_S = 1800.0
"""Only a hang takes so long."""


async def test_what_was_told_is_told_again_and_nothing_begins_without_proof(tmp_path: Path):
    command = [sys.executable, "-m", "trio_envserve.lab.kills.run", "--kills", "20", "--keys", "80",
               "--patient", "--keep", str(tmp_path)]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            command, env=environ, check=False, capture_stdout=True, capture_stderr=True
        )
    figures = json.loads(done.stdout)
    assert done.returncode == 0, (figures, done.stderr)
    assert (figures["problems"], figures["with_outcome"]) == ([], 80)
    assert sum(figures["kills"].values()) == 20
    await check_nothing_left(tmp_path)


async def test_with_a_server_that_forgets_its_journal_it_fails(tmp_path: Path):
    server = (sys.executable, str(HERE / "broken_server.py"))
    options = Options(
        directory=tmp_path, kills=2, keys=10, who=("server",), patient=True, server=server
    )
    with trio.fail_after(LIMIT_S):
        await Kills(options).run()
    figures = judge(tmp_path)
    assert figures["ok"] is False
    assert figures["after_told"]
    assert figures["told_differently"]


async def test_a_client_that_was_killed_last_was_never_told_to_finish(tmp_path: Path):
    """The one after it was only starting then, and heard no order."""
    options = Options(directory=tmp_path, kills=1, keys=4, seed=0)
    with trio.fail_after(LIMIT_S):
        assert await Kills(options).run() == ""
    figures = judge(tmp_path)
    assert figures["kills"] == {"server": 0, "worker": 0, "client": 1}
    assert (figures["finished"], figures["with_outcome"]) == (True, 4)
