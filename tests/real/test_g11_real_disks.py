"""A journal on a disk that is really full, or read-only: a small file system in memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve import (
    Client,
    NeverStarted,
    NoAnswer,
    Rollout,
    Server,
    ServerStartError,
    open_client,
    open_server,
)
from trio_envserve.net import MemoryNetwork

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]
LONG_S = 120.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system with these options, or changes them, and says where it is."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        asked = f"remount,{options}" if mounted else options
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", asked, "tmpfs", str(disk)],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode and not mounted:
            pytest.skip(f"nothing can be mounted here: {done.stderr}")
        assert not done.returncode, done.stderr
        mounted = True
        return disk

    yield mount
    if mounted:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


class Probe:
    def __init__(self) -> None:
        self.runs: list[Any] = []

    async def __call__(self, rollout: Rollout) -> Any:
        self.runs.append(rollout.input[:8])
        return {"said": rollout.input}


@asynccontextmanager
async def served(folder: Path, probe: Probe) -> AsyncIterator[tuple[Server, Client]]:
    network = MemoryNetwork()
    with trio.fail_after(LONG_S):
        async with (
            open_server(
                probe, bind="memory:s", workers=0, network=network, journal=folder / "journal"
            ) as server,
            open_client(server.address, network=network) as client,
        ):
            yield server, client


async def assert_told(client: Client, *numbers: int, within_s: float = LONG_S) -> None:
    """Each of these keys has its own outcome."""
    for number in numbers:
        got = await client.run_rollout(asked(number), key=f"{number}", timeout_s=within_s)
        assert got == {"said": asked(number)}


def asked(number: int) -> str:
    """An input, and so an outcome, of which every fifth is a file."""
    return f"{number:08}" + "x" * (300_000 if number % 5 == 4 else 20_000)


async def test_g11_a_disk_that_is_full_loses_nothing_that_was_told(
    small_disk: Callable[[str], Path],
):
    disk, probe = small_disk("size=4m"), Probe()
    told = 0
    async with served(disk, probe) as (server, client):
        while server.status().durable:
            with contextlib.suppress(NoAnswer, NeverStarted):  # of a machine that stands still
                while True:
                    await assert_told(client, told, within_s=2.0)
                    told += 1
        assert 5 < told < 100
        assert server.status().journal in {"No space left on device", "database or disk is full"}
        await assert_told(client, 0, 4, told - 1)
        assert await client.run_rollout("plain") == {"said": "plain"}
    probe.runs.clear()
    async with served(disk, probe) as (server, client):  # no room for one byte more
        await assert_told(client, *range(told))
        assert not probe.runs
        small_disk("size=64m")
        assert await client.run_rollout("more", key="more") == {"said": "more"}
        assert server.status().durable
    assert probe.runs == ["more"]


async def test_g11_a_disk_that_can_only_be_read_is_told(small_disk: Callable[[str], Path]):
    disk, probe = small_disk("size=4m"), Probe()
    async with served(disk, probe) as (_, client):
        await client.run_rollout("one", key="one")
    small_disk("ro")
    with pytest.raises(ServerStartError, match="Read-only file system") as refused:
        async with served(disk, probe):
            pass
    assert "name another" in str(refused.value)
    small_disk("rw")
    async with served(disk, probe) as (_, client):
        assert await client.run_rollout("one", key="one") == {"said": "one"}
    assert probe.runs == ["one"]
