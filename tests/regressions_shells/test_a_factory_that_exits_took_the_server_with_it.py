"""Environments that miss something at their start often call ``sys.exit`` with the
reason.  With ``workers=0`` that ended the trainer's own program, and in a worker
the reason was lost.
"""

import sys

import pytest
import trio

from trio_envserve import ServerStartError, open_server
from trio_envserve.net import MemoryNetwork


def exits():
    sys.exit("no API key")


async def test_the_server_says_why_it_is_not_ready(autojump_clock):
    async with open_server(exits, bind="memory:s", workers=0, network=MemoryNetwork()) as server:
        with trio.fail_after(600), pytest.raises(ServerStartError, match="SystemExit: no API key"):
            await server.wait_ready()
