"""A client as a process of its own, which a test can kill, stop and continue.

Argument: a JSON object with ``address``, ``limits`` and ``calls``, a list of
pairs of an input and its options.  Makes all calls at once and prints, for each
that has come back, one line of JSON: ``{"key", "random", "error", "verdict"}``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import trio

from trio_envserve import Client, ClientLimits, open_client


async def call(client: Client, asked: dict[str, Any], options: dict[str, Any]) -> None:
    outcome = await client.outcome(asked, **options)
    error = outcome.error
    line = {
        "key": asked["key"],
        "random": None if outcome.value is None else outcome.value["random"],
        "error": type(error).__name__ if error is not None else None,
        "verdict": error.verdict.name if error is not None else None,
    }
    print(json.dumps(line), flush=True)


async def main(options: dict[str, Any]) -> None:
    limits = ClientLimits(**options.get("limits", {}))
    async with open_client(options["address"], limits=limits) as client, trio.open_nursery() as n:
        for asked, more in options["calls"]:
            n.start_soon(call, client, asked, more)


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
