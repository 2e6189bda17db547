"""Pools that grow and shrink under a changing load, judged by the environments' log."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import trio

from tests.real.support import (
    ACTOR,
    ANY_PORT,
    PATIENCE_S,
    QUICK,
    open_calls,
    serving,
    until,
)
from trio_envserve import Server, ServerLimits, WorkerRange, WorkerStats, open_host
from trio_envserve import open_server as open_router
from trio_envserve.core.lives import NOT_NEEDED

CAPACITY = 2


def in_phase(server: Server, phase: str) -> list[WorkerStats]:
    return [each for each in server.stats().per_worker if each.phase == phase]


@pytest.mark.slow
async def test_from_two_to_sixteen_workers_and_back_nothing_is_lost_and_nothing_killed(judge):
    bounds = WorkerRange(2, 16)
    limits: dict[str, Any] = {
        "worker_capacity": CAPACITY,
        "grow_after_s": 0.2,
        "shrink_after_s": 1.0,
    }
    most = bounds.most * CAPACITY
    async with serving(judge, workers=bounds, **limits) as (server, calls):
        await until(lambda: server.status().ready == 2)
        early = [calls.start(f"early{n}") for n in range(20)]
        await calls.values(*early)

        # More than 16 workers can run at once: the rest waits, and there is no 17th.
        keys = [calls.start(f"k{n}", ["wait", f"go-k{n}"]) for n in range(most + 4)]
        await until(lambda: server.stats().running == most)
        stats = server.stats()
        assert (stats.workers, stats.ready, stats.waiting) == (16, 16, 4)
        assert len(stats.per_worker) == 16

        # One of each two ends: eight workers would be enough, and eight drain.
        of_pid = defaultdict(list)
        # What counts as running may still be on its way to a worker.
        await until(lambda: len([key for key in keys if judge.starts(key)]) == most)
        begun = [key for key in keys if judge.starts(key)]
        for key in begun:
            (pid,) = judge.pids(key)
            of_pid[pid].append(key)
        assert sorted(map(len, of_pid.values())) == [CAPACITY] * 16
        late = [key for key in keys if key not in begun]
        enough = [*late, *(pair[0] for pair in of_pid.values())]
        for key in enough:
            judge.put(f"go-{key}")
        await calls.values(*enough)
        await until(lambda: len(in_phase(server, "retiring")) == 8)
        draining = in_phase(server, "retiring")
        assert {each.pending for each in draining} == {1}  # neither killed nor cancelled
        assert server.stats().workers == 8

        # What comes now goes to those that stay.
        more = [calls.start(f"more{n}") for n in range(8)]
        await calls.values(*more)
        assert not {judge.pids(key)[0] for key in more} & {each.pid for each in draining}

        for pair in of_pid.values():
            judge.put(f"go-{pair[1]}")
            await calls.value(pair[1])
        await until(lambda: len(server.stats().per_worker) == 2)
        stats = server.stats()
        assert (stats.workers, stats.ready, stats.worker_restarts) == (2, 2, 0)
        assert {death.why for death in stats.deaths} == {NOT_NEEDED}
        assert {death.lost for death in stats.deaths} == {0}
    judge.assert_exactly_once(*early, *keys, *more)


@pytest.mark.slow
async def test_a_host_has_as_many_workers_as_there_is_work_for(judge):
    limits = {"worker_capacity": 1, "grow_after_s": 0.2, "shrink_after_s": 1.0}
    with trio.fail_after(PATIENCE_S):
        async with (
            open_router(
                ACTOR,
                args={"directory": str(judge.directory)},
                workers=0,
                hosts_bind=ANY_PORT,
                limits=ServerLimits(**{**QUICK, "start_s": PATIENCE_S, **limits}),
            ) as server,
            open_host(server.hosts_address, workers=WorkerRange(1, 4), name="a"),
            open_calls(server.address) as calls,
        ):
            await until(lambda: server.status().ready == 1)
            keys = [calls.start(f"k{n}", ["wait", f"go-k{n}"]) for n in range(6)]
            await until(lambda: server.stats().running == 4)
            assert (server.stats().workers_least, server.stats().workers_most) == (1, 4)
            for key in keys:
                judge.put(f"go-{key}")
            await calls.values(*keys)
            await until(lambda: len(server.stats().per_worker) == 1)
            assert {death.why for death in server.stats().deaths} == {NOT_NEEDED}
    judge.assert_exactly_once(*keys)
