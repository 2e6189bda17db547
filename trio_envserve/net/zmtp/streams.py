"""Plain sockets for ZMTP: connecting, and their options."""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

import trio

from ..address import Address

CONNECT_TIMEOUT_S: Final = 5.0
"""An unanswered attempt to connect is given up after this time (the system's own limit
is minutes)."""

KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_PAUSE_S: Final = 5
KEEPALIVE_PROBES: Final = 4
"""The system notices after half a minute that a peer's machine is gone, if nothing is
sent."""

USER_TIMEOUT_S: Final = 120
"""The same if something is sent.  The system also counts a peer that does not read, and
a peer whose loop is blocked for a minute must keep its connection."""

BUFFER_BYTES: Final = 1024 * 1024
"""The requested buffer of a unix socket; for TCP the system knows better."""

_CREDENTIALS: Final = struct.Struct("iII")
"""Process, user and group of the peer of a unix socket."""


def prepare(sock: socket.socket) -> None:
    """Set the options of a new connection."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        return
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_PAUSE_S),
        (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
        (socket.TCP_USER_TIMEOUT, 1000 * USER_TIMEOUT_S),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def peer_name(name: Any) -> str:
    """A peer's address as the log shows it."""
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a local process"


def place_of(sock: socket.socket, name: str) -> str:
    """Where the peer with this name is: the address of its machine, or, over a unix socket,
    its user.  Connections of one program have the same, and others may have it, too."""
    if sock.family != socket.AF_UNIX:
        return name.rpartition(":")[0]
    _, user, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return f"user {user}"


async def connect(address: Address) -> socket.socket:
    """A connection to an address, or to the first address of a name that accepts one.
    Raises OSError if none does."""
    if address.scheme == "ipc":
        return await _connect(socket.AF_UNIX, address.path)
    found = await trio.socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )
    problem: OSError = OSError(f"{address.host} has no address")
    for family, _, _, _, target in found:
        try:
            return await _connect(family, target)
        except OSError as error:
            problem = error
    raise problem


async def _connect(family: int, target: Any) -> socket.socket:
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                await sock.connect(target)
        except trio.TooSlowError:
            raise TimeoutError(f"no answer within {CONNECT_TIMEOUT_S:g} s") from None
        plain = socket.socket(fileno=sock.detach())
    except BaseException:
        sock.close()
        raise
    try:
        prepare(plain)
    except OSError:
        plain.close()
        raise
    return plain
