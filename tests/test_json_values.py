"""Values as JSON, arrays by their bytes, and back."""

from __future__ import annotations

import datetime
import decimal
import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve import json_values
from trio_envserve.core.arrays import RawArray
from trio_envserve.evals.plain import plain_line, plain_text
from trio_envserve.json_values import PIECE_BYTES, Malformed, jsonable, pieces, restored


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, None),
        (True, True),
        (2**70, 2**70),
        ((1, [2, "x"]), [1, [2, "x"]]),
        (b"\x00", {"$bytes": "AA=="}),
        pytest.param(memoryview(b"\x00"), {"$bytes": "AA=="}, id="view"),
        (float("-inf"), {"$float": "-inf"}),
        ({"a": {"b": float("nan")}}, {"a": {"b": {"$float": "nan"}}}),
        ({(1, 2): 3}, {"$map": [[[1, 2], 3]]}),
        ({"$bytes": "looks like one"}, {"$map": [["$bytes", "looks like one"]]}),
        ({1}, {"$set": [1]}),
        (1 + 2j, {"$complex": [1.0, 2.0]}),
        (datetime.time(1, 2), {"$time": "01:02:00"}),
        (uuid.UUID(int=1), {"$text": "00000000-0000-0000-0000-000000000001"}),
        (decimal.Decimal("1.50"), {"$text": "1.50"}),
        (1 << 5000, {"$text": hex(1 << 5000)}),
        (
            RawArray("uint8", (2,), b"\x01\x02"),
            {"$array": {"dtype": "uint8", "shape": [2], "data": "AQI="}},
        ),
    ],
    ids=lambda value: repr(value)[:60],
)  # fmt: skip
def test_values_as_json(value: Any, said: Any):
    assert jsonable(value) == said
    json.dumps(jsonable(value), allow_nan=False)


WHAT_JSON_HAS = (
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
    )
)  # fmt: skip


@given(WHAT_JSON_HAS)
def test_json_in_pieces_is_that_of_one_piece(value: Any):
    with pytest.MonkeyPatch.context() as patched:
        for name, least in (("_WEIGHT", 3), ("_ITEMS", 2), ("_CHARACTERS", 2)):
            patched.setattr(json_values, name, least)
        patched.setattr(json_values, "weight", lambda value, most: weighed(value))
        assert json_values.dumped(value, lambda: None) == json.dumps(value).encode()


def weighed(value: Any) -> int:
    """A letter weighs as much as a thousand do."""
    if isinstance(value, str):
        return 1 + len(value)
    if isinstance(value, dict):
        return 1 + sum(map(weighed, value)) + sum(map(weighed, value.values()))
    return 1 + sum(map(weighed, value)) if isinstance(value, list) else 1


@given(WHAT_JSON_HAS)
def test_values_that_json_has_are_left_as_they_are(value: Any):
    assert jsonable(value) == value
    assert restored(jsonable(value)) == value


def test_numpy_values_come_back():
    numpy = pytest.importorskip("numpy")
    assert jsonable(numpy.float32(0.5)) == 0.5
    assert jsonable(numpy.int64(3)) == 3
    for array in (
        numpy.array([[1.0, float("nan")]]), numpy.arange(6).reshape(2, 3).T, numpy.zeros((0, 3)),
        numpy.array([1, 2], ">i2"), numpy.array([True]), numpy.array([1j], "complex64"),
        numpy.arange(10)[::2],
    ):  # fmt: skip
        back = restored(json.loads(json.dumps(jsonable({"a": array}))))["a"]
        assert back.dtype.name == array.dtype.name
        numpy.testing.assert_array_equal(back, array)


def test_a_large_array_is_written_in_pieces_and_is_the_same():
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(2 * PIECE_BYTES // 4 + 1, dtype="float32")
    made = list(pieces({"a": array, "b": [b"x" * 70_000, "text"]}))
    assert max(map(len, made)) <= PIECE_BYTES * 4 // 3
    record = json.loads(b"".join(made))
    assert made[-1] == b"\n"
    assert record == jsonable({"a": array, "b": [b"x" * 70_000, "text"]})
    numpy.testing.assert_array_equal(restored(record["a"]), array)


class Hostile(Mapping[str, Any]):
    """A lazy mapping whose code raises what means something else elsewhere."""

    def __getitem__(self, key: str) -> Any:
        raise SystemExit(3)

    def __iter__(self) -> Iterator[str]:
        raise SystemExit(3)

    def __len__(self) -> int:
        return 2


def test_code_of_a_value_and_depth_end_no_line():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    record = json.loads(b"".join(pieces({"index": 1, "input": Hostile(), "value": deep})))
    assert record["index"] == 1
    assert record["input"] == {"$text": "(it cannot be written: SystemExit)"}
    assert "RecursionError" in record["value"]["$text"]


@pytest.mark.parametrize(
    "value",
    [
        {"$array": {"dtype": "float99", "shape": [1], "data": "AAAA"}},
        {"$array": {"dtype": "float32", "shape": [7], "data": "AAAA"}},
        {"$array": 3}, {"$bytes": 7}, {"$float": "x"}, {"$map": 3}, {"$complex": ["x"]},
    ],
)  # fmt: skip
def test_malformed_values_stay_as_they_are(value: Any):
    assert restored(value) == value
    with pytest.raises(Malformed):
        restored([value], strict=True)


@pytest.mark.parametrize(
    "value",
    [
        {"$bytes": "AA%=="}, {"$float": "1.5"}, {"$text": 3}, {"$map": [["a", 1], ["a", 2]]},
        {"$set": [{"$bytes": "%"}]}, {"$map": [[1, {"$bytes": "%"}]]},
    ],
)  # fmt: skip
def test_guesses_of_a_lenient_reader_are_refused_by_a_strict_one(value: Any):
    assert restored(value) != value
    with pytest.raises(Malformed):
        restored({"a": value}, strict=True)


def test_a_strict_reader_takes_what_is_written_here():
    value = {"a": [b"\x00", float("inf"), {(1, "x"): 2 + 1j}, {"$bytes": 1}], "$ref": "x", "b": 1}
    assert restored(json.loads(json.dumps(jsonable(value))), strict=True) == value


def test_an_array_without_numpy_is_refused_by_a_strict_reader(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(Malformed, match="numpy is not installed"):
        restored(jsonable(RawArray("uint8", (2,), b"\x01\x02")), strict=True)


def test_array_of_a_file_was_none_any_more_when_it_was_read_and_written_without_numpy(
    monkeypatch: pytest.MonkeyPatch,
):
    """A rescored file had no tokens."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    array = jsonable(RawArray("uint8", (1, 2), b"\x01\x02"))
    assert restored(array) == RawArray("uint8", (1, 2), b"\x01\x02")
    assert jsonable(restored(array)) == array
    wrong: list[dict[str, Any]] = [
        {"shape": [3]}, {"shape": 2}, {"dtype": "float31"}, {"dtype": []},
    ]  # fmt: skip
    for each in wrong:
        other = {"$array": {**array["$array"], **each}}
        assert restored(other) == other


@given(st.text())
def test_plain_text_holds_nothing_that_a_terminal_acts_on(text: str):
    plain = plain_text(text)
    assert not any(ord(char) < 32 and char not in "\n\t" for char in plain)
    assert not any(0x7F <= ord(char) < 0xA0 for char in plain)
    plain.encode()
    assert "\n" not in plain_line(text)


def test_escapes_are_shown():
    assert plain_text("a\x1b]0;title\x07b") == "a\\x1b]0;title\\x07b"
    assert plain_text("\u202eabc\ud800") == "\\u202eabc\\ud800"
    assert plain_line("one\r\ntwo\tthree") == "one\\ntwo three"
    assert plain_line("x" * 10, 4) == "xxx…"
