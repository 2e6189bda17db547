"""The siege itself: what ships passes, and a server with a fault does not."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
import trio

from tests.cli.commands import ROOT, check_nothing_left

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="measures by /proc"),
]

HERE = Path(__file__).parent
LIMIT_S = 900.0
"""Only a hang takes so long."""


async def siege(folder, *arguments):
    """Run it to its end; its exit code and figures."""
    command = [sys.executable, "-m", "tests.attack", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            command, cwd=folder, env=environ, check=False, capture_stdout=True,
            capture_stderr=True,
        )  # fmt: skip
    said = done.stderr.decode()
    assert "Traceback" not in said
    await check_nothing_left(folder)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), said


HARMLESS = (
    "--seconds", "10", "--only", "bad-batches", "--only", "random-bytes", "--only",
    "http-strange-keys", "--only", "verifiers-messages", "--unjudged", "rate",
)  # fmt: skip


@pytest.mark.parametrize("host", [(), ("--remote-host",)], ids=["here", "on a host"])
async def test_a_short_siege_passes(tmp_path, host):
    """In a folder whose path is too long for one of a unix socket, as it once had to be."""
    tmp_path = tmp_path / ("long" * 25)
    tmp_path.mkdir()
    code, figures, said = await siege(
        tmp_path, *HARMLESS, "--unjudged", "turns", "--only", "server-silence", *host
    )
    findings = figures["findings"]
    assert code == 0, said
    # These two are the machine's as well, so no test judges them.
    assert findings["rate"]["ok"] is None
    assert findings["turns"]["ok"] is None
    assert findings["rate"]["figures"]["besieged"] > 0
    counts = findings["attacked"]["figures"]["counts"]
    assert counts["bad-batches"]["messages"] > 100
    assert counts["http-strange-keys"]["requests"] > 10
    assert counts["verifiers-messages"]["messages"] > 100
    assert findings["answers"]["figures"]["right"] > 10
    assert set(findings["answers"]["figures"]["right_at_doors"]) == {"http", "verifiers"}
    assert set(findings["turns"]["figures"]["longest"]) == {"server", "worker", "client"}
    assert ("small/host" in findings["memory"]["figures"]) is bool(host)
    assert findings["held"]["ok"] is None


@pytest.mark.parametrize(
    ("fault", "finding", "words"),
    [
        ("die", "survived", "broken on purpose"),
        ("hold", "turns", "of processor time"),
        ("grow", "memory", "small/server grew"),
    ],
)
async def test_a_server_with_a_fault_turns_it_red(tmp_path, fault, finding, words):
    server = shlex.join([sys.executable, str(HERE / "broken_server.py"), fault])
    code, figures, said = await siege(tmp_path, *HARMLESS, "--server-command", server)
    assert code == 1
    assert figures["findings"][finding]["ok"] is False, said
    assert any(words in problem for problem in figures["problems"])


async def test_an_environment_with_wrong_answers_turns_it_red(tmp_path):
    server = shlex.join([sys.executable, str(HERE / "broken_server.py"), "wrong"])
    code, figures, said = await siege(
        tmp_path, "--seconds", "10", "--only", "held-server", "--server-command", server
    )
    assert code == 1
    assert figures["findings"]["answers"]["ok"] is False, said
    assert figures["findings"]["held"]["ok"] is False
