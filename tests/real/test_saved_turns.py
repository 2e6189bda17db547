"""Forty turns of bookings, whose worker, server or host is killed at turn 30.

Each seat is booked once, and the one turn that is in doubt is told."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from tests.connections import held_port
from tests.real.environments import Bookings
from tests.real.judge import Judge
from tests.real.support import (
    ANY_PORT,
    PATIENCE_S,
    QUICK,
    Calls,
    host_process,
    open_calls,
    open_server,
    open_server_process,
    until,
)
from trio_envserve import ServerLimits
from trio_envserve import open_server as open_real_server

BOOKINGS = "tests.real.environments:Bookings"
AT = 30
DOUBT = [f"books seat {AT}"]


def book(calls: Calls, key: str, *, booked: bool, keyed: bool = False) -> None:
    """Ask for the bookings of a key."""
    asked = {"key": key, "at": AT, "booked": booked}
    options: dict[str, Any] = {"rerun": True, **({"key": key} if keyed else {})}
    calls._nursery.start_soon(calls._run, key, asked, options)


async def at_turn(judge: Judge, key: str) -> None:
    """Until it is at the turn at which it waits."""
    await until(lambda: judge.exists(f"{key}.at"))


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
            first.signal(signal.SIGKILL)
            await first.wait()
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
    limits = ServerLimits(**{**QUICK, "start_s": PATIENCE_S})
    opened = open_real_server(
        BOOKINGS, args={"directory": str(judge.directory)}, workers=0, limits=limits,
        hosts_bind=ANY_PORT,
    )  # fmt: skip
    with trio.fail_after(PATIENCE_S):
        async with opened as server, open_calls(server.address) as calls:
            async with host_process(server.hosts_address) as host:
                book(calls, "k", booked=True)
                await at_turn(judge, "k")
                host.signal(signal.SIGKILL)
                await host.wait()
            async with host_process(server.hosts_address):
                assert (await calls.value("k"))["doubts"] == DOUBT
    assert_booked_once(judge, "k")


async def test_server_that_is_killed_over_a_host_leaves_nothing_in_doubt(judge: Judge):
    """The next server takes the running rollout over, and its saves go on there."""
    with trio.fail_after(PATIENCE_S), held_port() as port, held_port() as hosts:
        how: dict[str, Any] = {"hosts_bind": f"tcp://127.0.0.1:{hosts}", "fence_s": 1000.0}
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(host_process(how["hosts_bind"]))
            first = await stack.enter_async_context(server_process(judge, port, **how))
            calls = await stack.enter_async_context(open_calls(f"tcp://127.0.0.1:{port}"))
            book(calls, "k", booked=True, keyed=True)
            await at_turn(judge, "k")
            first.signal(signal.SIGKILL)
            await first.wait()
            await stack.enter_async_context(server_process(judge, port, **how))
            judge.put("k.on")
            assert (await calls.value("k"))["doubts"] == []
    assert_booked_once(judge, "k")
    assert judge.starts("k") == 1
