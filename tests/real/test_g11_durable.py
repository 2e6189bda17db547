"""A server with a journal is killed and started again in its place; at random moments, by the rig
:mod:`tests.rig.kills`."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from tests.connections import held_port
from tests.real.judge import Judge
from tests.real.support import (
    PATIENCE_S,
    Calls,
    open_calls,
    open_server_process,
    until,
)
from trio_envserve import Client, MayHaveRun

journaled = partial(open_server_process, workers=2, journal=True)


async def test_g11_outcomes_and_starts_outlive_a_server_that_is_killed(judge: Judge):
    with trio.fail_after(PATIENCE_S), held_port() as port:
        bind = f"tcp://127.0.0.1:{port}"
        async with journaled(judge, bind=bind) as server:
            async with open_calls(bind) as calls, trio.open_nursery() as nursery:
                await ask(calls, "done")
                nursery.start_soon(ask, calls, "half", ["wait", "never"])
                nursery.start_soon(ask, calls, "again", ["wait", "gate"], True)
                await judge.wait_started("half", "again")
                server.signal(signal.SIGKILL)
                await server.wait()
                judge.put("gate")
                async with journaled(judge, bind=bind):
                    await until(lambda: len(calls.outcomes) == 3)
                    calls.outcomes["again"].unwrap()
                    assert calls.outcomes["again"].executions == 2
                    assert isinstance(calls.outcomes["half"].error, MayHaveRun)
                    async with open_calls(bind) as later:
                        known = await later.client.attach("done")
                        assert known.unwrap()["key"] == "done"
                        lost = await later.client.attach("half")
                        assert isinstance(lost.error, MayHaveRun)
                        assert lost.error.info is not None
                        assert lost.error.info.executions == 1
                        await assert_counted(judge, later.client)
                async with journaled(judge, bind=bind):
                    async with open_calls(bind) as later:
                        await assert_counted(judge, later.client)
                        again = await later.client.attach("again")
                        assert again.executions == 2
                        await assert_counted(judge, later.client)
    judge.assert_one_at_a_time()
    assert [judge.starts(key) for key in ("done", "half", "again")] == [1, 1, 2]


async def assert_counted(judge: Judge, client: Client) -> None:
    """Each key has as many executions as its environment has begun."""
    page = await client.list_keys()
    assert {one.key: one.executions for one in page.keys} == {
        one.key: judge.starts(one.key) for one in page.keys
    }
    assert len(page.keys) == 3


async def ask(
    calls: Calls, key: str, do: Sequence[Any] = ("sleep", 0.0), rerun: bool = False
) -> None:
    asked = {"key": key, "do": [list(do)], "value": None}
    calls.outcomes[key] = await calls.client.outcome(asked, key=key, rerun=rerun)
