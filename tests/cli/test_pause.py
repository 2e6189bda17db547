"""``--pause-after-errors``, with a server of another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import forked, run
from trio_envserve import open_client

pytestmark = pytest.mark.real

GONE = """
from trio_envserve.models.interface import ModelError

async def environment(rollout):
    open("begun", "a").write("x")
    if rollout.input == "good":
        return {"reward": 1.0}
    raise ModelError("the endpoint is gone")
"""


async def test_what_is_broken_uses_up_few_rollouts_and_the_status_says_why(tmp_path: Path):
    (tmp_path / "gone.py").write_text(GONE)
    serve = ("serve", "gone:environment", "--bind", "tcp://127.0.0.1:0", "--workers", "0")
    async with forked(tmp_path, *serve, "--pause-after-errors", "2", "--json") as serving:
        address = (await serving.event("serving"))["address"]
        await serving.event("ready")
        async with open_client(address) as client:
            for _ in range(2):
                await client.outcome("bad")
            shown = await run(tmp_path, "status", address)
            waits = await client.outcome("good", timeout_s=0.1)
    assert "paused" in shown.out
    assert "the last one: " in shown.out
    assert waits.error is not None
    assert (tmp_path / "begun").read_text() == "xx"
