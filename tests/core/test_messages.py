"""The codec: what was encoded comes back, and nothing else is believed."""

from __future__ import annotations

import math
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.fields import MAX_UINT
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.messages import FIELDS, KINDS, MESSAGES, ForeignVersion
from trio_envserve.core.terms import NOTE_BYTES, Status
from trio_envserve.testing import strategies

MOST = 1 << 20

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WRONG_TRACEPARENTS = [
    TRACEPARENT.upper(), TRACEPARENT[:-1], TRACEPARENT + "0", TRACEPARENT + "\n",
    "01" + TRACEPARENT[2:], TRACEPARENT.encode(),
    f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
]  # fmt: skip

# For each kind of field, values that are not of it.
ANYTHING_ELSE: dict[str, list[Any]] = {
    "uint": [-1, MAX_UINT, 1.0, True, None, "1"],
    "id": [b"", b"x" * 15, b"x" * 17, "x" * 16, None],
    "tstr": [b"text", None, 1],
    "bool": [0, 1, None],
    "bool / null": [0, 1, "true"],
    "seconds / null": [-0.1, math.inf, math.nan, 1e12, True, "1"],
    "spans": [[1], [2, 1], [1, 1], [0, 2, 2, 3], [-1, 1], [0, MAX_UINT], [0, 1.0], None, {}],
    "{* tstr => any}": [[], None, {1: 2}, {b"a": 1}],
    "digest": [b"d" * 31, b"d" * 33, "d" * 32, None],
    "bstr": ["text", None, 1],
    "uint / bstr": [-1, MAX_UINT, True, None, "text"],
    "uint / null": [-1, MAX_UINT, False, b""],
    "0..4": [-1, 5, True, None, 1.0],
    "traceparent": [None, b"", "", "00" * 27, *WRONG_TRACEPARENTS],
    "[* note]": [None, b"note", ["note"], [bytes(NOTE_BYTES + 1)], {}],
}


def example(cls: Any) -> list[Any]:
    """Good fields of a message."""
    plain: dict[str, Any] = {
        "uint": 1, "id": b"i" * 16, "tstr": "text", "bool": True, "bool / null": None,
        "seconds / null": 1.5, "spans": [0, 2, 3, 4], "{* tstr => any}": {"a": [1]},
        "digest": b"d" * 32, "bstr": b"key", "uint / bstr": b"tag", "uint / null": None, "0..4": 2,
        "[* note]": [b"note", b""], "traceparent": TRACEPARENT,
    }  # fmt: skip
    fields = [plain[field.cddl] for _, field in FIELDS[cls]]
    return [PROTOCOL_VERSION, *fields[1:]] if cls is messages.Hello else fields


def array(*elements: Any) -> bytes:
    return cbor2.dumps(elements)


def decode(header: bytes | memoryview) -> messages.Message:
    return messages.decode(header, most_bytes=MOST)


@given(strategies.messages())
def test_whatever_is_encoded_comes_back_the_same(message):
    assert decode(messages.encode(message)) == message
    assert type(decode(memoryview(messages.encode(message)))) is type(message)


BAD_FIELDS = [
    pytest.param(cls, index, value, id=f"{cls.__name__}.{name}={value!r}")
    for cls in MESSAGES
    for index, (name, field) in enumerate(FIELDS[cls])
    for value in ANYTHING_ELSE[field.cddl]
]


@pytest.mark.parametrize(("cls", "index", "value"), BAD_FIELDS)
def test_a_field_of_the_wrong_type_or_size_is_refused(cls, index, value):
    fields = example(cls)
    assert decode(array(KINDS[cls], *fields)) == cls(*fields)
    fields[index] = value
    with pytest.raises(ProtocolError):
        decode(array(KINDS[cls], *fields))


@pytest.mark.parametrize("cls", MESSAGES)
def test_one_field_too_many_or_too_few_is_refused(cls):
    fields = example(cls)
    optional = any(field.optional for _, field in FIELDS[cls])
    for wrong in ([*fields, 1], fields[: -2 if optional else -1]):
        if len(wrong) != len(fields):
            with pytest.raises(ProtocolError, match=r"fields, not|not spoken"):
                decode(array(KINDS[cls], *wrong))


@pytest.mark.parametrize("cls", [messages.Request, messages.KeyedRequest, messages.Dispatch])
def test_a_field_that_may_be_left_out_takes_no_byte(cls):
    *fields, _ = example(cls)
    header = messages.encode(cls(*fields))
    assert header == array(KINDS[cls], *fields)
    assert decode(header) == cls(*fields, None)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"", "not CBOR"),
        (b"\xff", "not CBOR"),
        (cbor2.dumps("hello"), "not an array"),
        (array(), "not an array"),
        (array("hello"), "not an array"),
        (array(True), "not an array"),
        (array(-1), "not an array"),
        (array(10**30), "not an array"),
        (array(15), "unknown kind 15"),
        (b"\x9f\x05\x01\xff", "not CBOR"),  # of indefinite length
        (b"\x81" * 40 + b"\x01", "not CBOR"),  # deep
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(header, why):
    with pytest.raises(ProtocolError, match=why):
        decode(header)


def test_g8_a_header_over_its_bound_is_not_even_read():
    with pytest.raises(ProtocolError, match="header of 101 bytes, 100 allowed"):
        messages.decode(b"\xff" * 101, most_bytes=100)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_message_or_a_protocol_error(header):
    try:
        message = decode(header)
    except ProtocolError:
        return
    assert type(message) in MESSAGES


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        (2, "2"), (0, "0"), ("1", r"\?"), (-1, r"\?"),
        pytest.param(10**6000, r"\?", id="too long to be shown"),
    ],
)  # fmt: skip
def test_a_hello_of_another_version_is_foreign_whatever_else_it_holds(version, shown):
    with pytest.raises(ForeignVersion, match=f"version {shown} is not spoken, 1 is"):
        decode(array(KINDS[messages.Hello], version, "new", "fields"))


def test_a_hello_without_a_version_is_foreign():
    with pytest.raises(ForeignVersion):
        decode(array(KINDS[messages.Hello]))


def test_kinds_are_unique_and_every_message_has_one():
    assert {*KINDS} == {*MESSAGES}
    assert len({*KINDS.values()}) == len(MESSAGES)


def test_the_frozen_shapes_are_as_they_were():
    assert KINDS[messages.Hello] == 0
    assert FIELDS[messages.Hello][0][0] == "version"
    assert messages.encode(messages.Error(1, "a", "b")) == bytes.fromhex("84170161616162")


# -- records and statuses ----------------------------------------------------


def test_statistics_are_one_record():
    assert cbor2.loads(messages.encode_record({"a": [1]})) == {"a": [1]}


def test_the_statuses_are_those_of_the_protocol():
    assert [n for n in range(-1, 10) if messages.is_status(n)] == [*Status]


@pytest.mark.parametrize("sequence", [0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32])
@pytest.mark.parametrize("other", [0, 23, 24, 2**16, 2**62])
def test_an_outcome_for_another_request_differs_in_its_id_only(sequence: int, other: int):
    outcome = messages.Outcome(bytes(16), sequence, 1, "w0-1", 0.25, 3)
    mine = outcome._replace(session=b"\x01" * 16, sequence=other)
    header = messages.encode(outcome)
    assert messages.readdressed(header, mine.session, other) == messages.encode(mine)
