"""Two implementations of the same ZMTP sockets, and the choice between them.

``"zmtp"``, the default, is trio's own: it keeps the bounds, and no peer can end the
process; it needs Linux (epoll).  ``"libzmq"`` is the library that other programs use;
the documentation's page on the transport says what it cannot promise.  The two work
together.
"""

from __future__ import annotations

import select
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from ..core.errors import ConfigError
from .zmtp.sockets import ZmtpNetwork, open_zmtp_network

if TYPE_CHECKING:
    from .libzmq import ZmqNetwork

Transport: TypeAlias = Literal["zmtp", "libzmq"]
"""The name of an implementation; see the module's docstring."""

TRANSPORTS: Final[tuple[str, ...]] = get_args(Transport)

DEFAULT_TRANSPORT: Final[Transport] = "zmtp" if hasattr(select, "epoll") else "libzmq"


def open_zmq_network() -> AbstractAsyncContextManager[ZmqNetwork]:
    """See :func:`.libzmq.open_zmq_network`.  The library is loaded only by who uses it: no worker
    does, and by default no server."""
    from . import libzmq

    return libzmq.open_zmq_network()


def open_network(
    transport: Transport = DEFAULT_TRANSPORT,
) -> AbstractAsyncContextManager[ZmtpNetwork | ZmqNetwork]:
    """A network of real sockets.  Raises ConfigError for an unknown name."""
    if transport == "zmtp":
        return open_zmtp_network()
    if transport == "libzmq":
        return open_zmq_network()
    raise ConfigError(f"transport must be one of {', '.join(TRANSPORTS)}, not {transport!r}")
