"""`serve --record` and `replay`, as people run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, check_nothing_left, forked, run, served
from trio_envserve.lab.recording import Player

pytestmark = pytest.mark.real
INCIDENT = str(ROOT / "tests" / "recorder" / "incident.rec")


def step_with_completed(path: Path, count: int) -> int:
    """The first step of a recording after which so many rollouts have completed."""
    player = Player(path)
    for _ in player.moments():
        if player.router.works.counters.completed >= count:
            return player.step
    raise AssertionError(f"fewer than {count} rollouts have completed")


async def test_a_server_that_was_stopped_is_replayed(tmp_path: Path):
    async with served(tmp_path, "arithmetic", "--record", "a.rec", "--workers", "2") as (
        server, address,
    ):  # fmt: skip
        ask = ("-n", "60", "--in-flight", "1")  # requests that come together are one input
        assert (await run(tmp_path, "eval", "arithmetic", *ask, "--address", address)).code == 0
        server.signal(15)
        stopped = await server.wait()
    assert stopped.code == 0
    await check_nothing_left(tmp_path)

    done = await run(tmp_path, "replay", "a.rec", "--json")
    done.check_no_traceback()
    assert done.code == 0, done.err
    last = done.last
    assert last["identical"] is True
    assert (last["difference"], last["raised"], last["stopped"]) == (None, None, None)
    assert last["ended"] is True
    assert last["checked"] == last["step"] > 120  # each request and each outcome
    assert last["seconds"] > 0
    assert len(last["epoch"]) == 32
    assert last["recorded"]["environment"] == "arithmetic"
    assert last["state"]["status"] == "stopping"
    stats = stopped.last["stats"]["cache"]
    assert last["state"]["cache"]["completed"] == stats["completed"] == 60

    step = step_with_completed(tmp_path / "a.rec", 30)
    half = await run(tmp_path, "replay", "a.rec", "--step", str(step), "--json")
    assert half.last["step"] == step
    assert half.last["identical"] is True
    (session,) = half.last["state"]["per_session"]
    early = await run(tmp_path, "replay", "a.rec", "--at", "0", "--json")
    assert (early.code, early.last["step"], early.last["identical"]) == (0, 0, None)

    name = f"{session['session']}/0"
    one = await run(tmp_path, "replay", "a.rec", "--request", name, "--json")
    told = [(event["source"], event["target"]) for event in one.last["request"]]
    assert told[0] == ("client", "router")
    assert ("router", "client") in told
    text = await run(tmp_path, "replay", "a.rec", "--request", name)
    assert f"request {name}" in text.out
    assert "- request, " in text.out
    assert re.search(r"identical +yes", text.out)
    assert "completed" in text.out


async def test_bodies_are_recorded_when_asked_for(tmp_path: Path):
    (tmp_path / "echo.py").write_text("def echo(rollout): return rollout.input\n")
    (tmp_path / "inputs.jsonl").write_text('"a private prompt"\n')
    for options, there in ((), False), (("--record-bodies",), True):
        async with served(tmp_path, "echo:echo", "--record", "a.rec", *options) as (
            server, address,
        ):  # fmt: skip
            ask = ("--inputs", "inputs.jsonl", "--address", address)
            assert (await run(tmp_path, "eval", "echo:echo", *ask)).code == 0
            server.signal(15)
            assert (await server.wait()).code == 0
        assert (b"a private prompt" in (tmp_path / "a.rec").read_bytes()) is there
        assert (await run(tmp_path, "replay", "a.rec", "--json")).last["identical"] is True


async def test_other_code_than_was_recorded_is_told(tmp_path: Path):
    # The recorded version, as far as this recording tells, did one step less.
    (tmp_path / "other.py").write_text(
        "from trio_envserve.core.work import Works\n"
        "Works.may_rerun = lambda self, work: False\n"
        "from trio_envserve.cli import main\n"
        "raise SystemExit(main())\n"
    )
    async with forked(tmp_path, "replay", INCIDENT, "--json", module="other") as running:
        done = await running.wait()
    assert (done.code, done.last["exit"]) == (1, 1)
    assert done.last["identical"] is False
    assert set(done.last["difference"]) == {"after", "step", "what"}
    async with forked(tmp_path, "replay", INCIDENT, module="other") as running:
        done = await running.wait()
    assert "this code differs from version" in done.err
    assert "the effects differ" in done.err
