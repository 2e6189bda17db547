"""ZMTP 3.1 by hand: as little of it as an attacker needs.

Theory of operation
-------------------
An attacker, or a case, must not share a mistake with what it attacks, so this imports nothing
of :mod:`trio_envserve.net`: a greeting, ``READY`` of the mechanism NULL, frames and
``PING`` are made here, and a :class:`Reader` takes apart what comes back.  Every
part can be made wrong on purpose.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import final

GREETING_BYTES = 64

MORE, LONG, COMMAND = 1, 2, 4
"""The flags of a frame."""

_LONG_HEAD = struct.Struct(">BQ")


def greeting(
    *, major: int = 3, minor: int = 1, mechanism: bytes = b"NULL", as_server: int = 0
) -> bytes:
    """The first 64 bytes of a connection."""
    signature = b"\xff" + bytes(8) + b"\x7f"
    return (
        signature + bytes((major, minor)) + mechanism.ljust(20, b"\0")[:20]
        + bytes((as_server,)) + bytes(31)
    )  # fmt: skip


def head(size: int, flags: int = 0) -> bytes:
    """The head of a frame that claims ``size`` bytes."""
    if size > 255 or flags & LONG:
        return _LONG_HEAD.pack(flags | LONG, size)
    return bytes((flags, size))


def frame(body: bytes, flags: int = 0) -> bytes:
    """A whole frame."""
    return head(len(body), flags) + body


def message(*frames: bytes) -> bytes:
    """A whole message."""
    return b"".join(
        frame(each, MORE if index < len(frames) else 0) for index, each in enumerate(frames, 1)
    )


def command(name: bytes, data: bytes = b"") -> bytes:
    """A command frame."""
    return frame(bytes((len(name),)) + name + data, COMMAND)


def metadata(name: bytes, value: bytes) -> bytes:
    """One property of a ``READY``."""
    return bytes((len(name),)) + name + struct.pack(">I", len(value)) + value


def ready(socket_type: bytes = b"DEALER", identity: bytes | None = b"") -> bytes:
    """``READY`` of the mechanism NULL."""
    properties = metadata(b"Socket-Type", socket_type)
    if identity is not None:
        properties += metadata(b"Identity", identity)
    return command(b"READY", properties)


def ping(context: bytes = b"", ttl_tenths: int = 0) -> bytes:
    """``PING``, to be answered with the first 16 bytes of the context."""
    return command(b"PING", struct.pack(">H", ttl_tenths) + context)


@final
class Reader:
    """Takes apart what a well-behaved peer sends: its greeting, then frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._frames: list[bytes] = []
        self.greeted = False
        """Whether the greeting has come."""
        self.commands: list[bytes] = []
        """The commands that came, by their bodies."""

    def feed(self, data: bytes) -> Iterator[Sequence[bytes]]:
        """The messages that are whole now."""
        self._buffer += data
        if not self.greeted:
            if len(self._buffer) < GREETING_BYTES:
                return
            del self._buffer[:GREETING_BYTES]
            self.greeted = True
        while (found := self._next()) is not None:
            flags, body = found
            if flags & COMMAND:
                self.commands.append(body)
                continue
            self._frames.append(body)
            if not flags & MORE:
                whole, self._frames = self._frames, []
                yield whole

    def _next(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        flags = buffer[0]
        if flags & LONG:
            if len(buffer) < _LONG_HEAD.size:
                return None
            start, size = _LONG_HEAD.size, _LONG_HEAD.unpack_from(buffer)[1]
        else:
            start, size = 2, buffer[1]
        if len(buffer) < start + size:
            return None
        body = bytes(buffer[start : start + size])
        del buffer[: start + size]
        return flags, body
