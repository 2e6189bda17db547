"""The siege's own ZMTP: another maker's sockets understand it."""

from __future__ import annotations

import pytest
import trio
import zmq

from tests.attack.context import AttackContext, seeded
from trio_envserve.lab.conformance import wire


def taken(data: bytes, step: int) -> list[list[bytes]]:
    reader = wire.Reader()
    found = []
    for start in range(0, len(data), step):
        found += [list(each) for each in reader.feed(data[start : start + step])]
    return found


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_what_is_written_is_read_again(step):
    said = wire.greeting() + wire.ready() + wire.message(b"a", b"", bytes(300)) + wire.ping()
    assert taken(said + wire.message(b"b"), step) == [[b"a", b"", bytes(300)], [b"b"]]


def test_a_greeting_has_its_parts_at_their_places():
    said = wire.greeting(major=2, minor=9, mechanism=b"CURVE", as_server=1)
    assert len(said) == wire.GREETING_BYTES
    assert (said[0], said[9], said[10], said[11]) == (0xFF, 0x7F, 2, 9)
    assert said[12:17] == b"CURVE"
    assert said[32] == 1


def test_a_head_claims_whatever_it_is_told_to():
    assert wire.head(255) == b"\x00\xff"
    assert wire.head(256, wire.MORE) == b"\x03" + (256).to_bytes(8, "big")
    assert wire.head(2**64 - 1)[1:] == b"\xff" * 8


@pytest.mark.real
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_libzmq_understands_it(scheme, folder):
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set(zmq.LINGER, 0)
    if scheme == "tcp":
        address = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    else:
        address = f"ipc://{folder}/s"
        router.bind(address)
    try:
        with trio.fail_after(60):
            async with AttackContext(address, seeded(1)).peer(b"me") as peer:
                await peer.send(wire.ping(b"abc") + wire.message(b"one", b"two"))
                frames = await trio.to_thread.run_sync(router.recv_multipart)
                assert frames == [b"me", b"one", b"two"]
                router.send_multipart([b"me", b"three", bytes(1000)])
                assert list(await peer.hear()) == [b"three", bytes(1000)]
    finally:
        router.close()
        context.term()
