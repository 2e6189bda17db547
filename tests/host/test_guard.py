"""The guard of a host: whatever is stopped, all workers are dead at its deadline."""

from __future__ import annotations

import contextlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from tests.proc import children, status_of
from tests.real.support import PATIENCE_S, until
from trio_envserve.host import guard as guard_module
from trio_envserve.host.guarded import GUARD_DEAD, Guard, GuardedProcess, open_guard

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

FAR_S = 10_000.0

WORKER = """
import os, socket, sys
link = socket.socket(fileno=int(os.environ["TRIO_ENVSERVE_LINK_FD"]))
for settle in ([], [os.setsid], [os.setpgrp]):
    if os.fork() == 0:
        for each in settle:
            each()
        break
link.send(b"%d;" % os.getpid())
while True:
    os.read(os.open(sys.argv[1], os.O_RDONLY), 1)
"""
"""It has children in its own group, in a session, and in a group of their own; each of the
four says its process id, and then is held up in a system call."""


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def dead(pidfds: list[int]) -> None:
    """Until all of them have ended; zombies have."""
    for each in pidfds:
        await trio.lowlevel.wait_readable(each)


async def read(link: socket.socket, ends: int) -> bytes:
    """What a worker sends, up to so many semicolons."""
    link.setblocking(False)
    said = b""
    while said.count(b";") < ends:
        await trio.lowlevel.wait_readable(link)
        more = link.recv(4096)
        assert more, "it has ended"
        said += more
    return said


@pytest.fixture
def held_up(tmp_path):
    """A pipe that nobody writes to."""
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


class Tree(NamedTuple):
    """A guard with one worker, and the pidfds of that and of what it has started."""

    guard: Guard
    process: GuardedProcess
    pids: list[int]
    ended: list[int]

    async def told(self, deadline_s: float) -> bool:
        """Set a deadline, and wait until the guard has it; whether it lives."""
        self.guard.set_deadline(deadline_s)
        asked = self.guard.start(environ={}, command=["true"])
        how = await asked.wait()
        await asked.aclose()
        return how != GUARD_DEAD

    def own_group(self) -> list[int]:
        """The pidfds of those in the worker's own process group."""
        group = self.process.pid
        both = zip(self.pids, self.ended, strict=True)
        return [end for pid, end in both if os.getpgid(pid) == group]

    def everything(self) -> list[int]:
        """The reaper and all that is below it."""
        reaper = int(status_of(self.guard.pid, "PPid"))
        found, below = [reaper], children(reaper)
        while below:
            found.append(below.pop())
            below += children(found[-1])
        assert {self.guard.pid, *self.pids} < set(found)
        return found


@asynccontextmanager
async def open_tree(held_up: str) -> AsyncIterator[Tree]:
    async with open_guard() as guard, AsyncExitStack() as stack:
        guard.set_deadline(boot_s() + FAR_S)
        process = guard.start(environ={}, command=[sys.executable, "-c", WORKER, held_up])
        stack.push_async_callback(process.aclose)
        pids = [int(pid) for pid in (await read(process.link, 4)).split(b";")[:-1]]
        ended = []
        for pid in pids:
            ended.append(os.pidfd_open(pid))
            stack.callback(os.close, ended[-1])
        yield Tree(guard, process, pids, ended)


async def has_died_stopped(held_up: str, after_s: float) -> bool:
    """False if it was over before all was stopped, on a machine that is slow."""
    async with open_tree(held_up) as tree:
        pids = tree.everything()  # while all of it lives, whatever the time
        deadline_s = boot_s() + after_s
        await tree.told(deadline_s)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            await until(lambda: all(status_of(pid, "State")[0] in "TZX" for pid in pids))
        all_stopped = boot_s() < deadline_s
        await dead([tree.ended[tree.pids.index(tree.process.pid)]])
        assert boot_s() >= deadline_s
        # What the worker has started is stopped still: the reaper ends it when it goes on.
        with contextlib.suppress(ProcessLookupError):  # it was over before
            os.kill(pids[0], signal.SIGCONT)
        await dead(tree.ended)
        assert await tree.process.wait() == GUARD_DEAD
        await tree.guard.ended.wait()
        return all_stopped


async def test_a_guard_and_workers_that_are_stopped_are_dead_at_the_deadline(held_up):
    with trio.fail_after(PATIENCE_S):
        after_s = 1.0
        while not await has_died_stopped(held_up, after_s):
            after_s *= 4


async def test_a_guard_that_is_killed_takes_all_with_it(held_up):
    with trio.fail_after(PATIENCE_S):
        async with open_tree(held_up) as tree:
            os.kill(tree.guard.pid, signal.SIGKILL)
            await dead(tree.ended)
            assert await tree.process.wait() == GUARD_DEAD
            await tree.guard.ended.wait()
            late = tree.guard.start(environ={}, command=["true"])
            assert await late.wait() == GUARD_DEAD
            await late.aclose()


async def test_a_keeper_that_is_killed_takes_the_workers_with_it(held_up):
    with trio.fail_after(PATIENCE_S):
        async with open_tree(held_up) as tree:
            reaper = int(status_of(tree.guard.pid, "PPid"))
            own = tree.own_group()
            os.kill(reaper, signal.SIGKILL)
            await dead(own)
            # Nobody looks after those that have left the worker's group; so it is not said
            # that all is dead, as long as they live.
            away = [pid for pid, end in zip(tree.pids, tree.ended, strict=True) if end not in own]
            assert len(away) == 2
            await trio.testing.wait_all_tasks_blocked()
            assert not tree.guard.ended.is_set()
            for pid in away:
                os.kill(pid, signal.SIGKILL)
            await dead(tree.ended)
            assert await tree.process.wait() == GUARD_DEAD


async def outlives(held_up: str, after_s: float) -> bool:
    """False if the guard heard of the second deadline when the first one had come, on a
    machine that is slow."""
    async with open_tree(held_up) as tree:
        own = tree.own_group()
        first_s = boot_s() + after_s
        tree.guard.set_deadline(first_s)
        if not await tree.told(boot_s() + FAR_S):
            assert boot_s() >= first_s
            return False
        await trio.sleep(max(first_s - boot_s(), 0.0))
        assert select.select(tree.ended, [], [], 0)[0] == []
        tree.process.kill()
        assert await tree.process.wait() == "it was ended by SIGKILL"
        await dead(own)
    # At the end of the block nothing is left: the fixture looks.
    return True


async def test_a_deadline_that_moves_keeps_them_alive(held_up):
    with trio.fail_after(PATIENCE_S):
        after_s = 0.5
        while not await outlives(held_up, after_s):
            after_s *= 4


async def end_of(guard: Guard, **start: Any) -> str:
    """How a worker ended that was started so."""
    process = guard.start(**{"environ": {}, "command": ["true"], **start})
    how: str = await process.wait()
    await process.aclose()
    return how


async def test_a_worker_that_cannot_be_started_and_one_that_has_ended_are_told():
    with trio.fail_after(PATIENCE_S):
        async with open_guard() as guard:
            # Without a deadline none is started.
            refused = "it could not be started: Operation not permitted"
            assert await end_of(guard) == refused
            guard.set_deadline(boot_s() + FAR_S)
            missing = await end_of(guard, command=(), python="/nowhere/python")
            assert missing == "it could not be started: No such file or directory"
            pids: list[int] = []
            process = guard.start(environ={"MARK": "7"}, command=["sh", "-c", "exit $MARK"])
            process.tell_started(pids.append)
            assert await process.wait() == "it exited with status 7"
            assert pids == [process.pid]
            await process.aclose()


HOST = """
import os, sys, time, trio
from trio_envserve.host.guarded import open_guard

async def main():
    async with open_guard() as guard:
        guard.set_deadline(time.clock_gettime(time.CLOCK_BOOTTIME) + 10_000)
        process = guard.start(environ={}, command=[sys.executable, *sys.argv[1:]])
        process.link.setblocking(False)
        for _ in range(4):
            await trio.lowlevel.wait_readable(process.link)
            os.write(1, process.link.recv(4096))
        await trio.sleep_forever()

trio.run(main)
"""


async def test_a_host_that_is_killed_takes_all_with_it(held_up):
    with trio.fail_after(PATIENCE_S):
        host = await trio.lowlevel.open_process(
            [sys.executable, "-c", HOST, "-c", WORKER, held_up],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert host.stdout is not None
        said = b""
        while said.count(b";") < 4:
            said += await host.stdout.receive_some()
        ended = [os.pidfd_open(int(pid)) for pid in said.split(b";")[:-1]]
        host.kill()
        await host.wait()
        await host.stdout.aclose()
        await dead(ended)
        for each in ended:
            os.close(each)


async def test_what_a_guard_cannot_take_in_at_once_is_not_lost():
    with trio.fail_after(PATIENCE_S):
        async with open_guard() as guard:
            guard.set_deadline(boot_s() + FAR_S)
            os.kill(guard.pid, signal.SIGSTOP)
            large = {"LARGE": "x" * 100_000}
            processes = [guard.start(environ=large, command=["true"]) for _ in range(10)]
            os.kill(guard.pid, signal.SIGCONT)
            for process in processes:
                assert await process.wait() == "it exited with status 0"
                await process.aclose()


def test_module_could_not_be_imported_where_there_is_no_clock_of_that_name(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    runpy.run_path(guard_module.__file__)
