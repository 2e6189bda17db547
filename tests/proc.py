"""The use of one process, read from ``/proc``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float | None:
    """Processor time of a process with all its threads, in seconds.

    From the scheduler's nanoseconds where the kernel gives them, else in ticks
    of 10 ms.  None where there is no /proc, or no such process.
    """
    tasks = Path(f"/proc/{pid}/task")
    try:
        return sum(_task_ns(task) for task in tasks.iterdir()) / 1e9
    except (OSError, ValueError, IndexError):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS
        except (OSError, ValueError, IndexError):
            return None


def _task_ns(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[0])
    except FileNotFoundError:
        if task.exists():
            raise  # this kernel has no such file
        return 0  # the thread has just ended


def resident_bytes(pid: int) -> int:
    """Memory of a process that is its own.  OSError where that cannot be known."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status has no RssAnon")


def children(pid: int) -> list[int]:
    """The processes that this one has started; none where that cannot be known."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            found += map(int, task.read_text(encoding="ascii").split())
    return found
