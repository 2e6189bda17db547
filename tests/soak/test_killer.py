"""The killer, on real processes."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from tests.soak.processes import python, state
from trio_envserve.lab.logs import EnvironmentLog, JsonLog
from trio_envserve.lab.soak.killer import Killer, held
from trio_envserve.lab.soak.schedule import Act

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


async def until(condition):
    while not condition():
        await trio.sleep(0.005)


async def test_a_victim_is_stopped_continued_and_killed(tmp_path):
    with python(tmp_path) as process, trio.fail_after(60):
        with held(process.pid) as victim:
            victim.signal(signal.SIGSTOP)
            await until(lambda: state(process.pid) == "T")
            victim.signal(signal.SIGCONT)
            await until(lambda: state(process.pid) != "T")
            victim.signal(signal.SIGKILL)
            await victim.wait_ended()
            process.wait()
            victim.signal(signal.SIGCONT)  # nobody is hit by it any more
        with pytest.raises(ProcessLookupError):
            with held(process.pid):
                raise AssertionError("it has ended")


class Serving:
    """Stands for a server of which this very process's children are the workers."""

    pid = os.getpid()


def killer_of(folder: Path) -> Killer:
    nobody = cast(Any, None)
    return Killer(
        folder, cast(Any, Serving()), None, nobody, nobody, EnvironmentLog(folder / "none"),
        JsonLog(folder / "killer.jsonl"),
    )  # fmt: skip


def events(folder: Path) -> list[str]:
    return [json.loads(x)["event"] for x in (folder / "killer.jsonl").read_text().splitlines()]


async def test_a_stop_that_ends_does_not_wake_what_is_frozen(tmp_path):
    with python(tmp_path) as process, trio.fail_after(60):
        killer = killer_of(tmp_path)
        acts = [Act(0.0, "worker-freeze", 0.0, 0.0, 0.0), Act(0.0, "worker-stop", 0.0, 0.05, 0.0)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(killer.run, acts)
            await until(lambda: killer.done == 1)
            await until(lambda: state(process.pid) == "T")  # and it is not woken
            process.kill()
    assert killer.done == 2
    assert sorted(events(tmp_path)) == ["freeze", "frozen-ended", "stop"]


async def test_what_is_stopped_goes_on_when_the_killer_is_cancelled(tmp_path):
    with python(tmp_path) as process, trio.fail_after(60):
        killer = killer_of(tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(killer.run, [Act(0.0, "worker-stop", 0.0, 3600.0, 0.0)])
            await until(lambda: state(process.pid) == "T")
            nursery.cancel_scope.cancel()
        await until(lambda: state(process.pid) != "T")


async def test_a_kill_is_over_when_its_victim_is_dead(tmp_path):
    with python(tmp_path) as first, python(tmp_path) as second, trio.fail_after(60):
        await killer_of(tmp_path).run([Act(0.0, "worker-kill", 0.99, 0.0, 0.0)])
        younger = max(first, second, key=lambda process: process.pid)
        assert younger.wait() == -signal.SIGKILL
        assert min(first, second, key=lambda process: process.pid).poll() is None
    (line,) = (tmp_path / "killer.jsonl").read_text().splitlines()
    assert json.loads(line)["pid"] == younger.pid
