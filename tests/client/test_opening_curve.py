"""Clients of each kind for a server with keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.faces import open_face, serving
from trio_envserve import (
    ClientCurve,
    ClientLimits,
    ClientRight,
    KeyPair,
    ServerCurve,
    ServerUnreachable,
    TooLarge,
    WireLimits,
)

pytestmark = pytest.mark.real

SERVER, TRAINER, STRANGER = (KeyPair.new() for _ in range(3))
RIGHTS = {
    "trainer": ClientRight(TRAINER.public),
}
KINDS = ["trio", "asyncio", "plain"]


def of(keys: KeyPair, server: KeyPair = SERVER) -> ClientCurve:
    return ClientCurve(server.public, keys)


async def echo(rollout: Any) -> Any:
    return rollout.input


@pytest.fixture
def address() -> Iterator[str]:
    with serving(echo, curve=ServerCurve(SERVER, RIGHTS)) as server:
        yield server.address


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_client_comes_in_with_its_key(address: str, kind: str):
    with open_face(kind, address, curve=of(TRAINER)) as client:
        assert client.run_rollout("hello") == "hello"


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_larger_than_a_sealed_frame_is_refused_before_it_is_sent(address: str, kind: str):
    wire = WireLimits(message_bytes=1 << 30)
    with open_face(kind, address, curve=of(TRAINER), wire=wire) as client:
        with pytest.raises(TooLarge, match="message_bytes is 33554432"):
            client.run_rollout(bytes(33 << 20))
        assert client.run_rollout("hello") == "hello"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("curve", "words"),
    [
        (None, r"wants the mechanism CURVE.*give this side keys \(--curve"),
        (of(STRANGER), "does not know this key.*curve new"),
        (of(TRAINER, STRANGER), "your file has the key of another server: check"),
    ],
    ids=["no key", "an unknown key", "a wrong key of the server"],
)
def test_g9_a_client_without_the_right_keys_is_told_which_it_lacks(
    address: str, kind: str, curve: ClientCurve | None, words: str
):
    limits = ClientLimits(start_s=0.5)
    with open_face(kind, address, curve=curve, limits=limits) as client:
        with pytest.raises(ServerUnreachable, match=words):
            client.run_rollout("hello")
