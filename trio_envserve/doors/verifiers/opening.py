"""Opening the door for verifiers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import final

import trio

from ...client import Client
from ...core.limits import MIB, WireLimits
from ...net import (
    check_reach,
    is_loopback,
    need_trio,
    open_zmtp_network,
    unwrap_single,
)
from ...net.address import parse_transport
from ...options import taken_beside
from ...server import Server
from ..limits import VerifiersLimits
from ..opening import OpenDoor, open_door_client
from ..options import VerifiersDoorOptions
from .door import Door


@final
class VerifiersDoor(OpenDoor):
    """An open door for verifiers.  Made by :func:`open_verifiers_door`."""

    def __init__(self, address: str, client: Client) -> None:
        super().__init__(client)
        self._address = address

    @property
    def address(self) -> str:
        """Its address (a port 0 is resolved)."""
        return self._address


@taken_beside(VerifiersDoorOptions)
@asynccontextmanager
async def open_verifiers_door(
    server: Server | str, options: VerifiersDoorOptions
) -> AsyncGenerator[VerifiersDoor, None]:
    """Serve clients of verifiers at ``bind`` until the block ends::

        async with open_server("verifiers:my-taskset", worker_python=python) as server:
            async with open_verifiers_door(server) as door:
                ...

    It needs Linux.  Raises ConfigError for wrong arguments, and ServerStartError if the address
    cannot be had.

    Args:
        server: A server of this process, or the address of any.
        options: Given as keyword arguments.
    """
    need_trio("open_verifiers_door")
    limits, bind = options.limits or VerifiersLimits(), options.bind
    check_options(options)
    redeliver = options.redeliver or is_loopback(bind)
    client = open_door_client(server, options, "verifiers-door")
    with unwrap_single():
        async with client as opened, open_zmtp_network() as sockets:
            door = Door(opened, limits, redeliver=redeliver)
            front = sockets.open_router(bind, limits=_front_limits(limits), on_peer=door.on_peer)
            async with front as router, trio.open_nursery() as nursery:
                await nursery.start(door.serve, router)
                try:
                    yield VerifiersDoor(router.address, opened)
                finally:
                    nursery.cancel_scope.cancel()


def check_options(options: VerifiersDoorOptions) -> None:
    """Raise ConfigError for whatever is wrong in the options of a door."""
    parse_transport(options.bind)
    if not options.insecure:
        check_reach(options.bind, "clients of verifiers have no keys, so bind to 127.0.0.1")


def _front_limits(limits: VerifiersLimits) -> WireLimits:
    """The bounds of the socket for strangers."""
    return WireLimits(
        message_bytes=limits.frame_bytes, connections=limits.connections,
        peer_queue_bytes=16 * MIB, arriving_bytes=limits.arriving_bytes,
        waiting_bytes=limits.waiting_bytes,
    )  # fmt: skip
