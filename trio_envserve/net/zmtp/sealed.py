"""Sealed traffic: each frame in a box of its own, as CURVE has it after the handshake.

Theory of operation
-------------------
A frame travels as the only frame of a message: the name ``MESSAGE``, eight bytes of a
counter, and a box with one byte of flags and the body.  MORE and COMMAND are flags inside
the box, so nobody on the way can put frames together anew.  The counter of each side
rises from frame to frame, and is a part of the nonce: so no nonce is used twice, and a
frame that comes again, or too late, is refused.

:class:`SealedDecoder` has the interface of :class:`~..framing.Decoder`, and keeps the same
bounds.  Bytes that are not sealed rightly raise FramingError, and nothing behind them is
read.  :meth:`Sealer.encode` is the other direction.  A frame costs about 4 µs to seal or to
open.

A large frame is opened in the memory into which it was received.  It is sealed, and opened,
in one step: so the frames of such connections have a bound of their own,
:data:`SEALED_FRAME_BYTES`.

Pure: no sockets, no trio, no clock, no random source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, final

from ...core.limits import MIB
from ..framing import (
    MORE,
    Decoder,
    FrameLimits,
    FrameTooLarge,
    FramingError,
    Piece,
)
from ..interface import COPY_THRESHOLD_BYTES, Frame, Message, SentFrame, size_bytes, write_frame
from ..spare import SpareMemory
from . import boxes

SEALED_FRAME_BYTES: Final = 32 * MIB
"""The largest frame: one step of 40 ms of processor time, on a slow machine of 80 ms."""

_NAME: Final = b"\x07MESSAGE"
_COUNTER: Final = slice(8, 16)
_FLAGS_AT: Final = boxes.ROOM_BYTES
_HEAD_BYTES: Final = boxes.ROOM_BYTES + 1
"""The bytes of a sealed frame before its body: name, counter, seal and flags."""
_INNER_COMMAND: Final = 2
"""The flag of a command inside a box; outside it is another one."""


@final
class Sealer:
    """The frames that this side sends."""

    __slots__ = ("_counter", "_key", "_prefix")

    def __init__(self, key: bytes, prefix: bytes, counter: int) -> None:
        """``counter``: the last one that was used with these keys."""
        self._key = key
        self._prefix = prefix
        self._counter = counter

    def command(self, body: bytes) -> bytes:
        """The sealed frame of a command."""
        return b"".join(self._seal(_INNER_COMMAND, body))

    def encode(self, messages: Sequence[Message]) -> list[Piece]:
        """The bytes of messages, to be written in this order and before any that are made
        later."""
        small: list[Piece | bytearray] = []
        pieces: list[Piece] = []
        for message in messages:
            left = len(message)
            for frame in message:
                left -= 1
                head, sealed = self._seal(MORE if left else 0, frame)
                small.append(head)
                if len(sealed) < COPY_THRESHOLD_BYTES:
                    small.append(sealed)
                else:
                    pieces += (b"".join(small), memoryview(sealed))
                    small.clear()
        if small:
            pieces.append(b"".join(small))
        return pieces

    def _seal(self, flags: int, frame: SentFrame) -> tuple[bytes, bytearray]:
        self._counter += 1
        counter = self._counter.to_bytes(8, "big")
        if type(frame) is bytes:
            buffer = bytearray(_FLAGS_AT) + bytes((flags,)) + frame
        else:
            buffer = bytearray(_HEAD_BYTES + size_bytes((frame,)))
            buffer[_FLAGS_AT] = flags
            write_frame(frame, buffer, _HEAD_BYTES)
        boxes.seal_in_place(buffer, self._prefix + counter, self._key)
        buffer[:16] = _NAME + counter
        size = len(buffer)
        head = bytes((0, size)) if size < 256 else b"\x02" + size.to_bytes(8, "big")
        return head, buffer


@final
class SealedDecoder:
    """The frames that the peer sends: see :class:`~..framing.Decoder`."""

    __slots__ = (
        "_counter",
        "_frames",
        "_held_bytes",
        "_key",
        "_limits",
        "_outer",
        "_prefix",
        "_violation",
        "check_command",
        "commands",
        "is_backlogged",
    )

    def __init__(
        self,
        limits: FrameLimits,
        key: bytes,
        prefix: bytes,
        counter: int,
        rest: bytes,
        spare: SpareMemory | None = None,
    ) -> None:
        """``counter``: the last one of the peer's.  ``rest``: bytes that came with the end of
        the handshake."""
        frame_bytes = min(limits.frame_bytes, SEALED_FRAME_BYTES) + _HEAD_BYTES
        outer = FrameLimits(frame_bytes=frame_bytes, message_bytes=frame_bytes, frames=1)
        self._outer = Decoder(outer, spare=spare)
        self._outer.feed(rest)
        self._limits = limits
        self._key = key
        self._prefix = prefix
        self._counter = counter
        self._frames: list[Frame] = []
        """The opened frames of the arriving message."""
        self._held_bytes = 0
        """Their sum."""
        self._violation: partial[FramingError] | None = None
        self.commands: deque[bytes] = deque()
        """Bodies of opened commands, for the caller to take."""
        self.check_command: Callable[[bytes], None] | None = None
        """See the decoder of frames."""
        self.is_backlogged = bool(rest)
        """Whether :meth:`take` may have more."""

    @property
    def arriving_bytes(self) -> int:
        """The bytes held for unfinished messages."""
        return self._outer.arriving_bytes + self._held_bytes

    @property
    def is_between_messages(self) -> bool:
        """Whether no message is unfinished."""
        return not self._frames and self._outer.is_between_messages

    def buffer(self) -> memoryview | None:
        """See the decoder of frames."""
        return self._outer.buffer()

    def received(self, size: int) -> None:
        """See the decoder of frames."""
        self._outer.received(size)

    def feed(self, data: bytes) -> None:
        """See the decoder of frames."""
        self._outer.feed(data)

    def take(self, most: int) -> list[list[Frame]]:
        """Whole messages that have arrived, of at most so many frames; a command counts as
        one.  Once everything before a violation was given out, each call raises
        FramingError."""
        if self._violation is not None:
            raise self._violation()
        batch: list[list[Frame]] = []
        try:
            sealed = self._outer.take(most)
            self.is_backlogged = self._outer.is_backlogged
            if self._outer.commands:
                raise FramingError("a command that is not sealed")
            for [frame] in sealed:
                self._open(frame, batch)
        except FramingError as error:
            self._violation = partial(type(error), *error.args)
            self._frames, self._held_bytes = [], 0
            self.is_backlogged = True
            if not batch and not self.commands:
                raise
        return batch

    def _open(self, frame: Frame, batch: list[list[Frame]]) -> None:
        if len(frame) < _HEAD_BYTES or frame[:8] != _NAME:
            raise FramingError("a frame that is not sealed")
        raw = bytes(frame[_COUNTER])
        counter = int.from_bytes(raw, "big")
        if counter <= self._counter:
            raise FramingError(f"frame {counter} of the connection after frame {self._counter}")
        is_own = isinstance(frame, memoryview) and not isinstance(frame.obj, bytes)
        buffer = frame if isinstance(frame, memoryview) and is_own else bytearray(frame)
        try:
            boxes.open_in_place(buffer, self._prefix + raw, self._key)
        except boxes.WrongBox as error:
            raise FramingError(str(error)) from None
        self._counter = counter
        flags, size = buffer[_FLAGS_AT], len(buffer) - _HEAD_BYTES
        if flags == _INNER_COMMAND:
            if size > self._limits.command_bytes:
                raise FrameTooLarge(f"a command of {size} bytes")
            body = bytes(buffer[_HEAD_BYTES:])
            if self.check_command is not None:
                self.check_command(body)
            self.commands.append(body)
            return
        if flags & ~MORE:
            raise FramingError(f"a sealed frame with the flags {flags:#04x}")
        if self._held_bytes + size > self._limits.message_bytes:
            raise FrameTooLarge(f"a message of more than {self._limits.message_bytes} bytes")
        if len(self._frames) >= self._limits.frames:
            raise FrameTooLarge(f"a message of more than {self._limits.frames} frames")
        view = memoryview(buffer)[_HEAD_BYTES:].toreadonly()
        self._frames.append(view if size >= COPY_THRESHOLD_BYTES else bytes(view))
        self._held_bytes += size
        if not flags & MORE:
            batch.append(self._frames)
            self._frames, self._held_bytes = [], 0
