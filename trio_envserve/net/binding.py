"""Plain sockets that listen or connect, with their options, and errors that say what to do.

The socket file of a killed server must be unlinked before a new one can take its
place; but another server's socket or a user's file may be there.  So the path is checked
first.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import stat
import struct
from contextlib import suppress
from typing import Any, Final, cast, final

import trio

from ..core.errors import ConfigError, ServerStartError
from .address import ANY, Address

BACKLOG: Final = 1024
"""Connections that may wait until they are accepted."""

CONNECT_TIMEOUT_S: Final = 5.0
"""An unanswered attempt to connect is given up after this time (the system's own limit
is minutes)."""

KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_PAUSE_S: Final = 5
KEEPALIVE_PROBES: Final = 4
"""The system notices after half a minute that a peer's machine is gone, if nothing is
sent."""

USER_TIMEOUT_S: Final = 120
"""Longest time, in seconds, for which a peer may acknowledge no sent bytes.  The system also counts
a peer that does not read, and a peer whose loop is blocked for a minute must keep its
connection."""

BUFFER_BYTES: Final = 1024 * 1024
"""The requested buffer of a unix socket; for TCP the system knows better."""

_CREDENTIALS: Final = struct.Struct("iII")
"""Process, user and group of the peer of a unix socket."""


@final
class Listener:
    """A listening socket, and its file if it has one.  Made by :func:`listen`."""

    def __init__(self, sock: socket.socket, asked: Address) -> None:
        self.sock = sock
        self.address = str(asked)
        """Bound address, with the real port in the place of 0."""
        self._path = asked.path
        self._file: tuple[int, int] | None = None
        if asked.scheme == "ipc":
            self._file = self._found()
        else:
            name = sock.getsockname()
            self.address = str(dataclasses.replace(asked, host=name[0], port=name[1]))

    def remove_file(self) -> None:
        """Remove the file.  Call this while still bound: nobody else can have a socket there
        then, and a file that is not ours any more stays."""
        try:
            if self._file is not None and self._found() == self._file:
                os.unlink(self._path)
        except OSError:
            pass  # somebody has removed it, or its folder, already

    def _found(self) -> tuple[int, int]:
        """The file that is there now: device and inode."""
        found = os.lstat(self._path)
        return found.st_dev, found.st_ino


async def listen(address: Address) -> Listener:
    """Listen at an address.

    Raises ConfigError (the address cannot work here) or ServerStartError (it
    is not available now); the message names the address and says what to do.
    """
    if address.scheme == "ipc":
        check_ipc_path(address)
        family, target = int(socket.AF_UNIX), cast("Any", address.path)
    else:
        family, target = await _resolve(address)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        if address.scheme == "ipc":
            with suppress(FileNotFoundError):
                os.unlink(address.path)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(BACKLOG)
        return Listener(listener, address)
    except OSError as error:
        listener.close()
        raise _explained(address, error) from error
    except BaseException:
        listener.close()
        raise


async def _resolve(address: Address) -> tuple[int, Any]:
    """Family and address of a host of this machine."""
    host = "0.0.0.0" if address.host == ANY else address.host
    try:
        found = await trio.socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise _explained(address, OSError(errno.EADDRNOTAVAIL, str(error))) from error
    family, _, _, _, target = found[0]
    return int(family), target


def check_ipc_path(address: Address) -> None:
    """Refuse an ipc path where a server listens or another kind of file is.  A
    socket on which nobody listens (left by a killed server) is fine.

    Raises ConfigError or ServerStartError.
    """
    try:
        mode = os.lstat(address.path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _explained(address, error) from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{address}: {address.path} exists and is not a socket; choose another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.path)
        except BlockingIOError:
            pass  # its queue of connections is full: somebody listens
        except OSError:
            return  # nobody listens, or connecting is not permitted: bind will tell
    raise _in_use(address)


def _in_use(address: Address) -> ServerStartError:
    other = "port 0 picks a free one" if address.scheme == "tcp" else "choose another path"
    return ServerStartError(
        f"{address} is in use by another process; stop that one or take another address ({other})"
    )


def _explained(address: Address, error: OSError) -> ConfigError | ServerStartError:
    """The error of an attempt to bind, in words."""
    number = error.errno
    if number == errno.EADDRINUSE:
        return _in_use(address)
    if number in (errno.EACCES, errno.EPERM):
        what = (
            "its directory must be writable"
            if address.scheme == "ipc"
            else "ports below 1024 need privileges; take a higher one"
        )
        return ServerStartError(f"no permission to listen on {address}: {what}")
    if number in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return ConfigError(
            f"cannot listen on {address}: this machine has no interface {address.host!r}; "
            "use 127.0.0.1 for this machine only, * for every interface"
        )
    if number in (errno.ENOENT, errno.ENOTDIR) and address.scheme == "ipc":
        return ConfigError(
            f"cannot listen on {address}: {os.path.dirname(address.path)} is not a directory; "
            "create it first"
        )
    if number in (errno.EINVAL, errno.ENAMETOOLONG):
        return ConfigError(f"cannot listen on {address}: {error}")
    return ServerStartError(f"cannot listen on {address}: {error}")


# -- connections -------------------------------------------------------------------


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


def origin_of(sock: socket.socket, name: str) -> str:
    """Origin of a peer: the address of its machine, or, over a unix socket, its user.
    Connections of one program have the same, and others may have it, too."""
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
