"""The little of msgpack that the door reads: what it takes, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.doors.verifiers import msgpack

RECORDS = st.dictionaries(
    st.text(max_size=40), st.none() | st.booleans() | st.text(max_size=300), max_size=15
)


@given(RECORDS)
def test_what_is_written_is_read(record):
    written = msgpack.write(record)
    if len(written) <= msgpack.MOST_BYTES:
        assert msgpack.read(written) == record


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        record = msgpack.read(data)
    except msgpack.NotMsgpack:
        return
    assert all(isinstance(name, str) for name in record)


def test_a_text_that_is_no_unicode_is_written_as_escapes():
    assert msgpack.read(msgpack.write({"a": "\ud800"})) == {"a": "\\ud800"}


@pytest.mark.parametrize(
    ("data", "record"),
    [
        (b"\x80", {}),
        (b"\x81\xa1a\xa1b", {"a": "b"}),
        (b"\x81\xd9\x01a\xda\x00\x01b", {"a": "b"}),
        (b"\xde\x00\x01\xa1a\xdb\x00\x00\x00\x01b", {"a": "b"}),
        (b"\xdf\x00\x00\x00\x02\xa1a\xc2\xa1b\xc0", {"a": False, "b": None}),
    ],
)
def test_each_form_of_a_map_and_a_text_is_read(data, record):
    assert msgpack.read(data) == record
    assert msgpack.read(memoryview(data)) == record


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ends too early"),
        (b"\xc1", "a map expected"),
        (b"\x90", "a map expected"),
        (b"\x81", "ends too early"),
        (b"\x81\xa2a", "ends too early"),
        (b"\x81\x01\xa1b", "truth value or nil expected"),
        (b"\x81\xc3\xa1b", "names of a map are texts"),
        (b"\x82\xa1a\xc0\xa1a\xc0", "each once"),
        (b"\x81\xa1a\x81\xa1b\xc0", "truth value or nil expected"),
        (b"\x81\xa1a\xa1\xff", "not UTF-8"),
        (b"\x81\xa1a\xc0\xc0", "follows the map"),
        (b"\xde\xff\xff", "65535 entries"),
        (b"\xdf\xff\xff\xff\xff" + bytes(100), "entries, 15 allowed"),
        (b"\x81\xa1a\xdb\x3f\xff\xff\xff" + bytes(100), "ends too early"),
        (b"\x81\xa1a\xdb\x00\x00\x20\x00" + bytes(8192), "4096 allowed"),
    ],
)
def test_other_bytes_are_refused_and_it_is_said_why(data, why):
    with pytest.raises(msgpack.NotMsgpack, match=why):
        msgpack.read(data)
