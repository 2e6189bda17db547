"""Garbage is collected while few objects are there, and at latest after an hour."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from trio_envserve.host.collector import (
    AT_LATEST_S,
    EVERY_S,
    FEW_OBJECTS,
    YOUNG,
    collect_seldom,
)


@pytest.fixture(autouse=True)
def frozen_again() -> Iterator[None]:
    """What `tests/conftest.py` froze thaws with the collector's end."""
    yield
    gc.collect()
    gc.freeze()


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def garbage() -> weakref.ref[Cycle]:
    """In the oldest generation."""
    cycle = Cycle()
    gc.collect(1)
    return weakref.ref(cycle)


@asynccontextmanager
async def collecting() -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_seldom)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def later(clock: MockClock, seconds: float) -> None:
    clock.jump(seconds)
    await trio.testing.wait_all_tasks_blocked()


async def test_garbage_is_collected_while_few_objects_are_there(mock_clock: MockClock):
    async with collecting():
        cycle = garbage()
        await later(mock_clock, EVERY_S - 1)
        assert cycle() is not None
        await later(mock_clock, 1)
        assert cycle() is None


async def test_many_objects_are_not_looked_at_before_an_hour(mock_clock: MockClock):
    async with collecting():
        cycle, many = garbage(), [[1] for _ in range(2 * FEW_OBJECTS)]
        gc.collect(1)
        for _ in range(int(AT_LATEST_S / EVERY_S) - 1):
            await later(mock_clock, EVERY_S)
        assert cycle() is not None
        await later(mock_clock, EVERY_S)
        assert cycle() is None
        cycle = garbage()
        await later(mock_clock, EVERY_S)
        assert cycle() is not None  # that hour has begun anew
        assert many


async def test_garbage_of_before_is_not_taken_for_lasting():
    cycle = garbage()
    async with collecting():
        assert cycle() is None


def collections() -> list[int]:
    """Number of collections of each generation."""
    return [each["collections"] for each in gc.get_stats()]


async def test_the_interpreter_itself_looks_at_small_parts_of_what_comes_to_stay_only():
    found = gc.get_threshold()
    async with collecting():
        assert gc.get_freeze_count() > 1000
        before = collections()
        for _ in range(10):
            goes_soon = [[number] for number in range(YOUNG[0] // 2)]
            assert goes_soon
            del goes_soon
        assert collections() == before
        stays = [[1] for _ in range(500_000)]
        assert collections()[1] >= before[1] + 4
        assert collections()[2] == before[2]
        assert stays
    assert gc.get_threshold() == found
    assert gc.get_freeze_count() == 0
