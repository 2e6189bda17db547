"""The rigs themselves: nothing gives way, and with a broken server something does."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import check_nothing_left
from tests.rig.apart import may_build, may_have_namespaces
from tests.rig.rig import EVENTS
from trio_envserve.lab.processes import ROOT, Process, program, until

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="finds leftovers in /proc"),
]

BROKEN = program("tests.rig.broken_server")
LIMIT_S = 1800.0
"""Only a hang takes so long."""


async def play(folder: Path, name: str, words: str) -> dict[str, Any]:
    command = [*program(f"tests.rig.{name}"), *shlex.split(words), "--keep", str(folder / "run")]
    heard: list[dict[str, Any]] = []
    process = Process(command, name, cwd=folder)
    with trio.fail_after(LIMIT_S):
        async with process:
            status = await process.listen(heard.append)
    assert "Traceback" not in process.last_words()
    await check_nothing_left(folder)
    (judged,) = heard
    return {**judged, "exit": status}


@pytest.mark.parametrize("host", ["", "--remote-host"], ids=["here", "on a host"])
@pytest.mark.parametrize(
    "minutes",
    [pytest.param("0.3", marks=pytest.mark.slow), pytest.param("10", marks=pytest.mark.soak)],
)
async def test_soak_runs_nothing_twice_loses_nothing_and_gives_all_back(
    tmp_path: Path, minutes: str, host: str
) -> None:
    judged = await play(tmp_path, "soak", f"--minutes {minutes} {host}")
    assert (judged["problems"], judged["exit"]) == ([], 0)
    assert judged["result"] > 100
    assert min(judged["growth_kib_per_10000"].values()) < 1024
    of_host = {"host", "fuse"} if host else set()
    assert set(judged["most_kib"]) == {"rig", "server", "client", "worker", "guard"} | of_host


@pytest.mark.slow
async def test_soak_of_a_server_that_asks_for_no_consent_fails(tmp_path: Path) -> None:
    broken = shlex.join(["--server-command", shlex.join([*BROKEN, "consent"])])
    judged = await play(tmp_path, "soak", f"--minutes 0.3 {broken}")
    assert judged["exit"] == 1
    assert any("again without consent" in problem for problem in judged["problems"])


@pytest.mark.slow
async def test_g11_kills_leave_what_was_told_and_nothing_begins_without_proof(
    tmp_path: Path,
) -> None:
    judged = await play(tmp_path, "kills", "--kills 20 --keys 80 --patient")
    assert (judged["problems"], judged["exit"]) == ([], 0)
    assert (judged["told"], judged["kills"]) == (80, 20)


@pytest.mark.slow
async def test_kills_of_a_server_that_forgets_its_journal_fail(tmp_path: Path) -> None:
    broken = shlex.join(["--server-command", shlex.join([*BROKEN, "journal"])])
    judged = await play(tmp_path, "kills", f"--kills 2 --keys 10 --who server --patient {broken}")
    assert judged["exit"] == 1
    for text in ("began after its outcome was told", "was told in two ways"):
        assert any(text in problem for problem in judged["problems"])


@pytest.mark.slow
async def test_client_that_was_killed_last_asks_for_all_as_the_others(tmp_path: Path) -> None:
    """It was only starting, and heard no order."""
    judged = await play(tmp_path, "kills", "--kills 1 --keys 4 --who client")
    assert (judged["problems"], judged["client kill"], judged["told"]) == ([], 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("relays", ["--relays", ""], ids=["relays", "namespaces"])
async def test_hosts_that_are_cut_or_asleep_run_no_request_twice_at_once(
    tmp_path: Path, relays: str
) -> None:
    if not relays and not may_have_namespaces():
        pytest.skip("needs root and ip")
    judged = await play(tmp_path, "apart", f"--rollouts 200 --cut-s 8 {relays}")
    assert (judged["problems"], judged["exit"]) == ([], 0)


@pytest.mark.slow
@pytest.mark.skipif(not may_build(), reason="needs a C compiler")
async def test_lease_by_a_clock_that_stands_still_in_sleep_is_found_out(tmp_path: Path) -> None:
    """What ran before the sleep is still there when it is started again elsewhere."""
    words = "--rollouts 200 --cut-s 30 --relays --boottime stands --harmed asleep"
    judged = await play(tmp_path, "apart", words)
    assert any("before the process before was proven dead" in text for text in judged["problems"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_sandboxes_of_rollouts_whose_workers_are_killed_leave_nothing(tmp_path: Path) -> None:
    judged = await play(tmp_path, "sandboxed", "")
    assert (judged["problems"], judged["exit"]) == ([], 0)
    assert judged["began"] > 200


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_rig_that_is_interrupted_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [*program("tests.rig.soak"), "--minutes", "5", "--keep", str(tmp_path / "run")]
    log = tmp_path / "run" / EVENTS
    heard: list[dict[str, Any]] = []
    process = Process(command, "soak", cwd=tmp_path, end_s=60.0)
    with trio.fail_after(LIMIT_S):
        async with process:
            await until(lambda: log.exists() and '"began"' in log.read_text())
            process.signal(number)
            status = await process.listen(heard.append)
    assert "Traceback" not in process.last_words()
    await check_nothing_left(tmp_path)
    assert status == (130 if number is signal.SIGINT else -number)
    if number is signal.SIGINT:
        (judged,) = heard
        assert judged["asked"] > 0
        assert [problem.partition(": ")[2] for problem in judged["problems"]] == [
            "this is no run from its begin to its end"
        ]


async def test_server_that_does_not_start_is_told_with_its_words(tmp_path: Path) -> None:
    broken = shlex.join([sys.executable, "-c", "raise SystemExit('on fire')"])
    command = [*program("tests.rig.soak"), "--server-command", broken]
    done = await trio.run_process(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        capture_stdout=True, capture_stderr=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"on fire" in done.stderr
    assert b"Traceback" not in done.stderr
    assert json.loads(done.stdout)["ok"] is False
