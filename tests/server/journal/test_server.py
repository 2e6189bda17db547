"""A server with a journal, in this process: closed, opened again, with a disk that fails."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve import (
    Client,
    NeverStarted,
    NoAnswer,
    NotDurable,
    Rollout,
    Server,
    ServerLimits,
    ServerStartError,
    UnknownKey,
    open_client,
    open_server,
)
from trio_envserve.core.journal import StateSaved
from trio_envserve.host.locks import ServerLocks
from trio_envserve.net import MemoryNetwork
from trio_envserve.server.journal import store, writer

LONG_S = 120.0


class Probe:
    """An environment that counts."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.gate = trio.Event()
        self.gate.set()

    async def __call__(self, rollout: Rollout) -> Any:
        self.runs.append(rollout.input)
        await self.gate.wait()
        return {"said": rollout.input}


@asynccontextmanager
async def served(folder: Path, probe: Any, **limits: Any) -> AsyncIterator[tuple[Server, Client]]:
    network = MemoryNetwork()
    with trio.fail_after(LONG_S):
        async with (
            open_server(
                probe, bind="memory:s", workers=0, network=network, journal=folder / "journal",
                limits=ServerLimits(**limits),
            ) as server,
            open_client(server.address, network=network) as client,
        ):  # fmt: skip
            yield server, client


def limit_pages(server: Server, pages: int) -> None:
    """A disk with room for so many."""
    journal = server._journal
    assert journal is not None
    journal._store._connection.execute(f"PRAGMA max_page_count = {pages}")


async def test_g11_what_was_answered_is_answered_again_by_the_next_server(tmp_path: Path):
    probe = Probe()
    large = "x" * 400_000
    async with served(tmp_path, probe) as (server, client):
        await client.run_rollout("one", key="one")
        await client.run_rollout(large, key="large")
        await client.run_rollout("gone", key="gone")
        await client.forget("gone")
        assert server.status().durable
    async with served(tmp_path, probe) as (_, client):
        assert (await client.attach("one")).unwrap() == {"said": "one"}
        assert (await client.run_rollout(large, key="large"))["said"] == large
        assert isinstance((await client.attach("gone")).error, UnknownKey)
        assert len(probe.runs) == 3


async def test_a_full_disk_refuses_new_keys_with_the_reason_and_answers_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    probe = Probe()
    async with served(tmp_path, probe, retry_delay_s=0.01) as (server, client):
        await client.run_rollout("known", key="known")
        limit_pages(server, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_rollout, "x" * 200_000)  # without a key nobody minds
            first = trio.CancelScope()

            async def ask() -> None:
                with first:
                    await client.run_rollout("x" * 200_000, key="first")

            nursery.start_soon(ask)
            while not server.status().journal:  # noqa: ASYNC110  # a thread tells it
                await trio.sleep(0.01)
            assert not server.status().durable
            assert "full" in server.status().journal
            said, limit_s = "", 0.1
            while "for now (journal)" not in said:  # it may end before the server has said so
                limit_s *= 2
                with pytest.raises((NoAnswer, NeverStarted)) as ended:
                    await client.run_rollout("new", key="new", timeout_s=limit_s)
                said = str(ended.value)
            assert await client.run_rollout("known", key="known") == {"said": "known"}
            assert await client.run_rollout("plain") == {"said": "plain"}
            limit_pages(server, 1_000_000)
            await client.run_rollout("new", key="new")
            assert server.status().durable
            assert not server.status().journal
    assert sorted(map(len, probe.runs)) == [3, 5, 5, 200_000, 200_000]


@pytest.mark.parametrize("by_s", [86_400.0, -86_400.0])
async def test_a_calendar_that_jumps_by_a_day_ends_and_loses_nothing(
    by_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    probe, real = Probe(), time.time
    async with served(tmp_path, probe) as (server, client):
        await client.run_rollout("one", key="one")
        monkeypatch.setattr(time, "time", lambda: real() + by_s)
        for _ in range(3):
            await server._changed.park()  # a tick
        assert (await client.attach("one")).unwrap() == {"said": "one"}
        await client.run_rollout("two", key="two", timeout_s=60.0)
    async with served(tmp_path, probe) as (_, client):
        for name in ("one", "two"):
            assert (await client.attach(name)).unwrap() == {"said": name}
    assert probe.runs == ["one", "two"]


async def test_g1_no_worker_starts_while_one_of_an_earlier_server_with_the_journal_lives(
    tmp_path: Path,
):
    (tmp_path / "journal").mkdir()
    worker = ServerLocks.of_folder(tmp_path / "journal")
    assert worker.try_epochs(b"e" * 16) == set()
    probe = Probe()
    async with served(tmp_path, probe) as (server, client), trio.open_nursery() as nursery:
        nursery.start_soon(client.run_rollout, "one")
        while "with the journal" not in server.status().reason:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert not probe.runs
        worker.close()
    assert probe.runs == ["one"]
    with pytest.raises(ServerStartError, match="waiting for the workers of an earlier server"):
        worker = ServerLocks.of_folder(tmp_path / "journal")
        assert worker.try_epochs(b"e" * 16) is not None
        async with served(tmp_path, probe, lock_s=0.05):
            await trio.sleep_forever()
    worker.close()


async def test_what_rests_is_answered_from_the_disk_and_a_lost_body_is_told(tmp_path: Path):
    probe = Probe()
    large = "x" * 400_000
    async with served(tmp_path, probe) as (server, client):
        await client.run_rollout("one", key="one")
        await client.run_rollout(large, key="large")
        resting = server._router.works.archive
        assert resting is not None
        while resting.all.keys < 2:  # at a tick, when its acknowledgement has come
            await server._changed.park()
        assert not server._router.works.generations
        assert await client.run_rollout("one", key="one") == {"said": "one"}
        for file in (tmp_path / "journal" / "bodies").iterdir():
            file.write_bytes(b"")
        error = (await client.attach("large")).error
        assert isinstance(error, NotDurable)
        assert "missing or was changed" in str(error)
        assert len(probe.runs) == 2


async def test_a_save_costs_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    groups = list[Any]()
    commit = store.Store.commit

    def noted(self: Any, records: Any, uptime_s: float) -> None:
        groups.append([type(each) for each in records])
        commit(self, records, uptime_s)

    monkeypatch.setattr(store.Store, "commit", noted)

    async def saving(rollout: Rollout) -> None:
        for number in range(10):
            before = len(groups)
            await rollout.save(number)
            assert groups[before:] == [[StateSaved]]

    async with served(tmp_path, saving) as (_, client):
        await client.run_rollout(None, key="k", rerun=True)


async def test_a_save_waits_for_a_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    large, saved = trio.Event(), list[int]()

    async def saving(rollout: Rollout) -> None:
        await rollout.save("small")
        saved.append(1)
        await large.wait()
        await rollout.save("x" * 200_000)
        saved.append(2)

    async with served(tmp_path, saving) as (server, client), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: client.run_rollout(None, key="k", rerun=True))
        await until(lambda: saved == [1])
        limit_pages(server, 12)
        large.set()
        await until(lambda: not server.status().durable)
        assert saved == [1]
        limit_pages(server, 1_000_000)
    assert saved == [1, 2]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)
