"""Transport: sockets under trio over ZMQ, and their in-memory twin.

:mod:`.interface` says what both promise; :func:`open_zmq_network` and
:class:`MemoryNetwork` are the two ways to have it.
"""

from .address import Address, is_loopback, parse_address, parse_peer_address
from .background import open_background
from .groups import unwrap_single
from .interface import (
    BATCH_MESSAGES,
    BUNDLE_MESSAGES,
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
from .memory import MemoryNetwork
from .outbox import Outbox
from .stream import MemoryStream, MessageStream, Stream, open_memory_streams, open_stream
from .zeromq import ZmqNetwork, open_zmq_network
from .zmtp.network import ZmtpNetwork, open_zmtp_network

__all__ = [
    "BATCH_MESSAGES",
    "BUNDLE_MESSAGES",
    "COPY_THRESHOLD_BYTES",
    "FRAMES_MAX",
    "Address",
    "ConnectionEvent",
    "DealerSocket",
    "Frame",
    "MemoryNetwork",
    "MemoryStream",
    "Message",
    "MessageStream",
    "Network",
    "OnEvent",
    "Outbox",
    "RouterSocket",
    "SocketStatistics",
    "Stream",
    "ZmqNetwork",
    "ZmtpNetwork",
    "is_loopback",
    "open_background",
    "open_memory_streams",
    "open_stream",
    "open_zmq_network",
    "open_zmtp_network",
    "parse_address",
    "parse_peer_address",
    "unwrap_single",
]
