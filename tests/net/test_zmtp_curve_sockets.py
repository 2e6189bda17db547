"""CURVE over real sockets: ours with ours, and with libzmq's in both directions."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import zmq

from tests.connections import own_host
from tests.net import raw_zmtp
from tests.net.conftest import Events, libzmq_socket
from tests.net.curve_peers import CLIENT, CURVE, OTHER, SERVER, admit_client, new_client
from tests.net.streams import received
from trio_envserve.core.limits import MIB, WireLimits
from trio_envserve.net import ConnectionEvent, open_zmq_network, open_zmtp_network
from trio_envserve.net.keypairs import KeyPair, key_text
from trio_envserve.net.zmtp import hub
from trio_envserve.net.zmtp.engine import GREETING_BYTES
from trio_envserve.net.zmtp.sockets import RouterCurve, ZmtpNetwork, sealed_wire

pytestmark = pytest.mark.real

LIMITS = sealed_wire(WireLimits(reconnect_min_s=0.01, reconnect_max_s=0.05))
ROUTER = RouterCurve(SERVER, admit_client)
BODIES = [b"", b"x", b"y" * 300, b"z" * 40_000, b"q" * 3_000_000]


@pytest.fixture(params=["tcp", "ipc"])
def address(request, folder) -> str:
    return f"tcp://{own_host()}:0" if request.param == "tcp" else f"ipc://{folder}/curve"


@asynccontextmanager
async def open_sealed(
    address: str = "", *, limits: WireLimits = LIMITS, on_event: Events | None = None
) -> AsyncIterator[tuple[ZmtpNetwork, Any]]:
    """A network, and a router on it that lets CLIENT in."""
    with trio.fail_after(60):
        async with (
            open_zmtp_network() as network,
            network.open_router(
                address or f"tcp://{own_host()}:0", limits=limits, on_event=on_event, curve=ROUTER
            ) as router,
        ):
            yield network, router


@asynccontextmanager
async def joined(on_event: Events | None = None) -> AsyncIterator[tuple[Any, Any, bytes]]:
    """A router, a dealer of CLIENT that is connected to it, and its route."""
    async with (
        open_sealed() as (network, router),
        network.open_dealer(
            router.address, limits=LIMITS, curve=CURVE, on_event=on_event
        ) as dealer,
    ):
        dealer.send_nowait([b"hello"])
        [[route, _]] = await router.receive()
        yield router, dealer, route


def give_keys(raw: zmq.Socket[bytes], keys: KeyPair = CLIENT) -> None:
    raw.curve_publickey = keys.public.encode()
    raw.curve_secretkey = keys.secret.encode()
    raw.curve_serverkey = SERVER.public.encode()


@pytest.mark.parametrize("maker", ["zmtp", "libzmq"])
async def test_our_dealers_reach_our_router(address, maker):
    async with open_sealed(address) as (zmtp, router), open_zmq_network() as libzmq:
        dealers = zmtp if maker == "zmtp" else libzmq
        async with dealers.open_dealer(router.address, limits=LIMITS, curve=CURVE) as dealer:
            assert dealer.send_many_nowait([[b"head", body] for body in BODIES])
            got = await received(router, len(BODIES))
            assert [message[2] for message in got] == BODIES
            route = got[0][0]
            assert key_text(router.peer_key(route)) == CLIENT.public
            answers = [[b"b%d" % n] for n in range(100)]
            assert router.send_many_nowait(route, answers)
            assert await received(dealer, 100) == answers


async def test_a_client_of_libzmq_reaches_our_router(address):
    async with open_sealed(address) as (_, router), libzmq_socket(zmq.DEALER) as raw:
        give_keys(raw)
        raw.connect(router.address)
        raw.send_multipart([b"head", *BODIES])
        [[route, *frames]] = await received(router, 1)
        assert frames == [b"head", *BODIES]
        assert key_text(router.peer_key(route)) == CLIENT.public
        assert router.send_nowait(route, BODIES)
        assert await trio.to_thread.run_sync(raw.recv_multipart) == BODIES


async def test_our_dealer_reaches_a_server_of_libzmq(address):
    async with open_zmtp_network() as network, libzmq_socket(zmq.ROUTER) as raw:
        raw.curve_server = 1
        raw.curve_secretkey = SERVER.secret.encode()
        raw.bind(address)
        bound = raw.get_string(zmq.LAST_ENDPOINT)
        async with network.open_dealer(bound, limits=LIMITS, curve=CURVE) as dealer:
            assert dealer.send_nowait([b"head", *BODIES])
            [route, *frames] = await trio.to_thread.run_sync(raw.recv_multipart)
            assert frames == [b"head", *BODIES]
            raw.send_multipart([route, *BODIES])
            assert await received(dealer, 1) == [BODIES]


async def test_the_pings_of_libzmq_are_answered():
    """Sealed like all else.  libzmq would end the connection."""
    events = Events()
    async with open_sealed(on_event=events) as (_, router), libzmq_socket(zmq.DEALER) as raw:
        give_keys(raw)
        raw.setsockopt(zmq.HEARTBEAT_IVL, 10)
        raw.setsockopt(zmq.HEARTBEAT_TIMEOUT, 20_000)
        raw.connect(router.address)
        await events.wait(ConnectionEvent.CONNECTED)
        [connection] = router._connections.values()
        seal = connection.engine.encode.__self__
        before = seal._sent
        while seal._sent < before + 5:
            with trio.move_on_after(0.05):
                await router.receive()
        assert ConnectionEvent.DISCONNECTED not in events.seen


async def test_a_stranger_of_libzmq_is_told_by_its_own_word():
    async with open_sealed() as (_, router), libzmq_socket(zmq.DEALER) as raw:
        give_keys(raw, keys=OTHER)
        monitor = raw.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        monitor.setsockopt(zmq.RCVTIMEO, 30_000)
        raw.connect(router.address)
        try:
            event, _ = await trio.to_thread.run_sync(monitor.recv_multipart)
            assert int.from_bytes(event[2:6], "little") == 400
        finally:
            raw.disable_monitor()
            monitor.close()


@pytest.mark.parametrize("after", ["greeting", "hello", "half"])
async def test_a_peer_that_stops_in_the_middle_of_the_handshake_is_closed(
    after, address, monkeypatch
):
    monkeypatch.setattr(hub, "SWEEP_S", 0.05)
    limits = dataclasses.replace(LIMITS, handshake_s=0.5)  # it has to say that much within it
    said = new_client().replies()
    end = {"greeting": GREETING_BYTES, "hello": len(said), "half": 100}[after]
    async with open_sealed(address, limits=limits) as (_, router):

        def stop_there() -> bytes:
            with raw_zmtp.connect(router.address) as sock:
                sock.sendall(said[:end])
                return raw_zmtp.until_closed(sock)

        assert await trio.to_thread.run_sync(stop_there)  # it was greeted, and closed
        assert "took too long" in router.why_refused
        assert not router._connections


async def test_a_peer_that_is_closed_reads_its_last_words():
    events = Events()
    async with joined(events) as (router, dealer, route):
        [connection] = router._connections.values()
        while not connection.is_queued:  # what has come is read in more turns than one
            dealer.send_many_nowait([[b"more"]] * 3000)
            await router.receive()
        assert router.send_nowait(route, [b"your key was revoked"])
        router.close_peer(route, "its key was revoked")
        assert router.receive_nowait() == []
        assert not router.send_nowait(route, [b"too late"])
        assert await dealer.receive() == [[b"your key was revoked"]]
        await events.wait(ConnectionEvent.DISCONNECTED)


async def test_frames_have_the_size_that_is_sealed_in_one_step():
    assert LIMITS.message_bytes == 32 * MIB
    assert sealed_wire(WireLimits(message_bytes=1000)).message_bytes == 1000
    async with joined() as (router, dealer, _):
        assert not dealer.send_nowait([bytes(32 * MIB + 1)])
        assert dealer.send_nowait([bytes(32 * MIB)])
        [[_, body]] = await router.receive()
        assert len(body) == 32 * MIB


async def test_a_backlog_of_much_is_sealed_in_portions():
    """Sealing takes time for each byte; what waits is sealed when there is room for it."""
    many = [[b"%d" % n, b"x" * MIB] for n in range(40)]
    async with joined() as (router, dealer, route):
        assert router.send_many_nowait(route, many)
        [connection] = router._connections.values()
        assert len(connection.outbox) > 30
        assert await received(dealer, 40) == many
