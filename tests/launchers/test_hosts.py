"""How many hosts there are, whoever starts them: with a launcher that only notes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, cast

import trio

from trio_envserve import Server, ServerLimits, ServerStatus, WorkerRange
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.status import ClosingRecord, ServerStats
from trio_envserve.launchers.hosts import PAUSE_MAX_S, keep_hosts

WORKERS = 4
LIMITS = ServerLimits(worker_capacity=1)


class NotedHost:
    def __init__(self, name: str) -> None:
        self.name = name
        self.how = ""
        self.told: list[str] = []

    async def ended(self) -> str:
        return self.how

    async def leave(self) -> None:
        self.told.append("leave")

    async def kill(self) -> None:
        if self.how == "its cluster is gone":
            raise ConnectionError(self.how)
        await trio.lowlevel.checkpoint()
        self.told.append("kill")


class Bench:
    """A server of which only the statistics are asked, and a launcher."""

    def __init__(self) -> None:
        self.hosts: list[NotedHost] = []
        self.said = ServerStats(status=ServerStatus.READY, bounds={"pending": 1})

    def stats(self) -> ServerStats:
        return self.said

    def say(self, **changed: Any) -> None:
        self.said = dataclasses.replace(self.said, **changed)

    async def start(self, name: str) -> NotedHost:
        self.hosts.append(NotedHost(name))
        return self.hosts[-1]

    async def keep(self, least: int, most: int) -> None:
        await keep_hosts(
            cast("Server", self), self.start, WorkerRange(least, most), workers=WORKERS,
            limits=LIMITS, name="h",
        )  # fmt: skip


async def test_as_many_are_asked_for_as_there_are_to_be_and_ended_with_the_server(autojump_clock):
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.keep, 2, 4)
        await trio.sleep(100)
        assert [host.name for host in bench.hosts] == ["h-1", "h-2"]
        nursery.cancel_scope.cancel()
    assert [host.told for host in bench.hosts] == [["kill"], ["kill"]]


async def test_hosts_beside_one_that_cannot_be_ended_were_left_running(autojump_clock, caplog):
    """At the end; and before it, the server ended with that one."""
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.keep, 3, 3)
        await trio.sleep(100)
        bench.hosts[0].how = "its cluster is gone"
        await trio.sleep(2)
        assert len(bench.hosts) == 4
        bench.hosts[1].how = "its cluster is gone"
        nursery.cancel_scope.cancel()
    assert [host.told for host in bench.hosts] == [[], [], ["kill"], ["kill"]]
    assert "host h-2 could not be ended: ConnectionError: its cluster is gone" in caplog.text


async def test_more_are_asked_for_when_requests_wait_and_all_that_are_here_are_ready(
    autojump_clock, nursery
):
    bench = Bench()
    nursery.start_soon(bench.keep, 1, 4)
    bench.say(running=4, waiting=100, oldest_wait_s=30.0)
    await trio.sleep(20)
    assert len(bench.hosts) == 1  # its workers are not ready: what waits says nothing new
    bench.say(ready=WORKERS)
    await trio.sleep(20)
    assert len(bench.hosts) == 2
    bench.say(ready=2 * WORKERS)
    await trio.sleep(20)
    assert len(bench.hosts) == 4
    bench.say(ready=4 * WORKERS)
    await trio.sleep(20)
    assert len(bench.hosts) == 4
    nursery.cancel_scope.cancel()


async def test_hosts_that_are_not_needed_leave_and_are_not_killed_before_they_have(
    autojump_clock, nursery
):
    bench = Bench()
    nursery.start_soon(bench.keep, 1, 2)
    bench.say(running=8, waiting=8, oldest_wait_s=30.0, ready=WORKERS)
    await trio.sleep(5)
    assert len(bench.hosts) == 2
    bench.say(running=1, waiting=0, oldest_wait_s=0.0, ready=2 * WORKERS)
    await trio.sleep(LIMITS.shrink_after_s - 5)
    assert bench.hosts[1].told == []
    await trio.sleep(10)
    assert [host.told for host in bench.hosts] == [[], ["leave"]]
    await trio.sleep(1000)
    assert bench.hosts[1].told == ["leave"]
    bench.hosts[1].how = "it has left"
    await trio.sleep(2)
    assert bench.hosts[1].told == ["leave", "kill"]
    assert len(bench.hosts) == 2
    nursery.cancel_scope.cancel()


async def test_a_host_that_ends_is_replaced_and_one_that_ends_soon_after_a_pause(
    autojump_clock, nursery
):
    bench = Bench()
    nursery.start_soon(bench.keep, 1, 1)
    await trio.sleep(100)
    bench.hosts[0].how = "its node died"
    await trio.sleep(1.5)
    assert len(bench.hosts) == 2
    times = []
    for n in range(1, 12):
        while len(bench.hosts) <= n:
            await trio.sleep(0.5)
        times.append(trio.current_time())
        bench.hosts[n].how = "it cannot be started"
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert all(after > before + 1 for before, after in itertools.pairwise(pauses[:5]))
    assert PAUSE_MAX_S <= pauses[-1] <= PAUSE_MAX_S + 3
    nursery.cancel_scope.cancel()


async def test_paused_dispatching_asks_for_no_hosts_and_a_closing_server_for_none_at_all(
    autojump_clock, nursery
):
    bench = Bench()
    nursery.start_soon(bench.keep, 1, 4)
    bench.say(running=4, waiting=100, oldest_wait_s=30.0, ready=WORKERS, paused="no model")
    await trio.sleep(20)
    assert len(bench.hosts) == 1
    closing = ClosingRecord(
        stage=ClosingStage.DRAINING, running=1, outcomes=0, workers=1, left_s=30.0
    )
    bench.say(paused="", closing=closing)
    bench.hosts[0].how = "it has ended"
    await trio.sleep(20)
    assert len(bench.hosts) == 1
    nursery.cancel_scope.cancel()
