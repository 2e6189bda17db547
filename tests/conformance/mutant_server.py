"""A server in a process of its own that is broken on purpose, or not.

``python mutant_server.py '{"mutant": NAME or "", "directory": ..., "limits": {...}}'``

Prints its address as one line of JSON, and stops when its standard input ends.
Only the server itself is the mutant: its workers are other processes.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from typing import Any

import trio

from trio_envserve import ServerLimits, WireLimits, open_server
from trio_envserve.lab.mutants import find

ENVIRONMENT = "trio_envserve.lab.conformance.environment:Conformance"


async def serve(options: dict[str, Any]) -> None:
    async with open_server(
        ENVIRONMENT,
        args={"directory": options["directory"]},
        bind=options.get("bind", "tcp://127.0.0.1:0"),
        workers=1,
        limits=ServerLimits(**options["limits"]),
        wire=WireLimits(**options["wire"]),
    ) as server:
        print(json.dumps({"address": server.address}), flush=True)
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
            while await stdin.receive_some(1024):
                pass  # nothing is said here but its end


def main() -> None:
    options = json.loads(sys.argv[1])
    name = options["mutant"]
    with find(name).applied() if name else nullcontext():
        trio.run(serve, options)


if __name__ == "__main__":
    main()
