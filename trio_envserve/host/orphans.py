"""Reaping orphans, where this process is number 1.

Theory of operation
-------------------
In a container the command is often process 1.  The kernel makes that the parent of each
process whose own parent has ended: of the guards, and of what an environment has started
and not waited for.  They stay as zombies until process 1 reaps them, and each takes one of
the processes that the container may have.

The workers are children, too, and how they ended is for their supervisors.  So one of them
is never reaped here.  While it waits for its supervisor, which takes it a moment, this task
looks no further.
"""

from __future__ import annotations

import os
from collections.abc import Container
from typing import Final, NoReturn

import trio

EVERY_S: Final = 1.0
"""The pause between two looks."""

MOST: Final = 1_000
"""Most processes that are reaped at a time, so that the loop goes on."""


def is_first() -> bool:
    """Whether this process gets the orphans of all others that it sees."""
    return os.getpid() == 1


async def reap_orphans(own: Container[int]) -> NoReturn:
    """Reap every child that has ended and is not in ``own``, until cancelled."""
    while True:
        reap_ended(own)
        await trio.sleep(EVERY_S)


def reap_ended(own: Container[int]) -> int:
    """Reap what has ended now; returns how many."""
    for count in range(MOST):
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in own:
                return count
            os.waitpid(ended.si_pid, os.WNOHANG)
        except ChildProcessError:  # there is no child at all
            return count
    return MOST
