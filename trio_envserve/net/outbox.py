"""A bounded queue of messages for one peer.

Theory of operation
-------------------
A peer that does not read must cost a bounded amount of memory and delay nobody else.
So each peer has a queue of its own, bounded in messages and in bytes.  At a bound a
message is refused, and the sender decides what that means (in this package: nothing,
the next sync repairs it).  A single message may exceed the byte bound, otherwise the
largest allowed message could never be sent.

Pure: no trio, no zmq, no clock.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias, final

from .interface import Message, SentFrame, size_bytes

Parcel: TypeAlias = "tuple[SentFrame, ...]"
"""The frames of one message, in a container that does not change any more."""


@final
class Outbox:
    """FIFO of messages, at most ``max_messages`` and ``max_bytes``.

    Invariant: ``len(self) <= max_messages``, and ``size_bytes <= max_bytes``
    unless a single message is in it.
    """

    __slots__ = ("_max_bytes", "_max_messages", "_messages", "size_bytes")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: deque[tuple[Parcel, int]] = deque()
        self.size_bytes = 0
        """Sum of the sizes of all waiting frames."""

    def __len__(self) -> int:
        return len(self._messages)

    def append(self, frames: Message) -> bool:
        """Queue a message; returns False and changes nothing if a bound forbids it."""
        size = size_bytes(frames)
        if self._messages and (
            len(self._messages) >= self._max_messages or self.size_bytes + size > self._max_bytes
        ):
            return False
        self._messages.append((tuple(frames), size))
        self.size_bytes += size
        return True

    def first(self) -> Parcel:
        """The oldest message, which stays in the queue.  Raises IndexError if empty."""
        return self._messages[0][0]

    def pop(self) -> Parcel:
        """Take the oldest message out.  Raises IndexError if empty."""
        frames, size = self._messages.popleft()
        self.size_bytes -= size
        return frames

    def clear(self) -> int:
        """Drop everything; returns how many messages that were."""
        dropped = len(self._messages)
        self._messages.clear()
        self.size_bytes = 0
        return dropped
