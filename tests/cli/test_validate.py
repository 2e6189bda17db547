"""``validate``: each silent mistake of an environment, found and said; ``init`` makes none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import HANG_S, ROOT, check_nothing_left, forked, run
from trio_envserve.worker.validation import Findings, Validation, Wanted

pytestmark = pytest.mark.real

HEAD = """
import asyncio, math, os, subprocess, threading, time
import trio
from trio_envserve import Sandboxed

class Base:
    def inputs(self, n, seed):
        return [{"x": (seed, i)[1] + 1000 * seed} for i in range(n)]
    async def run_rollout(self, rollout):
        answer = await rollout.ask([{"role": "user", "content": "?"}], reference="1")
        return {"reward": float(answer.text == "1")}
"""

FOUND = {
    # name: (code, check, finding, text)
    "a reward that is a text": (
        "async def run_rollout(self, rollout): return {'reward': '0.5'}",
        "rewards", "warning", "the reward is no finite number: '0.5'",
    ),
    "a reward without a mapping around it": (
        "async def run_rollout(self, rollout): return 1.0",
        "rewards", "warning", 'the result is no mapping such as {"reward": 1.0}, but a float',
    ),
    "a reward with names, which an evaluation counts": (
        "async def run_rollout(self, rollout): return {'reward': {'a': 1, 'b': 0.5}}",
        "rewards", "ok", "all are numbers, from 1.5 to 1.5",
    ),
    "a reward that is NaN": (
        "async def run_rollout(self, rollout): return {'reward': math.nan}",
        "rewards", "warning", "the reward is no finite number: nan",
    ),
    "no reward": (
        "async def run_rollout(self, rollout): return {'score': 1}",
        "rewards", "warning", "the result has no reward",
    ),
    "right answers that earn nothing": (
        "async def run_rollout(self, rollout):\n"
        "        return {**await super().run_rollout(rollout), 'reward': 0}",
        "oracle", "failed", "2 of 2 right answers (the model oracle) earn less than 1, the least 0",
    ),
    "right answers that earn as much as there is": (
        "max_reward = 0.45\n"
        "    async def run_rollout(self, rollout):\n"
        "        return {**await super().run_rollout(rollout), 'reward': 0.45}",
        "oracle", "ok", "earn 0.45 or more",
    ),
    "rollouts that ask no model": (
        "async def run_rollout(self, rollout): return {'reward': 0}",
        "oracle", "skipped", "no rollout asked a model",
    ),
    "a most reward that is none": (
        "max_reward = 'high'", "oracle", "failed", "max_reward must be a number, or None",
    ),
    "something that rollouts share": (
        "async def run_rollout(self, rollout):\n"
        "        self.x = rollout.input['x']\n"
        "        await trio.sleep(0.01)\n"
        "        return {'reward': float(self.x == rollout.input['x'])}",
        "at once", "failed", "earn another reward with 8 at once: input",
    ),
    "rollouts that fail at once only": (
        "running = 0\n"
        "    async def run_rollout(self, rollout):\n"
        "        type(self).running += 1\n"
        "        assert self.running == 1\n"
        "        await trio.sleep(0.01)\n"
        "        type(self).running -= 1\n"
        "        return {'reward': 1}",
        "at once", "failed", "of 8 rollouts failed with 8 at once, and none alone: input",
    ),
    "a reward that is true": (
        "async def run_rollout(self, rollout): return {'reward': True}",
        "rewards", "ok", "all are numbers, from 1 to 1",
    ),
    "inputs that ignore n": (
        "def inputs(self, n, seed): return [{'x': seed + i} for i in range(50)]",
        "inputs", "warning", "gives 50: it ignores n",
    ),
    "inputs that ignore the seed": (
        "def inputs(self, n, seed): return [{'x': i} for i in range(n)]",
        "inputs", "warning", "it may ignore its seed",
    ),
    "inputs that differ each time": (
        "def inputs(self, n, seed): return [{'x': time.perf_counter_ns()} for i in range(n)]",
        "inputs", "warning", "does not follow its seed",
    ),
    "inputs that cannot be sent": (
        "def inputs(self, n, seed): return [{'x': object()} for i in range(n)]",
        "inputs", "failed", "cannot be sent",
    ),
    "asyncio on trio": (
        "async def run_rollout(self, rollout): await asyncio.sleep(0.01)",
        "rollouts", "failed", "RuntimeError",
    ),
    "a rollout that raises": (
        "async def run_rollout(self, rollout): return 1 / 0",
        "rollouts", "failed", "input 0 failed: ZeroDivisionError",
    ),
    "a result that cannot be encoded": (
        "async def run_rollout(self, rollout): return {'reward': 1, 'said': object()}",
        "results", "failed", "cannot be encoded",
    ),
    "a rollout that holds the loop": (
        "async def run_rollout(self, rollout): time.sleep(0.3); return {'reward': 1}",
        "event loop", "warning", "it was held for ",
    ),
    "a rollout that keeps its cancellation": (
        "async def run_rollout(self, rollout):\n"
        "        try:\n"
        "            return await super().run_rollout(rollout)\n"
        "        except trio.Cancelled:\n"
        "            with trio.CancelScope(shield=True): await trio.sleep(1000)",
        "cancelling", "failed", "did not end in 0.5 s",
    ),
    "threads": (
        "async def run_rollout(self, rollout):\n"
        "        new = threading.Thread(target=time.sleep, args=(99,), daemon=True, name='mine')\n"
        "        new.start()\n"
        "        return {'reward': 1}",
        "left behind", "failed", "2 threads after 2 rollouts: 2 x mine",
    ),
    "descriptors": (
        "async def run_rollout(self, rollout):\n"
        "        os.open(os.devnull, os.O_RDONLY); return {'reward': 1}",
        "left behind", "failed", "2 descriptors after 2 rollouts: 2 x /dev/null",
    ),
    "children": (
        "async def run_rollout(self, rollout):\n"
        "        self.kept = [*getattr(self, 'kept', []), subprocess.Popen(['sleep', '99'])]\n"
        "        return {'reward': 1}",
        "left behind", "failed", "2 children after 2 rollouts: 2 x sleep 99",
    ),
    "tasks of trio": (
        "async def run_rollout(self, rollout):\n"
        "        trio.lowlevel.spawn_system_task(trio.sleep, 99); return {'reward': 1}",
        "left behind", "failed", "2 tasks after 2 rollouts: 2 x trio.sleep",
    ),
    "tasks of asyncio": (
        "backend = 'asyncio'\n"
        "    async def run_rollout(self, rollout):\n"
        "        self.kept = [*getattr(self, 'kept', []), asyncio.create_task(asyncio.sleep(99))]\n"
        "        return {'reward': 1}",
        "left behind", "failed", "2 tasks after 2 rollouts: 2 x sleep",
    ),
    "a setup that raises": (
        "def setup(self): raise OSError('no disk')",
        "setup", "failed", "setup() raised OSError: no disk",
    ),
    "a sandbox that nobody provides": (
        "def setup(self): Sandboxed('nonsense').check()",
        "setup", "failed", "no provider of sandboxes is called 'nonsense'",
    ),
    "a teardown that raises": (
        "def teardown(self): raise OSError('no disk')",
        "teardown", "warning", "no disk",
    ),
    "a process that ends": (
        "async def run_rollout(self, rollout): os._exit(7)",
        "rollouts", "failed", "its process ended: it exited with status 7",
    ),
    "a rollout that never ends": (
        "async def run_rollout(self, rollout): await trio.sleep(1000)",
        "rollouts", "failed", "it did not end in ",
    ),
}  # fmt: skip


IN_A_PROCESS = {
    "a rollout that keeps its cancellation", "threads", "descriptors", "children",
    "a process that ends", "a rollout that never ends",
}  # fmt: skip
"""What is not to be done to this process."""


def write(folder: Path, code: str) -> None:
    text = f"{HEAD}\nclass Env(Base):\n    {code}\n"
    (folder / "looked_at.py").write_text(text)


async def looked_over(environment: str) -> list[dict[str, Any]]:
    """What is told of an environment in this process."""
    records: list[dict[str, Any]] = []
    wanted = Wanted(environment=environment, args={}, n=2, seed=0, model="oracle", path=[])
    await Validation(wanted, Findings(records.append)).run()
    return records


def of(record: dict[str, Any], check: str) -> list[dict[str, Any]]:
    return [each for each in record["checks"] if each["check"] == check]


@pytest.mark.parametrize("mistake", [each for each in FOUND if each not in IN_A_PROCESS])
async def test_mistake_is_found(mistake: str, tmp_path: Path):
    code, check, finding, text = FOUND[mistake]
    write(tmp_path, code)
    records = await looked_over(f"{tmp_path}/looked_at.py:Env")
    found = [(each["check"], each["finding"]) for each in records if text in each.get("text", "")]
    assert found[:1] == [(check, finding)], records


@pytest.mark.parametrize("mistake", sorted(IN_A_PROCESS))
async def test_mistake_that_ends_or_outlives_its_process_is_found(mistake: str, tmp_path: Path):
    code, check, finding, text = FOUND[mistake]
    write(tmp_path, code)
    cancel_s = "0.5" if mistake == "a rollout that keeps its cancellation" else "60"
    # The first is waited for to its end, but may be too short to load anything.
    for limit_s in ("4", "60") if mistake == "a rollout that never ends" else ("60",):
        done = await run(
            tmp_path, "validate", "looked_at:Env", "-n", "2", "--cancel-s", cancel_s, "--json",
            "--timeout-s", limit_s,
        )  # fmt: skip
        found = [each for each in of(done.last, check) if text in each["text"]]
        if found:
            break
    assert found, (done.last, done.err)
    assert found[0]["finding"] == finding == "failed"
    assert (done.code, done.last["ok"]) == (1, False)
    await check_nothing_left(tmp_path)


async def test_good_environment_passes_and_what_it_prints_is_not_the_report(tmp_path: Path):
    write(tmp_path, "def setup(self): print('a print of the environment')")
    done = await run(
        tmp_path, "validate", "looked_at:Env", "-n", "3", "--strict", "--json",
        "--worker-python", sys.executable,
    )  # fmt: skip
    # A machine that stands still holds the loop, too, and is warned of.
    late = [each for each in of(done.last, "event loop") if each["finding"] == "warning"]
    assert (done.last["failed"], done.last["warnings"]) == (0, len(late)), done.last
    assert done.code == len(late)
    assert "a print of the environment" in done.err
    assert len(done.out.splitlines()) == 1
    seen = [each["check"] for each in done.last["checks"]]
    for check in ("load", "inputs", "setup", "rollouts", "event loop", "results", "cancelling"):
        assert check in seen


async def test_report_for_people_shows_the_authors_traceback_and_a_hint(tmp_path: Path):
    write(tmp_path, "async def run_rollout(self, rollout): await asyncio.sleep(0.01)")
    done = await run(tmp_path, "validate", "looked_at:Env")
    assert done.code == 1
    assert "await asyncio.sleep(0.01)" in done.out
    assert 'set backend = "asyncio"' in done.out
    assert "trio_envserve/" not in done.out


async def test_inputs_may_be_given_and_with_strict_a_warning_is_a_failure(tmp_path: Path):
    write(
        tmp_path,
        "inputs = None\n    async def run_rollout(self, rollout): return {'reward': None}",
    )
    done = await run(tmp_path, "validate", "looked_at:Env")
    assert done.code == 1
    assert "validate needs some: --inputs FILE" in done.out
    (tmp_path / "inputs.csv").write_text("x\n1\n")  # as `eval` takes them
    given = ("validate", "looked_at:Env", "--inputs", "inputs.csv")
    assert (await run(tmp_path, *given)).code == 0
    done = await run(tmp_path, *given, "--strict")
    assert done.code == 1
    assert "the result has no reward" in done.out


async def test_a_class_that_needs_no_input_is_not_told_of_a_seed(tmp_path: Path):
    """It was warned of inputs that this package makes."""
    (tmp_path / "simple.py").write_text(
        "class Simple:\n"
        "    def reset(self): return 'Say yes.'\n"
        "    def get_reward(self): return 1\n"
        "    def oracle(self): return ['yes']\n"
    )
    (found,) = [
        each for each in await looked_over(f"{tmp_path}/simple.py:Simple")
        if each.get("check") == "inputs"
    ]  # fmt: skip
    assert (found["finding"], found["text"]) == ("ok", "a rollout needs no input, and has no seed")


CLASS = """
import signal

class Scored:
    def reset(self):
        return "Say yes."
    def next_message(self, text):
        self.said = text
    def get_reward(self):
        try:  # as a library does that has a time limit by SIGALRM
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            return float(self.said == "yes")
        except Exception:
            return 0.0
    def oracle(self):
        return ["yes"]

class InMain(Scored):
    main_thread = True
"""


async def test_signals_in_a_thread_are_found_though_an_except_hides_them(tmp_path: Path):
    """A right answer scored 0.0 without a word."""
    (tmp_path / "scored.py").write_text(CLASS)
    done = await run(tmp_path, "validate", "scored.py:Scored", "--json")
    assert done.code == 1
    (found,) = of(done.last, "signals")
    assert found["finding"] == "failed"
    assert "say main_thread = True on the class" in found["text"]
    assert "scored.py:11, in get_reward" in found["text"]
    assert of(done.last, "oracle")[0]["finding"] == "failed"
    done = await run(tmp_path, "validate", "scored.py:InMain", "--json")
    assert done.code == 0, done.last
    assert of(done.last, "signals") == []
    assert "main thread, one rollout at a time" in of(done.last, "load")[0]["text"]


@pytest.mark.parametrize("named_by", ["a variable", "an endpoint"])
@pytest.mark.parametrize("words", [("validate",), ("eval", "-n", "1")], ids=["validate", "eval"])
@pytest.mark.parametrize("method", ["inputs(self, n, seed)", "__init__(self)"])
async def test_secrets_that_are_named_are_not_shown(
    method: str, words: tuple[str, ...], named_by: str, tmp_path: Path
):
    """``validate`` knew none of them."""
    environ = {"MY_KEY": "S3CR3T-S3CR3T"}
    if named_by == "a variable":
        environ["TRIO_ENVSERVE_SECRET_ENV"] = "MY_KEY"
    else:
        text = '[mine]\nurl = "http://127.0.0.1:1/v1"\nkey_env = "MY_KEY"\n'
        (tmp_path / "endpoints.toml").write_text(text)
    write(tmp_path, f"def {method}: raise ValueError(os.environ['MY_KEY'])")
    verb, *more = words
    done = await run(tmp_path, verb, "looked_at:Env", *more, **environ)
    assert done.code != 0
    assert "ValueError: $MY_KEY" in done.out + done.err
    assert "S3CR3T" not in done.out + done.err


@pytest.mark.parametrize("kind", ["ValueError", "ConfigError"])
@pytest.mark.parametrize(
    "words", [("validate",), ("eval", "-n", "1"), ("serve",)], ids=["validate", "eval", "serve"]
)
async def test_secrets_were_shown_where_the_command_itself_imports_the_environment(
    words: tuple[str, ...], kind: str, tmp_path: Path
):
    (tmp_path / "endpoints.toml").write_text(
        '[mine]\nurl = "http://127.0.0.1:1/v1"\nkey_env = "MY_KEY"\n'
    )
    (tmp_path / "looked_at.py").write_text(
        f"import os\nfrom trio_envserve import ConfigError\nraise {kind}(os.environ['MY_KEY'])\n"
    )
    verb, *more = words
    done = await run(tmp_path, verb, "looked_at:Env", *more, "--json", MY_KEY="S3CR3T-S3CR3T")
    assert done.code in (2, 3)
    assert "$MY_KEY" in done.err
    assert "S3CR3T" not in done.out + done.err


async def test_an_interrupt_ends_it_and_its_process(tmp_path: Path):
    write(tmp_path, "async def run_rollout(self, rollout): print('began'); await trio.sleep(1000)")
    async with forked(tmp_path, "validate", "looked_at:Env") as running:
        await running.said("began")
        running.signal(15)
        done = await running.wait()
    assert done.code == 143
    assert "interrupted by SIGTERM, while it looked at: rollouts" in done.err
    await check_nothing_left(tmp_path)


async def test_process_of_a_killed_command_ends(tmp_path: Path):
    """It went on with the rollout for as long as that took."""
    write(tmp_path, "async def run_rollout(self, rollout): print('began'); await trio.sleep(1000)")
    async with forked(tmp_path, "validate", "looked_at:Env") as running:
        await running.said("began")
        running.signal(9)
        await running.wait()
    await check_nothing_left(tmp_path)


async def test_eval_makes_the_inputs_under_the_workers_interpreter_too(tmp_path: Path):
    """This one has no such framework, and cannot import the environment."""
    python = tmp_path / "env" / "bin" / "python"
    new_environment(tmp_path / "env", HEAD + "\nclass Env(Base): pass\n")
    asked = ("eval", "only_there:Env", "-n", "3", "--worker-python", str(python), "--json")
    done = await run(tmp_path, *asked)
    assert done.code == 0, done.err
    assert (done.last["results"], done.last["mean_reward"]) == (3, 1.0)
    done = await run(tmp_path, "validate", "only_there:Env", "--worker-python", str(python))
    assert done.code == 0, done.out
    done = await run(tmp_path, "run-with", "only_there:Env", "--worker-python", str(python),
                     "--", "true")  # fmt: skip
    assert done.code == 0, done.err
    await check_nothing_left(tmp_path)


def new_environment(folder: Path, module: str) -> None:
    """An interpreter that sees what this one sees, and a module more."""
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages /= "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    base = Path(os.path.realpath(sys.executable))
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (packages / "these.pth").write_text("\n".join([*filter(None, sys.path), str(ROOT)]))
    (packages / "only_there.py").write_text(module)


# -- init: an environment and a test that run as they are -----------------------------


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


async def test_what_is_written_runs_as_it_is(tmp_path: Path):
    done = await run(tmp_path, "init", "my_words", "--json")
    assert done.code == 0, done.err
    assert done.last["files"] == ["my_words.py", "test_my_words.py"]
    environment = done.last["environment"]
    tested = python(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", ".")
    assert tested.returncode == 0, tested.stdout
    assert "3 passed" in tested.stdout
    done = await run(tmp_path, "validate", environment, "--strict", "--json")
    wrong = {each["check"] for each in done.last["checks"] if each["finding"] != "ok"}
    assert wrong <= {"event loop"}, done.last  # a machine that stands still holds it, too
    pytest.importorskip("ruff")
    for tool in (["check", "--isolated"], ["format", "--isolated", "--check", "--line-length=100"]):
        tidy = python(tmp_path, "ruff", *tool, "my_words.py", "test_my_words.py")
        assert tidy.returncode == 0, tidy.stdout
    shown = await run(tmp_path, "init", "other_words")
    assert shown.out.startswith("wrote other_words.py and test_other_words.py. Try:\n"), shown.err
    # The extra `cli` does not install pytest.
    assert shown.out.endswith("  python -m pytest  # needs: pip install pytest\n")
