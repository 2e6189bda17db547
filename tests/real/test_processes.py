"""Workers die with their server, and what an environment has started dies with its
worker, whatever killed which and whatever the code is doing."""

import os
import signal

import pytest
import trio

from tests.real.support import (
    PATIENCE_S,
    is_alive,
    open_calls,
    open_server,
    open_server_process,
    until,
    wait_gone,
)
from trio_envserve import WorkerLost

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
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server_process(judge, stop_s=0.2, drain_s=0.2) as server,
            open_calls(server.address) as calls,
        ):
            await calls.value(calls.start("first"))
            [pid] = judge.pids("first")
            if BUSY[doing]:
                calls.start("a", *BUSY[doing])
                await judge.wait_for("there")
            server.signal(how)
            await server.wait()
            await wait_gone(pid)


async def test_a_worker_that_is_still_being_set_up_dies_with_its_server(judge):
    with trio.fail_after(PATIENCE_S):
        setup = [["mark", "there"], ["block", "never"]]
        async with open_server_process(judge, args={"setup": setup}) as server:
            pid = int(await judge.wait_for("there"))
            server.signal(signal.SIGKILL)
            await wait_gone(pid)


async def test_what_an_environment_has_started_dies_with_its_killed_worker(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_server(judge) as server, open_calls(server.address) as calls:
            calls.start("a", ["spawn", "child"], ["wait", "never"])
            child = int(await judge.wait_for("child"))
            await judge.wait_started("a")
            os.kill(judge.pids("a")[0], signal.SIGKILL)
            await calls.error("a", WorkerLost)
            assert not is_alive(child)  # at once: the proof of death covers it


async def test_what_an_environment_has_started_dies_with_a_closed_server(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_server(judge) as server, open_calls(server.address) as calls:
            await calls.value(calls.start("a", ["spawn", "child"]))
            child = int(await judge.wait_for("child"))
            assert is_alive(child)
        await until(lambda: not is_alive(child))


async def test_what_an_environment_has_started_dies_with_a_killed_server(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_server_process(judge) as server, open_calls(server.address) as calls:
            calls.start("a", ["spawn", "child"], ["wait", "never"])
            child = int(await judge.wait_for("child"))
            server.signal(signal.SIGKILL)
            await wait_gone(child)


async def test_no_file_is_left_by_restarts_and_a_passing_port(judge, tmp_path):
    with trio.fail_after(PATIENCE_S):
        async with open_server(judge) as server, open_calls(server.address) as calls:
            for turn in range(3):
                calls.start(f"k{turn}", ["die"], rerun=False)
                await calls.error(f"k{turn}", WorkerLost)
    [directory] = tmp_path.glob("trio_envserve-*")
    assert list(directory.iterdir()) == []
