"""A strange server, and its processes as the system sees them: for tests of hosts and workers.

As a program it is that server, in a process that is odd in the ways that its argument names.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from tests.proc import stats
from tests.real.environments import Stage
from tests.real.judge import Judge
from tests.real.support import ACTOR, ANY_PORT, QUICK, open_process
from tests.rig.program import given_options
from trio_envserve import ServerLimits, open_server
from trio_envserve.lab.processes import Process

_PR_SET_CHILD_SUBREAPER = 36


@asynccontextmanager
async def open_odd_server(judge: Judge, *odd: str, bind: str = ANY_PORT) -> AsyncIterator[Process]:
    """A server in a process that is odd in these ways, bound; killed at the end.  Its address is
    told by a mark: it may have no standard output."""
    options = {"directory": str(judge.directory), "bind": bind, "odd": odd, "limits": QUICK}
    async with open_process(judge, "tests.real.odd", options) as server:
        server.said["address"] = await judge.wait_for("address")
        yield server


def zombies_of(pid: int) -> list[int]:
    """The children of a process that have ended, and that it has not reaped."""
    return [each for each, (state, parent, *_) in stats() if parent == str(pid) and state == "Z"]


# -- the server -------------------------------------------------------------------------


def become(odd: str) -> None:
    """Make this process strange, before it begins."""
    match odd.split():
        case ["ignores", "SIGCHLD"]:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        case ["inherits", "orphans"]:  # as process 1 of a container does
            assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        case ["was", "given", "no", *standard]:
            close(standard)


def close(standard: Iterable[str | int]) -> None:
    """Close these of the standard streams; the next files opened get their numbers."""
    for descriptor in map(int, standard):
        os.close(descriptor)
        # Or what is logged would be written into that other file.
        setattr(sys, ("stdin", "stdout", "stderr")[descriptor], None)


async def main(directory: str, bind: str, odd: list[str], limits: dict[str, Any]) -> None:
    if "closes streams before it serves" in odd:
        close(range(3))
    async with open_server(
        ACTOR, args={"directory": directory}, bind=bind, limits=ServerLimits(**limits)
    ) as server:
        if "closes streams when it serves" in odd:
            close(range(3))
        Stage(directory).put("address", server.address)
        await trio.sleep_forever()


if __name__ == "__main__":
    options = given_options()
    for each in options["odd"]:
        become(each)
    trio.run(partial(main, **options))
