"""Bundles: what goes in comes out, in order, and nothing else passes for one."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.net import BATCH_MESSAGES, COPY_THRESHOLD_BYTES, FRAMES_MAX, bundle

frames = st.binary(max_size=60) | st.integers(0, 6000).map(bytes)
batches = st.lists(st.lists(frames, min_size=1, max_size=5), max_size=40)


def unpacked(messages):
    """What a receiver makes of them."""
    for message in messages:
        if len(message) == 1 and message[0].startswith(bundle.MARK):
            yield from bundle.unpack(message[0])
        else:
            yield list(message)


@given(batches)
def test_what_is_packed_comes_out_in_order(batch):
    packed = list(bundle.pack(batch))
    assert list(unpacked(packed)) == batch
    assert all(len(frame) < COPY_THRESHOLD_BYTES for frame in bundles_of(packed))


def bundles_of(packed):
    return [m[0] for m in packed if m[0][:3] == bundle.MARK]


def test_what_is_alone_goes_alone():
    message = (b"header", b"body")
    assert list(bundle.pack([message])) == [message]
    assert list(bundle.pack([])) == []


def test_large_messages_go_alone_and_keep_their_place():
    large = (b"h", bytes(bundle.MEMBER_BYTES))
    view = (b"h", memoryview(b"small"))
    packed = list(bundle.pack([(b"1",), (b"2",), large, (b"3",), view]))
    assert len(packed) == 4
    assert packed[1:] == [large, (b"3",), view]


def test_a_bundle_is_bounded_in_messages_and_bytes():
    many = [(b"x",)] * (BATCH_MESSAGES + 2)
    assert [len(bundle.unpack(f)) for f in bundles_of(bundle.pack(many))] == [BATCH_MESSAGES, 2]
    big = [(bytes(bundle.MEMBER_BYTES),)] * 9
    assert [len(bundle.unpack(f)) for f in bundles_of(bundle.pack(big))] == [7, 2]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_bundle_or_one_message(data):
    frame = bundle.MARK + data
    members = bundle.unpack(frame)
    assert members == [[frame]] or all(type(f) is bytes for member in members for f in member)


@pytest.mark.parametrize(
    "content",
    [
        [],
        [[]],
        [[b"x"]] * (BATCH_MESSAGES + 1),
        [[b"x"] * (FRAMES_MAX + 1)],
        [b"x"],
        [["text"]],
        [[[b"deep"]]],
        {},
        None,
    ],
    ids=repr,
)
def test_what_is_no_bundle_is_one_message(content):
    frame = cbor2.dumps((32, content))
    assert bundle.unpack(frame) == [[frame]]
