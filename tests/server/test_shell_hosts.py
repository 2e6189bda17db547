"""The server's shell with a host, on the in-memory network under a virtual clock."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.memory import ADDRESS, Probe, virtual
from tests.real.support import PATIENCE_S
from tests.spans import Kept, about, id_of, kept, parent_of
from trio_envserve import (
    Client,
    Rollout,
    Server,
    ServerLimits,
    ServerStartError,
    WireLimits,
    open_client,
    open_server,
)
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host import FromHost, Host, TellWorker
from trio_envserve.core.lease import EpochWait
from trio_envserve.core.router_effects import Kill, Spawn
from trio_envserve.host.locks import ServerLocks
from trio_envserve.host.workers import InProcessWorkers
from trio_envserve.lab.recording import Player, RequestName, RequestWatch
from trio_envserve.net import DealerSocket, Frame, MemoryNetwork
from trio_envserve.server.hosts import EpochRecords

__all__ = ["kept"]

HOSTS = "memory:hosts"
EARLIER = b"e" * 16


class MemoryHost:
    """A host as :class:`~trio_envserve.host.joined.JoinedHost`, whose workers are tasks of this
    process and whose clock is that of trio."""

    def __init__(self, environment: Any, socket: DealerSocket, nursery: trio.Nursery) -> None:
        numbers = itertools.count(1)
        self.core = Host("h0", 1, lambda: next(numbers).to_bytes(16, "big"))
        self.killed: list[bytes] = []
        self._workers = InProcessWorkers(environment, {}, ServerLimits(), WireLimits())
        self._alive: set[bytes] = set()
        self._socket = socket
        self._nursery = nursery

    async def run(self) -> None:
        self.core.connect()
        self._nursery.start_soon(self._listen)
        while True:
            for worker in self._alive:
                self.core.worker_heartbeat(worker, Heartbeat(memory_bytes=7 << 20))
            self.core.beat(trio.current_time())
            self._carry_out()
            await trio.sleep(0.5)

    async def _listen(self) -> None:
        while True:
            for frames in await self._socket.receive():
                self.core.message([bytes(frame) for frame in frames], trio.current_time())
            self._carry_out()

    async def _live(self, spawn: Spawn) -> None:
        worker = spawn.worker

        def started(pid: int) -> None:
            self._alive.add(worker)
            self.core.spawned(worker, pid)

        def heard(batch: list[list[Frame]]) -> None:
            for _, *frames in batch:
                self.core.worker_message(worker, [bytes(frame) for frame in frames])
            self._carry_out()

        how = await self._workers.live(spawn, started, heard, lambda _: None)
        self._alive.remove(worker)
        self.core.exited(worker, how)
        self._carry_out()

    def _carry_out(self) -> None:
        self.core.flush()
        while self.core.out:
            out, self.core.out = self.core.out, []
            for effect in out:
                match effect:
                    case FromHost():
                        self._socket.send_nowait(effect.frames)
                    case Spawn():
                        self._nursery.start_soon(self._live, effect)
                    case TellWorker():
                        self._workers.send_many_nowait(effect.worker, [effect.frames])
                    case Kill():
                        self.killed.append(effect.worker)
                        self._workers.kill(effect.worker)


@asynccontextmanager
async def open_memory_host(environment: Any, network: MemoryNetwork) -> AsyncIterator[MemoryHost]:
    """A host until the end of the block; it goes without a word then."""
    async with (
        network.open_dealer(HOSTS, limits=WireLimits()) as socket,
        trio.open_nursery() as nursery,
    ):
        host = MemoryHost(environment, socket, nursery)
        nursery.start_soon(host.run)
        yield host
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(
    network: MemoryNetwork, limits: ServerLimits | None = None, **options: Any
) -> AsyncIterator[tuple[Server, Client]]:
    """A server without workers of its own, and a client of it."""
    async with (
        open_server(
            "arithmetic", bind=ADDRESS, workers=0, hosts_bind=HOSTS, network=network,
            limits=limits, **options,
        ) as server,
        open_client(ADDRESS, network=network) as client,
    ):  # fmt: skip
        yield server, client


@virtual
async def test_calls_run_on_a_host_and_are_cancelled_there() -> None:
    probe, network = Probe(), MemoryNetwork()
    async with served(network) as (server, client), open_memory_host(probe, network):
        assert server.hosts_address == HOSTS
        await client.wait_ready()
        began_s = trio.current_time()
        assert await client.run_rollout(["a", 3]) == {"did": 3}
        assert 3 <= trio.current_time() - began_s < 4
        with trio.move_on_after(5):
            await client.run_rollout(["b", "wait"])
        await trio.sleep(1)
        assert probe.ended == [("a", "done"), ("b", "cancelled")]
        (host,) = server.stats().hosts
        assert (host.host, host.ready, host.running) == ("h0", 1, 0)


async def test_a_server_with_hosts_is_recorded_and_its_recording_replays(tmp_path: Path) -> None:
    """It could not record: hosts changed its router past the recorder."""
    probe, network, path = Probe(), MemoryNetwork(), tmp_path / "a.rec"
    with trio.fail_after(PATIENCE_S):
        async with (
            open_memory_host(probe, network),  # it is there until the server has closed
            served(network, record=path) as (_, client),
        ):
            await client.wait_ready()
            assert await client.run_rollout(["a", 0]) == {"did": 0}
    player = Player(path)
    watch = RequestWatch(RequestName("", 0))
    for moment in player.moments():
        watch.see(moment)
    assert player.identical, player.difference
    assert player.ended
    told = [each.what.partition(",")[0] for each in watch.events()]
    assert told[:4] == ["request", "dispatch 0", "outcome 0", "outcome"]


async def rollout_on_a_host(rollout: Rollout) -> dict[str, Any]:
    with rollout.span("think"):
        return {"reward": 1.0}


@virtual
async def test_a_call_that_runs_on_a_host_is_one_tree_of_spans(kept: Kept) -> None:
    network = MemoryNetwork()
    async with served(network) as (_, client), open_memory_host(rollout_on_a_host, network):
        await client.wait_ready()
        with kept.tracer.start_as_current_span("training step"):
            await client.outcome("x")
    names = "training step", "call", "rollout", "execution", "think"
    for above, below in itertools.pairwise(names):
        assert parent_of(kept.one(below)) == id_of(kept.one(above)), (above, below)
    assert about(kept.one("execution"))["envserve.worker"] == "w0-1"
    assert "envserve.cancelled" not in about(kept.one("execution"))


@virtual
async def test_a_worker_of_a_host_is_killed_there() -> None:
    network = MemoryNetwork()

    async def stubborn(rollout: Any) -> str:
        if rollout.input == "stubborn":
            with trio.CancelScope(shield=True):
                await trio.sleep(60)
        return "done"

    limits = ServerLimits(cancel_grace_s=1.0, cancel_kill_s=2.0)
    async with (
        served(network, limits) as (_, client),
        open_memory_host(stubborn, network) as host,
    ):
        with trio.move_on_after(5):
            await client.run_rollout("stubborn")
        await trio.sleep(5)
        assert len(host.killed) == 1
        assert await client.run_rollout("other") == "done"


@virtual
async def test_a_host_that_goes_without_a_word_is_lost_with_its_lease() -> None:
    probe, network = Probe(), MemoryNetwork()
    outcomes: list[Any] = []
    async with served(network, fence_s=10.0) as (server, client):
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                outcomes.append(await client.outcome(["a", "wait"]))

            async with open_memory_host(probe, network):
                await client.wait_ready()
                nursery.start_soon(ask)
                await trio.sleep(5)
            await trio.sleep(5)
            assert not outcomes
        assert "host h0" in str(outcomes[0].error), outcomes
        assert not server.stats().hosts


@virtual
async def test_a_host_that_came_while_no_record_could_be_written_was_never_told_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its membership was over before it could be written down, and it was not told that, either."""

    def fail(records: EpochRecords, waits: Any) -> None:
        raise ServerStartError("the disk is full")

    probe, network = Probe(), MemoryNetwork()
    async with served(network) as (server, client):
        await trio.sleep(1)
        monkeypatch.setattr(EpochRecords, "write", fail)
        async with open_memory_host(probe, network) as host:
            await trio.sleep(40)
            assert not host.core.is_joined
            assert not server.stats().hosts
            monkeypatch.undo()
            host.core.connect()  # as a host does again and again
            await client.wait_ready(60.0)


# -- with a journal -----------------------------------------------------------------
# Its thread works while a virtual clock would jump: so these are on the real one.


def records(folder: Path) -> EpochRecords:
    """What a server with this journal has written of hosts."""
    return EpochRecords([folder / "epochs.lock"])


def left_behind(folder: Path, wait_s: float, memberships: frozenset[bytes] | None = None) -> None:
    """An earlier server with this journal had hosts, and has ended."""
    locks = ServerLocks.of_folder(folder)
    assert locks.try_epochs(EARLIER) == set()
    locks.close()
    records(folder).write([EpochWait(EARLIER, wait_s, memberships)])


async def test_a_server_that_closes_keeps_its_record_of_hosts_that_have_gone_only(
    tmp_path: Path,
) -> None:
    network, limits = MemoryNetwork(), ServerLimits(stop_s=0.1, reap_s=0.1)
    with trio.fail_after(PATIENCE_S):
        async with served(network, limits, journal=tmp_path) as (_, client):
            async with open_memory_host(Probe(), network):
                await client.wait_ready()
                (wait,) = records(tmp_path).read()
                assert wait.wait_s > 10
                await client.run_rollout(["a", 0], key="one")
        # The host is gone: nothing shows that its worker has ended.
        assert records(tmp_path).read() == [wait]
    network, here = MemoryNetwork(), tmp_path / "another"
    with trio.fail_after(PATIENCE_S):
        async with open_memory_host(Probe(), network):
            async with served(network, journal=here) as (_, client):
                await client.wait_ready()
                assert records(here).read()
            assert records(here).read() == []


async def test_a_server_with_a_journal_and_no_hosts_waits_for_those_of_the_one_before(
    tmp_path: Path,
) -> None:
    left_behind(tmp_path, 1e6)

    def open_next() -> AbstractAsyncContextManager[Server]:
        network = MemoryNetwork()
        return open_server(Probe(), bind=ADDRESS, workers=0, network=network, journal=tmp_path)

    with trio.fail_after(PATIENCE_S):
        async with open_next() as server:
            while "hosts of an earlier server" not in server.status().reason:
                await server._changed.park()
            assert not server.status().ready
        records(tmp_path).write([EpochWait(EARLIER, 0.1)])
        async with open_next() as server:
            await server.wait_ready()
            assert EARLIER in server._router.dead_epochs
            assert records(tmp_path).read() == []


async def test_hosts_may_come_back_to_a_server_with_a_journal_and_keys_wait_for_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="trio_envserve.server")
    left_behind(tmp_path, 1e6, frozenset([b"t" * 16]))
    probe, network = Probe(), MemoryNetwork()
    with trio.fail_after(PATIENCE_S):
        async with (
            open_memory_host(probe, network),
            served(network, journal=tmp_path) as (server, client),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(partial(client.outcome, ["key", 0], key="one"))
            assert await client.run_rollout(["plain", 0]) == {"did": 0}
            assert "hosts of an earlier server may still run requests with keys" in caplog.text
            assert EARLIER not in server._router.dead_epochs
            assert probe.started == ["plain"]
            nursery.cancel_scope.cancel()


async def test_a_server_without_earlier_hosts_begins_work_of_keys_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="trio_envserve.server")
    network = MemoryNetwork()
    with trio.fail_after(PATIENCE_S):
        async with (
            open_memory_host(Probe(), network),
            served(network, journal=tmp_path) as (server, client),
        ):
            assert await client.run_rollout(["key", 0], key="one") == {"did": 0}
            assert "hosts of an earlier server" not in caplog.text
            assert not server._router.works.earlier_lives
