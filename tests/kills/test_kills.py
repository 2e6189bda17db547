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
               "--keep", str(tmp_path)]  # fmt: skip
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
    options = Options(directory=tmp_path, kills=12, keys=40, seed=2, server=server)
    with trio.fail_after(LIMIT_S):
        await Kills(options).run()
    figures = judge(tmp_path)
    assert figures["ok"] is False
    assert figures["unproven"]
    assert figures["told_differently"]
