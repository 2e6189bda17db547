"""Failure 15 with a real process: what only a process can do is hang before its first
line of Python is ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import trio_envserve

HANG = """
import pathlib, time
here = pathlib.Path(__file__).parent
(here / "hangs").touch()
began_s = time.monotonic()
while not (here / "go on").exists():
    time.sleep(0.05)
    if time.monotonic() - began_s > 15:
        (here / "gave up").touch()
        break
"""
"""Python imports ``sitecustomize`` before anything else.  It gives up, so that a test of
a server that hangs with it ends."""


@pytest.mark.real
async def test_failure_15_worker_that_hangs_before_it_reads_its_configuration(tmp_path: Path):
    """A worker hangs before it has read its configuration, which is larger than a socket
    holds: the server, which writes it, hangs with its worker, and times nothing out.

    Here writing to a worker is waited for by that worker's own task.
    """
    (tmp_path / "sitecustomize.py").write_text(HANG)
    async with (
        trio_envserve.open_server(
            "arithmetic",
            args={"seed": "x" * 1_000_000},
            worker_environ=[{"PYTHONPATH": str(tmp_path)}],
        ) as server,
        trio_envserve.open_client(server.address) as client,
    ):
        with trio.fail_after(120):
            while not (tmp_path / "hangs").exists():  # noqa: ASYNC110  # there is no event
                await trio.sleep(0.01)
            stats = await client.stats()
            assert not (tmp_path / "gave up").exists(), "the server hung with its worker"
            assert stats.status.value == "starting"
            (tmp_path / "go on").touch()
            await client.wait_ready()
