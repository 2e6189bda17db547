"""The server that is attacked: a process of its own, measured; and its environment.

The argument is one JSON object with the arguments of
:func:`~trio_envserve.server.open_server` (``limits``, ``wire`` and ``keys`` as objects of those
that are not the default), ``log``, that of the run, and if wanted ``descriptors``, the number
that it may have open, ``doors``, the limits of each by its name, ``beats``, whether libzmq sends
heartbeats, and ``meter``, whether the loops of its workers are measured.  It says ``serving``
with its ``addresses``, obeys ``{"do": "hold", "seconds": s}`` (its loop stands still for so long),
and ends with its standard input.  Its process has the settings of the ``serve`` command.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, final

import trio
import zmq

from tests.rig.meter import watch_loop
from trio_envserve.core.limits import KeyLimits, ServerLimits, WireLimits
from trio_envserve.doors.verifiers import VerifiersLimits, open_verifiers_door
from trio_envserve.envs.interface import Rollout
from trio_envserve.host.allocator import keep_freed_memory
from trio_envserve.host.collector import collect_seldom
from trio_envserve.lab.environment import Logged
from trio_envserve.lab.processes import ANY_PORT, given_options, obey_orders, say
from trio_envserve.server import open_server

BEATS_MS: Final = {
    zmq.HEARTBEAT_IVL: 1000, zmq.HEARTBEAT_TIMEOUT: 3000, zmq.HEARTBEAT_TTL: 3000
}  # fmt: skip


@final
class Besieged:
    """An input with a ``request`` is logged by its begin and its end, as that of any rig; others
    are not.  With ``bytes`` an answer has that size, after ``sleep_s``.  A run by the wire of
    verifiers has its input as JSON, and is answered so, in four deltas if it is large."""

    name = "besieged"

    def __init__(self, log: str, meter: bool = True) -> None:
        self._logged = Logged(log)
        self._log = log if meter else ""

    def setup(self) -> None:
        """Begin to measure the loop that runs this."""
        if self._log:
            watch_loop(self._log, "worker")

    async def run_rollout(self, rollout: Rollout) -> Any:
        """One execution."""
        match rollout.input:
            case {"run": bytes(run)}:
                asked = dataclasses.replace(rollout, input=json.loads(run))
                value = await self.run_rollout(asked)
                pad = value.pop("pad")
                deltas = [pad] * 4 if pad else [b"{}"]
                reply = pad or json.dumps(value).encode()
                return {"state": {"deltas": deltas, "reply": reply, "traces": ["t"]}}
            case {"request": str(request)} if request:
                return await self._logged.run_rollout(rollout)
            case {"bytes": _} | {"index": _} | {"request": _}:
                seconds, size = rollout.input.get("sleep_s", 0.0), rollout.input.get("bytes", 0)
                await trio.sleep(min(max(0.0, seconds), 60.0))
                return {"reward": 1.0, "pad": bytes(min(size, 4_000_000))}
        raise ValueError("an input of an attack has bytes, an index, or a request")


async def main(options: dict[str, Any]) -> None:
    """Serve until the end of standard input."""
    # Its own words are part of what is kept; a flood of them would not be.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if descriptors := options.pop("descriptors", None):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    if options.pop("beats", False):
        send_heartbeats()
    for name, kind in (("limits", ServerLimits), ("wire", WireLimits), ("keys", KeyLimits)):
        options[name] = kind(**options.get(name, {}))
    doors, log, meter = options.pop("doors", {}), options.pop("log"), options.pop("meter", True)
    args = {"log": log, "meter": meter}
    keep_freed_memory()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            open_server("tests.attack.besieged:Besieged", args=args, **options)
        )
        addresses = {"front": server.address, "hosts": server.hosts_address}
        common = {name: options[name] for name in ("wire", "transport") if name in options}
        if doors:
            from trio_envserve.doors.http import HttpLimits, open_http_door

            http = open_http_door(
                server, bind="127.0.0.1:0", limits=HttpLimits(**doors["http"]), **common
            )
            addresses["http"] = (await stack.enter_async_context(http)).url
            # Beside the server's own front, in the same way.
            bind = f"{server.address}-v" if server.address.startswith("ipc:") else ANY_PORT
            limits = VerifiersLimits(**doors["verifiers"])
            verifiers = open_verifiers_door(server, bind=bind, limits=limits, **common)
            addresses["verifiers"] = (await stack.enter_async_context(verifiers)).address
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(collect_seldom)
        watch_loop(log, "server")
        say("serving", addresses=addresses, pid=os.getpid())
        await obey_orders(hold)
        nursery.cancel_scope.cancel()


async def hold(order: Mapping[str, Any]) -> None:
    """Stand still: the one order that there is."""
    time.sleep(order["seconds"])  # noqa: ASYNC251  # that is the fault
    say("done")


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
