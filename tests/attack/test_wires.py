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
