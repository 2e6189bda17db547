"""Bytes of a handshake of CURVE that were changed on the way, very many of them.

A handshake between two honest sides is played again, and bytes of one side are changed,
left out, doubled or cut.  Whatever they are: no side raises anything but FramingError, none
holds more than the bounds, and no stranger is let in.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.net.curve_peers import CLIENT, new_client, new_server
from trio_envserve.net.framing import FramingError
from trio_envserve.net.keypairs import key_text
from trio_envserve.net.zmtp.engine import Engine

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


def play(random: Random, number: int) -> int:
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
            spoilt += play(random, number)
        except BaseException as error:
            error.add_note(f"handshake {number} of seed {seed}")
            raise
        number += 1


@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_spoilt_bytes_let_nobody_in(seed):
    attack(25_000, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_a_million_spoilt_bytes_let_nobody_in(seed):
    attack(250_000, seed)
