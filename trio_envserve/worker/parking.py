"""Outcomes that wait for room at their router, in temporary files.

Theory of operation
-------------------
A file holds many outcomes, one behind the other, and is mapped into memory: so a parked
outcome is read as what it was, and nobody else has to know of it.  What is mapped takes
memory only while somebody reads it, and the system may take that back at any time.  A
file has no name.  When the last of its outcomes is forgotten, the map goes, and with it
the file; so does it when the process dies, however that happens.

Writing may take long, and is done in a thread.  Meanwhile no more is to be begun than
that thread can follow (:attr:`Parking.is_behind`), or what waits for it would fill the
memory after all.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable
from typing import IO, final

import trio

from ..core.limits import MIB
from ..core.terms import Body
from .failures import log

FILE_BYTES = 64 * MIB
"""Of one file; one outcome that is larger has a file of its own.  A file takes a
descriptor, and its space on the disk until the last of its outcomes is forgotten."""


@final
class Parking:
    """Where a worker's outcomes wait.  ``parked`` is told of each, by its number, and
    what it reads as from then on; None if there is no place, so that it stays where it
    is.  ``most_bytes``: when more than this waits to be written, it is behind."""

    def __init__(self, parked: Callable[[int, Body | None], None], most_bytes: int) -> None:
        self._parked = parked
        self._most_bytes = most_bytes
        self._waiting_bytes = 0
        self._waiting: deque[tuple[int, Body]] = deque()
        self._come = trio.Event()
        self._file: IO[bytes] | None = None
        self._map = memoryview(b"")
        """Of the whole file.  It is only read: a full disk fails a write, and would
        kill whoever writes to a map."""
        self._end = 0
        self._failed = False
        """Whether it is in the log that there is no room."""

    @property
    def is_behind(self) -> bool:
        """Whether too much is still to be written."""
        return self._waiting_bytes > self._most_bytes

    def add(self, number: int, payload: Body) -> None:
        """Park this one soon."""
        self._waiting.append((number, payload))
        self._waiting_bytes += len(payload)
        self._come.set()

    async def run(self) -> None:
        """Park what comes.  One for which there is no room stays in memory."""
        try:
            while True:
                await self._come.wait()
                self._come = trio.Event()
                while self._waiting:
                    await self._park(*self._waiting.popleft())
        finally:
            self.close()

    async def _park(self, number: int, payload: Body) -> None:
        view: Body | None = None
        try:
            view = await trio.to_thread.run_sync(self._write, payload)
        except OSError as error:
            self._complain(error)
        self._waiting_bytes -= len(payload)
        self._parked(number, view)

    def _write(self, payload: Body) -> memoryview:
        """In a thread, and never in two."""
        size = len(payload)
        if self._file is None or self._end + size > len(self._map):
            self.close()
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - see close
            self._file.truncate(max(size, FILE_BYTES))
            self._map = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
            self._end = 0
        begin, rest = self._end, memoryview(payload)
        while rest:
            written = os.pwrite(self._file.fileno(), rest, self._end)
            self._end += written
            rest = rest[written:]
        return self._map[begin : self._end]

    def close(self) -> None:
        """Write no more.  What is parked stays as long as somebody has it."""
        if self._file is not None:
            self._file.close()
        self._file, self._map = None, memoryview(b"")

    def _complain(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            text = "outcomes that wait for room stay in memory; %s cannot take them: %s"
            log(logging.WARNING, text, tempfile.gettempdir(), error)
