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
:class:`~.retransmit.RetransmittingNetwork` it is told of every transmission.

A message that the socket took has not arrived for that: the connection may be
cut.  What is sent later on the same connection and answered proves it, since
messages of one connection keep their order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, final

from ...core.limits import WireLimits
from ...net import ConnectionEvent, DealerSocket, Frame, Message, Network, OnEvent
from ...testing.wrapped import WrappedDealer, WrappedNetwork


class Tap(Protocol):
    """The listener of a tapped socket.  Must not block, and must not keep the frames."""

    def sent(self, frames: Message) -> None:
        """The socket took this message, a moment ago."""
        ...

    def received(self, frames: Message) -> None:
        """The socket gave this message; the client has not seen it yet."""
        ...

    def happened(self, event: ConnectionEvent) -> None:
        """This became of the connection; the client does not know it yet."""
        ...


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
