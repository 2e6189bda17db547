"""The statistics of a server, on the in-memory network under a virtual clock."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import trio

from tests.core.helpers import Pair
from tests.memory import Probe, pair, virtual
from trio_envserve import Rollout, ServerLimits
from trio_envserve.core.messages import encode_record
from trio_envserve.core.worker import BeatDue
from trio_envserve.server.statistics import line


def test_line_of_statistics_has_each_worker():
    pool = Pair(workers=2)
    pool.submit_many(3)
    pool.end(pool.runs[0])
    pool.work(b"w0-1", pool.workers[b"w0-1"].take(BeatDue({"loop_lag_p99_s": 0.25})))
    text = line(pool.router.stats())
    assert "ready sessions=1 waiting=0 running=2 kept=1" in text
    assert "w0-1:1/1/0(250ms,0MiB)" in text


def test_line_of_statistics_of_a_pool_without_workers_says_so():
    pool = Pair(ready=False, welcomed=False)
    assert line(pool.router.stats()).endswith("workers[pending/done/failed]: none")


async def test_a_line_of_statistics_is_logged_every_stats_line_s(autojump_clock, caplog):
    caplog.set_level(logging.INFO, logger="trio_envserve.server")

    async def run(rollout: Rollout) -> None:
        await trio.sleep(10.0 if rollout.input == "short" else math.inf)

    def lines() -> list[str]:
        return [text for text in caplog.messages if "workers[pending/done/failed]" in text]

    async with (
        pair(run, server=ServerLimits(stats_line_s=7.0)) as (_, client),
        trio.open_nursery() as nursery,
    ):
        began_s = trio.current_time()
        nursery.start_soon(client.outcome, "short")
        nursery.start_soon(client.outcome, "long")
        await trio.sleep_until(began_s + 6.9)
        assert lines() == []
        await trio.sleep_until(began_s + 7.1)
        (first,) = lines()
        assert first.startswith("ready sessions=1 waiting=0 running=2 ")
        assert " w0-1:2/0/0(" in first
        await trio.sleep_until(began_s + 35.1)
        assert len(lines()) == 5
        assert " w0-1:1/1/0(" in lines()[-1]
        nursery.cancel_scope.cancel()


@virtual
async def test_a_record_of_statistics_is_made_once_for_all_who_ask_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = 0

    def encoded(record: Any) -> bytes:
        nonlocal made
        made += 1
        return encode_record(record)

    async with pair(Probe()) as (_, client), trio.open_nursery() as nursery:
        await client.wait_ready()
        await trio.sleep(1)
        monkeypatch.setattr("trio_envserve.server.statistics.encode_record", encoded)
        for _ in range(5):
            nursery.start_soon(client.stats)
        await trio.sleep(0.5)
        assert made == 1
        assert (await client.stats()).more["backlog_bytes"] == 0
        assert made == 2
