"""ZMTP without a network: what bytes mean, however they are cut, and what they never do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.lab.conformance import wire
from trio_envserve.net.framing import FrameLimits, FramingError, encode, encode_command
from trio_envserve.net.zmtp.engine import Engine, HandshakeError, Null, parse_metadata

LIMITS = FrameLimits(frame_bytes=1000, message_bytes=2000, frames=8)
GREETING, GREETING_3_0 = wire.greeting(), wire.greeting(minor=0)
ping = wire.ping


def ready(socket_type: bytes = b"DEALER") -> bytes:
    return wire.ready(socket_type, b"me")


def new_engine() -> Engine:
    return Engine(Null(b"ROUTER"), LIMITS)


def heard(data: bytes, chunks: list[int]):
    """Everything that an engine makes of bytes that arrive in such chunks."""
    engine = new_engine()
    replies = engine.replies()
    messages: list[list[bytes]] = []
    error = ""
    at = turn = 0
    try:
        while at < len(data):
            chunk = data[at : at + chunks[turn % len(chunks)]]
            at += len(chunk)
            turn += 1
            if not engine.is_ready:
                if not engine.shake(chunk):
                    continue
            else:
                engine.decoder.feed(chunk)
            while True:
                messages += [[bytes(f) for f in m] for m in engine.take(3)]
                if not engine.decoder.is_backlogged:
                    break
            assert engine.decoder.arriving_bytes <= LIMITS.message_bytes + 4096 + len(chunk)
    except FramingError as exc:
        error = f"{type(exc).__name__}: {exc}"
    return engine.is_ready, messages, engine.ttl_s, error, replies


frames = st.lists(st.binary(max_size=300), min_size=1, max_size=4)
traffic = st.lists(
    st.one_of(
        frames.map(lambda m: b"".join(encode([m]))),
        st.builds(ping, st.binary(max_size=30), st.integers(0, 65535)),
        st.binary(max_size=30).map(lambda b: encode_command(b"\x03NEW" + b)),
    ),
    max_size=8,
).map(b"".join)
chunks = st.lists(st.integers(1, 80), min_size=1, max_size=6)


@given(st.sampled_from([GREETING, GREETING_3_0]), traffic, chunks)
def test_honest_bytes_mean_the_same_however_they_are_cut(greeting, data, cut):
    whole = heard(greeting + ready() + data, [100_000])
    is_ready, _, _, error, replies = whole
    assert is_ready
    assert error == ""
    assert replies.startswith(GREETING)
    assert heard(greeting + ready() + data, cut) == whole


hostile = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.one_of(
            st.just(ready()),
            st.just(ready(b"PUB")),
            st.just(encode_command(b"\x05ERROR\x03400")),
            st.just(encode_command(b"\x04PING")),
            st.just(encode_command(b"")),
            st.binary(max_size=20),
            st.binary(max_size=40).map(lambda b: encode_command(b"\x05READY" + b)),
            traffic,
        ),
        max_size=6,
    ).map(b"".join),
)


@given(st.binary(max_size=70) | st.just(GREETING), hostile, chunks)
def test_hostile_bytes_mean_the_same_however_they_are_cut(greeting, data, cut):
    """And raise nothing but FramingError, and are not held past the bounds."""
    whole = heard(greeting + data, [100_000])
    assert heard(greeting + data, cut) == whole


@pytest.mark.parametrize("command", [b"", b"\x09PING", b"\x04PING\x00"])
def test_messages_before_a_broken_command_were_lost_if_they_came_with_it(command):
    """And one that came behind it was given out, if it came with one before it."""
    one, other = encode([[b"one"]]), encode([[b"other"]])
    data = GREETING + ready() + b"".join(one) + encode_command(command) + b"".join(other)
    for cut in ([100_000], [1], [len(GREETING + ready()), 100_000]):
        is_ready, messages, _, error, _ = heard(data, cut)
        assert is_ready
        assert messages == [[b"one"]]
        assert error.startswith("FramingError: a ")


def test_an_engine_with_replies_says_so():
    """The hub asks nobody else for replies."""
    engine = new_engine()
    assert engine.has_replies is True
    assert engine.shake(GREETING + ready())
    engine.replies()
    assert engine.has_replies is False
    engine.decoder.feed(ping())
    engine.take(1)
    assert engine.has_replies is True
    engine.replies()
    assert engine.has_replies is False


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak ZMTP 3: its first byte is 0x47"),
        (b"\x01\0", "does not speak ZMTP 3"),
        (b"\xff" + bytes(8) + b"\x00", "speaks ZMTP 1.0"),
        (b"\xff" + bytes(8) + b"\x02", "speaks ZMTP 1.0"),
        (b"\xff" + bytes(8) + b"\x7f\x00", "speaks ZMTP 1.0; version 3.0 or newer"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "speaks ZMTP 2.0; version 3.0 or newer"),
        (GREETING.replace(b"NULL", b"CURV"), "wants the mechanism CURV, and this side speaks NULL"),
        (GREETING.replace(b"NULL", b"NULLX"[:4])[:12] + b"\xe9" * 20, "xe9"),
        (GREETING + b"\0\x01x", "a message before the end of the handshake"),
        (GREETING + ping(), "READY expected"),
        (GREETING + ready(b"SUB"), "a ROUTER does not talk to a socket of type b'SUB'"),
        (GREETING + encode_command(b"\x05ERROR\x03400"), "refuses: '400'"),
        (GREETING + encode_command(b"\x05ERROR"), "refuses: ''"),
        (GREETING + encode_command(b"\x05ERROR\x03400 and more"), "refuses: '400'"),
        (GREETING + ready(b"S" * 17), f"a socket of type b'{'S' * 16}'"),
        (GREETING + encode_command(b"\x05READY\x05abc"), "malformed metadata"),
        (GREETING + encode_command(b"\x05READY\0\0\0\0\0"), "malformed metadata"),
        (GREETING + encode_command(b"\x05READY\x01a\0\0\0\x02b"), "malformed metadata"),
        (GREETING + b"\x06" + bytes(6) + b"\xff\xff" + bytes(99), "a command of 65535 bytes"),
    ],
)
def test_strangers_are_refused_in_words(data, says):
    engine = new_engine()
    with pytest.raises(FramingError, match=says.replace("(", "\\(")):
        engine.shake(data)


@pytest.mark.parametrize(
    ("said", "answer"),
    [(ready(b"SUB"), b"\x04"), (encode_command(b"\x05ERROR\x03400"), b"")],
    ids=["another type", "a refusal"],
)
def test_a_peer_of_another_type_is_told_so_and_a_refusal_is_not_answered(said, answer):
    engine = new_engine()
    engine.replies()
    with pytest.raises(HandshakeError):
        engine.shake(GREETING + said)
    assert engine.replies()[:1] == answer
    assert not engine.is_ready


@pytest.mark.parametrize("peer", [ready(b"REQ"), encode_command(b"\x05READY")])
def test_a_socket_of_another_type_that_fits_and_one_of_none_are_taken(peer):
    engine = new_engine()
    assert engine.shake(GREETING + peer)


def test_only_the_newest_ping_is_answered():
    """So a flood of them, from a peer that does not read, costs one answer."""
    engine = new_engine()
    assert engine.shake(GREETING + ready())
    engine.replies()
    engine.decoder.feed(ping(b"old", 12) * 50 + ping(b"0123456789abcdefXYZ", 300))
    while not engine.take(9) and engine.decoder.is_backlogged:
        pass
    assert engine.replies() == encode_command(b"\x04PONG0123456789abcdef")
    assert engine.ttl_s == 30.0
    assert engine.replies() == b""
    engine.decoder.feed(ping())
    engine.take(1)
    assert engine.ttl_s is None


def test_metadata_is_read_without_regard_to_case():
    assert parse_metadata(ready()[8:]) == {b"socket-type": b"DEALER", b"identity": b"me"}
    with pytest.raises(HandshakeError):
        parse_metadata(b"".join(b"\x02%02d\0\0\0\0" % n for n in range(33)))
