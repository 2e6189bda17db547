"""The verbs ``eval``, ``show`` and ``compare``, run as people run them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import (
    HANG_S,
    LIMITED,
    ROOT,
    Running,
    forked,
    lines,
    processes_in,
    run,
    served,
    until,
)
from tests.cli.test_mistakes import parsed
from tests.connections import held_port
from trio_envserve.cli.common import LAST_RESORT_S
from trio_envserve.cli.evaluate import Eval
from trio_envserve.cli.interrupts import TOGETHER_S
from trio_envserve.envs.recorder import read_run_log

pytestmark = pytest.mark.real

HERE = ("--workers", "0", "--json")
"""The rollouts run in the command's own process: nothing has to be started."""

ECHO = """
import pathlib
class Echo:
    def inputs(self, n, seed): return [seed + i for i in range(50)]
    async def run_rollout(self, rollout):
        with open("ran", "a") as log: log.write(f"{rollout.input}\\n")
        if rollout.input == pathlib.Path("fails").read_text(): raise KeyError(rollout.input)
        return {"reward": 0.5, "input": rollout.input, "sampling": dict(rollout.sampling_args)}
"""


def echo(folder: Path) -> None:
    (folder / "echo.py").write_text(ECHO)
    (folder / "fails").write_text("")


async def test_inputs_repeats_slices_seeds_and_sampling_are_as_asked(tmp_path: Path):
    echo(tmp_path)
    few = await run(tmp_path, "eval", "echo:Echo", "-n", "60", *HERE)
    assert (few.code, few.last["results"]) == (0, 50)
    assert "there are no more" in few.err
    done = await run(
        tmp_path, "eval", "echo:Echo", "--repeat", "3", "--slice", "10:12", "--seed", "100",
        "--sampling", "temperature=0.7", "--sampling", "stop=[\"a\"]", "--sampling", "name=x",
        "--output", "r.jsonl", *HERE,
    )  # fmt: skip
    assert done.code == 0, done.err
    written = lines(tmp_path / "r.jsonl")
    names = sorted((one["index"], one["repeat"]) for one in written)
    assert names == [(i, r) for i in (10, 11) for r in range(3)]
    assert {(one["index"], one["input"]) for one in written} == {(10, 110), (11, 111)}
    assert written[0]["value"]["sampling"] == {"temperature": 0.7, "stop": ["a"], "name": "x"}
    assert list(done.last["reward"]["pass_at"]) == ["1", "2", "3"]
    assert done.last["reward"]["inputs"] == 2


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_same_command_goes_on_and_another_evaluation_does_not(tmp_path: Path, kind: str):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    echo(tmp_path)
    file = f"r.{kind}"
    ask = ("eval", "echo:Echo", "--output", file, *HERE)
    first = await run(tmp_path, *ask, "-n", "5")
    assert first.code == 0, first.err
    assert "inputs(5, 0) gave 50 inputs; the first 5 are used" in first.err
    done = await run(tmp_path, *ask, "-n", "8")
    assert (done.code, done.last["results"], done.last["resumed"]) == (0, 8, 5), done.err
    assert sorted((tmp_path / "ran").read_text().split()) == [str(n) for n in range(8)]
    again = await run(tmp_path, "eval", "echo:Echo", "--output", file, "-n", "8", *HERE)
    assert (again.last["results"], again.last["resumed"]) == (8, 8)
    assert [name for name in os.listdir(tmp_path) if name.startswith("r.")] == [file]
    before = (tmp_path / file).read_bytes()
    for other, why in (
        (("--sampling", "temperature=1"), "results of another evaluation"),
        (("--seed", "1"), "another input number 0"),
    ):
        refused = await run(tmp_path, *ask, "-n", "8", *other)
        assert (refused.code, why in refused.err) == (2, True), refused.err
    assert (tmp_path / file).read_bytes() == before
    shown = await run(tmp_path, "show", file, "--input", "6", "--number", "1", "--json")
    assert shown.last["rollout"]["value"]["input"] == 6
    compared = await run(tmp_path, "compare", file, file, "--json")
    assert (compared.last["rewards"]["inputs"], compared.last["rewards"]["mean"]) == (8, 0.0)


def test_results_under_a_grace_go_with_no_other_limits():
    """A late rollout gives what it has by then, and was counted beside whole ones."""

    def run_of(words: str) -> dict[str, Any]:
        asked: Eval = parsed("eval", ["echo:Echo", *words.split()])
        return asked.run()

    late = run_of("--timeout-s 100 --grace-s 1")
    assert late == run_of("--timeout-s 100 --grace-s 1 --max-retries 1")
    for other in ("", "--timeout-s 90 --grace-s 1", "--timeout-s 100 --grace-s 2",
                  "--timeout-s 100 --grace-s 1 --limit execution_s=50"):  # fmt: skip
        assert run_of(other) != late
    assert run_of("") == run_of("--timeout-s 90"), "it may go up where rollouts ended in errors"


RANKS = """
class Ranks:
    def inputs(self, n, seed): return [{"start": seed + i} for i in range(n)]
    async def run_rollout(self, rollout): return {"reward": -1.0}
    async def run_group(self, rollouts):
        start = rollouts[0].input["start"]
        with open("groups", "a") as log: log.write(f"{start} {len(rollouts)}\\n")
        if start == 9: raise ValueError("this group is not scored")
        return [{"reward": each.member / len(rollouts)} for each in rollouts]
"""


async def test_repeats_of_an_input_are_a_group_that_its_environment_scores(tmp_path: Path):
    (tmp_path / "ranks.py").write_text(RANKS)
    ask = ("eval", "ranks:Ranks", "--seed", "7", "--repeat", "4", "--output", "r.jsonl", *HERE)
    done = await run(tmp_path, *ask, "-n", "2", "--group")
    assert (done.code, done.last["results"], done.last["mean_reward"]) == (0, 8, 0.375), done.err
    alone = await run(tmp_path, *ask, "-n", "2")
    assert (alone.code, "results of another evaluation" in alone.err) == (2, True)
    # A group of which a member is missing runs whole; one that fails is an error of each member.
    kept = (tmp_path / "r.jsonl").read_text().splitlines(keepends=True)
    of_first = [line for line in kept if json.loads(line)["index"] == 0]
    (tmp_path / "r.jsonl").write_text("".join([*of_first, *(set(kept) - {*of_first})][:5]))
    again = await run(tmp_path, *ask, "-n", "3", "--group")
    groups = (tmp_path / "groups").read_text().splitlines()
    assert sorted(groups) == ["7 4", "8 4", "8 4", "9 4"]
    assert (again.code, again.last["results"], again.last["errors"]) == (4, 8, 4), again.err
    assert (again.last["resumed"], again.last["mean_reward"]) == (4, 0.375)
    assert "this group is not scored" in again.err


FAILS = """
import pathlib
class Fails:
    def inputs(self, n, seed): return list(range(n))
    async def run_rollout(self, rollout):
        if rollout.input in (1, 2) and not pathlib.Path("mended").exists():
            raise ValueError("\\x1b[2J\\x1b]0;owned\\x07 [bold] of " + str(rollout.input))
        return {"reward": 1}
"""


async def test_errors_reach_no_terminal_as_they_are_and_are_run_again_when_asked(tmp_path: Path):
    (tmp_path / "fails.py").write_text(FAILS)
    ask = ("eval", "fails:Fails", "-n", "4", "--workers", "0", "--output", "r.jsonl")
    first = await run(tmp_path, *ask)
    shown = await run(tmp_path, "show", "r.jsonl", "--errors", "--number", "1")
    listed = await run(tmp_path, "show", "r.jsonl", "--errors")
    assert (first.code, shown.code, listed.code) == (4, 0, 0)
    for said in (first, shown, listed):
        assert "\x1b" not in said.out + said.err
        assert "\x07" not in said.out + said.err
        assert "\\x1b[2J" in said.out
    assert "ValueError" in shown.out
    assert "fails.py" in shown.out
    (tmp_path / "mended").touch()
    kept = await run(tmp_path, *ask, "--json")
    assert (kept.code, kept.last["errors"]) == (4, 2)
    again = await run(tmp_path, *ask, "--retry-errors", "--json")
    assert (again.code, again.last["errors"], again.last["results"]) == (0, 0, 4)
    shown = await run(tmp_path, "show", "r.jsonl", "--json")
    assert shown.last["count"] == 4
    assert {one["error"] for one in shown.last["rollouts"]} == {None}


async def test_evaluation_stops_at_its_limit_of_errors_and_tells_of_odd_rewards(tmp_path: Path):
    (tmp_path / "odd.py").write_text(
        "REWARDS = {'high': 'high', 'nan': float('nan'), 'inf': float('inf')}\n"
        "def odd(rollout):\n"
        "    if rollout.input['q'] == 'x': raise ValueError('no')\n"
        "    return {'reward': REWARDS[rollout.input['q']]}\n"
    )
    (tmp_path / "inputs.csv").write_text("q\nhigh\nnan\ninf\n" + "x\n" * 500)
    ask = ("--inputs", "inputs.csv", "--limit-errors", "3", "--in-flight", "1")
    done = await run(tmp_path, "eval", "odd:odd", *ask, *HERE)
    assert (done.code, done.last["gave_up"], done.last["mean_reward"]) == (4, True, None)
    assert 3 <= done.last["errors"] < 200
    assert "stopped by --limit-errors" in done.err
    for odd in ("are no numbers (str)", "are nan", "are infinite"):
        assert f"1 rewards {odd}" in done.err


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("{'no_reward': 'get_reward() returned Score()'}", "get_reward() returned Score()"),
        ("'said'", 'is no mapping such as {"reward": 1.0}, but a str'),
    ],
)
async def test_why_no_result_has_a_reward_is_said(tmp_path: Path, result: str, why: str):
    (tmp_path / "none.py").write_text(f"def run(rollout): return {result}\n")
    (tmp_path / "inputs.jsonl").write_text("1\n2\n")
    done = await run(tmp_path, "eval", "none:run", "--inputs", "inputs.jsonl", *HERE)
    assert done.code == 0
    assert why in next(each for each in done.err.splitlines() if "no result has" in each)


async def test_one_rate_in_all_that_is_said(tmp_path: Path):
    """It was 2,889 in one place of a report, and 339 in another."""
    echo(tmp_path)
    ask = ("eval", "echo:Echo", "-n", "40", "--workers", "0", "--output", "r.jsonl")
    done = await run(tmp_path, *ask)
    # A slow machine may be told of all 40 before the end, too.
    said = re.findall(r"40/40 done, 0 errors, mean reward 0.5, ([0-9.]+)/s", done.err)
    assert re.findall(r"rollouts per second +([0-9.]+)", done.out) == said[-1:]


async def test_a_server_that_runs_another_environment_is_not_asked(tmp_path: Path):
    """It ran the inputs of one environment in another, and said so in a line among others."""
    echo(tmp_path)
    (tmp_path / "inputs.jsonl").write_text('{"index": 0}\n{"index": 1}\n')
    async with served(tmp_path, "arithmetic", "--workers", "0") as (_, address):
        done = await run(tmp_path, "eval", "echo:Echo", "-n", "3", "--address", address)
        assert done.code == 3
        assert "runs arithmetic, not echo:Echo (Echo): nothing was asked for" in done.err
        # Who brings inputs need not have the environment; the summary has the server's.
        inputs = ("--inputs", "inputs.jsonl", "--address", address)
        done = await run(tmp_path, "eval", "echo:Echo", *inputs)
        assert done.code == 0
        assert "runs arithmetic, and gets the inputs of the file" in done.err
        assert done.out.startswith("arithmetic, model oracle")


async def test_a_full_disk_while_results_are_written_still_gives_the_summary(tmp_path: Path):
    (tmp_path / "limited.py").write_text(LIMITED)
    ask = ("eval", "arithmetic", "-n", "500", "--in-flight", "20", "--output", "r.jsonl", *HERE)
    async with forked(tmp_path, *ask, module="limited") as client:
        done = await client.wait()
    done.check_no_traceback()
    assert done.code == 5, done.err
    assert done.last["exit"] == 5
    assert "r.jsonl: File too large" in done.last["write_error"]
    assert done.last["mean_reward"] == 1.0
    written = lines(tmp_path / "r.jsonl")
    assert done.last["results"] == len(written) + done.last["unwritten"]
    assert (tmp_path / "r.jsonl").read_bytes().endswith(b"\n")
    mended = await run(tmp_path, *ask)
    assert (mended.code, mended.last["results"]) == (0, 500)
    assert mended.last["resumed"] == len(written)


async def test_a_server_that_does_not_close_takes_no_summary_away(tmp_path: Path):
    (tmp_path / "deaf.py").write_text(
        "import trio\n"
        "class Deaf:\n"
        "    def inputs(self, n, seed): return [0, 1]\n"
        "    async def run_rollout(self, rollout):\n"
        "        if rollout.input: return {'reward': 0.25}\n"
        "        open('started', 'w').close()\n"
        "        with trio.CancelScope(shield=True):\n"
        "            await trio.sleep_forever()\n"
    )
    output = tmp_path / "r.jsonl"
    limits = ("cancel_grace_s=0.1", "stop_s=0.2", "reap_s=0.2")
    given = [word for limit in limits for word in ("--limit", limit)]
    ask = ("eval", "deaf:Deaf", "-n", "2", "--output", str(output), *HERE, *given)
    async with forked(tmp_path, *ask) as client:
        await until(lambda: output.exists() and output.read_text().count("\n") == 1)
        await until(lambda: (tmp_path / "started").exists())
        client.signal(signal.SIGINT)
        done = await client.wait()
    assert (done.last["results"], done.last["mean_reward"]) == (1, 0.25), done.err
    assert done.last["interrupted"]
    assert done.code == 130
    assert "has not ended in 0.2 s" in done.err


class Screen:
    """What is shown on a pseudo terminal."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self.shown = ""

    async def sees(self, text: str, *, further: bool = False) -> None:
        """Read until the text is there, or is there once more."""
        count = self.shown.count(text) if further else 0
        while self.shown.count(text) <= count:
            await trio.lowlevel.wait_readable(self.fd)
            self.shown += os.read(self.fd, 65536).decode(errors="replace")

    async def press(self, key: str, text: str) -> None:
        """Press a key until the text is there: one that comes before the program waits
        for it is lost."""
        self.shown = ""
        while text not in self.shown:
            os.write(self.fd, key.encode())
            with trio.move_on_after(1):
                await self.sees(text)


@asynccontextmanager
async def on_a_terminal(folder: Path, *arguments: str) -> AsyncIterator[tuple[Running, Screen]]:
    """A command whose standard streams are a terminal, which is not its controlling one."""
    leader, follower = pty.openpty()
    try:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
        of_terminal = {"TERM": "xterm", "COLUMNS": "100", "LINES": "60"}
        async with forked(folder, *arguments, streams=streams, **of_terminal) as running:
            yield running, Screen(leader)
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pty.fork, of threads
async def test_ctrl_c_pressed_twice_in_the_pager_left_it_alone_with_the_terminal(tmp_path: Path):
    echo(tmp_path)
    await run(tmp_path, "eval", "echo:Echo", "-n", "9", "--output", "r.jsonl", *HERE)
    pid, fd = pty.fork()  # its controlling terminal, from which Ctrl-C comes
    if not pid:
        os.chdir(tmp_path)
        program = [sys.executable, "-m", "trio_envserve", "show", "r.jsonl"]
        os.execve(program[0], program, {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"})
    terminal = Screen(fd)
    with trio.fail_after(HANG_S):
        await terminal.sees("input 0, repeat 0 (1 of 9)")
        for _ in range(3):
            os.write(fd, b"\x03")
            await trio.sleep(2 * TOGETHER_S)
        await trio.sleep(LAST_RESORT_S)
        await terminal.press("G", "input 8, repeat 0 (9 of 9)")
        os.write(fd, b"q")
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            await terminal.sees("nothing has this text")
        _, status = await trio.to_thread.run_sync(os.waitpid, pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "Traceback" not in terminal.shown


async def test_a_terminal_gets_a_live_view(tmp_path: Path):
    ask = ("-n", "30", "--in-flight", "5", "--arg", "duration_s=0.2", "--workers", "1")
    async with on_a_terminal(tmp_path, "eval", "arithmetic", *ask) as (running, terminal):
        for text in ("arithmetic, model oracle", " of 30", "w0-1", "mean 1 of", "rollouts per sec"):
            await terminal.sees(text)
        assert (await running.wait()).code == 0


async def test_a_watch_on_a_terminal_went_on_printing_tables_one_below_the_other(tmp_path: Path):
    title = "workers ready"
    async with (
        served(tmp_path, "arithmetic", "--workers", "0") as (_, address),
        on_a_terminal(tmp_path, "top", address, "--every-s", "0.1") as (_, terminal),
    ):
        while terminal.shown.count(title) < 4:
            await terminal.sees(title, further=True)
    for each in terminal.shown.split(title)[1:4]:
        assert each.count("\n") > 10, each  # a whole picture
        assert "\x1b[H" in each, each  # the next one is written over it


# -- everything is killed in the middle, and started again ----------------------------


NUMBER = 500

SLOWLY = """
import trio
from trio_envserve.envs.recorder import RunLog
from trio_envserve.lab.witness import Witness

class Slowly:
    def __init__(self):
        self.log, self.witness = RunLog("ran.jsonl"), Witness("lives")
    def inputs(self, n, seed): return list(range(n))
    async def run_rollout(self, rollout):
        before = self.witness.begin(str(rollout.input))
        with self.log.record(rollout, input=rollout.input, before=before):
            await trio.sleep(0.1)
        return {"reward": float(rollout.input)}
"""
IN_FLIGHT = 40


async def kill_everything(folder: Path) -> None:
    """What works in the folder, and what that has started meanwhile."""
    while found := processes_in(folder):
        for pid in (int(one.partition(":")[0]) for one in found):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        await until(lambda: processes_in(folder) != found)


def starts(folder: Path) -> list[tuple[int, str]]:
    found = read_run_log(folder / "ran.jsonl")
    return [(one["input"], one["before"]) for one in found if one["event"] == "start"]


class Evaluations:
    """The same command again and again, with a server of its own or beside one."""

    def __init__(self, folder: Path, number: int, options: Sequence[str], port: int | None) -> None:
        self.folder = folder
        self.ask = ["eval", "slowly:Slowly", "-n", str(number), "--run", "r1", *options,
                    "--in-flight", str(IN_FLIGHT), "--json"]  # fmt: skip
        self.serve = None
        if port is None:
            self.ask += ["--journal", "runs", "--workers", "2"]
        else:
            bind = f"tcp://127.0.0.1:{port}"
            self.serve = ["serve", "slowly:Slowly", "--workers", "2", "--journal", "runs",
                          "--bind", bind]  # fmt: skip
            self.ask += ["--address", bind]

    async def go_on(self, *options: str, until_started: int | None = None):
        """To its end, or until so many rollouts were started: then all of it is killed."""
        async with AsyncExitStack() as stack:
            if self.serve is not None:
                await stack.enter_async_context(forked(self.folder, *self.serve))
            asking = await stack.enter_async_context(forked(self.folder, *self.ask, *options))
            if until_started is None:
                return await asking.wait()
            await until(lambda: len(starts(self.folder)) >= until_started)
            await kill_everything(self.folder)
            return await asking.wait()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds what is to be killed in /proc")
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("rerun", [False, True])
async def test_an_evaluation_that_is_killed_goes_on_and_starts_nothing_twice(
    tmp_path: Path, rerun: bool, elsewhere: bool
):
    (tmp_path / "slowly.py").write_text(SLOWLY)
    consent = "--rerun" if rerun else "--no-rerun"
    to_file = ("--output", "r.jsonl")
    with held_port() as port:
        runs = Evaluations(tmp_path, NUMBER, [consent], port if elsewhere else None)
        for part in (2, 1.5):
            killed = await runs.go_on(*to_file, until_started=int(NUMBER / part))
            assert killed.code == -signal.SIGKILL
        done = await runs.go_on(*to_file)
        rows = lines(tmp_path / "r.jsonl")
        began = starts(tmp_path)
        # Asked again without its file, it is told the same, and nothing is started.
        told = await runs.go_on()
    assert sorted(row["index"] for row in rows) == list(range(NUMBER)), done.err
    assert starts(tmp_path) == began
    again = [before for _, before in began if before != "none"]
    lost = [row for row in rows if row["error"]]
    assert all(row["reward"] == row["index"] for row in rows if not row["error"])
    assert (told.last["results"], told.last["errors"]) == (NUMBER - len(lost), len(lost))
    # What was dispatched counts as started, whether or not its worker lived to begin it.
    never = set(range(NUMBER)) - {index for index, _ in began}
    assert never <= {row["index"] for row in lost}
    # A kill between both lines of a start leaves the witness's alone: the next start is no first.
    first = [index for index, before in began if before == "none"]
    assert len(first) == len(set(first))
    if rerun:
        assert lost == []
        assert set(again) == {"dead"}
    else:
        assert again == []
        assert {row["error"]["class"] for row in lost} == {"WorkerLost"}
    assert done.code == (4 if lost else 0)


# -- an evaluation with a name: joined or taken, and not run again --------------------


JOURNALED = ("--journal", "runs", "--workers", "0", "--json")


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().split()


async def test_a_run_is_gone_on_with_by_what_the_server_has(tmp_path: Path):
    echo(tmp_path)
    ask = ("eval", "echo:Echo", "--run", "r1", *JOURNALED)
    assert (await run(tmp_path, *ask, "-n", "3")).code == 0
    more = await run(tmp_path, *ask, "-n", "5", "--repeat", "2")
    assert (more.code, more.last["results"], more.last["resumed"]) == (0, 10, 0), more.err
    assert more.last["run_name"] == "r1"
    assert sorted(ran(tmp_path)) == sorted([str(n) for n in range(5)] * 2)
    listed = await run(tmp_path, "journal", "list", "runs", "--json")
    keys = {row["key"] for row in listed.last["keys"]}
    assert keys == {f"r1/{index}/{repeat}" for index in range(5) for repeat in range(2)}


async def test_a_file_and_a_run_go_on_together(tmp_path: Path):
    echo(tmp_path)
    ask = ("eval", "echo:Echo", "-n", "6", "--run", "r1", "--output", "r.jsonl", *JOURNALED)
    assert (await run(tmp_path, *ask)).code == 0
    whole = (tmp_path / "r.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "r.jsonl").write_text("".join(whole[:2]) + whole[2][:20])
    done = await run(tmp_path, *ask)
    assert (done.code, done.last["results"], done.last["resumed"]) == (0, 6, 2), done.err
    assert sorted(one["index"] for one in lines(tmp_path / "r.jsonl")) == list(range(6))
    assert len(ran(tmp_path)) == 6


async def test_another_evaluation_under_the_name_is_refused_in_words(tmp_path: Path):
    echo(tmp_path)
    ask = ("eval", "echo:Echo", "-n", "3", "--run", "r1", *JOURNALED)
    assert (await run(tmp_path, *ask)).code == 0
    for other in ("--rerun",), ("--seed", "1"):
        done = await run(tmp_path, *ask, *other)
        assert done.code == 2
        assert "under the name 'r1' the server knows another evaluation" in done.err
        done.check_no_traceback()
    assert len(ran(tmp_path)) == 3


async def test_an_error_is_told_again_and_run_again_only_if_that_is_asked_for(tmp_path: Path):
    echo(tmp_path)
    (tmp_path / "fails").write_text("1")
    text = ECHO.replace("read_text():", "read_text() or str(rollout.input) == "
                        "pathlib.Path('fails').read_text():")  # fmt: skip
    (tmp_path / "echo.py").write_text(text)
    ask = ("eval", "echo:Echo", "-n", "3", "--run", "r1", "--output", "r.jsonl", *JOURNALED)
    assert (await run(tmp_path, *ask)).last["errors"] == 1
    (tmp_path / "fails").write_text("")
    (tmp_path / "r.jsonl").rename(tmp_path / "elsewhere")
    told = await run(tmp_path, *ask)
    assert (told.code, told.last["errors"]) == (4, 1)
    assert len(ran(tmp_path)) == 3
    again = await run(tmp_path, *ask, "--retry-errors")
    assert (again.code, again.last["results"], again.last["resumed"]) == (0, 3, 2), again.err
    assert sorted(ran(tmp_path)) == ["0", "1", "1", "2"]
    listed = await run(tmp_path, "journal", "list", "runs", "r1/1", "--json")
    assert [row["key"] for row in listed.last["keys"]] == ["r1/1/0", "r1/1/0/again-1"]


@pytest.mark.parametrize("output", ["r.jsonl", "r.parquet"])
async def test_error_in_a_table_was_told_for_ever_after_it_was_told_twice(
    tmp_path: Path, output: str
):
    """The table has the last result of a rollout only: one key was made for all further tries."""
    if output.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    echo(tmp_path)
    (tmp_path / "fails").write_text("1")
    text = ECHO.replace("read_text():", "read_text() or str(rollout.input) == "
                        "pathlib.Path('fails').read_text():")  # fmt: skip
    (tmp_path / "echo.py").write_text(text)
    ask = ("eval", "echo:Echo", "-n", "3", "--run", "r1", "--output", output, *JOURNALED)
    for number in range(3):
        done = await run(tmp_path, *ask, "--retry-errors")
        assert (done.code, done.last["errors"]) == (4, 1), done.err
        assert ran(tmp_path).count("1") == number + 1
    (tmp_path / "fails").write_text("")
    done = await run(tmp_path, *ask, "--retry-errors")
    assert (done.code, done.last["errors"]) == (0, 0), done.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "the server has no journal: when it ends"),
        (("--journal", "runs", "--limit", "generations=8", "--limit", "retention_s=1"),
         "the server keeps 8 keys at most, and this run has 9"),
    ],
)  # fmt: skip
async def test_server_that_keeps_less_than_a_run_needs_is_told_of(
    tmp_path: Path, options: tuple[str, ...], why: str
):
    echo(tmp_path)
    async with served(tmp_path, "echo:Echo", "--workers", "0", *options) as (_, address):
        ask = ("eval", "echo:Echo", "-n", "9", "--run", "r1", "--address", address, "--json")
        done = await run(tmp_path, *ask)
        assert (done.code, done.last["results"]) == (0, 9), done.err
        assert why in done.err


GROUPS = """
class Groups:
    def inputs(self, n, seed): return list(range(n))
    async def run_rollout(self, rollout): return {"reward": -1.0}
    async def run_group(self, rollouts):
        with open("ran", "a") as log: log.write(f"{rollouts[0].input}\\n")
        return [{"reward": 0.5} for each in rollouts]
"""


async def test_a_group_has_one_key(tmp_path: Path):
    (tmp_path / "groups.py").write_text(GROUPS)
    ask = ("eval", "groups:Groups", "-n", "2", "--repeat", "3", "--group", "--run", "g", *JOURNALED)
    for _ in range(2):
        done = await run(tmp_path, *ask)
        assert (done.code, done.last["results"]) == (0, 6), done.err
    assert sorted(ran(tmp_path)) == ["0", "1"]
    listed = await run(tmp_path, "journal", "list", "runs", "--json")
    assert {row["key"] for row in listed.last["keys"]} == {"g/0/group", "g/1/group"}
