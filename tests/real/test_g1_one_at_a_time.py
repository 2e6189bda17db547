"""G1: no request ever has two live executions."""

import os
import signal
from typing import Any

import pytest
import trio

from tests.proc import status_of
from tests.real.support import (
    honest_s,
    open_server,
    open_server_process,
    pid_of,
    serving,
    serving_process,
    until,
    wait_gone,
    worker_of,
)
from trio_envserve import ServerStartError, WorkerLost


async def test_g1_a_stopped_worker_is_suspected_but_its_work_not_run_elsewhere(judge):
    async with serving(judge, workers=2, silence_report_s=0.5) as (server, calls):
        await judge.wait_started(calls.start("a", ["wait", "go"], rerun=True))
        [pid] = judge.pids("a")
        os.kill(pid, signal.SIGSTOP)
        workers = server.stats
        await until(lambda: any(w.silent and w.pid == pid for w in workers().per_worker))
        # Others are served meanwhile, by the other worker.
        await calls.value(calls.start("b"))
        os.kill(pid, signal.SIGCONT)
        judge.put("go")
        await calls.value("a")
    judge.assert_exactly_once("a", "b")
    assert judge.pids("b") != [pid]


async def test_g1_a_stopped_worker_is_dead_before_its_work_runs_again_and_changes_nothing(judge):
    """G5, too: whatever is continued is dead already."""
    kill_s = await honest_s(judge)
    async with serving(judge, silence_report_s=0.5, silence_kill_s=kill_s) as (server, calls):
        await judge.wait_started(
            calls.start("a", ["wait", "go"], rerun=True),
            calls.start("b", ["wait", "go"], rerun=False),
        )
        [pid] = judge.pids("a")
        assert judge.pids("b") == [pid]
        os.kill(pid, signal.SIGSTOP)
        await judge.wait_started("a", times=2)
        judge.put("go")
        assert (await calls.outcome("a")).executions == 2
        await calls.value("a")
        await calls.error("b", WorkerLost)
        assert pid_of(server) != pid
    judge.assert_at_most(2)
    assert judge.ends("a") == ["result"]  # of the first life nothing was heard again
    assert judge.ends("b") == []


async def test_g1_a_blocked_event_loop_is_no_death(judge):
    limits: dict[str, Any] = {"blocked_report_s": 0.3, "silence_report_s": 2.0}
    async with serving(judge, **limits) as (server, calls):
        calls.start("a", ["block", "go"], rerun=True)
        await until(lambda: worker_of(server).blocked)
        calls.start("b", rerun=True)
        # It waits, or was dispatched just before; it cannot begin either way.
        await until(lambda: server.stats().waiting + worker_of(server).pending == 2)
        judge.put("go")
        await calls.value("a")
        await calls.value("b")
    judge.assert_exactly_once("a", "b")
    assert judge.pids("a") == judge.pids("b")


async def test_g1_a_thread_that_cannot_be_stopped_still_runs_until_it_has_ended(judge):
    environment = "tests.real.environments:ThreadActor"
    async with serving(judge, environment=environment, worker_capacity=1) as (server, calls):
        await judge.wait_started(calls.start("a", ["block", "go"], rerun=True))
        calls.cancel("a")
        calls.start("b")
        await until(lambda: server.stats().waiting == 1)
        assert judge.starts("b") == 0  # its place is taken until the code has ended
        judge.put("go")
        await calls.value("b")
    judge.assert_exactly_once("a", "b")
    end_a, start_b = judge.records("end", "a")[0], judge.records("start", "b")[0]
    assert end_a["time"] <= start_b["time"]


async def test_g1_code_that_ignores_its_cancel_is_killed_before_its_place_is_given_away(judge):
    limits: dict[str, Any] = {"worker_capacity": 1, "cancel_grace_s": 0.2, "cancel_kill_s": 0.4}
    async with serving(judge, **limits) as (_, calls):
        await judge.wait_started(calls.start("a", ["ignore cancel", "never"], rerun=True))
        calls.cancel("a")
        await calls.value(calls.start("b"))
    judge.assert_at_most(1)
    assert judge.ends("a") == []  # killed
    assert judge.pids("a") != judge.pids("b")


async def test_g1_a_killed_worker_is_reaped_before_its_work_runs_again(judge):
    async with serving(judge, workers=2) as (_, calls):
        keys = [calls.start(f"k{n}", ["wait", "go"], rerun=True) for n in range(12)]
        await judge.wait_started(*keys)
        victim = judge.pids("k0")[0]
        os.kill(victim, signal.SIGKILL)
        judge.put("go")
        await calls.values(*keys)
    judge.assert_at_most(2)
    for key in keys:
        assert judge.starts(key) == 1 + (judge.pids(key)[0] == victim)


async def test_g1_a_server_restarted_while_a_process_of_its_predecessor_runs_waits_for_it(judge):
    """A process that an environment has forked lives on, with the epoch lock: the guard of its
    worker was killed, before its server could see that."""
    async with serving_process(judge) as (old, calls):
        calls.start("a", ["escape", "escaped"], ["wait", "go"], rerun=True)
        calls.start("b", ["wait", "go"], rerun=True)
        escaped = int(await judge.wait_for("escaped"))
        await judge.wait_started("a", "b")
        workers = {*judge.pids("a"), *judge.pids("b")}
        old.signal(signal.SIGSTOP)
        for guard in {int(status_of(worker, "PPid")) for worker in workers}:
            os.kill(guard, signal.SIGKILL)
        old.signal(signal.SIGKILL)
        await old.wait()
        async with open_server_process(judge, bind=old.address) as new:
            await wait_gone(*workers)
            await until(lambda: "earlier server" in calls.client.health().reason)
            await trio.sleep(0.3)  # not waited for: a chance to do wrong
            assert calls.outcomes == {}
            assert judge.starts("a") == judge.starts("b") == 1
            judge.put("go")
            os.kill(escaped, signal.SIGKILL)
            await calls.value("a")
            await calls.value("b")
            assert new.address == old.address
    judge.assert_at_most(2)


async def test_g1_a_stopped_server_keeps_its_address(judge):
    async with serving_process(judge) as (old, calls):
        await judge.wait_started(calls.start("a", ["wait", "go"], rerun=True))
        old.signal(signal.SIGSTOP)
        with pytest.raises(ServerStartError) as refusal:
            async with open_server(judge, bind=old.address):
                raise AssertionError("two servers at one address")
        assert str(old.pid) in str(refusal.value)
        assert old.address in str(refusal.value)
        old.signal(signal.SIGKILL)
        await old.wait()
        async with open_server(judge, bind=old.address):
            judge.put("go")
            await calls.value("a")
    judge.assert_at_most(2)
