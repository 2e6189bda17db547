"""A server with a journal is killed, at any moment, and started again in its place."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import trio

from tests.connections import held_port
from tests.real.judge import Judge
from tests.real.support import (
    PATIENCE_S,
    Calls,
    open_calls,
    open_server_process,
)
from trio_envserve import Client, MayHaveRun, Outcome

MOST_UP_S = 3.0
"""A server is killed at some moment of so long a life, or while it starts."""


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
                    while len(calls.outcomes) < 3:  # noqa: ASYNC110
                        await trio.sleep(0.02)
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


@pytest.mark.slow
async def test_g11_kills_at_random_moments_lose_nothing_that_was_told(judge: Judge):
    """Half of the calls consent to a further execution.  A caller that was told an outcome
    gets the same one from the last server; what is told to have run once at most has."""
    number, kills = 300, 30
    random_moments = random.Random(number)
    with trio.fail_after(PATIENCE_S * (1 + kills / 10)), held_port() as port:
        bind = f"tcp://127.0.0.1:{port}"
        async with open_calls(bind) as calls, trio.open_nursery() as nursery:
            for index in range(number):
                key = f"k{index}"
                nursery.start_soon(ask, calls, key, ["sleep", 0.2], bool(index % 2))
            for _ in range(kills):
                async with journaled(judge, bind=bind) as server:
                    with trio.move_on_after(random_moments.uniform(0, MOST_UP_S)):
                        await server.wait()
                    server.signal(signal.SIGKILL)
                    await server.wait()
            async with journaled(judge, bind=bind):
                while len(calls.outcomes) < number:  # noqa: ASYNC110
                    await trio.sleep(0.02)
                async with open_calls(bind) as later:
                    for key, told in calls.outcomes.items():
                        found = await later.client.attach(key)
                        assert same(found, told), key
                nursery.cancel_scope.cancel()
    judge.assert_one_at_a_time()
    for index in range(number):
        assert judge.starts(f"k{index}") <= (4 if index % 2 else 1)


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


def same(found: Outcome, told: Outcome) -> bool:
    if told.error is None:
        return found.error is None and found.value == told.value
    return isinstance(found.error, type(told.error)) or isinstance(told.error, MayHaveRun)
