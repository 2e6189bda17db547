"""Both sides of CURVE without a network, and keys for tests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from trio_envserve.net.framing import FrameLimits
from trio_envserve.net.keypairs import ClientCurve, KeyPair, key_text
from trio_envserve.net.zmtp.curve import CurveClient, CurveServer, public_of
from trio_envserve.net.zmtp.engine import Engine

LIMITS = FrameLimits(frame_bytes=100_000, message_bytes=200_000, frames=8)


def pair(seed: int) -> KeyPair:
    """The same keys in every run."""
    return KeyPair.of_secret(key_text(Random(seed).randbytes(32)))


SERVER, CLIENT, OTHER = pair(1), pair(2), pair(3)
CURVE = ClientCurve(SERVER.public, CLIENT)


def admit_client(public: bytes) -> str:
    """Only CLIENT may come in."""
    return "" if key_text(public) == CLIENT.public else "400"


def new_server(seed: int = 4, admit: Callable[[bytes], str] = admit_client) -> Engine:
    random = Random(seed).randbytes
    return Engine(
        CurveServer(b"ROUTER", secret=SERVER.secret_bytes, admit=admit, random=random), LIMITS
    )


def new_client(
    seed: int = 5, keys: KeyPair = CLIENT, server: KeyPair = SERVER, socket_type: bytes = b"DEALER"
) -> Engine:
    mechanism = CurveClient(
        socket_type, secret=keys.secret_bytes, server=public_of(server.secret_bytes),
        random=Random(seed).randbytes,
    )  # fmt: skip
    return Engine(mechanism, LIMITS)


def shake(client: Engine, server: Engine, cut: int = 100_000) -> tuple[bytes, bytes]:
    """The whole handshake, in pieces of so many bytes; what the client and the server sent."""
    said = [b"", b""]
    sides = (client, server)
    while True:
        moved = False
        for number in (0, 1):
            data = sides[number].replies()
            said[number] += data
            for at in range(0, len(data), cut):
                moved = True
                if sides[1 - number].is_ready:
                    sides[1 - number].decoder.feed(data[at : at + cut])
                else:
                    sides[1 - number].shake(data[at : at + cut])
        if not moved:
            assert client.is_ready
            assert server.is_ready
            return said[0], said[1]
