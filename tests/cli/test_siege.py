"""The verb ``siege``: wrong usage, its list, and interrupted in the middle."""

import signal
import sys

import pytest

from tests.cli.commands import check_nothing_left, command, run
from trio_envserve.lab.siege.judge import judge

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="finds leftovers in /proc"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_interrupted_it_leaves_nothing(tmp_path, number, code):
    async with command(tmp_path, "siege", "--json", "--keep", "besieged") as running:
        await running.said("small, round 0")
        running.signal(number)
        done = await running.wait()
    assert done.code == code
    done.check_no_traceback()
    assert "interrupted in the phase" in done.err
    assert (done.last["ok"], done.last["finished"], done.last["exit"]) == (False, False, code)
    await check_nothing_left(tmp_path)


async def test_the_attacks_are_listed(tmp_path):
    done = await run(tmp_path, "siege", "--attacks")
    assert done.code == 0
    for name in ("empty-frames", "server-silence", "held-client"):
        assert name in done.out


@pytest.mark.parametrize(
    "arguments", [("--seconds", "1"), ("--only", "nonsense"), ("--minutes", "0")]
)
async def test_wrong_usage(tmp_path, arguments):
    done = await run(tmp_path, "siege", "--json", *arguments)
    assert done.code == 2
    assert done.last["exit"] == 2
    done.check_no_traceback()


async def test_a_folder_with_logs_is_not_written_to(tmp_path):
    (tmp_path / "events.jsonl").write_text("mine\n")
    done = await run(tmp_path, "siege", "--keep", str(tmp_path))
    assert done.code == 2
    assert "logs of an earlier run" in done.err
    assert (tmp_path / "events.jsonl").read_text() == "mine\n"


def test_there_are_tables_of_whatever_figures_there_are(tmp_path):
    pytest.importorskip("click")
    from trio_envserve.cli.siege import tables

    (figures,) = tables(judge(tmp_path))
    assert "FAILED" in figures.title
