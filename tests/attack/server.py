"""The besieged server: a process of its own, measured.

``python -m tests.attack.server '{"loop": ..., ...}'``

The argument is one JSON object with the arguments of
:func:`~trio_envserve.server.open_server` (``limits`` and ``wire`` as objects of
those that are not the default, ``keys``, too), ``loop`` (the log of its loop's turns) and,
if wanted, ``descriptors``: how many it may have open, and ``doors``: the limits of each door
by its name, ``http`` and ``verifiers``.  It prints one line, ``{"event": "serving",
"addresses": {"front": ..., "hosts": ..., ...}, "pid": ...}``, and obeys
``{"do": "hold", "seconds": s}``: its loop stands still for so long.  It stops when its standard
input ends.  Its process has the settings of the ``serve`` command.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import trio

from trio_envserve.core.errors import ConfigError
from trio_envserve.core.limits import KeyLimits, ServerLimits, WireLimits
from trio_envserve.doors.verifiers import VerifiersLimits, open_verifiers_door
from trio_envserve.host.allocator import keep_freed_memory
from trio_envserve.host.collector import collect_seldom
from trio_envserve.lab.orders import given_options, obey_orders, say
from trio_envserve.server import Server, open_server

from .meter import watch_loop


def main() -> int:
    """Serve until the end of standard input."""
    options = given_options("tests.attack")
    # Its own words are part of what is kept; a flood of them would not be.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    descriptors = options.pop("descriptors", None)
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    options["limits"] = ServerLimits(**options.get("limits", {}))
    options["wire"] = WireLimits(**options.get("wire", {}))
    options["keys"] = KeyLimits(**options.get("keys", {}))
    trio.run(_serve, options, options.pop("loop"), options.pop("doors", {}))
    return 0


async def _serve(options: dict[str, Any], loop: str, doors: Mapping[str, Any]) -> None:
    keep_freed_memory()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(open_server(**options))
        addresses = {"front": server.address}
        if server.hosts_address:
            addresses["hosts"] = server.hosts_address
        for name, limits in doors.items():
            addresses[name] = await OPEN[name](stack, server, options, limits)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(collect_seldom)
        watch_loop(loop, "server")
        say("serving", addresses=addresses, pid=os.getpid())
        await obey_orders(_hold)
        nursery.cancel_scope.cancel()


async def _open_http(
    stack: AsyncExitStack, server: Server, options: Mapping[str, Any], limits: Mapping[str, Any]
) -> str:
    try:
        from trio_envserve.doors.http import HttpLimits, open_http_door
    except ImportError as error:
        raise ConfigError(str(error)) from None
    door = open_http_door(
        server, bind="127.0.0.1:0", limits=HttpLimits(**limits), **_as_server(options)
    )
    return (await stack.enter_async_context(door)).url


async def _open_verifiers(
    stack: AsyncExitStack, server: Server, options: Mapping[str, Any], limits: Mapping[str, Any]
) -> str:
    # Beside the server's own front, in the same way.
    bind = f"{server.address}-v" if server.address.startswith("ipc:") else "tcp://127.0.0.1:0"
    door = open_verifiers_door(
        server, bind=bind, limits=VerifiersLimits(**limits), **_as_server(options)
    )
    return (await stack.enter_async_context(door)).address


def _as_server(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the server that a door's client has, too."""
    return {name: options[name] for name in ("wire", "transport") if name in options}


OPEN = {"http": _open_http, "verifiers": _open_verifiers}
"""How each door is opened, by its name; its address comes back."""


async def _hold(order: dict[str, Any]) -> None:
    """The one order that there is."""
    time.sleep(order["seconds"])  # noqa: ASYNC251  # that is the fault
    say("held")


if __name__ == "__main__":
    raise SystemExit(main())
