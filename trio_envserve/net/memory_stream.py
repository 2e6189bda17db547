"""A stream of messages inside one process: both ends of it.

It makes the promises of :mod:`.stream`, with no descriptors: what is sent has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import trio

from ..core.limits import WireLimits
from ..core.terms import whole
from .interface import (
    BATCH_MESSAGES,
    COPY_THRESHOLD_BYTES,
    Frame,
    Message,
    SentFrame,
    is_sendable,
)
from .outbox import Outbox
from .pump import Pump


def open_memory_streams(limits: WireLimits) -> tuple[MemoryStream, MemoryStream]:
    """The two ends of a stream inside this process; ``close()`` closes each."""
    here, there = MemoryStream(limits), MemoryStream(limits)
    here._peer, there._peer = there, here
    return here, there


@final
class MemoryStream(Pump):
    """One end of a stream inside a process.  Made by :func:`open_memory_streams`."""

    _peer: MemoryStream

    def __init__(self, limits: WireLimits) -> None:
        super().__init__()
        self._limits = limits
        self._arrived = Outbox(limits.peer_queue_messages, limits.peer_queue_bytes)
        self._changed = trio.lowlevel.ParkingLot()

    def _turn(self) -> list[list[Frame]]:
        arrived = self._arrived
        batch: list[list[Frame]] = []
        while arrived and len(batch) < BATCH_MESSAGES:
            batch.append([_received(frame) for frame in arrived.pop()])
        if not batch and self._peer._closed:
            raise trio.EndOfChannel
        return batch

    async def _sleep(self) -> None:
        await self._changed.park()

    def send_nowait(self, frames: Message) -> bool:
        """See :class:`~.stream.MessageStream`."""
        peer = self._peer
        if self._closed or peer._closed or not is_sendable(frames, self._limits):
            return False
        taken = peer._arrived.append(frames)
        peer._changed.unpark_all()
        return taken

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """See :class:`~.stream.MessageStream`."""
        sent = [self.send_nowait(frames) for frames in messages]
        return all(sent)

    async def flush(self) -> None:
        """Nothing to wait for: the other end has everything."""
        self._check_open()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close this end: the other one receives what was sent, and then the end."""
        self._closed = True
        self._changed.unpark_all()
        self._peer._changed.unpark_all()


def _received(sent: SentFrame) -> Frame:
    """The frame as it would arrive from another process."""
    frame = whole(sent)
    if len(frame) < COPY_THRESHOLD_BYTES:
        return bytes(frame)
    return memoryview(frame).toreadonly()
