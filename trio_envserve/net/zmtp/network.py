"""The network of sockets on which trio itself speaks ZMTP.

Theory of operation
-------------------
A network has no thread and no context.  Each open socket owns a nursery with the tasks
of its hub.  Closing is staged: receiving and sending stop, the address is freed, the
tasks end, and then the peers have a moment to read the last messages.
"""

from __future__ import annotations

import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import final

import trio

from ...core.errors import ConfigError
from ...core.limits import WireLimits
from ..address import Address, parse_peer_address, parse_transport
from ..binding import ipc_file, listen, remove_ipc_file
from ..groups import unwrap_single
from ..interface import ConnectionEvent, OnEvent
from .sockets import OnPeer, ZmtpDealer, ZmtpRouter


@final
class ZmtpNetwork:
    """Sockets over TCP and unix sockets.  Opened by :func:`open_zmtp_network`."""

    @asynccontextmanager
    async def open_router(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None,
        on_peer: OnPeer | None = None,
    ) -> AsyncIterator[ZmtpRouter]:  # fmt: skip
        """See :meth:`Network.open_router`; ``tcp`` and ``ipc`` addresses.  ``on_peer``
        is told of each connection that is opened or lost."""
        parsed = parse_transport(address)
        listener, bound = await listen(parsed)
        file = ipc_file(parsed)
        router = ZmtpRouter(listener, bound, limits, on_peer)
        try:
            with unwrap_single():
                async with trio.open_nursery() as nursery:
                    router.start(nursery, on_event or _ignore)
                    try:
                        yield router
                    finally:
                        remove_ipc_file(parsed, file)
                        router.close()
                        nursery.cancel_scope.cancel()
        finally:
            await router.end()  # noqa: ASYNC102  # shields itself, and has limits

    @asynccontextmanager
    async def open_dealer(
        self,
        address: str,
        *,
        limits: WireLimits,
        on_event: OnEvent | None = None,
    ) -> AsyncIterator[ZmtpDealer]:
        """See :meth:`Network.open_dealer`; ``tcp`` and ``ipc`` addresses."""
        parsed: Address = parse_transport(address)
        parse_peer_address(address)
        dealer = ZmtpDealer(parsed, limits)
        try:
            with unwrap_single():
                async with trio.open_nursery() as nursery:
                    dealer.start(nursery, on_event or _ignore)
                    try:
                        yield dealer
                    finally:
                        dealer.close()
                        nursery.cancel_scope.cancel()
        finally:
            await dealer.end()  # noqa: ASYNC102  # shields itself, and has limits


@asynccontextmanager
async def open_zmtp_network() -> AsyncIterator[ZmtpNetwork]:
    """A network over TCP and unix sockets that needs no libzmq.  Raises ConfigError if
    the system has no epoll."""
    if not hasattr(select, "epoll"):
        raise ConfigError('transport "zmtp" needs Linux; use transport="libzmq" here')
    yield ZmtpNetwork()


def _ignore(event: ConnectionEvent) -> None:
    """The default callback."""
