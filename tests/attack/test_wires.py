"""ZMTP made by hand: what is written is read again, and libzmq understands it."""

from __future__ import annotations

import pytest
import trio
import zmq

from tests.attack.wires import Attacker, seeded
from trio_envserve.lab.conformance import wire


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_messages_are_read_again_in_any_pieces(step):
    said = wire.greeting() + wire.ready() + wire.message(b"a", b"", bytes(300)) + wire.ping()
    said += wire.message(b"b")
    reader = wire.Reader()
    pieces = [said[start : start + step] for start in range(0, len(said), step)]
    found = [list(message) for piece in pieces for message in reader.feed(piece)]
    assert found == [[b"a", b"", bytes(300)], [b"b"]]


def test_greeting_has_its_parts_at_their_places():
    said = wire.greeting(major=2, minor=9, mechanism=b"CURVE", as_server=1)
    assert len(said) == wire.GREETING_BYTES
    assert (said[0], said[9], said[10], said[11]) == (0xFF, 0x7F, 2, 9)
    assert (said[12:17], said[32]) == (b"CURVE", 1)


def test_head_claims_whatever_it_is_told_to():
    assert wire.head(255) == b"\x00\xff"
    assert wire.head(256, wire.MORE) == b"\x03" + (256).to_bytes(8, "big")
    assert wire.head(2**64 - 1)[1:] == b"\xff" * 8


@pytest.mark.real
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_libzmq_understands_it(scheme, folder):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.set(zmq.LINGER, 0)
        router.bind({"tcp": "tcp://127.0.0.1:*", "ipc": f"ipc://{folder}/s"}[scheme])
        attacker = Attacker(router.get_string(zmq.LAST_ENDPOINT), seeded(1))
        with trio.fail_after(60):
            async with attacker.connection() as peer:
                await peer.shake_hands(identity=b"me")
                await peer.send(wire.ping(b"abc") + wire.message(b"one", b"two"))
                frames = await trio.to_thread.run_sync(router.recv_multipart)
                assert frames == [b"me", b"one", b"two"]
                router.send_multipart([b"me", b"three", bytes(1000)])
                assert list(await peer.hear()) == [b"three", bytes(1000)]
