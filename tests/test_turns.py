"""Long work in threads: the loop has its turns, and a cancel is seen."""

from __future__ import annotations

import itertools
import threading

import pytest
import trio

from trio_envserve import turns
from trio_envserve.turns import Threads


@pytest.fixture
def eager(monkeypatch):
    """A turn of the loop at each pause."""
    monkeypatch.setattr(turns, "_TURN_S", 0.0)


async def test_the_loop_has_a_turn_at_each_pause(eager):
    seen: list[str] = []

    def work(pause):
        for _ in range(5):
            seen.append("piece")
            pause()
        return threading.current_thread() is threading.main_thread()

    async def others():
        while True:
            seen.append("turn")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await Threads().run(work) is False
        nursery.cancel_scope.cancel()
    for first, second in itertools.pairwise(seen):
        assert "turn" in (first, second)
    assert seen.count("piece") == 5


async def test_pauses_that_come_soon_cost_nothing(monkeypatch):
    monkeypatch.setattr(turns, "_TURN_S", 1_000.0)
    monkeypatch.setattr(trio.from_thread, "run_sync", lambda *_: pytest.fail("a turn"))

    def work(pause):
        for _ in range(1_000):
            pause()
        return "done"

    assert await Threads().run(work) == "done"


@pytest.mark.parametrize("swallowed", [False, True])
async def test_a_cancel_ends_the_work_at_its_next_pause(eager, swallowed):
    begun = threading.Event()
    pieces = 0

    def work(pause):
        nonlocal pieces
        while True:
            pieces += 1
            begun.set()
            try:
                pause()
            except BaseException:
                if swallowed:
                    return "a value"
                raise

    ended = False
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def cancel():
                while not begun.is_set():
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            await Threads().run(work)
            ended = True
    assert scope.cancelled_caught
    assert not ended
    assert pieces


async def test_no_more_than_two_work_at_once(eager):
    now = most = 0
    lock = threading.Lock()

    def work(pause):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        for _ in range(20):
            pause()
        with lock:
            now -= 1

    threads = Threads()
    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(threads.run, work)
    assert (now, most <= 2) == (0, True)
