"""The file of a recording, written by a thread.

Theory of operation
-------------------
The tape collects records in memory; :meth:`Recorder.keep_writing` drains it every
``record_flush_s``, or as soon as much has collected, and has a thread write it, so that a slow disk
holds up nobody.  Written bytes survive the end of this process, whatever ends it; nothing is forced
to the disk.

A FILE that is there at the start is of an earlier server, perhaps of one that has
just crashed: it becomes FILE.old.  FILE is locked while it is written: two servers
never share one.
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
from pathlib import Path
from typing import Any, final

import trio

from ...core.errors import ConfigError
from ...core.limits import PROTOCOL_VERSION
from ...core.worker_range import WorkerRange
from .records import NAME
from .tape import MakeRouter, Tape

_log = logging.getLogger("trio_envserve.server")

CLOSE_S = 5.0
"""Time that the last records may take at the end, in seconds; a disk that hangs holds up nobody."""


def _open_new(path: Path) -> int:
    """A new FILE that only its owner can read, locked.  ConfigError if that cannot be."""
    try:
        if os.path.lexists(path):
            _check_recording(path)
            _check_free(path)
            old = path.with_name(f"{path.name}.old")
            if os.path.lexists(old):
                _check_recording(old)
            os.replace(path, old)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(f"cannot record to {path}: {error.strerror or error}") from None
    return fd


def _check_free(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError("another server is recording to it") from None
    finally:
        os.close(fd)


def _check_recording(path: Path) -> None:
    """OSError if it is anything else: nobody's data is removed by mistake."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        ordinary = stat.S_ISREG(os.fstat(fd).st_mode)
        start = os.read(fd, 64) if ordinary else b""
    finally:
        os.close(fd)
    if not ordinary or (start and NAME.encode() not in start):
        raise OSError(f"{path} exists, and is no recording")


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@final
class Recorder:
    """A recording that is being written.  Made by :func:`open_recorder`."""

    def __init__(self, fd: int, tape: Tape, flush_s: float) -> None:
        self.tape = tape
        """Tape that records the inputs."""
        self._fd = fd
        self._flush_s = flush_s
        self._full = trio.lowlevel.ParkingLot()
        self._one = trio.CapacityLimiter(1)
        """A place of its own: environment code may hold all others."""
        self._told = False
        tape.full = self._full.unpark_all

    async def keep_writing(self) -> None:
        """Write the tape to the file until cancelled."""
        while True:
            with trio.move_on_after(self._flush_s):
                await self._full.park()
            await self._write()

    async def _write(self, *, abandon: bool = False) -> None:
        data = self.tape.drain()
        try:
            if data:
                await trio.to_thread.run_sync(
                    _write, self._fd, data, limiter=self._one, abandon_on_cancel=abandon
                )
        except OSError as error:
            self.tape.stop(str(error))
            self.tape.drain()
        if self.tape.stopped and not self._told:
            self._told = True
            _log.warning("the recording ends here, the server goes on: %s", self.tape.stopped)

    async def _close(self) -> None:
        self.tape.stop()
        with trio.move_on_after(CLOSE_S, shield=True) as scope:
            await self._write(abandon=True)
        if scope.cancelled_caught:  # a thread still tries: the file stays open
            _log.error("the last records were not written within %g s", CLOSE_S)
        else:
            os.close(self._fd)


@asynccontextmanager
async def open_recorder(
    path: str | os.PathLike[str], make: MakeRouter, *,
    new_id: Callable[[], bytes], now_s: float, slots: int | WorkerRange, heartbeats: bool,
    bodies: bool = False, **about: Any,
) -> AsyncIterator[Recorder]:  # fmt: skip
    """Record a router, made by ``make``, to ``path`` until the block ends.

    The block must run :meth:`Recorder.keep_writing` in a task.  The arguments are
    those of :class:`Tape`.  ConfigError if the file cannot be had.
    """
    about |= {
        "version": _version(), "python": platform.python_version(),
        "protocol": PROTOCOL_VERSION, "time": time.time(),
    }  # fmt: skip
    tape = Tape(
        make,
        new_id=new_id,
        now_s=now_s,
        slots=slots,
        heartbeats=heartbeats,
        bodies=bodies,
        about=about,
    )
    fd = await trio.to_thread.run_sync(_open_new, Path(path))
    recorder = Recorder(fd, tape, tape.router.limits.record_flush_s)
    try:
        await recorder._write()  # a recording can be read from its beginning on
        yield recorder
    finally:
        await recorder._close()  # noqa: ASYNC102  # shields itself, and has a limit


def _version() -> str:
    try:
        return importlib.metadata.version("trio-envserve")
    except importlib.metadata.PackageNotFoundError:
        return "?"  # it runs from a folder, uninstalled
