"""A worker that dies while it is being set up (killed for its memory, a crash in a
library) has no traceback to send.  The pool was "broken" then, and that was all: the
way in which the process had ended was in the server's log only.
"""

import pytest
import trio

from tests.real.support import PATIENCE_S, open_calls, open_server, until
from trio_envserve import ServerStartError

pytestmark = pytest.mark.real


async def test_server_and_client_tell_it(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(judge, args={"setup": [["die", "SIGSEGV"]]}) as server,
            open_calls(server.address) as calls,
        ):
            with pytest.raises(ServerStartError, match=r"did not get ready.* ended by SIGSEGV"):
                await server.wait_ready()
            await until(lambda: "ended by SIGSEGV" in calls.client.health().reason)
