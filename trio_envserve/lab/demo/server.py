"""The server of the demonstration: a process of its own, to be killed.

``python -m trio_envserve.lab.demo.server '{"environment": ..., ...}'``

The argument is one JSON object with the arguments of
:func:`~trio_envserve.server.open_server` (``environment``, ``args``, ``bind``,
``workers``, ``hosts_bind``, ``limits`` as an object of those that are not the default) and
``log_directory``.  When the address is bound it prints one
line, ``{"address": ..., "hosts": ..., "pid": ...}``.  It stops when its standard input ends,
so nothing is left behind however the demonstration ends.
"""

from __future__ import annotations

import json
import os
from typing import Any

import trio

from ...core.limits import ServerLimits
from ...logs import LogSetup, configure, set_title
from ...server import open_server
from ..orders import given_options, input_ends


def main() -> None:
    """Serve until the end of standard input."""
    options = given_options("demo")
    options["limits"] = ServerLimits(**options.get("limits", {}))
    logging = {"level": "INFO", "directory": options.pop("log_directory")}
    configure(LogSetup(**logging), "server")
    trio.run(_serve, options, logging)


async def _serve(options: dict[str, Any], logging: dict[str, str]) -> None:
    async with open_server(**options, worker_logging=logging) as server:
        set_title(f"trio-envserve demo server at {server.address}")
        said = {"address": server.address, "hosts": server.hosts_address, "pid": os.getpid()}
        print(json.dumps(said), flush=True)
        await input_ends()


if __name__ == "__main__":
    main()
