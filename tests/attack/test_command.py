"""The command: wrong usage, its list, and interrupted in the middle."""

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.commands import Finished, check_nothing_left, command

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="finds leftovers in /proc"),
]


async def run(folder: Path, *arguments: str) -> Finished:
    """Run it to its end."""
    async with command(folder, *arguments, module="tests.attack") as running:
        return await running.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_interrupted_it_leaves_nothing(tmp_path, number, code):
    async with command(tmp_path, "--keep", "besieged", module="tests.attack") as running:
        await running.said("small, round 0")
        running.signal(number)
        done = await running.wait()
    assert done.code == code
    done.check_no_traceback()
    assert "interrupted in the phase" in done.err
    assert (done.last["ok"], done.last["finished"], done.last["exit"]) == (False, False, code)
    await check_nothing_left(tmp_path)


async def test_the_attacks_are_listed(tmp_path):
    done = await run(tmp_path, "--attacks")
    assert done.code == 0
    for name in ("empty-frames", "server-silence", "held-client"):
        assert name in done.out


@pytest.mark.parametrize(
    "arguments", [("--seconds", "1"), ("--only", "nonsense"), ("--minutes", "0")]
)
async def test_wrong_usage(tmp_path, arguments):
    done = await run(tmp_path, *arguments)
    assert done.code == 2
    done.check_no_traceback()


async def test_a_folder_with_logs_is_not_written_to(tmp_path):
    (tmp_path / "events.jsonl").write_text("mine\n")
    done = await run(tmp_path, "--keep", str(tmp_path))
    assert done.code == 2
    assert "logs of an earlier run" in done.err
    assert (tmp_path / "events.jsonl").read_text() == "mine\n"
