"""The order of keys in bodies that are compared, of which no map's own order is part."""

from __future__ import annotations

import dataclasses
import math
from types import MappingProxyType
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.values import TAG_PAIRS, EncodingError, decode, encode
from trio_envserve.testing.strategies import plain_values

KEYS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=30), st.binary(max_size=30),
    st.floats(allow_nan=False), st.tuples(st.integers(), st.text(max_size=3)),
)  # fmt: skip


def backwards(value: Any) -> Any:
    """The same value, with the keys of its dicts in the opposite order."""
    if type(value) is dict:
        return {name: backwards(value[name]) for name in reversed(value)}
    if type(value) in (list, tuple):
        return type(value)(map(backwards, value))
    return value


def nothing() -> None:
    """Nobody else waits to run."""


@given(plain_values())
def test_the_same_value_in_another_order_gives_the_same_bytes(value):
    body = encode(value, sort_keys=True)
    assert body == encode(backwards(value), sort_keys=True)
    assert body == encode(value, sort_keys=True, pause=nothing)
    assert body == encode(decode(body), sort_keys=True) == encode(decode(body))


@given(st.dictionaries(KEYS, st.integers(), max_size=8))
def test_keys_come_in_the_order_of_their_encodings(value):
    written = decode(encode(value, sort_keys=True))
    assert isinstance(written, dict)
    encodings = [cbor2.dumps(name) for name in written]
    assert encodings == sorted(encodings)


@dataclasses.dataclass
class Point:
    y: int
    x: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Point(1, {"b": 1, "a": 2}), {"x": {"a": 2, "b": 1}, "y": 1}),
        (MappingProxyType({"b": 1, "a": math.inf}), {"a": math.inf, "b": 1}),
        ({"b": b"large" * 10_000, "a": [{"d": 1, "c": 2}]},
         {"a": [{"c": 2, "d": 1}], "b": b"large" * 10_000}),
        ({(1, "b"): {"d": 1, "c": 2}, (1, "a"): 3},
         cbor2.CBORTag(TAG_PAIRS, [(1, "a"), 3, (1, "b"), {"c": 2, "d": 1}])),
    ],
    ids=["a dataclass", "a mapping", "a large value", "keys of several parts"],
)  # fmt: skip
def test_what_is_lowered_comes_in_order_too(value: Any, expected: Any):
    assert encode(value, sort_keys=True) == cbor2.dumps(expected)


@pytest.mark.parametrize("pause", [None, nothing])
def test_large_maps_come_in_order_too(pause: Any):
    value = {str(number): {"b": number, "a": 0} for number in range(9_000, 0, -1)}
    names = sorted(value, key=cbor2.dumps)
    body = encode(value, sort_keys=True, pause=pause)
    plain = cbor2.dumps({name: {"a": 0, "b": value[name]["b"]} for name in names})
    assert body.endswith(plain)  # behind its header


def test_half_a_surrogate_pair_in_a_key_is_found():
    with pytest.raises(EncodingError) as caught:
        encode({"b": {"a\ud800": 1}, "a": 2}, sort_keys=True, root="input")
    assert "surrogates not allowed" in str(caught.value)


@given(st.lists(st.text(alphabet=st.characters(max_codepoint=300), max_size=4), max_size=6))
def test_text_is_in_order_however_long_it_is(short):
    names = [name + "x" * size for name in short for size in (0, 19, 20, 21, 251, 252, 253)]
    written = decode(encode(dict.fromkeys(names), sort_keys=True))
    assert isinstance(written, dict)
    encodings = [cbor2.dumps(name) for name in written]
    assert encodings == sorted(encodings)
