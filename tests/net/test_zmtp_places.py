"""Who hears of connections, and where their peers are."""

from __future__ import annotations

import os

import pytest
import trio

from trio_envserve.core.limits import WireLimits
from trio_envserve.net import open_zmtp_network

from . import raw_zmtp

pytestmark = pytest.mark.real


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_each_connection_is_told_once_with_its_place_and_once_when_it_is_lost(
    scheme: str, folder: str
):
    address, place = {
        "tcp": ("tcp://127.0.0.1:0", "127.0.0.1"),
        "ipc": (f"ipc://{folder}/router", f"user {os.getuid()}"),
    }[scheme]
    news: list[tuple[bytes, str | None]] = []
    with trio.fail_after(600):
        async with (
            open_zmtp_network() as network,
            network.open_router(
                address, limits=WireLimits(), on_peer=lambda *told: news.append(told)
            ) as router,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(router.receive)
            first = await trio.to_thread.run_sync(raw_zmtp.shake, router.address)
            second = await trio.to_thread.run_sync(raw_zmtp.shake, router.address)
            routes = [route for route, _ in news]
            assert news == [(route, place) for route in routes]
            assert len(set(routes)) == 2
            first.close()
            while len(news) < 3:
                await trio.sleep(0.005)
            assert news[2] == (routes[0], None)
            raw_zmtp.connect(router.address).close()  # no handshake: nobody hears of it
            second.close()
            while len(news) < 4:
                await trio.sleep(0.005)
            assert news[3] == (routes[1], None)
            nursery.cancel_scope.cancel()
