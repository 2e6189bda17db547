"""Messages to peers: a line for each peer, and one task that serves all lines.

Theory of operation
-------------------
An outcome is many messages, and together they may be more than a peer's outbox takes.
So they are not put into it at once: the line of a peer says which outcomes it is to get,
and the task puts in what there is room for, a share for each peer in turn.  Whatever else
is said to a peer goes past the line, or, when its outbox is full, waits at its end.  A delta
that comes before its outcome never waits.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeAlias, final

import trio

from ...net import RouterSocket
from .runs import Deliver, VerifiersRun
from .wire import Message

SHARE_MESSAGES: Final = 64
SHARE_BYTES: Final = 1024 * 1024
"""One outbox gets so many bytes before the others have their turn."""

SAID_MOST: Final = 1000
"""Messages that may wait in one line, besides outcomes.  Who lets more wait does not read."""

RETRY_S: Final = 0.05
"""How soon a full outbox is tried again."""


Messages: TypeAlias = Generator[Message | None, None, None]
"""The messages of a line in order, as they are asked for; None while nothing waits."""


@final
class _Line:
    """The messages to one peer."""

    def __init__(self, messages: Callable[[_Line], Messages]) -> None:
        self.messages = messages(self)
        self.items: deque[Deliver | Message] = deque()
        self.said = 0
        """How many of them are messages."""
        self.is_busy = False
        """Whether anything waits."""
        self.next: Message | None = None
        """The next message, which did not go."""


@final
class Sending:
    """All lines of one door."""

    def __init__(
        self, router: RouterSocket, find: Callable[[bytes], VerifiersRun | None],
        delivered: Callable[[bytes, bytes], None],
    ) -> None:  # fmt: skip
        self._router = router
        self._find = find
        self._delivered = delivered
        self._lines: dict[bytes, _Line] = {}
        self._wake = trio.Event()
        self.dropped = 0
        """Messages for which there was no room."""

    def opened(self, route: bytes) -> None:
        """There is a new peer."""
        self._lines[route] = _Line(partial(self._messages, route))

    def lost(self, route: bytes) -> None:
        """A peer is gone."""
        self._lines.pop(route).messages.close()  # what it was to get is not held any longer

    def say(self, route: bytes, message: Message) -> None:
        """Send one message, before all that waits, or else behind it."""
        line = self._lines.get(route)
        if line is None or (not line.said and self._router.send_nowait(route, message)):
            return
        if line.said >= SAID_MOST:
            self.dropped += 1
            return
        line.said += 1
        self._add(line, message)

    def stream(self, route: bytes, message: Message) -> bool:
        """Send one message now; returns False if it cannot be sent, or others wait for room."""
        line = self._lines.get(route)
        return line is not None and line.next is None and self._router.send_nowait(route, message)

    def deliver(self, item: Deliver) -> None:
        """Send outcomes, when their turn has come."""
        line = self._lines.get(item.route)
        if line is not None:
            self._add(line, item)

    def _add(self, line: _Line, item: Deliver | Message) -> None:
        line.items.append(item)
        line.is_busy = True
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            is_blocked = False
            for route in list(self._lines):
                line = self._lines.get(route)
                if line is not None and line.is_busy:
                    is_blocked |= not self._send_some(route, line)
                    await trio.lowlevel.checkpoint()
            if is_blocked:
                with trio.move_on_after(RETRY_S):
                    await self._wake.wait()
                self._wake.set()

    def _send_some(self, route: bytes, line: _Line) -> bool:
        """Send a share; returns False if the outbox is full."""
        left = SHARE_BYTES
        for _ in range(SHARE_MESSAGES):
            line.next = line.next or next(line.messages)
            if line.next is None:
                line.is_busy = False
                return True
            if not self._router.send_nowait(route, line.next):
                return False
            left -= sum(map(len, line.next))
            line.next = None
            if left <= 0:
                break
        self._wake.set()
        return True

    def _messages(self, route: bytes, line: _Line) -> Messages:
        """See :data:`Messages`.  An outcome is delivered when the message behind its last one is
        asked for: that one has gone then."""
        while True:
            if not line.items:
                yield None
                continue
            item = line.items.popleft()
            if not isinstance(item, Deliver):
                line.said -= 1
                yield item
                continue
            for name in item.names:
                run = self._find(name)
                if run is not None:
                    messages = (*run.afresh, *run.messages) if item.afresh else run.messages
                    yield from itertools.islice(messages, item.has, None)
                    self._delivered(route, name)
