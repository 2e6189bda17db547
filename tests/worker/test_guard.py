"""The guard of a worker, whatever has started its server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
import trio

from tests.real.odd import open_odd_server, zombies_of
from tests.real.support import PATIENCE_S, open_calls, wait_gone

pytestmark = pytest.mark.real

# -- a strange parent ------------------------------------------------------------
# The guard, which kills what an environment has started when the server is killed,
# ended at once where the server had been started with a standard stream closed, as
# daemons often are: it could not close that once more.  And a worker whose server
# ignores SIGCHLD (which is inherited) ended when it waited for a child that the system
# had reaped already.


GUARDED = """
import os, signal, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
if sys.argv[2] == "SIGCHLD":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
else:
    for standard in map(int, sys.argv[2]):
        os.close(standard)
from trio_envserve.worker.guard import start_guard
start_guard(channel, os.getppid())
channel.send(b"guarded")
time.sleep(1000)
"""


def start_guarded(channel: socket.socket, odd: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", GUARDED, str(channel.fileno()), odd],
        process_group=0, pass_fds=[channel.fileno()], stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("odd", ["0", "1", "2", "012", "SIGCHLD"])
async def test_the_guard_outlives_the_server(odd):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = start_guarded(theirs, odd)
        theirs.close()
        try:
            with trio.fail_after(PATIENCE_S):
                ours.setblocking(False)
                assert await trio.socket.from_stdlib_socket(ours).recv(100) == b"guarded"
                ours.close()
                while process.poll() is None:  # noqa: ASYNC110  # no event tells of it
                    await trio.sleep(0.01)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("odd", ["was given no 0 1 2", "ignores SIGCHLD"])
async def test_workers_of_a_strange_server_work_and_are_guarded(judge, odd):
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
