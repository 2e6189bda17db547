"""Notes: what fits into one, and that all of it is read again."""

from __future__ import annotations

import math
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import notes
from trio_envserve.core.terms import NOTE_BYTES

TEXTS = st.builds(lambda text, times: text * times, st.text(max_size=9), st.integers(0, 300))
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS


def test_a_note_is_read_as_it_was_written():
    note: notes.Note = {"turn": 3, "tokens": 1.5, "text": "übrig", "last": True, "tool": None}
    assert notes.decode(notes.encode(note)) == note


@given(st.dictionaries(st.sampled_from(["turn", "text", "tool", "more"]), plain))
def test_a_note_of_a_few_fields_always_fits(note: notes.Note):
    encoded = notes.encode(note)
    assert len(encoded) <= NOTE_BYTES
    read = notes.decode(encoded)
    assert list(read) == list(note)
    for name, value in note.items():
        assert read[name] == value or (isinstance(value, str) and str(read[name]).endswith("…"))


def test_a_text_of_a_megabyte_is_cut_with_a_mark():
    text = notes.decode(notes.encode({"turn": 3, "text": "ü" * 1_000_000}))["text"]
    assert isinstance(text, str)
    assert text.rstrip("…").strip("ü") == ""
    assert text.endswith("…")
    assert len(text.encode()) > 0.9 * NOTE_BYTES


def test_long_texts_take_no_room_from_short_ones():
    note = notes.decode(notes.encode({"long": "x" * 5000, "tool": "search", "other": "y" * 5000}))
    assert note["tool"] == "search"
    assert {str(note["long"])[-1], str(note["other"])[-1]} == {"…"}


def test_a_text_that_no_encoding_has_is_replaced():
    assert notes.decode(notes.encode({"text": "a\ud800b"})) == {"text": "a?b"}


@pytest.mark.parametrize("value", [b"bytes", [1], {}, object(), type("Text", (str,), {})("a")])
def test_what_is_no_plain_data_is_an_error_at_the_call(value: Any):
    with pytest.raises(TypeError, match="field is of type"):
        notes.encode({"field": value})


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**63, -(2**63) - 1])
def test_a_number_that_cannot_travel_is_an_error_at_the_call(value: Any):
    with pytest.raises(ValueError, match="field"):
        notes.encode({"field": value})


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb"])
def test_a_name_that_cannot_be_shown_is_an_error_at_the_call(name: str):
    with pytest.raises(ValueError, match="the name of a field"):
        notes.encode({name: 1})


@pytest.mark.parametrize("value", [1, "", "text" * 5])
def test_more_fields_than_there_is_room_for_are_an_error_at_the_call(value: Any):
    with pytest.raises(ValueError, match="write fewer fields"):
        notes.encode({f"{'x' * 50}{number}": value for number in range(100)})


@given(st.binary(max_size=50))
def test_whatever_a_note_is_reading_it_raises_nothing(junk: bytes):
    assert isinstance(notes.decode(junk), dict)


def test_what_is_no_plain_field_is_left_out():
    assert notes.decode(cbor2.dumps({"a": 1, b"2": 3, "b": [1], "c": b"x", "d": math.inf})) == {
        "a": 1
    }
    assert notes.decode(cbor2.dumps([1, 2])) == {}
