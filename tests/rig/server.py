"""The server of rigs and tests as a process of its own, with whatever limits they want.

The argument is one JSON object with the arguments of :func:`~trio_envserve.server.open_server`
(``limits``, ``wire`` and ``keys`` as objects of those that are not the default), and if wanted
``descriptors``, the number that it may have open; ``doors``, the limits of each by its name;
``log``, that of a run, to which the turns of its loop are written; ``beats``, whether libzmq sends
heartbeats; ``level``, of its own log; ``mutant``, what is broken in it (its workers are whole).

It says ``serving`` with its ``address``, those of its hosts and doors and its ``pid``, and
``ready`` when its workers are.  Its orders: ``hold`` (its loop stands still for some ``seconds``;
``done``), and ``fork`` (a process that stays and does nothing, ``by`` ``python`` or ``c``;
``forked``, with the ``pid``).  It ends with its standard input, or by SIGTERM.  Its process has the
settings of the command ``serve``.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import trio
import zmq

from tests.rig.meter import watch_loop
from tests.rig.program import given_options, obey_orders, say
from trio_envserve.core.errors import ServerStartError
from trio_envserve.core.limits import KeyLimits, ServerLimits, WireLimits
from trio_envserve.core.workforce import DIFFERS
from trio_envserve.doors.verifiers import VerifiersLimits, open_verifiers_door
from trio_envserve.host.allocator import keep_freed_memory
from trio_envserve.host.collector import collect_seldom
from trio_envserve.lab.mutants import find
from trio_envserve.lab.processes import ANY_PORT
from trio_envserve.server import Server, open_server

BEATS_MS: Final = {
    zmq.HEARTBEAT_IVL: 1000, zmq.HEARTBEAT_TIMEOUT: 3000, zmq.HEARTBEAT_TTL: 3000
}  # fmt: skip
FORK_LIFE_S: Final = 120
FORKS: Final[Mapping[str, Callable[[], int]]] = {"python": os.fork, "c": ctypes.PyDLL(None).fork}


async def main(options: dict[str, Any]) -> None:
    """Serve until the end of standard input, or SIGTERM."""
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    level = options.pop("level", "WARNING")  # a flood of words would be kept, too
    logging.basicConfig(stream=sys.stderr, level=level, format=text)
    logging.getLogger().addHandler(EndAtDifference())
    if descriptors := options.pop("descriptors", None):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    if options.pop("beats", False):
        send_heartbeats()
    for name, kind in (("limits", ServerLimits), ("wire", WireLimits), ("keys", KeyLimits)):
        options[name] = kind(**options.get(name, {}))
    doors, log = options.pop("doors", {}), options.pop("log", "")
    keep_freed_memory()
    async with AsyncExitStack() as stack:
        if mutant := options.pop("mutant", ""):
            stack.enter_context(find(mutant).applied())
        server = await stack.enter_async_context(open_server(**options))
        said = {"address": server.address, "hosts": server.hosts_address}
        common = {name: options[name] for name in ("wire", "transport") if name in options}
        if doors:
            from trio_envserve.doors.http import HttpLimits, open_http_door

            http = open_http_door(
                server, bind="127.0.0.1:0", limits=HttpLimits(**doors["http"]), **common
            )
            said["http"] = (await stack.enter_async_context(http)).url
            # Beside the server's own front, in the same way.
            bind = f"{server.address}-v" if server.address.startswith("ipc:") else ANY_PORT
            limits = VerifiersLimits(**doors["verifiers"])
            verifiers = open_verifiers_door(server, bind=bind, limits=limits, **common)
            said["verifiers"] = (await stack.enter_async_context(verifiers)).address
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(collect_seldom)
        await nursery.start(_end_by_signal, nursery.cancel_scope)
        if log:
            watch_loop(log, "server")
        say("serving", pid=os.getpid(), **said)
        nursery.start_soon(_say_ready, server)
        await obey_orders(obey)
        nursery.cancel_scope.cancel()


class EndAtDifference(logging.Handler):
    """Ends the server once it and a worker disagree about what runs: that is a fault of this
    project (G1), and no rig goes on beyond it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a line of the log, after it was written."""
        if DIFFERS in record.getMessage():
            os._exit(70)


async def _end_by_signal(scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


async def _say_ready(server: Server) -> None:
    with suppress(ServerStartError):
        await server.wait_ready()
        say("ready")


async def obey(order: Mapping[str, Any]) -> None:
    if order["do"] == "hold":
        time.sleep(order["seconds"])  # noqa: ASYNC251  # that is the fault
        say("done")
    else:
        pid = FORKS[order["by"]]()
        if pid == 0:  # it keeps every descriptor
            ctypes.PyDLL(None).sleep(FORK_LIFE_S)
            os._exit(0)
        say("forked", pid=pid)


def send_heartbeats() -> None:
    """From now on libzmq sends heartbeats in this process, and drops who does not answer."""
    shipped = zmq.Socket.set

    def set_all(self: zmq.Socket[bytes], option: int, value: Any) -> None:
        if option == zmq.HEARTBEAT_IVL:
            for each, milliseconds in BEATS_MS.items():
                shipped(self, each, milliseconds)
        else:
            shipped(self, option, value)

    zmq.Socket.set = set_all  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    trio.run(main, given_options())
