"""The verb ``conform``, run as people run it."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.commands import Running, check_nothing_left, command, run, served, until

pytestmark = pytest.mark.real

ENVIRONMENT = "trio_envserve.lab.conformance.environment:Conformance"


@asynccontextmanager
async def judgeable(folder: Path) -> AsyncIterator[tuple[Running, str]]:
    async with served(folder, ENVIRONMENT, "--arg", "directory=runs") as server:
        yield server


async def test_a_server_is_judged_by_chosen_cases(tmp_path: Path):
    async with judgeable(tmp_path) as (server, address):
        ask = ("conform", address, "--case", "*cancel*", "--case", "an-outcome-lost*")
        done = await run(tmp_path, *ask, "--json", "--patience-s", "60")
        assert done.code == 0, done.err
        assert (done.last["ok"], done.last["failed"], done.last["skipped"]) == (True, 0, 0)
        assert done.last["passed"] == len(done.last["cases"]) > 5
        assert {case["finding"] for case in done.last["cases"]} == {"passed"}
        assert any(case["faults"] for case in done.last["cases"])
        shown = await run(tmp_path, *ask, "--no-faults", "--patience-s", "60")
        assert shown.code == 0, shown.err
        assert "a-cancel-stops-what-runs" in shown.out
        assert "conforms" in shown.out
        assert "an-outcome-lost" not in shown.out
        shown.check_no_traceback()
        server.signal(signal.SIGTERM)
        await server.wait()
    await check_nothing_left(tmp_path)


async def test_a_failure_is_told_with_what_was_expected(tmp_path: Path):
    """A window of one is filled by the first request: cases that ask for two fail.  The
    others need some patience."""
    async with served(tmp_path, ENVIRONMENT, "--arg", "directory=runs", "--limit", "window=1") as (
        _,
        address,
    ):
        ask = ("--case", "sequences-may*", "--case", "a-hello-*", "--patience-s", "60", "--json")
        done = await run(tmp_path, "conform", address, *ask)
    assert done.code == 1, done.err
    assert (done.last["ok"], done.last["failed"], done.last["exit"]) == (False, 1, 1)
    failed = next(case for case in done.last["cases"] if case["finding"] == "failed")
    assert failed["name"] == "sequences-may-arrive-in-any-order"
    assert "an outcome of sequence" in failed["expected"]
    assert "Refused" in failed["seen"]
    assert "FAILED sequences-may-arrive-in-any-order" in done.err
    done.check_no_traceback()


async def test_a_limit_and_a_restart_command_are_told_to_the_cases(tmp_path: Path):
    small = ("--limit", "queue=16")
    environment = (ENVIRONMENT, "--arg", "directory=runs", "--limit", "worker_capacity=4")
    async with served(tmp_path, *environment, *small) as (_, address):
        ask = ("conform", address, "--case", "a-full-queue*", "--case", "a-restarted*", "--json")
        told = await run(tmp_path, *ask, *small, "--restart-command", "false", "--patience-s", "60")
        untold = await run(tmp_path, *ask, "--patience-s", "60")
        wrong = await run(tmp_path, *ask, "--limit", "queu=16")
    queue, restart = told.last["cases"]
    assert queue["finding"] == "passed", queue
    assert restart["finding"] == "failed"
    assert "Command '['false']' returned non-zero" in restart["seen"]
    assert {case["finding"] for case in untold.last["cases"]} == {"skipped"}
    assert "small queue" in untold.last["cases"][0]["seen"]
    assert wrong.code == 2
    assert "did you mean queue" in wrong.err


async def test_the_cases_are_listed_without_a_server(tmp_path: Path):
    listed = await run(tmp_path, "conform", "--list", "--json")
    assert listed.code == 0
    assert len(listed.last["cases"]) >= 25
    assert {"name", "section", "guarantee", "line", "faults"} <= set(listed.last["cases"][0])
    table = await run(tmp_path, "conform", "--list", "--case", "*cancel*")
    assert "a-cancel-stops-what-runs" in table.out
    assert "a-hello-gets-a-welcome" not in table.out


async def test_a_worker_is_judged_by_its_command(tmp_path: Path):
    program = Path(__file__).parent.parent / "protocol" / "raw_worker.py"
    worker = f"{sys.executable} {program}"
    ask = ("conform", "--worker-command", worker, "--input", '{"a": 1}')
    done = await run(tmp_path, *ask, "--case", "a-lost-*", "--json", "--patience-s", "60")
    assert (done.code, done.last["judged"]) == (0, worker), done.err
    assert {case["name"]: case["finding"] for case in done.last["cases"]} == {
        "a-lost-outcome-is-sent-again": "passed",
        "a-lost-stop-is-repaired": "skipped",
        "a-lost-announcement-is-sent-again": "passed",
    }
    listed = await run(tmp_path, *ask, "--list")
    assert "retired-it-exits-with-status-0" in listed.out
    assert "a-hello-gets-a-welcome" not in listed.out
    none = f"{sys.executable} -c 'raise SystemExit(5)'"
    wrong = await run(tmp_path, *ask[:2], none, *ask[3:], "--case", "*hello*")
    assert wrong.code == 1
    assert "expected a hello; seen: it exited with status 5; it said nothing" in wrong.err
    for each in (done, listed, wrong):
        each.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_nobody_there(tmp_path: Path):
    ask = ("conform", "tcp://127.0.0.1:1", "--wait-s", "0.2", "--json")
    done = await run(tmp_path, *ask)
    assert (done.code, done.last["exit"]) == (3, 3)
    assert "no server to judge at tcp://127.0.0.1:1" in done.err
    done.check_no_traceback()


async def test_a_server_of_another_environment(tmp_path: Path):
    async with served(tmp_path, "arithmetic") as (_, address):
        done = await run(tmp_path, "conform", address, "--json")
    assert done.code == 3
    assert "serves 'arithmetic'" in done.last["error"]["message"]
    done.check_no_traceback()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give an ADDRESS"),
        (["tcp://127.0.0.1:1", "--worker-command", "x"], "give an ADDRESS, or a --worker"),
        (["--worker-command", "x"], "--input is needed"),
        (["--worker-command", "x", "--input", "{"], "--input is not JSON"),
        (["--worker-command", "x", "--input", "1", "--long-input", "["], "--long-input is no"),
        (["--worker-command", "'", "--input", "1"], "is not a command"),
        (["--worker-command", "x", "--input", "1", "--case", "nosuch"], "no case matches"),
        (["tcp://127.0.0.1:1", "--case", "a-cancle-*"], "no case matches"),
        (["nonsense"], "tcp://127.0.0.1:5555 or ipc:///path expected"),
    ],
)
async def test_a_mistake_is_told_in_a_line(tmp_path: Path, arguments: list[str], said: str):
    done = await run(tmp_path, "conform", *arguments, "--json")
    assert (done.code, done.last["exit"]) == (2, 2), done.err
    assert said in done.last["error"]["message"]
    done.check_no_traceback()


async def test_ctrl_c_ends_it_with_the_findings_so_far(tmp_path: Path):
    # The environment never returns, so that the first case waits for its patience.
    (tmp_path / "stuck.py").write_text(
        "import trio\n"
        "async def stuck(rollout):\n"
        "    if rollout.input['op'] == 'about':\n"
        "        return {'conformance': 1, 'operations': []}\n"
        "    open('begun', 'w').close()\n"
        "    await trio.sleep_forever()\n"
    )
    async with served(tmp_path, "stuck:stuck") as (_, address):
        ask = ["conform", address, "--json", "--patience-s", "300"]
        ask += ["--case", "statistics-*", "--case", "values-*"]
        async with command(tmp_path, *ask) as judge:
            await until((tmp_path / "begun").exists)
            judge.signal(signal.SIGINT)
            done = await judge.wait()
    assert done.code == 130
    assert (done.last["exit"], done.last["ok"], done.last["passed"]) == (130, False, 1)
    assert "interrupted after 1 of 2 cases" in done.err
    done.check_no_traceback()
