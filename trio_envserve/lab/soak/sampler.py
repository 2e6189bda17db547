"""The use of memory, descriptors, threads and files by the processes of a run.

Theory of operation
-------------------
Everything is read from ``/proc``.  A process belongs to a run if it works in its
folder: the working directory is inherited, and is the kernel's own record, so what was
left behind by a process that is dead is found too, whoever its parent is now.  The
server and the clients are known by their ids; a process that leads its own group is a
worker, and one that does not is the guard in a worker's group.  A remote host has a keeper
and a guard besides (:class:`OfHost`).

A sample adds up descriptors and threads over all processes of one kind, and has
the largest resident memory among them.  A process that ends while it is looked
at counts as one that is not there.

Where there is no ``/proc`` (macOS) only the files are looked at, and
:data:`MISSING` says what was not.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

PROC = Path("/proc")

MISSING = "memory, descriptors, threads and processes were not looked at: this system has no /proc"

LOCKS = (".server", ".epochs")
"""How the names of a server's lock files end."""


class Held(NamedTuple):
    """The use of one process."""

    pid: int
    parent: int
    group: int
    threads: int
    descriptors: int
    rss_kib: int


def has_proc() -> bool:
    """Whether this system can be asked."""
    return (PROC / "self" / "fd").is_dir()


def look_at(pid: int) -> Held | None:
    """The resources of a process; None if it is not there (any more)."""
    try:
        # The name stands in brackets and may hold anything; what counts is behind it.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX":
            return None  # dead, and not reaped yet
        descriptors = len(os.listdir(PROC / str(pid) / "fd"))
        return Held(
            pid, parent=int(fields[1]), group=int(fields[2]), threads=int(fields[17]),
            descriptors=descriptors, rss_kib=rss_kib(pid),
        )  # fmt: skip
    except (OSError, IndexError):
        return None


def rss_kib(pid: int) -> int:
    """Resident memory, exactly.  OSError if the process is not there.

    The cheaper sources count in batches for each thread, which is off by more
    than what is to be seen here.
    """
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


def processes_in(directory: Path) -> Iterator[int]:
    """The ids of all processes that work in a directory, this one apart."""
    for name in os.listdir(PROC) if has_proc() else ():
        if name.isdecimal() and int(name) != os.getpid():
            # It has ended meanwhile, or is somebody else's.
            with contextlib.suppress(OSError):
                if os.readlink(PROC / name / "cwd") == str(directory):
                    yield int(name)


def children_in(directory: Path, parent: int) -> list[int]:
    """The children of a process that work in a directory, the oldest first."""
    found = (look_at(pid) for pid in processes_in(directory))
    return sorted(held.pid for held in found if held is not None and held.parent == parent)


class OfHost(NamedTuple):
    """The processes that a remote host has started, by their ids."""

    keepers: list[int]
    guards: list[int]
    """The parents of its workers."""
    workers: list[int]

    @classmethod
    def at(cls, directory: Path, host: int) -> OfHost:
        """Each is a child of the one before; workers lead groups of their own."""
        found = [held for pid in processes_in(directory) if (held := look_at(pid)) is not None]
        keepers = [held.pid for held in found if held.parent == host]
        # What its workers leave behind is the keeper's child, too.
        guards = [held.pid for held in found if held.parent == held.group in keepers]
        workers = [held.pid for held in found if held.parent in guards]
        return cls(keepers, guards, sorted(workers))


def files_in(directory: Path) -> dict[str, int]:
    """How many sockets, and lock files of servers, are in a folder.

    Looks into those below it that servers make, not into records of the environment.
    """
    sockets = locks = 0
    for folder in (directory, *directory.glob("trio_envserve-*")):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(LOCKS):
                    locks += 1
                else:
                    with contextlib.suppress(FileNotFoundError):
                        sockets += stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    return {"sockets": sockets, "locks": locks}


@final
class Sampler:
    """Samples the processes of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(os.path.realpath(directory))

    def sample(self, known: Mapping[int, str]) -> dict[str, Any]:
        """``kinds`` (by kind: ``processes``, ``descriptors``, ``threads``, ``rss_kib``),
        ``sockets`` and ``locks``.  ``known``: kinds by process id."""
        held = [look_at(pid) for pid in processes_in(self.directory)] if has_proc() else []
        own = look_at(os.getpid()) if has_proc() else None
        named: list[tuple[str, Held]] = [] if own is None else [("soak", own)]
        named += [(kind_of(each, known), each) for each in held if each is not None]
        return {"kinds": summed(named), **files_in(self.directory)}


def resident(router: int, client: int) -> dict[str, int]:
    """Resident memory in KiB of the two whose growth is measured; empty where
    that cannot be seen."""
    if not has_proc():
        return {}
    return {"router": rss_kib(router), "client": rss_kib(client)}


def kind_of(held: Held, known: Mapping[int, str]) -> str:
    """The kind of a process of the run."""
    return known.get(held.pid) or ("worker" if held.group == held.pid else "guard")


def summed(named: Iterable[tuple[str, Held]]) -> dict[str, dict[str, int]]:
    """One record for each kind."""
    kinds: dict[str, dict[str, int]] = {}
    for kind, held in named:
        record = kinds.setdefault(
            kind, {"processes": 0, "descriptors": 0, "threads": 0, "rss_kib": 0}
        )
        record["processes"] += 1
        record["descriptors"] += held.descriptors
        record["threads"] += held.threads
        record["rss_kib"] = max(record["rss_kib"], held.rss_kib)
    return kinds
