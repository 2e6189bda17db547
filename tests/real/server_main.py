"""A server as a process of its own, which a test can kill, stop and continue.

Argument: a JSON object with ``environment``, ``args``, ``bind``, ``workers`` and
``limits``.  Prints one line of JSON, ``{"address": ...}`` or ``{"error": ...}``;
on SIGTERM it closes.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

import trio

from trio_envserve import ServerLimits, ServerStartError, open_server


async def main(options: dict[str, Any]) -> int:
    limits = ServerLimits(**options.pop("limits", {}))
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        try:
            async with open_server(**options, limits=limits) as server:
                print(json.dumps({"address": server.address}), flush=True)
                async for _ in signals:
                    return 0
        except ServerStartError as error:
            print(json.dumps({"error": str(error)}), flush=True)
            return 1
    return 0


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(trio.run(main, json.loads(sys.argv[1])))
