"""The files of a recording: written by a thread, a bounded number of them.

Theory of operation
-------------------
The tape collects records in memory; :meth:`Recorder.keep_writing` drains it
every ``record_flush_s``, or as soon as much has collected, and has a thread
write it, so that a slow disk holds up nobody.  What was written survives the
end of this process, however it comes; nothing is forced to the disk.

When FILE is full it becomes FILE.1, that FILE.2 and so on, and the oldest of
``record_files`` is removed.  A FILE that is there at the start is of an earlier
server, perhaps of one that has just crashed, and is kept the same way.  FILE is
locked while it is written: two servers never share one.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import logging
import os
import platform
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from ...core.errors import ConfigError
from ...core.limits import PROTOCOL_VERSION
from .records import NAME
from .tape import MakeRouter, NewFile, Tape

_log = logging.getLogger("trio_envserve.server")

CLOSE_S = 5.0
"""At the end the last records may take so long; a disk that is stuck holds up nobody."""


class _Files:
    """FILE, FILE.1, …; used by one thread at a time."""

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        try:
            self._fd = self._open_new()
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"cannot record to {path}: {why}") from None

    def write(self, parts: list[bytes | NewFile]) -> None:
        """All of it.  OSError if that cannot be."""
        data: list[bytes] = []
        for part in parts:
            if isinstance(part, NewFile):
                self._write(b"".join(data))
                data = []
                old, self._fd = self._fd, self._open_new()
                os.close(old)
            else:
                data.append(part)
        self._write(b"".join(data))

    def close(self) -> None:
        """Give the file and its lock back."""
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _open_new(self) -> int:
        """Make room, and a new FILE that only its owner can read."""
        self._check_free()
        name = str(self._path)
        numbered = [name, *(f"{name}.{n}" for n in range(1, self._most))]
        if os.path.lexists(numbered[-1]):
            _check_recording(numbered[-1])
            os.unlink(numbered[-1])
        for older, newer in reversed(list(zip(numbered[1:], numbered[:-1], strict=True))):
            if os.path.lexists(newer):
                os.replace(newer, older)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd

    def _check_free(self) -> None:
        """Whether FILE is none, or a recording that nobody else writes."""
        if hasattr(self, "_fd") or not os.path.lexists(self._path):
            return  # the lock is this object's own; or there is nothing to lock
        _check_recording(self._path)
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError("another server is recording to it") from None
        finally:
            os.close(fd)


def _check_recording(path: str | Path) -> None:
    """OSError if it is anything else: nobody's data is removed by mistake."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        ordinary = stat.S_ISREG(os.fstat(fd).st_mode)
        start = os.read(fd, 64) if ordinary else b""
    finally:
        os.close(fd)
    if not ordinary or (start and NAME.encode() not in start):
        raise OSError(f"{path} is there, and is no recording")


@final
class Recorder:
    """A recording that is being written.  Made by :func:`open_recorder`."""

    def __init__(self, files: _Files, tape: Tape, flush_s: float) -> None:
        self.tape = tape
        """Where the inputs go."""
        self._files = files
        self._flush_s = flush_s
        self._full = trio.lowlevel.ParkingLot()
        self._one = trio.CapacityLimiter(1)
        """A place of its own: environment code may hold all others."""
        self._told = False
        tape.full = self._full.unpark_all

    async def keep_writing(self) -> None:
        """Until it is cancelled."""
        while True:
            with trio.move_on_after(self._flush_s):
                await self._full.park()
            await self._write()

    async def _write(self, *, abandon: bool = False) -> None:
        parts = self.tape.drain()
        try:
            if parts:
                await trio.to_thread.run_sync(
                    self._files.write, parts, limiter=self._one, abandon_on_cancel=abandon
                )
        except OSError as error:
            self.tape.fail(str(error))
            self.tape.drain()
        if self.tape.failed and not self._told:
            self._told = True
            _log.error("the recording ends here, the server goes on: %s", self.tape.failed)

    async def _write_rest(self) -> None:
        self.tape.end()
        await self._write(abandon=True)

    def _close(self, *, written: bool) -> None:
        if written:
            self._files.close()
        else:  # a thread still tries: the file stays open
            _log.error("the last records were not written within %g s", CLOSE_S)


@asynccontextmanager
async def open_recorder(
    path: str | os.PathLike[str], make: MakeRouter, *,
    new_id: Callable[[], bytes], now_s: float, slots: int, pulses: bool, bodies: bool = False,
    **about: Any,
) -> AsyncIterator[Recorder]:  # fmt: skip
    """Record a router, made by ``make``, to ``path`` until the block ends.

    The block must run :meth:`Recorder.keep_writing` in a task.  The arguments are
    those of :class:`Tape`.  ConfigError if the file cannot be had.
    """
    about |= {
        "recording": os.urandom(16), "version": _version(), "python": platform.python_version(),
        "protocol": PROTOCOL_VERSION, "time": time.time(),
    }  # fmt: skip
    tape = Tape(
        make, new_id=new_id, key=os.urandom(32), now_s=now_s, slots=slots, pulses=pulses,
        bodies=bodies, about=about,
    )  # fmt: skip
    limits = tape.router.limits
    open_files = partial(_Files, Path(path), limits.record_files)
    recorder = Recorder(await trio.to_thread.run_sync(open_files), tape, limits.record_flush_s)
    try:
        await recorder._write()  # a recording can be read from its beginning on
        yield recorder
    finally:
        with trio.move_on_after(CLOSE_S, shield=True) as scope:
            await recorder._write_rest()
        recorder._close(written=not scope.cancelled_caught)


def _version() -> str:
    try:
        return importlib.metadata.version("trio-envserve")
    except importlib.metadata.PackageNotFoundError:
        return "?"  # it runs from a folder, uninstalled
