"""The verb ``conform``, run as people run it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.commands import check_nothing_left, forked, run, served, until

pytestmark = pytest.mark.real

ENVIRONMENT = "trio_envserve.lab.conformance.environment:Conformance"


async def test_server_is_judged_by_chosen_cases(tmp_path: Path):
    async with served(tmp_path, ENVIRONMENT, "--arg", "directory=runs") as (server, address):
        ask = ("conform", address, "--case", "a-cancel-stops*", "--case", "an-outcome-lost*")
        done = await run(tmp_path, *ask, "--json", "--patience-s", "60")
        assert done.code == 0, done.err
        assert (done.last["ok"], done.last["failed"], done.last["skipped"]) == (True, 0, 0)
        assert done.last["passed"] == len(done.last["cases"]) >= 2
        assert any(case["faults"] for case in done.last["cases"])
        server.signal(signal.SIGTERM)
        await server.wait()
    await check_nothing_left(tmp_path)


async def test_failure_is_told_with_what_was_expected_and_a_case_without_its_limit_is_skipped(
    tmp_path: Path,
):
    """A window of one is filled by the first request: cases that ask for two fail."""
    window = ("--arg", "directory=runs", "--limit", "window=1")
    async with served(tmp_path, ENVIRONMENT, *window) as (_, address):
        ask = ("--case", "sequences-may*", "--case", "a-full-queue*", "--case", "a-restarted*")
        given = (*ask, "--restart-command", "false", "--patience-s", "60", "--json")
        done = await run(tmp_path, "conform", address, *given)
    assert done.code == 1, done.err
    assert (done.last["ok"], done.last["exit"]) == (False, 1)
    by_name = {case["name"]: case for case in done.last["cases"]}
    failed = by_name.pop("sequences-may-arrive-in-any-order")
    assert failed["finding"] == "failed"
    assert "an outcome of sequence" in failed["expected"]
    assert "Refused" in failed["seen"]
    assert "FAILED sequences-may-arrive-in-any-order" in done.err
    (queue,) = (case for name, case in by_name.items() if name.startswith("a-full-queue"))
    assert (queue["finding"], "small queue" in queue["seen"]) == ("skipped", True)
    (restart,) = (case for name, case in by_name.items() if name.startswith("a-restarted"))
    assert "Command '['false']' returned non-zero" in restart["seen"]
    done.check_no_traceback()


async def test_the_cases_are_listed_without_a_server(tmp_path: Path):
    listed = await run(tmp_path, "conform", "--list", "--json")
    assert listed.code == 0
    assert len(listed.last["cases"]) >= 25
    assert {"name", "section", "guarantee", "line", "faults"} <= set(listed.last["cases"][0])
    table = await run(tmp_path, "conform", "--list", "--case", "*cancel*")
    assert "a-cancel-stops-what-runs" in table.out
    assert "a-hello-gets-a-welcome" not in table.out
    ask = ("--list", "--no-faults", "--case", "a-cancel-stops*", "--case", "an-outcome-lost*")
    table = await run(tmp_path, "conform", *ask)
    assert "a-cancel-stops-what-runs" in table.out
    assert "an-outcome-lost" not in table.out


async def test_a_worker_is_judged_by_its_command(tmp_path: Path):
    program = Path(__file__).parent.parent / "protocol" / "raw_worker.py"
    worker = f"{sys.executable} {program}"
    ask = ("conform", "--worker-command", worker, "--input", '{"a": 1}')
    done = await run(tmp_path, *ask, "--case", "*another-router*", "--json", "--patience-s", "60")
    assert (done.code, done.last["judged"]) == (0, worker), done.err
    assert {case["name"]: case["finding"] for case in done.last["cases"]} == {
        "another-router-is-told-what-is-held": "passed",
        "another-router-is-told-what-runs": "skipped",
    }
    listed = await run(tmp_path, *ask, "--list")
    assert "retired-it-exits-with-status-0" in listed.out
    assert "a-hello-gets-a-welcome" not in listed.out
    none = f"{sys.executable} -c 'raise SystemExit(5)'"
    wrong = await run(tmp_path, *ask[:2], none, *ask[3:], "--case", "*hello*")
    assert wrong.code == 1
    assert "hellos; seen: it exited with status 5; it said nothing" in wrong.err
    assert "does not conform" in wrong.out
    for each in (done, listed, wrong):
        each.check_no_traceback()
    await check_nothing_left(tmp_path)


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
    async with served(tmp_path, "stuck:stuck", "--workers", "0") as (_, address):
        ask = ["conform", address, "--json", "--patience-s", "300"]
        ask += ["--case", "statistics-*", "--case", "values-*"]
        async with forked(tmp_path, *ask) as judge:
            await until((tmp_path / "begun").exists)
            judge.signal(signal.SIGINT)
            done = await judge.wait()
    assert done.code == 130
    assert (done.last["exit"], done.last["ok"], done.last["passed"]) == (130, False, 1)
    assert "interrupted after 1 of 2 cases" in done.err
    done.check_no_traceback()
