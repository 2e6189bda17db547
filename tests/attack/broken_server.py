"""A besieged server with a fault, named by its first argument, for the siege to find."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import trio

from tests.attack import meter, server
from trio_envserve.envs.arithmetic import Arithmetic

FAULT_S = 4.0
"""After how long there is a fault: the siege has begun by then."""


class Later(trio.abc.Instrument):
    """Does something in the loop again and again."""

    def __init__(self, fault: Any) -> None:
        self._fault = fault
        self._due_s = time.monotonic() + FAULT_S

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if time.monotonic() > self._due_s:
            self._due_s = time.monotonic() + 1.0
            self._fault()


def hold() -> None:
    """A turn of 200 ms."""
    ends_s = time.thread_time() + 0.2
    while time.thread_time() < ends_s:
        pass


KEPT: list[bytearray] = []


def grow() -> None:
    """A hundred MiB a second, for three seconds."""
    if len(KEPT) < 3:
        KEPT.append(bytearray(b"x") * (100 << 20))


def die() -> None:
    """The end."""
    os.write(2, b"Assertion failed: broken on purpose\n")
    os.abort()


FAULTS = {"hold": hold, "grow": grow, "die": die}


def main() -> int:
    fault = sys.argv.pop(1)
    if fault == "wrong":
        # Workers are processes of their own; in this one runs the environment itself.
        original = Arithmetic.task
        Arithmetic.task = lambda self, index, seed=None: original(self, (index + 1) % 1000)  # type: ignore[method-assign]
    else:
        watch = meter.watch_loop

        def watch_with_fault(path: Any, who: str) -> Any:
            trio.lowlevel.add_instrument(Later(FAULTS[fault]))
            return watch(path, who)

        setattr(server, "watch_loop", watch_with_fault)  # noqa: B010  # it is not exported
    return server.main()


if __name__ == "__main__":
    raise SystemExit(main())
