"""The forks in which tests run commands end as the command does, and none is left."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from tests.cli.commands import check_nothing_left, processes_in, run, until

pytestmark = pytest.mark.real


async def test_a_command_for_which_nobody_waits_any_more_is_killed(tmp_path: Path):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, tmp_path, "serve", "arithmetic", "--bind", "tcp://127.0.0.1:0")
        await until(lambda: processes_in(tmp_path))
        nursery.cancel_scope.cancel()
    await check_nothing_left(tmp_path)


async def test_a_command_that_a_signal_has_ended_says_which(tmp_path: Path):
    (tmp_path / "killed.py").write_text(
        "import os, signal\n"
        "print(os.environ['SAID'], os.getcwd(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ask = ("eval", "killed:Killed", "-n", "1", "--workers", "0")
    done = await run(tmp_path, *ask, SAID="the variable")
    assert done.code == -signal.SIGKILL
    assert f"the variable {tmp_path}" in done.out + done.err
