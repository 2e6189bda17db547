"""Rollouts whose worker was killed, in real processes, with the limits as shipped."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from tests.real.support import pid_of, serving, until
from trio_envserve.client.outcome import Outcome
from trio_envserve.core.errors import WorkerLost

pytestmark = pytest.mark.slow


async def test_b6_suspects_of_one_death_went_one_at_a_time_for_the_whole_server(judge):
    """60 rollouts of a second took 31 s after one worker of two had died with half."""
    keys = [f"r{n}" for n in range(60)]
    async with serving(judge, workers=2) as (server, calls):
        await until(lambda: server.status().ready == 2)
        for key in keys:
            calls.start(key, ["sleep", 1.0], rerun=True)
        await judge.wait_started(*keys)
        began_s = trio.current_time()
        os.kill(pid_of(server), signal.SIGKILL)
        await calls.values(*keys)
        took_s = trio.current_time() - began_s
    judge.assert_at_most(2)
    print(f"60 rollouts of a second, one worker of two killed: {took_s:.1f} s")
    assert took_s < 25.0  # one at a time, 30 of a second take 30 s on any machine


async def test_b6_one_killer_among_61_costs_nobody_else_his_rollout(judge):
    keys = [f"r{n}" for n in range(60)]
    outcomes: dict[str, Outcome] = {}
    async with serving(judge, workers=8) as (server, calls):
        await until(lambda: server.status().ready == 8)
        for number, key in enumerate(keys):
            if number == 30:
                calls.start("killer", ["wait", "all"], ["sleep", 0.2], ["die"], rerun=True)
            calls.start(key, ["wait", "all"], ["sleep", 1.0], rerun=True)
        await judge.wait_started("killer", *keys)
        judge.put("all")
        for key in (*keys, "killer"):
            outcomes[key] = await calls.outcome(key)
    assert [key for key, outcome in outcomes.items() if not outcome.ok] == ["killer"]
    assert type(outcomes["killer"].error) is WorkerLost
