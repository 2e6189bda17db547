"""The clocks of a machine that has slept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rig.apart import Asleep, Boottime, SleepingMachine, may_build

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux" or not may_build(), reason="needs a C compiler"),
]

SLEPT_S = 1000.0
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
import time
from trio_envserve.worker.guard import _Libc

libc = _Libc()
timer = libc.make_timer()
libc.set_timer(timer, int((time.clock_gettime(time.CLOCK_BOOTTIME) + 0.2) * 1e9))
print("set", flush=True)
time.sleep(100)
"""


def there(machine: SleepingMachine, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **machine.environ},
        stdout=subprocess.PIPE,
        text=True,
    )


def said(machine: SleepingMachine, code: str) -> list[float]:
    process = there(machine, code)
    words = process.communicate(timeout=60)[0].split()
    assert process.returncode == 0
    return list(map(float, words))


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
    process = there(machine, TIMER)
    assert process.stdout is not None
    assert process.stdout.readline() == "set\n"
    with Asleep(process.pid, machine):
        assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()


def test_a_timer_of_the_clock_that_stands_still_is_set_by_that_clock(tmp_path: Path) -> None:
    machine = SleepingMachine(tmp_path, Boottime.STANDS_STILL)
    machine.has_slept(SLEPT_S)
    process = there(machine, TIMER)
    # The kernel's timer would have killed it at once: its time passed long ago.
    assert process.communicate(timeout=60)[0] == "set\n"
    assert process.returncode == -signal.SIGKILL
