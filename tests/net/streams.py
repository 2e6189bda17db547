"""Streams for tests: both ends of one, or one end and the plain socket of its peer."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from trio_envserve.core.limits import MIB, WireLimits
from trio_envserve.net import open_stream

WIRE = WireLimits(message_bytes=8 * MIB, peer_queue_messages=50, peer_queue_bytes=4 * MIB)
PATIENCE_S = 60


@asynccontextmanager
async def sockets(
    limits: WireLimits = WIRE, theirs_limits: WireLimits = WIRE, **options: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """Both ends; the options are those of the first."""
    async with one_end(limits, **options) as (here, theirs):
        async with open_stream(theirs, limits=theirs_limits) as there:
            yield here, there


@asynccontextmanager
async def one_end(
    limits: WireLimits = WIRE, **options: Any
) -> AsyncIterator[tuple[Any, socket.socket]]:
    """A stream, and the plain socket of its peer."""
    ours, theirs = socket.socketpair()
    with theirs, trio.fail_after(PATIENCE_S):
        async with open_stream(ours, limits=limits, **options) as here:
            yield here, theirs


async def received(stream: Any, count: int) -> list[list[bytes]]:
    """The next messages, this many at the least."""
    found: list[list[bytes]] = []
    while len(found) < count:
        found += plain(await stream.receive())
    return found


def plain(messages: list[list[Any]]) -> list[list[bytes]]:
    return [[bytes(frame) for frame in frames] for frames in messages]
