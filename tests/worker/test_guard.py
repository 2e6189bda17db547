"""The guard of a worker: whatever is stopped or killed, all that the worker has started is dead."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
import trio.testing

from tests.cli.commands import HANG_S, ROOT
from tests.cli.commands import until as until_true
from tests.proc import children, stats, status_of
from tests.real.odd import open_odd_server, zombies_of
from tests.real.support import PATIENCE_S, open_calls, until, wait_gone
from trio_envserve import open_client
from trio_envserve import open_server as open_envserver
from trio_envserve.host.processes import WorkerProcess, start_process
from trio_envserve.worker import guard as guard_module

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left", "new_interpreters")]

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
    """A worker, and the pids and pidfds of it (the first one) and of what it has started."""

    process: WorkerProcess
    pids: list[int]
    ended: list[int]

    def above(self) -> list[int]:
        """The guard, and the fuse if there is one."""
        parent = int(status_of(self.pids[0], "PPid"))
        guard = int(status_of(parent, "PPid"))
        return [parent] if guard == os.getpid() else [guard, parent]


@asynccontextmanager
async def open_tree(held_up: str, *, leased: bool = True) -> AsyncIterator[Tree]:
    command = [sys.executable, "-c", WORKER, held_up]
    async with AsyncExitStack() as stack:
        process = start_process(
            environ={}, command=command, deadline_s=boot_s() + FAR_S if leased else None
        )
        stack.push_async_callback(process.aclose)
        said = [int(pid) for pid in (await read(process.link, 4)).split(b";")[:-1]]
        (worker,) = [pid for pid in said if int(status_of(pid, "PPid")) not in said]
        pids = [worker, *(pid for pid in said if pid != worker)]
        ended = []
        for pid in pids:
            ended.append(os.pidfd_open(pid))
            stack.callback(os.close, ended[-1])
        yield Tree(process, pids, ended)


@pytest.mark.slow
@pytest.mark.parametrize("leased", [False, True])
async def test_killed_worker_takes_all_with_it_that_it_has_started(leased, held_up):
    with trio.fail_after(PATIENCE_S):
        async with open_tree(held_up, leased=leased) as tree:
            os.kill(tree.pids[0], signal.SIGKILL)
            await dead(tree.ended)
            assert await tree.process.wait() == "it was ended by SIGKILL"
        async with open_tree(held_up, leased=leased) as tree:
            tree.process.kill()
            assert await tree.process.wait() == "it was ended by SIGKILL"
            assert len(select.select(tree.ended, [], [], 0)[0]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("leased", [False, True])
async def test_killed_guard_takes_the_worker_with_it(leased, held_up):
    with trio.fail_after(PATIENCE_S):
        async with open_tree(held_up, leased=leased) as tree:
            ways: list[str] = []

            async def wait() -> None:
                ways.append(await tree.process.wait())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                os.kill(tree.above()[0], signal.SIGKILL)
                await dead(tree.ended[:1])
                # Nobody looks after what the worker has started.  It holds the socket of the
                # worker, so it is not said that all is dead, as long as it lives.
                await trio.testing.wait_all_tasks_blocked()
                assert not ways
                for pid in tree.pids[1:]:
                    os.kill(pid, signal.SIGKILL)
            assert ways == ["it was ended by SIGKILL"]


@pytest.mark.slow
async def test_killed_fuse_takes_all_with_it(held_up):
    with trio.fail_after(PATIENCE_S):
        async with open_tree(held_up) as tree:
            os.kill(tree.above()[1], signal.SIGKILL)
            await dead(tree.ended)
            assert await tree.process.wait() == "it was ended by SIGKILL"


@pytest.mark.slow
async def test_guard_that_does_not_go_on_is_killed_when_its_worker_is_to_end(monkeypatch):
    send = os.kill
    monkeypatch.setattr(
        os, "kill", lambda pid, number: number == signal.SIGCONT or send(pid, number)
    )
    with trio.fail_after(PATIENCE_S):
        process = start_process(environ={}, command=["sleep", "1000"])
        pids: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.wait, pids.append)
            await until(lambda: bool(pids))
            guard = int(status_of(pids[0], "PPid"))
            os.kill(guard, signal.SIGSTOP)
            await until(lambda: status_of(guard, "State")[0] == "T")
            process.kill()
        assert pids == [process.pid]
        await wait_gone(pids[0])
        await process.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("leased", [False, True])
async def test_g9_guard_that_an_environment_has_stopped_left_its_calls_without_an_answer(
    leased, held_up
):
    """It was killed after some seconds, and what the worker had started lived on: with the socket
    by which the server knows that the worker is dead, so that the server waited for ever."""
    with trio.fail_after(PATIENCE_S):
        async with open_tree(held_up, leased=leased) as tree:
            guard = tree.above()[0]
            os.kill(guard, signal.SIGSTOP)
            await until(lambda: status_of(guard, "State")[0] == "T")
            tree.process.kill()
            assert await tree.process.wait() == "it was ended by SIGKILL"
            assert len(select.select(tree.ended, [], [], 0)[0]) == 4


# -- deadlines ------------------------------------------------------------------------------


async def has_died_stopped(held_up: str, after_s: float) -> bool:
    """False if it was over before all was stopped, on a machine that is slow."""
    async with open_tree(held_up) as tree:
        pids = [*tree.above(), *tree.pids]
        deadline_s = boot_s() + after_s
        tree.process.set_deadline(deadline_s)
        # The fuse has read it when nothing is left to read.
        await until(lambda: unread(tree.process) == 0)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            await until(lambda: all(status_of(pid, "State")[0] in "TZX" for pid in pids))
        all_stopped = boot_s() < deadline_s
        await dead(tree.ended[:1])
        assert boot_s() >= deadline_s
        # What the worker has started is stopped still: the guard ends it when it goes on.
        with contextlib.suppress(ProcessLookupError):  # it was over before
            os.kill(pids[0], signal.SIGCONT)
        await dead(tree.ended)
        assert await tree.process.wait() == "it was ended by SIGKILL"
        return all_stopped


def unread(process: WorkerProcess) -> int:
    """Bytes that the fuse has not read."""
    return int.from_bytes(
        fcntl.ioctl(process._guard_socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder
    )


@pytest.mark.slow
async def test_worker_and_guard_that_are_stopped_are_dead_at_the_deadline(held_up):
    with trio.fail_after(PATIENCE_S):
        after_s = 1.0
        while not await has_died_stopped(held_up, after_s):
            after_s *= 4


async def outlives(held_up: str, after_s: float) -> bool:
    """False if the fuse read the second deadline when the first one had come, on a machine
    that is slow."""
    async with open_tree(held_up) as tree:
        first_s = boot_s() + after_s
        tree.process.set_deadline(first_s)
        tree.process.set_deadline(boot_s() + FAR_S)
        await until(lambda: unread(tree.process) == 0)
        in_time = boot_s() < first_s
        await trio.sleep(max(first_s - boot_s(), 0.0))
        assert not in_time or select.select(tree.ended, [], [], 0)[0] == []
    return in_time


@pytest.mark.slow
async def test_deadline_that_moves_keeps_the_worker_alive(held_up):
    with trio.fail_after(PATIENCE_S):
        after_s = 0.5
        while not await outlives(held_up, after_s):
            after_s *= 4


async def test_worker_whose_deadline_has_passed_does_not_start():
    with trio.fail_after(PATIENCE_S):
        process = start_process(environ={}, command=["true"], deadline_s=boot_s() - 1)
        pids: list[int] = []
        assert await process.wait(pids.append) == "it was ended by SIGKILL"
        assert not pids
        await process.aclose()


@pytest.mark.parametrize("deadline_s", [None, FAR_S])
async def test_end_of_a_worker_is_that_of_its_guard(deadline_s):
    ends = {"exit $MARK": "it exited with status 7", "kill -SEGV $$": "it was ended by SIGSEGV"}
    with trio.fail_after(PATIENCE_S):
        for script, how in ends.items():
            pids: list[int] = []
            process = start_process(
                environ={"MARK": "7"}, command=["sh", "-c", script],
                deadline_s=None if deadline_s is None else boot_s() + deadline_s,
            )  # fmt: skip
            assert await process.wait(pids.append) == how
            assert pids == [process.pid]
            await process.aclose()


def test_module_could_not_be_imported_where_there_is_no_clock_of_that_name(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    runpy.run_path(guard_module.__file__, run_name="trio_envserve.worker.again")


# -- below a server -------------------------------------------------------------------------

HOST = """
import os, sys, time, trio
from trio_envserve.host.processes import start_process

async def main(deadline_s, command):
    process = start_process(environ={}, command=command, deadline_s=deadline_s)
    process.link.setblocking(False)
    for _ in range(4):
        await trio.lowlevel.wait_readable(process.link)
        os.write(1, process.link.recv(4096))
    await trio.sleep_forever()

trio.run(main, float(sys.argv[1]) or None, [sys.executable, *sys.argv[2:]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("deadline_s", [0.0, 1e10])
async def test_server_that_is_killed_takes_all_with_it(deadline_s, held_up):
    with trio.fail_after(PATIENCE_S):
        host = await trio.lowlevel.open_process(
            [sys.executable, "-c", HOST, str(deadline_s), "-c", WORKER, held_up],
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


LEAVING = """
import os, subprocess, sys
def leave(code):
    # Its parent ends at once, and it has left session and group.
    away = "import os, time; os.setsid(); os.fork() and os._exit(0); " + code
    said = subprocess.run([sys.executable, "-c", away], stdout=subprocess.PIPE, text=True).stdout
    return [os.getpid(), *map(int, said.split())]

async def leaving(rollout):
    return leave(rollout.input)
"""
STAYS = "print(os.getpid(), flush=True); os.close(1); time.sleep(1000)"


@pytest.fixture
def leaving(tmp_path: Path) -> str:
    """An environment whose rollouts leave a process in a session of its own."""
    (tmp_path / "leaving.py").write_text(LEAVING)
    return f"{tmp_path}/leaving.py:leaving"


async def test_process_in_a_session_of_its_own_ends_with_its_worker(leaving, folder):
    """It lived on, with the memory and the GPU that it had."""
    with trio.fail_after(PATIENCE_S):
        async with (
            open_envserver(leaving, bind=f"ipc://{folder}/s") as server,
            open_client(server.address) as client,
        ):
            worker, child = await client.run_rollout(STAYS)
            ended = [os.pidfd_open(pid) for pid in (worker, child)]
            os.kill(worker, signal.SIGKILL)
            await dead(ended)  # it would sleep for longer than anybody waits here
            for each in ended:
                os.close(each)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="needs root and unshare to have a process 1 of its own",
)
async def test_server_that_is_process_1_has_no_zombies_drains_and_leaves_nothing(
    leaving: str, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "in.jsonl").write_text('"pass"\n' * 20)
    serve = ["serve", leaving, "--bind", f"ipc://{folder}/s", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}
    own = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen(  # noqa: ASYNC220  # started at once
        [*own, sys.executable, "-m", "trio_envserve", *serve],
        cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True,
    ) as outer:  # fmt: skip
        try:
            with trio.fail_after(HANG_S):
                assert outer.stdout is not None
                lines = outer.stdout
                serving = json.loads(await trio.to_thread.run_sync(lines.readline))
                assert serving["pid"] == 1
                (first,) = children(outer.pid)
                ask = ["eval", leaving, "--inputs", "in.jsonl", "--json"]
                asked = await trio.run_process(
                    [sys.executable, "-m", "trio_envserve", *ask, "--address",
                     f"ipc://{folder}/s"],
                    cwd=tmp_path, env=environ, capture_stdout=True,
                )  # fmt: skip
                assert json.loads(asked.stdout.splitlines()[-1])["results"] == 20
                await until_true(lambda: "Z" not in states_below(first))
                os.kill(first, signal.SIGTERM)
                said = await trio.to_thread.run_sync(lines.read)
            last = json.loads(said.splitlines()[-1])
            assert (last["event"], last["why"], last["drained"]) == ("stopped", "SIGTERM", True)
            assert outer.wait() == 0
        finally:
            outer.kill()


def states_below(pid: int) -> set[str]:
    """The states of all processes below this one."""
    found, below = set(), children(pid)
    states = {each: state for each, (state, *_) in stats()}
    while below:
        found.add(states.get(below[-1], "X"))
        below += children(below.pop())
    return found


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
            await until(lambda: not zombies_of(server.process.pid))
