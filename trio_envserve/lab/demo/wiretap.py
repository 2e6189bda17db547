"""A network that tells of every message that passes through its dealers.

::

    async with open_zmq_network() as network:
        async with open_client(address, network=TappedNetwork(network, tap)) as client: ...

Theory of operation
-------------------
What a client counts of itself, and a server of itself, proves little to
somebody who doubts both.  A tap sits between a client and its socket and is
told, in order, what the socket took, what it gave, and what became of its
connections; it changes nothing.  Under a
:class:`~trio_envserve.testing.retransmit.RetransmittingNetwork` it is told of every
transmission.

A message that the socket took has not arrived for that: the connection may be
cut.  What is sent later on the same connection and answered proves it, since
messages of one connection keep their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, final

from ...core import values
from ...core.errors import ProtocolError
from ...core.limits import WireLimits
from ...core.messages import Outcome, Request, Said, encode, read
from ...core.terms import whole
from ...net import ConnectionEvent, DealerSocket, Frame, Message, Network, OnEvent
from ...testing.wrapped import WrappedDealer, WrappedNetwork
from ..logs import EventLog

_LIMITS = WireLimits()


class Tap:
    """The listener of a tapped socket, which writes down when its connections begin and end: so
    much can a client know of its server's death.  Must not block, and must not keep frames."""

    def __init__(self, name: str, log: EventLog) -> None:
        self.name = name
        self.log = log

    def sent(self, frames: Message) -> None:
        """The socket took this message, a moment ago."""

    def received(self, frames: Message) -> None:
        """The socket gave this message; the client has not seen it yet."""

    def happened(self, event: ConnectionEvent) -> None:
        """This became of the connection; the client does not know it yet."""
        if event in (ConnectionEvent.CONNECTED, ConnectionEvent.DISCONNECTED):
            self.log.write("linked", self.name, how=event.value)


@final
class TappedNetwork(WrappedNetwork):
    """Wraps a network; ``tap`` is told what its dealers do, all of them."""

    def __init__(self, network: Network, tap: Tap) -> None:
        super().__init__(network)
        self._tap = tap

    @asynccontextmanager
    async def open_dealer(
        self, address: str, *, limits: WireLimits,
        on_event: OnEvent | None = None,
    ) -> AsyncIterator[DealerSocket]:  # fmt: skip
        """The wrapped network's, tapped."""

        def tell(event: ConnectionEvent) -> None:
            self._tap.happened(event)
            if on_event is not None:
                on_event(event)

        opened = self._network.open_dealer(address, limits=limits, on_event=tell)
        async with opened as inner:
            yield _Tapped(inner, self._tap)


@final
class _Tapped(WrappedDealer):
    """A dealer with a tap."""

    def __init__(self, inner: DealerSocket, tap: Tap) -> None:
        super().__init__(inner)
        self._tap = tap

    async def receive(self) -> list[list[Frame]]:
        return self._told(await self._inner.receive())

    def receive_nowait(self) -> list[list[Frame]]:
        return self._told(self._inner.receive_nowait())

    def _told(self, batch: list[list[Frame]]) -> list[list[Frame]]:
        for frames in batch:
            self._tap.received(frames)
        return batch

    def send_nowait(self, frames: Message) -> bool:
        taken = self._inner.send_nowait(frames)
        if taken:
            self._tap.sent(frames)
        return taken


@final
class CallerTap(Tap):
    """Also writes down what one caller's socket sends and receives, as far as the judge wants it:
    requests, and outcomes with a digest of all their fields and bytes."""

    def __init__(self, name: str, log: EventLog, received: set[str]) -> None:
        """``received`` is filled with the ids of all outcomes that came."""
        super().__init__(name, log)
        self._received = received
        self._requests: dict[str, str] = {}
        """By id: what was asked for."""

    def sent(self, frames: Message) -> None:
        """Requests."""
        for message, body in _rows(frames):
            match message:
                case Request(session, sequence):
                    id_ = id_of(session, sequence)
                    if id_ not in self._requests:
                        asked: Any = values.decode(body or b"", limits=_LIMITS)
                        self._requests[id_] = str(asked["input"]["request"])
                    self.log.write("sent", self.name, self._requests[id_], id=id_)

    def received(self, frames: Message) -> None:
        """Outcomes."""
        for message, body in _rows(frames):
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


def _rows(frames: Message) -> Sequence[Said]:
    try:
        return read([*map(whole, frames)], most_bytes=_LIMITS.header_bytes)
    except ProtocolError:
        return ()  # the client will say what it thinks of it
