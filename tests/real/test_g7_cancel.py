"""G7: cancelling reaches the code; nothing cancelled starts later or again."""

import os
import signal

import pytest
import trio

from tests.real.support import (
    PATIENCE_S,
    asked,
    open_calls,
    open_client_process,
    open_server,
    serving,
    serving_cut,
    serving_raw,
    until,
)
from trio_envserve import Abandoned, DeadlineExceeded, DidNotRun, open_client
from trio_envserve.core import messages


@pytest.mark.parametrize("workers", [1, 0])
async def test_g7_a_cancelled_call_cancels_the_code(judge, workers):
    async with serving(judge, workers=workers) as (_, calls):
        await judge.wait_started(calls.start("a", ["wait", "never"], rerun=True))
        calls.cancel("a")
        await judge.wait_ended("a")
        await calls.value(calls.start("b"))
    judge.assert_at_most(1)
    assert judge.ends("a") == ["Cancelled"]


async def test_g7_an_execution_that_lasts_for_longer_than_its_call_lets_it_is_cancelled(judge):
    async with serving(judge) as (_, calls):
        error = await calls.failure(
            calls.start("a", ["wait", "never"], rerun=True, execution_s=0.5)
        )
        assert error.code in ("execution-limit", "no-answer")  # by whether a beat had come
        assert "the 0.5 s that the call lets an execution last" in str(error)
        await judge.wait_ended("a")
        await calls.value(calls.start("b", execution_s=PATIENCE_S))
    judge.assert_at_most(1)
    assert judge.ends("a") == ["Cancelled"]


@pytest.mark.parametrize("workers", [1, 0])
async def test_g7_what_waits_for_a_worker_never_starts_once_cancelled(judge, workers):
    async with serving(judge, workers=workers, worker_capacity=1) as (server, calls):
        await judge.wait_started(calls.start("busy", ["wait", "go"]))
        waiting = [calls.start(f"k{n}", rerun=True) for n in range(5)]
        await until(lambda: server.stats().waiting == 5)
        for key in waiting:
            calls.cancel(key)
        await until(lambda: server.stats().waiting == 0)
        judge.put("go")
        await calls.value("busy")
        await calls.value(calls.start("last"))
    judge.assert_exactly_once("busy", "last")
    assert [judge.starts(key) for key in waiting] == [0] * 5


async def test_g7_a_cancel_without_a_connection_reaches_the_code_when_there_is_one(judge):
    async with serving_cut(judge) as (_, proxy, calls):
        await judge.wait_started(calls.start("a", ["wait", "never"], rerun=True))
        proxy.stall()
        proxy.cut_all()
        calls.cancel("a")
        proxy.resume()
        await judge.wait_ended("a")
    judge.assert_at_most(1)
    assert judge.ends("a") == ["Cancelled"]


async def test_g7_a_cancelled_request_whose_worker_dies_is_not_run_again(judge):
    async with serving(judge) as (_, calls):
        calls.start("a", ["clean up slowly", "cleaning", "never"], rerun=True)
        await judge.wait_started("a")
        calls.cancel("a")
        await judge.wait_for("cleaning")
        os.kill(judge.pids("a")[0], signal.SIGKILL)
        await calls.value(calls.start("b", rerun=True))
    judge.assert_at_most(1)
    assert judge.starts("a") == 1


async def test_g7_a_request_cancelled_between_its_executions_does_not_run_again(judge):
    async with serving(judge, restart_pause_s=0.5, restart_pause_max_s=0.5) as (server, calls):
        calls.start("a", ["die"], rerun=True)
        await until(lambda: server.stats().waiting == 1 and judge.starts("a") == 1)
        calls.cancel("a")
        await calls.value(calls.start("b"))
    judge.assert_at_most(1)


async def test_g7_a_cancelled_group_ends_with_all_its_members(judge):
    async with open_server(judge) as server, open_client(server.address) as client:
        members = [{"key": f"m{n}", "do": [["wait", "never"]]} for n in range(4)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_group, members)
            await judge.wait_started("m0", "m1", "m2", "m3")
            nursery.cancel_scope.cancel()
        await judge.wait_ended("m0", "m1", "m2", "m3")
    judge.assert_at_most(1)
    assert [record["how"] for record in judge.records("end")] == ["Cancelled"] * 4


async def test_g7_a_deadline_reaches_the_code_and_the_caller(judge):
    async with serving(judge) as (server, calls):
        await server.wait_ready()
        calls.start("a", ["wait", "never"], timeout_s=1.5, rerun=True)
        error = (await calls.outcome("a")).error
        # On a slow machine the limit may pass before the dispatch.
        assert isinstance(error, DeadlineExceeded | DidNotRun) or judge.starts("a")
        if judge.starts("a"):
            await judge.wait_ended("a")
    judge.assert_at_most(1)
    assert judge.ends("a") in (["Cancelled"], [])


async def test_g7_closing_the_client_cancels_its_work(judge):
    async with open_server(judge, worker_capacity=2) as server:
        async with trio.open_nursery() as nursery:
            outcomes = {}

            async def call(client, key):
                outcomes[key] = await client.outcome({"key": key, "do": [["wait", "never"]]})

            async with open_client(server.address) as client:
                for key in ("a", "b", "waiting"):
                    nursery.start_soon(call, client, key)
                await until(lambda: len(judge.records("start")) == 2)
        assert {type(outcome.error) for outcome in outcomes.values()} == {Abandoned}
        ran = [record["key"] for record in judge.records("start")]
        await judge.wait_ended(*ran)
        await until(lambda: server.stats().sessions == 0)
    judge.assert_at_most(1)
    assert [record["how"] for record in judge.records("end")] == ["Cancelled"] * 2


async def test_g7_the_work_of_a_killed_client_is_cancelled_after_its_lease(judge):
    asked = [({"key": f"k{n}", "do": [["wait", "never"]]}, {"rerun": True}) for n in range(4)]
    async with serving(judge, lease_s=6.0, worker_capacity=2) as (server, calls):
        async with open_client_process(judge, server.address, asked) as client:
            await until(lambda: len(judge.records("start")) == 2)
            client.signal(signal.SIGKILL)
            await client.wait()
        ran = [record["key"] for record in judge.records("start")]
        await judge.wait_ended(*ran)
        # The others were waiting; their places go to whoever is still there.
        await calls.value(calls.start("after"))
        await until(lambda: server.stats().sessions == 1)
    judge.assert_at_most(1)
    assert len(judge.records("start")) == 3
    assert judge.ends("after") == ["result"]


async def test_g7_work_that_ends_in_spite_of_its_cancel_has_one_winner(judge):
    """A thread cannot be stopped; what it returns after its cancel nobody gets."""
    environment = "tests.real.environments:ThreadActor"
    async with serving_raw(judge, environment=environment) as (server, raw):
        raw.transmit(0, asked("a", ["until cancelled"]))
        await judge.wait_started("a")
        raw.finish(0)
        await judge.wait_ended("a")
        raw.transmit(0, asked("a", ["until cancelled"]))
        refused, _ = await raw.next(messages.Refused)
        assert refused.code == "finished"
        await until(lambda: server.stats().running == 0)
        await raw.sync(1, [])
        assert raw.all(messages.Outcome) == []
    judge.assert_exactly_once("a")


async def test_g7_a_stopping_server_cancels_what_runs_and_starts_nothing(judge):
    async with open_client("tcp://127.0.0.1:9") as _:
        pass  # nobody there: closing must not wait for anybody
    async with open_server(judge, worker_capacity=1) as server:
        async with trio.open_nursery() as nursery:
            calls = await nursery.start(background, server.address)
            await judge.wait_started(calls.start("a", ["wait", "never"]))
            calls.start("b")
            await until(lambda: server.stats().waiting == 1)
            assert await server.drain(0.2) is False
            assert (closing := server.status().closing) is not None
            assert closing.stage.value != "draining"  # it cancels, or has done so by now
            nursery.cancel_scope.cancel()
    judge.assert_at_most(1)
    assert judge.ends("a") == ["Cancelled"]
    assert judge.starts("b") == 0


async def background(address, task_status):
    async with open_calls(address) as calls:
        task_status.started(calls)
        await trio.sleep_forever()
