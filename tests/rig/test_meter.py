"""The meter: what a turn takes of its thread alone, and when the machine stood still."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.rig.meter import LONG_S, LoopMeter, watch_loop
from trio_envserve.lab.processes import Process, program


def work(cpu_s: float) -> None:
    ends_s = time.thread_time() + cpu_s
    while time.thread_time() < ends_s:
        pass


async def metered(step: Callable[[], Any]) -> LoopMeter:
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


async def test_turn_is_measured_by_the_processor_time_of_its_own_thread():
    meter = await metered(lambda: work(0.2))
    assert meter.turn_s >= meter.step_s >= 0.2
    assert "turn_is_measured" in meter.task
    assert (await metered(lambda: time.sleep(0.3))).turn_s < 0.2
    meter = await metered(lambda: None)
    trio.lowlevel.add_instrument(meter)
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


async def test_steps_of_one_turn_add_up():
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


def events(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line)["what"] for line in text.splitlines() if line.endswith("}")]


async def test_reports_are_on_disk_with_where_the_loop_stood(tmp_path):
    path = tmp_path / "events.jsonl"
    end = watch_loop(path, "mine")

    def is_of_this_file(report: dict[str, Any]) -> bool:
        here = any("test_meter.py" in place for place in report["where"])
        return here and report["turn_s"] > LONG_S

    try:
        with trio.fail_after(60):
            # The thread that looks may come too late for one turn, and see the next.
            while not any(map(is_of_this_file, events(path))):
                work(0.2)
                await trio.sleep(0.01)
    finally:
        end()
    assert {report["who"] for report in events(path)} == {"mine"}


@pytest.mark.real
async def test_watch_that_stands_still_says_for_how_long(tmp_path):
    path = tmp_path / "events.jsonl"
    with trio.fail_after(120):
        async with Process(program("tests.rig.meter", {"log": str(path)})) as watch:
            said = (await watch.line())["event"]
            before = len(events(path))
            while said == "watching":
                stalls = [each["when_s"] for each in events(path)[before:]]
                if any(to_s - from_s > 0.2 for from_s, to_s in stalls):
                    break
                watch.signal(signal.SIGSTOP)
                os.waitid(os.P_PID, watch.pid, os.WSTOPPED | os.WNOWAIT)  # noqa: ASYNC222  # at once
                time.sleep(0.3)  # noqa: ASYNC251  # this is the stall: to be stopped is as good
                watch.signal(signal.SIGCONT)
                await trio.sleep(0.01)  # for its threads to look at the clock
            assert said in ("watching", "blind")
        assert watch.status == 0
