"""A server with a fault, named by its first argument, for the siege to find."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from tests.attack import besieged
from tests.rig import meter
from trio_envserve.lab.environment import Logged
from trio_envserve.lab.processes import given_options, input_ends, say

KEPT: list[bytearray] = []


def block() -> None:
    """A turn of 200 ms."""
    ends_s = time.thread_time() + 0.2
    while time.thread_time() < ends_s:
        pass


def grow() -> None:
    """200 MiB a second, for three seconds."""
    if len(KEPT) < 3:
        KEPT.append(bytearray(b"x") * (200 << 20))


def die() -> None:
    """The end."""
    os.write(2, b"Assertion failed: broken on purpose\n")
    os.abort()


def freeze() -> None:
    """A loop that stands still for so long that a newcomer gives up."""
    if not KEPT:
        KEPT.append(bytearray())
        time.sleep(20.0)


OF_LOOP: Mapping[str, Callable[[], None]] = {
    "block": block, "grow": grow, "die": die, "freeze": freeze
}  # fmt: skip
"""Faults of the loop."""


class Faulty(trio.abc.Instrument):
    """Has a fault of the loop it is added to, once a second from the first round on."""

    def __init__(self, fault: Callable[[], None], log: Path) -> None:
        self._fault = fault
        self._log = log
        self._due_s = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Have it when it is due."""
        if time.monotonic() > self._due_s:
            self._due_s = time.monotonic() + 1.0
            if '"actor": "round"' in self._log.read_text():
                self._fault()


shipped = Logged.run_rollout


async def wrong(self: Logged, rollout: Any) -> Any:
    """The answer to another request."""
    return {**await shipped(self, rollout), "request": "another"}


async def twice(self: Logged, rollout: Any) -> Any:
    """A second execution of the same request."""
    await shipped(self, rollout)
    return await shipped(self, rollout)


async def main(fault: str, options: dict[str, Any]) -> None:
    """Break it, and serve."""
    if fault in OF_LOOP:
        watch = meter.watch_loop

        def watch_with_fault(log: Any, who: str) -> Any:
            trio.lowlevel.add_instrument(Faulty(OF_LOOP[fault], Path(log)))
            return watch(log, who)

        setattr(besieged, "watch_loop", watch_with_fault)  # noqa: B010  # it is not exported
    elif fault in ("wrong", "twice"):
        # Workers are processes of their own; without any the environment runs in this one.
        Logged.run_rollout = {"wrong": wrong, "twice": twice}[fault]  # type: ignore[method-assign]
    elif fault == "deaf" and not options["bind"].endswith(":0"):
        say("serving", addresses={"front": options["bind"]})  # and nobody listens
        await input_ends()
        return
    await besieged.main(options)


if __name__ == "__main__":
    fault = sys.argv.pop(1)
    trio.run(main, fault, given_options())
    raise SystemExit(3 if fault == "leave" else 0)
