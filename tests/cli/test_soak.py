"""The verb ``soak``: wrong usage, and interrupted in the middle."""

import signal
import sys

import pytest

from tests.cli.commands import check_nothing_left, command, run, until
from trio_envserve.lab.soak.judge import judge

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds leftovers in /proc"),
]


@pytest.mark.parametrize(
    ("number", "code", "log", "text"),
    [
        (signal.SIGINT, 130, "killer.jsonl", '"kill"'),
        (signal.SIGTERM, 143, "environment.jsonl", '"start"'),
        (signal.SIGKILL, -9, "environment.jsonl", '"start"'),
    ],
)
async def test_interrupted_it_leaves_nothing(tmp_path, number, code, log, text):
    arguments = ("soak", "--minutes", "5", "--json", "--keep", "soaking")
    async with command(tmp_path, *arguments) as running:
        path = tmp_path / "soaking" / log
        await until(lambda: path.exists() and text in path.read_text())
        running.signal(number)
        done = await running.wait()
    assert done.code == code
    done.check_no_traceback()
    await check_nothing_left(tmp_path)
    if number is not signal.SIGKILL:
        assert "interrupted in the phase" in done.err
        figures = done.last
        assert (figures["ok"], figures["finished"], figures["exit"]) == (False, False, code)
        assert figures["asked"] > 0
        assert figures["started_twice"] == figures["lost"] == 0


async def test_interrupted_before_anything_runs_it_says_so(tmp_path):
    async with command(tmp_path, "soak", "--json") as running:
        await running.said("starting: ")
        running.signal(signal.SIGINT)
        done = await running.wait()
    assert done.code == 130
    done.check_no_traceback()
    assert done.last["asked"] == 0
    await check_nothing_left(tmp_path)
    assert not list(tmp_path.glob("trio-envserve-soak-*"))


async def test_a_folder_with_logs_is_not_written_to(tmp_path):
    (tmp_path / "killer.jsonl").write_text("mine\n")
    done = await run(tmp_path, "soak", "--keep", str(tmp_path))
    assert done.code == 2
    assert "logs of an earlier run" in done.err
    assert (tmp_path / "killer.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize("minutes", ["0", "-1", "0.01", "many"])
async def test_too_little_time_is_wrong_usage(tmp_path, minutes):
    done = await run(tmp_path, "soak", "--json", "--minutes", minutes)
    assert done.code == 2
    assert done.last["exit"] == 2
    done.check_no_traceback()


async def test_a_server_that_does_not_start_is_told_with_its_words(tmp_path):
    broken = f"{sys.executable} -c \"raise SystemExit('the disk is on fire')\""
    done = await run(tmp_path, "soak", "--json", "--server-command", broken)
    assert done.code == 3
    assert "the disk is on fire" in done.err
    assert "the disk is on fire" in done.last["error"]["message"]
    done.check_no_traceback()


async def test_help_has_examples_and_exit_codes(tmp_path):
    done = await run(tmp_path, "soak", "--help")
    assert done.code == 0
    assert "Examples:" in done.out
    assert "Exit codes:" in done.out
    assert "  soak " in (await run(tmp_path, "--help")).out


def test_there_are_tables_of_whatever_figures_there_are(tmp_path):
    pytest.importorskip("click")
    from trio_envserve.cli.soak import tables

    (figures,) = tables(judge(tmp_path))
    assert "FAILED" in figures.title
    held = {"processes": 2, "descriptors": 4, "threads": 3, "rss_kib": 2048}
    samples = {"server": {"begin": held, "most": held, "end": None}}
    _, of_samples = tables({**judge(tmp_path), "samples": samples})
    assert of_samples.rows == [("server", "2 / 4 / 3 / 2", "2 / 4 / 3 / 2", "-")]
