"""A peer whose machine vanished is noticed by the system, too, not by libzmq alone."""

from __future__ import annotations

import socket

import pytest

from tests.connections import accepted, connected

pytestmark = pytest.mark.real


def keepalive(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


async def test_both_ends_of_a_connection_have_tcp_keepalive(real_bench):
    async with real_bench() as b, b.router() as router, b.dealer(router) as dealer:
        await b.greet(router, dealer)
        assert accepted(router.address, keepalive) == [True]
        assert connected(router.address, keepalive) == [True]
