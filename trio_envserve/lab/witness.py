"""Proof that the process that last ran a key is dead.

Theory of operation
-------------------
Before a rollout runs a second time, its first run must have ended.  Only the
kernel knows that: a ``flock`` is released when the last process that holds it
ends, and never before.  Each process holds a lock on its own file for as long as
it lives, and each key has a file with the name of the process that began it last.
:meth:`Witness.begin` reads that name, tries that process's lock, and writes its own
name, all under the lock of the key's file.

So "dead" is never a guess and never early, and "alive" is never missed: of two
processes that begin one key at once, the second waits for the key's file and finds
the first's lock held.  (A fork that does not exec shares its parent's lock.)

A process holds a key's file while it reads and writes a few bytes.  This takes
microseconds, so it is called on an event loop without a thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from pathlib import Path
from typing import Literal, TypeAlias, final

Predecessor: TypeAlias = Literal["none", "dead", "alive"]
"""The process that began a key before: none, one that is proven dead, or one that is
alive (perhaps this one)."""

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


@final
class Witness:
    """The records of one directory, as one process sees them.

    Makes the directory if it is not there.  Raises ``OSError``.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process = f"{os.getpid()}-{secrets.token_hex(4)}"
        """The name of this process: a pid is used again, this name is not."""
        self._life = os.open(_life_path(self.directory, self.process), _FLAGS, 0o644)
        # Nobody knows the name yet, so nobody can hold the lock.
        fcntl.flock(self._life, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def begin(self, key: str) -> Predecessor:
        """Note that this process begins ``key`` now.  Returns the state of the process that began
        it before."""
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        descriptor = os.open(self.directory / f"key-{name}", _FLAGS, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = os.read(descriptor, 256).decode()
            found: Predecessor = "none"
            if before:
                found = "dead" if is_dead(self.directory, before) else "alive"
            os.pwrite(descriptor, self.process.encode(), 0)
            os.ftruncate(descriptor, len(self.process))
            return found
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Release this process's lock: from now on it counts as dead.  A worker
        never calls this; it dies."""
        os.close(self._life)


def is_dead(directory: str | os.PathLike[str], process: str) -> bool:
    """Whether the process of that name has ended.  Raises ``FileNotFoundError``
    for a name that no process of this directory ever had."""
    descriptor = os.open(_life_path(Path(directory), process), os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Shared, so that two who ask at once do not take each other for the process.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _life_path(directory: Path, process: str) -> Path:
    return directory / f"process-{process}"
