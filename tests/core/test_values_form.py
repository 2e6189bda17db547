"""A form gives the bytes that its whole map would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.limits import WireLimits
from trio_envserve.core.values import EncodingError, TooMuchWork, decode, encode
from trio_envserve.core.values_form import Form
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
    assert bytes(Form(members, "input").encode(value)) == whole(members, value)


@given(values(), st.sampled_from(list(OTHERS.values())), st.booleans())
def test_the_bytes_of_any_value_are_those_of_the_whole_map(value, members, sort_keys):
    made = Form(members, "input").encode(value, sort_keys=sort_keys)
    assert bytes(made) == whole(members, value, sort_keys=sort_keys)


@given(plain_values(), plain_values())
def test_a_form_holds_nothing_of_the_values_before(first, second):
    form = Form(OTHERS["small"], "input")
    form.encode(first)
    assert bytes(form.encode(second)) == whole(OTHERS["small"], second)


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
    assert bytes(form.encode(value, limits=limits)) == whole(OTHERS["small"], value, limits=limits)
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


@pytest.mark.parametrize("sort_keys", [False, True])
@pytest.mark.parametrize(
    "value", [{"bb": 1, "a": [{"d": 1, "c": 2}]}, {"bb": bytes(100_000), "a": 1}]
)
def test_the_options_of_a_keyed_call_were_encoded_anew_with_each(monkeypatch, value, sort_keys):
    form = Form(OTHERS["small"], "input")
    expected = whole(OTHERS["small"], value, sort_keys=sort_keys)
    monkeypatch.delattr("trio_envserve.core.values.encode_to_send")
    assert bytes(form.encode(value, sort_keys=sort_keys)) == expected


def test_what_is_written_for_the_open_key_is_not_looked_at():
    form = Form({"a": 1, "input": object()}, "input")
    assert decode(bytes(form.encode(2))) == {"a": 1, "input": 2}


@pytest.mark.parametrize("more", range(4))
def test_items_around_the_value_count(more):
    """Whether a value of very many items is taken does not depend on how it is encoded."""
    limits = WireLimits(items=300)
    value = [0] * (280 + more * 4)
    form = Form(OTHERS["small"], "input")
    try:
        expected: object = whole(OTHERS["small"], value, limits=limits)
    except EncodingError as error:
        expected = str(error)
    try:
        made: object = bytes(form.encode(value, limits=limits))
    except EncodingError as error:
        made = str(error)
    assert made == expected
    assert isinstance(made, str) is (more >= 3)


def test_a_value_deep_inside_is_refused_with_its_place():
    form = Form(OTHERS["small"], "input")
    value: dict[str, Any] = {"a": [bytes(100_000), {"b": object()}]}
    value["itself"] = value
    for bad in (value["a"], value, [[]] * 300 + [object()]):
        with pytest.raises(EncodingError) as refused:
            form.encode(bad, root="")
        with pytest.raises(EncodingError) as expected:
            whole(OTHERS["small"], bad, root="")
        assert (refused.value.path, refused.value.type_name, str(refused.value)) == (
            expected.value.path, expected.value.type_name, str(expected.value)
        )  # fmt: skip


def test_a_value_that_is_dear_to_read_is_padded_with_all_of_its_map():
    value: list[Any] = [{}] * 50_000
    made = bytes(Form(OTHERS["small"], "input").encode(value))
    assert made == whole(OTHERS["small"], value)
    assert made[:1] != b"\xa4"  # it begins with the padding


def test_too_much_to_do_at_once_is_said():
    with pytest.raises(TooMuchWork):
        Form(OTHERS["small"], "input").encode([0] * 200_000, at_once=True)
    with pytest.raises(TooMuchWork):  # containers take longer than numbers
        Form(OTHERS["small"], "input").encode([{}] * 20_000, at_once=True)
    assert Form(OTHERS["small"], "input").encode([{}] * 10_000, at_once=True)
