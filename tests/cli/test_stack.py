"""``stack``, with a server of another process and a worker whose loop is held."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.cli.commands import forked, run, until
from trio_envserve import open_client

pytestmark = pytest.mark.real

HELD = """
import os
import time

async def environment(rollout):
    rollout.note(text="holds the loop")
    open("begun", "a").write("x")
    holds_the_loop()
    return {"reward": 1.0}

def holds_the_loop():
    while not os.path.exists("open"):
        time.sleep(0.01)
"""


async def test_g9_where_a_straggler_stands_is_shown_and_cancel_ends_it(tmp_path: Path):
    (tmp_path / "held.py").write_text(HELD)
    serve = ("serve", "held:environment", "--bind", "tcp://127.0.0.1:0", "--workers", "1")
    async with forked(tmp_path, *serve, "--json") as serving:
        address = (await serving.event("serving"))["address"]
        await serving.event("ready")
        none = await run(tmp_path, "stack", address, "late")
        assert "nothing runs under late" in none.err
        async with open_client(address) as client, trio.open_nursery() as nursery:
            ask = partial(client.outcome, {"index": 0}, key="late one", namespace="nightly")
            nursery.start_soon(ask)
            await until((tmp_path / "begun").exists)
            slow = await run(tmp_path, "status", address, "--slow", "1")
            assert "'late one' --namespace nightly" in slow.out
            there = ("late one", "--namespace", "nightly")
            shown = await run(tmp_path, "stack", address, *there)
            while "the event loop is late" not in shown.out:  # it has only just been taken
                shown = await run(tmp_path, "stack", address, *there)
            found = await run(tmp_path, "stack", address, *there, "--json")
            ended = await run(tmp_path, "cancel", *there, "--address", address)
            (tmp_path / "open").touch()
    assert "in holds_the_loop" in shown.out
    assert "in environment" in json.loads(found.out)["stack"]
    assert "cancelled; it may have run" in ended.out
