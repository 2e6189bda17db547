"""A machine that sleeps: its processes are stopped, and its clocks are those of one that did.

Theory of operation
-------------------
Whoever stops all processes of a machine has stopped what runs on it, and not its clocks:
CLOCK_MONOTONIC, which stands still while a machine sleeps, goes on.  So what counts a lease by
the wrong clock would seem right.  A library that is loaded before libc (``asleep.c``) takes
the time of the sleep off that clock.  CLOCK_BOOTTIME goes on, and so do the kernel's timers on
it, as on a machine that sleeps.  It is built here, by the machine's C compiler.
"""

from __future__ import annotations

import enum
import mmap
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self, final

from tests.proc import children

_SOURCE: Final = Path(__file__).with_name("asleep.c")
_NANOSECONDS: Final = struct.Struct("=q")


class Boottime(enum.Enum):
    """The behaviour of the clock by which hosts count their leases, while the machine sleeps."""

    GOES_ON = "goes"
    """As it is."""
    STANDS_STILL = "stands"
    """As if hosts counted by another one."""


def may_build() -> bool:
    return shutil.which("cc") is not None


@final
class SleepingMachine:
    """The clocks of one machine, for processes that are started with its ``environ``."""

    def __init__(self, folder: Path, boottime: Boottime = Boottime.GOES_ON) -> None:
        """``folder``: where its files are to be, of this machine alone."""
        folder.mkdir(mode=0o700, exist_ok=True)
        library, slept = folder / "asleep.so", folder / "slept"
        words = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
        words += ["-o", str(library), str(_SOURCE), "-ldl"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        slept.write_bytes(_NANOSECONDS.pack(0))
        with slept.open("r+b") as file:
            self._slept = mmap.mmap(file.fileno(), _NANOSECONDS.size)
        self.environ: Mapping[str, str] = {
            "LD_PRELOAD": str(library), "APART_SLEPT": str(slept), "APART_BOOTTIME": boottime.value,
        }  # fmt: skip

    def has_slept(self, seconds: float) -> None:
        """So long it slept, besides what it has before."""
        (before,) = _NANOSECONDS.unpack(self._slept)
        self._slept[:] = _NANOSECONDS.pack(before + int(seconds * 1e9))


class Asleep:
    """A process and all that descends from it, stopped for as long as the block lasts."""

    def __init__(self, pid: int, machine: SleepingMachine | None) -> None:
        """``machine``: whose clocks they have; None: those of this one."""
        self._pid = pid
        self._machine = machine
        self._stopped: list[int] = []
        self._since_s = 0.0

    def __enter__(self) -> Self:
        """Parents first: so nobody is started meanwhile who is not found."""
        self._since_s = time.monotonic()
        todo = [self._pid]
        while todo:
            pid = todo.pop(0)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._stopped.append(pid)
            todo += children(pid)
        return self

    def __exit__(self, *about: object) -> None:
        if self._machine is not None:
            self._machine.has_slept(time.monotonic() - self._since_s)
        for pid in self._stopped:
            with suppress(ProcessLookupError):  # its guard's time has come
                os.kill(pid, signal.SIGCONT)
