"""The look at a body before it is decoded."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.limits import WireLimits
from trio_envserve.core.values import encode
from trio_envserve.core.values_scan import LEAST_CUT_BYTES, TAG_CUT, TooCostly, placeholder, survey
from trio_envserve.testing.strategies import values

LARGE = bytes(LEAST_CUT_BYTES)
MANY = 1 << 30


def array(data):
    return cbor2.CBORTag(64, data)


def scan(data, *, items=MANY):
    """What is cut out, whatever it costs."""
    return survey(data, WireLimits(items=items), most_bytes=1 << 100).cut


def look(value):
    return scan(memoryview(cbor2.dumps(value)))


def test_large_arrays_are_cut_out():
    cut = look([1, array(LARGE), array(b"small"), {"a": array(LARGE[1:] + b"x")}])
    assert cut is not None
    assert all(isinstance(part, memoryview) for part in cut.parts)
    assert [len(part) for part in cut.parts] == [len(LARGE)] * 2
    assert cut.parts[1][-1:] == b"x"
    expected = [1, array(cbor2.CBORTag(TAG_CUT, 0)), array(b"small")]
    rest = cbor2.loads(cut.rest)
    assert rest[:3] == expected
    assert rest[3] == {"a": array(cbor2.CBORTag(TAG_CUT, 1))}
    assert placeholder(1) in cut.rest


def test_large_bytes_and_texts_are_cut_out():
    text = "\u00e9" * len(LARGE)
    cut = look({"a": [LARGE, "small"], "b": array([LARGE]), text: 1})
    assert cut is not None
    assert cut.parts == [LARGE, LARGE, text]
    assert [type(part) for part in cut.parts] == [bytes, bytes, str]
    hole = [cbor2.CBORTag(TAG_CUT, number) for number in range(3)]
    rest = cbor2.loads(cut.rest)
    assert rest == {"a": [hole[0], "small"], "b": array((hole[1],)), hole[2]: 1}


def test_a_large_text_that_is_none_is_left_to_the_decoder():
    data = cbor2.dumps(["x" * len(LARGE), LARGE]).replace(b"xx", b"x\xff")
    assert scan(memoryview(data)) is None


@pytest.mark.parametrize("major", [2, 3])
def test_chunks_are_not_cut_nor_what_comes_after_them(major):
    chunk = bytes((major << 5 | 26,)) + len(LARGE).to_bytes(4, "big") + LARGE
    chunked = bytes((major << 5 | 31,)) + chunk * 2 + b"\xff"
    assert scan(memoryview(b"\x82" + chunked + chunk)) is None
    cut = scan(memoryview(b"\x82" + chunk + chunked))
    assert cut is not None
    assert len(cut.parts) == 1
    assert cut.rest == b"\x82" + placeholder(0) + chunked


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        LARGE[1:],
        array(LARGE[1:]),
        [array(LARGE), cbor2.CBORTag(TAG_CUT, 0)],
    ],
)
def test_nothing_else_is_cut(value):
    assert look(value) is None


@pytest.mark.parametrize("others", [[*range(10_000)], [["x"]] * 10_000, ["x" * 300] * 500])
def test_what_is_among_many_items_is_cut(others):
    cut = look([*others, array(LARGE), *others])
    assert cut is not None
    assert cut.parts == [LARGE]


@pytest.mark.parametrize(
    "end",
    [b"\x1c", b"\x1f\x1c", b"\x5a\0\0", b"\x5a\0\1\0\0", b"\x18", b"\xda\0\0", b"\xfc", b"\x59"],
)
def test_an_oddity_is_left_to_the_decoder(end):
    data = b"\x82" + cbor2.dumps(array(LARGE)) + end
    assert scan(memoryview(data)) is None


def test_a_part_that_claims_too_much_is_not_cut():
    data = cbor2.dumps(array(LARGE))
    assert scan(memoryview(data[:-1])) is None


def count(value):
    """Items of a decoded value, the long way; keys count, tags do not."""
    if isinstance(value, list):
        return 1 + sum(map(count, value))
    if isinstance(value, dict):
        return 1 + sum(count(key) + count(member) for key, member in value.items())
    if isinstance(value, cbor2.CBORTag):
        return count(value.value)
    return 1


COUNTED = st.recursive(
    st.one_of(
        st.integers(-(1 << 64), (1 << 64) - 1),
        st.floats(),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.binary(),
        st.none(),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(st.integers(), inner),
        st.builds(cbor2.CBORTag, st.integers(1 << 40, 1 << 41), inner),
    ),
)


@given(COUNTED)
def test_items_are_counted(value):
    data = memoryview(cbor2.dumps(value))
    right = count(value)
    scan(data, items=right)
    if len(data) > right - 1 > 0:
        with pytest.raises(TooCostly):
            scan(data, items=right - 1)


@given(values())
def test_a_scan_never_fails(value):
    scan(memoryview(encode(value)))


@given(st.binary(), st.integers(1, 20))
def test_a_scan_of_anything_never_fails(data, items):
    try:
        scan(memoryview(data), items=items)
    except TooCostly:
        assert len(data) > items


def test_a_long_run_is_counted_without_memory():
    data = b"\x9b" + (1 << 40).to_bytes(8, "big") + b"\x18\xff" * (1 << 20)
    with pytest.raises(TooCostly):
        scan(memoryview(data), items=1 << 20)
