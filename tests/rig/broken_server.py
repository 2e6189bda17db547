"""A server with the fault that its first argument names, for a rig to find.

It is the command (``serve`` and its options follow) for faults of what a server decides, and
:mod:`.server` (its options follow) for faults of its process and of what it answers.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from tests.rig import server
from tests.rig.program import given_options, input_ends, say
from trio_envserve.cli import main as command
from trio_envserve.core.work import Works
from trio_envserve.lab.environment import LoggedEnvironment

# -- what it decides --------------------------------------------------------------------


def consent() -> None:
    """Whatever a worker ran when it died is run again."""
    Works.may_rerun = lambda self, work: True  # type: ignore[method-assign]


def journal() -> None:
    """The journal is thrown away before each start."""
    shutil.rmtree("journal", ignore_errors=True)


def duplicate() -> None:
    """A request that is there already is taken for one that was never seen: it is entered and run
    again."""
    setattr(Works, "request", never_seen)  # noqa: B010  # its own class, to break it


def never_seen(works: Any, session: Any, ask: Any, *rest: Any) -> Any:
    """Forget the ticket, and whatever runs or is kept for it, and enter it anew."""
    ticket = session.tickets.get(ask.sequence)
    work = None if ticket is None else ticket.work
    if ticket is not None and (ticket.kept is not None or (work and work.execution is not None)):
        if work is not None:
            work.execution.is_wanted = False  # it goes on; nobody waits for it any more
            works.accounts.run(work.account, -1)
            works._drop_body(work)
        works._forget(ticket)
    return ENTER(works, session, ask, *rest)


ENTER: Final = Works.request

OF_THE_COMMAND: Final[Mapping[str, Callable[[], None]]] = {
    "consent": consent, "journal": journal, "duplicate": duplicate
}  # fmt: skip

# -- its loop, once a second from the first round of an attack on -------------------------

KEPT: list[bytearray] = []


def block() -> None:
    ends_s = time.thread_time() + 0.2
    while time.thread_time() < ends_s:
        pass


def grow() -> None:
    """200 MiB a second, for three seconds."""
    if len(KEPT) < 3:
        KEPT.append(bytearray(b"x") * (200 << 20))


def die() -> None:
    os.write(2, b"Assertion failed: broken on purpose\n")
    os.abort()


def freeze() -> None:
    """A loop that stands still for so long that a newcomer gives up."""
    if not KEPT:
        KEPT.append(bytearray())
        time.sleep(20.0)


OF_THE_LOOP: Final[Mapping[str, Callable[[], None]]] = {
    "block": block, "grow": grow, "die": die, "freeze": freeze
}  # fmt: skip


class Faulty(trio.abc.Instrument):
    def __init__(self, fault: Callable[[], None], log: Path) -> None:
        self._fault = fault
        self._log = log
        self._due_s = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if time.monotonic() > self._due_s:
            if '"actor": "round"' in self._log.read_text():
                self._fault()
            self._due_s = time.monotonic() + 1.0  # a busy machine, too, works in between


# -- what it answers; in a server without worker processes --------------------------------

shipped = LoggedEnvironment.run_rollout


async def wrong(self: LoggedEnvironment, rollout: Any) -> Any:
    return {**await shipped(self, rollout), "request": "another"}


async def twice(self: LoggedEnvironment, rollout: Any) -> Any:
    await shipped(self, rollout)
    return await shipped(self, rollout)


async def main(fault: str, options: dict[str, Any]) -> None:
    if fault in OF_THE_LOOP:
        trio.lowlevel.add_instrument(Faulty(OF_THE_LOOP[fault], Path(options["log"])))
    elif fault in ("wrong", "twice"):
        LoggedEnvironment.run_rollout = {"wrong": wrong, "twice": twice}[fault]  # type: ignore[method-assign]
    elif fault == "deaf" and not options["bind"].endswith(":0"):
        say("serving", address=options["bind"])  # and nobody listens
        await input_ends()
        return
    await server.main(options)


if __name__ == "__main__":
    fault = sys.argv.pop(1)
    if fault in OF_THE_COMMAND:
        OF_THE_COMMAND[fault]()
        raise SystemExit(command())
    trio.run(main, fault, given_options())
    raise SystemExit(3 if fault == "leave" else 0)
