"""A client that gets its outcomes through anything, by saying everything again.

Theory of operation
-------------------
It is the minimal client of the document with a new connection for each that
has fallen silent: every ``AGAIN_S`` it transmits all that it has no outcome of,
and states what it holds; after ``SILENT_S`` without a word it opens another
connection, with another routing id and the next number.  Half of the outcomes
it keeps pending after it has them, so that they are sent again: all
transmissions of one are compared by the case.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, final

import trio

from ...core import messages
from ...core.ranges import Ranges
from ...net import Network
from .findings import TimedOut
from .forms import Received
from .peer import Peer, Sent, open_peer

AGAIN_S = 0.1
SILENT_S = 0.35
CONNECT_S = 1.0


@final
class PatientClient:
    """One session, over however many connections."""

    def __init__(self, network: Network, address: str) -> None:
        self.outcomes: dict[int, list[Received]] = {}
        """Every outcome that came, by sequence."""
        self.connections = 0
        self._network = network
        self._address = address
        self.session = b""
        self._nonce = os.urandom(16)
        self._last: Peer | None = None
        self._asked: Sequence[Any] = ()
        self._sent: dict[int, Sent] = {}
        self._at_once = 1
        self._answered = True
        """Whether the last probe was answered, or was of another connection."""

    async def run(self, asked: Sequence[Any], *, at_once: int) -> None:
        """Ask for all of these, and return when each has an outcome."""
        self._asked, self._at_once = asked, at_once
        while not self._is_done():
            try:
                async with open_peer(self._network, self._address, patience_s=CONNECT_S) as peer:
                    await self._one_connection(peer)
            except TimedOut:
                pass  # the next connection may do better; how long is the case's to say

    def _is_done(self) -> bool:
        return bool(self._asked) and sum(map(bool, self.outcomes.values())) == len(self._asked)

    async def _one_connection(self, peer: Peer) -> None:
        """Until it has fallen silent, or all is done."""
        self.connections += 1
        if self._last is None:
            peer.connection = self.connections
            await peer.hello(self._nonce)
            self.session = peer.session
        else:
            peer.resume(self._last, connection=self.connections)
        self._last, self._answered = peer, True
        heard_s = trio.current_time()
        while not self._is_done() and trio.current_time() - heard_s < SILENT_S:
            self._say_everything(peer)
            with trio.move_on_after(AGAIN_S):
                while not self._is_done():
                    await peer.receive()
                    heard_s = trio.current_time()
                    self._take(peer)

    def _say_everything(self, peer: Peer) -> None:
        unanswered = [n for n in self._sent if not self.outcomes[n]]
        for sequence in unanswered:
            peer.again(self._sent[sequence])
        while len(unanswered) < self._at_once and len(self._sent) < len(self._asked):
            sequence = len(self._sent)
            self.outcomes[sequence] = []
            self._sent[sequence] = peer.transmit(sequence, self._asked[sequence])
            unanswered.append(sequence)
        pending = Ranges(n for n in self._sent if not self.outcomes[n] or n % 2)
        if not self._answered:
            peer.probe -= 1  # the same number again: no answer has come to it
        self._answered = False
        peer.sync_nowait(len(self._sent), pending.flat())

    def _take(self, peer: Peer) -> None:
        for message, frames in peer.all(messages.Outcome):
            self.outcomes[message.sequence].append(Received(message, frames))
            if message.sequence % 2 == 0:
                peer.finish(message.sequence)
        self._answered |= any(each.probe == peer.probe for each, _ in peer.all(messages.Synced))
        peer.forget()
