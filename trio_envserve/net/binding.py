"""Binding a socket, and saying what to do when that fails.

libzmq *unlinks whatever is at an ipc path* before it binds there, be it another
server's socket or somebody's file.  So the path is looked at first.
"""

from __future__ import annotations

import errno
import os
import socket
import stat

import zmq

from ..core.errors import ConfigError, ServerStartError
from .address import Address
from .monitor import ZmqSocket


def bind(zmq_socket: ZmqSocket, address: Address) -> str:
    """Bind, and return the address that it really got.

    Raises ConfigError (the address cannot work here) or ServerStartError (it
    cannot be had now); the message names the address and says what to do.
    """
    if address.scheme == "ipc":
        check_ipc_path(address)
    try:
        zmq_socket.bind(str(address))
    except zmq.ZMQError as error:
        raise _explained(address, error) from error
    return zmq_socket.get_string(zmq.LAST_ENDPOINT)


def check_ipc_path(address: Address) -> None:
    """Refuse an ipc path where a server listens or something else lives.  A
    socket that nobody listens on (left by a killed server) is fine.

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
            return  # nobody listens, or it is not ours to connect to: bind will tell
    raise _in_use(address)


def ipc_file(address: Address) -> tuple[int, int] | None:
    """The file of an ipc address that was just bound: device and inode."""
    if address.scheme != "ipc":
        return None
    found = os.lstat(address.path)
    return found.st_dev, found.st_ino


def remove_ipc_file(address: Address, made: tuple[int, int] | None) -> None:
    """Remove it, as libzmq 4.3.5 does not.  Call this while still bound: then
    nobody else can have a socket there, and what is no longer ours stays."""
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
            f"cannot listen on {address}: {os.path.dirname(address.path)} is no directory; "
            "create it first"
        )
    if number in (errno.EINVAL, errno.ENAMETOOLONG):
        return ConfigError(f"cannot listen on {address}: {error}")
    return ServerStartError(f"cannot listen on {address}: {error}")
