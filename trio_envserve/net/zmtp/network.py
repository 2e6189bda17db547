"""The network of sockets on which trio itself speaks ZMTP.

Theory of operation
-------------------
A network has no thread and no context.  Each open socket owns a nursery with the tasks
of its hub.  Closing is staged: receiving and sending stop, the address is freed, the
tasks end, and then the peers have a moment to read the last messages.
"""

from __future__ import annotations

import dataclasses
import os
import select
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import final

from ...core.errors import ConfigError
from ...core.limits import WireLimits
from ..address import parse_peer_address, parse_transport
from ..binding import listen
from ..interface import OnEvent
from ..keypairs import ClientCurve, KeyPair
from ..pump import open_socket
from . import boxes
from .curve import Admit, CurveClient, CurveServer
from .sealed import SEALED_FRAME_BYTES
from .sockets import OnPeer, ZmtpDealer, ZmtpRouter


@final
@dataclasses.dataclass(frozen=True, slots=True)
class RouterCurve:
    """A router that speaks CURVE."""

    keys: KeyPair
    admit: Admit
    """Is asked for each client's public key: see :data:`~.curve.Admit`."""

    def mechanism(self) -> CurveServer:
        """The mechanism of this side for one handshake."""
        return CurveServer(
            b"ROUTER", secret=self.keys.secret_bytes, admit=self.admit, random=os.urandom
        )


def sealed_wire(wire: WireLimits) -> WireLimits:
    """The limits for sealed connections: bounds on sizes are lowered to what can be sealed in one
    step."""
    boxes.check_installed()
    return dataclasses.replace(wire, message_bytes=min(wire.message_bytes, SEALED_FRAME_BYTES))


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
        router = ZmtpRouter(await listen(parsed), limits, on_peer, mechanism)
        async with open_socket(router, on_event):
            yield router

    def open_dealer(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None,
        curve: ClientCurve | None = None,
    ) -> AbstractAsyncContextManager[ZmtpDealer]:  # fmt: skip
        """See :meth:`Network.open_dealer`; ``tcp`` and ``ipc`` addresses.  ``curve``: the
        keys for a router that speaks CURVE."""
        parsed = parse_transport(address)
        parse_peer_address(address)

        def mechanism() -> CurveClient:
            assert curve is not None
            return CurveClient(
                b"DEALER", secret=curve.keys.secret_bytes, server=curve.server_bytes,
                random=os.urandom,
            )  # fmt: skip

        return open_socket(ZmtpDealer(parsed, limits, curve and mechanism), on_event)


@asynccontextmanager
async def open_zmtp_network() -> AsyncIterator[ZmtpNetwork]:
    """A network over TCP and unix sockets that needs no libzmq.  Raises ConfigError if
    the system has no epoll."""
    if not hasattr(select, "epoll"):
        raise ConfigError('transport "zmtp" needs Linux; use transport="libzmq" here')
    yield ZmtpNetwork()
