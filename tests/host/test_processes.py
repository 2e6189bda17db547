"""The processes of workers: how they are started, signalled and waited for."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import trio

from tests.proc import status_of
from tests.real.odd import open_odd_server
from tests.real.support import PATIENCE_S, open_calls, open_server
from trio_envserve.host.processes import start_process

pytestmark = pytest.mark.real

# -- a module in the working directory -------------------------------------------
# Workers are started by ``python -c``, which puts the working directory before the
# standard library: a ``select.py`` or ``socket.py`` of the user's was imported in its
# place, and no worker of a server that was started there got ready.


async def test_start_of_a_worker_imports_nothing_from_the_working_directory(
    judge, monkeypatch, tmp_path
):
    for name in ("json", "select", "socket", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('this is the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    with trio.fail_after(PATIENCE_S):
        async with open_server(judge) as server, open_calls(server.address) as calls:
            await server.wait_ready()
            await calls.value(calls.start("a"))


# -- a file with a standard stream's number --------------------------------------
# A program that closes its standard streams (a daemon) gives their numbers to whatever
# is opened next: to the lock of its epoch, to the channel of a worker.  Inherited under
# that number, the one was overwritten in the worker by its own streams and by the guard,
# so that nobody proved any more that the worker lived (G1); without the other no worker
# could begin.


def files_of(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a heart that beats opens and closes one
            found.append(os.readlink(entry))
    return found


async def test_lock_is_held_by_worker_and_guard_where_standard_streams_are_closed(judge, folder):
    odd, bind = "closes streams before it serves", f"ipc://{folder}/s"
    with trio.fail_after(PATIENCE_S):
        async with open_odd_server(judge, odd, bind=bind), open_calls(bind) as calls:
            await calls.value(calls.start("a"))
            worker = judge.pids("a")[0]
            for pid in (worker, int(status_of(worker, "PPid"))):
                assert [name for name in files_of(pid) if name.endswith(".epochs")]


async def test_replacement_has_its_channel_where_standard_streams_are_closed(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_odd_server(judge, "closes streams when it serves") as server,
            open_calls(server.address) as calls,
        ):
            await calls.value(calls.start("a"))
            os.kill(judge.pids("a")[0], signal.SIGKILL)
            await calls.value(calls.start("b", rerun=True))  # it may be given to that one
    assert judge.pids("a") != judge.pids("b")[-1:]


# -- where there are no pidfds ---------------------------------------------------
# Where the system has no ``pidfd_open`` (macOS, some sandboxes) the server waited
# for its workers in a way that is missing there as well; and where it has none to give
# (no descriptor left) the server itself ended, with every worker.


def take_away(monkeypatch):
    """As on macOS, which has no ``waitid`` either."""
    for name in ("pidfd_open", "waitid", "WNOWAIT", "P_PID"):
        monkeypatch.delattr(os, name, raising=False)


def refuse(monkeypatch):
    def pidfd_open(pid, flags=0):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", pidfd_open, raising=False)


@pytest.mark.parametrize("how", [take_away, refuse])
async def test_death_is_noticed_without_pidfds(monkeypatch, how):
    how(monkeypatch)
    with trio.fail_after(PATIENCE_S):
        process = start_process(environ={}, command=["sleep", "1000"])

        def kill(pid: int) -> None:
            os.kill(pid, signal.SIGKILL)

        assert await process.wait(kill) == "it was ended by SIGKILL"
        await process.aclose()


# -- a program that forks while a worker is started ----------------------------------
# Another thread of the program around a server may fork at any moment (a loader of data).
# A child that was forked just then kept the worker's end of the life socket, so that the end
# of a dead worker was never seen: its slot stayed empty, and its calls were never answered.


async def test_g9_child_that_is_forked_while_a_worker_starts_does_not_hide_its_death(monkeypatch):
    forked: list[int] = []
    start = subprocess.Popen

    def forking(*args, **options):
        def fork() -> None:
            child = os.fork()
            if not child:
                signal.pause()
                os._exit(0)
            forked.append(child)

        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        return start(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", forking)
    try:
        process = start_process(environ={}, command=["sleep", "1000"])
        monkeypatch.undo()
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:

                def kill(pid: int) -> None:
                    os.kill(pid, signal.SIGKILL)
                    nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S / 3

                assert await process.wait(kill) == "it was ended by SIGKILL"
            assert not nursery.cancel_scope.cancelled_caught
            await process.aclose()
    finally:
        for child in forked:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # noqa: ASYNC222 - it is dead
    assert forked
