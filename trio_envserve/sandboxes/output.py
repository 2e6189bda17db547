"""The output of a command, of which only so much is kept."""

from __future__ import annotations

import contextlib
import os
from typing import IO, Final, final

import trio

PIECE_BYTES: Final = 1 << 16
"""Most bytes that are read at once; a pipe holds as much."""
PAUSE_S: Final = 0.001
"""Pause after a piece of a flood, in seconds."""
LEFT_BYTES: Final = 1 << 20
"""Most bytes that are read of a pipe once its command has ended: the kernel's bound of a pipe.
Others that have the pipe may write on."""


@final
class CutOutput:
    """The beginning and the end of what was written: at most ``most`` bytes."""

    def __init__(self, most: int) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._head_most, self._tail_most = most // 2, most - most // 2
        self._total = 0

    def take(self, piece: bytes) -> None:
        """Add what was written next."""
        self._total += len(piece)
        room = self._head_most - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        if len(self._tail) > 2 * self._tail_most + PIECE_BYTES:
            self._cut()

    def _cut(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_most)]

    def kept(self) -> tuple[bytes, int]:
        """The bytes that are kept, and the number of those that are not, in their middle."""
        self._cut()
        kept = bytes(self._head + self._tail)
        return kept, self._total - len(kept)

    async def read(self, pipe: IO[bytes]) -> None:
        """Take what comes out of a pipe, to its end."""
        while piece := await read_piece(pipe.fileno()):
            self.take(piece)
            await self.pause()

    async def pause(self) -> None:
        """Rest for a moment if more was written than is kept: a flood is not the work of this
        loop."""
        if self._total > self._head_most + self._tail_most:
            await trio.sleep(PAUSE_S)

    def read_left(self, pipe: IO[bytes]) -> None:
        """Take what is in a pipe now."""
        for _ in range(LEFT_BYTES // PIECE_BYTES):
            try:
                piece = os.read(pipe.fileno(), PIECE_BYTES)
            except BlockingIOError:
                return
            if not piece:
                return
            self.take(piece)


async def read_piece(pipe: int) -> bytes:
    """The next bytes of a pipe that does not block; none at its end."""
    while True:
        await trio.lowlevel.wait_readable(pipe)
        try:
            return os.read(pipe, PIECE_BYTES)
        except BlockingIOError:  # there is another reader
            continue


async def write(pipe: IO[bytes], data: bytes) -> None:
    """Write all of it to a pipe that does not block, or until nobody reads it, and close that."""
    left = memoryview(data)
    with pipe, contextlib.suppress(BrokenPipeError):
        while left:
            await trio.lowlevel.wait_writable(pipe.fileno())
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(pipe.fileno(), left) :]
