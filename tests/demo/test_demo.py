"""The demonstration: it passes, and with a broken dedup cache it fails."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from trio_envserve.core.messages import Outcome, Synced, encode, in_batches
from trio_envserve.lab.demo.judge import EVENTS, RECEIVED_AFTER_CUT, REPLAYED, wants
from trio_envserve.lab.demo.run import outcomes_in, schedule
from trio_envserve.lab.demo.wiretap import id_of
from trio_envserve.lab.processes import program

LIMIT_S = 240
"""For a busy machine; a run takes some fifteen seconds on an idle one."""


def run_demo(*arguments: str, environ: dict[str, str] | None = None):
    command = [sys.executable, "-m", "trio_envserve", "demo", "--json", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S + 60, check=False,
        env={**os.environ, **(environ or {})},
    )  # fmt: skip


def without_one(kind: str) -> Callable[[list[str]], list[str]]:
    """Leaves the last event of a kind out of a log."""

    def change(lines: list[str]) -> list[str]:
        last = max(i for i, line in enumerate(lines) if f'"kind": "{kind}"' in line)
        return lines[:last] + lines[last + 1 :]

    return change


def without(kind: str) -> Callable[[list[str]], list[str]]:
    """Leaves the events of a kind out of a log."""
    return lambda lines: [line for line in lines if f'"kind": "{kind}"' not in line]


def doubled(kind: str) -> Callable[[list[str]], list[str]]:
    """Doubles the first event of a kind."""

    def change(lines: list[str]) -> list[str]:
        first = next(i for i, line in enumerate(lines) if f'"kind": "{kind}"' in line)
        return [*lines[: first + 1], *lines[first:]]

    return change


def processes_with(token: str) -> list[str]:
    """Command lines of processes whose environment has a token."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if token.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue  # not a process, not ours, or gone by now
    return found


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("host", [(), ("--remote-host",)], ids=["here", "on a host"])
def test_a_thousand_rollouts_run_once_each(tmp_path, host):
    token = f"DEMO_TEST={tmp_path}"
    name, _, value = token.partition("=")
    run = run_demo(
        *host, "--keep", str(tmp_path / "logs"), "--seconds-limit", str(LIMIT_S),
        environ={name: value},
    )  # fmt: skip
    figures = json.loads(run.stdout.splitlines()[-1])
    assert run.returncode == 0, (figures, run.stderr)
    assert "Traceback" not in run.stderr
    assert (figures["ok"], figures["problems"]) == (True, [])
    assert figures["asked"] == figures["result"] == 1000
    assert figures.get("host kill") == (1 if host else None)
    assert min(figures[name] for name in (REPLAYED, RECEIVED_AFTER_CUT, "began again")) > 0
    assert processes_with(token) == []

    # The judge is a program of its own, and comes to the same.
    command = [sys.executable, "-m", "trio_envserve.lab.demo.judge", str(tmp_path / "logs")]
    again = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert again.returncode == 0
    assert json.loads(again.stdout).items() <= figures.items()

    # And sees it if a line of the log is gone, or one is there too many.
    log = tmp_path / "logs" / EVENTS
    lines = log.read_text().splitlines()
    for change in (without_one("told"), doubled("began"), doubled("told"), without("died")):
        log.write_text("\n".join(change(lines)) + "\n")
        again = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert again.returncode == 1


@pytest.mark.real
@pytest.mark.slow
def test_without_the_answer_to_a_duplicate_it_fails():
    command = shlex.join(program("tests.rig.broken_server", "duplicate"))
    run = run_demo("--rollouts", "500", "--seconds-limit", "60", "--server-command", command)
    figures = json.loads(run.stdout.splitlines()[-1])
    assert run.returncode == 1
    assert figures["ok"] is False
    # It was found for what it is, and nothing else had to go wrong for it.
    assert figures["began"] > 0
    assert sum("before was proven dead" in problem for problem in figures["problems"]) > 10


@pytest.mark.real
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted_it_leaves_no_process(number, code, tmp_path):
    name, value = "DEMO_TEST", str(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "trio_envserve", "demo", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, name: value, "TMPDIR": value},
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    while "/1000: " not in said:  # the first fault: everything runs
        line = process.stderr.readline()
        assert line, said
        said += line
    process.send_signal(number)
    out, err = process.communicate(timeout=180)
    assert process.returncode == code
    assert "Traceback" not in said + err
    until_s = time.monotonic() + 180
    while processes_with(f"{name}={value}") and time.monotonic() < until_s:
        time.sleep(0.05)
    assert processes_with(f"{name}={value}") == []
    if number is not signal.SIGKILL:
        assert "interrupted after" in err
        assert json.loads(out)["ok"] is False
        assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_a_server_that_does_not_start_is_told_with_its_words():
    command = shlex.join([sys.executable, "-c", "raise SystemExit('the disk is on fire')"])
    run = run_demo("--server-command", command)
    assert run.returncode == 3
    assert "the disk is on fire" in run.stderr
    assert "Traceback" not in run.stderr
    assert "the disk is on fire" in json.loads(run.stdout)["error"]["message"]


@pytest.mark.real
def test_a_folder_with_logs_is_not_written_to(tmp_path):
    (tmp_path / EVENTS).write_text("mine\n")
    run = run_demo("--keep", str(tmp_path))
    assert run.returncode == 2
    assert "logs of an earlier run" in run.stderr
    assert (tmp_path / EVENTS).read_text() == "mine\n"


@pytest.mark.parametrize("seed", range(20))
def test_each_schedule_has_every_fault_in_good_time(seed):
    due = schedule(seed, 1000)
    assert due == schedule(seed, 1000) == sorted(due)
    assert due[0].at > 0
    assert due[-1].at <= 600
    kinds = Counter(f"{act.of} {act.how}" for act in due)
    assert kinds.pop("worker kill") == 3
    assert kinds.items() <= wants(1000).items()


def test_outcomes_are_found_in_what_a_server_sent():
    one, two = bytes(range(16)), bytes(16)
    heads = [encode(Outcome(session, n, 0, "w", 0.1, 1)) for session, n in ((one, 7), (two, 1000))]
    failed = encode(Outcome(one, 8, 1, "w", 0.1, 1)) + b"\x00\x05error"
    other = encode(Synced(one, 1, [], {}))
    body = b"\x00\x20...execution..."
    data = b"tail execution" + heads[0] + body + failed + other + heads[1] + body
    assert outcomes_in(data) == [id_of(one, 7), id_of(two, 1000)]
    batch = in_batches([(Outcome(one, n, 0, "w", 0.1, 1), body) for n in (3, 4, 70_000)])
    assert outcomes_in(data + b"".join(next(batch)))[2:] == [
        id_of(one, number) for number in (3, 4, 70_000)
    ]
    assert outcomes_in(heads[0]) == []
    assert outcomes_in(b"") == []
