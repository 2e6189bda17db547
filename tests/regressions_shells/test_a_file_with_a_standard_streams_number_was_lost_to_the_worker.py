"""A program that closes its standard streams (a daemon) gives their numbers to whatever
is opened next: to the lock of its epoch, to the channel of a worker.  Inherited under
that number, the one was overwritten in the worker by its own streams and by the guard,
so that nobody proved any more that the worker lived (G1); without the other no worker
could begin.
"""

import os
import signal
from pathlib import Path

import pytest
import trio

from tests.real.support import PATIENCE_S, open_calls
from tests.regressions_shells.support import members, open_odd_server

pytestmark = pytest.mark.real


def files_of(pid: int) -> list[str]:
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]


async def test_the_lock_is_held_by_worker_and_guard(judge):
    odd, bind = "closes streams before it serves", f"ipc://{judge.directory}/s"
    with trio.fail_after(PATIENCE_S):
        async with open_odd_server(judge, odd, bind=bind), open_calls(bind) as calls:
            await calls.value(calls.start("a"))
            group = members(judge.pids("a")[0])
            assert len(group) == 2
            for pid in group:
                assert [name for name in files_of(pid) if name.endswith(".epochs")]


async def test_a_replacement_has_its_channel(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_odd_server(judge, "closes streams when it serves") as server,
            open_calls(server.address) as calls,
        ):
            await calls.value(calls.start("a"))
            os.kill(judge.pids("a")[0], signal.SIGKILL)
            await calls.value(calls.start("b", rerun=True))  # it may be given to that one
    assert judge.pids("a") != judge.pids("b")[-1:]
