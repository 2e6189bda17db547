"""The verbs, run as people run them, on real input."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.cli.commands import (
    ROOT,
    Running,
    check_nothing_left,
    command,
    forked,
    lines,
    run,
    served,
    until,
)
from tests.connections import held_port

pytestmark = pytest.mark.real


# -- eval ----------------------------------------------------------------------


ODD = """
import datetime, pathlib
import numpy
class Odd:
    def __init__(self, size=3): self.size = size
    def run_rollout(self, rollout):
        if rollout.input == "fail": raise KeyError("as told")
        return {
            "reward": 0.25, "array": numpy.arange(self.size, dtype="float32"),
            "day": datetime.date(2024, 2, 29), "state": {"kept": 1, "not": 2},
            "sampling": dict(rollout.sampling_args),
        }
"""


async def test_own_inputs_errors_and_values_that_json_lacks_are_printed_as_lines(tmp_path: Path):
    pytest.importorskip("numpy")
    (tmp_path / "odd_envs.py").write_text(ODD)
    (tmp_path / "inputs.jsonl").write_text('{"a": 1}\n\n"fail"\n[2]\n')
    done = await run(
        tmp_path, "eval", "odd_envs:Odd", "--inputs", "inputs.jsonl", "--arg", "size=2", "--json",
        "--sampling", "temperature=0.5", "--state-column", "kept", "--output", "-",
        "--max-retries", "1",
    )  # fmt: skip
    assert done.code == 4, done.err
    assert (done.last["results"], done.last["errors"], done.last["mean_reward"]) == (2, 1, 0.25)
    assert [(each["class"], each["count"]) for each in done.last["errors_by"]] == [
        ("RolloutFailed", 1)
    ]
    *records, _ = map(json.loads, done.out.splitlines())
    written = sorted(records, key=lambda line: line["index"])
    assert [line["input"] for line in written] == [{"a": 1}, "fail", [2]]
    value = written[0]["value"]
    assert value["array"] == {"$array": {"dtype": "float32", "shape": [2], "data": "AAAAAAAAgD8="}}
    assert value["day"] == {"$time": "2024-02-29"}
    assert (value["state"], value["sampling"]) == ({"kept": 1}, {"temperature": 0.5})
    assert written[0]["executions"] == 1
    assert written[0]["worker"].startswith("w0-")
    error = written[1]["error"]
    assert (error["class"], error["type"]) == ("RolloutFailed", "KeyError")
    assert "as told" in error["message"]
    assert "odd_envs.py" in error["traceback"]
    assert "trio_envserve/" not in done.err


async def test_eval_says_what_went_wrong_first(tmp_path: Path):
    (tmp_path / "fails.py").write_text(
        "def fail(rollout):\n"
        "    if rollout.input == 'odd': return object()\n"
        "    raise KeyError(f'as told by {rollout.input}')\n"
    )
    (tmp_path / "inputs.jsonl").write_text('"one"\n"two"\n"odd"\n')
    ask = ("--inputs", "inputs.jsonl", "--in-flight", "1", "--workers", "0")
    done = await run(tmp_path, "eval", "fails:fail", *ask)
    assert done.code == 4, done.err
    assert "3 of 3 rollouts ended in errors" in done.err
    # One line for each class of error, though there were two of the one.
    first = [line for line in done.err.splitlines() if ": the first " in line]
    assert len(first) == 2, done.err
    assert "the first RolloutFailed: " in first[0]
    assert "as told by one" in first[0]
    assert "the first OutcomeNotEncodable: " in first[1]
    # The author's own line is shown, once, and none of ours.
    assert done.err.count("raise KeyError(f'as told by {rollout.input}')") == 1
    assert "trio_envserve/" not in done.err
    # Whoever writes results saw neither file nor line.
    done = await run(tmp_path, "eval", "fails:fail", *ask, "--output", "r.jsonl")
    assert 'fails.py", line 3, in fail' in done.err


async def test_no_server_is_told_early_and_ends_at_the_limit(tmp_path: Path):
    with held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        ask = ("--address", address, "--wait-s", "4", "--json")
        done = await run(tmp_path, "eval", "arithmetic", *ask)
    *early, last = done.err.splitlines()
    assert any(f"nothing listens at {address}" in line for line in early)
    assert "not ready after 4 s" in last
    assert "nothing was asked for" in last
    assert done.code == 3
    assert done.last["error"]["type"] == "ServerNotReady"
    done.check_no_traceback()


# -- serve and status ------------------------------------------------------------


async def test_serve_status_and_eval_from_other_processes(tmp_path: Path):
    async with served(tmp_path, "arithmetic", "--workers", "2") as (server, address):
        done = await run(tmp_path, "eval", "arithmetic", "-n", "50", "--address", address, "--json")
        assert (done.code, done.last["results"], done.last["mean_reward"]) == (0, 50, 1.0)
        shown = await run(tmp_path, "status", address, "--json")
        assert shown.code == 0
        assert (shown.last["status"], shown.last["environment"]) == ("ready", "arithmetic")
        assert len(shown.last["per_worker"]) == 2
        assert sum(worker["done"] for worker in shown.last["per_worker"]) == 50
        assert shown.last["cache"]["completed"] == 50
        other = await run(tmp_path, "serve", "--bind", address, "--json")
        assert other.code == 3
        assert f"another server (pid {server.pid})" in other.err
        table = await run(tmp_path, "status", address)
        assert "workers ready" in table.out
        assert "w1-1" in table.out
        async with forked(tmp_path, "top", address, "--json") as watch:
            assert json.loads(await watch.line())["status"] == "ready"
            assert json.loads(await watch.line())["status"] == "ready"
            watch.signal(2)
            ended = await watch.wait()
        assert (ended.code, ended.last["exit"]) == (0, 0)
        server.signal(15)
        assert (await server.wait()).last["stats"]["cache"]["completed"] == 50
    await check_nothing_left(tmp_path)


@pytest.mark.parametrize("form", [(), ("--json",)])
async def test_a_watch_ends_when_nobody_reads_it_any_more(tmp_path: Path, form: tuple[str, ...]):
    async with served(tmp_path, "arithmetic", "--workers", "0") as (_, address):
        arguments = ("top", address, "--every-s", "0.1", *form)
        async with forked(tmp_path, *arguments) as watch:
            await watch.line()
            assert watch.process.stdout is not None
            watch.process.stdout.close()
            await until(lambda: watch.process.poll() is not None)
        assert watch.process.returncode == 0
        assert watch.err == ""


async def test_a_probe_of_a_server_without_workers_is_told_why(tmp_path: Path):
    (tmp_path / "stuck.py").write_text("open('gate').read()\nasync def stuck(rollout): ...\n")
    os.mkfifo(tmp_path / "gate")
    serve = ("serve", "stuck:stuck", "--bind", "tcp://127.0.0.1:0", "--json")
    async with forked(tmp_path, *serve) as server:
        address = (await server.event("serving"))["address"]
        done = await run(tmp_path, "status", address, "--ready")
        assert (done.code, done.out) == (1, "starting: no worker is ready yet\n")
    await check_nothing_left(tmp_path)


async def test_serve_says_where_for_people_too(tmp_path: Path):
    doors = ("--http", "127.0.0.1:0", "--verifiers-bind", "tcp://127.0.0.1:0")
    async with forked(tmp_path, "serve", "--bind", "tcp://127.0.0.1:0", *doors) as server:
        line = await server.line()
        assert line.startswith("serving arithmetic (built in) at tcp://127.0.0.1:")
        assert line.count("127.0.0.1:") == 3
        await server.said("ready at tcp://127.0.0.1:")
        server.signal(15)
        done = await server.wait()
    assert done.code == 0
    assert "stopped after" in done.err


async def test_serve_runs_a_command_as_its_worker(tmp_path: Path):
    program = Path(__file__).parent.parent / "protocol" / "raw_worker.py"
    command_ = f"{shlex.quote(sys.executable)} {shlex.quote(str(program))}"
    arguments = ("--worker-command", command_, "--arg", "level=3")
    async with served(tmp_path, "any name", *arguments) as (_, address):
        shown = await run(tmp_path, "status", address, "--json")
        assert (shown.last["status"], shown.last["environment"]) == ("ready", "raw")
    await check_nothing_left(tmp_path)


async def test_logs_environment_and_limits_of_a_server(tmp_path: Path):
    # Each rollout lasts until both workers have one, so that both have some; the first
    # that is ready has no room for all.
    (tmp_path / "shows.py").write_text(
        "import logging, os, time\n"
        "os.makedirs('started', exist_ok=True)\n"
        "def show(rollout):\n"
        "    logging.getLogger('shows').warning('hello')\n"
        "    open(f'started/{os.getpid()}', 'w').close()\n"
        "    while len(os.listdir('started')) < 2: time.sleep(0.01)\n"
        "    return {'slot': os.environ.get('SLOT')}\n"
    )
    (tmp_path / "inputs.jsonl").write_text("1\n2\n3\n4\n5\n6\n")
    options = ("--workers", "2", "--worker-env", "1:SLOT=one", "--log-dir", "logs", "--log-json",
               "--limit", "lease_s=60", "--limit", "worker_capacity=3",
               "--limit", "recycle_executions=100")  # fmt: skip
    async with served(tmp_path, "shows:show", *options) as (server, address):
        ask = ("--inputs", "inputs.jsonl", "--address", address, "--json", "--output", "out.jsonl")
        done = await run(tmp_path, "eval", "shows:show", *ask)
        assert done.code == 0, done.err
        server.signal(15)
        await server.wait()
    written = lines(tmp_path / "out.jsonl")
    slots = [(line["worker"].partition("-")[0], line["value"]["slot"]) for line in written]
    assert set(slots) == {("w0", None), ("w1", "one")}
    assert done.last["mean_reward"] is None
    log = lines(tmp_path / "logs" / "server.log")
    assert any("serving shows:show" in line["message"] for line in log)
    hellos = [x["logger"] for x in lines(tmp_path / "logs" / "worker-1.log")].count("shows")
    assert hellos == slots.count(("w1", "one"))


@pytest.mark.parametrize(
    ("words", "why"),
    [("broken_envs:Broken", "no such disk"), ("arithmetic --arg sice=3", "did you mean 'size'")],
)
async def test_a_broken_environment_ends_the_server_with_what_its_workers_said(
    tmp_path: Path, words: str, why: str
):
    (tmp_path / "broken_envs.py").write_text(
        "class Broken:\n"
        "    async def setup(self): raise RuntimeError('no such disk')\n"
        "    async def run_rollout(self, rollout): return 1\n"
    )
    bind = ("--bind", "tcp://127.0.0.1:0", "--limit", "restart_pause_s=0.01")
    done = await run(tmp_path, "serve", *words.split(), *bind, "--json")
    assert (done.code, done.last["exit"]) == (3, 3)
    assert why in done.last["error"]["message"]
    assert "trio-envserve: error: the environment is broken" in done.err
    assert ("broken_envs.py" in done.err) is words.startswith("broken")
    await check_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("raises", "class Env:\n    def __init__(self):\n        self.x = 1 / 0\n", "line 3"),
        ("imports", "import json\nimport no_such_library\nclass Env: pass\n", "line 2"),
        ("typo", "class Env:\n    def run_rollout(self, rollout)\n", "line 2"),
    ],
)
async def test_eval_shows_where_an_environment_cannot_be_loaded(
    tmp_path: Path, name: str, text: str, line: str
):
    """It said what was raised, and not where, and ended with 2 or 3, as it happened."""
    if name == "raises":
        text += "    def run_rollout(self, rollout): pass\n"
    (tmp_path / f"{name}.py").write_text(text)
    done = await run(tmp_path, "eval", f"{name}.py:Env", "-n", "1", "--workers", "0", "--json")
    # The server may find it first.
    assert (done.code, f'{name}.py", {line}' in done.err) == (3, True), done.err
    assert "trio_envserve/" not in done.err


async def test_a_broken_environment_may_be_waited_for(tmp_path: Path):
    (tmp_path / "late_envs.py").write_text(
        "import os\n"
        "class Late:\n"
        "    async def setup(self):\n"
        "        if not os.path.exists('mended'): raise RuntimeError('not yet')\n"
        "    async def run_rollout(self, rollout): return 1\n"
    )
    quick = ("--limit", "restart_pause_s=0.05", "--limit", "restart_pause_max_s=0.05")
    options = ("--bind", "tcp://127.0.0.1:0", *quick, "--json")
    async with forked(tmp_path, "serve", "late_envs:Late", *options, "--keep-trying") as server:
        await server.said("not ready yet: the environment is broken")
        (tmp_path / "mended").write_text("")
        await server.event("ready")
        server.signal(15)
        assert (await server.wait()).code == 0


# -- what is not found before something begins ----------------------------------------


@pytest.mark.parametrize("words", ["status", "key list"])
async def test_no_server_there_is_told_at_once(tmp_path: Path, words: str):
    with held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        at = (address,) if words == "status" else ("--address", address)
        done = await run(tmp_path, *words.split(), *at, "--wait-s", "0.5", "--json")
    assert (done.code, done.last["exit"]) == (3, 3)
    assert f"nothing listens at {address}" in done.err or f"no answer from {address}" in done.err
    assert "Give another address" in done.err
    assert len(done.err.splitlines()) == 1, "the reason was said twice"
    done.check_no_traceback()


@pytest.mark.parametrize("option", ["--bind", "--http", "--verifiers-bind"])
async def test_address_in_use_is_found_before_anything_is_started(tmp_path: Path, option: str):
    bind = () if option == "--bind" else ("--bind", "tcp://127.0.0.1:0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"{'tcp://' * (option != '--http')}127.0.0.1:{taken.getsockname()[1]}"
        words = (*bind, option, where, "--journal", "runs", "--log-level", "DEBUG", "--json")
        done = await run(tmp_path, "serve", "arithmetic", *words)
    assert done.code == 3
    assert "in use" in done.last["error"]["message"]
    assert len(done.out.splitlines()) == 1
    assert "worker" not in done.err
    assert "runs" not in await trio.to_thread.run_sync(os.listdir, tmp_path)
    done.check_no_traceback()
    await check_nothing_left(tmp_path)


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_extra_says_what_to_install(missing: str):
    run = python(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from trio_envserve.cli import main\n"
        "sys.exit(main(['status', 'tcp://127.0.0.1:1', '--json']))"
    )
    assert run.returncode == 2
    assert "pip install 'trio-envserve[cli]'" in run.stderr
    assert "Traceback" not in run.stderr
    told = json.loads(run.stdout)
    assert told["exit"] == 2
    assert missing in told["error"]["message"]


FULL = "trio-envserve: error: standard output: No space left on device\n"


@asynccontextmanager
async def on_a_full_disk(folder: Path, *words: str) -> AsyncIterator[Running]:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        async with forked(folder, *words, streams={"stdout": full}) as running:
            yield running
    finally:
        os.close(full)


@pytest.mark.parametrize(
    "words",
    ["--help", "--version", "eval --help", *(f"eval arithmetic -n 2 --workers 0{form}"
                                             for form in ("", " --json"))],
)  # fmt: skip
async def test_output_that_a_full_disk_does_not_take_was_a_traceback(tmp_path: Path, words: str):
    async with on_a_full_disk(tmp_path, *words.split()) as running:
        done = await running.wait()
    assert (done.code, done.err.endswith(FULL)) == (5, True), done.err
    assert ("done, " in done.err) is ("arithmetic" in words)
    done.check_no_traceback()


async def test_output_in_an_encoding_without_its_characters_is_printed_all_the_same(tmp_path: Path):
    """The results of an evaluation were lost in a traceback, for the bars beside them."""
    words = ("eval", "arithmetic", "-n", "2", "--workers", "0")
    async with command(tmp_path, *words, PYTHONIOENCODING="ascii") as running:
        done = await running.wait()
    assert done.code == 0, done.err
    assert "mean reward" in done.out
    assert "\\u2588" in done.out
    done.check_no_traceback()


async def test_server_ended_where_a_full_disk_did_not_take_its_address(tmp_path: Path, folder: str):
    serve = ("serve", "arithmetic", "--workers", "0", "--bind", f"ipc://{folder}/server")
    async with on_a_full_disk(tmp_path, *serve) as server:
        await server.said("ready at")
        done = await run(tmp_path, "status", serve[-1], "--ready")
        assert (done.code, done.out) == (0, "ready\n"), done.err
        server.signal(15)
        stopped = await server.wait()
    assert (stopped.code, FULL in stopped.err) == (0, True), stopped.err


def test_summary_was_a_traceback_where_standard_output_is_closed(tmp_path: Path):
    command = f"{shlex.quote(sys.executable)} -m trio_envserve"
    done = subprocess.run(
        ["sh", "-c", f"{command} eval arithmetic -n 2 --workers 0 >&- <&-"], cwd=tmp_path,
        stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_a_verb_does_not_load_what_others_need():
    run = python(
        "import sys\n"
        "from trio_envserve.cli import main\n"
        "main(['--help'])\n"
        "print([m for m in ('numpy', 'hypothesis') if m in sys.modules])"
    )
    assert run.stdout.splitlines()[-1] == "[]"
