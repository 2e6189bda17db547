"""Sealed traffic: each frame in a box of its own, as CURVE has it after the handshake.

Theory of operation
-------------------
A frame travels as the only frame of a message: the name ``MESSAGE``, eight bytes of a
counter, and a box with one byte of flags and the body.  MORE and COMMAND are flags inside
the box, so nobody on the way can put frames together anew.  The counter of each side
rises from frame to frame, and is a part of the nonce: so no nonce is used twice, and a
frame that comes again, or too late, is refused.

:class:`Seal` is a step before the framing that both directions of every connection have:
:meth:`Seal.encode` hands sealed frames to the encoder, and :class:`~..framing.Decoder`
has :meth:`Seal.open` open those that arrive.  A frame costs about 4 µs to seal or to open.

A large frame is opened in the memory into which it was received.  It is sealed, and opened,
in one step: so the frames of such connections have a bound of their own,
:data:`SEALED_FRAME_BYTES`.

Pure: no sockets, no trio, no clock, no random source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

from ...core.limits import MIB
from ..framing import COMMAND, MORE, FramingError, Piece, encode
from ..interface import COPY_THRESHOLD_BYTES, Frame, Message, SentFrame, size_bytes, write_frame
from . import boxes

SEALED_FRAME_BYTES: Final = 32 * MIB
"""The largest frame: one step of 40 ms of processor time, on a slow machine of 80 ms."""

HEAD_BYTES: Final = boxes.ROOM_BYTES + 1
"""The bytes of a sealed frame before its body: name, counter, seal and flags."""

_NAME: Final = b"\x07MESSAGE"
_COUNTER: Final = slice(8, 16)
_FLAGS_AT: Final = boxes.ROOM_BYTES
_INNER_COMMAND: Final = 2
"""The flag of a command inside a box; outside it is :data:`~..framing.COMMAND`."""


@final
class Seal:
    """The keys and counters that seal both directions of a connection."""

    __slots__ = ("_heard", "_hears", "_key", "_sends", "_sent")

    def __init__(self, key: bytes, sends: bytes, sent: int, hears: bytes, heard: int) -> None:
        self._key = key
        self._sends = sends
        """The first part of this side's nonces."""
        self._sent = sent
        """Last counter of this side."""
        self._hears = hears
        self._heard = heard
        """The peer's last counter."""

    def command(self, body: bytes) -> bytes:
        """The bytes of a command."""
        sealed: Any = self._seal(_INNER_COMMAND, body)
        return b"".join(encode([(sealed,)]))

    def encode(self, messages: Sequence[Message]) -> list[Piece]:
        """The bytes of messages, to be written in this order and before any that are made
        later."""
        sealed: list[Any] = []  # a bytearray each, which is written as bytes are
        for message in messages:
            left = len(message)
            for frame in message:
                left -= 1
                sealed.append((self._seal(MORE if left else 0, frame),))
        return encode(sealed)

    def _seal(self, flags: int, frame: SentFrame) -> bytearray:
        self._sent += 1
        counter = self._sent.to_bytes(8, "big")
        if type(frame) is bytes:
            buffer = bytearray(_FLAGS_AT) + bytes((flags,)) + frame
        else:
            buffer = bytearray(HEAD_BYTES + size_bytes((frame,)))
            buffer[_FLAGS_AT] = flags
            write_frame(frame, buffer, HEAD_BYTES)
        boxes.seal_in_place(buffer, self._sends + counter, self._key)
        buffer[:16] = _NAME + counter
        return buffer

    def open(self, frame: Frame) -> tuple[int, Frame]:
        """The flags of a sealed frame, as a frame that is not sealed has them, and its body.
        Raises FramingError."""
        if len(frame) < HEAD_BYTES or frame[:8] != _NAME:
            raise FramingError("a frame that is not sealed")
        raw = bytes(frame[_COUNTER])
        counter = int.from_bytes(raw, "big")
        if counter <= self._heard:
            raise FramingError(f"frame {counter} of the connection after frame {self._heard}")
        if isinstance(frame, bytes) or isinstance(frame.obj, bytes):
            buffer: bytearray | memoryview = bytearray(frame)
        else:
            buffer = frame  # memory of its own
        try:
            boxes.open_in_place(buffer, self._hears + raw, self._key)
        except boxes.WrongBox as error:
            raise FramingError(str(error)) from None
        self._heard = counter
        flags = buffer[_FLAGS_AT]
        if flags == _INNER_COMMAND:
            flags = COMMAND
        elif flags & ~MORE:
            raise FramingError(f"a sealed frame with the flags {flags:#04x}")
        body = memoryview(buffer)[HEAD_BYTES:]
        return flags, body.toreadonly() if len(body) >= COPY_THRESHOLD_BYTES else bytes(body)
