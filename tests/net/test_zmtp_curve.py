"""CURVE without a network: who gets in, and what bytes on the way can do."""

from __future__ import annotations

from random import Random

import pytest

from tests.net.curve_peers import (
    CLIENT,
    LIMITS,
    OTHER,
    SERVER,
    admit_client,
    new_client,
    new_server,
    shake,
)
from trio_envserve.core.terms import BodyParts
from trio_envserve.net.framing import FramingError, encode, encode_command
from trio_envserve.net.interface import Message
from trio_envserve.net.keypairs import key_text
from trio_envserve.net.zmtp import curve as curve_module
from trio_envserve.net.zmtp.curve import WrongBox, shared
from trio_envserve.net.zmtp.engine import GREETING_BYTES, Engine, HandshakeError, Null


def opened(cut: int = 100_000) -> tuple[Engine, Engine]:
    client, server = new_client(), new_server()
    shake(client, server, cut)
    return client, server


def sealed(sender: Engine, *messages: Message) -> bytes:
    """The bytes of these messages."""
    return b"".join(bytes(piece) for piece in sender.encode(messages))


def passed(sender: Engine, taker: Engine, *messages: Message, cut: int = 100_000):
    """What the taker makes of these messages."""
    return fed(taker, sealed(sender, *messages), cut)


def fed(taker: Engine, data: bytes, cut: int = 100_000) -> list[list[bytes]]:
    got = []
    for at in range(0, len(data), cut):
        view = taker.decoder.buffer()
        assert view is None or len(view)
        taker.decoder.feed(data[at : at + cut])
        while True:
            got += [[bytes(frame) for frame in message] for message in taker.take(3)]
            if not taker.decoder.is_backlogged:
                break
    return got


def inside(data: bytes) -> list[bytes]:
    """The frames of commands behind a greeting."""
    frames, at = [], GREETING_BYTES
    while at < len(data):
        head = 9 if data[at] & 2 else 2
        size = int.from_bytes(data[at + 1 : at + head], "big")
        frames.append(data[at : at + head + size])
        at += head + size
    return frames


@pytest.mark.parametrize("cut", [1, 7, 100_000])
def test_both_sides_know_each_other_however_the_bytes_are_cut(cut):
    client, server = opened(cut)
    assert key_text(server.peer_key) == CLIENT.public
    assert key_text(client.peer_key) == SERVER.public


@pytest.mark.parametrize("cut", [1, 100, 100_000])
@pytest.mark.parametrize("from_client", [True, False])
def test_messages_arrive_as_they_were_sent(from_client, cut):
    client, server = opened()
    sender, taker = (client, server) if from_client else (server, client)
    sent = [[b"one", b"", b"three"], [b"x" * 300], [b"y" * min(90_000, 900 * cut), b"z"]]
    assert passed(sender, taker, sent[0], cut=cut) == sent[:1]
    assert passed(sender, taker, *sent[1:], cut=cut) == sent[1:]
    assert taker.decoder.is_between_messages
    assert taker.decoder.arriving_bytes == 0


def test_a_frame_in_pieces_is_sealed_as_one():
    client, server = opened()
    pieces = [b"a" * 10, b"b" * 90_000, b"", b"c" * 3]
    assert passed(client, server, [b"head", BodyParts(pieces)]) == [[b"head", b"".join(pieces)]]


def test_sealed_bytes_cannot_be_read_on_the_way():
    client, _ = opened()
    data = sealed(client, [b"a secret of 20 bytes" * 9])
    assert b"secret" not in data


def test_a_ping_is_answered_in_a_box():
    client, server = opened()
    assert fed(server, client._encode_command(b"\x04PING\0\0hello")) == []
    answer = server.replies()
    assert answer
    assert b"PONG" not in answer
    assert fed(client, answer) == []


@pytest.mark.parametrize(
    ("keys", "server", "admit", "why", "told"),
    [
        (OTHER, SERVER, admit_client, "its key is refused: 400", "does not know this key"),
        (CLIENT, SERVER, lambda _: "the key was revoked", "was revoked", "the key was revoked"),
        (CLIENT, OTHER, admit_client, "the key of another server", "the key of another server"),
    ],
    ids=["a key that nobody knows", "the word of the server", "the key of another server"],
)
def test_a_client_that_may_not_come_in_is_refused_and_told(keys, server, admit, why, told):
    client, here = new_client(keys=keys, server=server), new_server(admit=admit)
    with pytest.raises(HandshakeError, match=why):
        shake(client, here)
    assert not here.is_ready
    assert not here.peer_key
    with pytest.raises(HandshakeError, match=told):
        client.shake(here.replies())


def test_a_server_without_the_right_secret_is_found_out():
    """Who sits at the address without the server's secret cannot make the WELCOME."""
    client, server = new_client(), new_server()
    shake(new_client(server=SERVER), server)
    client.replies()
    welcome = encode_command(b"\x07WELCOME" + bytes(160))
    greeting = new_server().replies()
    with pytest.raises(HandshakeError, match="WELCOME does not open"):
        client.shake(greeting + welcome)


def test_a_stolen_public_key_is_not_enough(monkeypatch):
    """The vouch is what shows that a client has the secret half of the key that it names."""
    thief, server = new_client(keys=OTHER), new_server()
    real = curve_module.public_of

    def named(secret: bytes) -> bytes:
        return real(CLIENT.secret_bytes if secret == OTHER.secret_bytes else secret)

    monkeypatch.setattr(curve_module, "public_of", named)
    with pytest.raises(HandshakeError, match="INITIATE does not open"):
        shake(thief, server)


def test_a_replayed_handshake_gains_nothing():
    client = new_client()
    said, _ = shake(client, new_server(seed=4))
    again = new_server(seed=6)  # every connection has other passing keys
    with pytest.raises(HandshakeError, match="not of this connection"):
        again.shake(said)
    assert not again.is_ready


def test_a_replayed_hello_has_a_welcome_that_only_its_client_can_open():
    said, _ = shake(new_client(), new_server(seed=4))
    again = new_server(seed=6)
    [hello, initiate] = inside(said)
    assert not again.shake(said[:GREETING_BYTES] + hello)
    with pytest.raises(HandshakeError):
        again.shake(initiate)


def test_a_frame_that_comes_again_is_refused():
    client, server = opened()
    data = sealed(client, [b"pay me"])
    assert fed(server, data) == [[b"pay me"]]
    with pytest.raises(FramingError, match="frame 3 of the connection after frame 3"):
        fed(server, data)


def test_frames_in_another_order_are_refused():
    client, server = opened()
    one, two = (sealed(client, [word]) for word in (b"1", b"2"))
    server.decoder.feed(two + one)
    assert server.take(8) == [[b"2"]]
    assert server.decoder.is_backlogged
    for _ in range(2):
        with pytest.raises(FramingError, match="frame 3 of the connection after frame 4"):
            server.take(8)


def test_no_two_frames_have_one_nonce():
    client, server = opened()
    data = b"".join(sealed(client, [b"%d" % n], [b"x"]) for n in range(25))
    counters = [piece[:8] for piece in data.split(b"\x07MESSAGE")[1:]]
    assert len(counters) == len(set(counters)) == 50
    assert counters == sorted(counters)
    assert len(fed(server, data)) == 50


def test_frames_of_one_side_are_not_taken_as_the_others():
    client, _ = opened()
    data = sealed(client, [b"hello"])
    with pytest.raises(FramingError, match="does not open"):
        fed(client, data)


@pytest.mark.parametrize(
    ("size", "at"), [*((100, at) for at in (10, 17, 20, 40, -1)), (90_000, 50_000)]
)
def test_a_changed_bit_ends_the_connection(size, at):
    client, server = opened()
    data = bytearray(sealed(client, [b"h" * size]))
    data[at] ^= 1
    with pytest.raises(FramingError):
        fed(server, bytes(data), cut=4096)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"\x00\x05hello", "a frame that is not sealed"),
        (b"\x00\x28\x07MESSAGE" + bytes(32), "frame 0 of the connection after frame 2"),
        (b"\x00\x29\x07MESSAGE" + b"\x7f" * 33, "does not open"),
        (encode_command(b"\x04PING\0\0"), "a command that is not sealed"),
        (encode_command(b"\x05ERROR\x03400"), "a command that is not sealed"),
        (b"\x01\x29" + bytes(41) + b"\x00\x00", "not a message of its own"),
        (b"\x02" + (1 << 40).to_bytes(8, "big"), "a frame of 1099511627776 bytes"),
    ],
)
def test_a_frame_that_is_not_sealed_ends_the_connection(frame, why):
    _, server = opened()
    with pytest.raises(FramingError, match=why):
        fed(server, frame)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (lambda client: sealed(client, [b""] * 9), "more than 8 frames"),
        (lambda client: sealed(client, [b"x" * 99_000] * 3), "more than 200000 bytes"),
        (lambda client: client._encode_command(bytes(4097)), "a command of 4097 bytes"),
    ],
    ids=["frames", "bytes", "command"],
)
def test_the_bounds_hold_inside_the_boxes(said, why):
    client, server = opened()
    with pytest.raises(FramingError, match=why):
        fed(server, said(client))
    assert server.decoder.arriving_bytes == 0


@pytest.mark.parametrize("flags", [4, 8, 0x80, 3])
def test_unknown_flags_in_a_box_end_the_connection(flags):
    client, server = opened()
    seal = client.encode.__self__  # type: ignore[attr-defined]
    sealed = b"".join(encode([[seal._seal(flags, b"hello")]]))
    with pytest.raises(FramingError, match="flags"):
        fed(server, sealed)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",  # a message
        b"\x00\x64" + bytes(100),
        b"\x02" + (1 << 30).to_bytes(8, "big"),  # a large one
        b"\x02" + (50_000).to_bytes(8, "big") + bytes(1000),  # the beginning of one
        b"\x01\x00" * 100,  # one of many frames
        b"\x06" + (5000).to_bytes(8, "big"),  # a large command
    ],
)
def test_nothing_is_kept_for_a_stranger(data):
    server = new_server()
    greeting = new_client().replies()[:GREETING_BYTES]
    with pytest.raises(FramingError):
        server.shake(greeting + data)
    assert server.decoder.arriving_bytes <= 4096


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x05READY",
        b"\x05HELLO",
        b"\x05HELLO" + bytes(194),
        b"\x05HELLO\x01\x00" + bytes(192),  # the key 0, with which every box would open
        b"\x08INITIATE" + bytes(300),
        b"\x05ERROR",
        b"\x05ERROR\xff",
        b"\x05ERROR\x03400",
    ],
)
def test_a_wrong_first_command_ends_the_handshake(body):
    for engine, other in ((new_server(), new_client()), (new_client(), new_server())):
        greeting = other.replies()[:GREETING_BYTES]
        with pytest.raises(HandshakeError):
            engine.shake(greeting + encode_command(body))
        assert not engine.is_ready


def test_the_other_mechanism_is_refused_in_words():
    null = Engine(Null(b"DEALER"), LIMITS)
    with pytest.raises(HandshakeError, match="the mechanism NULL, and this side speaks CURVE"):
        new_server().shake(null.replies())
    with pytest.raises(HandshakeError, match="the mechanism CURVE, and this side speaks NULL"):
        Engine(Null(b"ROUTER"), LIMITS).shake(new_client().replies())


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31), b"\xff" * 31])
def test_a_key_that_opens_every_box_is_none(public):
    with pytest.raises(WrongBox):
        shared(public, CLIENT.secret_bytes)


# -- bytes that were changed on the way, very many of them -----------------------


# A handshake between two honest sides is played again, and bytes of one side are changed, left
# out, doubled or cut.  Whatever they are: no side raises anything but FramingError, none holds
# more than the bounds, and no stranger is let in.


HELD_MOST_BYTES = 4096 + 9
"""A command that has not ended."""


def spoil(data: bytes, random: Random) -> tuple[bytes, int]:
    """The same bytes, spoilt somehow; how many of them."""
    spoilt = bytearray(data)
    how, at = random.randrange(6), random.randrange(len(data))
    if how < 3:  # a few bytes anywhere, and most often behind the greeting
        many = random.choice((1, 1, 2, 8, 64))
        for _ in range(many):
            spoilt[random.randrange(len(data))] = random.randrange(256)
        return bytes(spoilt), many
    end = min(len(data), at + random.choice((1, 8, 32, 100)))
    if how == 3:
        spoilt[at:end] = random.randbytes(end - at)
    elif how == 4:
        del spoilt[at:end]
    else:
        spoilt[at:at] = spoilt[at:end]
    return bytes(spoilt), end - at


def hear(engine: Engine, data: bytes, random: Random) -> bool:
    """Whether the engine goes on after these bytes; they come in one piece or two."""
    cut = random.choice((len(data), random.randrange(len(data) + 1)))
    try:
        for part in (data[:cut], data[cut:]):
            if engine.is_ready:
                engine.decoder.feed(part)
                engine.take(8)
            elif part:
                engine.shake(part)
    except FramingError:
        engine.replies()
        return False
    finally:
        assert engine.decoder.arriving_bytes <= HELD_MOST_BYTES
    return True


def play(random: Random) -> int:
    """One handshake with bytes of one side spoilt; how many were."""
    server, client = new_server(random.randrange(1 << 30)), new_client(random.randrange(1 << 30))
    victim, speaker = (server, client) if random.random() < 0.7 else (client, server)
    spoil_at, spoilt = random.randrange(2), 0
    for turn in range(3):
        said = speaker.replies()
        if said and turn == spoil_at:
            changed, spoilt = spoil(said, random)
            if changed != said:
                said = changed
        if said and not hear(victim, said, random):
            break
        answer = victim.replies()
        if answer and not hear(speaker, answer, random):
            break
    if server.is_ready:
        # What was changed meant nothing, as the padding of HELLO does; or it came later.
        assert key_text(server.peer_key) == CLIENT.public
    return spoilt


def attack(wanted: int, seed: int) -> None:
    random, spoilt, number = Random(seed), 0, 0
    while spoilt < wanted:
        try:
            spoilt += play(random)
        except BaseException as error:
            error.add_note(f"handshake {number} of seed {seed}")
            raise
        number += 1


def test_spoilt_bytes_of_a_handshake_let_nobody_in():
    attack(20_000, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_a_million_spoilt_bytes_let_nobody_in(seed):
    attack(250_000, seed)
