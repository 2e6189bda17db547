"""Workers had the server's standard output for their own.  What an environment
printed came between, or into, the lines of ``trio-envserve eval --json``, which
others parse.
"""

import pytest
import trio

from tests.real.support import PATIENCE_S, open_calls
from tests.regressions_shells.environments import NOISE
from tests.regressions_shells.support import open_odd_server

pytestmark = pytest.mark.real


async def test_they_go_to_standard_error(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_odd_server(judge) as server, open_calls(server.address) as calls:
            await calls.value(calls.start("a", ["print"]))
    assert server.out.read_text() == ""
    assert server.err.read_text().count(NOISE) == 2
