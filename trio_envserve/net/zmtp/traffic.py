"""The connections that have something to read.

Theory of operation
-------------------
An epoll has all connections that are open, and is waited for as one descriptor, so a
connection needs no task.  Each turn of the pump polls it and adds what it says to a
queue; a connection with more than its share goes to the end of the queue.  Both matter:
with shares a flood takes no more than its neighbours, and with a poll in every turn a
queue of floods keeps nobody out.

There are two queues, because a share in messages is none in bytes: a connection that has
had more than ``QUANTUM_BYTES`` in each of its turns waits among the *heavy* ones, of
which each turn of the pump reads a few.  (Deficit round robin, Shreedhar and Varghese
1996, with all debts in one class.)
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Mapping
from typing import Final, final

from ...core.limits import KIB, MIB
from ..pump import Sleep
from .connection import Connection

QUANTUM_BYTES: Final = 64 * KIB
"""Bytes of each turn of a connection that are not charged."""

DEBT_MOST_BYTES: Final = MIB
"""More than this is forgiven: after one large body its sender is heavy for 16 turns."""

EVENTS_MOST: Final = 256
"""Most events of one poll."""

# As a number, because a system without epoll imports this module, too.
EPOLLIN: Final = 0x1


@final
class Traffic:
    """The open connections of a socket, and the queues of those to be read."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.sleep = Sleep(self._epoll.fileno())
        """The sleep of the task that reads, while nothing has arrived."""
        self.light: deque[Connection] = deque()
        self.heavy: deque[Connection] = deque()

    def register(self, connection: Connection) -> None:
        """Notice from now on what arrives on a connection."""
        self._epoll.register(connection.fd, EPOLLIN)

    def unregister(self, connection: Connection) -> None:
        """Forget a connection; it may not be here."""
        try:
            self._epoll.unregister(connection.fd)
        except FileNotFoundError:
            pass  # its handshake was never done

    def poll(self, connections: Mapping[int, Connection]) -> int:
        """Add what the system says to the queues; ``connections`` by descriptor.  Returns
        how many there are to read."""
        for fd, _ in self._epoll.poll(0, EVENTS_MOST):
            self.enqueue(connections[fd])
        return len(self.light) + len(self.heavy)

    def enqueue(self, connection: Connection) -> None:
        """Have a connection read in one of the next turns, whatever the system says."""
        if not connection.is_queued:
            connection.is_queued = True
            (self.heavy if connection.debt_bytes else self.light).append(connection)

    def charge(self, connection: Connection, size: int) -> None:
        """Count the bytes of a connection's turn; it is not in a queue."""
        debt = connection.debt_bytes + size - QUANTUM_BYTES
        connection.debt_bytes = min(max(debt, 0), DEBT_MOST_BYTES)

    def close(self) -> None:
        """Close the epoll."""
        self._epoll.close()
