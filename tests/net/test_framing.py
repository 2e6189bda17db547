"""Framing: what goes in comes out however it is cut, and nothing passes a bound."""

from __future__ import annotations

import gc
import sys
import weakref
from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.terms import BodyParts
from trio_envserve.net import COPY_THRESHOLD_BYTES
from trio_envserve.net.framing import (
    COMMAND,
    LONG,
    MORE,
    PIECES_MOST,
    READ_BYTES,
    Decoder,
    FrameLimits,
    FrameTooLarge,
    FramingError,
    Outgoing,
    encode,
    encode_command,
)

LIMITS = FrameLimits(frame_bytes=900_000, message_bytes=1_800_000, frames=5)
SMALL = FrameLimits(frame_bytes=1000, message_bytes=2000, frames=5, command_bytes=100)

sizes = st.one_of(
    st.integers(0, 300),
    st.sampled_from(
        [255, 256, COPY_THRESHOLD_BYTES - 1, COPY_THRESHOLD_BYTES, 70_000, 140_000, 600_000]
    ),
)
frames = st.builds(lambda size, fill: bytes([fill]) * size, sizes, st.integers(0, 255))
batches = st.lists(st.lists(frames, min_size=1, max_size=2) | st.just([b"x"] * 5), max_size=6)


def decoded(data: bytes, chunks: list[int], limits: FrameLimits, most: int = 3, into: bool = True):
    """Messages, commands and the error of bytes that arrive in such chunks, in turn."""
    decoder = Decoder(limits)
    messages: list[list[bytes]] = []
    error = ""
    at = turn = 0
    try:
        while at < len(data):
            size = chunks[turn % len(chunks)]
            turn += 1
            view = decoder.buffer() if into else None
            if view is None:
                decoder.feed(data[at : at + size])
                at += len(data[at : at + size])
            else:
                size = min(size, len(view), len(data) - at)
                view[:size] = data[at : at + size]
                decoder.received(size)
                at += size
            while True:
                # Message for message: those before a violation are given out.
                batch = decoder.take(most)
                messages += [[bytes(frame) for frame in message] for message in batch]
                if not decoder.is_backlogged:
                    break
            most_held = 2 * limits.message_bytes + READ_BYTES + limits.command_bytes
            assert decoder.arriving_bytes <= most_held
    except FramingError as exc:
        error = f"{type(exc).__name__}: {exc}"
    return messages, list(decoder.commands), error


@given(batches, st.lists(st.integers(1, 100_000), min_size=1, max_size=5), st.booleans())
def test_messages_arrive_however_they_are_cut(batch, chunks, into):
    data = b"".join(encode(batch))
    assert decoded(data, chunks, LIMITS, into=into) == (batch, [], "")


pieces = st.one_of(
    st.binary(max_size=12),
    st.builds(lambda f: encode([[f]])[0], st.binary(max_size=40)),
    st.builds(lambda f: bytes([MORE, len(f)]) + f, st.binary(max_size=40)),
    st.builds(encode_command, st.binary(max_size=300)),
    st.builds(
        lambda flags, size: bytes([flags]) + size.to_bytes(8, "big"),
        st.sampled_from([LONG, LONG | MORE, LONG | COMMAND, 0xFF]),
        st.integers(0, 2**64 - 1) | st.integers(0, 1200),
    ),
)


@given(
    st.lists(pieces, max_size=12).map(b"".join),
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.integers(1, 4),
    st.booleans(),
)
def test_hostile_bytes_mean_the_same_however_they_are_cut(data, chunks, most, into):
    whole = decoded(data, [len(data) or 1], SMALL)
    assert decoded(data, chunks, SMALL, most, into) == whole


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (b"", 0),
        (b"\0", 1),
        (bytes((MORE, 1)) + b"a", 1),
        (bytes((MORE, 3)) + b"abc" + bytes((0, 5)) + b"de", 3 + 2 + 2),
    ],
    ids=["nothing", "half a head", "a frame", "a frame and the beginning of one"],
)
def test_the_held_bytes_of_an_unfinished_message_are_counted_exactly(data: bytes, held: int):
    decoder = Decoder(LIMITS)
    decoder.feed(data)
    assert decoder.take(9) == []
    assert decoder.is_backlogged is False
    assert (decoder.arriving_bytes, decoder.is_between_messages) == (held, not data)


def test_a_large_frame_that_came_in_parts_is_one_of_those_that_were_asked_for():
    body = b"a" * COPY_THRESHOLD_BYTES
    data = b"".join(encode([[body], [b"b"]]))
    decoder = Decoder(LIMITS)
    decoder.feed(data[:20])
    assert decoder.take(1) == []
    decoder.feed(data[20:])
    assert decoder.take(1) == [[body]]
    assert decoder.is_backlogged
    assert decoder.message_bytes == 0
    assert decoder.take(1) == [[b"b"]]


def test_bytes_that_were_decoded_are_not_held():
    """An idle connection would keep what it read last."""
    data = b"".join(encode([[bytes(READ_BYTES // 3)] * 2]))
    held = sys.getrefcount(data)
    decoder = Decoder(LIMITS)
    decoder.feed(data)
    assert len(decoder.take(9)) == 1
    assert sys.getrefcount(data) == held


def test_messages_as_large_as_a_bound_pass():
    decoder = Decoder(SMALL)
    messages = [[bytes(1000)] * 2, [b""] * 5]
    decoder.feed(encode_command(bytes(100)) + b"".join(encode(messages)))
    assert decoder.take(9) == messages
    assert list(decoder.commands) == [bytes(100)]


def test_a_large_frame_is_received_into_its_own_buffer_which_grows_with_it():
    decoder = Decoder(LIMITS)
    decoder.feed(bytes([LONG]) + (300_000).to_bytes(8, "big"))
    assert decoder.take(1) == []
    assert decoder.arriving_bytes <= 2 * COPY_THRESHOLD_BYTES  # what was claimed is not believed
    arrived = 0
    while arrived < 300_000:
        view = decoder.buffer()
        assert view is not None
        assert len(view)
        size = min(len(view), 10_000)
        decoder.received(size)
        arrived += size
        assert decoder.arriving_bytes <= max(2 * arrived, 2 * COPY_THRESHOLD_BYTES)
    [[frame]] = decoder.take(1)
    assert len(frame) == 300_000
    assert decoder.buffer() is None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (bytes([LONG]) + (1001).to_bytes(8, "big"), "a frame of 1001 bytes; 1000 are taken"),
        (bytes([LONG]) + (2**64 - 1).to_bytes(8, "big"), "a frame of 18446744073709551615"),
        (b"\x03" + (900).to_bytes(8, "big") + bytes(900), "more than 2000 bytes"),
        (b"\x01\x00" * 5 + b"\x00\x00", "more than 5 frames"),
        (encode_command(bytes(101)), "a command of 101 bytes"),
    ],
)
def test_each_bound_is_checked_at_the_head(data, says):
    decoder = Decoder(SMALL)
    decoder.feed(data * 3)
    with pytest.raises(FrameTooLarge, match=says):
        decoder.take(9)
    with pytest.raises(FrameTooLarge, match=says):  # and for ever
        decoder.take(9)
    assert decoder.arriving_bytes == decoder.message_bytes <= 2000
    assert not decoder.is_backlogged


@pytest.mark.parametrize("flags", [8, 0x0A, 0x0B, 0x80, COMMAND | MORE, ord("G")])
def test_flags_that_mean_nothing_are_refused(flags):
    decoder = Decoder(SMALL)
    decoder.feed(b"\0\x02ok" + bytes([flags, 0]))
    assert decoder.take(9) == [[b"ok"]]
    assert decoder.is_backlogged  # nothing more needs to be read to know it
    with pytest.raises(FramingError, match="flags"):
        decoder.take(9)


def test_a_turn_takes_no_more_than_it_was_asked_for():
    """A6: 5 million empty frames blocked a loop for 17.8 s; skipping had no budget."""
    decoder = Decoder(SMALL)
    decoder.feed(bytes(READ_BYTES))  # messages of one empty frame each
    taken = 0
    while taken < READ_BYTES // 2:
        assert len(decoder.take(256)) == 256
        taken += 256
        assert decoder.is_backlogged == (taken < READ_BYTES // 2)


def test_a_message_that_never_ends_takes_no_memory_past_its_bounds():
    """A5: one connection that sent frames with MORE for ever took all memory."""
    for frame in (b"\x01\x01x", b"\x01\xc8" + bytes(200)):
        decoder = Decoder(SMALL)
        with suppress(FrameTooLarge):
            for _ in range(100):
                decoder.feed(frame * 100)
                decoder.take(256)
        assert decoder.arriving_bytes <= SMALL.message_bytes
        with pytest.raises(FrameTooLarge):
            decoder.take(256)


def test_commands_come_between_the_frames_of_a_message():
    decoder = Decoder(SMALL)
    ping = b"\x04PING\0\0"
    decoder.feed(b"\x01\x01a" + encode_command(ping) + b"\0\x01b" + encode_command(bytes(90)))
    assert decoder.take(9) == [[b"a", b"b"]]
    assert list(decoder.commands) == [ping, bytes(90)]
    assert encode_command(bytes(300))[:9] == bytes([COMMAND | LONG]) + (300).to_bytes(8, "big")


def test_each_frame_has_the_shortest_head_that_tells_its_size():
    assert b"".join(encode([[b"ab", bytes(255)], [bytes(256), b""]])) == (
        b"\x01\x02ab" + b"\x00\xff" + bytes(255)
        + b"\x03" + (256).to_bytes(8, "big") + bytes(256) + b"\x00\x00"
    )  # fmt: skip
    assert encode_command(bytes(255)) == b"\x04\xff" + bytes(255)
    assert encode_command(bytes(256)) == b"\x06" + (256).to_bytes(8, "big") + bytes(256)


@pytest.mark.parametrize("count", [10, COPY_THRESHOLD_BYTES])
def test_memory_of_any_format_is_written_byte_for_byte(count: int):
    frame = memoryview(array("d", [1.5] * count))
    packed = encode([[frame, b"x"]])
    assert b"".join(packed) == b"".join(encode([[frame.tobytes(), b"x"]]))
    outgoing = Outgoing()
    outgoing.append(packed)
    assert outgoing.size_bytes == len(b"".join(packed))


def test_large_frames_are_not_joined():
    large = bytes(COPY_THRESHOLD_BYTES)
    view = memoryview(bytearray(COPY_THRESHOLD_BYTES))
    packed = encode([[b"head", large, b"tail"], [memoryview(b"small")], [view]])
    assert len(packed) == 4
    assert packed[1] is large
    assert isinstance(packed[3], memoryview)
    assert packed[3].obj is view.obj


@given(st.lists(st.integers(0, 2 * COPY_THRESHOLD_BYTES), max_size=6))
def test_a_frame_in_pieces_is_written_as_if_it_were_one(sizes):
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    whole = b"".join(pieces)
    written = encode([[b"a", BodyParts(pieces)], [BodyParts(pieces), b"b"]])
    assert b"".join(written) == b"".join(encode([[b"a", whole], [whole, b"b"]]))
    large = [piece for piece in pieces if len(piece) >= COPY_THRESHOLD_BYTES]
    if len(whole) >= COPY_THRESHOLD_BYTES:
        uncopied = [piece for piece in written if any(piece is one for one in large)]
        assert uncopied == large * 2


@given(batches, st.lists(st.integers(0, 70_000), min_size=1, max_size=5))
def test_messages_written_in_parts_arrive_whole(batch, parts):
    whole = b"".join(encode(batch))
    outgoing = Outgoing()
    for message in batch:
        outgoing.append(encode([message]))
    written = b""
    turn = 0
    while outgoing:
        data = b"".join(outgoing.pieces())
        size = min(len(data), parts[turn % len(parts)] + turn)  # no quadratic number of turns
        turn += 1
        outgoing.sent(size)
        written += data[:size]
        assert outgoing.size_bytes == len(whole) - len(written)
    assert written == whole


def test_one_write_has_a_bounded_number_of_pieces():
    outgoing = Outgoing()
    outgoing.append([b"x"] * (PIECES_MOST + 5))
    outgoing.append([b""])
    assert len(outgoing.pieces()) == PIECES_MOST
    outgoing.sent(PIECES_MOST)
    assert outgoing.size_bytes == len(outgoing.pieces()) == 5
    outgoing.clear()
    assert not outgoing
    assert outgoing.size_bytes == 0


def test_a_decoder_that_has_failed_is_freed_at_once():
    """It kept its error, whose frames kept the decoder and its connection."""

    def fail() -> weakref.ref[object]:
        decoder = Decoder(LIMITS)
        decoder.feed(b"\xff")
        decoder.feed(b"\0")
        for _ in range(2):
            with suppress(FramingError):
                decoder.take(1)
        return weakref.ref(decoder.commands)

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()
