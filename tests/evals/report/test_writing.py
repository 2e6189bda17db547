"""Pages of files of results, read back from their HTML, and how much of a text is in them."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evals.report.results import HOSTILE, failure, result, written
from trio_envserve.core.errors import ConfigError
from trio_envserve.evals import files
from trio_envserve.evals.comparison import compare
from trio_envserve.evals.files import overview, write_table
from trio_envserve.evals.page import Line
from trio_envserve.evals.report import (
    ALL_CHARS,
    FEWEST_CHARS,
    MOST_CHARS,
    compared_data,
    details,
    fitted,
    most_chars,
    page_data,
    survey,
    write_report,
)

ELEMENT = re.compile(r'<script type="application/json" id="(\w+)">(.*?)</script>', re.DOTALL)


def made(source: str, out: Path, most: int | None = None) -> dict[str, Any]:
    """What stands in the page of a file, element by element."""
    found = survey(source)
    write_report(str(out), found, page_data(found, passed_from=1.0, most=most), most)
    text = out.read_text(encoding="utf-8")
    return {name: json.loads(inner) for name, inner in ELEMENT.findall(text)}


def test_a_page_has_the_summary_a_row_and_the_text_of_each_rollout(tmp_path: Path):
    records = [result(n, n / 4) for n in (2, 0, 1)] + [result(3, error=failure())]
    found = made(written(tmp_path / "r.jsonl", records), tmp_path / "r.html")
    assert sorted(found) == ["d0", "d1", "d2", "d3", "data"]
    data = found["data"]
    columns = data["columns"]
    assert columns["index"] == [0, 1, 2, 3]
    assert columns["reward"] == [0.0, 0.25, 0.5, None]
    assert columns["error"] == ["", "", "", "ValueError: no such page"]
    assert columns["tokens"] == [42, 42, 42, None]
    assert columns["worker"] == ["w0-1", "w1-1", "w0-1", "w1-1"]
    assert columns["ended"][3] - columns["ended"][0] == 10
    assert columns["input"][2] == '{"q": "question 2"}'
    assert (data["file"], data["about"], data["notes"]) == ("r.jsonl", ["birds", "m"], [])
    assert data["summary"]["mean_reward"] == 0.25
    assert data["summary"]["usage"] == {"completion tokens": 36, "prompt tokens": 90}
    assert "question 2" in json.dumps(found["d2"])
    assert "in look" in json.dumps(found["d3"])


def test_page_has_the_last_record_of_each_name_and_tells_of_an_unfinished_line(tmp_path: Path):
    timeless = result(2)  # as results of before are
    del timeless["ended_s"], timeless["usage"], timeless["worker"]
    records = [result(0, error=failure()), result(1), result(0, 1.0), timeless]
    source = written(tmp_path / "r.jsonl", records, rest='{"index": 3, "val')
    found = made(source, tmp_path / "r.html")
    assert sorted(found) == ["d0", "d1", "d2", "data"]
    assert "in look" not in json.dumps(found["d0"])
    columns = found["data"]["columns"]
    assert (columns["reward"], columns["ended"][2]) == ([1.0, 0.5, 0.5], None)
    assert found["data"]["notes"] == ["the last line is not whole, and is left out"]


def test_a_table_makes_the_page_that_its_lines_make(tmp_path: Path):
    pytest.importorskip("pyarrow")
    records = [result(0), result(1, error=failure()), result(2, {"$float": "nan"})]
    write_table(str(tmp_path / "r.parquet"), iter(records))
    ours = made(written(tmp_path / "r.jsonl", records), tmp_path / "lines.html")
    theirs = made(str(tmp_path / "r.parquet"), tmp_path / "table.html")
    assert ours["data"].pop("file") == "r.jsonl"
    assert theirs["data"].pop("file") == "r.parquet"
    assert theirs == ours
    assert ours["data"]["columns"]["reward"] == [0.5, None, "nan"]


def test_hostile_text_ends_no_element(tmp_path: Path):
    value = {"reward": 1.0, HOSTILE: HOSTILE, "completion": [{"role": HOSTILE, "content": HOSTILE}]}
    told = {"environment": HOSTILE, "model": HOSTILE, "worker": HOSTILE, "metrics": {HOSTILE: 1.0}}
    records = [
        result(0, input=HOSTILE, value=value, usage={HOSTILE: 3}, **told),
        result(1, error=failure(HOSTILE, f"\x1b[2J\ud800 {HOSTILE}")),
    ]
    source = written(tmp_path / "r.jsonl", records)
    found = made(source, tmp_path / "r.html")
    assert sorted(found) == ["d0", "d1", "data"]
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "onerror=" in text
    assert "<img" not in text
    assert "\u2028" not in text
    assert "\x1b" not in text
    assert text.count("<script>") == 2


def test_the_differences_of_all_inputs_are_there(tmp_path: Path):
    before = written(tmp_path / "b.jsonl", [result(n, 0.0) for n in range(20)])
    after = written(tmp_path / "a.jsonl", [result(n, n / 20) for n in range(20)])
    compared = compare(overview(before).entries, overview(after).entries, shown=None)
    data = compared_data(before, compared)
    assert [index for index, _, _ in data["changed"]] == [*range(19, 0, -1)]
    assert (data["rewards"]["better"], data["rewards"]["same"]) == (19, 1)
    assert data["rewards"]["low"] < data["rewards"]["mean"] < data["rewards"]["high"]
    assert [each["name"] for each in data["metrics"]] == ["turns"]


@pytest.mark.parametrize("there", ["my notes\n", "", "<!doctype html>\n<p>mine", None])
def test_what_is_no_report_is_not_overwritten(tmp_path: Path, there: str | None):
    """None: a FIFO."""
    found = survey(written(tmp_path / "r.jsonl", [result(0)]))
    out = tmp_path / "r.html"
    if there is None:
        os.mkfifo(out)
    else:
        out.write_text(there)
    with pytest.raises(ConfigError, match="exists, and is no report"):
        write_report(str(out), found, page_data(found, passed_from=1.0, most=None), None)
    assert out.is_fifo() if there is None else out.read_text() == there


def test_results_that_change_meanwhile_are_told_and_leave_no_page(tmp_path: Path):
    records = [result(n) for n in range(3)]
    source = written(tmp_path / "r.jsonl", records)
    found = survey(source)
    data = page_data(found, passed_from=1.0, most=None)
    for changed in (records[:2], [records[1], records[0], records[2]]):
        written(tmp_path / "r.jsonl", changed)
        with pytest.raises(ConfigError, match="has changed"):
            write_report(str(tmp_path / "r.html"), found, data, None)
    written(tmp_path / "r.jsonl", [*records, result(3), result(0)])  # an evaluation goes on
    write_report(str(tmp_path / "r.html"), found, data, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.jsonl"]


def test_a_page_that_is_given_up_anywhere_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = survey(written(tmp_path / "r.jsonl", [result(n) for n in range(3)]))
    data = page_data(found, passed_from=1.0, most=None)
    for reads in range(3):
        monkeypatch.setattr(files, "give_way", ([None] * reads).pop)
        with pytest.raises(IndexError):
            write_report(str(tmp_path / "r.html"), found, data, None)
        assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


def test_a_page_takes_the_memory_of_one_rollout_at_a_time(tmp_path: Path):
    """Of 20 MB of results, 1 MB a rollout."""
    path = tmp_path / "r.jsonl"
    with path.open("w") as file:
        for number in range(20):
            value = {"reward": 1.0, "completion": [{"role": "user", "content": "x" * 10**6}]}
            file.write(json.dumps(result(number, value=value)) + "\n")
    tracemalloc.start()
    try:
        found = survey(str(path))
        write_report(
            str(tmp_path / "r.html"), found, page_data(found, passed_from=1.0, most=None), None
        )
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "r.html").stat().st_size > 20 * 10**6
    assert most < 12 * 10**6


# -- how much of a rollout's text goes into a page ------------------------------------


NOTES = 80
"""More characters than a note of what was cut has."""


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_a_rollout_has_its_messages_tools_numbers_and_nothing_is_left_out():
    found = details(result(3), MOST_CHARS)
    said = "\n".join(text for _, _, text in found["lines"])
    for part in ("question 3", "[user]", "Look up.", '→ look({"at": 1})', "[tool]", "a heron"):
        assert part in said
    assert found["metrics"] == [("turns", 3.0)]
    assert found["usage"] == [("prompt tokens", 30.0), ("completion tokens", 12.0)]
    assert found["left_out"] == 0


def test_the_longest_parts_are_cut_first_and_in_their_middle():
    lines = [Line("short"), Line("a" * 5000 + "z" * 5000, "user"), Line("also short")]
    kept, left_out = fitted(lines, 1000)
    assert texts(kept)[::2] == ["short", "also short"]
    head, note, tail = kept[1].text.split("\n")
    assert set(head) == {"a"}
    assert set(tail) == {"z"}
    assert note == f"[… {left_out:,} characters, cut here …]"
    assert len(head) + len(tail) + len("short") + len("also short") == 1000
    assert kept[1].style == "user"


def test_of_too_many_parts_the_first_and_the_last_are_kept():
    lines = [Line(f"{number:05}") for number in range(10_000)]
    kept, left_out = fitted(lines, 2000)
    assert texts(kept) == [
        *(f"{n:05}" for n in range(5)), "[… 9,990 parts, cut here …]",
        *(f"{n:05}" for n in range(9_995, 10_000)),
    ]  # fmt: skip
    assert left_out == 5 * 9_990


@given(st.lists(st.text(max_size=500), max_size=60), st.integers(0, 5000) | st.none())
def test_no_more_than_was_asked_for_is_kept(parts: list[str], most: int | None):
    lines = [Line(text) for text in parts]
    kept, left_out = fitted(lines, most)
    total = sum(map(len, parts))
    if most is None or total <= most:
        assert (texts(kept), left_out) == (parts, 0)
    else:
        assert total - left_out <= most
        assert sum(len(line.text) for line in kept) <= most + NOTES * len(kept)


@pytest.mark.parametrize("rollouts", [0, 1, 5_000, 10_000, 10_000_000])
def test_a_page_of_many_rollouts_has_less_of_each(rollouts: int):
    most = most_chars(rollouts)
    assert FEWEST_CHARS <= most <= MOST_CHARS
    assert most == FEWEST_CHARS or most * rollouts <= ALL_CHARS
