"""The besieged server: a process of its own, measured.

``python -m trio_envserve.lab.siege.server '{"loop": ..., ...}'``

The argument is one JSON object with the arguments of
:func:`~trio_envserve.server.open_server` (``limits`` and ``wire`` as objects of
those that are not the default), ``loop`` (the log of its loop's turns) and, if
wanted, ``descriptors``: how many it may have open.  It prints one line, ``{"event":
"serving", "address": ..., "pid": ...}``, and obeys ``{"do": "hold", "seconds": s}``:
its loop stands still for so long.  It stops when its standard input ends.  Its process
has the settings of the ``serve`` command.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
from typing import Any

import trio

from ...core.limits import ServerLimits, WireLimits
from ...host.allocator import keep_freed_memory
from ...host.collector import collect_seldom
from ...server import open_server
from ..orders import given_options, obey_orders, say
from .meter import watch_loop


def main() -> int:
    """Serve until the end of standard input."""
    options = given_options("siege")
    # Its own words are part of what is kept; a flood of them would not be.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    descriptors = options.pop("descriptors", None)
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    options["limits"] = ServerLimits(**options.get("limits", {}))
    options["wire"] = WireLimits(**options.get("wire", {}))
    trio.run(_serve, options, options.pop("loop"))
    return 0


async def _serve(options: dict[str, Any], loop: str) -> None:
    keep_freed_memory()
    async with open_server(**options) as server, trio.open_nursery() as nursery:
        nursery.start_soon(collect_seldom)
        watch_loop(loop, "server")
        say("serving", address=server.address, pid=os.getpid())
        await obey_orders(_hold)
        nursery.cancel_scope.cancel()


async def _hold(order: dict[str, Any]) -> None:
    """The one order that there is."""
    time.sleep(order["seconds"])  # noqa: ASYNC251  # that is the fault
    say("held")


if __name__ == "__main__":
    raise SystemExit(main())
