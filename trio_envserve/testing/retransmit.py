"""A network on which every request is transmitted several times.

::

    async with open_zmq_network() as network:
        impatient = RetransmittingNetwork(network, pauses_s=(0.05, 0.2))
        async with open_client(address, network=impatient) as client: ...

Theory of operation
-------------------
The client of this package retransmits only requests that the server has never seen,
so without faults the server gets no duplicate at all.  Other clients may be less
careful (most have a timer and a retry), and networks may duplicate messages.  Here
the shipped client is used as it is, and its socket sends the same bytes of each
request again after each of the given pauses, whatever has happened since.  A
duplicate of a running request is coalesced.  One that comes after the outcome is
answered by a replay, or refused because its id is finished.

Everything else (hello, sync, finish) goes out once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import final

import trio

from ..core.errors import ProtocolError
from ..core.limits import WireLimits
from ..core.messages import Request, read
from ..core.terms import whole
from ..net import DealerSocket, Message, Network, OnEvent, unwrap_single
from .wrapped import WrappedDealer, WrappedNetwork


@final
class RetransmittingNetwork(WrappedNetwork):
    """Wraps a network; its dealers send each request 1 + ``len(pauses_s)`` times.

    ``pauses_s``: seconds from the first transmission to each further one.
    """

    def __init__(self, network: Network, *, pauses_s: Sequence[float] = (0.05,)) -> None:
        self.retransmitted = 0
        """Further transmissions that the dealers' outboxes accepted, in all."""
        super().__init__(network)
        self._pauses_s = tuple(pauses_s)

    @asynccontextmanager
    async def open_dealer(
        self, address: str, *, limits: WireLimits,
        on_event: OnEvent | None = None,
    ) -> AsyncIterator[DealerSocket]:  # fmt: skip
        """The wrapped network's dealer, with tasks that send requests again."""
        opened = self._network.open_dealer(address, limits=limits, on_event=on_event)
        with unwrap_single():
            async with opened as inner, trio.open_nursery() as nursery:
                yield _Retransmitting(self, inner, nursery, limits)
                nursery.cancel_scope.cancel()

    async def _send_again(self, socket: DealerSocket, frames: Message) -> None:
        began_s = trio.current_time()
        for pause_s in self._pauses_s:
            await trio.sleep_until(began_s + pause_s)
            self.retransmitted += socket.send_nowait(frames)


@final
class _Retransmitting(WrappedDealer):
    """A dealer that sends requests again."""

    def __init__(
        self, network: RetransmittingNetwork, inner: DealerSocket, nursery: trio.Nursery,
        limits: WireLimits,
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self._network = network
        self._nursery = nursery
        self._limits = limits

    def send_nowait(self, frames: Message) -> bool:
        sent = self._inner.send_nowait(frames)
        if sent and self._is_request(frames):
            self._nursery.start_soon(self._network._send_again, self._inner, tuple(frames))
        return sent

    def _is_request(self, frames: Message) -> bool:
        try:
            message, _ = read([*map(whole, frames)], most_bytes=self._limits.header_bytes)[0]
        except ProtocolError:
            return False  # not a message of this protocol
        return isinstance(message, Request)
