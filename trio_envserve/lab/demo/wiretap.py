"""Networks that write down what goes over the sockets of a client.

::

    async with open_zmq_network() as network:
        tapped = LinkLogNetwork(network, "c0", log)
        async with open_client(address, network=tapped) as client: ...

Theory of operation
-------------------
What a client counts of itself, and a server of itself, proves little to
somebody who doubts both.  So a network between a client and its socket
(:mod:`trio_envserve.testing.wrapped`) writes down, in order, what the socket took, what it
gave, and what became of its connections.  Under a
:class:`~trio_envserve.testing.retransmit.RetransmittingNetwork` that is every
transmission.

A message that the socket took has not arrived for that: the connection may be
cut.  What is sent later on the same connection and answered proves it, since
messages of one connection keep their order.
"""

from __future__ import annotations

import hashlib
from typing import Any, final

from ...core import values
from ...core.limits import WireLimits
from ...core.messages import Outcome, Request, encode
from ...net import ConnectionEvent, Message, Network
from ...testing.wrapped import WrappedDealer, WrappedNetwork, messages_in
from ..logs import EventLog

_LIMITS = WireLimits()


class LinkLogNetwork(WrappedNetwork):
    """Wraps a network, and writes down when a client's connections begin and end: so much can it
    know of its server's death."""

    def __init__(self, network: Network, name: str, log: EventLog) -> None:
        super().__init__(network)
        self.name = name
        self.log = log

    def happened(self, event: ConnectionEvent) -> None:
        """Write it down."""
        if event in (ConnectionEvent.CONNECTED, ConnectionEvent.DISCONNECTED):
            self.log.write("linked", self.name, how=event.value)


@final
class CallLogNetwork(LinkLogNetwork):
    """Also writes down what one caller's socket sends and receives, as far as the judge wants it:
    requests, and outcomes with a digest of all their fields and bytes."""

    def __init__(self, network: Network, name: str, log: EventLog, received: set[str]) -> None:
        """``received`` is filled with the ids of all outcomes that came."""
        super().__init__(network, name, log)
        self._received = received
        self._requests: dict[str, str] = {}
        """By id: what was asked for."""

    def sent(self, dealer: WrappedDealer, frames: Message) -> None:
        """Write down requests."""
        for message, body in messages_in(frames):
            match message:
                case Request(session, sequence):
                    id_ = id_of(session, sequence)
                    if id_ not in self._requests:
                        asked: Any = values.decode(body or b"", limits=_LIMITS)
                        self._requests[id_] = str(asked["input"]["request"])
                    self.log.write("sent", self.name, self._requests[id_], id=id_)

    def received(self, frames: Message) -> None:
        """Write down outcomes."""
        for message, body in messages_in(frames):
            match message:
                case Outcome(session, sequence):
                    id_ = id_of(session, sequence)
                    self._received.add(id_)
                    digest = hashlib.blake2b(encode(message), digest_size=16)
                    digest.update(body or b"")
                    request = self._requests.get(id_, "")
                    self.log.write("arrived", self.name, request, id=id_, digest=digest.hexdigest())


def id_of(session: bytes, sequence: int) -> str:
    """The name of a request."""
    return f"{session.hex()}/{sequence}"
