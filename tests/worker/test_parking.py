"""Outcomes in temporary files: what they read as, and what they take."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from trio_envserve import open_client, open_server
from trio_envserve.core.limits import KIB, MIB, ServerLimits
from trio_envserve.core.terms import Body, BodyParts
from trio_envserve.worker import parking as parking_module
from trio_envserve.worker.parking import FILE_BYTES, Parking


class Parked:
    """What was parked, by number."""

    def __init__(self) -> None:
        self.bodies: dict[int, Body | None] = {}
        self.parking = Parking(self._take, MIB)
        self._wanted = 0
        self._all = trio.Event()

    def _take(self, number: int, body: Body | None) -> None:
        self.bodies[number] = body
        if len(self.bodies) == self._wanted:
            self._all.set()

    async def park(self, bodies: dict[int, bytes | BodyParts]) -> None:
        self._wanted, self._all = len(self.bodies) + len(bodies), trio.Event()
        for number, body in bodies.items():
            self.parking.add(number, body)
        await self._all.wait()

    def read(self) -> dict[int, bytes]:
        return {number: bytes(body or b"") for number, body in self.bodies.items()}


@asynccontextmanager
async def parking():
    parked = Parked()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parked.parking.run)
            yield parked
            nursery.cancel_scope.cancel()


def mapped(folder: os.PathLike[str]) -> set[str]:
    """Files of a folder that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return {line.split(maxsplit=5)[5].strip() for line in maps if str(folder) in line}


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


async def test_what_is_parked_reads_as_what_it_was():
    bodies = {number: bytes([number]) * (number * 1000) for number in range(50)}  # one is empty
    large = {50: b"x" * (FILE_BYTES + 1), 51: b"small again"}  # it has a file of its own
    pieces = [bytes([number]) * 100_000 for number in range(5)]
    async with parking() as parked:
        await parked.park({**bodies, **large})
        await trio.testing.wait_all_tasks_blocked()  # it looks no more until others come
        await parked.park({60: BodyParts(pieces), 61: b"other"})
        assert parked.read() == {**bodies, **large, 60: b"".join(pieces), 61: b"other"}


async def test_parking_is_behind_while_too_much_waits_to_be_written():
    async with parking() as parked:
        assert not parked.parking.is_behind
        parked.parking.add(0, bytes(MIB))
        assert not parked.parking.is_behind
        parked.parking.add(1, b"x")
        assert parked.parking.is_behind
        await parked.park({2: b"the next"})
        assert not parked.parking.is_behind


@linux
async def test_many_share_a_file_which_has_no_name_and_goes_with_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with parking() as parked:
        await parked.park({number: bytes(200 * KIB) for number in range(100)})
        assert list(tmp_path.iterdir()) == []
        assert len(mapped(tmp_path)) == 1
    for number in range(99):
        del parked.bodies[number]
    assert len(mapped(tmp_path)) == 1
    del parked.bodies[99]
    with trio.fail_after(60):
        while mapped(tmp_path):  # the thread that wrote it last has it for a moment yet
            await trio.lowlevel.checkpoint()


async def test_a_file_is_filled_to_its_end_and_closed_once_it_is_full(monkeypatch):
    """The map is all that is needed of it then."""
    files = []
    made = tempfile.TemporaryFile

    def remembered(**options):
        files.append(made(**options))
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", remembered)
    monkeypatch.setattr(parking_module, "FILE_BYTES", 8192)
    bodies = {number: bytes([number]) * 4096 for number in range(5)}
    async with parking() as parked:
        await parked.park(bodies)
        assert [file.closed for file in files] == [True, True, False]
    assert all(file.closed for file in files)
    assert parked.read() == bodies


@pytest.mark.parametrize("trouble", ["no folder", "no room"])
async def test_without_a_place_on_the_disk_outcomes_stay_in_memory(
    trouble, tmp_path, monkeypatch, caplog
):  # fmt: skip
    folder = tmp_path / "missing" if trouble == "no folder" else tmp_path
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with parking() as parked:
        if trouble == "no room":
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
        try:
            await parked.park({number: bytes(2 * MIB) for number in range(5)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert parked.bodies == dict.fromkeys(range(5))
        assert not parked.parking.is_behind
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert "stay in memory" in said[0]
        assert str(folder) in said[0]
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        await parked.park({9: b"there is room again"})
        assert parked.read()[9] == b"there is room again"


async def echo(rollout):
    return rollout.input


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.real)])
async def test_outcomes_that_waited_in_a_file_come_as_they_were(workers, folder):
    """There is room for one at a time, and a worker may hold none in memory."""
    limits = ServerLimits(kept_bytes=600 * KIB, worker_held_bytes=1)
    address = f"ipc://{folder}/front"
    given = [{"number": number, "padding": bytes([number]) * (200 * KIB)} for number in range(20)]
    found = {}
    with trio.fail_after(120):
        async with (
            open_server(
                "tests.worker.test_parking:echo", bind=address, workers=workers, limits=limits
            ),
            open_client(address) as client,
            client.run_many(given) as outcomes,
        ):
            async for index, outcome in outcomes:
                found[index] = outcome.value
    assert [found[index] for index in range(20)] == given
