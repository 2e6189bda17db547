"""The watch for stalls of the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real


def test_a_watch_that_stands_still_says_for_how_long(tmp_path: Path):
    log = tmp_path / "stalls.jsonl"
    command = [
        sys.executable,
        "-m",
        "tests.attack.stalls",
        json.dumps({"log": str(log)}),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watch:
        assert watch.stdin is not None
        assert watch.stdout is not None
        said = json.loads(watch.stdout.readline())["event"]
        if said == "watching":
            before = len(log.read_text().splitlines())
            while not any(line["seconds"] > 0.2 for line in read(log)[before:]):
                watch.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, watch.pid, os.WSTOPPED | os.WNOWAIT)
                time.sleep(0.3)  # this is the stall: to be stopped is as good
                watch.send_signal(signal.SIGCONT)
                time.sleep(0.01)  # for its threads to look at the clock
            assert {line["event"] for line in read(log)} == {"stall"}
        else:
            assert said == "blind"
        watch.stdin.close()
        assert watch.wait(60) == 0


def read(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]
