"""Processes, read from ``/proc``: who is there, in which state, and what they use."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
            fields = stat_of(pid)
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
    return int(status_of(pid, "RssAnon").split()[0]) * 1024


def stat_of(pid: int) -> list[str]:
    """State, parent, group and so on of a process.  OSError if it is not there."""
    # Its name stands in brackets before them, and may hold anything.
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def status_of(pid: int, field: str) -> str:
    """A field of its status.  OSError if it is not there, or has no such field."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return line.partition(":")[2].strip()
    raise OSError(f"/proc/{pid}/status has no {field}")


def stats() -> Iterator[tuple[int, list[str]]]:
    """Each process that there is, with its state, parent, group and so on."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            yield int(entry.name), stat_of(int(entry.name))


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return stat_of(pid)[0] not in "ZX"
    except OSError:
        return False


def working_in(folder: Path) -> list[int]:
    """The processes, this one apart, that work in a folder or below it, the oldest first."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or it is somebody else's
            inside = Path(os.readlink(entry / "cwd")).is_relative_to(folder.resolve())
            if inside and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return sorted(found)


def children(pid: int) -> list[int]:
    """The processes that this one has started; none where that cannot be known."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            found += map(int, task.read_text(encoding="ascii").split())
    return found


def below(pid: int) -> list[int]:
    """The processes that this one has started, and all that these have."""
    return [each for child in children(pid) for each in (child, *below(child))]
