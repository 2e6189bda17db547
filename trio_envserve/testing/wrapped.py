"""A network that is told what goes through the dealers of another one: a base."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import final

import trio

from ..core.errors import ProtocolError
from ..core.limits import WireLimits
from ..core.messages import MessageRow, read
from ..core.terms import whole
from ..net import (
    ConnectionEvent,
    DealerSocket,
    Frame,
    Message,
    Network,
    OnEvent,
    RouterSocket,
    SocketStatistics,
    unwrap_single,
)

_HEADER_BYTES = WireLimits().header_bytes


class WrappedNetwork:
    """Wraps a network, whose routers it opens unchanged.  Its methods ``sent``, ``received`` and
    ``happened`` are told, in order, what dealers took and gave and what became of their
    connections; they change nothing, must not block, and must not keep frames."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def open_router(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None
    ) -> AbstractAsyncContextManager[RouterSocket]:
        """The wrapped network's router, unchanged."""
        return self._network.open_router(address, limits=limits, on_event=on_event)

    @asynccontextmanager
    async def open_dealer(
        self, address: str, *, limits: WireLimits, on_event: OnEvent | None = None
    ) -> AsyncIterator[DealerSocket]:
        """The wrapped network's dealer, which tells this network what it does."""

        def tell(event: ConnectionEvent) -> None:
            self.happened(event)
            if on_event is not None:
                on_event(event)

        opened = self._network.open_dealer(address, limits=limits, on_event=tell)
        with unwrap_single():
            async with opened as inner, trio.open_nursery() as nursery:
                yield WrappedDealer(inner, self, nursery)
                nursery.cancel_scope.cancel()

    def sent(self, dealer: WrappedDealer, frames: Message) -> None:
        """A dealer took this message, a moment ago."""

    def received(self, frames: Message) -> None:
        """A dealer gave this message; the client has not seen it yet."""

    def happened(self, event: ConnectionEvent) -> None:
        """This became of a connection; the client does not know it yet."""


@final
class WrappedDealer:
    """Wraps a dealer."""

    def __init__(self, inner: DealerSocket, network: WrappedNetwork, nursery: trio.Nursery) -> None:
        self.inner = inner
        self.nursery = nursery
        """Where tasks run that end with it."""
        self._network = network

    @property
    def address(self) -> str:
        """See :attr:`DealerSocket.address`."""
        return self.inner.address

    def reconnect(self) -> None:
        """See :meth:`DealerSocket.reconnect`."""
        self.inner.reconnect()

    async def receive(self) -> list[list[Frame]]:
        """See :meth:`DealerSocket.receive`."""
        return self._told(await self.inner.receive())

    def receive_nowait(self) -> list[list[Frame]]:
        """See :meth:`DealerSocket.receive_nowait`."""
        return self._told(self.inner.receive_nowait())

    def _told(self, batch: list[list[Frame]]) -> list[list[Frame]]:
        for frames in batch:
            self._network.received(frames)
        return batch

    async def flush(self) -> None:
        """See :meth:`DealerSocket.flush`."""
        await self.inner.flush()

    def statistics(self) -> SocketStatistics:
        """See :meth:`DealerSocket.statistics`."""
        return self.inner.statistics()

    def send_nowait(self, frames: Message) -> bool:
        """See :meth:`DealerSocket.send_nowait`."""
        taken = self.inner.send_nowait(frames)
        if taken:
            self._network.sent(self, frames)
        return taken

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """See :meth:`DealerSocket.send_many_nowait`; each goes through :meth:`send_nowait`."""
        sent = [self.send_nowait(each) for each in messages]
        return all(sent)


def messages_in(frames: Message) -> Sequence[MessageRow]:
    """The messages of these frames; none if they are not of this protocol."""
    try:
        return read([*map(whole, frames)], most_bytes=_HEADER_BYTES)
    except ProtocolError:
        return ()  # not for us to judge; its reader will
