"""A server whose limits are raised beyond what options of the command can say.

``python -m tests.cost.large_server '{"environment": ..., "args": ...,
"limits": {...}, "wire": {...}}'``

The argument is one JSON object with the arguments of
:func:`~trio_envserve.server.open_server` (``limits`` and ``wire`` as objects of those
that are not the default).  The program prints ``{"event": "serving", "address": ...}``,
then ``{"event": "ready"}``, and ends with its standard input.  Its process has the
settings of the ``serve`` command.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import trio

from trio_envserve.core.limits import ServerLimits, WireLimits
from trio_envserve.host.allocator import keep_freed_memory
from trio_envserve.host.collector import collect_seldom
from trio_envserve.lab.orders import given_options, input_ends, say
from trio_envserve.server import open_server


def main() -> None:
    """Serve until the end of standard input."""
    options = given_options("python -m tests.cost")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    options["limits"] = ServerLimits(**options["limits"])
    options["wire"] = WireLimits(**options["wire"])
    trio.run(_serve, options)


async def _serve(options: dict[str, Any]) -> None:
    keep_freed_memory()
    async with open_server(**options) as server, trio.open_nursery() as nursery:
        nursery.start_soon(collect_seldom)
        say("serving", address=server.address)
        await server.wait_ready()
        say("ready")
        await input_ends()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    main()
