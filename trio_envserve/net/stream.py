"""Messages over one stream between two processes.

Theory of operation
-------------------
A worker inherits its end of a connected socket: there is no address, no handshake, no
identity, and no second connection.  The bytes are frames (:mod:`.framing`) without
commands.  A peer that breaks the framing has ended the stream, because nobody knows
where its next frame begins.

The promises of every socket of this package (:mod:`.interface`) hold here, too: messages
arrive whole and in order, unread messages wait in a bounded outbox, a send never
blocks, and ``receive()`` is cancelled without loss.  A send is tried at once, and
usually succeeds; a task of the stream writes the bytes that the system does not take.
The end of the stream is an exception, :class:`trio.EndOfChannel`, raised once
everything before it was received.

Large frames travel through shared memory (:mod:`.shared`), if
there is some.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, final

import trio

from ..core.limits import BATCH_BYTES, KIB, MIB, WireLimits
from .forks import forget_in_children
from .framing import (
    READ_BYTES,
    Decoder,
    FrameLimits,
    FramingError,
    Outgoing,
    encode,
    encode_command,
)
from .groups import unwrap_single
from .interface import (
    BATCH_MESSAGES,
    FRAMES_MAX,
    Frame,
    Message,
    is_sendable,
    size_bytes,
)
from .outbox import Outbox
from .pump import Pump
from .shared import SharedMemory

TURN_BYTES = 1 * MIB
"""Most bytes that are read in one turn, however much the peer writes."""

_DRAINED_BYTES = 16 * TURN_BYTES
"""The same for the last words of a peer.  A system's buffer holds a few megabytes; more
comes from a peer that has not ended."""

_WRITE_BYTES = 256 * KIB
"""How many bytes are encoded at once: about as many as a socket takes."""

_BUFFER_BYTES = 1 * MIB
"""The requested size of the system's buffer in each direction; it may give less."""


class MessageStream(Protocol):
    """One end of a stream of messages."""

    async def receive(self) -> list[list[Frame]]:
        """Sleep until there is a message; return what is readable, at most
        :data:`BATCH_MESSAGES`.

        A cancel loses nothing.  Raises EndOfChannel when the other end is closed and
        FramingError when it broke the framing, both after everything that came before;
        BusyResourceError, ClosedResourceError.
        """
        ...

    def send_nowait(self, frames: Message) -> bool:
        """Queue a message; returns False if it is too large, the outbox is full, or one
        of the ends is closed.  True is not a promise of delivery."""
        ...

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """Queue messages in this order; they are written together.  Returns False if one
        was not queued."""
        ...

    async def flush(self) -> None:
        """Sleep until the system has taken everything, or the other end is closed."""
        ...


@asynccontextmanager
async def open_stream(
    end: socket.socket,
    *,
    limits: WireLimits,
    first: Message = (),
    memory: SharedMemory | None = None,
) -> AsyncIterator[Stream]:
    """A stream over this end of a connected socket; the socket is closed with it, and so
    is the memory.

    ``first`` is sent before everything else, whatever its size.  Memory that was made
    here is offered with it: its first byte carries the descriptor.
    """
    stream = Stream(end, limits, memory)
    try:
        with unwrap_single():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream._write_rest)
                if first:
                    stream._send_first(first)
                yield stream
                nursery.cancel_scope.cancel()
    finally:
        stream._close()


@final
class Stream(Pump):
    """A stream over a socket.  Made by :func:`open_stream`."""

    _shared_bytes: int
    """Bytes of the frames that were taken from shared memory in this turn."""

    def __init__(
        self, end: socket.socket, limits: WireLimits, memory: SharedMemory | None = None
    ) -> None:
        super().__init__()
        self._socket = end
        self._limits = limits
        self._memory = memory
        self._decoder = Decoder(
            FrameLimits(
                frame_bytes=max(limits.message_bytes, BATCH_BYTES),
                message_bytes=max(limits.message_bytes, BATCH_BYTES)
                + max(limits.header_bytes, BATCH_BYTES)
                + KIB,
                frames=FRAMES_MAX,
            ),
            None if memory is None else self._take_shared,
        )
        self._ended = False
        """Whether the other end is closed, and everything that it sent was read."""
        self._outgoing = Outgoing()
        self._outbox = Outbox(limits.peer_queue_messages, limits.peer_queue_bytes)
        """The messages that wait behind ``_outgoing``."""
        self._blocked = trio.Event()
        """Set while there are bytes that the system did not take."""
        self._flushed = trio.lowlevel.ParkingLot()
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
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
        decoder = self._decoder
        self._shared_bytes = 0
        batch = decoder.take(most)
        while len(batch) < most and left_bytes > self._shared_bytes and not self._ended:
            view = decoder.buffer()
            try:
                if view is None:
                    data = self._socket.recv(READ_BYTES)
                    size = len(data)
                    decoder.feed(data)
                else:
                    size = self._socket.recv_into(view)
                    decoder.received(size)
            except BlockingIOError:
                break
            except OSError:
                size = 0  # reset: the other end was closed before it had read everything
            if not size:
                self._ended = True
                self._abandon()
            left_bytes -= size
            try:
                batch += decoder.take(most - len(batch))
            except FramingError:
                if batch:
                    break  # it is raised again, once this was received
                raise
            if view is None and size < READ_BYTES:
                break  # everything was read; if more comes, the socket is readable
        while decoder.commands:
            self._command(decoder.commands[0])  # if it raises, each further call will, too
            decoder.commands.popleft()
        if not batch and decoder.is_backlogged:
            return decoder.take(most)  # what followed a command broke the framing
        return batch

    def _command(self, body: bytes) -> None:
        if self._memory is None:
            raise FramingError("a command, which streams without shared memory do not have")
        self._memory.heard(body)

    def _take_shared(self, offset: int, size: int) -> memoryview:
        assert self._memory is not None
        self._shared_bytes += size
        return self._memory.take(offset, size)

    async def _sleep(self) -> None:
        await trio.lowlevel.wait_readable(self._socket)

    # -- sending

    def send_nowait(self, frames: Message) -> bool:
        """See :class:`MessageStream`."""
        if self._closed or self._ended or not is_sendable(frames, self._limits):
            return False
        if self._outgoing:
            return self._outbox.append(frames)
        self._send_unchecked(frames)
        return True

    def send_many_nowait(self, messages: Sequence[Message]) -> bool:
        """See :class:`MessageStream`."""
        if self._closed or self._ended:
            return not messages
        good = [frames for frames in messages if is_sendable(frames, self._limits)]
        taken = 0
        while taken < len(good) and not self._outgoing:
            together: list[Message] = []
            size = 0
            while taken < len(good) and size < _WRITE_BYTES:
                together.append(good[taken])
                size += size_bytes(good[taken])
                taken += 1
            self._encode(together)
            self._write()
        queued = [self._outbox.append(frames) for frames in good[taken:]]
        return len(good) == len(messages) and all(queued)

    async def flush(self) -> None:
        """See :class:`MessageStream`."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        while self._outgoing:
            await self._flushed.park()
            self._check_open()

    def _send_unchecked(self, frames: Message) -> None:
        self._encode((frames,))
        self._write()

    def _send_first(self, frames: Message) -> None:
        memory = self._memory
        if memory is None or memory.descriptor < 0:
            self._send_unchecked(frames)
            return
        self._encode((frames,))
        with contextlib.suppress(OSError):  # the other end is closed, as _write will find
            size = socket.send_fds(self._socket, self._outgoing.pieces(), [memory.descriptor])
            self._outgoing.sent(size)
        memory.close_descriptor()
        self._write()

    def _encode(self, messages: Sequence[Message]) -> None:
        """Make messages ready to be written, behind what the shared memory has to say."""
        memory = self._memory
        if memory is None:
            self._outgoing.append(encode(messages))
            return
        if news := memory.news():
            self._outgoing.append((encode_command(news),))
        self._outgoing.append(encode(messages, memory.place))

    def _write(self) -> None:
        """Write until nothing is left, or the system takes no more."""
        outgoing = self._outgoing
        while outgoing:
            pieces = outgoing.pieces()
            try:
                if len(pieces) == 1:
                    size = self._socket.send(pieces[0])
                else:
                    size = self._socket.sendmsg(pieces)
            except BlockingIOError:
                self._blocked.set()
                return
            except OSError:  # the other end is closed; receive() tells, after the last messages
                self._abandon()
                return
            outgoing.sent(size)
            if not outgoing and self._outbox:
                self._refill()
        self._flushed.unpark_all()

    def _refill(self) -> None:
        together: list[Message] = []
        size = 0
        while self._outbox and size < _WRITE_BYTES:
            together.append(self._outbox.pop())
            size += size_bytes(together[-1])
        self._encode(together)

    def _abandon(self) -> None:
        """Drop everything to be sent: nobody will read it."""
        self._outgoing.clear()
        self._outbox.clear()
        self._flushed.unpark_all()

    async def _write_rest(self) -> None:
        """Write what the system did not take at once, as soon as it takes more."""
        while True:
            await self._blocked.wait()
            self._blocked = trio.Event()
            while self._outgoing:
                await trio.lowlevel.wait_writable(self._socket)
                self._write()

    # -- closing

    def _close(self) -> None:
        self._closed = True
        self._abandon()
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        if self._memory is not None:
            self._memory.close()

    def forget(self) -> None:
        """In a forked child: close the inherited socket, which belongs to the parent."""
        self._closed = True
        self._socket.close()
        if self._memory is not None:
            self._memory.close()
