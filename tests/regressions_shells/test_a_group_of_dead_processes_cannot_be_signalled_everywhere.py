"""macOS answers "not permitted" to a signal for a process group in which there are
only processes that have ended.  That came out of the task that reaps a worker, or
kills one that has just died, and ended the server.
"""

import os
import signal

import pytest
import trio

from tests.real.support import PATIENCE_S, open_calls, open_server, pid_of
from trio_envserve import WorkerLost

pytestmark = pytest.mark.real


async def test_the_worker_is_reaped_and_replaced(judge, monkeypatch):
    sent = []

    def killpg(group, number):
        sent.append(number)
        os.kill(group, number)
        raise PermissionError(1, "Operation not permitted")

    with trio.fail_after(PATIENCE_S):
        async with open_server(judge, stop_s=0.1) as server, open_calls(server.address) as calls:
            await calls.value(calls.start("a"))
            monkeypatch.setattr(os, "killpg", killpg)
            calls.start("b", ["mark", "there"], ["wait", "never"])
            await judge.wait_for("there")
            os.kill(pid_of(server), signal.SIGKILL)
            await calls.error("b", WorkerLost)
            assert sent == [signal.SIGKILL]
            await calls.value(calls.start("c"))
            server.kill()
    monkeypatch.undo()
    assert len(sent) > 1
