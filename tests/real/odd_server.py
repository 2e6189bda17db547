"""A server in a process that was started strangely.

Argument: a JSON object with the arguments of :func:`main`; its address is told by a
mark in the directory.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

import trio

from tests.real.environments import Stage
from trio_envserve import ServerLimits, open_server

_PR_SET_CHILD_SUBREAPER = 36


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
        "tests.real.environments:Actor", args={"directory": directory}, bind=bind,
        limits=ServerLimits(**limits),
    ) as server:  # fmt: skip
        if "closes streams when it serves" in odd:
            close(range(3))
        Stage(directory).put("address", server.address)
        await trio.sleep_forever()


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    for each in options["odd"]:
        become(each)
    trio.run(partial(main, **options))
