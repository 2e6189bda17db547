"""Workers die with their server, and what an environment has started dies with its
worker, whatever killed which and whatever the code is doing."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.proc import is_alive
from tests.real.judge import Judge
from tests.real.support import (
    SOON_S,
    assert_gone,
    honest_s,
    is_doomed,
    open_server_process,
    serving,
    serving_process,
    until,
    wait_gone,
)
from trio_envserve import ServerStartError, WorkerLost
from trio_envserve.host.locks import ServerLocks
from trio_envserve.lab.processes import Process

BUSY = {
    "idle": [],
    "waiting": [["mark", "there"], ["wait", "never"]],
    "blocking its loop": [["mark", "there"], ["block", "never"]],
    "holding the interpreter": [["hold", "there"]],
    "ignoring its cancel": [["mark", "there"], ["ignore cancel", "never"]],
}


ENDS = [(doing, signal.SIGKILL) for doing in BUSY] + [
    (doing, signal.SIGTERM) for doing in ("idle", "holding the interpreter", "ignoring its cancel")
]


@pytest.mark.parametrize(("doing", "how"), ENDS)
async def test_a_worker_dies_with_its_server(judge, doing, how):
    async with serving_process(judge, stop_s=0.2, drain_s=0.2) as (server, calls):
        await calls.value(calls.start("first"))
        [pid] = judge.pids("first")
        if BUSY[doing]:
            calls.start("a", *BUSY[doing])
            await judge.wait_for("there")
        server.signal(how)
        await server.wait()
        await wait_gone(pid)


async def test_a_worker_that_is_still_being_set_up_dies_with_its_server(judge):
    setup = [["mark", "there"], ["block", "never"]]
    async with open_server_process(judge, args={"setup": setup}) as server:
        pid = int(await judge.wait_for("there"))
        server.signal(signal.SIGKILL)
        await wait_gone(pid)


async def test_what_an_environment_has_started_dies_with_its_killed_worker(judge):
    async with serving(judge) as (_, calls):
        calls.start("a", ["spawn", "child"], ["wait", "never"])
        child = int(await judge.wait_for("child"))
        await judge.wait_started("a")
        os.kill(judge.pids("a")[0], signal.SIGKILL)
        await calls.error("a", WorkerLost)
        assert is_doomed(child)  # at once: the proof of death covers it


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_what_an_environment_has_started_dies_with_its_server(judge, how):
    async with serving_process(judge) as (server, calls):
        await calls.value(calls.start("a", ["spawn", "child"]))
        child = int(await judge.wait_for("child"))
        assert is_alive(child)
        server.signal(how)
        await server.wait()
        await assert_gone(child)


async def test_no_file_is_left_by_restarts_and_a_passing_port(judge, tmp_path):
    async with serving(judge) as (_, calls):
        for turn in range(3):
            calls.start(f"k{turn}", ["die"], rerun=False)
            await calls.error(f"k{turn}", WorkerLost)
    [directory] = tmp_path.glob("trio_envserve-*")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_worker_that_has_left_its_process_group_dies_with_its_server(judge, how):
    """It was killed with its group only: its server waited for it for ever."""
    async with serving_process(judge, stop_s=0.2, drain_s=0.2) as (server, calls):
        calls.start("a", ["leave group"], ["mark", "there"], ["block", "never"])
        worker = int(await judge.wait_for("there"))
        server.signal(how)
        await assert_gone(server.pid, worker)


async def test_a_worker_that_has_left_its_process_group_is_killed_and_replaced(judge):
    kill_s = await honest_s(judge)
    async with serving_process(judge, silence_report_s=0.5, silence_kill_s=kill_s) as (_, calls):
        calls.start("a", ["leave group"], ["mark", "there"], ["hold", "held"], rerun=False)
        worker = int(await judge.wait_for("there"))
        await assert_gone(worker, soon_s=kill_s + SOON_S)
        await calls.error("a", WorkerLost)
        await calls.value(calls.start("b"))


async def forked_by(server: Process, how: str) -> int:
    await server.tell({"do": "fork", "by": how})
    return int((await server.event("forked"))["pid"])


@pytest.mark.parametrize("by", ["python", "c"])
async def test_workers_die_with_a_server_whose_program_has_forked(judge, by):
    """The process that was forked holds the server's ends of all sockets, or would."""
    async with serving_process(judge) as (server, calls):
        calls.start("a", ["spawn", "child"], ["mark", "there"], ["wait", "never"])
        child, worker = [int(await judge.wait_for(mark)) for mark in ("child", "there")]
        forked = await forked_by(server, by)
        server.signal(signal.SIGKILL)
        try:
            await assert_gone(worker, child)
            assert is_alive(forked)
        finally:
            os.kill(forked, signal.SIGKILL)


@asynccontextmanager
async def killed_beside_its_fork(
    judge: Judge, by: str
) -> AsyncIterator[tuple[int, int, ServerLocks]]:
    """A server's dead process, the living one that its program had forked, and its locks."""
    bind = f"ipc://{judge.directory}/s"
    async with open_server_process(judge, bind=bind) as server:
        forked = await forked_by(server, by)
        server.signal(signal.SIGKILL)
        await server.wait()
        locks = ServerLocks.of_address(bind)
        try:
            yield server.pid, forked, locks
        finally:
            locks.close()
            os.kill(forked, signal.SIGKILL)


async def test_what_a_program_has_forked_does_not_hold_the_locks_of_its_server(judge):
    async with killed_beside_its_fork(judge, "python") as (_, forked, locks):
        with trio.move_on_after(SOON_S):  # it may not have come to that yet
            await until(locks.server.acquire_nowait)
            await until(lambda: locks.try_epochs(b"2" * 16) is not None)
        assert (locks.server.held, locks.epochs.held) == (True, True)
        assert is_alive(forked)


async def test_what_a_library_has_forked_is_named_and_not_the_dead_server(judge):
    async with killed_beside_its_fork(judge, "c") as (server, forked, locks):
        named = rf"\(pid {server}\) has ended, but process {forked}, forked by its program"
        with pytest.raises(ServerStartError, match=named):
            locks.take_server()
