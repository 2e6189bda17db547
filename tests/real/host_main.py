"""A host as a process of its own, until its input ends.

Argument: a JSON object with ``address``, ``name``, ``workers`` and ``limits``.
"""

from __future__ import annotations

from typing import Any

import trio

from tests.rig.program import given_options, input_ends
from trio_envserve import ServerLimits, open_host


async def main(options: dict[str, Any]) -> None:
    limits = ServerLimits(**options.pop("limits"))
    async with open_host(options.pop("address"), limits=limits, **options):
        await input_ends()


if __name__ == "__main__":
    trio.run(main, given_options())
