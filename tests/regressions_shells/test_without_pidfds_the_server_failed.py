"""Where the system has no ``pidfd_open`` (macOS, some sandboxes) the server waited
for its workers in a way that is missing there as well; and where it has none to give
(no descriptor left) the server itself ended, with every worker.
"""

import errno
import os
import signal

import pytest
import trio

from tests.real.support import PATIENCE_S, is_alive, open_calls, open_server, pid_of
from trio_envserve import WorkerLost

pytestmark = pytest.mark.real


def take_away(monkeypatch):
    """As on macOS, which has no ``waitid`` either."""
    for name in ("pidfd_open", "waitid", "WNOWAIT", "P_PID"):
        monkeypatch.delattr(os, name, raising=False)


def refuse(monkeypatch):
    def pidfd_open(pid, flags=0):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", pidfd_open, raising=False)


@pytest.mark.parametrize("how", [take_away, refuse])
async def test_a_death_is_noticed_nevertheless(judge, monkeypatch, how):
    how(monkeypatch)
    with trio.fail_after(PATIENCE_S):
        async with open_server(judge) as server, open_calls(server.address) as calls:
            calls.start("a", ["spawn", "child"], ["mark", "there"], ["wait", "never"])
            child = int(await judge.wait_for("child"))
            await judge.wait_for("there")
            os.kill(pid_of(server), signal.SIGKILL)
            await calls.error("a", WorkerLost)
            assert not is_alive(child)
            await calls.value(calls.start("b"))
    assert judge.pids("a") != judge.pids("b")
