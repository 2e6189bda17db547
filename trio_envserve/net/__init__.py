"""Transport: sockets that carry messages, under trio.

:mod:`.interface` says what they promise.  There are three implementations:
:func:`open_zmtp_network` speaks ZMTP itself, :func:`open_zmq_network` uses libzmq,
and :class:`MemoryNetwork` works in memory.
"""

from .address import Address, check_reach, is_loopback, parse_address, parse_peer_address
from .background import need_trio, open_background, unwrap_single
from .connection import ConnectionOutbox
from .interface import (
    BATCH_MESSAGES,
    COPY_THRESHOLD_BYTES,
    FRAMES_MAX,
    ConnectionEvent,
    DealerSocket,
    Frame,
    Message,
    Network,
    OnEvent,
    RouterSocket,
    SocketStatistics,
)
from .makers import (
    DEFAULT_TRANSPORT,
    TRANSPORTS,
    Transport,
    open_network,
    open_zmq_network,
)
from .memory import MemoryNetwork, MemoryStream, open_memory_streams
from .stream import MessageStream, Stream, open_stream
from .zmtp.sockets import ZmtpNetwork, open_zmtp_network

__all__ = [
    "BATCH_MESSAGES", "COPY_THRESHOLD_BYTES", "DEFAULT_TRANSPORT", "FRAMES_MAX", "TRANSPORTS",
    "Address", "ConnectionEvent", "ConnectionOutbox", "DealerSocket", "Frame", "MemoryNetwork",
    "MemoryStream", "Message", "MessageStream", "Network", "OnEvent", "RouterSocket",
    "SocketStatistics", "Stream", "Transport", "ZmtpNetwork", "check_reach",
    "is_loopback", "need_trio", "open_background",
    "open_memory_streams", "open_network", "open_stream", "open_zmq_network", "open_zmtp_network",
    "parse_address", "parse_peer_address", "unwrap_single",
]  # fmt: skip
