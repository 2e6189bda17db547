"""Inputs in files: each is read as it is meant, or refused with file, line and reason."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve import ConfigError
from trio_envserve.evals.inputs import Slice, read_inputs

READ: list[tuple[str, str, list[Any]]] = [
    ("a.jsonl", '{"a": 1}\n\n[2]\n"x"\n', [{"a": 1}, [2], "x"]),
    ("a.jsonl", '{"a": 1}\r\n\r\n{"a": 2}\r\n', [{"a": 1}, {"a": 2}]),
    ("a.jsonl", "[1, 2]\n", [[1, 2]]),
    ("a.jsonl", '[{"role": "user", "content": "x"}]', [[{"role": "user", "content": "x"}]]),
    ("a.jsonl", '\ufeff"after a mark"', ["after a mark"]),
    ("a.jsonl", '"one\u2028line\u0085"', ["one\u2028line\u0085"]),
    ("a.jsonl", "0.0\n-0e5\n0.000E-7\n5e-324", [0.0, -0.0, 0.0, 5e-324]),
    ("a.ndjson", "1\n2", [1, 2]),
    ("a.jsonl", json.dumps([0] * 100), [[0] * 100]),
    ("a.jsonl", '{"messages": [{"role": "user"}, {"role": "tool"}]}',
     [{"messages": [{"role": "user"}, {"role": "tool"}]}]),
    ("a.jsonl", '{"a": 1, "tools": [{"n": 1}, {"n": 2}]}',
     [{"a": 1, "tools": [{"n": 1}, {"n": 2}]}]),
    ("a.jsonl", '{"data": [1]}\n{"data": [2]}', [{"data": [1]}, {"data": [2]}]),
    ("a.json", '[{"data": [1, 2]}]', [{"data": [1, 2]}]),
    ("a.json", '[{"q": ["x", "y"], "a": ["1", "2"]}]', [{"q": ["x", "y"], "a": ["1", "2"]}]),
    ("a.json", '{"q": ["x", "y"], "a": ["1"]}', [{"q": ["x", "y"], "a": ["1"]}]),
    ("a.json", '{"q": ["x", "y"], "a": 1}', [{"q": ["x", "y"], "a": 1}]),
    ("a.json", '{"q": [], "a": []}', [{"q": [], "a": []}]),
    ("a.json", '{"messages": [{"role": "user"}], "a": [1]}',
     [{"messages": [{"role": "user"}], "a": [1]}]),
    ("a.json", '{"q": {"x": 1}, "a": {"x": 2}}', [{"q": {"x": 1}, "a": {"x": 2}}]),
    ("a.json", "{}", [{}]),
    ("a.json", '[\n 1,\n {"b": 2}\n]', [1, {"b": 2}]),
    ("a.json", '{"a": 1} {"a": 2}', [{"a": 1}, {"a": 2}]),
    ("a.json", "[1]\n[2]\n", [[1], [2]]),
    ("a", '"by no name"', ["by no name"]),
    ("a.csv", 'q,a\n"two\nlines",07\n', [{"q": "two\nlines", "a": "07"}]),
    ("a.csv", '\ufeffq,a\r\n"a ""b""",\r\n\r\n', [{"q": 'a "b"', "a": ""}]),
    ("a.csv", 'q\n""\nx\n\n', [{"q": ""}, {"q": "x"}]),
    ("a.tsv", "q\ta\nx, y\t2\n", [{"q": "x, y", "a": "2"}]),
]  # fmt: skip

REFUSED: list[tuple[str, str, str]] = [
    ("a.jsonl", "", "is empty"),
    ("a.json", "[]", "is empty"),
    ("a.csv", "a,b\n", "is empty"),
    ("a.jsonl", "1\n{", "line 2 is not JSON"),
    ("a.jsonl", '1\n{"a": "cut', "line 2 is not JSON"),
    ("a.jsonl", '{"a": 1}{"a": 2}', "line 1 is not JSON: more follows in column 9"),
    ("a.jsonl", '{\n"a": 1\n}', "line 1 is not JSON"),
    ("a.json", "[1,\n2,\n]", "line 3 is not JSON"),
    ("a.json", "[1,\n2", "line 2 is not JSON: ',' or ']' is missing"),
    ("a.json", "[1,\n2\n3]", "line 3 is not JSON: ',' or ']' is missing"),
    ("a.json", '[1,\n{"a":\n oops}]', "line 3 is not JSON"),
    ("a.txt", "one\ntwo\n", "line 1 is not JSON"),
    ("a.jsonl", '1\n{"a": 1, "a": 2}', "line 2: the key 'a' is there twice"),
    ("a.json", '[1,\n{"b": {"a": 1, "a": 1}}]', "line 2: the key 'a' is there twice"),
    ("a.jsonl", "1\n1e400", "line 2: the number 1e400 is larger than a float holds"),
    ("a.jsonl", "[-1e400]", "line 1: the number -1e400 is larger than a float holds"),
    ("a.jsonl", '{"f": 1e-400}', "the number 1e-400 is smaller than a float holds"),
    ("a.jsonl", "0." + "0" * 400 + "1", "is smaller than a float holds"),
    ("a.jsonl", "9" * 5000, "line 1: .*digits"),
    ("a.jsonl", '1\n{"q": "\\ud83d x"}', r"line 2: half a surrogate pair is no Unicode"),
    ("a.jsonl", "1\n" + "[" * 3000 + "]" * 3000, "line 2: .*nested"),
    ("a.json", "[1,\n" + "[" * 3000 + "]" * 3000 + "]", "line 2: .*nested"),
    ("a.jsonl", '1\n{"a": ' + "[" * 100 + "]" * 100 + "}", "line 2: .*nested"),
    ("a.json", '{"data": [{"q": 1}, {"q": 2}]}', "line 1: .*an object with 2 items in 'data'"),
    ("a.json", '\n{"version": 1,\n"Data": ["x"]}', "line 2: .*an object with 1 items in 'Data'"),
    ("a.jsonl", '{"train": [{"q": 1}, {"q": 2}]}', "an object with 2 objects in 'train'"),
    ("a.jsonl", '[{"q": 1}, {"q": 2}]', "line 1: .*an array of 2 objects"),
    (
        "a.json",
        '{"q": ["x", "y"], "a": ["1", "2"]}',
        "an object of columns: 'q', 'a', 2 items",
    ),
    ("a.jsonl", '{"q": ["x"], "a": [1]}', "an object of columns: 'q', 'a', 1 items each"),
    ("a.json", '{"q": ["x", "y"]}', "an object of columns: 'q', 2 items each"),
    ("a.json", '{"q": [[{"role": "user"}]], "a": [1]}', "an object of columns: 'q', 'a', 1 items"),
    (
        "a.json",
        '{"q": {"0": "x"}, "a": {"0": 1}}',
        "by numbers, as pandas writes",
    ),
    ("a.json", '{"0": {"q": "x"}, "1": {"q": "y"}}', "by numbers, as pandas writes"),
    ("a.jsonl", "1\n\0", "line 2: it holds a NUL"),
    ("a.csv", "a,b\n1\n", "line 2: it has another number of cells"),
    ("a.csv", "a,b\n1,2,3\n", "line 2: it has another number of cells"),
    ("a.csv", 'a\n"open', "unexpected end of data"),
    ("a.csv", "a,b,a\n1,2,3\n", "line 1: two columns are called 'a'"),
    ("a.csv", ",a\n0,x\n", "line 1: column 1 has no name"),
    ("a.csv", "q;a\nWhat?;4\n", "line 1: the column 'q;a' holds ';'"),
    ("a.csv", "sep=;\nq;a\n", "line 1: the column 'sep=;' holds ';'"),
    ("a.csv", "q\ta\n1\t4\n", "line 1: the column .* holds"),
    ("a.tsv", "a\ta\n1\t4\n", "line 1: two columns are called 'a'"),
    ("a.csv", "q\nx\n\ny\n", "line 3: it is blank; an empty cell"),
    ("a.csv", "q\n" + "x" * 200_000, "line 2: field larger than field limit"),
    ("a.yaml", "- input: x\n", r"inputs are read from .*, not \.yaml"),
    ("a.jsonl.zst", "x", r"inputs are read from .*, not \.zst"),
    ("a.jsonl.gz", "plain", "is no whole gzip file"),
]


@pytest.mark.parametrize(("name", "text", "inputs"), READ)
def test_inputs_in_files_of_all_kinds(tmp_path: Path, name: str, text: str, inputs: list[Any]):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    assert repr(read_inputs(str(path))) == repr(inputs)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert repr(read_inputs(str(packed))) == repr(inputs)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_inputs_in_the_encoding_of_their_mark(tmp_path: Path, encoding: str):
    path = tmp_path / "a.tsv"
    path.write_text("q\ta\nü\t1\n", encoding=encoding, newline="")
    assert read_inputs(str(path)) == [{"q": "ü", "a": "1"}]


def test_numbers_that_json_has_not_stay_what_they_are(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": NaN, "b": -Infinity}')
    (found,) = read_inputs(str(path))
    assert math.isnan(found["a"])
    assert found["b"] == -math.inf


@pytest.mark.parametrize(("name", "text", "why"), REFUSED)
def test_inputs_that_a_reader_would_change_or_drop(tmp_path: Path, name: str, text: str, why: str):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(ConfigError, match=why) as refused:
        read_inputs(str(path))
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'1\n{"input": "caf\xe9"}', "line 2 is not UTF-8"),
        ("1".encode("utf-16-le"), "line 1: it holds a NUL"),
        (b"\xff\xfe1\0\n", "line 1 is not UTF-16-LE"),
    ],
)
def test_bytes_that_are_no_text(tmp_path: Path, data: bytes, why: str):
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=why):
        read_inputs(str(path))


def test_file_that_is_cut_or_not_there_is_told(tmp_path: Path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 100)[:-12])
    with pytest.raises(ConfigError, match="no whole gzip file"):
        read_inputs(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        read_inputs(str(tmp_path / "nosuch" / "a.json"))


def test_inputs_in_a_table(tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"q": ["x", "y"], "n": [1, 2]}), path)
    assert read_inputs(str(path)) == [{"q": "x", "n": 1}, {"q": "y", "n": 2}]
    parquet.write_table(pa.Table.from_arrays([pa.array([1])] * 2, names=["q", "q"]), path)
    with pytest.raises(ConfigError, match=r"a\.parquet: two columns are called 'q'"):
        read_inputs(str(path))


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)
_NAMES = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=";\t|"), min_size=1
)
_ROWS = st.lists(
    st.dictionaries(_NAMES, _SCALARS | st.lists(_SCALARS, max_size=3), min_size=1, max_size=4),
    min_size=2, max_size=5,
)  # fmt: skip


@given(rows=_ROWS, ascii_only=st.booleans(), indent=st.none() | st.integers(0, 2))
def test_whatever_json_is_written_is_read_as_it_was(
    rows: list[dict[str, Any]], ascii_only: bool, indent: int | None, tmp_path_factory: Any
):
    folder = tmp_path_factory.mktemp("inputs")

    def read(name: str, text: str) -> list[Any]:
        (folder / name).write_text(text, encoding="utf-8", newline="")
        return read_inputs(str(folder / name))

    texts = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    assert read("a.jsonl", "\n".join(texts)) == rows
    assert read("a.json", json.dumps(rows, ensure_ascii=ascii_only, indent=indent)) == rows
    spread = [json.dumps(row, ensure_ascii=ascii_only, indent=indent) for row in rows]
    assert read("b.json", "\n".join(spread)) == rows


_CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(
    names=st.lists(_NAMES.filter(str.strip), min_size=1, max_size=4, unique=True),
    data=st.data(), separator=st.sampled_from([",", "\t"]),
)  # fmt: skip
def test_whatever_cells_are_written_are_read_as_they_were(
    names: list[str], data: st.DataObject, separator: str, tmp_path_factory: Any
):
    row = st.lists(_CELLS, min_size=len(names), max_size=len(names))
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=separator).writerows([names, *rows])
    path = tmp_path_factory.mktemp("inputs") / ("a.csv" if separator == "," else "a.tsv")
    path.write_text(written.getvalue(), encoding="utf-8", newline="")
    assert read_inputs(str(path)) == [dict(zip(names, each, strict=True)) for each in rows]


def test_slices():
    assert Slice.parse("10:20") == (10, 20)
    assert Slice.parse(":") == (0, None)
    for text in ("10", "5:5", "-1:", "a:b", "1:2:3"):
        with pytest.raises(ConfigError, match="--slice"):
            Slice.parse(text)
