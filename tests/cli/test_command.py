"""The verbs, run as people run them, on real input."""

from __future__ import annotations

import json
import os
import random
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import ROOT, check_nothing_left, command, run, served, until
from tests.connections import held_port
from trio_envserve.cli.group import VERBS

pytestmark = pytest.mark.real


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- eval ----------------------------------------------------------------------


@pytest.mark.slow
async def test_eval_of_the_oracle_and_the_same_answers_corrupted(tmp_path: Path):
    reasoning_gym = pytest.importorskip("reasoning_gym")
    output = tmp_path / "oracle.jsonl"
    done = await run(
        tmp_path, "eval", "reasoning-gym:countdown", "-n", "200", "--model", "oracle", "--workers",
        "2", "--json", "--state-column", "given", "--output", str(output),
    )  # fmt: skip
    assert done.code == 0, done.err
    done.check_no_traceback()
    assert (done.last["results"], done.last["errors"]) == (200, 0)
    assert done.last["mean_reward"] == 1.0
    assert done.last["seconds"] > 0
    assert len(done.out.splitlines()) == 1

    written = lines(output)
    assert sorted(line["index"] for line in written) == list(range(200))
    # The size is the environment's default: an entry may depend on it.
    dataset = reasoning_gym.create_dataset("countdown", seed=0, size=500)
    rng = random.Random(0)
    again, corrupted = [], []
    for line in written:
        assert line["input"] == {"index": line["index"], "seed": 0}
        entry, given = dataset[line["index"]], line["value"]["state"]["given"]
        again.append(dataset.score_answer(given, entry))
        digits = [i for i, char in enumerate(given) if char.isdigit()]
        spot = rng.choice(digits)
        other = str((int(given[spot]) + rng.randint(1, 9)) % 10)
        corrupted.append(dataset.score_answer(given[:spot] + other + given[spot + 1 :], entry))
    assert sum(again) / 200 == 1.0
    assert sum(corrupted) / 200 < 0.2
    await check_nothing_left(tmp_path)


@pytest.mark.slow
async def test_eval_of_the_random_model_scores_low(tmp_path: Path):
    pytest.importorskip("reasoning_gym")
    ask = ("-n", "100", "--model", "random", "--workers", "1", "--json")
    done = await run(tmp_path, "eval", "reasoning-gym:countdown", *ask)
    assert (done.code, done.last["results"]) == (0, 100)
    assert done.last["mean_reward"] < 0.2


async def test_eval_without_json_prints_tables(tmp_path: Path):
    done = await run(tmp_path, "eval", "arithmetic", "-n", "7")
    assert done.code == 0
    assert "mean reward" in done.out
    assert "p99" in done.out
    assert "eval: 7/7 done, 0 errors" in done.err


async def test_eval_inside_this_process(tmp_path: Path):
    done = await run(tmp_path, "eval", "arithmetic", "-n", "7", "--workers", "0", "--json")
    assert (done.code, done.last["results"], done.last["mean_reward"]) == (0, 7, 1.0)


ODD = """
import datetime, pathlib
import numpy
class Odd:
    def __init__(self, size=3): self.size = size
    def run_rollout(self, rollout):
        if rollout.input == "fail": raise KeyError("as told")
        return {
            "reward": 0.25, "input": rollout.input, "bytes": b"\\x00\\xff", "nan": float("nan"),
            "array": numpy.arange(self.size, dtype="float32"), "keys": {1: "one"},
            "day": datetime.date(2024, 2, 29), "state": {"kept": 1, "not": 2},
            "sampling": dict(rollout.sampling_args), "attempt": rollout.attempt,
        }
"""


async def test_own_inputs_errors_and_values_that_json_lacks(tmp_path: Path):
    pytest.importorskip("numpy")
    (tmp_path / "odd_envs.py").write_text(ODD)
    (tmp_path / "inputs.jsonl").write_text('{"a": 1}\n\n"fail"\n[2]\n')
    done = await run(
        tmp_path, "eval", "odd_envs:Odd", "--inputs", "inputs.jsonl", "--arg", "size=2", "--json",
        "--sampling-arg", "temperature=0.5", "--state-column", "kept", "--output", "out.jsonl",
        "--max-retries", "1",
    )  # fmt: skip
    assert done.code == 4, done.err
    assert (done.last["results"], done.last["errors"], done.last["mean_reward"]) == (2, 1, 0.25)
    assert done.last["errors_by"] == [
        {
            "class": "RolloutFailed",
            "verdict": "it ran and failed",
            "code": "rollout-failed",
            "fault": "environment",
            "count": 1,
        }
    ]
    written = sorted(lines(tmp_path / "out.jsonl"), key=lambda line: line["index"])
    assert [line["input"] for line in written] == [{"a": 1}, "fail", [2]]
    value = written[0]["value"]
    assert value["bytes"] == {"$bytes": "AP8="}
    assert value["nan"] == {"$float": "nan"}
    assert value["array"] == {"$array": {"dtype": "float32", "shape": [2], "data": "AAAAAAAAgD8="}}
    assert value["keys"] == {"$map": [[1, "one"]]}
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


async def test_results_to_standard_output(tmp_path: Path):
    done = await run(tmp_path, "eval", "arithmetic", "-n", "3", "--json", "--output", "-")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert sorted(record["index"] for record in records[:-1]) == [0, 1, 2]
    assert records[-1]["results"] == 3


async def test_a_file_of_results_is_never_overwritten(tmp_path: Path):
    (tmp_path / "r.jsonl").write_text("precious")
    done = await run(tmp_path, "eval", "arithmetic", "--output", "r.jsonl", "--json")
    assert (done.code, done.last["exit"]) == (2, 2)
    assert "exists" in done.err
    assert (tmp_path / "r.jsonl").read_text() == "precious"


async def test_no_server_is_told_early_and_ends_at_the_limit(tmp_path: Path):
    with held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        ask = ("--address", address, "--wait-s", "8", "--json")
        done = await run(tmp_path, "eval", "arithmetic", *ask)
    *early, last = done.err.splitlines()
    assert any(f"nothing listens at {address}" in line for line in early)
    assert "not ready after 8 s" in last
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
        table = await run(tmp_path, "status", address)
        assert "workers ready" in table.out
        assert "w1-1" in table.out
        async with command(tmp_path, "status", address, "--watch", "--json") as watch:
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
    async with served(tmp_path) as (_, address):
        arguments = ("status", address, "--watch", "--every-s", "0.1", *form)
        async with command(tmp_path, *arguments) as watch:
            await watch.line()
            assert watch.process.stdout is not None
            watch.process.stdout.close()
            await until(lambda: watch.process.poll() is not None)
        assert watch.process.returncode == 0
        assert watch.err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--bind", "tcp://127.0.0.1:0", "--log-dir", "file/logs"),
        ("eval", "arithmetic", "--log-dir", "file/logs"),
        ("run-with", "arithmetic", "--log-dir", "file/logs", "--json", "--", "true"),
        ("demo", "--keep", "file/logs"),
        ("demo", "--keep", "/proc"),
    ],
)
async def test_a_folder_that_cannot_be_written_is_told_in_a_line(
    tmp_path: Path, arguments: tuple[str, ...]
):
    (tmp_path / "file").write_text("no folder")
    if "/proc" in arguments and sys.platform != "linux":
        pytest.skip("has no folder that nobody can write to")
    given = arguments if "--json" in arguments else (*arguments, "--json")
    done = await run(tmp_path, *given)
    assert (done.code, done.last["exit"]) == (2, 2)
    assert "cannot " in done.last["error"]["message"]
    assert done.err.startswith("trio-envserve: error: cannot ")
    done.check_no_traceback()


async def test_status_of_nobody(tmp_path: Path):
    with held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        done = await run(tmp_path, "status", address, "--json")
    assert (done.code, done.last["exit"]) == (3, 3)
    assert f"nothing listens at {address}" in done.err
    assert "Give another address with --address" in done.err
    assert len(done.err.splitlines()) == 1, "the reason was said twice"
    done.check_no_traceback()


async def test_a_probe_hears_ready_not_ready_and_unreachable_by_the_exit_code(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    slow = ("--arg", f"log_path={log}", "--arg", "duration_s=300")
    async with served(tmp_path, "arithmetic", *slow) as (server, address):
        probe = ("status", address, "--ready")
        done = await run(tmp_path, *probe)
        assert (done.code, done.out, done.err) == (0, "ready\n", "")
        done = await run(tmp_path, *probe, "--json")
        assert (done.code, done.last["exit"], done.last["status"]) == (0, 0, "ready")
        ask = ("eval", "arithmetic", "-n", "1", "--address", address, "--json", "--no-rerun")
        async with command(tmp_path, *ask) as client:
            await until(lambda: log.exists() and "start" in log.read_text())
            server.signal(15)
            await server.said("taking no new work")
            done = await run(tmp_path, *probe)
            assert done.code == 1
            assert done.out.startswith("stopping: the server is stopping (draining)")
            assert "1 executions" in done.out
            done = await run(tmp_path, *probe, "--json")
            assert (done.code, done.last["exit"], done.last["status"]) == (1, 1, "stopping")
            assert done.last["closing"]["stage"] == "draining"
            client.signal(2)
            await client.wait()
        await server.wait()
    done = await run(tmp_path, *probe, "--wait-s", "1")
    assert (done.code, done.out) == (3, "")
    assert "no answer from" in done.err
    done = await run(tmp_path, *probe, "--watch")
    assert done.code == 2


async def test_a_probe_of_a_server_without_workers_is_told_why(tmp_path: Path):
    (tmp_path / "stuck.py").write_text("open('gate').read()\nasync def stuck(rollout): ...\n")
    os.mkfifo(tmp_path / "gate")
    serve = ("serve", "stuck:stuck", "--bind", "tcp://127.0.0.1:0", "--json")
    async with command(tmp_path, *serve) as server:
        address = (await server.event("serving"))["address"]
        done = await run(tmp_path, "status", address, "--ready")
        assert (done.code, done.out) == (1, "starting: no worker is ready yet\n")
    await check_nothing_left(tmp_path)


async def test_serve_runs_a_command_as_its_worker(tmp_path: Path):
    program = Path(__file__).parent.parent / "protocol" / "raw_worker.py"
    command_ = f"{shlex.quote(sys.executable)} {shlex.quote(str(program))}"
    arguments = ("--worker-command", command_, "--arg", "level=3")
    async with served(tmp_path, "any name", *arguments) as (_, address):
        shown = await run(tmp_path, "status", address, "--json")
        assert (shown.last["status"], shown.last["environment"]) == ("ready", "raw")
    await check_nothing_left(tmp_path)


async def test_serve_says_where_for_people_too(tmp_path: Path):
    async with command(tmp_path, "serve", "--bind", "tcp://127.0.0.1:0") as server:
        line = await server.line()
        assert line.startswith("serving arithmetic at tcp://127.0.0.1:")
        await server.said("ready at tcp://127.0.0.1:")
        server.signal(15)
        done = await server.wait()
    assert done.code == 0
    assert "stopped after" in done.err


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
               "--limit", "lease_s=60", "--limit", "worker_capacity=3", "--recycle", "100",
               "--worker-memory", "4096")  # fmt: skip
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


async def test_a_broken_environment_ends_the_server_with_its_traceback(tmp_path: Path):
    (tmp_path / "broken_envs.py").write_text(
        "class Broken:\n"
        "    async def setup(self): raise RuntimeError('no such disk')\n"
        "    async def run_rollout(self, rollout): return 1\n"
    )
    bind = ("--bind", "tcp://127.0.0.1:0", "--limit", "restart_pause_s=0.01")
    done = await run(tmp_path, "serve", "broken_envs:Broken", *bind, "--json")
    assert (done.code, done.last["exit"]) == (3, 3)
    assert done.last["event"] == "stopped"
    assert "no such disk" in done.last["error"]["message"]
    assert "trio-envserve: error: the environment is broken" in done.err
    assert "broken_envs.py" in done.err
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
    async with command(tmp_path, "serve", "late_envs:Late", *options, "--keep-trying") as server:
        await server.said("not ready yet: the environment is broken")
        (tmp_path / "mended").write_text("")
        await server.event("ready")
        server.signal(15)
        assert (await server.wait()).code == 0


# -- bad input ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "arithmetc"], "did you mean 'arithmetic'"),
        (["serve", "resoning-gym:countdown"], "did you mean 'reasoning-gym'"),
        (["serve", "trio_envserve.envs.arithmetic:Arithmetik"], "did you mean 'Arithmetic'"),
        (["serve", "trio_envserve.envs.arithmetik:Arithmetic"], "arithmetic"),
        (["serve", "nosuchmodule:Thing"], "No module named 'nosuchmodule'"),
        (["serve", "arithmetic", "--bind", "127.0.0.1:1"], "did you mean tcp://127.0.0.1:1"),
        (["serve", "arithmetic", "--arg", "size"], "--arg takes key=value"),
        (["serve", "arithmetic", "--limit", "leese_s=1"], "did you mean lease_s"),
        (["serve", "arithmetic", "--limit", "lease_s=-1"], "must be a positive number"),
        (["serve", "arithmetic", "--limit", "window=1.5"], "whole number"),
        (["serve", "arithmetic", "--worker-env", "0"], "SLOT:KEY=VALUE"),
        (["serve", "arithmetic", "--worker-env", "1:A=B"], "numbered from 0"),
        (["eval", "arithmetc"], "did you mean 'arithmetic'"),
        (["eval", "arithmetic", "--arg", "sice=3"], "did you mean 'size'"),
        (["eval", "arithmetic", "--address", "tcp://localhost:1", "--workers", "2"], "own server"),
        (["eval", "arithmetic", "--inputs", "nosuchfile"], "nosuchfile"),
        (["eval", "arithmetic", "--output", "nosuch/dir.jsonl"], "nosuch/dir.jsonl"),
        (["status", "nonsense"], "tcp://127.0.0.1:5555 or ipc:///path expected"),
    ],
)
async def test_a_mistake_is_told_in_a_line(tmp_path: Path, arguments: list[str], said: str):
    done = await run(tmp_path, *arguments, "--json")
    assert done.code == 2, done.err
    assert said in done.err
    done.check_no_traceback()
    assert len(done.out.splitlines()) == 1  # nothing was bound
    assert said in done.last["error"]["message"]
    assert done.last["exit"] == 2


@pytest.mark.slow
async def test_a_typo_in_the_name_of_a_data_set(tmp_path: Path):
    pytest.importorskip("reasoning_gym")
    done = await run(tmp_path, "serve", "reasoning-gym:contdown", "--json")
    assert done.code == 2
    assert "did you mean 'countdown'" in done.last["error"]["message"]


async def test_an_argument_that_only_the_workers_can_refuse(tmp_path: Path):
    options = ("--bind", "tcp://127.0.0.1:0", "--arg", "sice=3", "--limit", "restart_pause_s=0.01")
    done = await run(tmp_path, "serve", "arithmetic", *options, "--json")
    assert done.code == 3
    assert "did you mean 'size'" in done.last["error"]["message"]
    done.check_no_traceback()


WRONG_USAGE = [
    (["evla"], "did you mean eval"),
    (["serve", "--wrokers", "2"], "--wrokers"),
    (["serve", "--workers", "many"], "many"),
    (["eval"], "ENV"),
    (["stack"], "KEY"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG_USAGE)
async def test_wrong_usage(tmp_path: Path, arguments: list[str], said: str):
    done = await run(tmp_path, *arguments)
    assert done.code == 2
    assert "Usage:" in done.err
    assert said in done.err
    assert done.out == ""
    done.check_no_traceback()


@pytest.mark.parametrize(("arguments", "said"), WRONG_USAGE)
async def test_wrong_usage_with_json_is_an_object_too(
    tmp_path: Path, arguments: list[str], said: str
):
    done = await run(tmp_path, *arguments, "--json")
    assert (done.code, done.last["exit"]) == (2, 2)
    assert len(done.out.splitlines()) == 1
    assert said in done.last["error"]["message"]
    assert done.last["error"]["type"]
    assert "Usage:" in done.err
    done.check_no_traceback()


async def test_a_port_in_use(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = await run(tmp_path, "serve", "--bind", f"tcp://127.0.0.1:{port}", "--json")
    assert done.code == 3
    assert "in use" in done.last["error"]["message"]
    assert "port 0 picks a free one" in done.err
    done.check_no_traceback()


async def test_a_second_server_at_one_address(tmp_path: Path):
    async with served(tmp_path) as (server, address):
        done = await run(tmp_path, "serve", "--bind", address, "--json")
        assert done.code == 3
        assert f"another server (pid {server.pid})" in done.err


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_extra_says_what_to_install(missing: str):
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from trio_envserve.cli import main\n"
        "sys.exit(main(['status', 'tcp://127.0.0.1:1', '--json']))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert run.returncode == 2
    assert 'pip install "trio-envserve[cli]"' in run.stderr
    assert "Traceback" not in run.stderr
    told = json.loads(run.stdout)
    assert told["exit"] == 2
    assert missing in told["error"]["message"]


async def test_help_names_examples_and_exit_codes(tmp_path: Path):
    for verb in ("serve", "eval", "status", "demo", "replay", "conform", "fuzz"):
        done = await run(tmp_path, verb, "--help")
        assert done.code == 0
        assert "Examples:" in done.out
        assert "Exit codes:" in done.out
    listed = await run(tmp_path, "--help")
    for verb in VERBS:
        assert f"  {verb} " in listed.out


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "door"])
async def test_help_names_no_exit_codes_of_other_verbs(tmp_path: Path, verb: str):
    done = await run(tmp_path, verb, "--help")
    codes = done.out.rpartition("Exit codes")[2]
    assert "  2 " in codes
    for other in ("eval:", "attach:", "report:", "status --ready:"):
        assert other not in codes


def test_a_verb_does_not_load_what_others_need():
    program = (
        "import sys\n"
        "from trio_envserve.cli import main\n"
        "main(['--help'])\n"
        "print([m for m in ('trio', 'zmq', 'numpy', 'hypothesis') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    loaded = run.stdout.splitlines()[-1]
    assert "numpy" not in loaded
    assert "hypothesis" not in loaded
