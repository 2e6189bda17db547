"""A server in a process of its own that is broken on purpose, or not.

``python mutant_server.py '{"mutant": NAME or "", "directory": ..., "limits": {...}}'``

Prints its address as one line of JSON, and stops when its standard input ends.
Only the server itself is the mutant: its workers are other processes.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import trio

from trio_envserve import ServerLimits, WireLimits, open_server
from trio_envserve.lab.mutants import find
from trio_envserve.lab.processes import given_options, input_ends, say

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
        say("serving", address=server.address)
        await input_ends()


def main() -> None:
    options = given_options()
    name = options["mutant"]
    with find(name).applied() if name else nullcontext():
        trio.run(serve, options)


if __name__ == "__main__":
    main()
