"""Parts that are cut out of a result that does not fit into a message."""

from __future__ import annotations

import array
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import values
from trio_envserve.envs.cutting import KEPT, smaller

LIMIT = "a message has at most that"


def first(value: Any, most_bytes: int) -> Any:
    """The first copy that fits; None if there is none."""
    size = len(values.encode(value))
    assert size > most_bytes
    for less in smaller(value, size, most_bytes, LIMIT):
        if len(values.encode(less)) <= most_bytes:
            return less
    return None


@pytest.mark.parametrize(
    ("part", "marker"),
    [
        (bytes(5000), "(cut: bytes of 5000 bytes)"),
        (bytearray(5000), "(cut: bytes of 5000 bytes)"),
        (memoryview(bytes(5000)), "(cut: bytes of 5000 bytes)"),
        (array.array("f", [0.0] * 1250), "(cut: array of 'f' of 5000 bytes)"),
        ("QUJD" * 1250, "(cut: base64 of 5000 bytes)"),
        ("data:audio/wav;base64," + "Q" * 4978, "(cut: data:audio/wav;base64 of 5000 bytes)"),
    ],
    ids=["bytes", "bytearray", "memoryview", "array", "base64", "data-url"],
)
def test_binary_parts_of_all_kinds_leave_a_marker(part: Any, marker: str):
    got = first({"reward": 1.0, "completion": [{"content": ("text", part)}]}, 1500)
    assert got["completion"] == [{"content": ["text", marker]}]
    assert (got["cut"]["parts"], got["cut"]["bytes"]) == (1, 5000)
    assert got["cut"]["why"].endswith(f"{LIMIT}: 5000 of completion were cut")


def test_an_array_of_numpy_leaves_its_shape():
    numpy = pytest.importorskip("numpy")
    got = first({"reward": 1.0, "frame": numpy.zeros((10, 100), "float32")}, 1500)
    assert got["frame"] == "(cut: array float32 (10, 100) of 4000 bytes)"


def test_the_largest_parts_are_cut_first():
    value = {"reward": 1.0, "a": bytes(2_000), "b": bytes(50_000), "c": bytes(3_000)}
    got = first(value, 10_000)
    assert (got["a"], got["c"]) == (value["a"], value["c"])
    assert got["b"].startswith("(cut:")


def test_token_records_go_after_all_else_and_before_the_reward():
    tokens = [{"token_ids": [70_000] * 1_500, "routed": bytes(2_000)}]
    got = first({"reward": 0.5, "segments": tokens, "state": "many words " * 700}, 12_000)
    assert (got["reward"], got["segments"]) == (0.5, tokens)
    assert got["state"].startswith("(cut: 7")
    got = first({"reward": 1.0, "segments": tokens, "text": "x"}, 2_000)
    assert (got["reward"], got["text"], [*got["cut"]["of"]]) == (1.0, "x", ["segments"])


def records(*results: Any) -> list[dict[str, Any]]:
    """The value of a group with these results, and a member that failed."""
    failed = {"ok": False, "error": {"type": "E", "message": "m", "attempts": 1}}
    return [*({"ok": True, "value": each} for each in results), failed]


def test_a_group_of_many_large_members_is_encoded_few_times():
    """It was once for each field of a member that had to go."""
    results = [{"reward": 0.5, "a": [0] * 2000, "b": [1] * 2000} for _ in range(200)]
    group = records(*results, 7)
    size = len(values.encode(group))
    copies = list(smaller(group, size, 20_000, LIMIT))
    assert len(copies) < 12
    assert len(values.encode(copies[-1])) < 200_000
    assert all(each["value"]["reward"] == 0.5 for each in copies[-1][:200])
    assert copies[-1][200:] == group[200:]


@pytest.mark.parametrize("value", [None, "x" * 5000, [1, 2], [{"reward": 1}], records(3), (b"x",)])
def test_a_value_that_is_no_result_is_not_cut(value: Any):
    assert list(smaller(value, 10_000, 100, LIMIT)) == []


_LEAVES = (
    st.integers(0, 9) | st.floats(allow_nan=False)
    | st.sampled_from(["a few words", "many words " * 400, "QUJD" * 1000, bytes(3000), bytes(9)])
)  # fmt: skip
_FIELDS = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("pqrs"), inner, max_size=3)
    ),
    max_leaves=10,
)
_RESULTS = st.fixed_dictionaries(
    {"reward": st.floats(0, 1), "metrics": st.just({"n": 1.0})},
    optional=dict.fromkeys(("completion", "state", "segments", "other"), _FIELDS),
)


@given(
    value=_RESULTS | st.lists(_RESULTS, max_size=3).map(lambda each: records(*each)),
    part=st.floats(0.05, 0.99),
)
def test_whatever_is_cut_the_reward_stays_and_each_loss_is_said(value: Any, part: float):
    size, before = len(values.encode(value)), copy.deepcopy(value)
    for less in smaller(value, size, int(size * part), LIMIT):
        results, cut = [value], [less]
        if isinstance(value, list):
            assert less[-1] == value[-1], "the error of the one that failed"
            assert all(each["ok"] is True for each in less[:-1])
            results, cut = ([each["value"] for each in group[:-1]] for group in (value, less))
        for one, other in zip(results, cut, strict=True):
            assert set(one) <= set(other) <= {*one, "cut"}
            assert all(other[name] == one[name] for name in KEPT & set(one))
            lost = {name for name in one if other[name] != one[name]}
            assert lost == set(other.get("cut", {"of": {}})["of"])
    assert value == before


@given(value=_RESULTS)
def test_a_result_always_fits_where_its_kept_fields_fit(value: Any):
    if len(values.encode(value)) > 12_000:
        assert first(value, 12_000) is not None
