"""The guard of a worker, whatever has started its server."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from tests.real.odd import open_odd_server, zombies_of
from tests.real.support import PATIENCE_S, open_calls, wait_gone

pytestmark = pytest.mark.real


@pytest.mark.parametrize("odd", ["was given no 0 1 2", "ignores SIGCHLD"])
async def test_workers_of_a_strange_server_work_and_are_guarded(judge, odd):
    """The guard, which kills what an environment has started when the server is killed, ended at
    once where the server had been started with a standard stream closed, as daemons often are:
    it could not close that once more.  And a worker whose server ignores SIGCHLD (which is
    inherited) ended when it waited for a child that the system had reaped already."""
    with trio.fail_after(PATIENCE_S):
        async with (
            open_odd_server(judge, odd) as server,
            open_calls(server.address) as calls,
        ):
            await calls.value(calls.start("a"))
            os.kill(judge.pids("a")[0], signal.SIGKILL)
            # It may be given to the one that dies.
            calls.start("b", ["spawn", "child"], ["wait", "never"], rerun=True)
            child = int(await judge.wait_for("child"))
            server.process.kill()
            await wait_gone(child)


async def test_a_server_that_inherits_orphans_reaps_the_guards(judge):
    """As process 1 of a container it is given the guard of each worker that has died:
    they stayed there, one zombie for each restart."""
    with trio.fail_after(PATIENCE_S):
        async with (
            open_odd_server(judge, "inherits orphans") as server,
            open_calls(server.address) as calls,
        ):
            await calls.value(calls.start("first", rerun=True))
            os.kill(judge.pids("first")[-1], signal.SIGKILL)
            await calls.value(calls.start("last", rerun=True))
            assert zombies_of(server.process.pid) == []
