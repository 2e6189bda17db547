"""Parking: outcomes that the router has no memory for yet wait in temporary files.

Theory of operation
-------------------
A file holds many outcomes, one after the other, and is mapped into memory, so other code reads a
parked outcome like any other.  A mapped file takes memory only while it is read, and the system may
take that back at any time.  A file has no name.  When the last of its outcomes is forgotten, the
map is freed, and the file with it.  The kernel does so, too, when the process dies, however it
dies.

Writing may take long, so a thread does it.  While that thread is behind
(:attr:`Parking.is_behind`) no execution begins; otherwise waiting outcomes would fill the memory
after all.
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
from ..core.terms import Body, SentBody, pieces_of
from .failures import log

FILE_BYTES = 64 * MIB
"""Size of a file; a larger outcome has a file of its own.  A file takes a descriptor, and space on
the disk until the last of its outcomes is forgotten."""


@final
class Parking:
    """The waiting outcomes of a worker.  ``parked`` is called for each, with its number
    and its new bytes; or with None if there is no space, so that it stays in memory.
    ``most_bytes``: the thread is behind when more than this waits to be written."""

    def __init__(self, parked: Callable[[int, Body | None], None], most_bytes: int) -> None:
        self._parked = parked
        self._most_bytes = most_bytes
        self._waiting_bytes = 0
        self._waiting: deque[tuple[int, SentBody]] = deque()
        self._come = trio.Event()
        self._lot = trio.lowlevel.ParkingLot()
        """Tasks that wait until the thread is not behind."""
        self._file: IO[bytes] | None = None
        self._map: memoryview
        """The map of the whole file.  It is only read: on a full disk a write fails, but a
        write to a map would kill the process."""
        self._end: int
        """Number of bytes of the file that are written."""
        self._failed = False
        """Whether the log has said that there is no space."""

    @property
    def is_behind(self) -> bool:
        """Whether more than ``most_bytes`` are still to be written."""
        return self._waiting_bytes > self._most_bytes

    async def wait_for_space(self) -> None:
        """Sleep while the thread is behind; no checkpoint if it is not."""
        while self.is_behind:
            await self._lot.park()

    def add(self, number: int, payload: SentBody) -> None:
        """Queue an outcome to be parked."""
        self._waiting.append((number, payload))
        self._waiting_bytes += len(payload)
        self._come.set()

    async def run(self) -> None:
        """Park queued outcomes, until cancelled.  An outcome without space on the disk stays in
        memory."""
        try:
            while True:
                await self._come.wait()
                self._come = trio.Event()
                while self._waiting:
                    await self._park(*self._waiting.popleft())
        finally:
            self.close()

    async def _park(self, number: int, payload: SentBody) -> None:
        view: Body | None = None
        try:
            view = await trio.to_thread.run_sync(self._write, payload)
        except OSError as error:
            self._complain(error)
        self._waiting_bytes -= len(payload)
        self._lot.unpark_all()
        self._parked(number, view)

    def _write(self, payload: SentBody) -> memoryview:
        """Runs in a thread, and never in two at once."""
        size = len(payload)
        if self._file is None or self._end + size > len(self._map):
            self.close()
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - see close
            self._file.truncate(max(size, FILE_BYTES))
            self._map = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        begin = self._end
        for piece in pieces_of(payload):
            rest = memoryview(piece)
            while rest:
                written = os.pwrite(self._file.fileno(), rest, self._end)
                self._end += written
                rest = rest[written:]
        return self._map[begin : self._end]

    def close(self) -> None:
        """Close the current file.  Parked outcomes stay as long as they are used."""
        if self._file is not None:
            self._file.close()
        self._file, self._map, self._end = None, memoryview(b""), 0

    def _complain(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            text = "outcomes that wait for room stay in memory; %s cannot take them: %s"
            log(logging.WARNING, text, tempfile.gettempdir(), error)
