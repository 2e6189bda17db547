"""Pages of single rollouts, choices of them, and comparisons of two files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evals.test_files import a_record
from trio_envserve import ConfigError
from trio_envserve.evals import files
from trio_envserve.evals.comparison import compare
from trio_envserve.evals.files import chosen, overview, record_at, records, write_table
from trio_envserve.evals.page import page
from trio_envserve.evals.plain import headline
from trio_envserve.evals.report import survey
from trio_envserve.json_values import pieces


def file_of(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_bytes(b"".join(b"".join(pieces(one)) for one in records))
    return str(path)


def text_of(record: dict[str, Any], **options: Any) -> str:
    return "\n".join(line.text for line in page(record, **options))


def test_a_page_has_messages_calls_of_tools_and_what_they_returned():
    call = {"id": "c1", "function": {"name": "look", "arguments": '{"where": "up"}'}}
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a bird"},
        {"role": "assistant", "content": "I see a bird."},
    ]
    text = text_of(a_record(3, {"reward": 1.0, "completion": talk, "note": {"seen": 1}}))
    for part in (
        "input 3, repeat 0", "reward 1", "Look.", "(image_url)", '→ look({"where": "up"})',
        "[tool] c1", "a bird", "I see a bird.", '"seen": 1',
    ):  # fmt: skip
        assert part in text


def test_a_page_of_an_error_has_the_traceback_and_is_shortened_unless_asked_for():
    record = a_record(0)
    record["value"] = None
    record["error"] = {"class": "RolloutFailed", "type": "KeyError", "verdict": "it ran and failed",
                       "message": "m", "traceback": "begin" + "x" * 9000 + "end"}  # fmt: skip
    text = text_of(record)
    assert "RolloutFailed: KeyError (it ran and failed)" in text
    assert "begin" in text
    assert "shown with --full" in text
    assert "x" * 9000 in text_of(record, full=True)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r[bold red]\u202e\x9b31m"


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_a_value_nested_deeper_than_the_stack_is_shown_in_words(
    tmp_path: Path, begin: str, end: str
):
    """Reading it ended in a RecursionError."""
    path, as_table = str(tmp_path / "deep.jsonl"), str(tmp_path / "deep.parquet")
    with open(path, "w") as file:
        for index in range(2):
            deep = f"{begin * 600}{index}{end * 600}"
            record = {**a_record(index), "input": "DEEP", "value": {"x": "DEEP"}}
            file.write(b"".join(pieces(record)).decode().replace('"DEEP"', deep))
    entries = overview(path).entries
    assert len({entry.input for entry in entries}) == 2
    for full in (False, True):
        text = text_of(record_at(path, entries[0]), full=full)
    assert text.count("(nested deeper than 200 levels)") == 2
    assert survey(path).inputs[0, 0]
    pytest.importorskip("pyarrow")
    write_table(as_table, (each.record for each in records(path)))
    assert [each.input for each in overview(as_table).entries] == [each.input for each in entries]


def test_nothing_in_a_result_acts_on_a_terminal():
    value = {
        "reward": 1.0, HOSTILE: HOSTILE, "metrics": {HOSTILE: 1.0},
        "completion": [{"role": HOSTILE, "content": HOSTILE, "name": HOSTILE,
                        "tool_calls": [{"function": {"name": HOSTILE, "arguments": HOSTILE}}]}],
    }  # fmt: skip
    record = {**a_record(0, value), "worker": HOSTILE, "model": HOSTILE, "input": HOSTILE}
    text = text_of(record, full=True)
    assert not any(ord(c) < 32 and c != "\n" for c in text)
    assert "\x9b" not in text
    assert "\u202e" not in text
    assert "[bold red]" in text  # markup is text


@pytest.mark.parametrize(
    "value",
    [
        None, 3, "text", [],
        {"completion": [{"role": 1, "content": 2, "tool_calls": [3, {}, None]}]},
        {"completion": [{"role": None}]}, {"messages": "none", "prompt": [1]},
        {"reward": {"$float": "nan"}, "x": {"$array": {}}, "y": {"$bytes": "AAAA"}},
        {"completion": [{"role": "user", "content": [1, {"type": 3}]}]},
    ],
)  # fmt: skip
def test_a_page_of_anything(value: Any):
    assert text_of({"index": 0, "value": value})


def test_rollouts_are_chosen_by_reward_error_and_input(tmp_path: Path):
    failed = {**a_record(3), "error": {"class": "WorkerLost"}, "reward": None}
    records = [a_record(i, {"reward": r}, k) for i, r, k in
               [(0, 0.5, 0), (1, float("nan"), 0), (2, 0.0, 0), (2, 1.0, 1)]]  # fmt: skip
    entries = overview(file_of(tmp_path / "r.jsonl", [*records, failed])).entries

    def names(**filters: Any) -> list[tuple[int, int]]:
        return [each.result.name for each in chosen(entries, **filters)]

    assert names() == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]
    assert names(errors=True) == [(3, 0)]
    assert names(worst=True)[:3] == [(2, 0), (0, 0), (2, 1)]
    assert names(best=True)[:3] == [(2, 1), (0, 0), (2, 0)]
    assert names(index=2) == [(2, 0), (2, 1)]
    assert names(below=0.5) == [(2, 0)]
    assert names(above=0.4) == [(0, 0), (2, 1)]


@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet"])
def test_a_record_is_found_again_and_nothing_before_it_is_read(tmp_path: Path, name: str):
    """Each page of a large file took as long as the whole file."""
    given = [a_record(2), a_record(1), a_record(0, {"reward": 0.25}), a_record(1)]
    path = str(tmp_path / name)
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
        write_table(path, (json.loads(b"".join(pieces(one))) for one in given))
    else:
        file_of(tmp_path / name, given)
    found = overview(path)
    assert found.about == {"environment": "e", "model": "m"}
    assert [each.result.index for each in found.entries] == [0, 1, 2]
    for number, entry in enumerate(found.entries):
        assert record_at(path, entry)["index"] == number
    if name.endswith(".jsonl"):
        lines = Path(path).read_bytes().splitlines(keepends=True)
        Path(path).write_bytes(b"x" * (len(lines[0]) - 1) + b"\n" + b"".join(lines[1:]))
        assert record_at(path, found.entries[0])["value"] == {"reward": 0.25}
        with pytest.raises(ConfigError, match="has changed: input 2, repeat 0 is not where"):
            record_at(path, found.entries[2])
    for wrong in (found.entries[0]._replace(at=1 << 30), found.entries[1]._replace(at=0)):
        with pytest.raises(ConfigError, match="has changed"):
            record_at(path, wrong)


def test_rows_of_large_arrays_are_read_one_at_a_time(tmp_path: Path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(files, "_BATCH_BYTES", 1)
    path = str(tmp_path / "r.parquet")
    write_table(path, iter([a_record(number) for number in range(7)]))
    checked: list[None] = []
    monkeypatch.setattr(files, "give_way", lambda: checked.append(None))
    rows = records(path)
    for number in range(7):
        assert next(rows).result.index == number
        assert len(checked) == number + 1
    entry = overview(path).entries[5]
    assert (entry.at, record_at(path, entry)["index"]) == (5, 5)


def test_a_comparison_leaves_out_inputs_that_are_not_the_same(tmp_path: Path):
    def rewards(name: str, given: dict[int, float], **more: Any) -> Any:
        records = [{**a_record(i, {"reward": r, "metrics": {"turns": r}}), **more}
                   for i, r in given.items()]  # fmt: skip
        return records

    first = rewards("a", {0: 0.0, 1: 0.0, 2: 1.0, 3: 0.5})
    second = rewards("b", {0: 1.0, 1: 0.5, 2: 1.0, 4: 0.0})
    second[2]["input"] = "another"
    a, b = (
        overview(file_of(tmp_path / name, one)).entries
        for name, one in (("a", first), ("b", second))
    )
    found = compare(a, b)
    assert found.rewards.difference.mean == 0.75
    assert (found.rewards.difference.inputs, found.rewards.better) == (2, 2)
    assert (found.other_inputs, found.only_first, found.only_second) == (1, 1, 1)
    assert found.unrewarded == 0
    assert found.changed == [(0, 0.0, 1.0), (1, 0.0, 0.5)]
    assert found.metrics["turns"].difference.mean == 0.75
    assert found.first.inputs == 4


def test_comparison_took_two_inputs_of_one_number_in_a_file_for_one(tmp_path: Path):
    def of(known: str, reward: float, repeat: int) -> dict[str, Any]:
        return a_record(0, {"reward": reward}) | {"input": known, "repeat": repeat}

    before = [of("a", 0.0, 0), of("a", 0.0, 1), a_record(1, {"reward": 0.0})]
    joined = [*before, of("another", 1.0, 0)]  # of another evaluation, and the last of its name
    a, b = (
        overview(file_of(tmp_path / name, each)).entries
        for name, each in (("a", before), ("b", joined))
    )
    for found in (compare(a, b), compare(b, a)):
        assert (found.rewards.difference.inputs, found.rewards.difference.mean) == (1, 0.0)
        assert found.other_inputs == 1


# -- text of others on one line -------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("one\ntwo", "one"),
        ("\n\n***\nResource words not found.\nmore", "Resource words not found."),
        ("LookupError: \n****\n  words not found.\n)", "LookupError: words not found."),
        ("LookupError:\n)", "LookupError:"),
        (" ** \n", "**"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_headline_is_the_first_line_that_says_something(text: str, first: str):
    """A message that began with a ruler stood in tables and pages as nothing."""
    assert headline(text) == first
