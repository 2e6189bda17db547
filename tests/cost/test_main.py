"""``python -m tests.cost``: small runs, wrong usage, and interrupted in the middle."""

import json
import signal
import sys

import pytest

from tests.cli.commands import check_nothing_left, command

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds leftovers in /proc"),
]

SMALL = ("--quick", "--no-peer", "--case", "inflight-1")


async def run(folder, *arguments, **environ):
    async with command(folder, *arguments, module="tests.cost", **environ) as running:
        return await running.wait()


async def test_a_quick_run_writes_record_chart_and_tables(tmp_path):
    outs = ("--out", "record.json", "--out", "chart.svg", "--out", "tables.md")
    done = await run(tmp_path, *SMALL, *outs)
    assert done.code == 0, done.err
    done.check_no_traceback()
    assert "requests/s" in done.out
    assert "0 started twice, 0 lost" in done.out
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["judged"]["ok"]
    assert [case["name"] for case in record["cases"]] == ["inflight-1"]
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")
    assert "1 in flight" in (tmp_path / "tables.md").read_text()
    await check_nothing_left(tmp_path)

    again = await run(tmp_path, "--from", "record.json", "--out", "again.md")
    assert again.code == 0, again.err
    assert (tmp_path / "again.md").read_text() == (tmp_path / "tables.md").read_text()


async def test_the_list_of_cases(tmp_path):
    said = (await run(tmp_path, "--list")).out
    assert "inflight-1000" in said
    assert "peer-0.4" in said


async def test_a_request_is_counted(tmp_path):
    done = await run(tmp_path, "--counted", PATH="")  # so without valgrind
    assert done.code == 0, done.err
    assert "router: bytecodes" in done.out
    assert "valgrind is not installed" in done.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--case", "nonsense"), "no case matches nonsense"),
        (("--out", "bench.png"), "a name that ends in"),
        (("--peer-python", "peer-0.2=python"), "only peer-0.4 and peer-0.3"),
        (("--rounds", "few"), "--rounds"),
    ],
)
async def test_wrong_usage(tmp_path, arguments, text):
    done = await run(tmp_path, *arguments)
    assert done.code == 2
    assert text in done.err
    done.check_no_traceback()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
async def test_interrupted_it_leaves_nothing(tmp_path, number, code):
    arguments = ("--rounds", "1000", "--no-peer", "--case", "inflight-64", "--out", "so-far.json")
    async with command(tmp_path, *arguments, module="tests.cost") as running:
        await running.said("inflight-64: ")
        running.signal(number)
        done = await running.wait()
    assert done.code == code
    done.check_no_traceback()
    await check_nothing_left(tmp_path)
    if code == 130:
        assert "interrupted" in done.err
        assert json.loads((tmp_path / "so-far.json").read_text())["judged"]["ok"]
