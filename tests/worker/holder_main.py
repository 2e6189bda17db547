"""A process whose interpreter is held.

Arguments: the function that runs, the descriptor for answers (-1: none), and ``main`` or
``thread``.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
import time

from trio_envserve.core.stack_frames import named
from trio_envserve.worker.held import answer_on


def hang() -> None:
    re.match(r"(a+)+$", "a" * 40 + "b")


def hold() -> None:
    """Sleeps with the interpreter's lock."""
    ctypes.PyDLL(None).sleep(1000)


def wait() -> None:
    """Asks for the lock from time to time, as a worker's heartbeat thread does."""
    while True:
        time.sleep(0.05)


if __name__ == "__main__":
    function, answers, where = sys.argv[1:]
    if answers != "-1":
        answer_on(int(answers))
    threading.Thread(target=named(wait, "request ab#1"), daemon=True).start()
    code = named(globals()[function], "request ab#2")
    print(flush=True)
    if where == "thread":
        threading.Thread(target=code, daemon=True).start()
        wait()
    code()
