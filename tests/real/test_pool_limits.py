"""What a pool does by its limits and options: workers replaced, variables for each slot."""

import logging
import os
import signal

import pytest
import trio

from tests.real.environments import MIB
from tests.real.support import (
    PATIENCE_S,
    QUICK,
    open_server,
    pid_of,
    serving,
    until,
    worker_of,
)
from trio_envserve import ServerLimits, open_client
from trio_envserve import open_server as open_real_server
from trio_envserve.host.allocator import ENVIRON


async def test_a_worker_is_drained_and_replaced_after_so_many_executions(judge):
    async with serving(judge, recycle_executions=3) as (server, calls):
        calls.start("slow", ["wait", "go"])
        calls.start("a")
        calls.start("b")
        await until(lambda: worker_of(server).phase == "retiring")
        for key in ("c", "d"):
            calls.start(key)
        await until(lambda: server.stats().waiting == 2)
        assert worker_of(server).pending == 1  # it is drained, not killed
        judge.put("go")
        await calls.values("slow", "a", "b", "c", "d")
        assert server.stats().worker_restarts == 1
    judge.assert_exactly_once("slow", "a", "b", "c", "d")
    assert judge.pids("slow") == judge.pids("a") == judge.pids("b")
    assert judge.pids("c") == judge.pids("d") != judge.pids("slow")


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
