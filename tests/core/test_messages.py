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
from trio_envserve.core.limits import BATCH_BYTES, PROTOCOL_VERSION
from trio_envserve.core.messages import (
    ABOUT_CDDL,
    FIELDS,
    KINDS,
    MAX_UINT,
    MESSAGES,
    ForeignVersion,
)
from trio_envserve.core.router_inputs import ClientMessage
from trio_envserve.core.terms import NOTE_BYTES
from trio_envserve.testing import strategies

from .helpers import HEADER_BYTES, STRANGER, Pair

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
    "positive": [0, -1, MAX_UINT, 1.0, True, None, "1"],
    "id": [b"", b"x" * 15, b"x" * 17, "x" * 16, None],
    "tstr": [b"text", None, 1],
    "bool": [0, 1, None],
    "bool / null": [0, 1, "true"],
    "seconds / null": [-0.1, math.inf, math.nan, 1e12, True, "1"],
    "seconds": [None, -0.1, math.inf, math.nan, 1e12, True, "1"],
    "spans": [[1], [2, 1], [1, 1], [0, 2, 2, 3], [-1, 1], [0, MAX_UINT], [0, 1.0], None, {}],
    "{* tstr => any}": [[], None, {1: 2}, {b"a": 1}],
    "digest": [b"d" * 31, b"d" * 33, "d" * 32, None],
    "bstr": ["text", None, 1],
    "tag": [-1, MAX_UINT, True, None, "text", b"", bytes(65)],
    "1..4": [-1, 0, 5, True, 1.0],
    ABOUT_CDDL: ["", "stats", None, b"keys"],
    "traceparent": [None, b"", "", "00" * 27, *WRONG_TRACEPARENTS],
    "[* note]": [None, b"note", ["note"], [bytes(NOTE_BYTES + 1)], {}],
}


def example(cls: Any) -> list[Any]:
    """Good fields of a message."""
    plain: dict[str, Any] = {
        "uint": 1, "positive": 1, "id": b"i" * 16, "tstr": "text", "bool": True,
        "bool / null": None, "seconds / null": 1.5, "seconds": 2.5, "spans": [0, 2, 3, 4],
        "{* tstr => any}": {"a": [1]}, "digest": b"d" * 32, "bstr": b"key",
        "tag": b"tag", "1..4": 2, ABOUT_CDDL: "keys",
        "[* note]": [b"note", b""], "traceparent": TRACEPARENT,
    }  # fmt: skip
    fields = [plain[field.cddl] for _, field in FIELDS[cls]]
    versioned = cls in (messages.Hello, messages.WorkerHello)
    return [PROTOCOL_VERSION, *fields[1:]] if versioned else fields


def array(*elements: Any) -> bytes:
    return cbor2.dumps(elements)


def decode(header: bytes | memoryview) -> messages.Message:
    return messages.decode(header, most_bytes=MOST)


@given(strategies.messages())
def test_whatever_is_encoded_comes_back_the_same(message):
    assert decode(messages.encode(message)) == message
    assert type(decode(memoryview(messages.encode(message)))) is type(message)


def header_of(cls: Any, fields: Any) -> bytes:
    """Of a batch of one, if it is of a kind that has batches."""
    return array(KINDS[cls], *[None] * (cls in messages.BATCHED), *fields)


EACH_FIELD = [
    pytest.param(cls, index, id=f"{cls.__name__}.{name}")
    for cls in MESSAGES
    for index, (name, _) in enumerate(FIELDS[cls])
]


@pytest.mark.parametrize(("cls", "index"), EACH_FIELD)
def test_a_field_of_the_wrong_type_or_size_is_refused(cls, index):
    fields, (_, field) = example(cls), FIELDS[cls][index]
    assert decode(header_of(cls, fields)) == cls(*fields)
    for value in ANYTHING_ELSE[field.cddl]:
        if value is None and field.optional:
            continue
        fields[index] = value
        with pytest.raises(ProtocolError):
            decode(header_of(cls, fields))


@pytest.mark.parametrize("cls", MESSAGES)
def test_one_field_too_many_or_too_few_is_refused(cls):
    fields = example(cls)
    fewest = sum(not field.optional for _, field in FIELDS[cls])
    for wrong in ([*fields, 1], fields[: fewest - 1]):
        if len(wrong) != len(fields):
            with pytest.raises(ProtocolError, match=r"fields, not|not spoken"):
                decode(header_of(cls, wrong))


@pytest.mark.parametrize("cls", [messages.Request, messages.Dispatch])
def test_a_field_that_may_be_left_out_takes_no_byte(cls):
    fields = example(cls)[: sum(not field.optional for _, field in FIELDS[cls])]
    header = messages.encode(cls(*fields))
    assert header == header_of(cls, fields)
    assert decode(header) == cls(*fields)


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
    ("kind", "version", "shown"),
    [
        (messages.Hello, [1], "1"), (messages.Hello, [0], "0"), (messages.Hello, ["1"], r"\?"),
        (messages.Hello, [-1], r"\?"), (messages.Hello, [], r"\?"),
        (messages.WorkerHello, [1], "1"),
        pytest.param(messages.Hello, [10**6000], r"\?", id="too long to be shown"),
    ],
)  # fmt: skip
def test_a_hello_of_another_version_is_foreign_whatever_else_it_holds(kind, version, shown):
    with pytest.raises(ForeignVersion, match=f"version {shown} is not spoken, 2 is"):
        decode(array(KINDS[kind], *version, *(["new", "fields"] if version else [])))


def test_kinds_are_unique_and_every_message_has_one():
    assert {*KINDS} == {*MESSAGES}
    assert len({*KINDS.values()}) == len(MESSAGES)


def test_the_frozen_shapes_are_as_they_were():
    assert KINDS[messages.Hello] == 0
    assert FIELDS[messages.Hello][0][0] == "version"
    assert messages.encode(messages.Error(1, "a", "b")) == bytes.fromhex("84170161616162")


# -- batches --------------------------------------------------------------------


def rows_of(kind: Any) -> st.SearchStrategy[list[messages.MessageRow]]:
    """Rows of one kind with their bodies; some of their fields are often the same."""
    few = st.lists(strategies.messages(kind), min_size=1, max_size=4)

    def said(made: list[Any], first: int, drawn: bytes) -> list[messages.MessageRow]:
        rows = ((made[each % len(made)], bytes([each]) * (each % 31)) for each in drawn)
        return [(row._replace(sequence=n), body) for n, (row, body) in enumerate(rows, first)]

    return st.builds(said, few, st.integers(0, 2**62), st.binary(min_size=1, max_size=70))


@pytest.mark.parametrize("kind", sorted(messages.BATCHED, key=lambda cls: KINDS[cls]))
@given(data=st.data())
def test_the_rows_of_batches_come_back_the_same_and_in_order(kind: Any, data: st.DataObject):
    said = data.draw(rows_of(kind))
    read: list[messages.MessageRow] = []
    for frames in messages.in_batches(said):
        rows = messages.read(frames, most_bytes=MOST)
        assert 1 <= len(rows) == messages.rows_claimed(frames[0]) <= messages.BATCH_ROWS
        read += rows
    assert read == said


S, D = b"s" * 16, b"d" * 16


def request(sequence: int = 0, **fields: Any) -> messages.Request:
    return messages.Request(b"s" * 16, sequence, b"d" * 16, None, 1, None)._replace(**fields)


def shape(said: list[messages.MessageRow]) -> list[int]:
    """How many rows each message has."""
    found = [messages.read(f, most_bytes=MOST) for f in messages.in_batches(said)]
    assert [row for rows in found for row in rows] == said
    return [len(rows) for rows in found]


def test_neighbours_of_one_kind_share_a_batch():
    sync = messages.Cancel(b"s" * 16, 9)
    said: list[messages.MessageRow] = [(request(n), b"body") for n in range(3)]
    assert shape([]) == []
    assert shape(said) == [3]
    assert shape([*said, (sync, None), *said]) == [3, 1, 3]
    dispatch = messages.Dispatch(b"s" * 16, 0, 0, "client")
    assert shape([*said, (dispatch, b"body"), *said]) == [3, 1, 3]
    assert shape([(messages.QueryAnswer(1), b"record"), *said]) == [1, 3]


def test_g8_a_batch_is_bounded_in_rows_and_bytes():
    most = messages.BATCH_ROWS
    assert shape([(request(n), b"") for n in range(2 * most + 1)]) == [most, most, 1]
    assert shape([(request(n), bytes(1024)) for n in range(40)]) == [32, 8]
    large = bytes(messages.ROW_BYTES + 1)
    assert shape([(request(n), large if n == 2 else b"x") for n in range(5)]) == [2, 1, 2]
    keyed = messages.Request(
        b"s" * 16, 0, b"d" * 32, None, 1, None, namespace=b"n", key=b"k" * 900, tag=0
    )
    batches = list(messages.in_batches([(keyed._replace(sequence=n), b"") for n in range(64)]))
    assert len(batches) > 1
    assert all(len(header) <= BATCH_BYTES for header, _ in batches)


def test_what_is_the_same_in_all_rows_is_written_once():
    (frames,) = messages.in_batches([(request(n), b"%d" % n) for n in range(5, 8)])
    header = cbor2.loads(frames[0])
    assert header == [1, [1, 1, 1], b"s" * 16, [5, 6, 7], b"d" * 16, None, 1, None, None]
    assert frames[1] == b"567"


def test_of_a_last_field_that_some_rows_leave_out_there_is_a_column():
    said: list[messages.MessageRow] = [
        (request(0), b""),
        (request(1, traceparent=TRACEPARENT), b""),
    ]
    (frames,) = messages.in_batches(said)
    assert cbor2.loads(frames[0])[-1] == [None, TRACEPARENT]
    assert messages.read(frames, most_bytes=MOST) == said


def test_a_batch_may_have_one_row_and_arrays_of_one():
    header = array(1, [4], b"s" * 16, [7], [b"d" * 16], None, 1, None, None)
    assert messages.read((header, b"body"), most_bytes=MOST) == [(request(7), b"body")]
    with pytest.raises(ProtocolError, match="in a batch, where one is expected"):
        decode(header)


@pytest.mark.parametrize(
    ("header", "blob", "why"),
    [
        ([1, [], S, 0, D, None, 1, None, None], b"", "batch of none"),
        ([1, [0] * 65, S, 0, D, None, 1, None, None], b"", "more than 64"),
        ([1, 0, S, 0, D, None, 1, None, None], b"", "batch of none"),
        ([1, [1, -1], S, 0, D, None, 1, None, None], b"", "size that is not uint"),
        ([1, [1, 1], S, 0, D, None, 1, None, None], b"xxx", "3 bytes of bodies, not 2"),
        ([1, [1, 1], S, [0], D, None, 1, None, None], b"xx", "sequence of 1 rows, not 2"),
        ([1, [1, 1], S, [0, -1], D, None, 1, None, None], b"xx", "sequence is not uint"),
        ([1, [1, 1], b"s" * 15, [0, 1], D, None, 1, None, None], b"xx", "session is not id"),
        ([1, [1, 1], S, 0, D, None, 1, None, None, [None, ""]], b"xx", "traceparent"),
        ([1, [1, 1], S, [0, 1], D, None, 1, None, None, 5], b"xx", "traceparent"),
        ([1, [1, 1], S, [0, 1], D, None, 1], b"xx", "5 fields, not 7 to 14"),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused_whole_with_the_reason(header, blob, why):
    with pytest.raises(ProtocolError, match=why):
        messages.read((array(*header), blob), most_bytes=MOST)


def test_a_body_does_not_hold_those_of_its_batch():
    blob = memoryview(bytes(4 * 1000))
    header = array(1, [1000] * 4, b"s" * 16, [0, 1, 2, 3], b"d" * 16, None, 1, None, None)
    assert {type(body) for _, body in messages.read((header, blob), most_bytes=MOST)} == {bytes}


def test_the_rows_of_a_header_are_seen_by_its_first_bytes():
    assert messages.rows_claimed(b"") == 1
    for rows in (1, 2, 23, 24, 64):
        for message in (
            request(), messages.WorkerOutcome(b"s" * 16, 0, 0, 0, None),
            messages.Outcome(b"s" * 16, 0, 0, "w", 1.0, 1),
        ):  # fmt: skip
            said = [(message._replace(sequence=n), b"") for n in range(rows)]
            ((header, _),) = messages.in_batches(said)
            assert messages.rows_claimed(header) == rows
    assert messages.rows_claimed(messages.encode(messages.Query(0x98, "statistics"))) == 1
    assert messages.rows_claimed(messages.encode(messages.Goodbye(b"\x98" * 16))) == 1


# -- What a header may not hold: found while writing the protocol down ---------


def test_statistics_that_contain_themselves_are_refused():
    # As shared references (tags 28 and 29) they were decoded, and encoding the
    # answer to the next question for statistics then crashed the router.
    itself = cbor2.CBORTag(28, [cbor2.CBORTag(29, 0)])
    header = cbor2.dumps((66, 1, [], {"loop": itself}))
    with pytest.raises(ProtocolError, match="not CBOR"):
        decode(header)


@pytest.mark.parametrize("tag", [0, 1, 35, 37, 258, 260])
def test_a_tag_is_refused(tag: int):
    with pytest.raises(ProtocolError):
        decode(cbor2.dumps((66, b"", 1, [], {"any": cbor2.CBORTag(tag, "1")})))


def test_a_large_integer_in_a_record_is_no_tag_to_refuse():
    beat = messages.Beat(b"", 1, 0, [], {"bytes": 2**70, "less": -(2**70)})
    assert decode(messages.encode(beat)) == beat


def test_a_key_twice_in_a_record_is_refused():
    twice = bytes.fromhex("8418420180a2616101616102")
    with pytest.raises(ProtocolError):
        decode(twice)


def test_a_kind_too_long_to_be_printed_crashed_its_reader():
    """ValueError, not ProtocolError: Python refuses to print so large an integer."""
    with pytest.raises(ProtocolError):
        messages.decode(cbor2.dumps([10**6000]), most_bytes=HEADER_BYTES)
    pair = Pair()
    pair.give(ClientMessage(STRANGER, (cbor2.dumps([10**6000]),), pair.now_s))
    assert pair.router.malformed == 1


# -- bytes that follow a header --------------------------------------------------
# A header frame with one more CBOR item after its array was taken for the array
# alone: the decoder reads one item and does not mind the rest.  The document says that
# nothing follows; two readers who cut differently would see two different messages.
#
# Found by `trio-envserve conform`: a-malformed-header-is-answered-with-an-error.


@pytest.mark.parametrize("rest", [b"\x00", b"\xf6", b"\xff", bytes(70_000), None])
@pytest.mark.parametrize("whole", [bytes, memoryview])
def test_nothing_follows_the_array(rest: bytes | None, whole: type):
    header = messages.encode(messages.Query(1, "statistics"))
    assert messages.decode(whole(header), most_bytes=1 << 20) == messages.Query(1, "statistics")
    with pytest.raises(ProtocolError):
        messages.decode(whole(header + (header if rest is None else rest)), most_bytes=1 << 20)
