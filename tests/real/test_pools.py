"""What a pool of workers does by its limits and options: workers replaced, more and fewer of
them, variables for each slot, what large outcomes cost."""

import logging
import os
import signal
from collections import defaultdict
from typing import Any

import pytest
import trio

from tests.proc import status_of
from tests.real.support import (
    PATIENCE_S,
    QUICK,
    asked,
    open_calls,
    open_raw,
    open_server,
    open_server_process,
    pid_of,
    serving,
    until,
    worker_of,
)
from trio_envserve import Server, ServerLimits, WorkerRange, WorkerStats, open_client, open_host
from trio_envserve import open_server as open_real_server
from trio_envserve.core import messages
from trio_envserve.core.limits import MIB
from trio_envserve.core.pool import NOT_NEEDED
from trio_envserve.host.allocator import ENVIRON


async def test_a_worker_is_drained_and_replaced_after_so_many_executions(judge):
    async with serving(judge, recycle_executions=3) as (server, calls):
        calls.start("slow", ["wait", "go"])
        calls.start("a")
        calls.start("b")
        await until(lambda: worker_of(server).phase == "retiring")
        for key in ("c", "d"):
            calls.start(key)
        await calls.values("a", "b")
        await until(lambda: server.stats().waiting == 2)
        assert worker_of(server).pending == 1  # it is drained, not killed
        judge.put("go")
        await calls.values("slow", "c", "d")
        assert server.stats().worker_restarts == 1
    judge.assert_exactly_once("slow", "a", "b", "c", "d")
    assert judge.pids("slow") == judge.pids("a") == judge.pids("b")
    assert judge.pids("c") == judge.pids("d") != judge.pids("slow")


async def test_client_that_takes_nothing_stopped_a_pool_whose_only_worker_was_to_be_replaced(judge):
    limits: dict[str, Any] = {"kept_bytes": 2_500_000, "recycle_executions": 1}
    async with serving(judge, **limits) as (server, calls), open_raw(server.address) as raw:
        for n in range(3):
            raw.transmit(n, asked(f"k{n}", value={"bytes": 1_000_000}))
        await judge.wait_ended("k1")  # there is no room for it
        holder = judge.pids("k1")
        await until(lambda: [each.pid for each in in_phase(server, "emptying")] == holder)
        for key in ("a", "b"):
            await calls.value(calls.start(key))
        assert [each.pid for each in in_phase(server, "emptying")] == holder
        for n in range(3):
            await raw.outcome(n)
            raw.finish(n)
        await until(lambda: not in_phase(server, "emptying"))
        assert {death.lost for death in server.stats().deaths} == {0}
    judge.assert_exactly_once("k0", "k1", "k2", "a", "b")


async def test_a_worker_that_has_grown_too_large_is_drained_and_replaced(judge, caplog):
    caplog.set_level(logging.INFO, logger="trio_envserve.server")
    async with open_server(judge) as server:
        await server.wait_ready()
        await until(lambda: worker_of(server).memory_bytes > 0)
        most = worker_of(server).memory_bytes + 64 * MIB
    async with serving(judge, worker_memory_bytes=most) as (server, calls):
        await calls.value(calls.start("small"))
        calls.start("large", ["grow", 128], ["wait", "go"])
        await until(lambda: worker_of(server).phase == "retiring")
        calls.start("next")
        await until(lambda: server.stats().waiting == 1)
        judge.put("go")
        await calls.values("large", "next")
        assert server.stats().worker_restarts == 1
    judge.assert_exactly_once("small", "large", "next")
    assert judge.pids("small") == judge.pids("large") != judge.pids("next")
    assert [text for text in caplog.messages if "retires: it holds" in text]


async def test_variables_of_a_slot_reach_each_of_its_workers_and_win_over_the_server_s(
    judge, monkeypatch
):
    monkeypatch.setenv("PLACE", "of the server")
    places = [{"PLACE": "zero"}, {"PLACE": "one"}]
    async with serving(judge, workers=2, worker_capacity=1, worker_environ=places) as (
        server,
        calls,
    ):
        for turn in range(2):
            await until(lambda: server.status().ready == 2)
            # Each has one, since none takes two.
            asked = {"variable": "PLACE"}
            keys = [calls.start(f"{turn}-{n}", ["wait", f"go{turn}"], value=asked) for n in "ab"]
            await judge.wait_started(*keys)
            judge.put(f"go{turn}")
            found = {}
            for key in keys:
                outcome = await calls.outcome(key)
                found[outcome.worker.partition("-")[0]] = outcome.unwrap()["variable"]
            assert found == {"w0": "zero", "w1": "one"}
            killed = pid_of(server)
            os.kill(killed, signal.SIGKILL)
            await until(lambda: all(w.pid != killed for w in server.stats().per_worker))  # noqa: B023
    judge.assert_exactly_once(*(f"{turn}-{n}" for turn in range(2) for n in "ab"))


async def test_workers_keep_freed_memory_unless_told_otherwise(judge, monkeypatch):
    trim, mapped = ENVIRON
    monkeypatch.setenv(mapped, "123456")
    async with serving(judge) as (_, calls):
        for name, value in ((trim, ENVIRON[trim]), (mapped, "123456")):
            key = calls.start(name, value={"variable": name})
            assert (await calls.value(key))["variable"] == value


ONE_AT_A_TIME = """
import os, time
from pathlib import Path

HERE = Path(__file__).parent

class Game:
    main_thread = True

    def reset(self, name):
        self.name = name
        (HERE / f"{name}.{os.getpid()}.began").touch()
        while not (HERE / f"{name}.go").exists():
            time.sleep(0.01)
        return "?"

    def get_reward(self):
        return 1.0

    def oracle(self):
        return ["done"]
"""


@pytest.mark.parametrize("option", [None, 8])
async def test_rollouts_of_a_class_for_the_main_thread_waited_in_a_worker_while_another_was_free(
    tmp_path, option
):
    file = trio.Path(tmp_path / "game.py")
    await file.write_text(ONE_AT_A_TIME)
    limits = ServerLimits(**{**QUICK, "worker_capacity": option, "silence_kill_s": PATIENCE_S})
    names, rewards = ("a", "b", "c"), []

    def began() -> dict[str, str]:
        return dict(path.stem.split(".") for path in tmp_path.glob("*.began"))

    with trio.fail_after(PATIENCE_S):
        async with (
            open_real_server(f"{file}:Game", workers=2, limits=limits) as server,
            open_client(server.address) as client,
        ):
            await until(lambda: server.status().ready == 2)

            async def run(name: str) -> None:
                rewards.append((await client.run_rollout({"name": name}))["reward"])

            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(run, name)
                await until(lambda: len(began()) == 2)
                stats = await client.stats()
                assert [(each.pending, each.capacity) for each in stats.per_worker] == [(1, 1)] * 2
                assert stats.waiting == 1
                first = began()
                (last,) = {*names} - {*first}
                free = next(iter(first))
                (tmp_path / f"{free}.go").touch()
                await until(lambda: last in began())
                assert began()[last] == first[free], "on the worker that was free"
                for name in names:
                    (tmp_path / f"{name}.go").touch()
    assert rewards == [1.0] * 3


# -- pools that grow and shrink -------------------------------------------------------


CAPACITY = 2


def in_phase(server: Server, phase: str) -> list[WorkerStats]:
    return [each for each in server.stats().per_worker if each.phase == phase]


@pytest.mark.slow
async def test_from_two_to_sixteen_workers_and_back_nothing_is_lost_and_nothing_killed(judge):
    bounds = WorkerRange(2, 16)
    limits: dict[str, Any] = {
        "worker_capacity": CAPACITY,
        "grow_after_s": 0.2,
        "shrink_after_s": 1.0,
    }
    most = bounds.most * CAPACITY
    async with serving(judge, workers=bounds, **limits) as (server, calls):
        await until(lambda: server.status().ready == 2)
        early = [calls.start(f"early{n}") for n in range(20)]
        await calls.values(*early)

        # More than 16 workers can run at once: the rest waits, and there is no 17th.
        keys = [calls.start(f"k{n}", ["wait", f"go-k{n}"]) for n in range(most + 4)]
        await until(lambda: server.stats().running == most)
        stats = server.stats()
        assert (stats.workers, stats.ready, stats.waiting) == (16, 16, 4)
        assert len(stats.per_worker) == 16

        # One of each two ends: eight workers would be enough, and eight drain.
        of_pid = defaultdict(list)
        # What counts as running may still be on its way to a worker.
        await until(lambda: len([key for key in keys if judge.starts(key)]) == most)
        begun = [key for key in keys if judge.starts(key)]
        for key in begun:
            (pid,) = judge.pids(key)
            of_pid[pid].append(key)
        assert sorted(map(len, of_pid.values())) == [CAPACITY] * 16
        late = [key for key in keys if key not in begun]
        enough = [*late, *(pair[0] for pair in of_pid.values())]
        for key in enough:
            judge.put(f"go-{key}")
        await calls.values(*enough)
        await until(lambda: len(in_phase(server, "retiring")) == 8)
        draining = in_phase(server, "retiring")
        assert {each.pending for each in draining} == {1}  # neither killed nor cancelled
        assert server.stats().workers == 8

        # What comes now goes to those that stay.
        more = [calls.start(f"more{n}") for n in range(8)]
        await calls.values(*more)
        assert not {judge.pids(key)[0] for key in more} & {each.pid for each in draining}

        for pair in of_pid.values():
            judge.put(f"go-{pair[1]}")
            await calls.value(pair[1])
        await until(lambda: len(server.stats().per_worker) == 2)
        stats = server.stats()
        assert (stats.workers, stats.ready, stats.worker_restarts) == (2, 2, 0)
        assert {death.why for death in stats.deaths} == {NOT_NEEDED}
        assert {death.lost for death in stats.deaths} == {0}
    judge.assert_exactly_once(*early, *keys, *more)


@pytest.mark.slow
async def test_a_host_has_as_many_workers_as_there_is_work_for(judge):
    async with (
        open_server(
            judge, hosted=True, worker_capacity=1, grow_after_s=0.2, shrink_after_s=1.0
        ) as server,
        open_host(server.hosts_address, workers=WorkerRange(1, 4), name="a"),
        open_calls(server.address) as calls,
    ):
        await until(lambda: server.status().ready == 1)
        keys = [calls.start(f"k{n}", ["wait", f"go-k{n}"]) for n in range(6)]
        await until(lambda: server.stats().running == 4)
        assert (server.stats().workers_least, server.stats().workers_most) == (1, 4)
        for key in keys:
            judge.put(f"go-{key}")
        await calls.values(*keys)
        await until(lambda: len(server.stats().per_worker) == 1)
        assert {death.why for death in server.stats().deaths} == {NOT_NEEDED}
    judge.assert_exactly_once(*keys)


# -- large outcomes that nobody acknowledges stay with their workers ------------------


COUNT, SIZE_BYTES, KEPT_BYTES = 40, 6 * MIB, 32 * MIB


def most_bytes(pid: int) -> int:
    return int(status_of(pid, "VmHWM").split()[0]) * 1024


@pytest.mark.slow
async def test_a13_what_ran_was_kept_beyond_the_bound_of_bytes(judge):
    """120 outcomes of 20 MB, received and not acknowledged, took 2.3 GiB of the server
    with a bound of 256 MiB.  Here 240 MiB, and a bound of 32."""
    async with (
        open_server_process(judge, workers=2, kept_bytes=KEPT_BYTES) as server,
        open_client(server.address) as client,
        open_raw(server.address) as raw,
    ):
        before_bytes = most_bytes(server.pid)
        for n in range(COUNT):
            raw.transmit(n, asked(f"k{n}", ["wait", "go"], value={"bytes": SIZE_BYTES}))
        await judge.wait_started(*(f"k{n}" for n in range(COUNT)))
        judge.put("go")
        stats = await client.stats()
        while stats.announced + stats.kept < COUNT:
            await trio.sleep(0.05)
            stats = await client.stats()
        here = stats.kept
        assert 0 < stats.kept_bytes <= KEPT_BYTES
        assert stats.announced_bytes >= (COUNT - here) * SIZE_BYTES
        for _ in range(COUNT):
            outcome, frames = await raw.next(messages.Outcome)
            assert (outcome.status, len(frames[1]) >= SIZE_BYTES) == (0, True)
            raw.finish(outcome.sequence)
        grown_bytes = most_bytes(server.pid) - before_bytes
    judge.assert_exactly_once(*(f"k{n}" for n in range(COUNT)))
    print(f"{COUNT * SIZE_BYTES >> 20} MiB of outcomes, the server grew by {grown_bytes >> 20} MiB")
    assert grown_bytes < 3 * KEPT_BYTES
