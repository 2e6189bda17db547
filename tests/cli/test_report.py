"""The verb ``report``, run as people run it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import trio

from tests.cli.commands import LIMITED, forked, run
from tests.evals.report.results import failure, result, written

pytestmark = pytest.mark.real


def names(folder: Path) -> list[str]:
    """What is in a folder, less what commands have said there, and Python has compiled."""
    left_out = ("err-*", "__pycache__")
    return sorted(
        each.name for each in folder.iterdir() if not any(each.match(name) for name in left_out)
    )


async def test_what_eval_wrote_becomes_a_page_beside_it(tmp_path: Path):
    ask = ("-n", "5", "--repeat", "2", "--workers", "0", "--output", "r.jsonl")
    assert (await run(tmp_path, "eval", "arithmetic", *ask)).code == 0
    done = await run(tmp_path, "report", "r.jsonl")
    assert (done.code, done.err) == (0, ""), done.err
    assert done.out.startswith("r.html: 10 rollouts, 0.")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count('<script type="application/json" id="d') == 11
    again = await run(tmp_path, "report", "r.jsonl", "--json")
    assert again.last == {
        "file": "r.jsonl", "output": "r.html", "rollouts": 10, "bytes": len(page.encode()),
        "cut_at": 20_000, "cut": 0, "line_left_out": False, "exit": 0,
    }  # fmt: skip


async def test_the_differences_to_another_file_are_in_the_page(tmp_path: Path):
    written(tmp_path / "before.jsonl", [result(n, 0.25) for n in range(4)])
    written(tmp_path / "after.jsonl", [result(n, 0.75) for n in range(4)])
    ask = ("report", "before.jsonl", "--compare", "after.jsonl", "-o", "page.html")
    done = await run(tmp_path, *ask)
    assert done.code == 0, done.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"rewards":{"mean":0.5,' in page
    assert '"file":"after.jsonl"' in page


async def test_text_is_cut_unless_the_whole_is_asked_for_and_half_a_line_is_left_out(
    tmp_path: Path,
):
    rows = [result(0), result(1, input="x" * 50_000)]
    written(tmp_path / "r.jsonl", rows, rest='{"index": 1, "val')
    done = await run(tmp_path, "report", "r.jsonl", "--json")
    assert (done.code, done.last["cut"], done.last["line_left_out"]) == (0, 1, True)
    assert "1 rollouts are cut at 20,000 characters; --whole has all of them" in done.err
    assert "r.jsonl: the last line is not whole, and is left out" in done.err
    assert "x" * 20_001 not in (tmp_path / "r.html").read_text()
    whole = await run(tmp_path, "report", "r.jsonl", "--whole", "--json")
    assert (whole.last["cut"], whole.last["cut_at"]) == (0, None)
    assert "x" * 50_000 in (tmp_path / "r.html").read_text()


async def test_results_of_two_evaluations_in_one_file_were_taken_for_those_of_one(tmp_path: Path):
    """And half a line was told by one verb of three."""
    one = written(tmp_path / "one.jsonl", [result(n, 0.0, run="a") for n in range(2)])
    rows = [result(n, 0.0, run="a") for n in range(3)] + [result(n, 1.0, run="b") for n in (0, 1)]
    written(tmp_path / "two.jsonl", rows, rest='{"index": 1, "val')
    note = "it has results of 2 evaluations (of other models, arguments or options)"
    for words in (
        ("show", "two.jsonl", "--list"), ("compare", one, "two.jsonl"), ("report", "two.jsonl"),
        ("report", one, "--compare", "two.jsonl"),
    ):  # fmt: skip
        done = await run(tmp_path, *words)
        assert done.code == 0, done.err
        assert f"two.jsonl: {note}" in done.err
        assert "two.jsonl: the last line is not whole, and is left out" in done.err
        assert "one.jsonl: " not in done.err
    assert note in (tmp_path / "two.html").read_text()


async def test_inputs_that_failed_in_one_file_were_left_out_of_a_comparison_without_a_word(
    tmp_path: Path,
):
    written(tmp_path / "a.jsonl", [result(n, float(n > 2)) for n in range(6)])
    rows = [result(n, 1.0) if n > 2 else result(n, error=failure()) for n in range(5)]
    written(tmp_path / "b.jsonl", rows)
    done = await run(tmp_path, "compare", "a.jsonl", "b.jsonl", "--json")
    assert (done.code, done.last["rewards"]["inputs"], done.last["unrewarded"]) == (0, 2, 3)
    assert "3 inputs have no reward in one of the files, and are left out" in done.err
    assert "1 inputs are only in a.jsonl, and are left out" in done.err


async def test_list_of_results_in_a_pipe_is_shown(tmp_path: Path):
    written(tmp_path / "r.jsonl", [result(0)])
    os.mkfifo(tmp_path / "pipe")

    def feed() -> None:
        (tmp_path / "pipe").write_bytes((tmp_path / "r.jsonl").read_bytes())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, feed)
        done = await run(tmp_path, "show", "pipe", "--json")
    assert (done.code, done.last["count"]) == (0, 1), done.err


async def test_a_full_disk_leaves_no_half_of_a_page(tmp_path: Path):
    (tmp_path / "limited.py").write_text(LIMITED)
    written(tmp_path / "r.jsonl", [result(0)])
    async with forked(tmp_path, "report", "r.jsonl", "--json", module="limited") as reporting:
        done = await reporting.wait()
    assert (done.code, done.last["exit"]) == (5, 5), done.err
    assert "r.html: File too large" in done.err
    assert names(tmp_path) == ["limited.py", "r.jsonl"]


async def test_ctrl_c_ends_it_while_it_reads(tmp_path: Path):
    """Of a pipe that never ends."""
    line = f"{json.dumps(result(0))}\n".encode() * 100
    os.mkfifo(tmp_path / "r.jsonl")
    ours = os.open(tmp_path / "r.jsonl", os.O_RDWR)

    async def feed() -> None:
        async with trio.lowlevel.FdStream(ours) as pipe:
            while True:
                await pipe.send_all(line)

    async with trio.open_nursery() as nursery:
        async with forked(tmp_path, "report", "r.jsonl", "--json") as reporting:
            await reporting.has_taken_signals()
            nursery.start_soon(feed)
            reporting.signal(signal.SIGINT)
            done = await reporting.wait()
        nursery.cancel_scope.cancel()
    assert done.code == 130, done.err
    done.check_no_traceback()
    assert names(tmp_path) == ["r.jsonl"]
