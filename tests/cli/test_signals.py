"""Signals: what a command says and leaves behind, whenever one comes."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import trio

from tests.cli.commands import HANG_S, check_nothing_left, command, forked, served, until
from trio_envserve.cli.interrupts import Interrupts
from trio_envserve.envs.recorder import read_run_log

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="finds leftovers in /proc"),
]

SLOW = ("--arg", "duration_s=300")
"""Rollouts that end only by being cancelled or killed."""


async def started(log: Path, count: int = 1) -> None:
    """Sleep until the environment's own log has so many starts."""
    await until(lambda: events(log, "start") >= count)


def events(log: Path, kind: str) -> int:
    return sum(line["event"] == kind for line in read_run_log(log))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_a_signal_drains_what_runs(tmp_path: Path, number: signal.Signals):
    log = tmp_path / "log.jsonl"
    arguments = ("--arg", f"log_path={log}", "--arg", "duration_s=1.0", "--workers", "2")
    async with served(tmp_path, "arithmetic", *arguments) as (server, address):
        ask = ("eval", "arithmetic", "-n", "20", "--address", address, "--json")
        async with forked(tmp_path, *ask) as client:
            await started(log, 20)
            server.signal(number)
            done = await client.wait()
            stopped = await server.wait()
    assert (done.code, done.last["results"], done.last["mean_reward"]) == (0, 20, 1.0)
    assert stopped.code == 0
    assert stopped.last["drained"]
    assert (stopped.last["why"], stopped.last["exit"]) == (number.name, 0)
    assert stopped.last["address"] == address
    assert "taking no new work" in stopped.err
    done.check_no_traceback()
    stopped.check_no_traceback()
    await check_nothing_left(tmp_path)


async def test_a_drain_has_a_deadline_and_then_cancels(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    arguments = ("--arg", f"log_path={log}", *SLOW, "--drain-s", "0.1")
    async with served(tmp_path, "arithmetic", *arguments) as (server, address):
        ask = ("eval", "arithmetic", "-n", "3", "--address", address, "--json", "--no-rerun")
        async with forked(tmp_path, *ask) as client:
            await started(log, 3)
            server.signal(signal.SIGTERM)
            stopped = await server.wait()
            done = await client.wait()
    assert stopped.code == 0
    assert not stopped.last["drained"]
    assert "not drained after 0.1 s" in stopped.err
    assert done.code == 4
    assert done.last["errors"] == 3
    assert {e["verdict"] for e in done.last["errors_by"]} == {"it may have run"}
    ends = [line["how"] for line in read_run_log(log) if line["event"] == "end"]
    assert ends == ["Cancelled"] * 3
    done.check_no_traceback()
    stopped.check_no_traceback()
    await check_nothing_left(tmp_path)


DEAF = """
import trio
class Deaf:
    def inputs(self, n, seed): return list(range(n))
    async def run_rollout(self, rollout):
        with open("started", "a") as file: file.write("x")
        with trio.CancelScope(shield=True): await trio.sleep_forever()
"""
"""Only a kill ends its rollouts."""


async def test_a_second_signal_kills_the_workers_and_ends_at_once(tmp_path: Path):
    (tmp_path / "deaf.py").write_text(DEAF)
    begun = tmp_path / "started"
    async with served(tmp_path, "deaf:Deaf") as (server, address):
        async with forked(tmp_path, "eval", "deaf:Deaf", "-n", "3", "--address", address) as client:
            await until(lambda: begun.exists() and begun.read_text() == "xxx")
            server.signal(signal.SIGINT)
            await server.said("again to stop at once")
            server.signal(signal.SIGTERM)  # of another kind: however soon, it is a second one
            stopped = await server.wait()
            client.signal(signal.SIGKILL)
    stopped.check_no_traceback()
    assert stopped.code == 1
    assert stopped.last["exit"] == 1
    assert "stopping at once" in stopped.err
    assert begun.read_text() == "xxx"
    await check_nothing_left(tmp_path)


def test_a_signal_that_comes_twice_within_a_moment_is_one(monkeypatch: pytest.MonkeyPatch):
    """``timeout`` sends its signal to the process and to the group that it is in."""
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    heard: list[int] = []
    interrupts = Interrupts()
    handle = interrupts._handle
    interrupts._tell = heard.append
    handle(signal.SIGTERM, None)
    now_s += 0.01
    handle(signal.SIGTERM, None)
    assert heard == [signal.SIGTERM]
    now_s += 1.0
    handle(signal.SIGTERM, None)
    assert heard == [signal.SIGTERM] * 2


async def test_ctrl_c_in_an_eval_cancels_on_the_server_and_sums_up(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    output = tmp_path / "results.jsonl"
    async with served(tmp_path, "arithmetic", "--arg", f"log_path={log}", *SLOW) as (_, address):
        ask = ("--address", address, "--json", "--output", str(output))
        async with forked(tmp_path, "eval", "arithmetic", "-n", "5", *ask) as client:
            await started(log, 5)
            client.signal(signal.SIGINT)
            done = await client.wait()
        assert done.code == 130
        assert done.last["interrupted"]
        assert (done.last["results"], done.last["asked"]) == (0, 5)
        assert "cancelling pending rollouts" in done.err
        assert f"the results are in {output}; the same command goes on from there" in done.err
        done.check_no_traceback()
        with trio.fail_after(HANG_S):
            await until(lambda: events(log, "end") == 5)
    assert {line.get("how") for line in read_run_log(log)} == {None, "Cancelled"}
    await check_nothing_left(tmp_path)


async def test_ctrl_c_in_a_named_eval_without_a_file_says_how_to_go_on(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    named = ("--run", "r1", "--journal", "runs", "--arg", f"log_path={log}", *SLOW)
    async with forked(tmp_path, "eval", "arithmetic", "-n", "2", *named) as client:
        await started(log, 2)
        client.signal(signal.SIGINT)
        done = await client.wait()
    assert done.code == 130
    assert "the server keeps results under --run r1 as long as it keeps keys; the" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_an_eval_that_had_errors_and_was_interrupted_was_interrupted(
    tmp_path: Path, number: signal.Signals
):
    """With a server of its own: what came is kept, and no worker is left."""
    log, output = tmp_path / "log.jsonl", tmp_path / "results.jsonl"
    # The first are done quickly, the last never.
    (tmp_path / "mixed.py").write_text(
        "import trio\n"
        "from trio_envserve.envs.recorder import RunLog\n"
        "class Mixed:\n"
        "    def __init__(self, log): self.log = RunLog(log)\n"
        "    def inputs(self, n, seed): return list(range(n))\n"
        "    async def run_rollout(self, rollout):\n"
        "        with self.log.record(rollout):\n"
        "            if rollout.input >= 5: await trio.sleep_forever()\n"
        "            if rollout.input >= 3: raise ValueError(rollout.input)\n"
        "            return {'reward': 0.5}\n"
    )
    ask = ("--workers", "2", "--json", "--output", str(output), "--arg", f"log={log}")
    async with forked(tmp_path, "eval", "mixed:Mixed", "-n", "8", *ask) as client:
        await until(lambda: output.exists() and output.read_text().count("\n") == 5)
        await started(log, 8)
        client.signal(number)
        done = await client.wait()
    if number is signal.SIGKILL:
        assert done.code == -number
    else:
        assert done.code == done.last["exit"] == 128 + number
        assert (done.last["errors"], done.last["interrupted"]) == (2, True)
        assert (done.last["results"], done.last["asked"]) == (3, 8)
        assert done.last["mean_reward"] == 0.5
    indexes = sorted(json.loads(line)["index"] for line in output.read_text().splitlines())
    assert indexes == list(range(5))
    await check_nothing_left(tmp_path)


async def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path):
    (tmp_path / "starter.py").write_text(
        "import subprocess, sys\n"
        "server = subprocess.Popen([sys.executable, '-m', 'trio_envserve', 'serve', '--json',\n"
        "    '--bind', 'tcp://127.0.0.1:0', '--exit-with-parent', '--arg', 'duration_s=300'])\n"
        "server.wait()\n"
    )
    async with forked(tmp_path, module="starter") as starter:
        await starter.event("serving")
        await starter.event("ready")
        starter.signal(signal.SIGKILL)
        await check_nothing_left(tmp_path)
        assert "the parent process has ended" in starter.err


async def test_a_server_whose_parent_ends_while_it_imports_ends_too(tmp_path: Path):
    """It took whoever had it then for its parent, and went on for ever."""
    (tmp_path / "child.py").write_text(
        "import os, sys, time\n"
        "from trio_envserve.cli import main\n"
        "class Slow:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'trio_envserve.cli.verbs':\n"
        "            open('imports', 'w').close()\n"
        "            while os.getppid() == int(sys.argv[1]): time.sleep(0.01)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "sys.exit(main(['serve', '--bind', 'tcp://127.0.0.1:0', '--exit-with-parent']))\n"
    )
    (tmp_path / "starter.py").write_text(
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, 'child.py', str(os.getpid())])\n"
        "while not os.path.exists('imports'): time.sleep(0.01)\n"
    )
    async with forked(tmp_path, module="starter") as starter:
        await until((tmp_path / "imports").exists)  # before that neither may be in the folder yet
        await check_nothing_left(tmp_path)
        assert "the parent process has ended" in starter.err


async def test_a_third_signal_ends_even_a_loop_that_is_stuck(tmp_path: Path):
    (tmp_path / "stuck.py").write_text(
        "import time\n"
        "class Stuck:\n"
        "    def inputs(self, n, seed): return [0]\n"
        "    async def run_rollout(self, rollout):\n"
        "        open('started', 'w').close()\n"
        "        while True: time.sleep(0.01)\n"
    )
    async with forked(tmp_path, "eval", "stuck:Stuck", "--workers", "0", "-n", "1") as client:
        await until(lambda: (tmp_path / "started").exists())
        # Of three kinds: those of one kind that wait are merged.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            client.signal(number)
        done = await client.wait()
    assert done.code == 1
    assert "ended by a third signal" in done.err
    done.check_no_traceback()
    await check_nothing_left(tmp_path)


async def strike(seed: int, stage: Path, folder: str) -> None:
    """A server and an eval against it; one of them gets a signal at some moment."""
    rng = random.Random(seed)
    number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    of_server = rng.random() < 0.5
    # A socket file cannot outlive kill -9 without being left, so that gets tcp.
    known = rng.random() < 0.5 and not (of_server and number is signal.SIGKILL)
    address = f"ipc://{folder}/socket" if known else "tcp://127.0.0.1:0"
    delay_s = rng.uniform(0.0, 0.8)
    serve = ("serve", "arithmetic", "--bind", address, "--json", "--log-level", "WARNING",
             "--drain-s", "0.2", "--arg", f"duration_s={rng.choice([0.0, 0.05, 300])}")  # fmt: skip
    async with command(stage, *serve) as server:
        if not known:
            address = (await server.event("serving"))["address"]
        ask = ("eval", "arithmetic", "-n", "20", "--json", "--address", address,
               "--wait-s", "0.5" if of_server else "60")  # fmt: skip
        async with command(stage, *ask) as client:
            struck, other = (server, client) if of_server else (client, server)
            await struck.has_taken_signals()
            await trio.sleep(delay_s)  # the moment of the signal; nothing waits for it
            struck.signal(number)
            first = await struck.wait()
            if not of_server:
                await other.has_taken_signals()  # it may be slower to start than the eval is to end
                other.signal(signal.SIGTERM)
            second = await other.wait()
    served, asked = (first, second) if of_server else (second, first)
    served.check_no_traceback()
    asked.check_no_traceback()
    if of_server and number is signal.SIGKILL:
        assert served.code == -number
    else:
        # Not even begun is 130 or 143: it had bound nothing.
        begun = "serving" in served.out or not known
        assert served.code in ({0} if begun else {0, 128 + signal.SIGTERM, 128 + number}), served
    if of_server:
        assert asked.code in (0, 3, 4), asked  # all, no server, or lost on the way
    elif number is signal.SIGKILL:
        assert asked.code in (-number, 0), asked
    else:
        assert asked.code in (128 + number, 0), asked
        assert asked.code == 0 or "interrupted" in asked.err
    await check_nothing_left(stage)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= 3)) for seed in range(50)]
)
async def test_signal_at_a_random_moment_leaves_nothing(seed: int, tmp_path: Path, folder: str):
    await strike(seed, tmp_path, folder)
