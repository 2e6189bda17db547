"""A rollout forks, and its child comes back: it must not run its neighbours again (G1)."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import trio

from tests.real.forking import TICKS
from tests.real.support import PATIENCE_S, ROOT, open_server
from trio_envserve import open_client

ENDED = ["exited", os.EX_SOFTWARE]

COMES_BACK = {
    "trio": {
        "exec_fails": ENDED, "pty_child_returns": ENDED, "exits_as_if_alone": ENDED,
        "awaits": ENDED, "catches_all": ENDED, "in_a_task": ENDED, "forks_twice": "gone",
    },
    "asyncio": {
        "exec_fails": ENDED, "pty_child_returns": ENDED, "exits_as_if_alone": ENDED,
        "awaits": ENDED, "catches_all": ENDED, "in_a_task": ENDED, "forks_twice": "gone",
        "in_an_executor": ENDED,
    },
    "thread": {
        "exec_fails": ENDED, "pty_child_returns": ENDED, "exits_as_if_alone": ENDED,
        "asks_the_model": ENDED, "forks_twice": "gone",
    },
}  # fmt: skip
"""What a rollout says of its child, by what that does."""

MAY = {how: ["exited", 7] for how in ("exits", "executes", "runs_a_program", "multiprocesses")}


async def outcomes(judge, backend, wanted, neighbours=4):
    """What these rollouts say, one after the other until one says what it should not,
    beside neighbours that tick, each step once."""
    args = {"directory": str(judge.directory), "backend": backend}
    found = {}
    with trio.move_on_after(PATIENCE_S):
        async with (
            open_server(judge, environment="tests.real.forking:Forking", args=args) as server,
            open_client(server.address) as client,
            trio.open_nursery() as nursery,
        ):
            await server.wait_ready()
            await client.run_rollout({"key": "first", "how": "tick"})
            ticking = trio.Semaphore(neighbours)

            async def tick(key):
                async with ticking:
                    found[key] = await client.run_rollout({"key": key, "how": "tick"})

            for number in range(neighbours):
                nursery.start_soon(tick, f"n{number}")
            for how in wanted:
                asked = {"key": how, "how": how}
                found[how] = (await client.outcome(asked)).unwrap()
                if found[how] != wanted[how]:
                    break
    steps: Counter[tuple[str, int]] = Counter()
    pids = set()
    for line in (judge.directory / f"{backend}.log").read_text().splitlines():
        key, step, pid = json.loads(line)
        steps[key, step] += 1
        pids.add(pid)
    twice = sorted(step for step, times in steps.items() if times > 1)
    assert (twice, len(pids)) == ([], 1)
    for number in range(neighbours):
        assert found.pop(f"n{number}", "never ended") == "ticked"
        assert sum(steps[f"n{number}", step] for step in range(TICKS)) == TICKS
    return found


@pytest.mark.parametrize("backend", COMES_BACK)
async def test_a_child_that_comes_back_ran_its_neighbours_a_second_time(judge, backend, capfd):
    wanted = COMES_BACK[backend]
    assert await outcomes(judge, backend, wanted) == wanted
    told = capfd.readouterr().err
    # The child of a pty speaks to that.
    assert told.count("has returned from it") == len(wanted) - 1


@pytest.mark.parametrize("backend", COMES_BACK)
async def test_a_child_may_end_or_execute_a_program(judge, backend, capfd):
    assert await outcomes(judge, backend, MAY) == MAY
    assert "has returned" not in capfd.readouterr().err


async def test_a_child_has_not_the_descriptors_by_which_its_worker_lives(judge):
    """But the epoch's lock it has: while it runs, that epoch is not over."""
    found = await outcomes(judge, "thread", {"descriptors": None}, neighbours=1)
    [[link, signs, guard, lock], ended] = found["descriptors"]
    assert (link, signs, guard, ended) == ("closed", "/dev/null", "/dev/null", ["exited", 7])
    assert lock.endswith(".epochs")


async def test_a_child_of_a_server_without_worker_processes_comes_back(judge):
    """In a process of its own: it is this one that would go on twice."""
    command = [sys.executable, "-m", "tests.real.forking", str(judge.directory)]
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process(
            command, capture_stdout=True, cwd=ROOT, check=False, stderr=subprocess.STDOUT
        )
    said = done.stdout.decode().splitlines()
    assert [line for line in said if line.startswith("found")] == [f"found {ENDED}"]
    assert [line for line in said if line.startswith("after")] == ["after ['exited', 3]"]
