"""The folders that rollouts make, and their removal, whatever ended their worker.

Theory of operation
-------------------
A worker keeps the folders of its rollouts in one *base folder*, which is made with the first of
them.  A file in it is locked (``flock``) as long as the worker lives, or the reaper of one of its
processes.  The worker removes a folder when its attempt is over, and the base folder when it ends.

A base folder whose lock is free belongs to nobody that lives.  One without a locked file may have
lost it to a program that cleans the directory of old files: only an empty one is removed then.
The guard of each worker has a process of its own remove all of these (:func:`sweep`): when the
worker starts, and when all below the guard is dead.  So whatever was killed, its folders are gone
at the next start.

Anything that cannot be removed (:mod:`trio_envserve.removal`) stays, is tried again with the next
folders, and is left, with the base folder, to the next sweep.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import re
import stat
import threading
from pathlib import Path
from typing import final

from ..removal import opened, remove_entry

PREFIX = "trio-envserve-made-"
"""Begin of the name of a base folder."""
LOCK = "lock"
"""Name of the locked file."""

STAYING_MOST = 64
"""Number of the last folders that have stayed which each removal tries again: those that nobody can
remove make it no slower than that."""

_NAME = re.compile(re.escape(PREFIX) + "[0-9a-f]{16}")


@functools.cache
def temporary() -> str:
    """The directory for base folders: one for a process and all that it forks, whatever becomes of
    its variables."""
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")


@final
class Folders:
    """The folders of the rollouts of one worker.  Methods may be called in any thread."""

    def __init__(self) -> None:
        self.lock = -1
        """Descriptor of the locked file; -1 before the first folder."""
        self._base = ""
        self._numbers = itertools.count()
        self._staying: list[str] = []
        """Names, in the base folder, of what could not be removed, the last ones."""
        self._making = threading.Lock()

    def make(self) -> Path:
        """A new folder for this user only.  Raises OSError."""
        with self._making:
            if self.lock == -1:
                self._base, self.lock = _new_base()
            elif not os.path.lexists(self._base):  # a cleaner has removed it, as old and empty
                self._base, held = _new_base()
                os.dup2(held, self.lock, inheritable=False)  # the number that reapers are given
                os.close(held)
            made = os.path.join(self._base, str(next(self._numbers)))
            _make(made)
        return Path(made)

    def remove(self, folder: Path) -> None:
        """Remove one with all that is in it, as far as that is possible, and what has stayed of
        earlier ones: there may have been no descriptor left for it."""
        with self._making:
            names, self._staying = [*self._staying, folder.name], []
        with opened(os.path.dirname(folder)) as base:
            if base is not None:
                names = [left for name in names for left in remove_entry(base, name)]
        with self._making:
            self._staying = [*self._staying, *names][-STAYING_MOST:]

    def close(self) -> None:
        """Remove the base folder."""
        if self.lock != -1:
            _remove_base(self._base)
            os.close(self.lock)
            self.lock = -1


def sweep() -> None:
    """Remove the base folders of this user that nobody holds."""
    with contextlib.suppress(OSError):
        for name in filter(_NAME.fullmatch, os.listdir(temporary())):
            with contextlib.suppress(OSError):  # it is gone, or somebody else's
                _sweep(os.path.join(temporary(), name))


def _sweep(base: str) -> None:
    found = os.lstat(base)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
        os.chmod(base, stat.S_IRWXU)
        try:
            held = _locked(base)
        except FileNotFoundError:
            os.rmdir(base)
            return
        if held is not None:
            _remove_base(base)
            os.close(held)


def _new_base() -> tuple[str, int]:
    while True:
        base = os.path.join(temporary(), PREFIX + os.urandom(8).hex())
        os.mkdir(base, stat.S_IRWXU)
        # A sweep that has found it meanwhile has the lock, or has removed it.
        with contextlib.suppress(FileNotFoundError):
            os.chmod(base, stat.S_IRWXU)  # whatever the umask is
            held = _locked(base, os.O_CREAT)
            if held is not None:
                return base, held


def _locked(base: str, create: int = 0) -> int | None:
    """The descriptor of the lock of a base folder; None if another one holds it.  Raises
    FileNotFoundError if there is no file and ``create`` is not ``O_CREAT``."""
    path = os.path.join(base, LOCK)
    held = os.open(path, os.O_RDWR | create | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.lstat(path), os.fstat(held)):
            return held
    except BlockingIOError:
        pass
    except BaseException:
        os.close(held)
        raise
    os.close(held)
    return None


def _make(path: str) -> None:
    os.mkdir(path, stat.S_IRWXU)
    os.chmod(path, stat.S_IRWXU)  # whatever the umask is


# -- removing -------------------------------------------------------------------------


def _remove_base(path: str) -> None:
    """Remove a base folder that this process has locked: the locked file last."""
    with opened(path) as base:
        if base is None:
            return
        for name in os.listdir(base):
            if name != LOCK:
                remove_entry(base, name)
        if set(os.listdir(base)) <= {LOCK}:
            with contextlib.suppress(OSError):  # there is none
                os.unlink(LOCK, dir_fd=base)
            with contextlib.suppress(OSError):
                os.rmdir(path)
