"""What is late at a server of another process: ``status --slow``, ``top``, the page, ``stack``."""

from __future__ import annotations

import json
import signal
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import HANG_S, forked, run, served, until
from trio_envserve import open_client

pytestmark = pytest.mark.real


ONE_SLEEPS = """
import trio

async def environment(rollout):
    if rollout.input == 321:
        rollout.note(turn=7, text="waits for the tests")
        await waits_for_ever()
    return {"reward": 1.0}

async def waits_for_ever():
    await trio.sleep_forever()
"""


async def test_g9_one_of_500_that_sleeps_is_named_with_its_note_and_its_line(tmp_path: Path):
    """Its loop is not blocked: nothing said its line.  By ``status``, ``top`` and the page's
    events; ``cancel`` ends it."""
    (tmp_path / "sleeps.py").write_text(ONE_SLEEPS)
    options = ("--workers", "2", "--http", "127.0.0.1:0")
    ended: list[Any] = []
    async with served(tmp_path, "sleeps:environment", *options) as (server, address):
        none = await run(tmp_path, "status", address, "--slow", "3")
        assert "nothing runs" in none.out
        async with open_client(address) as client, trio.open_nursery() as nursery:

            async def run_all() -> None:
                async with client.run_many(range(500), in_flight=500, key="step") as outcomes:
                    async for number, outcome in outcomes:
                        ended.append((number, outcome.error))

            nursery.start_soon(run_all)
            await until(lambda: len(ended) == 499)
            row: dict[str, Any] = {"line": ""}
            while not row["line"] or not row["note"]:
                looked = await run(tmp_path, "status", address, "--slow", "1", "--json")
                [row] = looked.last["slow"]["running"]
            shown = await run(tmp_path, "status", address, "--slow", "1")
            while "in waits_for_ever" not in shown.out:  # its worker has not said it in time
                shown = await run(tmp_path, "status", address, "--slow", "1")
            async with forked(tmp_path, "top", address, "--json") as top:
                [seen] = json.loads(await top.line())["slow"]["running"]
                while not seen["line"]:
                    [seen] = json.loads(await top.line())["slow"]["running"]
                top.signal(signal.SIGINT)
                assert (await top.wait()).code == 0
            viewed = await trio.to_thread.run_sync(viewed_with_a_line, server.serving["http"])
            await run(tmp_path, "key", "cancel", row["key"], "--address", address)
            await until(lambda: len(ended) == 500)
    place = f'File "{tmp_path}/sleeps.py", line 11, in waits_for_ever'
    for each in (row, seen, viewed):
        assert each["key"] == "step/321"
        assert each["note"] == {"turn": 7, "text": "waits for the tests"}
        assert each["line"] == place
    assert "oldest 1 of 1 that run" in shown.out
    assert "turn=7 text=waits for the tests" in shown.out
    number, error = ended[-1]
    assert number == 321
    assert "cancel" in str(error)


def viewed_with_a_line(url: str) -> Any:
    """The only rollout in what the live page is sent, as soon as that has its line."""
    with urllib.request.urlopen(f"{url}/v1/events", timeout=HANG_S) as events:
        views = (json.loads(line[6:]) for line in events if line.startswith(b"data: "))
        return next(row for view in views for row in view["slow"] if row["line"])


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
    async with served(tmp_path, "held:environment") as (_, address):
        none = await run(tmp_path, "status", address, "--stack", "late")
        assert "nothing runs under late" in none.err
        async with open_client(address) as client, trio.open_nursery() as nursery:
            ask = partial(client.outcome, {"index": 0}, key="late one", namespace="nightly")
            nursery.start_soon(ask)
            await until((tmp_path / "begun").exists)
            slow = await run(tmp_path, "status", address, "--slow", "1")
            assert "'late one' --namespace nightly" in slow.out
            there = ("late one", "--namespace", "nightly")
            shown = await run(tmp_path, "status", address, "--stack", *there)
            while "the event loop is late" not in shown.out:  # it has only just been taken
                shown = await run(tmp_path, "status", address, "--stack", *there)
            found = await run(tmp_path, "status", address, "--stack", *there, "--json")
            ended = await run(tmp_path, "key", "cancel", *there, "--address", address)
            (tmp_path / "open").touch()
    assert "in holds_the_loop" in shown.out
    assert "in environment" in json.loads(found.out)["stack"]
    assert "cancelled; it may have run" in ended.out
