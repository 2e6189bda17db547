"""The framing of ZMTP: messages to bytes and back, bounded while the bytes arrive.

Theory of operation
-------------------
A frame is a byte of flags, its length in one byte (or in eight, most significant
first, with the flag LONG), and its body.  All frames of a message but the last have
the flag MORE.  A frame with the flag COMMAND belongs to the transport itself and may
stand between the frames of a message.

:class:`Decoder` takes arriving bytes and gives whole messages.  It checks every bound
as soon as it can: the size of a frame at its head, the size of a message and its
number of frames at the head of each further frame.  So it never holds more than the
bounds allow, even if no message is ever finished.  A large frame has a buffer of its
own, into which the bytes are received directly.  The buffer grows with the bytes that
have arrived, so a head that claims much costs nothing.  A caller says how many messages
it wants at a time, so that millions of tiny ones hold nobody up; the rest waits
undecoded.  On a sealed connection (:meth:`Decoder.unseal`) each whole frame is opened, and then
taken in as any other.

*Memory of large frames.*  A peer says how large its frame is, and the bytes come later, or
never.  So memory is taken as they come: a buffer doubles when it is full, and is copied as it
grows.  From :data:`MAPPED_BYTES` on the rest of the frame goes into a private memory mapping of
the frame's whole size.  The system gives its pages when they are first written to, so it
grows without a copy.  (To grow a ``bytearray`` at 32 MiB took up to 127 ms of processor
time: the allocator moves it to new memory, page by page.)  Huge pages, where the system
has them for those who ask, make new pages cheap: 64 MiB take 10 ms to fill.

:class:`Outgoing` is the other direction: the bytes that one connection has yet to
write.  Small pieces are joined; large ones are not copied.

Pure: no sockets, no trio, no clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final, TypeAlias, final

from ..core.limits import KIB, MIB
from ..core.terms import BodyParts
from .interface import COPY_THRESHOLD_BYTES, Frame, Message

MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
_RESERVED: Final = 0xF8
"""Flags without a meaning.  libzmq ignores them; here they are a violation, because
bytes that are not ZMTP show there first."""

READ_BYTES: Final = 64 * KIB
"""Number of bytes to read at once if :meth:`Decoder.buffer` returns None."""

PIECES_MOST: Final = 64
"""Most pieces for one ``sendmsg`` (the system's limit is 1,024)."""

_FIRST_BYTES: Final = 2 * COPY_THRESHOLD_BYTES
"""The first size of a large frame's buffer; it doubles when it is full."""

Piece: TypeAlias = bytes | memoryview

Unseal: TypeAlias = Callable[[Frame], tuple[int, Frame]]
"""Opens a sealed frame; returns its flags and body.  Raises FramingError."""


class FramingError(ValueError):
    """A peer's break of the framing or of a bound; the message says how.  The connection cannot
    be used any more, because nobody knows where the next frame begins."""


class FrameTooLarge(FramingError):
    """Well-formed bytes that exceed a bound."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """The bounds of a decoder."""

    frame_bytes: int
    """Largest frame."""
    message_bytes: int
    """Largest message: the sum of its frames."""
    frames: int
    """Most frames of a message."""
    command_bytes: int = 4 * KIB
    """Largest command."""


# -- the memory of large frames

GROW_BYTES: Final = 2 * MIB
"""Most bytes by which the buffer grows at a time: new memory takes time."""

MAPPED_BYTES: Final = 4 * MIB
"""The largest buffer that is copied when it grows."""

_ZEROS: Final = bytes(64 * KIB)
"""Added to a buffer to make it grow."""


class LargeFrame:
    """A large frame that arrives."""

    __slots__ = ("_memory", "_view", "filled", "size", "space")

    def __init__(self, head: bytes, size: int, first_bytes: int) -> None:
        self.size = size
        """The bytes of the whole frame."""
        self.filled = len(head)
        """Number of bytes that have arrived."""
        self.space = min(size, max(first_bytes, len(head)))
        """Number of bytes that count as taken by the frame, because they have arrived or may arrive
        next."""
        self._memory: bytearray | mmap.mmap = bytearray(head)
        self._view: memoryview | None = None
        self._extend()

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there."""
        return self.filled == self.size

    def buffer(self) -> memoryview:
        """The part of the buffer for the next bytes; empty if the frame is whole."""
        if self._view is not None:
            self._view.release()  # nothing came
        if self.filled == self.space < self.size:
            self._grow()
        self._view = memoryview(self._memory)[self.filled : self.space]
        return self._view

    def received(self, size: int) -> None:
        """Note that this number of bytes was written at the beginning of :meth:`buffer`."""
        assert self._view is not None
        self._view.release()  # an exported buffer could not grow
        self.filled += size

    def frame(self) -> memoryview:
        """The whole frame."""
        return memoryview(self._memory)[: self.size].toreadonly()

    def _grow(self) -> None:
        self.space = min(self.size, self.space + min(self.space, GROW_BYTES))
        if self.space > MAPPED_BYTES and isinstance(self._memory, bytearray):
            self._memory = self._mapped() or self._memory
        self._extend()

    def _extend(self) -> None:
        while len(self._memory) < self.space:
            assert isinstance(self._memory, bytearray)  # a mapping has its whole size
            self._memory += _ZEROS[: self.space - len(self._memory)]

    def _mapped(self) -> mmap.mmap | None:
        """The frame's own mapping, with what is there; None if the system grants none."""
        try:
            mapped = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            return None
        with contextlib.suppress(OSError, AttributeError):  # it has no huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
        mapped[: self.filled] = self._memory[: self.filled]
        return mapped


# -- bytes in, messages out


@final
class Decoder:
    """One direction of a connection: bytes in, messages out.

    To read from a socket::

        view = decoder.buffer()
        if view is None:
            decoder.feed(sock.recv(READ_BYTES))
        else:
            decoder.received(sock.recv_into(view))
        messages = decoder.take(most)

    and :meth:`take` again, before more is read, while :attr:`is_backlogged`.  Frames
    below ``COPY_THRESHOLD_BYTES`` are ``bytes``, others a read-only ``memoryview``
    over a buffer of their own.
    """

    __slots__ = (
        "_at", "_data", "_flags", "_frames", "_head_bytes", "_large", "_limits", "_unseal",
        "_violation", "check_command", "commands", "is_backlogged", "message_bytes",
    )  # fmt: skip

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._data = b""
        """The bytes that have arrived and are not decoded, from ``_at`` on."""
        self._at = 0
        self._frames: list[Frame] = []
        """The frames of the arriving message."""
        self._large: LargeFrame | None = None
        """An arriving large frame.  Meanwhile ``_data`` is empty."""
        self._flags = 0
        """The flags of the large frame."""
        self._unseal: Unseal | None = None
        """Opens a sealed frame; None: frames are not sealed."""
        self._head_bytes = 0
        """Bytes of a sealed frame before its body."""
        self._violation: Callable[[], FramingError] | None = None
        self.commands: deque[bytes] = deque()
        """Bodies of the commands that :meth:`take` has met, for the caller to take."""
        self.check_command: Callable[[bytes], None] | None = None
        """Raises FramingError for a command that breaks the framing, where it stands among the
        messages; None: any may be met."""
        self.message_bytes = 0
        """Sum of the whole frames of the arriving message."""
        self.is_backlogged = False
        """Whether :meth:`take` stopped because it had as many messages as it may give."""

    @property
    def arriving_bytes(self) -> int:
        """The bytes held for unfinished messages: frames, the buffer of a large frame,
        and undecoded bytes."""
        held = self.message_bytes + len(self._data) - self._at
        return held if self._large is None else held + self._large.space

    @property
    def is_between_messages(self) -> bool:
        """Whether no message is unfinished."""
        return not self._frames and self._large is None and self._at == len(self._data)

    # -- what arrives

    def buffer(self) -> memoryview | None:
        """The buffer into which to receive the next bytes; call :meth:`received` then.
        None: receive them anywhere, and call :meth:`feed`."""
        return None if self._large is None else self._large.buffer()

    def received(self, size: int) -> None:
        """Note that this number of bytes was written at the beginning of :meth:`buffer`."""
        assert self._large is not None
        self._large.received(size)

    def feed(self, data: bytes) -> None:
        """Take in bytes that have arrived."""
        if self._large is None:
            rest = self._data[self._at :]
            self._data = rest + data if rest else data
            self._at = 0
            return
        while data and not self._large.is_whole:
            view = self._large.buffer()
            size = min(len(view), len(data))
            view[:size] = data[:size]
            self._large.received(size)
            data = data[size:]
        self._data += data

    def unseal(self, unseal: Unseal, head_bytes: int, limits: FrameLimits) -> None:
        """Expect sealed frames from here on: each is a message of its own, with this number of
        bytes before its body; ``limits`` are those of the messages inside."""
        self._unseal, self._head_bytes, self._limits = unseal, head_bytes, limits

    # -- what it means

    def take(self, most: int) -> list[list[Frame]]:
        """The next whole messages that have arrived, up to this number; a command counts as one.

        Once everything before a violation was given out, each call raises
        FramingError.
        """
        if self._violation is not None:
            raise self._violation()
        batch: list[list[Frame]] = []
        try:
            self.is_backlogged = self._decode(batch, most)
        except FramingError as error:
            # Not the error itself: it would hold its frames, and they the connection,
            # which then would not be freed before the next full collection of garbage.
            self._violation = partial(type(error), *error.args)
            self._data, self._at, self._large = b"", 0, None
            self._frames, self.message_bytes = [], 0
            self.is_backlogged = bool(batch or self.commands)
            if not self.is_backlogged:
                raise
        return batch

    def _decode(self, batch: list[list[Frame]], most: int) -> bool:
        """Decode into ``batch``; True if there may be more than ``most``."""
        left = most
        if self._large is not None:
            if not self._large.is_whole:
                return False
            large, self._large = self._large, None
            left -= self._take_in(self._flags, large.frame(), batch)
        data, at = self._data, self._at
        end = len(data)
        is_sealed = self._unseal is not None
        frame_bytes = self._limits.frame_bytes + self._head_bytes
        try:
            while left > 0:
                if end - at < 2:
                    return False
                flags = data[at]
                if flags <= MORE:
                    size, start = data[at + 1], at + 2
                else:
                    if flags & _RESERVED or (flags & COMMAND and flags & MORE):
                        raise FramingError(f"a frame with the flags {flags:#04x}")
                    if not flags & LONG:
                        size, start = data[at + 1], at + 2
                    elif end - at < 9:
                        return False
                    else:
                        size, start = int.from_bytes(data[at + 1 : at + 9], "big"), at + 9
                    if flags & COMMAND:
                        if is_sealed:
                            raise FramingError("a command that is not sealed")
                        self._check_command_size(size)
                        if end - start < size:
                            return False
                        at = start + size
                        self._meet(data[start:at])
                        left -= 1
                        continue
                if size > frame_bytes:
                    raise FrameTooLarge(f"a frame of {size} bytes; {frame_bytes} are taken")
                if not is_sealed:
                    self._check_message(size)
                elif flags & MORE:
                    raise FramingError("a sealed frame that is not a message of its own")
                frame: Frame
                if size >= COPY_THRESHOLD_BYTES:
                    if end - start < size:
                        self._large = LargeFrame(data[start:], size, _FIRST_BYTES)
                        self._flags = flags
                        at = end
                        return False
                    frame = memoryview(data[start : start + size])
                elif end - start < size:
                    return False
                else:
                    frame = data[start : start + size]
                at = start + size
                left -= self._take_in(flags, frame, batch)
            return at < end
        finally:
            self._at = at
            if at == end:
                self._data, self._at = b"", 0

    def _meet(self, command: bytes) -> None:
        if self.check_command is not None:
            self.check_command(command)
        self.commands.append(command)

    def _take_in(self, flags: int, frame: Frame, batch: list[list[Frame]]) -> int:
        """Take in a whole frame; returns 1 if a message or a command ends with it."""
        if self._unseal is not None:
            flags, frame = self._unseal(frame)
            if flags == COMMAND:
                self._check_command_size(len(frame))
                self._meet(bytes(frame))
                return 1
            self._check_message(len(frame))
        self._frames.append(frame)
        if flags & MORE:
            self.message_bytes += len(frame)
            return 0
        batch.append(self._frames)
        self._frames, self.message_bytes = [], 0
        return 1

    def _check_message(self, more_bytes: int) -> None:
        """Refuse a further frame that makes the arriving message too large."""
        limits = self._limits
        if self.message_bytes + more_bytes > limits.message_bytes:
            raise FrameTooLarge(f"a message of more than {limits.message_bytes} bytes")
        if len(self._frames) >= limits.frames:
            raise FrameTooLarge(f"a message of more than {limits.frames} frames")

    def _check_command_size(self, size: int) -> None:
        most = self._limits.command_bytes
        if size > most:
            raise FrameTooLarge(f"a command of {size} bytes; {most} are taken")


# Heads of short frames: (without MORE, with MORE), by their length.
_LAST_HEADS: Final = tuple(bytes((0, n)) for n in range(256))
_MORE_HEADS: Final = tuple(bytes((MORE, n)) for n in range(256))


def encode_command(body: bytes) -> bytes:
    """The frame of a command."""
    size = len(body)
    if size < 256:
        return bytes((COMMAND, size)) + body
    return bytes((COMMAND | LONG,)) + size.to_bytes(8, "big") + body


def encode(messages: Iterable[Message]) -> list[Piece]:
    """The bytes of messages, in pieces to be written in this order: large frames
    unchanged, and everything between them joined."""
    pieces: list[Piece] = []
    small: list[Piece] = []
    add = small.append
    for message in messages:
        left = len(message)
        for frame in message:
            left -= 1
            size = frame.nbytes if type(frame) is memoryview else len(frame)
            if size < 256:
                add(_MORE_HEADS[size] if left else _LAST_HEADS[size])
            else:
                add((b"\x03" if left else b"\x02") + size.to_bytes(8, "big"))
            if type(frame) is BodyParts:
                for piece in frame.pieces:
                    if len(piece) < COPY_THRESHOLD_BYTES:
                        add(piece)
                    else:
                        pieces += (b"".join(small), piece)
                        small.clear()
            elif size < COPY_THRESHOLD_BYTES:
                add(frame)
            else:
                pieces.append(b"".join(small))
                small.clear()
                pieces.append(frame if type(frame) is bytes else memoryview(frame).cast("B"))
    if small:
        pieces.append(b"".join(small))
    return pieces


@final
class Outgoing:
    """The bytes that one connection has yet to write, with the rest of a half-written
    frame."""

    __slots__ = ("_pieces", "size_bytes")

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.size_bytes = 0
        """Number of bytes that are left to write."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def append(self, pieces: Iterable[Piece]) -> None:
        """Write these pieces, after the others."""
        for piece in pieces:
            if len(piece):
                self._pieces.append(piece)
                self.size_bytes += len(piece)

    def pieces(self) -> list[Piece]:
        """The next pieces to write, for one ``sendmsg``."""
        return list(islice(self._pieces, PIECES_MOST))

    def sent(self, size: int) -> None:
        """Note that this number of bytes was written from the beginning of :meth:`pieces`."""
        self.size_bytes -= size
        pieces = self._pieces
        while size:
            first = pieces[0]
            if size < len(first):
                pieces[0] = memoryview(first)[size:]
                return
            size -= len(first)
            pieces.popleft()

    def clear(self) -> None:
        """Drop everything that is left to write."""
        self._pieces.clear()
        self.size_bytes = 0
