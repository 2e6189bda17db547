"""The host of an actor, without Ray."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import trio

from tests.real.support import ACTOR, ANY_PORT, PATIENCE_S, QUICK
from trio_envserve import ServerLimits, open_server
from trio_envserve.launchers.ray_actor import HostActor


def test_ray_ran_no_second_method_beside_the_host_since_one_was_a_coroutine():
    """An actor with a coroutine among its methods is one of asyncio, and has one thread: no
    host was ever told to leave."""
    methods = inspect.getmembers(HostActor, inspect.isfunction)
    assert {"run", "leave"} <= {name for name, _ in methods}
    assert not any(inspect.iscoroutinefunction(method) for _, method in methods)


def test_one_that_is_to_leave_before_it_has_begun_does_not_join():
    actor = HostActor({"address": "tcp://127.0.0.1:1"})
    actor.leave()
    assert actor.run() == "it has left"


@pytest.mark.real
async def test_it_runs_in_a_thread_until_another_one_tells_it_to_leave(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(
                ACTOR, args={"directory": str(judge.directory)}, workers=0, hosts_bind=ANY_PORT,
                limits=ServerLimits(**{**QUICK, "start_s": PATIENCE_S}),
            ) as server,
            trio.open_nursery() as nursery,
        ):  # fmt: skip
            options: dict[str, Any] = {
                "address": server.hosts_address,
                "name": str(judge.directory),
            }
            actor, said = HostActor(options), []

            async def run() -> None:
                said.append(await trio.to_thread.run_sync(actor.run))

            nursery.start_soon(run)
            await server.wait_ready()
            assert not said
            actor.leave()
    assert said == ["it has left"]
