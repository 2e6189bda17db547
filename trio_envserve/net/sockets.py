"""The ROUTER and DEALER sockets of libzmq."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import final

import zmq

from ..core.limits import WireLimits
from ..core.terms import whole
from .interface import Message
from .libzmq import MORE, LibzmqSocket
from .monitor import ZmqSocket
from .outbox import Outbox

RETRY_PEERS = 256
"""Full outboxes tried in one turn; the others are tried in the next one."""


class _Sent(enum.Enum):
    YES = enum.auto()
    BLOCKED = enum.auto()
    """No room for this peer, or no connection: try again later."""
    GONE = enum.auto()
    """No such peer."""


@final
class ZmqRouter(LibzmqSocket):
    """A bound ROUTER.  Opened by :meth:`ZmqNetwork.open_router`."""

    _routed = True

    def __init__(self, socket: ZmqSocket, address: str, limits: WireLimits) -> None:
        super().__init__(socket, address, limits)
        self._backlog: dict[bytes, Outbox] = {}
        """The outboxes of peers with waiting messages; the longest untried first."""

    def send_nowait(self, route: bytes, frames: Message) -> bool:
        """See :meth:`RouterSocket.send_nowait`."""
        return self._may_send(frames) and self._send_to(route, frames)

    def send_many_nowait(self, route: bytes, messages: Sequence[Message]) -> bool:
        """See :meth:`RouterSocket.send_many_nowait`."""
        good = [frames for frames in messages if self._may_send(frames)]
        sent = [self._send_to(route, frames) for frames in good]
        return len(good) == len(messages) and all(sent)

    def _send_to(self, route: bytes, message: Message) -> bool:
        frames = [*map(whole, message)]
        outbox = self._backlog.get(route)
        if outbox is not None:
            return self._postpone(outbox, frames)
        sent = self._transmit(route, frames)
        self._wake_if_readable()
        if sent is _Sent.YES:
            self._sent += 1
            return True
        if sent is _Sent.GONE:
            self._undelivered += 1
            return False
        outbox = Outbox(self._limits.peer_queue_messages, self._limits.peer_queue_bytes)
        self._backlog[route] = outbox
        return self._postpone(outbox, frames)

    def close(self) -> None:
        """See the base."""
        super().close()
        self._backlog.clear()

    def _transmit(self, route: bytes, frames: Message) -> _Sent:
        try:
            self._socket.send(route, MORE)
        except zmq.Again:
            return _Sent.BLOCKED
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return _Sent.GONE
            raise
        # A ROUTER that has taken the route takes the rest (or drops it with
        # the peer, in silence).
        self._send_rest(frames)
        return _Sent.YES

    def _outboxes(self) -> Collection[Outbox]:
        return self._backlog.values()

    def _send_waiting(self) -> None:
        for route in list(itertools.islice(self._backlog, RETRY_PEERS)):
            outbox = self._backlog.pop(route)
            while outbox:
                sent = self._transmit(route, outbox.first())
                if sent is _Sent.YES:
                    outbox.pop()
                    self._sent += 1
                elif sent is _Sent.GONE:
                    self._undelivered += outbox.clear()
                else:
                    self._backlog[route] = outbox  # again, behind the others
                    break


@final
class ZmqDealer(LibzmqSocket):
    """A connecting DEALER.  Opened by :meth:`ZmqNetwork.open_dealer`.

    It has IMMEDIATE set: libzmq takes messages only while there is a
    connection, and what it still holds is lost with it.  Otherwise it would
    collect messages without a bound on bytes while there is none, out of reach
    of the counters; so they wait in the outbox, in order, and the connection
    that comes next gets them.
    """

    _routed = False

    def __init__(self, socket: ZmqSocket, address: str, limits: WireLimits) -> None:
        super().__init__(socket, address, limits)
        self.given_up = False
        """Whether a connection was given up and this is not reported yet; libzmq does
        not report it."""
        self.report_later: Callable[[], None] = lambda: None
        self._outbox = Outbox(limits.peer_queue_messages, limits.peer_queue_bytes)

    def send_nowait(self, frames: Message) -> bool:
        """See :meth:`DealerSocket.send_nowait`."""
        return self._may_send(frames) and self._send(frames)

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """See :meth:`DealerSocket.send_many_nowait`."""
        good = [frames for frames in messages if self._may_send(frames)]
        sent = [self._send(frames) for frames in good]
        return len(good) == len(messages) and all(sent)

    def _send(self, message: Message) -> bool:
        frames = [*map(whole, message)]
        if self._outbox:
            return self._postpone(self._outbox, frames)
        sent = self._send_rest(frames)
        self._wake_if_readable()
        if sent:
            self._sent += 1
            return True
        return self._postpone(self._outbox, frames)

    def reconnect(self) -> None:
        """See :meth:`DealerSocket.reconnect`."""
        if self._closed:
            return
        self._socket.disconnect(self._address)
        self._socket.connect(self._address)
        self.given_up = True
        self.report_later()
        self._wake_if_readable()

    def connected(self) -> None:
        """A connection was made: waiting messages can go, even without a pump."""
        if self._outbox and not self._closed:
            self._flush_outboxes()

    def _outboxes(self) -> Collection[Outbox]:
        return (self._outbox,) if self._outbox else ()

    def _send_waiting(self) -> None:
        while self._outbox and self._send_rest(self._outbox.first()):
            self._outbox.pop()
            self._sent += 1
