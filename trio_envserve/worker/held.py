"""Who holds the interpreter of a worker, asked from outside.

Theory of operation
-------------------
Code that holds the interpreter lock, such as a regular expression, silences its process: no thread
of it can send a heartbeat or say where it stands.  But the kernel tells of each thread whether it
runs, and for how long it has.  The heartbeat thread wants the lock every ``heartbeat_s`` for some
microseconds.  So a thread that has run for a second of processor time, without one heartbeat
meanwhile, is in code that does not give the lock back, or in code that does not need it
(:class:`ThreadWatch`).  A busy machine makes no such thread: there the heartbeat thread has its
turns, too.  Code that sleeps with the lock is not found: a signal would wake it.

Such a thread is sent a signal.  The worker has registered ``faulthandler`` for that
(:func:`answer_on`): its handler needs no lock, and writes the stack of its own thread to a file
that outlives the process.  Frames in which a request's code begins have its name there
(``core.stack_frames.named``).  A thread takes a signal when it runs again, which may be late on a
busy machine: so its answer, too, is waited for by its processor time (:class:`Question`).

A process that does not catch the signal, such as another program, is not asked.  Nothing is known
where there is no ``/proc``.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, final

ASKING: Final = int(getattr(signal, "SIGRTMAX", signal.SIGUSR2)) - 3
"""The signal: one of those that nobody has a meaning for."""

ANSWER_BYTES = 64 * 1024
"""Most bytes of an answer that are read."""

HELD_S = 1.0
"""Processor time after which a thread of a silent process counts as holding the interpreter, in
seconds."""

ANSWER_S = 0.05
"""Processor time in which a thread that was asked has written where it stands, in seconds."""

_TICKS = os.sysconf("SC_CLK_TCK")
_CAUGHT = "SigCgt:"


def make_answers() -> IO[bytes]:
    """A file for answers, which leaves nothing behind."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("trio-envserve-stacks"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def answer_on(descriptor: int) -> None:
    """Let this process answer the signal there."""
    faulthandler.register(ASKING, file=descriptor, all_threads=False)


@final
class Question:
    """A thread is asked where it stands."""

    def __init__(self, pid: int, thread: int, answers: IO[bytes]) -> None:
        answers.truncate(0)
        answers.seek(0)  # for the process, too: it has a copy of this descriptor
        self._answers = answers
        self._task = Path(f"/proc/{pid}/task/{thread}")
        self._asked = _ran(self._task)[1]
        if _catches(pid):
            ctypes.CDLL(None).tgkill(pid, thread, ASKING)

    def is_over(self) -> bool:
        """Whether the thread has answered, if it does that: it has run for :data:`ANSWER_S`, or it
        waits for something, or it has ended."""
        state, ticks = _ran(self._task)
        return state not in _RUNS_OR_IS_STOPPED or ticks - self._asked >= ANSWER_S * _TICKS

    def answer(self) -> str:
        """The answer so far."""
        return os.pread(self._answers.fileno(), ANSWER_BYTES, 0).decode(errors="replace")


_RUNS_OR_IS_STOPPED = ("R", "T", "t", "D")


def _ran(task: Path) -> tuple[str, int]:
    """The state of a thread, empty if it has ended, and its processor time in ticks."""
    try:
        state, *fields = (task / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return state, sum(map(int, fields[10:12]))


def _catches(pid: int) -> bool:
    try:
        found = _field(Path(f"/proc/{pid}/status").read_text(), _CAUGHT)
        return bool(int(found, 16) >> (ASKING - 1) & 1)
    except (OSError, ValueError):
        return False


def _field(status: str, name: str) -> str:
    return status.partition(f"\n{name}")[2].partition("\n")[0]


@final
class ThreadWatch:
    """Looks at the threads of a silent process from time to time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._first: dict[int, int] = {}
        """Processor time, in ticks, of each thread that ran at all looks, as it was at the first
        of these."""

    def look(self) -> list[int]:
        """The threads that have run for :data:`HELD_S` since the first look: they may hold the
        interpreter."""
        now = dict(self._running())
        self._first = {thread: self._first.get(thread, ticks) for thread, ticks in now.items()}
        least = HELD_S * _TICKS
        return [each for each, ticks in now.items() if ticks - self._first[each] >= least]

    def _running(self) -> Iterator[tuple[int, int]]:
        for task in Path(f"/proc/{self._pid}/task").glob("[0-9]*"):
            state, ticks = _ran(task)
            if state == "R":
                yield int(task.name), ticks
