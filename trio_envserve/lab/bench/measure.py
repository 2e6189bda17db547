"""Figures: of processes, of several runs, and of pairs of runs.

A machine's speed drifts by more than what is to be seen.  So contenders are run in turn,
again and again, and the runs of one round are compared.  The median of the ratios counts,
and their spread says how far to trust it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

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


def summary(values: Iterable[float]) -> dict[str, float | int]:
    """Median and spread of some values, of which there is at least one."""
    known = sorted(values)
    return {
        "median": statistics.median(known), "min": known[0], "max": known[-1], "n": len(known),
    }  # fmt: skip


def ratios(ours: Sequence[float | None], other: Sequence[float | None]) -> list[float]:
    """Ours to the other's, round by round, where both are known."""
    return [a / b for a, b in zip(ours, other, strict=True) if a is not None and b]


def column(rounds: Sequence[dict[str, Any]], measure: str) -> list[float | None]:
    """One measure of each round."""
    return [each.get(measure) for each in rounds]


def spent(before: Sequence[float | None], after: Sequence[float | None]) -> float | None:
    """Seconds of processor time between two looks; None if something is not known."""
    total = 0.0
    for one, other in zip(before, after, strict=True):
        if one is None or other is None:
            return None
        total += other - one
    return total


async def share_of_core(pid: int, seconds: float) -> float | None:
    """How much of a core a process takes, on the average over so many seconds."""
    before, began_s = cpu_s(pid), time.monotonic()
    await trio.sleep(seconds)
    took_s = spent([before], [cpu_s(pid)])
    return None if took_s is None else took_s / (time.monotonic() - began_s)
