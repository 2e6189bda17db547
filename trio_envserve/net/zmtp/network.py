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
from functools import partial
from typing import final

import trio

from ...core.errors import ConfigError
from ...core.limits import WireLimits
from ..address import Address, parse_peer_address, parse_transport
from ..binding import ipc_file, listen, remove_ipc_file
from ..groups import unwrap_single
from ..interface import ConnectionEvent, OnEvent
from ..keypairs import ClientCurve
from .sides import RouterCurve, client_mechanism
from .sockets import OnPeer, ZmtpDealer, ZmtpRouter


@final
class ZmtpNetwork:
    """Sockets over TCP and unix sockets.  Opened by :func:`open_zmtp_network`."""

    @asynccontextmanager
    async def open_router(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None,
        on_peer: OnPeer | None = None, curve: RouterCurve | None = None,
    ) -> AsyncIterator[ZmtpRouter]:  # fmt: skip
        """See :meth:`Network.open_router`; ``tcp`` and ``ipc`` addresses.  ``on_peer``
        is told of each connection that is opened or lost.  ``curve``: only whom it lets in
        may connect, and all that passes is sealed."""
        parsed = parse_transport(address)
        mechanism = None if curve is None else curve.mechanism
        listener, bound = await listen(parsed)
        file = ipc_file(parsed)
        router = ZmtpRouter(listener, bound, limits, on_peer, mechanism)
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
        curve: ClientCurve | None = None,
    ) -> AsyncIterator[ZmtpDealer]:
        """See :meth:`Network.open_dealer`; ``tcp`` and ``ipc`` addresses.  ``curve``: the
        keys for a router that speaks CURVE."""
        parsed: Address = parse_transport(address)
        parse_peer_address(address)
        mechanism = None if curve is None else partial(client_mechanism, curve)
        dealer = ZmtpDealer(parsed, limits, mechanism)
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
