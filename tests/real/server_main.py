"""A server as a process of its own, which a test can kill, stop and continue.

Argument: a JSON object with ``environment``, ``args``, ``bind``, ``workers`` and
``limits``.  Says ``serving``, with its ``address``, or ``broken``, with the ``error``;
on SIGTERM it closes; on SIGUSR1 it forks a process that stays, as Python does, on
SIGUSR2 as a library does that is written in C, and says ``forked``, with the ``pid``.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import trio

from trio_envserve import ServerLimits, ServerStartError, open_server
from trio_envserve.lab.processes import given_options, say

FORK_LIFE_S = 120
FORKS: dict[signal.Signals, Callable[[], int]] = {
    signal.SIGUSR1: os.fork,
    signal.SIGUSR2: ctypes.PyDLL(None).fork,
}


def fork_what_stays(number: int) -> int:
    """Fork a process that does nothing, and so keeps every descriptor."""
    pid = FORKS[signal.Signals(number)]()
    if pid == 0:
        ctypes.PyDLL(None).sleep(FORK_LIFE_S)
        os._exit(0)
    return pid


async def main(options: dict[str, Any]) -> int:
    limits = ServerLimits(**options.pop("limits", {}))
    with trio.open_signal_receiver(signal.SIGTERM, *FORKS) as signals:
        try:
            async with open_server(**options, limits=limits) as server:
                say("serving", address=server.address)
                async for number in signals:
                    if number == signal.SIGTERM:
                        return 0
                    say("forked", pid=fork_what_stays(number))
        except ServerStartError as error:
            say("broken", error=str(error))
            return 1
    return 0


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(trio.run(main, given_options()))
