"""What a rollout gives in its grace is the one outcome, by real processes."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import forked, until
from tests.connections import held_port
from trio_envserve import DeadlineExceeded, NeverStarted, NoAnswer, open_client, open_server

pytestmark = pytest.mark.real

LATE = """
import os
import secrets

async def play(rollout):
    with open(rollout.input, "a") as log:
        log.write("began\\n")
    await rollout.late.wait()
    with open(rollout.input, "a") as log:
        log.write("late\\n")
    return {"reward": 0.5, "run": secrets.token_hex(8)}


async def stays(rollout):
    import trio

    await play(rollout)
    await trio.sleep_forever()
"""


@pytest.fixture
def late(tmp_path: Path) -> str:
    """The name of an environment whose rollouts wait until they are late."""
    (tmp_path / "late.py").write_text(LATE)
    return f"{tmp_path / 'late.py'}:play"


async def test_g3_what_is_given_in_the_grace_is_the_outcome_of_all_that_ask(
    late: str, tmp_path: Path
):
    log = tmp_path / "log"
    with trio.fail_after(120):
        async with open_server(late, workers=1) as server:
            asked: dict[str, Any] = {"execution_s": 0.3, "grace_s": 100, "key": "k"}
            async with open_client(server.address) as client:
                first = await client.run_rollout(str(log), **asked)
                plain = await client.run_rollout(str(log), timeout_s=0.3, grace_s=100)
            async with open_client(server.address) as other:
                assert await other.run_rollout(str(log), **asked) == first
    assert (first["stop"], first["reward"], plain["stop"]) == ("deadline", 0.5, "deadline")
    assert log.read_text().split() == ["began", "late"] * 2


async def test_g7_a_cancel_in_the_grace_is_final(late: str, tmp_path: Path):
    log = tmp_path / "log"
    stays = late.replace(":play", ":stays")
    with trio.fail_after(120):
        async with open_server(stays, workers=1) as server, open_client(server.address) as client:
            async with trio.open_nursery() as nursery:
                ask = partial(client.run_rollout, str(log), timeout_s=0.3, grace_s=900)
                nursery.start_soon(ask)
                await until(lambda: log.exists() and "late" in log.read_text())
                nursery.cancel_scope.cancel()
            await until(lambda: not server.stats().running)
    assert log.read_text().split() == ["began", "late"]


async def test_code_that_ignores_that_it_is_late_is_stopped_at_the_end_of_its_grace(
    late: str, tmp_path: Path
):
    log, limit_s = tmp_path / "log", 1.0
    stays = late.replace(":play", ":stays")
    with trio.fail_after(120):
        async with open_server(stays, workers=1) as server, open_client(server.address) as client:
            while not (log.exists() and log.read_text()):  # its deadline is to pass while it runs
                limit_s *= 2
                # By whether its worker had confirmed by then that it had come, or it had not begun.
                with pytest.raises((DeadlineExceeded, NoAnswer, NeverStarted)):
                    await client.run_rollout(str(log), timeout_s=limit_s, grace_s=limit_s / 2)
            await until(lambda: not server.stats().running)
    assert log.read_text().split()[0] == "began"


async def test_eval_takes_what_its_rollouts_have_at_their_limit(late: str, tmp_path: Path):
    log, inputs = tmp_path / "log", tmp_path / "inputs.jsonl"
    inputs.write_text(f"{json.dumps(str(log))}\n" * 2)
    options = ("--timeout-s", "1", "--grace-s", "100", "--output", "results.jsonl")
    async with forked(tmp_path, "eval", late, "--inputs", str(inputs), *options) as running:
        done = await running.wait()
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    values = [row["value"] for row in rows if "value" in row]
    assert [(value["stop"], value["reward"]) for value in values] == [("deadline", 0.5)] * 2


async def test_g11_the_next_server_keeps_the_grace_of_what_its_journal_has(
    late: str, tmp_path: Path
):
    log, journal = tmp_path / "log", str(tmp_path / "journal")
    with trio.fail_after(120), held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        serve = ("serve", late, "--bind", address, "--journal", journal)
        async with open_client(address, caller="me") as client, trio.open_nursery() as nursery:
            results: list[Any] = []

            async def ask() -> None:
                results.append(
                    await client.run_rollout(
                        str(log), execution_s=2, grace_s=100, key="k", rerun=True
                    )
                )

            async with forked(tmp_path, *serve) as first:
                nursery.start_soon(ask)
                await until(lambda: log.exists() and log.read_text())
                first.process.send_signal(signal.SIGKILL)
                first.process.wait()
            async with forked(tmp_path, *serve):
                await until(lambda: results)
    assert results[0]["stop"] == "deadline"
    assert log.read_text().split() in (
        ["began", "began", "late"],
        ["began", "late", "began", "late"],
    )
