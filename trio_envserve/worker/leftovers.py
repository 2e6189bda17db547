"""Leftovers of code in this process: tasks, threads, children, descriptors.

A :class:`Snapshot` is taken before and after; :meth:`Snapshot.more_than` names what has come.
Objects that this package and trio keep for the next use (threads of trio's cache) are not counted.
Children and descriptors are read from ``/proc``, and are not known elsewhere.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import trio

_TRIO_THREAD = "Trio thread"


class Snapshot(NamedTuple):
    """The present tasks, threads, children and descriptors: names, as often as they are there."""

    tasks: Counter[str]
    threads: Counter[str]
    children: Counter[str]
    descriptors: Counter[str]

    def more_than(self, before: Snapshot) -> dict[str, Counter[str]]:
        """The things that are here and were not there, by kind."""
        kinds = zip(self._fields, self, before, strict=True)
        found = {kind: now - then for kind, now, then in kinds}
        return {kind: names for kind, names in found.items() if names}


def snapshot() -> Snapshot:
    """The things that this process has now.  Call it on the trio loop."""
    return Snapshot(
        Counter(task.name for task in _tasks()),
        Counter(
            each.name for each in threading.enumerate() if not each.name.startswith(_TRIO_THREAD)
        ),
        Counter(_children()),
        Counter(_descriptors()),
    )


def _tasks() -> Iterator[trio.lowlevel.Task]:
    root = trio.lowlevel.current_root_task()
    stack = [root] if root is not None else []
    while stack:
        task = stack.pop()
        yield task
        for nursery in task.child_nurseries:
            stack.extend(nursery.child_tasks)


def _children() -> Iterator[str]:
    own = str(os.getpid())
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in brackets, may hold anything.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if parent == own:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                yield words.decode(errors="replace").strip()[:80] or f"a zombie ({state})"
        except (OSError, ValueError):
            continue  # it has ended meanwhile


def _descriptors() -> Iterator[str]:
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return
    for number in numbers:
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the one of the folder itself
        # A socket's or a pipe's number says nothing.
        yield target if target.startswith("/") else target.partition(":")[0]
