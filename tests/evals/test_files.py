"""Files of results: whole to the last line, whatever happens to who writes them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from trio_envserve import ConfigError, Outcome
from trio_envserve.evals import files
from trio_envserve.evals.files import (
    NotWritten,
    last_records,
    line_of,
    open_results,
    records,
    replace_file,
    take_up,
    write_table,
)
from trio_envserve.evals.records import record_of, result_of
from trio_envserve.json_values import pieces


def a_record(index: int, value: Any = None, repeat: int = 0) -> dict[str, Any]:
    value = {"reward": 0.5} if value is None else value
    outcome = Outcome(value=value, worker="w0-1", executions=1)
    result = result_of(index, repeat, outcome, environment="e", model="m", run="r")
    return record_of(result, {"q": index}, value)


def indexes(path: Path | str) -> list[int]:
    return [one.result.index for one in records(str(path))]


def test_what_a_killed_process_left_of_a_line_is_cut_off_and_what_is_whole_gone_on_with(
    tmp_path: Path,
):
    path = tmp_path / "r.jsonl"
    whole = b"".join(pieces(a_record(0)))
    path.write_bytes(whole + b'{"index": 1, "value": "' + b"x" * 200_000)
    assert indexes(path) == [0]
    file = open_results(str(path))
    found = take_up(file)
    assert [one.name for one in found.results] == [(0, 0)]
    assert found.runs == {("r", "e", "m")}
    file.append(a_record(2))
    file.close()
    assert path.read_bytes() == whole + b"".join(pieces(a_record(2)))


def test_a_line_that_is_stopped_anywhere_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Arrays of 200 MB were written in one go, and Ctrl-C was not heard."""
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "r.jsonl"
    large = a_record(1, {"array": numpy.zeros(4_000_000, "uint8")})
    for steps in range(6):
        path.unlink(missing_ok=True)
        file = open_results(str(path))
        file.append(a_record(0))
        with monkeypatch.context() as patch:
            patch.setattr(files, "give_way", ([None] * steps).pop)
            with pytest.raises(IndexError):
                file.append(large)
        assert indexes(path) == [0]
        assert path.read_bytes() == b"".join(pieces(a_record(0)))
        file.append(a_record(2))
        file.close()
        assert indexes(path)[-1] == 2


def test_two_evaluations_do_not_write_one_file(tmp_path: Path):
    path = str(tmp_path / "r.jsonl")
    file = open_results(path)
    with pytest.raises(ConfigError, match="another evaluation is writing"):
        open_results(path)
    file.close()
    open_results(path).close()


@pytest.mark.parametrize("text", ["precious", "precious\n", '{"index": "x"}\n', "[]\n", "\x00\n"])
def test_what_is_no_file_of_results_is_left_as_it_is(tmp_path: Path, text: str):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    file = open_results(str(path))
    with pytest.raises(ConfigError):
        take_up(file)
    file.close()
    assert path.read_text() == text


def test_the_last_record_of_a_name_counts_and_a_blank_line_is_none(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    given = [a_record(0), a_record(1), a_record(0, {"reward": 1.0})]
    path.write_bytes(b"\n".join(b"".join(pieces(one)) for one in given))
    assert [(r["index"], r["reward"]) for r in last_records(str(path))] == [(1, 0.5), (0, 1.0)]


# -- tables ----------------------------------------------------------------------


def test_a_table_has_what_the_lines_have_and_arrays_by_their_bytes(tmp_path: Path):
    numpy = pytest.importorskip("numpy")
    parquet = pytest.importorskip("pyarrow.parquet")
    value = {
        "reward": float("nan"), "metrics": {"turns": 2}, "usage": {"calls": 3},
        "arrays": [numpy.arange(4, dtype="int32"), {"b": numpy.zeros(2, "float32")}],
    }  # fmt: skip
    failed = {**a_record(1), "ended_s": 1772700000.5}
    failed["error"] = {"class": "WorkerLost", "code": "worker-lost", "verdict": "it may have run",
                       "fault": "infrastructure",
                       "type": "", "message": "\x1b[2J\ud800", "traceback": ""}  # fmt: skip
    lines = b"".join(pieces(a_record(0, value))) + b"".join(pieces(failed))
    given = [json.loads(line) for line in lines.splitlines()]
    path = str(tmp_path / "r.parquet")
    given[1]["error"]["message"] = "\x1b[2J"
    write_table(path, iter(given))
    again = [json.loads(line_of(one.record)) for one in records(path)]
    for one, other in zip(given, again, strict=True):
        assert other["value"] == one["value"]
        assert other["input"] == one["input"]
        assert (other["index"], other["metrics"], other["usage"]) == (
            one["index"], one["metrics"], one["usage"],
        )  # fmt: skip
        assert (other["error"], other["ended_s"]) == (one["error"], one["ended_s"])
    (parts, _) = parquet.read_table(path)["parts"].to_pylist()
    assert parts == [numpy.arange(4, dtype="int32").tobytes(), bytes(8)]


def test_file_that_cannot_be_written_is_told_where_nothing_can_be_removed_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On a file system that is read-only the removal of what is not there raised, in the place of
    the error."""

    def is_read_only(path: Any, **_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", is_read_only)
    with pytest.raises(NotWritten, match=r"report\.html: Read-only file system"):
        replace_file(str(tmp_path / "report.html"), is_read_only)
