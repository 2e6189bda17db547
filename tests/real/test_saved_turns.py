"""Forty turns of bookings, whose worker, server and host are killed at turn 30.

Each seat is booked once, and the one turn that is in doubt is told."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from tests.connections import held_port
from tests.real.environments import Bookings
from tests.real.judge import Judge
from tests.real.support import (
    PATIENCE_S,
    Calls,
    host_process,
    open_calls,
    open_server,
    open_server_process,
    until,
)
from trio_envserve.lab.processes import Process

BOOKINGS = "tests.real.environments:Bookings"
AT = 30
DOUBT = [f"books seat {AT}"]


def book(calls: Calls, key: str, *, booked: bool, keyed: bool = False, lives: int = 1) -> None:
    """Ask for the bookings of a key."""
    asked = {"key": key, "at": AT, "booked": booked, "lives": lives}
    options: dict[str, Any] = {"rerun": True, **({"key": key} if keyed else {})}
    calls._nursery.start_soon(calls._run, key, asked, options)


async def at_turn(judge: Judge, key: str, life: int = 0) -> None:
    """Until this life is at the turn at which it waits."""
    await until(lambda: judge.exists(f"{key}.at-{life}"))


async def kill(*processes: Process) -> None:
    """Kill -9 all of them, and reap them."""
    for process in processes:
        process.signal(signal.SIGKILL)
    for process in processes:
        await process.wait()


def seats(judge: Judge, key: str) -> list[int]:
    return Bookings(str(judge.directory)).booked(key)


def assert_booked_once(judge: Judge, key: str) -> None:
    assert seats(judge, key) == [*range(1, Bookings.TURNS + 1)]
    judge.assert_one_at_a_time()


@pytest.mark.parametrize("booked", [True, False])
async def test_worker_that_is_killed_leaves_one_turn_in_doubt(judge: Judge, booked: bool):
    async with open_server(judge, environment=BOOKINGS) as server, open_calls(server.address) as c:
        book(c, "k", booked=booked)
        await at_turn(judge, "k")
        os.kill(judge.pids("k")[0], signal.SIGKILL)
        assert (await c.value("k"))["doubts"] == DOUBT
        assert (await c.outcome("k")).executions == 2
    assert_booked_once(judge, "k")


@pytest.mark.parametrize("booked", [True, False])
async def test_server_that_is_killed_leaves_one_turn_in_doubt(judge: Judge, booked: bool):
    with trio.fail_after(PATIENCE_S), held_port() as port:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(server_process(judge, port))
            calls = await stack.enter_async_context(open_calls(f"tcp://127.0.0.1:{port}"))
            book(calls, "k", booked=booked, keyed=True)
            await at_turn(judge, "k")
            await kill(first)
            await stack.enter_async_context(server_process(judge, port))
            assert (await calls.value("k"))["doubts"] == DOUBT
    assert_booked_once(judge, "k")
    assert judge.starts("k") == 2


def server_process(judge: Judge, port: int, **hosts: Any) -> Any:
    """A server with a journal, in a process of its own."""
    return open_server_process(
        judge, environment=BOOKINGS, bind=f"tcp://127.0.0.1:{port}", journal=True, hosts=hosts,
        start_s=PATIENCE_S,
    )  # fmt: skip


async def test_host_that_is_killed_leaves_one_turn_in_doubt(judge: Judge):
    async with open_server(judge, environment=BOOKINGS, hosted=True) as server:
        async with open_calls(server.address) as calls:
            async with host_process(server.hosts_address) as host:
                book(calls, "k", booked=True)
                await at_turn(judge, "k")
                await kill(host)
            async with host_process(server.hosts_address):
                assert (await calls.value("k"))["doubts"] == DOUBT
    assert_booked_once(judge, "k")


class Hosted:
    """A server with a journal, and a host for its workers, each started again on demand.

    Leases are so long that no test waits for the end of one: what is dead is proven dead."""

    server: Process
    host: Process

    def __init__(self, judge: Judge, port: int, hosts_port: int, stack: AsyncExitStack) -> None:
        self._judge = judge
        self._port = port
        self._hosts = f"tcp://127.0.0.1:{hosts_port}"
        self._stack = stack

    @classmethod
    @asynccontextmanager
    async def opened(cls, judge: Judge) -> AsyncIterator[tuple[Hosted, Calls]]:
        with trio.fail_after(PATIENCE_S), held_port() as port, held_port() as hosts_port:
            async with AsyncExitStack() as stack:
                hosted = cls(judge, port, hosts_port, stack)
                await hosted.start_host()
                await hosted.start_server()
                address = f"tcp://127.0.0.1:{port}"
                yield hosted, await stack.enter_async_context(open_calls(address))

    async def start_host(self) -> None:
        self.host = await self._stack.enter_async_context(host_process(self._hosts))

    async def start_server(self) -> None:
        made = server_process(self._judge, self._port, hosts_bind=self._hosts, fence_s=1000.0)
        self.server = await self._stack.enter_async_context(made)


async def test_server_that_is_killed_over_a_host_leaves_nothing_in_doubt(judge: Judge):
    """The next server takes the running rollout over, and its saves go on there."""
    async with Hosted.opened(judge) as (hosted, calls):
        book(calls, "k", booked=True, keyed=True)
        await at_turn(judge, "k")
        await kill(hosted.server)
        await hosted.start_server()
        judge.put("k.on")
        assert (await calls.value("k"))["doubts"] == []
    assert_booked_once(judge, "k")
    assert judge.starts("k") == 1


@pytest.mark.parametrize("booked", [True, False])
async def test_worker_server_and_host_that_are_killed_at_once_leave_one_turn_in_doubt(
    judge: Judge, booked: bool
):
    async with Hosted.opened(judge) as (hosted, calls):
        book(calls, "k", booked=booked, keyed=True)
        await at_turn(judge, "k")
        os.kill(judge.pids("k")[0], signal.SIGKILL)
        await kill(hosted.server, hosted.host)
        await hosted.start_server()
        await hosted.start_host()
        assert (await calls.value("k"))["doubts"] == DOUBT
    assert_booked_once(judge, "k")
    assert judge.starts("k") == 2


@pytest.mark.parametrize("host_first", [True, False])
async def test_worker_server_and_host_that_are_killed_in_turn_leave_one_turn_in_doubt(
    judge: Judge, host_first: bool
):
    """Each at turn 30, in a life of its own where it ends one: the turn is told to each later life,
    and no other one is."""
    async with Hosted.opened(judge) as (hosted, calls):
        book(calls, "k", booked=False, keyed=True, lives=2)
        await at_turn(judge, "k")
        os.kill(judge.pids("k")[0], signal.SIGKILL)
        await at_turn(judge, "k", 1)
        for process in (hosted.host, hosted.server) if host_first else (hosted.server, hosted.host):
            await kill(process)
        await hosted.start_server()
        await hosted.start_host()
        assert (await calls.value("k"))["doubts"] == DOUBT * 2
    assert_booked_once(judge, "k")
    assert judge.starts("k") == 3
