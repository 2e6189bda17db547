"""The inside of a process for calls apart."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker import scorers
from trio_envserve.core.stack_frames import authors_line, dumped_stacks
from trio_envserve.worker.apart_process import (
    PID_BYTES,
    TIMED_OUT,
    TIMES_OUT,
    fork_below,
    has_program,
)

pytestmark = [pytest.mark.real]

CALL = """
import pickle, sys
from trio_envserve.worker import apart_process
paper, timer, limit_s, job = sys.argv[1:]
apart_process.begin()
if timer == "none":
    apart_process._State.timer = None
apart_process.run(paper, float(limit_s), None, "", "", bytes.fromhex(job), (), (1 << 20, 0))
"""


@pytest.mark.parametrize("timer", ["the kernel's", "none"])
def test_process_ends_at_its_limit_and_its_stack_is_left(timer: str, tmp_path: Path):
    """Where the kernel has no such timer, faulthandler's does the same."""
    if timer != "none" and sys.platform != "linux":
        pytest.skip("Linux has that timer")
    paper = tmp_path / "paper"
    job = pickle.dumps((scorers.hang, ())).hex()
    where, limit_s = "", 0.05
    while scorers.HANG not in where:  # on a slow machine it may not have come there
        limit_s *= 4
        assert limit_s < 100, where
        paper.write_bytes(b"")
        words = [sys.executable, "-c", CALL, str(paper), timer, str(limit_s), job]
        done = subprocess.run(words, capture_output=True, text=True)
        text = paper.read_bytes()[PID_BYTES:].decode()
        where = authors_line(dumped_stacks(text)[-1])
    assert (done.returncode == -TIMES_OUT) == (timer != "none"), done.stderr
    assert text.startswith(TIMED_OUT) == (timer == "none")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("end", [lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_process_that_took_long_to_end_was_taken_for_another_program(end: Callable[[], None]):
    """It had half a second for that after its descriptors were closed, which is short where twenty
    others have a turn first."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        end()
    os.close(writing)
    assert os.read(reading, 1) == b""  # its descriptors are closed
    assert not has_program(child)
    os.waitpid(child, 0)
    os.close(reading)
    assert has_program(os.getpid())


def test_process_has_no_reaper_where_orphans_come_to_nobody(monkeypatch: pytest.MonkeyPatch):
    """It forked on macOS, where a fork may crash, and gained nothing."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "fork")
    fork_below(ctypes.CDLL(None))
