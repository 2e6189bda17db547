"""Messages to peers: a line for each peer, and a task that serves it.

Theory of operation
-------------------
An outcome is many messages, and together they may be more than a peer's outbox takes.
So they are not put into it at once: the line of a peer says which outcomes it is to get,
and its task puts in what there is room for, a share in each turn.  Whatever else
is said to a peer goes past the line, or, when its outbox is full, waits at its end.  A delta
that comes before its outcome never waits.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Final, final

import trio

from ...net import RouterSocket
from .runs import Deliver, VerifiersRun
from .wire import Message

SHARE_MESSAGES: Final = 64
SHARE_BYTES: Final = 1024 * 1024
"""One outbox gets so many messages, or bytes, before the others have their turn."""

WAITING_MOST: Final = 1000
"""Messages that may wait in one line, besides outcomes.  Who lets more wait does not read."""

RETRY_S: Final = 0.05
"""Pause before a full outbox is tried again."""


@final
class _Line:
    """The messages to one peer."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        """The scope of its task."""
        self.items: deque[Deliver | Message] = deque()
        self.added = trio.Event()
        self.waiting = 0
        """Number of messages, besides outcomes, that have not gone."""
        self.is_blocked = False
        """Whether a message waits for room in the outbox."""
        self.left, self.left_bytes = SHARE_MESSAGES, SHARE_BYTES
        """Messages, and bytes, that are left of the share of this turn."""


@final
class Sending:
    """All lines of one door: tasks of a nursery."""

    def __init__(
        self, nursery: trio.Nursery, router: RouterSocket,
        find: Callable[[bytes], VerifiersRun | None], delivered: Callable[[bytes, bytes], None],
    ) -> None:  # fmt: skip
        self._nursery = nursery
        self._router = router
        self._find = find
        self._delivered = delivered
        self._lines: dict[bytes, _Line] = {}
        self.dropped = 0
        """Messages for which there was no room."""

    def opened(self, route: bytes) -> None:
        """There is a new peer."""
        line = self._lines[route] = _Line()
        self._nursery.start_soon(self._serve, route, line)

    def lost(self, route: bytes) -> None:
        """A peer is gone."""
        self._lines.pop(route).scope.cancel()

    def say(self, route: bytes, message: Message) -> None:
        """Send one message, before all that waits, or else behind it."""
        line = self._lines.get(route)
        if line is None or (not line.waiting and self._router.send_nowait(route, message)):
            return
        if line.waiting >= WAITING_MOST:
            self.dropped += 1
            return
        line.waiting += 1
        self._add(line, message)

    def stream(self, route: bytes, message: Message) -> bool:
        """Send one message now; returns False if it cannot be sent, or others wait for room."""
        line = self._lines.get(route)
        return line is not None and not line.is_blocked and self._router.send_nowait(route, message)

    def deliver(self, item: Deliver) -> None:
        """Send outcomes, when their turn has come."""
        line = self._lines.get(item.route)
        if line is not None:
            self._add(line, item)

    def _add(self, line: _Line, item: Deliver | Message) -> None:
        line.items.append(item)
        line.added.set()

    async def _serve(self, route: bytes, line: _Line) -> None:
        """Send what is in a line until its peer is gone."""
        with line.scope:
            while True:
                while not line.items:
                    line.added = trio.Event()
                    await line.added.wait()
                item = line.items.popleft()
                if not isinstance(item, Deliver):
                    await self._send(route, line, item)
                    line.waiting -= 1
                    continue
                for name in item.names:
                    run = self._find(name)
                    if run is not None:
                        messages = (*run.afresh, *run.messages) if item.afresh else run.messages
                        del run
                        for message in itertools.islice(messages, item.has, None):
                            await self._send(route, line, message)
                        del messages  # it is held for nobody any more
                        self._delivered(route, name)

    async def _send(self, route: bytes, line: _Line, message: Message) -> None:
        """Send one message as soon as there is room; others have a turn after each share."""
        while not self._router.send_nowait(route, message):
            line.is_blocked = True
            await trio.sleep(RETRY_S)
        line.is_blocked = False
        line.left -= 1
        line.left_bytes -= sum(map(len, message))
        if not line.left or line.left_bytes <= 0:
            line.left, line.left_bytes = SHARE_MESSAGES, SHARE_BYTES
            await trio.lowlevel.checkpoint()
