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

from collections.abc import Sequence
from typing import final

import trio

from ..core.messages import Request
from ..net import DealerSocket, Message, Network
from .wrapped import WrappedDealer, WrappedNetwork, messages_in


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

    def sent(self, dealer: WrappedDealer, frames: Message) -> None:
        """Have a request sent again."""
        if any(isinstance(message, Request) for message, _ in messages_in(frames)):
            dealer.nursery.start_soon(self._send_again, dealer.inner, tuple(frames))

    async def _send_again(self, socket: DealerSocket, frames: Message) -> None:
        began_s = trio.current_time()
        for pause_s in self._pauses_s:
            await trio.sleep_until(began_s + pause_s)
            self.retransmitted += socket.send_nowait(frames)
