"""``status --slow``, with a server of another process."""

from __future__ import annotations

import json
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import HANG_S, forked, run, until
from trio_envserve import open_client
from trio_envserve.cli.render import tables_text
from trio_envserve.cli.slow import slow_table

pytestmark = pytest.mark.real

GATED = """
import os
import trio

async def environment(rollout):
    name = rollout.input["name"]
    rollout.note(turn=3, text="reads \\x1b[2J the tests")
    open(f"{name}.started", "a").write("x")
    while name != "short" and not os.path.exists("open"):
        await trio.sleep(0.01)
    return {"reward": 1.0}
"""


async def test_g9_the_rollout_that_is_late_is_named_with_its_note(tmp_path: Path):
    (tmp_path / "gated.py").write_text(GATED)
    serve = ("serve", "gated:environment", "--bind", "tcp://127.0.0.1:0", "--workers", "0")
    async with forked(tmp_path, *serve, "--json") as serving:
        address = (await serving.event("serving"))["address"]
        await serving.event("ready")
        none = await run(tmp_path, "status", address, "--slow", "3")
        assert "nothing runs" in none.out
        async with open_client(address) as client, trio.open_nursery() as nursery:
            await client.run_rollout({"name": "short"})
            for name in ("late", "later"):
                nursery.start_soon(partial(client.outcome, {"name": name}, key=name))
                await until((tmp_path / f"{name}.started").exists)
            while not (await client.list_running()).running[1].note:
                await trio.sleep(0.05)
            ended = await run(tmp_path, "status", address, "--slow", "1", "--json")
            slow = json.loads(ended.out)["slow"]
            shown = await run(tmp_path, "status", address, "--slow", "20")
            (tmp_path / "open").touch()
    assert (slow["total"], len(slow["running"])) == (2, 1)
    assert slow["typical_s"] is not None
    assert slow["running"][0]["key"] == "late"
    assert slow["running"][0]["note"] == {"turn": 3, "text": "reads \x1b[2J the tests"}
    assert "oldest 2 of 2 that run" in shown.out
    assert "\n  late " in shown.out
    assert "turn=3 text=reads \\x1b[2J the tests" in shown.out


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
    ask = ("--bind", "tcp://127.0.0.1:0", "--workers", "2", "--http", "127.0.0.1:0", "--json")
    ended: list[Any] = []
    async with forked(tmp_path, "serve", "sleeps:environment", *ask) as serving:
        served = await serving.event("serving")
        address = served["address"]
        await serving.event("ready")
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
            async with forked(tmp_path, "top", address, "--json") as top:
                [seen] = json.loads(await top.line())["slow"]["running"]
                while not seen["line"]:  # its worker has not said it in time
                    [seen] = json.loads(await top.line())["slow"]["running"]
            viewed = await trio.to_thread.run_sync(viewed_with_a_line, served["http"])
            await run(tmp_path, "cancel", row["key"], "--address", address)
            await until(lambda: len(ended) == 500)
    place = f'File "{tmp_path}/sleeps.py", line 11, in waits_for_ever'
    for each in (row, seen, viewed):
        assert each["key"] == "step/321"
        assert each["note"] == {"turn": 7, "text": "waits for the tests"}
        assert each["line"] == place
    assert "turn=7 text=waits for the tests" in shown.out
    assert "in waits_for_ever" in shown.out
    number, error = ended[-1]
    assert number == 321
    assert "cancel" in str(error)


def viewed_with_a_line(url: str) -> Any:
    """The only rollout in what the live page is sent, as soon as that has its line."""
    with urllib.request.urlopen(f"{url}/v1/events", timeout=HANG_S) as events:
        views = (json.loads(line[6:]) for line in events if line.startswith(b"data: "))
        return next(row for view in views for row in view["slow"] if row["line"])


def test_what_stops_and_where_a_loop_is_blocked_are_shown():
    row: dict[str, Any] = {
        "key": None, "namespace": None, "request": "ab#1", "state": "stopping", "executions": None,
        "worker": "w0-1", "age_s": 7.0, "note": {},
        "where": '  x = 1\n  File "slow.py", line 7, in slow\n    time.sleep(9)\n',
    }  # fmt: skip
    text = tables_text([slow_table({"running": [row], "total": 1, "typical_s": None})])
    assert "ab#1" in text
    assert 'stopping        File "slow.py", line 7, in slow' in text
