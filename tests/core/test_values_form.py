"""A form gives the bytes that its whole map would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.limits import WireLimits
from trio_envserve.core.values import EncodingError, Form, decode, encode
from trio_envserve.testing.strategies import plain_values, values

OTHERS: dict[str, dict[str, Any]] = {
    "small": {"kind": "rollout", "input": None, "model": {"name": "m"}, "columns": ["a"]},
    "alone": {"input": None},
    "first": {"input": None, "b": b"1"},
    "last": {"b": 1.5, "input": None},
    "too many to be small": {"a": list(range(300)), "input": None},
    "too large to be small": {"a": bytes(40_000), "input": None},
    "with classes": {"a": {1, 2}, "input": None},
}
VALUES: dict[str, Any] = {
    "plain": {"call": 5, "payload": bytes(200), "messages": [{"role": "user", "content": "x"}]},
    "as many items as a small map has": [0] * 225,
    "one item more": [0] * 255,
    "a large string": bytes(100_000),
    "with classes": {"a": {1, 2}},
    "nested deep": [[[[[[[[[[1]]]]]]]]]],
}


def whole(members: dict[str, Any], value: object, **how: Any) -> bytes:
    return encode({**members, "input": value}, **how)


@pytest.mark.parametrize("members", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_the_bytes_are_those_of_the_whole_map(members, value):
    assert Form(members, "input").encode(value) == whole(members, value)


@given(values(), st.sampled_from(list(OTHERS.values())), st.booleans())
def test_the_bytes_of_any_value_are_those_of_the_whole_map(value, members, sort_keys):
    made = Form(members, "input").encode(value, sort_keys=sort_keys)
    assert made == whole(members, value, sort_keys=sort_keys)


def test_the_options_of_a_keyed_call_were_encoded_anew_with_each(monkeypatch):
    form, value = Form(OTHERS["small"], "input"), {"bb": 1, "a": [{"d": 1, "c": 2}]}
    expected = whole(OTHERS["small"], value, sort_keys=True)
    monkeypatch.delattr("trio_envserve.core.values.encode")
    assert form.encode(value, sort_keys=True) == expected


@given(plain_values(), plain_values())
def test_a_form_holds_nothing_of_the_values_before(first, second):
    form = Form(OTHERS["small"], "input")
    form.encode(first)
    assert form.encode(second) == whole(OTHERS["small"], second)


@pytest.mark.parametrize(
    "limits",
    [
        WireLimits(items=200), WireLimits(keys=200), WireLimits(depth=5),
        WireLimits(value_bytes=100_000), WireLimits(value_times=3),
    ],
    ids=["items", "keys", "depth", "value_bytes", "value_times"],
)  # fmt: skip
def test_limits_that_a_small_value_may_exceed_are_looked_at(limits):
    form = Form(OTHERS["small"], "input")
    value = [{"x": 1, "y": 2}] * 30
    assert form.encode(value, limits=limits) == whole(OTHERS["small"], value, limits=limits)
    if limits.depth == 5:
        with pytest.raises(EncodingError, match="nested"):
            form.encode([[[[[[1]]]]]], limits=limits)
    if limits.items == 200:
        with pytest.raises(EncodingError):
            form.encode([0] * 220, limits=limits)


@pytest.mark.parametrize("members", [OTHERS["small"], {"bad": "\ud800", "input": None}])
def test_text_that_has_no_encoding_is_refused_with_its_place(members):
    form = Form(members, "input")
    with pytest.raises(EncodingError) as refused:
        form.encode({"a": ["\ud800"]}, root="")
    with pytest.raises(EncodingError) as expected:
        whole(members, {"a": ["\ud800"]}, root="")
    assert (refused.value.path, str(refused.value)) == (expected.value.path, str(expected.value))
    assert refused.value.path in ("input.a[0]", "bad")


def test_what_is_written_for_the_open_key_is_not_looked_at():
    form = Form({"a": 1, "input": object()}, "input")
    assert decode(form.encode(2)) == {"a": 1, "input": 2}
