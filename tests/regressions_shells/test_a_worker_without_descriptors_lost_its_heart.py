"""A worker that ran out of descriptors could not read its memory from /proc, and the
way around that needed a module that was still to be imported, from a file.  That
ended the heartbeat thread: a worker in good order fell silent, and was killed.
"""

import resource

import pytest
import trio

from tests.real.support import PATIENCE_S, open_calls, open_server, pid_of, until, worker_of
from tests.regressions_shells.environments import MIB
from tests.regressions_shells.support import ODD

pytestmark = pytest.mark.real


async def test_its_heart_beats_on(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(judge, environment=ODD) as server,
            open_calls(server.address) as calls,
        ):
            await calls.client.wait_ready()
            await until(lambda: worker_of(server).memory_bytes > 0)
            before, pid = worker_of(server), pid_of(server)
            _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (100, most))

            calls.start("a", ["starve"], ["grow", 64], ["wait", "go"], ["feed"])
            # Told by its heart alone, and only by a beat after the last descriptor.
            await until(lambda: worker_of(server).memory_bytes > before.memory_bytes + 48 * MIB)
            judge.put("go")
            await calls.value("a")
            assert pid_of(server) == pid
