"""Messages over one stream between two processes.

Theory of operation
-------------------
A worker inherits its end of a connected socket: there is no address, no handshake, no
identity, and no second connection.  The bytes are frames (:mod:`.framing`) without
commands.  A peer that breaks the framing has ended the stream, because nobody knows
where its next frame begins.

The promises of every socket of this package (:mod:`.interface`) hold here, too: messages
arrive whole and in order, unread messages wait in an outbox, a send never
blocks, and ``receive()`` is cancelled without loss.  A send is tried at once, and
usually succeeds; a task of the stream writes the bytes that the system does not take.
The end of the stream is an exception, :class:`trio.EndOfChannel`, raised once
everything before it was received.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import final

import trio

from ..core.limits import MIB, WireLimits
from .background import unwrap_single
from .connection import ConnectionEnded, ConnectionOutbox, SocketEnd, frame_limits
from .forks import forget_in_children
from .framing import READ_BYTES, Decoder, FramingError, encode
from .interface import BATCH_MESSAGES, Frame, Message, is_sendable
from .pump import Pump

TURN_BYTES = 1 * MIB
"""Most bytes that are read in one turn, however much the peer writes."""

_DRAINED_BYTES = 16 * TURN_BYTES
"""Most bytes that are read from a peer after its end.  A system's buffer holds a few megabytes;
more comes from a peer that has not ended."""

_BUFFER_BYTES = 1 * MIB
"""The requested size of the system's buffer in each direction; it may give less."""


class MessageStream(Pump):
    """One end of a stream of messages.

    ``receive()`` also raises EndOfChannel when the other end is closed and FramingError when it
    broke the framing, both after everything that came before.
    """

    @abstractmethod
    def send_nowait(self, frames: Message) -> bool:
        """Queue a message; returns False if it is too large, or one of the ends is closed.  Nothing
        that was queued is lost unless an end closes, so the ends bound what they send."""

    @abstractmethod
    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """Queue messages in this order; they are written together.  Returns False if one
        was not queued."""


@asynccontextmanager
async def open_stream(
    end: socket.socket, *, limits: WireLimits, first: Message = ()
) -> AsyncIterator[Stream]:
    """A stream over this end of a connected socket; the socket is closed with it.

    ``first`` is sent before everything else, whatever its size.
    """
    stream = Stream(end, limits)
    try:
        with unwrap_single():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream._write_rest)
                if first:
                    stream._send((first,))
                yield stream
                nursery.cancel_scope.cancel()
    finally:
        stream._close()


@final
class Stream(MessageStream):
    """A stream over a socket.  Made by :func:`open_stream`."""

    def __init__(self, end: socket.socket, limits: WireLimits) -> None:
        super().__init__()
        self._socket = end
        self._limits = limits
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        decoder = Decoder(frame_limits(limits))
        decoder.check_command = _refuse_command
        outbox = ConnectionOutbox(sys.maxsize, sys.maxsize)
        self._end = SocketEnd(end, decoder, encode, outbox)
        self._ended = False
        """Whether the other end is closed, and everything that it sent was read."""
        self._blocked = trio.Event()
        """Set while there are bytes that the system did not take."""
        forget_in_children(self)

    # -- receiving

    def drain_nowait(self) -> list[list[Frame]]:
        """The last messages of a peer that has ended; an unfinished message is lost.
        Raises FramingError as :meth:`receive` does."""
        self._check_usable()
        return self._read(_DRAINED_BYTES, _DRAINED_BYTES)

    def _turn(self) -> list[list[Frame]]:
        batch = self._read(TURN_BYTES, BATCH_MESSAGES)
        if not batch and self._ended:
            raise trio.EndOfChannel
        return batch

    def _read(self, left_bytes: int, most: int) -> list[list[Frame]]:
        decoder = self._end.decoder
        batch = decoder.take(most)
        while len(batch) < most and left_bytes > 0 and not self._ended:
            is_large = decoder.buffer() is not None
            size = 0
            try:
                size = self._end.fill()
            except ConnectionEnded:  # or reset: it was closed before it had read everything
                self._abandon()
                self._ended = True
            left_bytes -= size
            try:
                batch += decoder.take(most - len(batch))
            except FramingError:
                if batch:
                    break  # it is raised again, once this was received
                raise
            if size < READ_BYTES and not (is_large and size):
                break  # everything was read; if more comes, the socket is readable
        return batch

    async def _sleep(self) -> None:
        await trio.lowlevel.wait_readable(self._socket)

    # -- sending

    def send_nowait(self, frames: Message) -> bool:
        """See the base."""
        if self._closed or self._ended or not is_sendable(frames, self._limits):
            return False
        return self._send((frames,))

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """See the base."""
        if self._closed or self._ended:
            return not messages
        good = [frames for frames in messages if is_sendable(frames, self._limits)]
        return self._send(good) and len(good) == len(messages)

    def _send(self, messages: Sequence[Message]) -> bool:
        try:
            accepted = self._end.send(messages)
        except ConnectionEnded:  # receive() tells, after the last messages
            self._abandon()
            return False
        if self._end.outgoing:
            self._write()
        return accepted == len(messages)

    def is_unsent(self) -> bool:
        """See the base."""
        return bool(self._end.outgoing)

    def has_backlog(self, most: int, most_bytes: int, frames: int) -> bool:
        """Whether more messages wait, or more bytes of their first frames, so many of each."""
        outbox = self._end.outbox
        return len(outbox) > most or (
            outbox.size_bytes > most_bytes and outbox.heads_bytes(frames) > most_bytes
        )

    def _write(self) -> None:
        """Write until nothing is left, or the system takes no more."""
        try:
            if self._end.write():
                self._flushed()
            else:
                self._blocked.set()
        except ConnectionEnded:  # receive() tells, after the last messages
            self._abandon()

    def _abandon(self) -> None:
        """Drop everything to be sent: nobody will read it."""
        self._end.outgoing.clear()
        self._end.outbox.clear()
        self._flushed()

    async def _write_rest(self) -> None:
        """Write what the system did not take at once, as soon as it takes more."""
        while True:
            await self._blocked.wait()
            self._blocked = trio.Event()
            while self._end.outgoing:
                await trio.lowlevel.wait_writable(self._socket)
                self._write()

    # -- closing

    def _close(self) -> None:
        self._abandon()
        trio.lowlevel.notify_closing(self._socket)
        self.forget()

    def forget(self) -> None:
        """In a forked child: close the inherited socket, which belongs to the parent."""
        self._closed = True
        self._socket.close()


def _refuse_command(body: bytes) -> None:
    raise FramingError("a command, which streams between processes do not have")
