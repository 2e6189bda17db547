"""The clocks of a machine that has slept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.apart import Asleep, Boottime, SleepingMachine, may_build

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux" or not may_build(), reason="needs a C compiler"),
]

SLEPT_S = min(1000.0, time.monotonic() / 2)
"""No machine has slept for longer than it is there: clocks would be before their beginning."""
WAIT_S = 0.05

CLOCKS = """
import time
print(time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic(), time.perf_counter())
"""
WAITS = f"""
import threading, time
import trio

def boot_s():
    return time.clock_gettime(time.CLOCK_BOOTTIME)

def took(wait):
    began_s = boot_s()
    wait()
    return boot_s() - began_s

lock = threading.Lock()
lock.acquire()
for wait in (
    lambda: time.sleep({WAIT_S}),
    lambda: lock.acquire(timeout={WAIT_S}),
    lambda: threading.Event().wait({WAIT_S}),
    lambda: trio.run(trio.sleep, {WAIT_S}),
):
    print(took(wait))
"""
TIMER = """
import sys, time
from trio_envserve.worker.guard import _Libc

libc = _Libc()
timer = libc.make_timer()
libc.set_timer(timer, int((time.clock_gettime(time.CLOCK_BOOTTIME) + float(sys.argv[1])) * 1e9))
print("set", flush=True)
time.sleep(100)
"""


def there(machine: SleepingMachine, code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **machine.environ},
        stdout=subprocess.PIPE,
        text=True,
    )


def said(machine: SleepingMachine, code: str) -> list[float]:
    process = there(machine, code)
    words = process.communicate(timeout=60)[0].split()
    assert process.returncode == 0
    return list(map(float, words))


@contextmanager
def with_timer(machine: SleepingMachine) -> Iterator[subprocess.Popen[str]]:
    """A process whose timer is set, and has not gone off when it says so."""
    for after_s in ("0.2", "2", "20"):  # a slow machine may take longer to say it
        with there(machine, TIMER, after_s) as process:
            assert process.stdout is not None
            if process.stdout.readline() == "set\n":
                yield process
                return
    raise AssertionError("its time had passed")


@pytest.mark.parametrize("boottime", Boottime)
def test_the_clock_that_stands_still_in_sleep_does(tmp_path: Path, boottime: Boottime) -> None:
    machine = SleepingMachine(tmp_path, boottime)
    machine.has_slept(SLEPT_S / 2)
    machine.has_slept(SLEPT_S / 2)
    before = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic(), time.perf_counter()
    clocks = said(machine, CLOCKS)
    after = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic(), time.perf_counter()
    behind = SLEPT_S if boottime is Boottime.STANDS_STILL else 0.0, SLEPT_S, SLEPT_S
    for first_s, read_s, last_s, behind_s in zip(before, clocks, after, behind, strict=True):
        assert first_s - 1e-3 <= read_s + behind_s <= last_s + 1e-3


def test_waits_after_a_sleep_last_as_long_as_they_should(tmp_path: Path) -> None:
    machine = SleepingMachine(tmp_path)
    machine.has_slept(SLEPT_S)
    assert all(WAIT_S * 0.9 <= took_s < SLEPT_S / 2 for took_s in said(machine, WAITS))


def test_a_fuse_dies_in_its_sleep(tmp_path: Path) -> None:
    machine = SleepingMachine(tmp_path)
    with with_timer(machine) as process, Asleep(process.pid, machine):
        assert process.wait(60) == -signal.SIGKILL


def test_a_timer_of_the_clock_that_stands_still_is_set_by_that_clock(tmp_path: Path) -> None:
    machine = SleepingMachine(tmp_path, Boottime.STANDS_STILL)
    machine.has_slept(SLEPT_S)
    # The kernel's timer would kill it at once: its time passed long ago.
    with with_timer(machine) as process:
        assert process.wait(60) == -signal.SIGKILL
