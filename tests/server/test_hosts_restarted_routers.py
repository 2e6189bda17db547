"""A router with a journal is killed and started again: its hosts come back with their work."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from tests.connections import held_port
from tests.real.judge import Judge
from tests.real.support import (
    ACTOR,
    PATIENCE_S,
    QUICK,
    Calls,
    open_calls,
    open_process,
)
from tests.server.test_hosts import host_process
from trio_envserve.lab.processes import Process

pytestmark = [pytest.mark.real, pytest.mark.slow]


@asynccontextmanager
async def router(
    judge: Judge, bind: str, hosts: str, *, fence_s: float = 1000.0, journal: bool = True
) -> AsyncIterator[Process]:
    options = {
        "environment": ACTOR, "args": {"directory": str(judge.directory)}, "bind": bind,
        "workers": 0, "limits": {**QUICK, "worker_capacity": 20, "start_s": PATIENCE_S},
        "hosts_bind": hosts, "fence_s": fence_s,
        "journal": str(judge.directory / "journal") if journal else None,
    }  # fmt: skip
    async with open_process(judge, "server_main", options, "serving") as process:
        yield process


@asynccontextmanager
async def addresses() -> AsyncIterator[tuple[str, str]]:
    async with AsyncExitStack() as stack:
        ports = [stack.enter_context(held_port()) for _ in range(2)]
        yield f"tcp://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}"


async def kill(process: Process) -> None:
    process.signal(signal.SIGKILL)
    await process.wait()


class Asked:
    """Keyed calls in the background of a test."""

    def __init__(self, calls: Calls, nursery: trio.Nursery) -> None:
        self.calls = calls
        self._nursery = nursery

    def start(self, key: str, *steps: list[str], rerun: bool = False) -> None:
        asked = {"key": key, "do": list(steps), "value": None}
        self._nursery.start_soon(self.calls._run, key, asked, {"key": key, "rerun": rerun})


@asynccontextmanager
async def open_asked(bind: str) -> AsyncIterator[Asked]:
    async with open_calls(bind) as calls, trio.open_nursery() as nursery:
        yield Asked(calls, nursery)
        nursery.cancel_scope.cancel()


async def test_twenty_rollouts_on_a_host_outlive_the_router(judge: Judge):
    keys = [f"k{number}" for number in range(20)]
    with trio.fail_after(PATIENCE_S):
        async with addresses() as (bind, hosts), host_process(hosts, judge, "a"):
            async with router(judge, bind, hosts) as first, open_asked(bind) as asked:
                for key in keys:
                    asked.start(key, ["wait", "gate"])
                await judge.wait_started(*keys)
                await kill(first)
                async with router(judge, bind, hosts):
                    judge.put("gate")
                    for key in keys:
                        assert (await asked.calls.value(key))["key"] == key
    judge.assert_exactly_once(*keys)
    assert sum(judge.starts(key) for key in keys) == 20


async def test_what_the_journal_does_not_know_is_stopped_before_it_runs_again(judge: Judge):
    """A call without a key, and with consent, is lost with its router."""
    with trio.fail_after(PATIENCE_S):
        async with addresses() as (bind, hosts), host_process(hosts, judge, "a"):
            async with router(judge, bind, hosts) as first, open_asked(bind) as asked:
                asked.start("keyed", ["wait", "gate"])
                asked.calls.start("plain", ["wait", "gate"], rerun=True)
                await judge.wait_started("keyed", "plain")
                await kill(first)
                async with router(judge, bind, hosts):
                    await judge.wait_started("plain", times=2)
                    judge.put("gate")
                    await asked.calls.value("plain")
                    await asked.calls.value("keyed")
    judge.assert_one_at_a_time()
    assert [judge.starts(key) for key in ("keyed", "plain")] == [1, 2]


async def test_routers_that_are_killed_one_after_the_other_start_nothing_twice(judge: Judge):
    keys = [f"k{number}" for number in range(6)]
    with trio.fail_after(PATIENCE_S):
        async with AsyncExitStack() as stack:
            bind, hosts = await stack.enter_async_context(addresses())
            for name in "ab":
                await stack.enter_async_context(host_process(hosts, judge, name))
            current = await stack.enter_async_context(router(judge, bind, hosts))
            asked = await stack.enter_async_context(open_asked(bind))
            for number, key in enumerate(keys):
                asked.start(key, ["wait", f"gate{number}"])
                await judge.wait_started(key)
                await kill(current)
                current = await stack.enter_async_context(router(judge, bind, hosts))
            for number, key in enumerate(keys):
                judge.put(f"gate{number}")
                await asked.calls.value(key)
    judge.assert_exactly_once(*keys)


async def test_without_a_journal_a_host_ends_its_workers_first(judge: Judge):
    with trio.fail_after(PATIENCE_S):
        async with addresses() as (bind, hosts), host_process(hosts, judge, "a"):
            async with (
                router(judge, bind, hosts, fence_s=2.0, journal=False) as first,
                open_calls(bind) as calls,
            ):
                calls.start("plain", ["wait", "gate"], rerun=True)
                await judge.wait_started("plain")
                await kill(first)
                async with router(judge, bind, hosts, fence_s=2.0, journal=False):
                    await judge.wait_started("plain", times=2)
                    judge.put("gate")
                    await calls.value("plain")
    judge.assert_at_most(2)
