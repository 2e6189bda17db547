"""An evaluation with a name, and everything that works for it, is killed in the middle and
started again.  What ran is told by the log that the environment itself writes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cli.commands import command, lines, processes_in, until
from tests.connections import held_port
from trio_envserve.envs.recorder import read_run_log

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds what is to be killed in /proc"),
]

NUMBER = 500

SLOWLY = """
import trio
from trio_envserve.envs.recorder import RunLog
from trio_envserve.envs.witness import Witness

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
                await stack.enter_async_context(command(self.folder, *self.serve))
            asking = await stack.enter_async_context(command(self.folder, *self.ask, *options))
            if until_started is None:
                return await asking.wait()
            await until(lambda: len(starts(self.folder)) >= until_started)
            await kill_everything(self.folder)
            return await asking.wait()


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
    assert len(began) == NUMBER - len(never) + len(again)
    if rerun:
        assert lost == []
        assert set(again) == {"dead"}
    else:
        assert again == []
        assert {row["error"]["class"] for row in lost} == {"WorkerLost"}
    assert done.code == (4 if lost else 0)
