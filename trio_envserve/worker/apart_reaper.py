"""The two processes above each one for calls apart, which end all that it has started.

Theory of operation
-------------------
On Linux the process that the worker starts forks the *reaper*, and that the process for calls
(:func:`fork_below`).  The reaper becomes the parent of each process below it whose own
parent has ended (:mod:`.reaper`): also of one in a session of its own.  It kills all of them once

- the process for calls has ended, by its timer or otherwise;
- the first process has ended: the worker kills that one to cancel a call;
- the process for calls has become another program (``os.execv``), which has no timer and would
  never reply: the kernel has closed its end of a pipe.

Reaper and first process then end as the process for calls has.  Both hold all descriptors that the
worker watches: so for the worker nothing has ended until all has.  Only where it cancels a call may
it reap the first process, which it has killed, a moment before the others have ended.  A reaper
that a call has stopped goes on by the first process, or by the end of that.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import warnings
from typing import Final, NoReturn

from .apart_state import TIMES_OUT
from .heartbeat import die_with_parent
from .reaper import (
    be_deaf,
    become_subreaper,
    drain,
    end_as,
    kill_group,
    kill_others,
    reap,
    woken_by_children,
)

LEFT: Final = TIMES_OUT - 1
"""Signal by which the first process ends if the one for calls has become another program."""
ENDING_S = 0.5
"""Time that a process may take to end after its descriptors are closed, in seconds, before it is
taken for another program."""

_PR_SET_PDEATHSIG = 1


def fork_below(libc: ctypes.CDLL) -> None:
    """Return in a process below this one and its reaper; in this one where orphans come to
    nobody.  Call it before there are threads."""
    if sys.platform != "linux":
        return
    first_ended, first = os.pipe()
    if child := _fork():
        try:
            be_deaf()
            while os.WIFSTOPPED(status := os.waitpid(child, os.WUNTRACED)[1]):
                os.kill(child, signal.SIGCONT)
            end_as(status)
        finally:
            os._exit(1)
    os.close(first)
    become_subreaper(libc)
    libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGCONT))
    last_ended, last = os.pipe()
    parent = os.getpid()
    with woken_by_children() as woken:
        if child := _fork():
            os.close(last)
            be_deaf()
            _watch(child, woken, first_ended, last_ended)
    os.close(first_ended)
    os.close(last_ended)
    die_with_parent(parent)


def _fork() -> int:
    with warnings.catch_warnings():
        # Of the threads of a library that the program has imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _watch(child: int, woken: int, first_ended: int, last_ended: int) -> NoReturn:
    """Wait for the end of the child or of the first process, and kill what is left."""
    try:
        poll = select.poll()
        for each in (woken, first_ended, last_ended):
            poll.register(each, select.POLLIN)
        has_left = False
        while (status := reap(child)) is None:
            found = {each for each, _ in poll.poll(ENDING_S * 1000 if has_left else None)}
            drain(woken)
            if first_ended in found:
                poll.unregister(first_ended)
                kill_group(child)
            elif last_ended in found:
                poll.unregister(last_ended)
                has_left = True
            elif has_left and not found:
                status = LEFT
                break
        kill_others(woken)
        end_as(status)
    finally:
        os._exit(1)
