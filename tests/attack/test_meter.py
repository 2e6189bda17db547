"""The meter of a loop: what a turn takes of its thread, and nothing else."""

from __future__ import annotations

import gc
import json
import time
from typing import Any

import trio

from tests.attack.attacker import burn
from tests.attack.meter import LONG_S, LoopMeter, watch_loop


def work(cpu_s: float) -> None:
    """Take so much processor time of this thread."""
    ends_s = time.thread_time() + cpu_s
    while time.thread_time() < ends_s:
        pass


async def metered(step) -> LoopMeter:
    meter = LoopMeter()
    trio.lowlevel.add_instrument(meter)
    gc.callbacks.append(meter.collecting)
    await trio.lowlevel.checkpoint()
    meter.take()
    step()
    await trio.sleep(0.001)
    await trio.lowlevel.checkpoint()
    gc.callbacks.remove(meter.collecting)
    trio.lowlevel.remove_instrument(meter)
    return meter


async def test_a_turn_that_works_is_measured():
    meter = await metered(lambda: work(0.2))
    assert meter.turn_s >= 0.2
    assert meter.step_s >= 0.2
    assert "a_turn_that_works" in meter.task


async def test_a_turn_that_waits_costs_nothing():
    meter = await metered(lambda: time.sleep(0.3))
    assert meter.turn_s < 0.2


async def test_the_work_of_other_threads_is_not_the_loops():
    meter = LoopMeter()
    trio.lowlevel.add_instrument(meter)
    await trio.sleep(0.001)
    meter.take()
    await trio.to_thread.run_sync(work, 0.5)
    trio.lowlevel.remove_instrument(meter)
    assert meter.turn_s < 0.5


async def test_garbage_that_a_turn_collects_is_told_apart():
    cycles: list[Any] = [[] for _ in range(300_000)]
    for cycle in cycles:
        cycle.append(cycle)
    del cycle, cycles
    meter = await metered(gc.collect)
    assert 0.0 < meter.collect_s <= meter.turn_s


async def test_several_steps_of_one_turn_add_up():
    async def step() -> None:
        work(0.06)

    meter = LoopMeter()
    trio.lowlevel.add_instrument(meter)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(step)
    await trio.sleep(0.001)
    trio.lowlevel.remove_instrument(meter)
    assert meter.turn_s >= 0.24
    assert meter.turn_s > meter.step_s


async def test_a_turn_under_way_is_seen_from_another_thread():
    meter = LoopMeter()
    trio.lowlevel.add_instrument(meter)
    await trio.sleep(0.001)
    work(0.15)
    assert meter.held_s() >= 0.15
    assert any("work" in line or "test_meter" in line for line in meter.where())
    assert meter.take()["turn_s"] >= 0.15
    trio.lowlevel.remove_instrument(meter)


async def test_reports_go_to_the_disk_with_where_the_loop_was_held(tmp_path):
    path = tmp_path / "loops.jsonl"
    meter = watch_loop(path, "mine")
    with trio.fail_after(60):
        # The thread that looks may come too late for one turn, and see the next.
        while not (found := [line for line in reports(path) if is_of_this_file(line)]):
            work(0.2)
            await trio.sleep(0.01)
    trio.lowlevel.remove_instrument(meter)
    assert found[0]["who"] == "mine"


def is_of_this_file(line):
    """Whether it tells of a long turn, and of its place."""
    places = [place for place in line["where"] if "test_meter.py" in place]
    return line["turn_s"] > LONG_S and places != []


def reports(path):
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def test_as_much_is_burnt_as_was_asked_for():
    burnt_s = 0.0
    for _ in range(60):  # a busy machine may have less to give in this second
        began_s = time.thread_time()
        burn(0.3, 1.0)
        burnt_s = time.thread_time() - began_s
        assert burnt_s < 0.6
        if burnt_s > 0.1:
            break
    assert burnt_s > 0.1
