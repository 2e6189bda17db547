"""Binding a socket, and errors that say what to do when that fails.

The socket file of a killed server must be unlinked before a new one can take its
place.  libzmq unlinks *whatever* is at a path, even another server's socket or a user's
file.  So the path is checked first.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import stat
from contextlib import suppress
from typing import Any, Final, cast

import trio
import zmq

from ..core.errors import ConfigError, ServerStartError
from .address import ANY, Address
from .monitor import ZmqSocket

BACKLOG: Final = 1024
"""Connections that may wait until they are accepted."""


def bind(zmq_socket: ZmqSocket, address: Address) -> str:
    """Bind, and return the real address (port 0 is resolved).

    Raises ConfigError (the address cannot work here) or ServerStartError (it
    is not available now); the message names the address and says what to do.
    """
    if address.scheme == "ipc":
        check_ipc_path(address)
    try:
        zmq_socket.bind(str(address))
    except zmq.ZMQError as error:
        raise _explained(address, error) from error
    return zmq_socket.get_string(zmq.LAST_ENDPOINT)


async def listen(address: Address) -> tuple[socket.socket, str]:
    """A plain listening socket, and its real address.  Raises as :func:`bind` does."""
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
        name = listener.getsockname()
    except OSError as error:
        listener.close()
        raise _explained(address, error) from error
    except BaseException:
        listener.close()
        raise
    if address.scheme == "ipc":
        return listener, str(address)
    return listener, str(dataclasses.replace(address, host=name[0], port=name[1]))


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


def ipc_file(address: Address) -> tuple[int, int] | None:
    """The file of an ipc address that was just bound: device and inode."""
    if address.scheme != "ipc":
        return None
    found = os.lstat(address.path)
    return found.st_dev, found.st_ino


def remove_ipc_file(address: Address, made: tuple[int, int] | None) -> None:
    """Remove the file, which libzmq 4.3.5 does not.  Call this while still bound: nobody
    else can have a socket there then, and a file that is not ours any more stays."""
    try:
        if made is not None and ipc_file(address) == made:
            os.unlink(address.path)
    except OSError:
        pass  # somebody has removed it, or its folder, already


def _in_use(address: Address) -> ServerStartError:
    other = "port 0 picks a free one" if address.scheme == "tcp" else "choose another path"
    return ServerStartError(
        f"{address} is in use by another process; stop that one or take another address ({other})"
    )


def _explained(address: Address, error: OSError | zmq.ZMQError) -> ConfigError | ServerStartError:
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
