"""The use of memory, descriptors, threads and files by the processes of a run: sampled, judged.

Theory of operation
-------------------
Everything is read from ``/proc``.  A process belongs to a run if it works in its folder: the
working directory is inherited, and is the kernel's own record, so what was left behind by a
process that is dead is found too, whoever its parent is now.  Servers, hosts and clients are
known by their ids, and guards and fuses by those of their servers and hosts; any other process
that leads its own group is a worker, and one that does not is a worker's child.

A sample adds up descriptors and threads over all processes of one kind, and has the largest
resident memory among them.  A process that ends while it is looked at counts as one that is not
there.  Where there is no ``/proc`` (macOS) only the files are looked at.

At the ``end`` (at rest after all faults) every kind of process is there as often as at the
``begin`` (warm, and before any fault), holds no more descriptors and threads, and no further
socket or lock file is there.  When all is ``closed`` no process is left, and no socket.  After
each block of the measurement (``steady``) resident memory is looked at; the first block is for
warming up, and then what the router and the client grow by is bounded.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.proc import stat_of, working_in
from trio_envserve.lab.guarantees import Counting
from trio_envserve.retrylab import Event, Violation

PROC = Path("/proc")

LOCKS = (".server", ".epochs")
"""Ends of the names of a server's lock files."""

GROWTH_KIB_MOST = 1024.0
"""Growth by 10,000 requests; more is a leak, of some hundred bytes of each."""

COUNTED = ("processes", "descriptors", "threads")


class Held(NamedTuple):
    pid: int
    parent: int
    group: int
    threads: int
    descriptors: int
    rss_kib: int


def has_proc() -> bool:
    return (PROC / "self" / "fd").is_dir()


def look_at(pid: int) -> Held | None:
    """The resources of a process; None if it is not there (any more)."""
    try:
        fields = stat_of(pid)
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
    """Resident memory, exactly: cheaper sources count in batches for each thread, and are off by
    more than is to be seen here.  OSError if the process is not there."""
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


def processes_in(folder: Path) -> list[Held]:
    """All processes that work in a folder or below it, this one apart."""
    found = map(look_at, working_in(folder)) if has_proc() else ()
    return [held for held in found if held is not None]


class Pool(NamedTuple):
    """The processes that a server or a host has started, by their ids, the oldest first."""

    guards: list[int]
    fuses: list[int]
    workers: list[int]

    @classmethod
    def at(cls, folder: Path, pid: int) -> Pool:
        """Each is a child of one before; guards and workers lead groups of their own, and a fuse
        is in its guard's."""
        found = processes_in(folder)
        guards = [held.pid for held in found if held.parent == pid]
        fuses = [held.pid for held in found if held.parent == held.group in guards]
        above = {*guards, *fuses}
        workers = [held.pid for held in found if held.parent in above and held.pid not in fuses]
        return cls(guards, fuses, workers)


def files_in(folder: Path) -> dict[str, int]:
    """Numbers of sockets, and of lock files of servers, in a folder, and in those below it that
    servers make."""
    sockets = locks = 0
    for each in (folder, *folder.glob("trio_envserve-*")):
        with os.scandir(each) as entries:
            for entry in entries:
                if entry.name.endswith(LOCKS):
                    locks += 1
                else:
                    with contextlib.suppress(FileNotFoundError):
                        sockets += stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    return {"sockets": sockets, "locks": locks}


def sample(folder: Path, known: Mapping[int, str]) -> dict[str, Any]:
    """A sample: ``kinds`` (by kind: ``processes``, ``descriptors``, ``threads``, ``rss_kib``),
    ``sockets`` and ``locks``.  ``known``: kinds by process id."""
    own = look_at(os.getpid()) if has_proc() else None
    kinds: defaultdict[str, dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(Held._fields[3:], 0)
    )
    for held in [*processes_in(folder), *filter(None, [own])]:
        kind = known.get(held.pid) or ("worker" if held.group == held.pid else "child")
        record = kinds["rig" if held is own else kind]
        record["processes"] = record.get("processes", 0) + 1
        record["descriptors"] += held.descriptors
        record["threads"] += held.threads
        record["rss_kib"] = max(record["rss_kib"], held.rss_kib)
    return {"kinds": dict(kinds), **files_in(folder)}


def not_given_back(begin: Mapping[str, Any], end: Mapping[str, Any]) -> Iterator[str]:
    """The counts that are higher in one sample than in an earlier one, or fewer processes."""
    for kind in sorted(begin["kinds"].keys() | end["kinds"].keys()):
        before, after = begin["kinds"].get(kind, {}), end["kinds"].get(kind, {})
        for name in COUNTED:
            had, has = before.get(name, 0), after.get(name, 0)
            if has > had or (name == "processes" and has != had):
                yield f"{kind}: {had} {name} at the begin, and {has} at the end"
    for name in ("sockets", "locks"):
        if end[name] > begin[name]:
            yield f"{begin[name]} {name} at the begin, and {end[name]} at the end"


class Samples(Counting):
    """All is given back, nothing is left over, and memory does not grow."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[str, Any]] = {}
        """The last sample of each phase."""
        self.steady: list[dict[str, Any]] = []
        """Resident memory after each block of the measurement, and how many were right."""
        self.most_kib: dict[str, int] = {}
        """By kind of process, the largest resident memory that was seen."""
        self.over = False

    def see(self, event: Event) -> None:
        if event.kind == "phase":
            self.over |= event.actor == "end"
        elif event.kind == "sampled" and event.actor == "steady":
            what = dict(event.what)
            self.steady.append({**what, "rss_kib": dict(what["rss_kib"])})
        elif event.kind == "sampled":
            what = dict(event.what)
            kinds = {kind: dict(record) for kind, record in what["kinds"]}
            self.samples[event.actor] = {**what, "kinds": kinds}
            for kind, record in kinds.items():
                self.most_kib[kind] = max(self.most_kib.get(kind, 0), record["rss_kib"])

    @property
    def growth_kib(self) -> dict[str, float]:
        """Growth by 10,000 requests; empty if it was not measured."""
        if len(self.steady) < 2:
            return {}
        first, last = self.steady[0]["rss_kib"], self.steady[-1]["rss_kib"]
        requests = sum(block["requests"] for block in self.steady[1:])
        return {who: round((last[who] - first[who]) * 10_000 / requests, 1) for who in first}

    def figures(self) -> dict[str, Any]:
        """Figures for people; none without samples."""
        if not self.samples:
            return {}
        return {"growth_kib_per_10000": self.growth_kib, "most_kib": self.most_kib}

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by what was not given back, is left over, or grew."""
        for text in self._wrong() if self.samples else ():
            yield Violation("G8", at_s, text)

    def _wrong(self) -> Iterator[str]:
        begin, end, closed = map(self.samples.get, ("begin", "end", "closed"))
        if begin is not None and end is not None:
            yield from not_given_back(begin, end)
        if closed is not None:
            for kind, record in closed["kinds"].items():
                if kind != "rig":
                    yield f"{record['processes']} processes are left over: {kind}"
            if closed["sockets"]:
                yield f"{closed['sockets']} socket files are left over"
        if self.over and not (begin and end and closed and self.growth_kib):
            yield "samples of the begin, the measurement or the end are missing"
        for block in self.steady:
            if block["right"] != block["requests"]:
                wrong = block["requests"] - block["right"]
                yield f"{wrong} of {block['requests']} requests of the measurement were not right"
        for who, kib in self.growth_kib.items():
            if kib >= GROWTH_KIB_MOST:
                yield f"the {who} grew by {kib:.0f} KiB in 10,000 requests"
